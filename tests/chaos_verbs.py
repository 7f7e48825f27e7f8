"""What processes of the chaos do to sessions that all of them write to, and to the store as a whole."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from random import Random
from typing import Any

from chaos_hand import BUDGET, LARGE, Hand, Strikes
from chaos_journal import BRANCH, PRIVATE, SHARED, Journal
from palimpsest import BudgetImpossible, Conflict, Entry, Memory, Query, Session, SessionNotFound
from palimpsest.formats import find_format
from palimpsest.stores.encrypted.rotation import rotate_keys
from palimpsest.types import FormatName, StrategyName

POLICY = {"redact_patterns": [PRIVATE]}
SESSIONS = 3
"""How many sessions there are that everybody writes to."""

RECENT = 40
"""How many of its own batches a writer remembers, to erase something of them."""

FORMATS: list[FormatName] = ["openai", "openai", "anthropic"]
STRATEGIES: list[StrategyName] = ["ladder", "summarizer", "simple_fifo", "lru"]


class Together(Hand):
    """The verbs on sessions of everybody."""

    def __init__(self, memory: Memory, journal: Journal, chance: Random, strikes: Strikes, place: str) -> None:
        super().__init__(memory, journal, chance, strikes, place)
        self._made = itertools.count()
        self._recent: list[tuple[str, str, str]] = []  # session, mark and id of what can be erased still

    def _any(self) -> Session:
        return self.session(f"{SHARED}{self.chance.randrange(SESSIONS)}")

    def new(self, kind: str) -> str:
        """The id of a new session."""
        return f"{kind}-{self.journal.writer}-{next(self._made)}"

    def add_to(self, name: str, act: Callable[[list[dict[str, Any]]], Iterable[Entry]]) -> None:
        """Add a batch to a session of everybody."""
        messages, marks, addresses = self.batch()
        self._added(name, marks, lambda: act(messages), private=addresses)

    def _added(self, name: str, marks: list[str], act: Callable[[], Iterable[Entry]], **facts: Any) -> None:
        done = self.done("append", lambda: {"ids": [one.id for one in act()]}, session=name, marks=marks, **facts)
        if done is not None:
            assert len(done["ids"]) in (0, len(marks))  # entries of an atomic turn have their ids, too
            self._recent += [(name, *one) for one in zip(marks, done["ids"], strict=True)]
            del self._recent[:-RECENT]

    # --- adding

    def append(self) -> None:
        """Add a batch."""
        session = self._any()
        self.add_to(session.id, session.add)

    def turn(self) -> None:
        """Add a batch in a turn."""
        session, atomic = self._any(), self.chance.random() < 0.5

        def act(messages: list[dict[str, Any]]) -> Iterable[Entry]:
            with session.turn(atomic=atomic):
                return session.add(messages)

        self.add_to(session.id, act)

    def large(self) -> None:
        """Add a text that the store keeps apart."""
        session, own = self._any(), self.mark()
        text = f"{own} {'and so on ' * (LARGE // 8)}"
        self._added(session.id, [own], lambda: [session.add_user_message(text)])

    def expiring(self) -> None:
        """Add something that has expired, or soon will have."""
        session, own = self._any(), self.mark()
        left = self.chance.choice([-1, 0.5, 3])
        when, expires = datetime.fromtimestamp(time.time() + left, UTC), time.monotonic() + left
        self._added(
            session.id,
            [own],
            lambda: [session.add_user_message(f"soon gone: {own}", expires_at=when)],
            expires=int(expires * 1e9),
        )

    # --- reading

    def context(self) -> None:
        """Make a context, which fits and is valid."""
        session = self._any()
        name = self.chance.choice(FORMATS)

        def act() -> dict[str, Any]:
            given = session.context(format=name)
            self.unread(json.dumps(given.messages))
            found = [*map(str, find_format(name).validate(given.messages)), *given.problems]
            assert given.tokens <= BUDGET, f"{given.tokens} tokens of {BUDGET}"
            assert not found, found
            return {"tokens": given.tokens}

        self.done("context", act, may=(BudgetImpossible,), session=session.id)

    def read(self) -> None:
        """Read it all, in one of many ways."""
        session = self._any()
        reads: list[Callable[[], object]] = [
            session.entries, session.export, session.history, session.active_entries, session.interactions,
            lambda: session.summaries(history=True),
        ]  # fmt: skip
        what = self.chance.randrange(len(reads))
        self.done("read", lambda: self.unread(str(reads[what]())), session=session.id, what=what)

    def stats(self) -> None:
        """Have figures."""
        session = self._any()
        self.done("stats", lambda: {"entries": session.stats().total_entries}, session=session.id)

    def verify(self) -> None:
        """Have it verified."""
        session = self._any()

        def act() -> None:
            proof = session.verify()
            assert proof.ok, proof.problems

        self.done("verify", act, session=session.id)

    # --- changing

    def compact(self) -> None:
        """Compact, in one of several ways."""
        session = self._any()
        how = self.chance.choice(STRATEGIES)

        def act() -> dict[str, Any]:
            made = session.compact(how)
            return {"reason": made.reason, "summary": made.summary.id if made.summary else None}

        self.done("compact", act, session=session.id, strategy=how)

    def fork(self) -> None:
        """Branch off, and add something to the branch."""
        session, into = self._any(), self.new(BRANCH)

        def act() -> None:
            session.fork(into)

        if self.done("fork", act, may=(SessionNotFound,), session=session.id, into=into) is not None:
            self.add_to(into, self.session(into).add)

    def rewind(self) -> None:
        """Take back what came last, whoever wrote it."""
        session = self._any()

        def act() -> dict[str, Any]:
            there = session.entries()
            return {"hidden": session.rewind(there[-3]) if len(there) > 3 else 0}

        self.done("rewind", act, session=session.id)

    def erase(self) -> None:
        """Erase by id something of what this writer has added."""
        self._erase(lambda session, own, id: self.session(session).erase([id]))

    def query(self) -> None:
        """Erase it by its text."""
        self._erase(lambda session, own, id: self.session(session).erase(Query(text=own)))

    def forget(self) -> None:
        """Erase it by its text in all sessions."""
        self._erase(lambda session, own, id: self.memory.forget(matches=own))

    def _erase(self, act: Callable[[str, str, str], Any]) -> None:
        if not self._recent:
            return
        name, own, id = self._recent.pop(self.chance.randrange(len(self._recent)))

        def erased() -> dict[str, Any]:
            report = act(name, own, id)
            return {"entries": report.entries, "remains": [*report.remains]}

        if self.done("erase", erased, session=name, marks=[own]) is not None:
            self.gone.add(own)

    # --- all of the store

    def scan(self) -> None:
        """Redact what is private in all sessions."""
        self._scan(None)

    def scan_one(self) -> None:
        """Redact what is private in one session, and in its branches."""
        self._scan(self._any().id)

    def _scan(self, session: str | None) -> None:
        def act() -> dict[str, Any]:
            found = self.memory.scan(POLICY, session=session, apply=True)
            assert not found.refused, found.refused
            return {"redacted": found.redacted}

        self.done("scan", act, may=(SessionNotFound,), session=session)

    def sweep(self) -> None:
        """Erase what has expired."""
        self.done("sweep", lambda: {"swept": self.memory.sweep()})

    def rotate(self) -> None:
        """Change keys."""
        self.done("rotate", lambda: {"texts": rotate_keys(self.memory).texts}, may=(Conflict,))
