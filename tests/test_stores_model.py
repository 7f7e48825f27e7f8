"""The memory store is the model of the stores in files: the same calls give the same answers and errors."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from msgspec.structs import replace

import strategies
from palimpsest.errors import PalimpsestError
from palimpsest.log import spans
from palimpsest.log.change import Change
from palimpsest.log.entry import Entry
from palimpsest.log.head import Attempts, Cut, Head, SessionKey, Usage
from palimpsest.log.summary import Compaction, Summary, faults
from palimpsest.runtime.runner import Inline, drive
from palimpsest.stores import Dump, Store
from palimpsest.stores.opening import open_store
from palimpsest.testing import FakeClock
from stored_counts import summed

TENANTS = st.sampled_from(["t", "u"])
KEYS = st.builds(SessionKey, TENANTS, st.sampled_from(["a", "b"]))
IDS = st.sampled_from([f"0190163d-8694-739b-aea5-966c26f8ad{n:02x}" for n in range(12)] + ["plain", "Ünï"])
NAMES = st.sampled_from(["k", "l", "m"])
SEQS = st.integers(-1, 12) | st.sampled_from([2**32, 2**32 + 1, 2**40])
COUNTERS = st.sampled_from(["words", "letters"])
BOUNDS = st.none() | SEQS
METADATA = st.none() | st.dictionaries(st.sampled_from(["erased", "tags"]), strategies.json_values)
EXPIRIES = st.none() | st.integers(0, 30).map(lambda seconds: datetime.fromtimestamp(1_700_000_000 + seconds, UTC))
numbers = itertools.count(1)


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    """Draw an entry of any kind, with one of a few ids, so that ids repeat."""
    kind, role = draw(
        st.sampled_from(
            [
                ("message", "user"),
                ("message", "assistant"),
                ("message", "system"),
                ("tool_call", "assistant"),
                ("tool_result", "tool"),
                ("context", "user"),
            ]
        )
    )
    return Entry(
        id=draw(IDS),
        kind=kind,
        role=role,
        content=draw(strategies.texts(30) | strategies.parts()),
        name=draw(st.none() | NAMES),
        call_id=draw(st.none() | NAMES),
        pinned=draw(st.booleans()),
        metadata=draw(METADATA),
        expires_at=draw(EXPIRIES),
    )


class TwoStores(RuleBasedStateMachine):
    """Calls every verb on both stores and compares the answers; the file is closed and reopened in between."""

    address = "sqlite:///{}/model.db"

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.clock = FakeClock()
        self.spared = False
        self.fences: list[Any] = []
        self.last: dict[tuple[str, str], Any] = {}
        self.model = open_store("memory://", Inline(), clock=self.clock)
        self.file = self.opened()

    def opened(self) -> Store:
        where = self.address.format(self.folder)
        return open_store(where, Inline(), clock=self.clock, synchronous="NORMAL", large_bytes=64)

    def both(self, ask: Callable[[Store], Any]) -> Any:
        """Return the answer of both stores, which must be equal, or None if both raise the same kind of error."""
        wanted, found = answer(ask, self.model), answer(ask, self.file)
        assert found == wanted
        return wanted

    @initialize()
    def begin(self) -> None:
        self.both(lambda store: store.sessions("t"))

    @rule(key=KEYS, batch=st.lists(entries(), max_size=4, unique_by=lambda entry: entry.id))
    def append(self, key: SessionKey, batch: list[Entry]) -> None:
        self.both(lambda store: store.append(key, batch, check_ids=True))

    @rule(key=KEYS, batch=st.lists(entries(), min_size=1, max_size=3))
    def append_new(self, key: SessionKey, batch: list[Entry]) -> None:
        named = [replace(entry, id=f"new {next(numbers)}") for entry in batch]
        self.both(lambda store: store.append(key, named))

    @rule(
        key=KEYS,
        after=SEQS,
        before=BOUNDS,
        limit=st.none() | st.integers(0, 4),
        newest_first=st.booleans(),
        counter=st.none() | COUNTERS,
    )
    def read(self, key: SessionKey, **how: Any) -> None:
        self.both(lambda store: store.read(key, **how))

    @rule(key=KEYS, counter=COUNTERS, after=SEQS, limit=st.none() | st.integers(1, 4))
    def uncounted(self, key: SessionKey, counter: str, after: int, limit: int | None) -> None:
        self.both(lambda store: store.uncounted(key, counter, after=after, limit=limit))

    @rule(key=KEYS, seqs=st.lists(SEQS, max_size=4), ids=st.lists(IDS, max_size=3), counter=st.none() | COUNTERS)
    def fetch(self, key: SessionKey, seqs: list[int], ids: list[str], counter: str | None) -> None:
        self.both(lambda store: store.fetch(key, seqs, ids, counter=counter))

    @rule(
        key=KEYS,
        kind=st.sampled_from(["cut", "erase", "erase", "spare", "clear", "pin", "usage"]),
        seqs=st.sets(st.integers(1, 12), max_size=3),
        unpin=st.booleans(),
        start=st.integers(1, 12),
        view=st.sampled_from(["main", "small"]),
        revision=st.none() | st.integers(0, 5),
        epoch=st.none() | st.integers(0, 3),
    )
    def compact(
        self,
        key: SessionKey,
        kind: Any,
        seqs: set[int],
        unpin: bool,
        start: int,
        view: str,
        revision: int | None,
        epoch: int | None,
    ) -> None:
        there = {entry.seq for entry in drive(self.model.read(key)) if not entry.erased}
        cut = Cut(start=start) if kind == "cut" else None
        usage = Usage(input_tokens=start) if kind == "usage" else None
        spare, kind = kind == "spare", "erase" if kind == "spare" else kind
        self.spared = self.spared or spare
        gone = tuple(sorted(seqs & there))
        change = Change(kind=kind, reason="r", view=view, cut=cut, seqs=gone, unpin=unpin, usage=usage, spare=spare)
        self.both(lambda store: store.commit(key, change, expect_revision=revision, expect_epoch=epoch))

    @rule(
        key=KEYS,
        seqs=st.sets(st.integers(1, 12), min_size=1, max_size=4),
        how=st.sampled_from(["cover", "fold", "evict"]),
        epoch=st.none() | st.integers(0, 3),
    )
    def compact_by_summary(self, key: SessionKey, seqs: set[int], how: str, epoch: int | None) -> None:
        """Cover some entries, merge older summaries into the new one, or only evict."""
        alive = spans.of(entry.seq for entry in drive(self.model.read(key)) if not entry.erased)
        states = self.states(key)
        state = states.get((drive(self.model.head(key)) or Head()).compaction, Compaction())
        cover = spans.minus(spans.common(spans.of(seqs), alive), state.covered)
        if how == "evict":
            after = replace(state, summary=None, evicted=spans.union(state.evicted, cover))
        else:
            parents = state.current if how == "fold" else ()
            covers = spans.union(cover, *(states[parent].summary.covers for parent in parents))
            made = Summary(id="s", text=f"text {next(numbers)}", covers=covers, folded=cover, parents=parents)
            current = (*(number for number in state.current if number not in parents), 0)
            evicted = spans.minus(state.evicted, cover)
            after = Compaction(
                summary=made, current=current, covered=spans.union(state.covered, cover), evicted=evicted
            )
        change = Change(kind="compact", reason="r", compaction=after, attempts=Attempts(failures=len(seqs)))
        self.both(lambda store: store.commit(key, change, expect_epoch=epoch))

    @rule(key=KEYS, to=st.integers(0, 5))
    def rewind(self, key: SessionKey, to: int) -> None:
        """Return to the state without compaction, or to that of an earlier one."""
        head = drive(self.model.head(key)) or Head()
        times = [0, *self.states(key)]
        change = Change(kind="rewind", reason="r", back=replace(head, compaction=times[min(to, len(times) - 1)]))
        self.both(lambda store: store.commit(key, change))

    def states(self, key: SessionKey) -> dict[int, Compaction]:
        """Return the states of compaction in the session's records, by their revisions."""
        return {one.revision: one.compaction for one in drive(self.model.records(key)) if one.compaction is not None}

    @rule(key=KEYS, counter=COUNTERS, counts=st.dictionaries(SEQS, st.integers(0, 99), max_size=4))
    def count(self, key: SessionKey, counter: str, counts: dict[int, int]) -> None:
        self.both(lambda store: store.count(key, counter, counts))

    @rule(key=KEYS, to=KEYS, over=st.booleans())
    def load(self, key: SessionKey, to: SessionKey, over: bool) -> None:
        head = drive(self.model.head(key))
        if head is not None:
            records = tuple(drive(self.model.records(key)))
            dump = Dump(head=head, entries=tuple(drive(self.model.read(key))), records=records)
            self.both(lambda store: store.load(to, dump, replace=over))

    @rule(key=KEYS, into=st.sampled_from(["a", "b", "c"]), place=st.integers(1, 12), back=st.integers(0, 2))
    def fork(self, key: SessionKey, into: str, place: int, back: int) -> None:
        head = drive(self.model.head(key)) or Head()
        point = min(max(place, head.first_seq), head.next_seq)
        if any(entry.expires_at and not entry.erased for entry in drive(self.model.read(key, before=point))):
            return  # a sweep may erase entries that branches share through any branch
        revision = max(head.revision - back, 0)
        states = {number: state for number, state in self.states(key).items() if number <= revision}
        if any(state.inactive and state.inactive[-1][1] >= point for state in states.values()):
            return  # no compaction covers entries that did not exist yet
        then = replace(head, next_seq=point, revision=revision, calls=(), group=0, compaction=max(states, default=0))
        branch = replace(then, forked_from=(key.session, 1))
        self.both(lambda store: store.fork(key, into, branch, expect_epoch=head.epoch))

    @rule(key=KEYS)
    def delete(self, key: SessionKey) -> None:
        self.both(lambda store: store.delete(key))

    @rule(
        tenant=TENANTS,
        namespace=NAMES,
        key=NAMES,
        value=st.binary(max_size=5),
        seconds=st.none() | st.integers(0, 20),
        expect=st.none() | st.integers(0, 2),
    )
    def put_item(
        self, tenant: str, namespace: str, key: str, value: bytes, seconds: int | None, expect: int | None
    ) -> None:
        expires = None if seconds is None else self.clock.now + seconds * 1_000_000
        self.both(lambda store: store.put_item(tenant, namespace, key, value, expires=expires, expect=expect))

    @rule(tenant=TENANTS, namespace=NAMES, key=NAMES)
    def delete_item(self, tenant: str, namespace: str, key: str) -> None:
        self.both(lambda store: store.delete_item(tenant, namespace, key))

    @rule(
        tenant=TENANTS,
        name=NAMES,
        holder=NAMES,
        seconds=st.sampled_from([0, 5, 10.5]),
        fence=st.none() | st.integers(1, 4),
    )
    def lease(self, tenant: str, name: str, holder: str, seconds: float, fence: int | None) -> None:
        """Return the n-th fence that was granted, if any; the numbers themselves may differ between the stores."""
        given = self.fences[fence - 1] if fence is not None and fence <= len(self.fences) else (fence, fence)
        asked = zip((self.model, self.file), given, strict=True)
        got = tuple(
            answer(lambda store, own=own: store.lease(tenant, name, holder, seconds, fence=own), store)
            for store, own in asked
        )
        if got not in [*self.fences, (None, None)]:
            last = self.last.get((tenant, name), (-1, -1))
            assert all(one > before for one, before in zip(got, last, strict=True))
            self.fences.append(got)
            self.last[tenant, name] = got

    @rule(seconds=st.sampled_from([0.000001, 4, 11]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(tenant=TENANTS)
    def sweep(self, tenant: str) -> None:
        self.both(lambda store: store.sweep(tenant, self.clock.now))

    @rule()
    def reopen(self) -> None:
        drive(self.file.close())
        self.clock.now += 1_000  # fences of different leases may coincide, since each store counts its own
        self.file = self.opened()

    @invariant()
    def everything_is_the_same(self) -> None:
        for tenant in ("t", "u"):
            for one in self.both(lambda store, tenant=tenant: store.sessions(tenant)):
                key = SessionKey(tenant, one.session)
                self.both(lambda store, key=key: store.head(key))
                self.both(lambda store, key=key: store.read(key, counter="words"))
                self.both(lambda store, key=key: store.records(key))
                self.compactions_hold_together(key)
                self.both(lambda store, key=key: summed(store, key, "words", after=1))
            for namespace in ("k", "l", "m"):
                self.both(lambda store, t=tenant, n=namespace: store.list_items(t, n))
                self.both(lambda store, t=tenant, n=namespace: store.get_item(t, n, "k"))

    def compactions_hold_together(self, key: SessionKey) -> None:
        """Check that every recorded state refers to existing summaries and to no erased entry."""
        head, states = drive(self.model.head(key)), self.states(key)
        graves = spans.of(entry.seq for entry in drive(self.model.read(key)) if entry.erased)
        assert list(faults(states, head.first_seq, head.next_seq - 1, graves)) == []
        assert not head.compaction or head.compaction in states
        made = [state.summary for state in states.values() if state.summary is not None]
        assert self.spared or not [one for one in made if one.text and spans.common(one.covers, graves)]

    def teardown(self) -> None:
        drive(self.file.close())
        drive(self.model.close())
        shutil.rmtree(self.folder)


class TwoStoresOneOfFiles(TwoStores):
    """Compare the stores, one of them a folder of files."""

    address = "file://{}/model"


def answer(ask: Callable[[Store], Any], store: Store) -> Any:
    """Return the store's answer, or the kind of error that it raises."""
    try:
        return drive(ask(store))
    except PalimpsestError as error:
        return type(error)


@pytest.mark.wide
@pytest.mark.sampled
@pytest.mark.parametrize(
    ("examples", "steps"), [(15, 30), pytest.param(400, 80, marks=pytest.mark.slow)], ids=["short", "long"]
)
@pytest.mark.parametrize("machine", [TwoStores, TwoStoresOneOfFiles], ids=["sqlite", "file"])
def test_a_store_of_files_behaves_as_the_memory_store(machine: type[TwoStores], examples: int, steps: int) -> None:
    """A store in files answers any sequence of calls as the memory store does, even when it is reopened in between."""
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    )
