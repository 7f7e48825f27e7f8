"""Law: whatever is done to sessions and their branches, in whatever order, they are what a plain model of them says.

A play makes random steps from one seed: everything that adds, and pins, hides, erases, expires, compacts, restores,
replaces, rewinds, branches, exports and imports, with facts and turns in between. After each step the session is
compared with the model beside it, and its contexts are judged. The same steps are done over several stores and through
both faces, and have to come to the same.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import rules
import strategies
from palimpsest import BudgetImpossible, Context, Entry, Memory, Query, Session
from palimpsest.errors import ConfigError, Conflict, EntryNotFound, InvalidEntry, PastUnknown, SessionNotFound
from palimpsest.log.entry import Reasoning, moment
from palimpsest.testing import FakeClock
from providers import PROVIDERS
from recall_helpers import marks
from suspending import awaited
from talks import Scripted

LANES = ("memory", "sqlite", "sqlite awaited")
REFUSED = (BudgetImpossible, ConfigError, Conflict, EntryNotFound, InvalidEntry, SessionNotFound)
"""What a step may be answered by, if it is answered so in every lane; then nothing has changed."""

KEPT = {"interaction_keep": 0, "cod_max_loops": 0}
STRATEGIES: tuple[Any, ...] = (
    *("ladder", "simple_fifo", "lru", "superseded_contexts"),
    {"strategy": "summarizer", **KEPT},
    {"strategy": "summarizer", "summaries": "chain", **KEPT},
    {"strategy": "hybrid_summary", "summary_tokens": 40, "interaction_keep": 0},
    {"strategy": "mask_results", "interaction_keep": 0},
)
ANSWERS: tuple[Any, ...] = (None, "They spoke of trains. " * 3, "", RuntimeError("down"), "and so on " * 400)
CALLS: tuple[dict[str, Any], ...] = (
    *({}, {"system": "be kind"}, {"format": "anthropic"}, {"format": "gemini"}, {"format": "openai-responses"}),
    *({"format": "text"}, {"view": "small", "max_tokens": 30}, {"max_tokens": 12}, {"max_tokens": 1}),
    *({"max_messages": 3}, {"max_messages": 1}, {"max_tokens": 60, "dry_run": True}),
)
AUTOMATIC: tuple[Any, ...] = (
    None,
    {"strategy": "simple_fifo", "triggers": {"max_entries": 8}},
    {"strategy": "summarizer", "interaction_keep": 1, "triggers": {"interaction_threshold_qty": 3}},
    [{"strategy": "mask_results", "triggers": {"max_active_tokens": 60}}, {"strategy": "ladder"}],
)


class Cell:
    """An entry, which branches share: its place, id, text, expiry, and whether it was erased."""

    def __init__(self, entry: Entry) -> None:
        self.seq, self.id, self.text, self.expires_at = entry.seq, entry.id, entry.text, entry.expires_at
        self.erased, self.said = entry.erased, isinstance(entry.content, str)

    def shows(self, entry: Entry) -> bool:
        """Whether an entry that was read is this one."""
        text = "" if self.erased else self.text
        return (entry.seq, entry.id, entry.text, entry.erased) == (self.seq, self.id, text, self.erased)


class Log:
    """What the model knows of a session: its cells, which of them a rewind hides, its facts, and its revisions."""

    def __init__(self, cells: list[Cell], hidden: set[int], facts: dict[str, Any], first: int = 0) -> None:
        self.cells, self.hidden, self.facts = cells, hidden, facts
        self.keyed: dict[str, list[Any]] = {}
        self.at: dict[int, tuple[int, set[int]]] = {}
        self.given: dict[str, Context] = {}
        self.past: list[tuple[dict[str, Any], int, Any]] = []
        self.first = first

    @property
    def visible(self) -> list[Cell]:
        """Return the entries that `entries` returns."""
        return [cell for cell in self.cells if cell.seq not in self.hidden]


class Play:
    """Random steps on the sessions of one store. The same seed makes the same steps in every lane."""

    def __init__(self, seed: int, memories: list[Memory], clock: FakeClock) -> None:
        self.dice, self.memories, self.clock = random.Random(seed), memories, clock
        self.words = iter(marks(seed, 1_000))
        self.logs, self.now, self.trace = {"s": Log([], set(), {})}, "s", list[Any]()
        answer, automatic = self.dice.choice(ANSWERS), self.dice.choice(AUTOMATIC)
        self.options: dict[str, Any] = {"counter": strategies.WORDS, "long_term": automatic}
        self.options["summarizer"] = None if answer is None else Scripted(answer)
        self.options["max_tokens"] = self.dice.choice([None, 25, 60, 120, 300])
        self.options["max_messages"] = self.dice.choice([None, None, None, 1, 6])
        self.options["low_water"] = self.dice.choice([0.1, 0.36, 0.9])
        verbs = [name for name in dir(self) if name.startswith("do_")]
        self.verbs = [name for name in verbs if self.dice.random() < 0.75] + ["do_say"] * 6 + ["do_exchange"] * 3

    def open(self, name: str | None = None) -> Session:
        """Return a new object for a session, of any of the memories."""
        return self.dice.choice(self.memories).session(name or self.now, **self.options)

    @property
    def log(self) -> Log:
        """The model of the session in turn."""
        return self.logs[self.now]

    def text(self, most: int = 20) -> str:
        """Return a text that begins with a word of its own."""
        return f"{next(self.words)}{' more' * self.dice.randrange(most)}"

    def any(self) -> Cell:
        """Return any visible entry. Raises EntryNotFound if there is none."""
        if not self.log.visible:
            raise EntryNotFound(self.now, "any")
        return self.dice.choice(self.log.visible)

    def soon(self) -> Any:
        """Return an expiry, mostly none."""
        return moment(self.clock.now) + timedelta(seconds=30) if self.dice.random() < 0.1 else None

    def step(self) -> None:
        """Do one step, follow it in the model, and look at what came of it."""
        verb = self.dice.choice(self.verbs)
        try:
            self.trace.append((verb, getattr(self, verb)()))
        except REFUSED as refused:
            self.trace.append((verb, type(refused).__name__))
        self.look()

    def added(self, entries: Any) -> list[int]:
        """Follow entries that a verb has returned: those behind the last one are new."""
        last = self.log.cells[-1].seq if self.log.cells else 0
        self.log.cells += [Cell(entry) for entry in sorted(entries, key=lambda one: one.seq) if entry.seq > last]
        return [entry.seq for entry in entries]

    def rest(self) -> list[int]:
        """Follow all that is behind the last entry known."""
        last = self.log.cells[-1].seq if self.log.cells else 0
        return self.added(self.open().entries(after=last, rewound=True))

    # --- adding

    def do_say(self) -> Any:
        role = self.dice.choice(["user", "user", "assistant", "assistant", "system"])
        entry = Entry(
            role=role, content=self.text(), pinned=self.dice.random() < 0.05, expires_at=self.soon(), metadata={"n": 9}
        )
        return self.added(self.open().add_entries([entry]))

    def do_think(self) -> Any:
        return self.added([self.open().add_assistant_message([Reasoning(text=self.text())])])

    def do_call(self) -> Any:
        id = self.dice.choice([None, "c1", "c2"])
        return self.added([self.open().add_tool_call("find", {"at": self.text(9)}, call_id=id)])

    def do_result(self) -> Any:
        id = self.dice.choice([None, "c1", "c2", *self.open().stats().open_calls])
        return self.added([self.open().add_tool_result("find", self.text(60), call_id=id)])

    def do_resolve(self) -> Any:
        calls = self.open().stats().open_calls
        return self.added([self.open().resolve(calls[0] if calls else "none")])

    def do_exchange(self) -> Any:
        dice, ids = self.dice, [f"k{self.text(1)}" for _ in range(self.dice.randrange(1, 4))]
        calls = [
            {"id": id, "type": "function", "function": {"name": "find", "arguments": json.dumps({"at": self.text(3)})}}
            for id in ids
        ]
        results = [{"role": "tool", "tool_call_id": id, "content": self.text(60)} for id in ids]
        if dice.random() < 0.2:
            results[0] = {"role": "user", "content": self.text()}  # so that a human message overtakes an open call
        batch = [{"role": "assistant", "content": dice.choice([None, self.text(3)]), "tool_calls": calls}, *results]
        return self.added(self.open().add([{"role": "user", "content": self.text()}, *batch][dice.randrange(2) :]))

    def do_background(self) -> Any:
        text = self.dice.choice([self.text(), "the same"])
        pinned = self.dice.random() < 0.1
        return self.added([self.open().add_context(text, name="a.py", pinned=pinned, expires_at=self.soon())])

    def do_once(self) -> Any:
        key = self.dice.choice("ab")
        given = self.log.keyed.get(key, []) + self.dice.choice([[], [{"role": "user", "content": self.text()}]])
        entries = self.open().add(given, key=key)
        assert len(entries) == len(given)
        self.log.keyed[key] = given
        return self.added(entries)

    def do_copy(self) -> Any:
        entries = self.open(self.dice.choice(sorted(self.logs))).entries(last=3)
        return self.added(self.open().add_entries(entries, key=self.dice.choice([None, "copy"])))

    def do_turn(self) -> Any:
        atomic, fails, said = self.dice.random() < 0.5, self.dice.random() < 0.3, self.text()
        with suppress(ZeroDivisionError), self.open().turn(atomic=atomic) as turn:
            turn.add_user_message(said)
            with suppress(*REFUSED):
                turn.context()
            if not atomic and self.dice.random() < 0.5:
                turn.compact(self.dice.choice(STRATEGIES))
            turn.add_assistant_message(str(1 // (not fails)))
        stored = self.rest()
        assert len(stored) == (2 if not fails else 0 if atomic else 1)
        return stored

    def do_replace(self) -> Any:
        session = self.open()
        context = session.context()
        new = {"role": "user", "content": self.text()}
        given = [self.dice.choice([one, one, one, new]) for one in context.messages if self.dice.random() < 0.7]
        stored = session.replace(given, seen=self.dice.choice([None, context]))
        self.rest()
        return [entry.seq for entry in stored]

    # --- changing

    def do_pin(self) -> Any:
        (self.open().pin if self.dice.random() < 0.6 else self.open().unpin)(self.any().seq)

    def do_hide(self) -> Any:
        return (self.open().hide if self.dice.random() < 0.6 else self.open().show)(self.any().id)

    def do_erase(self) -> Any:
        cell = self.any()
        word = cell.text.partition(" ")[0]
        if cell.said and len(word) == 15 and self.dice.random() < 0.3:
            gone = [other for other in self.log.cells if word in other.text]
            erased = self.open().erase(Query(text=word))
        else:
            gone, erased = [cell], self.open().erase(cell.id)
        for other in gone:
            other.erased = True
        return erased.entries

    def do_clear(self) -> Any:
        if self.dice.random() < 0.7:
            return None
        cleared = self.open().clear()
        assert cleared == sum(not cell.erased for cell in self.log.visible)
        self.logs[self.now] = Log([], set(), self.log.facts, self.open().stats().revision)
        return cleared

    def do_later(self) -> Any:
        self.clock.advance(self.dice.choice([1, 20, 60, -10]))
        if self.dice.random() < 0.5:
            return None
        for cell in (cell for log in self.logs.values() for cell in log.cells):
            cell.erased = cell.erased or self.expired(cell)
        return self.memories[0].sweep()

    def expired(self, cell: Cell) -> bool:
        """Whether the time of an entry is over."""
        return cell.expires_at is not None and cell.expires_at <= moment(self.clock.now)

    def do_compact(self) -> Any:
        done = self.open().compact(self.dice.choice(STRATEGIES))
        return done.reason, done.covered, done.evicted, done.tokens_before, done.tokens_after

    def do_restore(self) -> Any:
        summaries = self.open().summaries()
        return self.open().restore(self.dice.choice(summaries)) if summaries else None

    def do_rewind(self) -> Any:
        count, hidden, to = self.some_time()
        taken = self.open().rewind(to)
        self.log.hidden = hidden | {cell.seq for cell in self.log.cells[count:]}
        return taken

    def some_time(self) -> tuple[int, set[int], int | str]:
        """Return how many entries there were at some time, which of them were hidden, and the time's name."""
        if self.log.at and self.dice.random() < 0.5:
            revision = self.dice.choice(sorted(self.log.at))
            return *self.log.at[revision], revision
        cell = self.any()
        return self.log.cells.index(cell) + 1, set(self.log.hidden), cell.id

    def do_fork(self) -> Any:
        if len(self.logs) > 3:
            self.now = self.dice.choice(sorted(self.logs))
            return self.now
        count, hidden, at = self.some_time()
        name = self.open().fork(f"branch {len(self.logs)}", at=at).id
        cells = self.log.cells[:count]
        facts, first = dict(self.log.facts), self.open(name).stats().revision
        self.logs[name] = Log(cells, hidden & {cell.seq for cell in cells}, facts, first)
        self.now = self.dice.choice([self.now, name])
        return name

    def do_facts(self) -> Any:
        key, value = self.dice.choice("xyz"), self.dice.choice([None, self.text(2), [2**60, {"deep": 0.5}]])
        if self.dice.random() < 0.3:
            there = self.log.facts.pop(key, self) is not self
            assert self.open().working.delete(key) == there
            return there
        self.log.facts[key] = value
        return self.open().working.set(key, value) is None

    def do_move(self) -> Any:
        """Export the session, and import it in its own place."""
        self.dice.choice(self.memories).import_session(self.export(), session_id=self.now, on_conflict="replace")
        session, before = self.open(), self.log
        after = Log([Cell(one) for one in session.entries(rewound=True)], before.hidden, before.facts)
        after.first, after.keyed = session.stats().revision, before.keyed
        assert [(cell.seq, cell.erased) for cell in after.cells] == [(cell.seq, cell.erased) for cell in before.cells]
        self.logs[self.now] = after

    def export(self) -> Any:
        """Return the session as it is in a file."""
        return json.loads(json.dumps(self.open().export()))

    # --- looking

    def look(self) -> None:
        """Check the session in turn, and sometimes all that can be known of it."""
        log, session = self.log, self.open()
        entries = session.entries()
        assert [cell.seq for cell in log.visible] == [entry.seq for entry in entries]
        assert all(cell.shows(entry) for cell, entry in zip(log.visible, entries, strict=True))
        stats = session.stats()
        assert stats.revision >= max(log.at, default=log.first)
        log.at[stats.revision] = len(log.cells), set(log.hidden)
        self.context(self.dice.choice(CALLS), entries)
        for check in self.dice.sample((self.read, self.prove, self.recall, self.look_back, self.carry), 2):
            check()

    def given(self, session: Session, call: dict[str, Any]) -> Context | None:
        """Return a context, or None where the budget has no room for any."""
        try:
            return session.context(**call)
        except BudgetImpossible:
            return None

    def context(self, call: dict[str, Any], entries: list[Entry]) -> None:
        """A context fits, is valid, shows what it may and must, is the same for all, and begins as the one before."""
        log, ctx = self.log, self.given(self.open(), call)
        again = self.given(self.open(), call)
        assert (ctx and ctx.request()) == (again and again.request())
        self.trace.append((call, ctx and (ctx.tokens, ctx.revision, ctx.epoch, [one.seq for one in ctx.entries])))
        if ctx is None:
            return
        provider = PROVIDERS[ctx.format]
        assert not ctx.messages or provider.faults(ctx.messages) == []
        limit = call.get("max_tokens", self.options["max_tokens"])
        assert limit is None or ctx.tokens <= limit
        alive = {cell.seq for cell in log.visible if not (cell.erased or self.expired(cell))}
        assert {entry.seq for entry in ctx.entries} <= alive
        assert rules.parted(ctx, entries) == []
        assert rules.unshown_pins(ctx, entries) == []
        if "dry_run" in call:
            return
        before = log.given.get(str(call))
        if ctx.epoch is not None:
            log.given[str(call)] = ctx
        if before is not None and before.epoch == ctx.epoch:
            assert rules.is_prefix(rules.packed(before.log_messages), rules.packed(ctx.log_messages))
            assert rules.packed(before.head_messages) == rules.packed(ctx.head_messages)
        log.past.append((call, ctx.revision, ctx.request()))

    def read(self) -> None:
        """Pages, interactions and messages are those of the whole log, and every other session is as it was."""
        session, size = self.open(), self.dice.randrange(1, 6)
        whole, forth, back = session.entries(), list[Entry](), list[Entry]()
        while page := session.entries(after=forth[-1].seq if forth else 0, limit=size):
            forth += page
        while page := session.entries(before=back[0].seq if back else None, last=size):
            back = page + back
        assert forth == back == whole
        assert [entry for one in session.interactions() for entry in one.entries] == whole
        assert PROVIDERS["openai"].faults(session.messages()) == []
        for name, log in self.logs.items():
            seen = self.open(name).entries(rewound=True)
            assert all(cell.shows(entry) for cell, entry in zip(log.cells, seen, strict=True))
            assert self.open(name).working.to_dict() == log.facts

    def prove(self) -> None:
        """The log is whole, and all figures are those of the model."""
        proof, stats, visible = self.open().verify(), self.open().stats(), self.log.visible
        assert proof.problems == ()
        assert stats.total_entries == sum(not cell.erased for cell in visible)
        assert stats.active_entries == proof.active == len(self.open().active_entries())
        assert stats.archived_entries == proof.covered + proof.evicted + proof.expired
        assert (stats.erased_entries, stats.rewound_entries) == (proof.erased, proof.rewound)
        self.trace.append((stats.total_tokens, stats.active_tokens, stats.interactions, len(stats.open_calls)))

    def recall(self) -> None:
        """Everything said is found, wherever it is, and nothing that was rewound or erased or has expired."""
        said = [cell for cell in self.log.cells if cell.said and len(cell.text.partition(" ")[0]) == 15]
        if not said:
            return
        word = self.dice.choice(said).text.partition(" ")[0]
        alive = [one for one in self.log.visible if one.said and not (one.erased or self.expired(one))]
        there = {one.text for one in alive if word in one.text}
        found = {hit.text for hit in self.open().recall(word, max_tokens=None, neighbours=0).hits if word in hit.text}
        assert found <= there
        # A text contained in another hit, such as one that a replacement has joined with the next, need not be a hit.
        assert all(any(text in hit or hit in text for hit in found) for text in there)

    def look_back(self) -> None:
        """A past context equals what was given then, unless entries of it were destroyed; then it may be unknown."""
        past = [one for one in self.log.past if one[1] >= self.log.first]
        if not past:
            return
        call, revision, request = self.dice.choice(past)
        gone = any(cell.erased or cell.expires_at for cell in self.log.cells)
        try:
            again = self.open().context(at=revision, **call).request()
        except (PastUnknown, BudgetImpossible):  # if the clock was set back, an expired pin may count
            assert gone
            return
        assert gone or again == request

    def carry(self) -> None:
        """A session exported and imported elsewhere is the same session, with the same contexts."""
        if not self.log.cells or self.dice.random() < 0.5:
            return
        with Memory.open("memory://", clock=self.clock) as memory:
            memory.import_session(self.export())
            here, there = self.open(), memory.session(self.now, **self.options)
            assert there.verify().problems == ()
            assert _links(there) == _links(here)
            for call in CALLS:
                one, other = (self.given(session, {**call, "dry_run": True}) for session in (here, there))
                assert (one and one.request()) == (other and other.request()), call
            assert there.stats().open_calls == here.stats().open_calls


def _links(session: Session) -> list[Any]:
    entries = session.entries(rewound=True)
    return [(one.seq, one.turn, one.group, one.answers, one.late, one.pinned, one.erased) for one in entries]


@contextmanager
def opened(lane: str, folder: Path, clock: FakeClock) -> Iterator[list[Memory]]:
    """Open an empty store, and yield two memories of it: a file is opened twice, once by one that caches no context."""
    with ExitStack() as stack:
        if lane == "memory":
            yield [stack.enter_context(Memory.open("memory://", clock=clock))] * 2
            return
        opens, where = awaited if lane.endswith("awaited") else Memory.open, f"sqlite:///{folder}/{lane}.db"
        first = stack.enter_context(opens(where, clock=clock, synchronous="NORMAL"))
        second = Memory.open(where, clock=clock, synchronous="NORMAL", view_bytes=0) if lane == "sqlite" else None
        yield [first, stack.enter_context(second) if second is not None else first]


def played(seed: int, lane: str, folder: Path, steps: int) -> list[Any]:
    """Play so many steps, and return what came of them."""
    clock = FakeClock()
    with opened(lane, folder, clock) as memories:
        play = Play(seed, memories, clock)
        for _ in range(steps):
            play.step()
        return play.trace


def agreed(seeds: range, folder: Path, steps: int = 20) -> None:
    """Play these seeds in every lane; all come to the same."""
    for seed in seeds:
        place = folder / str(seed)
        place.mkdir()
        first, *others = (played(seed, lane, place, steps) for lane in LANES)
        assert all(other == first for other in others), seed


@pytest.mark.parametrize("number", range(2))
def test_sessions_equal_a_plain_model(number: int, tmp_path: Path) -> None:
    """Entries, facts, figures, contexts, searches and exports are those of the model, everywhere and by both faces."""
    agreed(range(number, number + 1), tmp_path)


@pytest.mark.wide
@pytest.mark.parametrize("number", range(4))
def test_sessions_equal_a_plain_model_in_more_runs(number: int, tmp_path: Path) -> None:
    """The same holds for more histories."""
    agreed(range(100 + 5 * number, 105 + 5 * number), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(40))
def test_sessions_equal_a_plain_model_in_long_runs(number: int, tmp_path: Path) -> None:
    """The same holds for many long histories."""
    agreed(range(1_000 + 25 * number, 1_025 + 25 * number), tmp_path, 60)
