"""However long a given name is, no error becomes as long."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commands import run
from palimpsest import Memory, PalimpsestError
from palimpsest.resources import Resources
from test_resources import MINIMAL, loaded

LONG = "k" * 100_000
MOST = 3_000
"""Characters of a message. It has one mistake, with the place, what is wrong, and what is allowed there."""

DECLARED: dict[str, Any] = loaded(MINIMAL)


def exported(**changes: Any) -> dict[str, Any]:
    """Return an export with something changed."""
    with Memory.open("memory://") as memory:
        chat = memory.session("s")
        chat.add_user_message("Hello")
        return {**chat.export(), **changes}


CALLS: dict[str, Callable[[Memory], object]] = {
    "a key of a declaration": lambda _: Resources.load({**DECLARED, LONG: 1}),
    "a key of a block": lambda _: Resources.load({**DECLARED, "flushing": {LONG: 1}}),
    "a key of a policy": lambda _: Resources.load({**DECLARED, "privacy_policy": {"recognisers": {LONG: 1}}}),
    "the id of a declaration": lambda _: Resources.load({**DECLARED, "id": LONG, "max_tokens": -1}),
    "a key of a reference": lambda _: Resources.load(DECLARED).session({"id": "user_conversation", LONG: 1}),
    "a limit": lambda _: Resources.load(DECLARED).keyed("user_conversation", limits={LONG: 1}),
    "a path": lambda _: Resources.load(f"/{LONG}"),
    "a policy": lambda _: Memory.open("memory://", privacy={LONG: 1}),  # type: ignore[arg-type]
    "metadata": lambda memory: memory.session("s").add_user_message("Hello", metadata={LONG: object()}),
    "a field of a part": lambda memory: memory.session("s").add(
        {"role": "user", "content": [{"type": "text", "text": "x", LONG: object()}]}
    ),
    "a field of an entry": lambda memory: memory.import_session(exported(entries=[{"id": "a", LONG: 1}])),
    "a view": lambda memory: memory.import_session(
        exported(head={"revision": 1, "epoch": 0, "pinned": [], "views": {LONG: {"start": 99}}})
    ),
    "a kind": lambda memory: memory.import_session(exported(records=[{"revision": 1, "kind": LONG}])),
    "a fact": lambda memory: memory.import_session(exported(facts=[{LONG: 1}])),
    "an entry": lambda memory: memory.session("s").entry(LONG),
    "a session": lambda memory: memory.info(LONG),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_an_error_about_a_long_name_stays_short(call: Callable[[Memory], object]) -> None:
    """An error about a long name says what is wrong and where, with both ends of the name only."""
    with Memory.open("memory://") as memory:
        memory.session("s").add_user_message("Hello")

        with pytest.raises(PalimpsestError) as told:
            call(memory)

    assert len(str(told.value)) < MOST


@pytest.mark.parametrize("name", ["a.json", "b.json"])
def test_no_command_prints_a_long_name_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Commands that check declared memories or import files shorten long names, as text and as JSON."""
    monkeypatch.chdir(tmp_path)
    Path("a.json").write_text(json.dumps({**DECLARED, LONG: 1}))
    Path("b.json").write_text(f'[{{"role": "user", "content": "x", "metadata": {{"{LONG}": NaN}}}}]')
    command = ("config", "check") if name == "a.json" else ("import", "--session", "s", "--store", "s.db")

    for options in ((), ("--json",)):
        done = run(*command, name, *options)

        assert done.exit_code in (1, 2)
        assert len(done.output) < 2 * MOST
