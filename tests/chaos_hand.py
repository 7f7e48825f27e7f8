"""A writer of the chaos: what it does stands between two lines of its journal."""

from __future__ import annotations

import itertools
import json
import traceback
from collections.abc import Callable
from random import Random
from typing import Any

from chaos_journal import Journal, mark, private
from palimpsest import Memory, PalimpsestError, Session
from writer import quarters, turn

BUDGET = 1500
"""Tokens of the contexts that are made."""

LARGE = 1024
"""Bytes from which on the chaos's stores keep a text apart."""


class Struck(Exception):
    """What a signal's handler raises that is not Ctrl-C, such as a task queue's limit of time."""


class Strikes:
    """Signals that raise as long as an operation is under way; what comes between operations is passed over."""

    def __init__(self) -> None:
        self.armed = self.struck = False

    def strike(self, error: type[BaseException]) -> None:
        """Raise in what is under way; called by a signal's handler."""
        if self.armed:
            self.armed, self.struck = False, True
            raise error


class Hand:
    """One writer: a memory, a journal, and chance. `place` names the run in its marks, so that no two are alike."""

    def __init__(self, memory: Memory, journal: Journal, chance: Random, strikes: Strikes, place: str) -> None:
        self.memory, self.journal, self.chance = memory, journal, chance
        self.gone: set[str] = set()
        self._strikes, self._place = strikes, place
        self._numbers = itertools.count()

    def done(
        self,
        verb: str,
        act: Callable[[], dict[str, Any] | None],
        *,
        may: tuple[type[Exception], ...] = (),
        **facts: Any,
    ) -> dict[str, Any] | None:
        """Do it between two lines of the journal; return what came of it, None where that is not known.

        An error of `may` may be. Of any other, and of an assertion that fails, the judge hears.
        """
        strikes, result = self._strikes, dict[str, Any]()
        raised: BaseException | None = None
        number = self.journal.begin(verb, **facts)
        strikes.struck = False
        try:
            strikes.armed = True
            result = act() or {}
            strikes.armed = False
        except BaseException as error:  # noqa: BLE001 (whatever it is, the journal says so)
            strikes.armed = False
            raised = error
        if raised is None:
            self.journal.end(number, "done", **result)
            return result
        told = {"error": type(raised).__name__, "said": str(raised)[:400]}
        if strikes.struck:
            self.journal.end(number, "cut", **told)
        elif isinstance(raised, may):
            self.journal.end(number, "refused", **told)
        else:
            trace = "".join(traceback.format_exception(raised))
            self.journal.end(number, "raised", **told, ours=isinstance(raised, PalimpsestError), trace=trace[-4000:])
        return None

    def session(self, name: str) -> Session:
        """A session with a budget."""
        return self.memory.session(name, max_tokens=BUDGET, counter=quarters)

    def mark(self) -> str:
        """A mark that nobody has used."""
        return mark(self._place, self.journal.writer, next(self._numbers))

    def batch(self) -> tuple[list[dict[str, Any]], list[str], list[str]]:
        """Return messages for one append, the marks of their entries in order, and the private addresses in them."""
        form = self.chance.choice(["one", "two", "turn", "private"])
        if form == "turn":
            marks = [self.mark() for _ in range(6)]
            messages = turn(marks[1][2:10])
            for message, own in zip(messages, (marks[0], None, *marks[3:]), strict=True):
                message["content"] = own and f"this is {own} of a turn"
            for call, own in zip(messages[1]["tool_calls"], marks[1:3], strict=True):
                call["function"]["arguments"] = json.dumps({"at": own})
            return messages, marks, []
        marks = [self.mark() for _ in range(2 if form == "two" else 1)]
        messages = [
            {"role": role, "content": f"this is {own}."}
            for role, own in zip(("user", "assistant"), marks, strict=False)
        ]
        if form != "private":
            return messages, marks, []
        address = private(marks[0])
        return [{"role": "user", "content": f"mail {marks[0]} to {address} today"}], marks, [address]

    def unread(self, text: str) -> None:
        """Check that nothing which this writer has erased stands in a text that was read."""
        for one in self.gone:
            assert one not in text, f"{one} was erased and can be read"
