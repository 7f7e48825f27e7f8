"""The verbs of chaos writers on sessions that all of them write to, and on the store as a whole."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from random import Random
from typing import Any

from chaos_hand import BUDGET, LARGE, JournaledWriter, Strikes
from chaos_journal import BRANCH, PRIVATE, SHARED, Journal
from palimpsest import BudgetImpossible, Conflict, Entry, Memory, Query, Session, SessionNotFound
from palimpsest.formats import find_format
from palimpsest.stores.encrypted.rotation import rotate_keys
from palimpsest.types import FormatName, StrategyName

POLICY = {"redact_patterns": [PRIVATE]}
SESSIONS = 3
"""The number of sessions that all writers share."""

RECENT = 40
"""How many of its newest entries a writer remembers, to erase one of them later."""

FORMATS: list[FormatName] = ["openai", "openai", "anthropic"]
STRATEGIES: list[StrategyName] = ["ladder", "summarizer", "simple_fifo", "lru"]


class SharedVerbs(JournaledWriter):
    """The verbs on shared sessions and on the store; each public method is a verb of `chaos_own.WEIGHTS`."""

    def __init__(self, memory: Memory, journal: Journal, chance: Random, strikes: Strikes, run: str) -> None:
        super().__init__(memory, journal, chance, strikes, run)
        self._names = itertools.count()
        self._recent: list[tuple[str, str, str]] = []  # session, mark and id of entries to erase later

    def _any(self) -> Session:
        """Return one of the shared sessions."""
        return self.session(f"{SHARED}{self.chance.randrange(SESSIONS)}")

    def new(self, kind: str) -> str:
        """Return an unused session id, which begins with `kind`."""
        return f"{kind}-{self.journal.writer}-{next(self._names)}"

    def add_to(self, name: str, act: Callable[[list[dict[str, Any]]], Iterable[Entry]]) -> None:
        """Add a batch to a shared session by `act`, which takes the messages."""
        messages, marks, addresses = self.batch()
        self._added(name, marks, lambda: act(messages), private=addresses)

    def _added(self, name: str, marks: list[str], act: Callable[[], Iterable[Entry]], **facts: Any) -> None:
        done = self.done("append", lambda: {"ids": [entry.id for entry in act()]}, session=name, marks=marks, **facts)
        if done is not None:
            assert len(done["ids"]) in (0, len(marks))  # entries of an atomic turn have their ids, too
            self._recent += [(name, *mark_and_id) for mark_and_id in zip(marks, done["ids"], strict=True)]
            del self._recent[:-RECENT]

    # --- adding

    def append(self) -> None:
        """Add a batch."""
        session = self._any()
        self.add_to(session.id, session.add)

    def turn(self) -> None:
        """Add a batch in a turn, which may be atomic."""
        session, atomic = self._any(), self.chance.random() < 0.5

        def act(messages: list[dict[str, Any]]) -> Iterable[Entry]:
            with session.turn(atomic=atomic):
                return session.add(messages)

        self.add_to(session.id, act)

    def large(self) -> None:
        """Add a text that the store keeps as large content."""
        session, mark = self._any(), self.mark()
        text = f"{mark} {'and so on ' * (LARGE // 8)}"
        self._added(session.id, [mark], lambda: [session.add_user_message(text)])

    def expiring(self) -> None:
        """Add an entry that has expired or will expire within seconds."""
        session, mark = self._any(), self.mark()
        seconds = self.chance.choice([-1, 0.5, 3])
        expires_at, expires = datetime.fromtimestamp(time.time() + seconds, UTC), time.monotonic() + seconds
        self._added(
            session.id,
            [mark],
            lambda: [session.add_user_message(f"soon gone: {mark}", expires_at=expires_at)],
            expires=int(expires * 1e9),
        )

    # --- reading

    def context(self) -> None:
        """Make a context; check that it fits its budget, is valid, and holds nothing erased."""
        session = self._any()
        name = self.chance.choice(FORMATS)

        def act() -> dict[str, Any]:
            given = session.context(format=name)
            self.unread(json.dumps(given.messages))
            problems = [*map(str, find_format(name).validate(given.messages)), *given.problems]
            assert given.tokens <= BUDGET, f"{given.tokens} tokens of {BUDGET}"
            assert not problems, problems
            return {"tokens": given.tokens}

        self.done("context", act, may=(BudgetImpossible,), session=session.id)

    def read(self) -> None:
        """Read a whole session by one of several verbs."""
        session = self._any()
        reads: list[Callable[[], object]] = [
            session.entries, session.export, session.history, session.active_entries, session.interactions,
            lambda: session.summaries(history=True),
        ]  # fmt: skip
        chosen = self.chance.randrange(len(reads))
        self.done("read", lambda: self.unread(str(reads[chosen]())), session=session.id, what=chosen)

    def stats(self) -> None:
        """Read a session's statistics."""
        session = self._any()
        self.done("stats", lambda: {"entries": session.stats().total_entries}, session=session.id)

    def verify(self) -> None:
        """Verify a session."""
        session = self._any()

        def act() -> None:
            proof = session.verify()
            assert proof.ok, proof.problems

        self.done("verify", act, session=session.id)

    # --- changing

    def compact(self) -> None:
        """Compact a session with one of the strategies."""
        session = self._any()
        strategy = self.chance.choice(STRATEGIES)

        def act() -> dict[str, Any]:
            report = session.compact(strategy)
            return {"reason": report.reason, "summary": report.summary.id if report.summary else None}

        self.done("compact", act, session=session.id, strategy=strategy)

    def fork(self) -> None:
        """Fork a session and add a batch to the branch."""
        session, into = self._any(), self.new(BRANCH)

        def act() -> None:
            session.fork(into)

        if self.done("fork", act, may=(SessionNotFound,), session=session.id, into=into) is not None:
            self.add_to(into, self.session(into).add)

    def rewind(self) -> None:
        """Rewind a session by its last two visible entries, whoever wrote them."""
        session = self._any()

        def act() -> dict[str, Any]:
            entries = session.entries()
            return {"hidden": session.rewind(entries[-3]) if len(entries) > 3 else 0}

        self.done("rewind", act, session=session.id)

    def erase(self) -> None:
        """Erase by its id an entry that this writer has added."""
        self._erase(lambda session, mark, id: self.session(session).erase([id]))

    def query(self) -> None:
        """Erase an entry of this writer by its text."""
        self._erase(lambda session, mark, id: self.session(session).erase(Query(text=mark)))

    def forget(self) -> None:
        """Erase an entry of this writer by its text in all sessions."""
        self._erase(lambda session, mark, id: self.memory.forget(matches=mark))

    def _erase(self, act: Callable[[str, str, str], Any]) -> None:
        """Erase one of the recent entries by `act`, which takes its session, mark and id."""
        if not self._recent:
            return
        name, mark, id = self._recent.pop(self.chance.randrange(len(self._recent)))

        def erased() -> dict[str, Any]:
            report = act(name, mark, id)
            return {"entries": report.entries, "remains": [*report.remains]}

        if self.done("erase", erased, session=name, marks=[mark]) is not None:
            self.gone.add(mark)

    # --- all of the store

    def scan(self) -> None:
        """Redact the private addresses in all sessions."""
        self._scan(None)

    def scan_one(self) -> None:
        """Redact the private addresses in one session and its branches."""
        self._scan(self._any().id)

    def _scan(self, session: str | None) -> None:
        def act() -> dict[str, Any]:
            report = self.memory.scan(POLICY, session=session, apply=True)
            assert not report.refused, report.refused
            return {"redacted": report.redacted}

        self.done("scan", act, may=(SessionNotFound,), session=session)

    def sweep(self) -> None:
        """Erase expired entries."""
        self.done("sweep", lambda: {"swept": self.memory.sweep()})

    def rotate(self) -> None:
        """Change the keys of an encrypted store."""
        self.done("rotate", lambda: {"texts": rotate_keys(self.memory).texts}, may=(Conflict,))
