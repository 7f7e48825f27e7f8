"""A memory with a privacy policy, and a record of everything that it emits while private text is put into it.

`Watched` records logs, events, warnings, errors and summarizer prompts; `leaks` searches these and the store's files
for the private text. The drivers are in `write_paths`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote

import msgspec

from palimpsest import AsyncMemory, AsyncSession, AsyncWorkingMemory, Keys, Memory
from palimpsest.privacy.redaction import Redactor
from palimpsest.runtime.events import EVENTS
from palimpsest.runtime.runner import drive
from palimpsest.testing import FakeClock
from palimpsest.types import AsyncKnowledge
from sealed import bytes_of
from writer import quarters

KEY = bytes(range(16))
KEYS = Keys({"one": bytes(range(32))})


class Case(NamedTuple):
    """A private text, the policy that finds it, and what replaces it."""

    marker: str
    policy: Mapping[str, Any]
    stand_in: str


PATTERN = Case("Zebra-4711~Quagga", {"redact_patterns": [(r"(?i)zebra-\d{4}~quagga", "[GONE]")]}, "[GONE]")
ADDRESS = Case("jo.zebra@quagga-4711.org", {"recognisers": "default", "default_redaction_string": "[GONE]"}, "[GONE]")
NUMBERED = Case("jo.zebra@quagga-4711.org", {"recognisers": {"email": "pseudonym"}}, "[EMAIL")
CASES = {"pattern": PATTERN, "recogniser": ADDRESS, "pseudonym": NUMBERED}


def forms(marker: str) -> dict[str, bytes]:
    """Return the encodings of the marker to search for, by name; all but base64 in lower case."""
    raw, small = marker.encode(), marker.casefold()
    searched = {
        "plain": small.encode(),
        "json": json.dumps(small)[1:-1].encode(),
        "escaped": "".join(f"\\u{ord(letter):04x}" for letter in small).encode(),
        "utf-16-le": small.encode("utf-16-le"),
        "utf-16-be": small.encode("utf-16-be"),
        "address": quote(marker, safe="").encode().lower(),
    }
    for offset in range(3):  # base64 differs by the position modulo 3 at which the marker begins
        encoded = base64.b64encode(b"\0" * offset + raw)
        searched[f"base64+{offset}"] = encoded[(0, 2, 3)[offset] : -4]
    return searched


def found_in(data: bytes, marker: str) -> list[str]:
    """Return the names of the forms of the marker that the data contains."""
    lower = data.lower()
    return [name for name, form in forms(marker).items() if form in (data if name.startswith("base64") else lower)]


class Unstored(NamedTuple):
    """Returned by a driver after which the store holds no stand-in of the marker, with the reason why."""

    why: str


class Watched:
    """A memory with the policy of a case, and everything that it has emitted.

    `memory` has synchronous verbs, also for an AsyncMemory. `emitted` has pairs of a source and a text. `inputs` is a
    folder for files to import, which may hold private text and is not searched.
    """

    def __init__(self, case: Case, where: str, folder: Path, *, face: str = "sync", **options: Any) -> None:
        self.case, self.where, self.folder = case, where, folder
        self.marker = case.marker
        self.clock = FakeClock()
        self.inputs = folder.parent / f"{folder.name}-inputs"
        self.inputs.mkdir(exist_ok=True)
        self.emitted: list[tuple[str, str]] = []
        self.events: list[str] = []
        self.errors = 0
        self.face, self.options = face, {"clock": self.clock, **options}
        if where.startswith(("sqlite", "file")):
            self.options.setdefault("synchronous", "NORMAL")
        self.memory: Any = None

    # --- opening

    @property
    def redactor(self) -> Redactor:
        """The object that applies the case's policy."""
        numbered = "pseudonym" in str(self.case.policy)
        return Redactor(self.case.policy, key=KEY if numbered else None)

    def __enter__(self) -> Self:
        self._stop = _listening(self.emitted)
        self._stop.__enter__()
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self._stop.__exit__(kind, fault, trace)

    def open(self) -> None:
        """Open the memory, and listen to all of its events."""
        if self.face == "async":
            self.memory = Blocking(AsyncMemory.open(self.where, privacy=self.redactor, **self.options))
        else:
            self.memory = Memory.open(self.where, privacy=self.redactor, **self.options)
        for event in EVENTS:
            self.memory.on(event, self._heard(event))
            self.memory.on(event, self._failing)

    def close(self) -> None:
        """Close the memory, once."""
        memory, self.memory = self.memory, None
        if memory is not None:
            memory.close()

    def settle(self) -> None:
        """Wait for the memory's background work."""
        if isinstance(self.memory, Blocking):
            self.memory.settle()
        else:
            drive(self.memory._core.runner.settle())

    def _heard(self, event: str) -> Callable[[str, dict[str, Any]], None]:
        def handler(session: str, facts: dict[str, Any]) -> None:
            self.events.append(event)
            self.emitted.append((f"event {event}", f"{session} {facts!r} {_json(facts)}"))

        return handler

    def _failing(self, session: str, facts: dict[str, Any]) -> None:
        """A handler of events whose error quotes private text."""
        raise ValueError(f"{self.marker} {facts!r}")

    # --- for drivers

    def session(self, name: str = "s", **options: Any) -> Any:
        """Return a session of the memory."""
        return self.memory.session(name, **{"counter": quarters, **options})

    def asked(self, prompt: str) -> str:
        """Answer as a summarizer that repeats its prompt and invents private text."""
        self.emitted.append(("prompt", prompt))
        summary = f"They spoke of {self.marker} and of {prompt[-300:]}"
        return f"{summary}\n\n## Facts\n- {self.marker} is open [1]\n\n## Decisions\n- take {self.marker} [2]\n"

    def refused(self, verb: Callable[..., object], *args: Any, **options: Any) -> BaseException:
        """Return the error that a verb raises, and record every form in which somebody may see it."""
        try:
            verb(*args, **options)
        except Exception as fault:  # noqa: BLE001 (every error is recorded)
            self.errors += 1
            self.emitted.append((f"error {type(fault).__name__}", _shown(fault)))
            return fault
        raise AssertionError("nothing was refused")

    def attempted(self, verb: Callable[..., object], *args: Any, **options: Any) -> object:
        """Return a verb's result; if it raises instead, record the error."""
        try:
            return verb(*args, **options)
        except Exception as fault:  # noqa: BLE001 (every error is recorded)
            self.errors += 1
            self.emitted.append((f"error {type(fault).__name__}", _shown(fault)))
            return None

    # --- the results

    def leaks(self) -> list[str]:
        """Return where the marker is: in files, by form, and in everything that was emitted."""
        places = [
            ("the files", self._bytes()),
            *((source, text.encode("utf-8", "replace")) for source, text in self.emitted),
        ]
        return [
            f"{form} in {place}: …{_around(data, forms(self.marker)[form])}…"
            for place, data in places
            for form in found_in(data, self.marker)
        ]

    def stored(self) -> str:
        """Return everything that the memory returns of its contents, as text."""
        contents: list[object] = []
        for info in self.memory.sessions():
            session = self.session(info.session)
            contents += [session.export(), session.entries(rewound=True), session.history()]
        contents += [self.memory.working(scope).facts() for scope in self.memory.scopes()]
        return repr(contents)

    def _bytes(self) -> bytes:
        data = bytes_of(self.folder)
        if self.memory is not None and self.where == "memory://":
            data += self.stored().encode("utf-8", "replace")
        return data


def _around(data: bytes, form: bytes) -> str:
    at = max(data.find(form), data.lower().find(form))
    return data[max(at - 150, 0) : at + 60].decode("utf-8", "replace")


def _shown(fault: BaseException) -> str:
    """Return an error with its causes as a log, a debugger or an error tracker shows it."""
    texts = ["".join(traceback.format_exception(fault))]
    todo: list[BaseException | None] = [fault]
    seen: set[int] = set()
    while todo:
        error = todo.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        fields = {name: getattr(error, name, None) for name in ("msg", "object", "doc", "reason", "filename", "name")}
        texts.append(f"{error} {error!r} {error.args!r} {vars(error)!r} {fields!r}")
        todo += [error.__cause__, error.__context__, *getattr(error, "exceptions", ())]
    return "\n".join(texts)


def _json(value: object) -> str:
    return msgspec.json.encode(value, enc_hook=repr).decode("utf-8", "replace")


@contextmanager
def _listening(emitted: list[tuple[str, str]]) -> Iterator[None]:
    """Record everything that is logged in the block, at any level, and every warning."""

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = logging.Formatter("%(name)s %(message)s").format(record)
            emitted.append(("log", f"{text} {record.args!r} {record.exc_info!r}"))

    root, listener = logging.getLogger(), Listener()
    level = root.level
    root.addHandler(listener)
    root.setLevel(logging.DEBUG)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield
            emitted += [("warning", str(warning.message)) for warning in warned]
    finally:
        root.removeHandler(listener)
        root.setLevel(level)


class Blocking:
    """An asynchronous memory or session with synchronous verbs, for drivers that know only these."""

    def __init__(self, core: Any, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._core = core
        self._owned = loop is None
        self._loop = loop or asyncio.new_event_loop()
        if self._owned:
            self._loop.set_debug(True)
            self._run(core.connect())

    def _run(self, coroutine: Any) -> Any:
        return self._loop.run_until_complete(coroutine)

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._core, name)
        if isinstance(verb, AsyncWorkingMemory | AsyncKnowledge):
            return Blocking(verb, self._loop)
        if not callable(verb):
            return verb

        def blocking(*args: Any, **options: Any) -> Any:
            result = verb(*args, **options)
            if asyncio.iscoroutine(result):
                result = self._run(result)
            if isinstance(result, AsyncMemory | AsyncSession | AsyncWorkingMemory | AsyncKnowledge):
                return Blocking(result, self._loop)
            return self._within(result) if name in ("turn", "stream") else result

        return blocking

    @contextmanager
    def _within(self, block: Any) -> Iterator[Any]:
        """Turn an asynchronous context manager into a synchronous one."""
        given = self._run(block.__aenter__())
        try:
            yield self if isinstance(given, AsyncSession) else given
        except BaseException as fault:
            if not self._run(block.__aexit__(type(fault), fault, fault.__traceback__)):
                raise
        else:
            self._run(block.__aexit__(None, None, None))

    def settle(self) -> None:
        """Wait for the memory's background work."""
        self._run(self._core.runner.settle())

    def close(self) -> None:
        """Close the memory and its loop."""
        self._run(self._core.close())
        self._run(self._loop.shutdown_asyncgens())
        self._loop.close()
