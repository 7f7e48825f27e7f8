"""What processes of the chaos do to sessions of their own, of which all is known, and which verb comes next.

A session in which something was cut short is left alone from then on: what it holds is one of two things.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection
from random import Random
from typing import Any

from chaos_hand import Strikes
from chaos_journal import OWN, Journal
from chaos_model import World
from chaos_verbs import Together
from palimpsest import Conflict, Memory, Query, Session

WEIGHTS = {
    "append": 26, "turn": 5, "large": 3, "expiring": 3, "context": 8, "compact": 5, "read": 4, "fork": 3, "rewind": 2,
    "erase": 5, "query": 3, "forget": 2, "scan": 1, "scan_one": 2, "sweep": 2, "rotate": 1, "stats": 3, "verify": 3,
    "own_append": 8, "own_erase": 3, "own_rewind": 3, "own_clear": 1, "own_delete": 1, "own_fork": 2, "own_pin": 2,
    "own_import": 3, "own_replace": 1, "own_merge": 1, "own_file": 2, "own_forget": 1, "own_forget_text": 1,
}  # fmt: skip
"""How often each verb comes, of their sum."""

MOST = 4
"""How many sessions of its own a writer has at once."""


class Writer(Together):
    """A writer that knows every verb."""

    def __init__(self, memory: Memory, journal: Journal, chance: Random, strikes: Strikes, place: str) -> None:
        super().__init__(memory, journal, chance, strikes, place)
        self._world = World()

    def once(self, verbs: Collection[str]) -> None:
        """Do one of these verbs."""
        chosen = self.chance.choices([*verbs], [WEIGHTS[verb] for verb in verbs])[0]
        getattr(self, chosen)()

    def _on(self, verb: str, session: Session, act: Callable[[], object], **facts: Any) -> None:
        """Do it to a session of one's own, if all is known of it."""
        if len(self._world.may_be.get(session.id, [None])) > 1:
            return

        def done() -> None:
            act()

        known = {"session": session.id, **facts}
        # An export, or a file, that was read before a scan has redacted the session says something else than it does.
        may = (Conflict,) if verb in ("merge", "append") else ()
        sure = self.done(f"own {verb}", done, may=may, **known) is not None
        self._world.apply(verb, known, sure=sure)

    def _some(self) -> Session:
        """A session of one's own that has something in it."""
        known = [name for name, log in self._world.known().items() if log]
        if known and (len(known) >= MOST or self.chance.random() < 0.7):
            return self.session(self.chance.choice(known))
        made = self.session(self.new(OWN))
        self._put(made)
        return made

    def _put(self, session: Session) -> None:
        messages, marks, addresses = self.batch()
        self._on("append", session, lambda: session.add(messages), marks=marks, private=addresses)

    def _log(self, session: Session) -> list[Any]:
        """What is known of a session; nothing where something was cut short."""
        return self._world.known().get(session.id, [])

    def own_append(self) -> None:
        """Add a batch."""
        self._put(self._some())

    def own_erase(self) -> None:
        """Erase an entry by its text, in every branch."""
        self._erase_in(lambda session, own: session.erase(Query(text=own)), "erase")

    def own_forget_text(self) -> None:
        """Erase an entry by its text, wherever it is."""
        self._erase_in(lambda session, own: self.memory.forget(matches=own), "forget_text")

    def _erase_in(self, act: Callable[[Session, str], object], verb: str) -> None:
        session = self._some()
        living = [cell.mark for cell, _ in self._log(session) if not cell.erased]
        if living:
            own = self.chance.choice(living)
            self._on(verb, session, lambda: act(session, own), marks=[own])

    def own_rewind(self) -> None:
        """Go back to right behind an entry."""
        session = self._some()
        seen = sum(not hidden for _, hidden in self._log(session))
        if seen:
            keeps = self.chance.randrange(seen) + 1

            def act() -> None:
                there = session.entries()
                assert len(there) == seen, f"{len(there)} entries where {seen} are known"
                session.rewind(there[keeps - 1])

            self._on("rewind", session, act, keeps=keeps)

    def own_pin(self) -> None:
        """Pin an entry."""
        session = self._some()
        seen = [cell for cell, hidden in self._log(session) if not hidden]
        living = [place for place, cell in enumerate(seen) if not cell.erased]
        if living:
            place = self.chance.choice(living)
            self._on("pin", session, lambda: session.pin(session.entries()[place].id), marks=[seen[place].mark])

    def own_clear(self) -> None:
        """Clear."""
        session = self._some()
        self._on("clear", session, session.clear)

    def own_delete(self) -> None:
        """Delete."""
        session = self._some()
        self._on("delete", session, lambda: self.memory.delete_session(session.id))

    def own_forget(self) -> None:
        """Forget the session, with what branches share of it."""
        session = self._some()
        self._on("forget", session, lambda: self.memory.forget(session=session.id))

    def own_fork(self) -> None:
        """Branch off."""
        session, into = self._some(), self.new(OWN)
        if self._log(session):
            self._on("fork", session, lambda: session.fork(into), into=into)

    def own_import(self) -> None:
        """Export it, and import that as another session."""
        self._moved(self.new(OWN))

    def own_replace(self) -> None:
        """Put the export of one session in the place of another."""
        self._moved(self._some().id, on_conflict="replace")

    def own_merge(self) -> None:
        """Merge a session's export into itself, which changes nothing."""
        session = self._some()
        if self._log(session):
            self._on("merge", session, lambda: self.memory.import_session(session.export(), on_conflict="merge"))

    def _moved(self, into: str, **how: Any) -> None:
        session = self._some()
        if self._log(session) and session.id != into:
            act = lambda: self.memory.import_session(session.export(), session_id=into, **how)  # noqa: E731
            self._on("import", session, act, into=into)

    def own_file(self) -> None:
        """Import a file of messages twice, which adds them once."""
        session = self._some()
        messages, marks, addresses = self.batch()
        lines = "".join(f"{json.dumps(message)}\n" for message in messages).encode()

        def act() -> None:
            for _ in range(2):
                self.memory.import_file(
                    io.BytesIO(lines), source="messages", format="openai", session_id=session.id, key=marks[0]
                )

        if self._log(session):
            self._on("append", session, act, marks=marks, private=addresses)
