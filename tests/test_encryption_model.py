"""An encrypted store answers like the memory store, in any order of calls, with key changes in between."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from palimpsest import Keys
from palimpsest.runtime.runner import drive
from palimpsest.stores import Store
from palimpsest.stores.encrypted.rotation import rotate
from sealed import NEW, OLD, opened
from test_stores_model import TwoStores

RINGS = (Keys({"old": OLD, "new": NEW}), Keys({"new": NEW, "old": OLD}))


class EncryptedToo(TwoStores):
    """The second store is encrypted; now and then another key becomes current, or keys are rotated."""

    ring = RINGS[0]

    def opened(self) -> Store:
        return opened(self.address.format(self.folder), self.ring, self.clock, large_bytes=64)

    @rule(ring=st.sampled_from(RINGS))
    def reopen_with(self, ring: Keys) -> None:
        drive(self.file.close())
        self.clock.now += 1_000  # as `reopen` has it
        self.ring = ring
        self.file = self.opened()

    @rule()
    def rotate(self) -> None:
        """Rotate to the current key, which no answer may show."""
        drive(rotate(self.file))


class EncryptedFilesToo(EncryptedToo):
    """Compare the stores over a folder of files."""

    address = "file://{}/model"


@pytest.mark.wide
@pytest.mark.sampled
@pytest.mark.parametrize(
    ("examples", "steps"), [(12, 25), pytest.param(300, 80, marks=pytest.mark.slow)], ids=["short", "long"]
)
@pytest.mark.parametrize("machine", [EncryptedToo, EncryptedFilesToo], ids=["sqlite", "file"])
def test_an_encrypted_store_behaves_as_the_memory_store(machine: type[TwoStores], examples: int, steps: int) -> None:
    """An encrypted store answers like a plain one, whichever of two keys is current."""
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    )
