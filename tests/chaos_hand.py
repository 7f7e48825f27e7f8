"""The base class of chaos writers, which notes each operation in a journal before it begins and after it ends."""

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
"""The budget of contexts, in tokens."""

LARGE = 1024
"""Size in bytes from which on the stores keep a text apart as large content."""


class Struck(Exception):
    """Raised by the handler of SIGALRM, as a task queue does at its time limit; SIGINT raises KeyboardInterrupt."""


class Strikes:
    """Makes signal handlers raise only while an operation runs (`armed`); signals between operations are ignored.

    `struck` says whether a signal has cut the last operation short.
    """

    def __init__(self) -> None:
        self.armed = self.struck = False

    def strike(self, error: type[BaseException]) -> None:
        """Raise the error if an operation is running. Called by signal handlers."""
        if self.armed:
            self.armed, self.struck = False, True
            raise error


class JournaledWriter:
    """One writer: a memory, its journal and its random generator. `run` names the run; it keeps marks unique.

    `gone` holds the marks that this writer has erased.
    """

    def __init__(self, memory: Memory, journal: Journal, chance: Random, strikes: Strikes, run: str) -> None:
        self.memory, self.journal, self.chance = memory, journal, chance
        self.gone: set[str] = set()
        self._strikes, self._run = strikes, run
        self._numbers = itertools.count()

    def done(
        self,
        verb: str,
        act: Callable[[], dict[str, Any] | None],
        *,
        may: tuple[type[Exception], ...] = (),
        **facts: Any,
    ) -> dict[str, Any] | None:
        """Run an operation and note its begin, `facts` and outcome; return its result, or None if it raised.

        Errors of the types in `may` are allowed outcomes. Any other error, and a failed assertion, is noted as
        "raised", which the judge reports as a fault.
        """
        strikes, result = self._strikes, dict[str, Any]()
        raised: BaseException | None = None
        number = self.journal.begin(verb, **facts)
        strikes.struck = False
        try:
            strikes.armed = True
            result = act() or {}
            strikes.armed = False
        except BaseException as error:  # noqa: BLE001 (the journal notes every error)
            strikes.armed = False
            raised = error
        if raised is None:
            self.journal.end(number, "done", **result)
            return result
        failure = {"error": type(raised).__name__, "said": str(raised)[:400]}
        if strikes.struck:
            self.journal.end(number, "cut", **failure)
        elif isinstance(raised, may):
            self.journal.end(number, "refused", **failure)
        else:
            trace = "".join(traceback.format_exception(raised))
            self.journal.end(number, "raised", **failure, ours=isinstance(raised, PalimpsestError), trace=trace[-4000:])
        return None

    def session(self, name: str) -> Session:
        """Return the session of this name, with a budget."""
        return self.memory.session(name, max_tokens=BUDGET, counter=quarters)

    def mark(self) -> str:
        """Return a mark that no writer has used."""
        return mark(self._run, self.journal.writer, next(self._numbers))

    def batch(self) -> tuple[list[dict[str, Any]], list[str], list[str]]:
        """Return messages for one append, the marks of their entries in order, and the private addresses in them."""
        form = self.chance.choice(["one", "two", "turn", "private"])
        if form == "turn":
            marks = [self.mark() for _ in range(6)]
            messages = turn(marks[1][2:10])
            for message, mark_ in zip(messages, (marks[0], None, *marks[3:]), strict=True):
                message["content"] = mark_ and f"this is {mark_} of a turn"
            for call, mark_ in zip(messages[1]["tool_calls"], marks[1:3], strict=True):
                call["function"]["arguments"] = json.dumps({"at": mark_})
            return messages, marks, []
        marks = [self.mark() for _ in range(2 if form == "two" else 1)]
        messages = [
            {"role": role, "content": f"this is {mark_}."}
            for role, mark_ in zip(("user", "assistant"), marks, strict=False)
        ]
        if form != "private":
            return messages, marks, []
        address = private(marks[0])
        return [{"role": "user", "content": f"mail {marks[0]} to {address} today"}], marks, [address]

    def unread(self, text: str) -> None:
        """Check that a text which was read contains no mark that this writer has erased."""
        for erased in self.gone:
            assert erased not in text, f"{erased} was erased and can be read"
