"""The verbs of chaos writers on sessions that no other process changes, and the choice of the next verb.

The content of such a session is known exactly. Once an operation on it was cut short, there are two possible contents,
and the writer leaves the session alone from then on.
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
from chaos_verbs import SharedVerbs
from palimpsest import Conflict, Memory, Query, Session

WEIGHTS = {
    "append": 26, "turn": 5, "large": 3, "expiring": 3, "context": 8, "compact": 5, "read": 4, "fork": 3, "rewind": 2,
    "erase": 5, "query": 3, "forget": 2, "scan": 1, "scan_one": 2, "sweep": 2, "rotate": 1, "stats": 3, "verify": 3,
    "own_append": 8, "own_erase": 3, "own_rewind": 3, "own_clear": 1, "own_delete": 1, "own_fork": 2, "own_pin": 2,
    "own_import": 3, "own_replace": 1, "own_merge": 1, "own_file": 2, "own_forget": 1, "own_forget_text": 1,
}  # fmt: skip
"""The weight of each verb in the random choice."""

MOST = 4
"""How many known sessions of its own a writer has before it begins no others."""


class Writer(SharedVerbs):
    """A writer with every verb: those on shared sessions, and those on its own sessions (`own_...`)."""

    def __init__(self, memory: Memory, journal: Journal, chance: Random, strikes: Strikes, run: str) -> None:
        super().__init__(memory, journal, chance, strikes, run)
        self._world = World()

    def once(self, verbs: Collection[str]) -> None:
        """Run one of these verbs, chosen by weight."""
        chosen = self.chance.choices([*verbs], [WEIGHTS[verb] for verb in verbs])[0]
        getattr(self, chosen)()

    def _on(self, verb: str, session: Session, act: Callable[[], object], **facts: Any) -> None:
        """Run an operation on an own session and apply it to the model; do nothing if the content is uncertain."""
        if len(self._world.may_be.get(session.id, [None])) > 1:
            return

        def act_without_result() -> None:
            act()

        known = {"session": session.id, **facts}
        # A merge or a repeated import conflicts if a scan has redacted the session since the export or file was made.
        may = (Conflict,) if verb in ("merge", "append") else ()
        sure = self.done(f"own {verb}", act_without_result, may=may, **known) is not None
        self._world.apply(verb, known, sure=sure)

    def _own(self) -> Session:
        """Return a non-empty own session; may begin one."""
        known = [name for name, log in self._world.known().items() if log]
        if known and (len(known) >= MOST or self.chance.random() < 0.7):
            return self.session(self.chance.choice(known))
        begun = self.session(self.new(OWN))
        self._put(begun)
        return begun

    def _put(self, session: Session) -> None:
        messages, marks, addresses = self.batch()
        self._on("append", session, lambda: session.add(messages), marks=marks, private=addresses)

    def _log(self, session: Session) -> list[Any]:
        """Return the expected log of an own session, or [] if there is none or it is uncertain."""
        return self._world.known().get(session.id, [])

    def own_append(self) -> None:
        """Add a batch to an own session."""
        self._put(self._own())

    def own_erase(self) -> None:
        """Erase an entry by its text, in every branch."""
        self._erase_in(lambda session, mark: session.erase(Query(text=mark)), "erase")

    def own_forget_text(self) -> None:
        """Erase an entry by its text in all sessions, imported copies included."""
        self._erase_in(lambda session, mark: self.memory.forget(matches=mark), "forget_text")

    def _erase_in(self, act: Callable[[Session, str], object], verb: str) -> None:
        session = self._own()
        living = [cell.mark for cell, _ in self._log(session) if not cell.erased]
        if living:
            mark = self.chance.choice(living)
            self._on(verb, session, lambda: act(session, mark), marks=[mark])

    def own_rewind(self) -> None:
        """Rewind to a visible entry, which stays the last one."""
        session = self._own()
        visible = sum(not hidden for _, hidden in self._log(session))
        if visible:
            keeps = self.chance.randrange(visible) + 1

            def act() -> None:
                entries = session.entries()
                assert len(entries) == visible, f"{len(entries)} entries where {visible} are known"
                session.rewind(entries[keeps - 1])

            self._on("rewind", session, act, keeps=keeps)

    def own_pin(self) -> None:
        """Pin an entry."""
        session = self._own()
        visible = [cell for cell, hidden in self._log(session) if not hidden]
        living = [place for place, cell in enumerate(visible) if not cell.erased]
        if living:
            place = self.chance.choice(living)
            self._on("pin", session, lambda: session.pin(session.entries()[place].id), marks=[visible[place].mark])

    def own_clear(self) -> None:
        """Clear an own session."""
        session = self._own()
        self._on("clear", session, session.clear)

    def own_delete(self) -> None:
        """Delete an own session."""
        session = self._own()
        self._on("delete", session, lambda: self.memory.delete_session(session.id))

    def own_forget(self) -> None:
        """Forget an own session, with the entries that its branches share."""
        session = self._own()
        self._on("forget", session, lambda: self.memory.forget(session=session.id))

    def own_fork(self) -> None:
        """Fork an own session."""
        session, into = self._own(), self.new(OWN)
        if self._log(session):
            self._on("fork", session, lambda: session.fork(into), into=into)

    def own_import(self) -> None:
        """Import the export of an own session as another session."""
        self._import_into(self.new(OWN))

    def own_replace(self) -> None:
        """Replace an own session by the export of another."""
        self._import_into(self._own().id, on_conflict="replace")

    def own_merge(self) -> None:
        """Merge a session's export into itself, which changes nothing."""
        session = self._own()
        if self._log(session):
            self._on("merge", session, lambda: self.memory.import_session(session.export(), on_conflict="merge"))

    def _import_into(self, into: str, **options: Any) -> None:
        session = self._own()
        if self._log(session) and session.id != into:
            act = lambda: self.memory.import_session(session.export(), session_id=into, **options)  # noqa: E731
            self._on("import", session, act, into=into)

    def own_file(self) -> None:
        """Import the same file of messages twice; the second import adds nothing."""
        session = self._own()
        messages, marks, addresses = self.batch()
        lines = "".join(f"{json.dumps(message)}\n" for message in messages).encode()

        def act() -> None:
            for _ in range(2):
                self.memory.import_file(
                    io.BytesIO(lines), source="messages", format="openai", session_id=session.id, key=marks[0]
                )

        if self._log(session):
            self._on("append", session, act, marks=marks, private=addresses)
