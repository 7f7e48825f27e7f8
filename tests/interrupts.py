"""Interrupt a verb at every point at which CPython could run a signal handler, and check the state that remains.

`Points` finds these points by a trace function: where a function is entered or resumed (RESUME), at each backward jump
of a loop, and after each call. A `Verb` is an operation of a memory. A `Site` is a store with the memory that is
interrupted and a second memory of the same process. Run as a program, this file is another process that uses the store.
"""

from __future__ import annotations

import contextlib
import dis
import gc
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple, Self

from palimpsest import Memory, Session
from palimpsest.log.entry import moment
from palimpsest.runtime.runner import drive
from palimpsest.testing import FakeClock
from writer import quarters

BUSY = 5
"""Seconds to wait for a lock: after that a test fails if an interrupted verb has left something locked."""

NEVER = sys.maxsize
"""A number of points that no verb reaches: `Points(NEVER)` only counts."""

_CALLS = {opcode for name, opcode in dis.opmap.items() if name.startswith("CALL")}
_BACK = {opcode for name, opcode in dis.opmap.items() if name.startswith("JUMP_BACKWARD")}
_IMPORTS = "<frozen importlib"


class Interruption(KeyboardInterrupt):
    """The error that a signal handler raises."""


class Points:
    """Counts the points at which a signal handler could run in this thread; after `at` points raises `Interruption`."""

    def __init__(self, at: int) -> None:
        self._at, self.passed = at, 0
        self._codes: dict[CodeType, tuple[bytes, list[int]]] = {}  # bytecode and handlers of each code object

    def __enter__(self) -> Self:
        self._collects = gc.isenabled()
        gc.disable()  # a collection runs callbacks and finalizers, whose points would be counted, too
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        if self._collects:
            gc.enable()

    def _point(self) -> None:
        self.passed += 1
        if self.passed > self._at:
            self._at = NEVER
            raise Interruption

    def _called(self, frame: FrameType, event: str, _: object) -> Any:
        """Trace a function that is entered or resumed, instruction by instruction; the entry itself is a point."""
        code = frame.f_code
        if code.co_filename.startswith(_IMPORTS) or code is Points.__exit__.__code__ or _in_del(frame):
            return None
        if code not in self._codes:
            self._codes[code] = code.co_code, _handlers(code)
        raw, handlers = self._codes[code]
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        current = -1

        def step(frame: FrameType, event: str, _: object) -> Any:
            nonlocal current
            if event == "opcode":
                previous, current = current, frame.f_lasti
                after_call = previous >= 0 and raw[previous] in _CALLS and handlers[previous] == handlers[current]
                if after_call or raw[current] in _BACK:
                    self._point()
            return step

        self._point()
        return step


def _handlers(code: CodeType) -> list[int]:
    """Return the exception handler (its offset, or -1 for none) that is in effect at each offset of the bytecode.

    CPython runs a signal handler at the end of a call instruction, but the trace function raises at the instruction
    after it. Where the two have different handlers, as at the end of a `with` block, no signal handler could raise
    there, so it is no point.
    """
    targets = [-1] * (len(code.co_code) + 2)
    for entry in dis._parse_exception_table(code):  # type: ignore[attr-defined]
        for offset in range(entry.start, min(entry.end, len(targets))):
            targets[offset] = entry.target
    return targets


def _in_del(frame: FrameType | None) -> bool:
    """Whether the frame is, or was called by, a `__del__`: an error there ends only the finalizer, not the verb."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back if "palimpsest" in frame.f_code.co_filename else None
    return frame is not None


def points(act: Callable[[], object]) -> int:
    """Return how many points a call passes until its end."""
    with Points(NEVER) as counted:
        act()
    return counted.passed


def interrupted(act: Callable[[], object], at: int) -> Interruption | None:
    """Call `act` and interrupt it after `at` points; return the error, or None if it ended before.

    The error's traceback keeps the frames that it left alive, as a debugger or a logged error would.
    """
    try:
        with Points(at):
            act()
    except Interruption as raised:
        return raised
    return None


# --- the verbs


class Verb(NamedTuple):
    """An operation `act` on a session that `begin` prepares; both take the site and the session's name.

    If `whole`, an interrupted operation must have happened completely or not at all.
    """

    begin: Callable[[Site, str], object]
    act: Callable[[Site, str], object]
    whole: bool = True


def _filled(site: Site, name: str) -> None:
    session = site.session(name)
    session.add_user_message("one")
    session.add_assistant_message("two " * 40)
    session.add_user_message("three")


def _long(site: Site, name: str) -> None:
    session = site.session(name)
    for number in range(12):
        session.add([{"role": "user", "content": f"{number} " * 20}, {"role": "assistant", "content": "yes " * 20}])


def _changed(site: Site, name: str) -> None:
    _filled(site, name)
    for seq in (1, 2, 3):
        site.session(name).pin(seq)


def _branched(site: Site, name: str) -> None:
    _filled(site, name)
    site.session(name).fork(f"{name} branch")


def _expiring(site: Site, name: str) -> None:
    _filled(site, name)
    site.session(name).add_user_message("soon", expires_at=moment(site.clock.now + 5_000_000))
    site.clock.advance(10)


def _exported(site: Site, name: str) -> None:
    _filled(site, f"{name} source")
    site.kept = site.session(f"{name} source").export()


def _import(site: Site, name: str, on_conflict: Any = "error") -> None:
    site.memory.import_session(site.kept, session_id=name, on_conflict=on_conflict)


def _replaced(site: Site, name: str) -> None:
    _exported(site, name)
    _filled(site, name)


def _erase(site: Site, name: str) -> None:
    session = site.session(name)
    session.erase([session.entries()[1].id])


def _in_turn(site: Site, name: str) -> None:
    with site.session(name).turn():
        site.session(name).add_user_message("four")


def _put(site: Site, name: str) -> None:
    drive(site.memory.store.put_item("default", name, "key", b"value"))


def _put_two(site: Site, name: str) -> None:
    _put(site, name)
    drive(site.memory.store.put_item("default", name, "other", b"value"))


VERBS: dict[str, Verb] = {
    "add": Verb(_filled, lambda site, name: site.session(name).add_user_message("four")),
    "add the first": Verb(lambda site, name: None, lambda site, name: site.session(name).add_user_message("four")),
    "add a turn with a key": Verb(
        _filled,
        lambda site, name: site.session(name).add(
            [{"role": "user", "content": "four"}, {"role": "assistant", "content": "five " * 40}], key="key"
        ),
    ),
    "add in a turn": Verb(_filled, _in_turn),
    "say anew": Verb(
        _filled,
        lambda site, name: site.session(name).replace(
            [{"role": "user", "content": "one"}, {"role": "assistant", "content": "four"}]
        ),
    ),
    "pin": Verb(_filled, lambda site, name: site.session(name).pin(2)),
    "record usage": Verb(
        _filled, lambda site, name: site.session(name).record_usage(input_tokens=100, output_tokens=20)
    ),
    "erase": Verb(_branched, _erase),
    "clear": Verb(_filled, lambda site, name: site.session(name).clear()),
    "fork": Verb(_filled, lambda site, name: site.session(name).fork(f"{name} branch")),
    "rewind": Verb(_filled, lambda site, name: site.session(name).rewind(1)),
    "delete": Verb(_branched, lambda site, name: site.memory.delete_session(name)),
    "context": Verb(_long, lambda site, name: site.session(name).context(), whole=False),
    "compact": Verb(_long, lambda site, name: site.session(name).compact(strategy="summarizer"), whole=False),
    "sweep": Verb(_expiring, lambda site, name: site.memory.sweep(), whole=False),
    "import": Verb(_exported, _import),
    "replace": Verb(_replaced, lambda site, name: _import(site, name, "replace")),
    "put an item": Verb(lambda site, name: None, _put),
    "delete an item": Verb(_put, lambda site, name: drive(site.memory.store.delete_item("default", name, "key"))),
    "take a lease": Verb(_filled, lambda site, name: drive(site.memory.store.lease("default", name, "me", 60))),
    "read": Verb(_filled, lambda site, name: site.session(name).entries()),
    "read what was done": Verb(_changed, lambda site, name: site.session(name).history()),
    "count": Verb(_filled, lambda site, name: site.session(name).stats()),
    "scan": Verb(
        _branched,
        lambda site, name: site.memory.scan({"redact_patterns": ["tw[o]"]}, session=name, apply=True),
        whole=False,
    ),
    "open": Verb(_filled, lambda site, name: site.another().close()),
}
"""The verbs to interrupt, by name."""


class Site:
    """A store with two memories: `memory`, whose verbs are interrupted, and `beside`, which is not interrupted.

    For stores other than files and SQLite both are the same memory. `kept` is the export that "import" and
    "replace" import; `names` yields unused session names.
    """

    def __init__(self, where: str, options: dict[str, Any]) -> None:
        self.where, self._options, self.clock = where, options, FakeClock()
        self.memory: Memory = self.another()
        self.beside: Memory = self.another() if where.startswith(("file:", "sqlite:")) else self.memory
        self.kept: dict[str, Any] = {}
        self.names = (f"s{number}" for number in itertools.count())

    def another(self) -> Memory:
        """Open another memory of the same store."""
        return Memory.open(self.where, clock=self.clock, **self._options)

    def session(self, name: str) -> Session:
        """Return the session of this name, with a small budget."""
        return self.memory.session(name, max_tokens=200, counter=quarters)

    def close(self) -> None:
        """Close both memories."""
        self.beside.close()
        self.memory.close()

    def state(self, name: str) -> Any:
        """Return what is stored under this name, without ids and times: the session, its branches, and the items."""
        memory, sessions = self.beside, []
        for info in memory.sessions(after=name[:-1], limit=100_000):
            if info.session != name and not info.session.startswith(f"{name} "):
                continue
            session = memory.session(info.session)
            texts = [(entry.text, entry.erased, entry.pinned) for entry in session.entries(rewound=True)]
            head = drive(memory.store.head(session.options.key))
            assert head is not None
            records = [record.kind for record in session.history()]
            marks = (head.pinned, head.rewound, head.first_seq, head.usage is not None)
            sessions.append((info.session.removeprefix(name), texts, marks, records))
        items = [(item.key, item.value) for item in drive(memory.store.list_items("default", name))]
        return sessions, items


def left_sound(site: Site, name: str) -> None:
    """Check that both memories can read and write the session without waiting, and that it verifies.

    `beside` writes first, so that the interrupted memory then has an outdated head in its cache.
    """
    for number, memory in enumerate((site.beside, site.memory)):
        session = memory.session(name)
        before = [entry.text for entry in session.entries()]
        session.add_user_message(f"after {number}")
        assert [entry.text for entry in session.entries()] == [*before, f"after {number}"]
        assert session.verify().problems == ()
        drive(memory.store.put_item("default", f"{name} after", "key", b"value"))


def try_at(site: Site, verb: Verb, at: int, states: tuple[Any, Any] | None) -> None:
    """Interrupt the verb after `at` points; check the stored state, that the session is usable, and the open files.

    `states` are the stored states before and after an uninterrupted verb (see `states_of`); None skips that check.
    """
    name = next(site.names)
    verb.begin(site, name)
    files = open_files()

    raised = interrupted(lambda: verb.act(site, name), at)

    if verb.whole and states is not None:
        state = site.state(name)
        assert state in states if raised else state == states[1], f"left by an interruption at {at}"
    left_sound(site, name)
    raised = None  # releases the frames that its traceback holds
    if open_files() > files:
        gc.collect()
    if open_files() > files:
        # SQLite cannot close a file on which another connection holds locks. It keeps the descriptor and reuses it at
        # the next open. So a few files stay open, but their number must not grow with further interruptions.
        counts = [_left_open(site, verb, name, at) for _ in range(2)]
        assert counts[0] == counts[1], f"files are left open by an interruption at {at}"


def _left_open(site: Site, verb: Verb, name: str, at: int) -> int:
    """Interrupt the verb at the same point four more times; return how many files are open afterwards."""
    for _ in range(4):
        interrupted(lambda: verb.act(site, name), at)
    gc.collect()
    return open_files()


def states_of(site: Site, verb: Verb) -> tuple[Any, Any]:
    """Return the stored states before and after an uninterrupted verb."""
    name = next(site.names)
    verb.begin(site, name)
    before = site.state(name)
    verb.act(site, name)
    return before, site.state(name)


def moments(site: Site, verb: Verb) -> int:
    """Return how many points the verb passes."""
    name = next(site.names)
    verb.begin(site, name)
    return points(lambda: verb.act(site, name))


def open_files() -> int:
    """Return how many files this process has open, or 0 where /proc does not exist."""
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


# --- real signals


@contextlib.contextmanager
def alarms() -> Iterator[Callable[[float], None]]:
    """Yield a function that schedules SIGALRM after so many seconds; its handler raises `Interruption`.

    Calling it with 0 cancels the signal. A signal that was already sent by then may still arrive; its handler then
    raises nothing.
    """
    armed = False

    def handler(*_: object) -> None:
        if armed:
            raise Interruption

    def alarm(seconds: float) -> None:
        nonlocal armed
        armed = seconds > 0
        signal.setitimer(signal.ITIMER_REAL, seconds)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        yield alarm
    finally:
        alarm(0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # drops a pending signal, which would otherwise end the process
        signal.signal(signal.SIGALRM, before)


# --- the other process


def answer(where: str, options: dict[str, Any]) -> None:
    """Write to, read and verify each session whose name comes in as a line of JSON; print its list of problems."""
    with Memory.open(where, **options) as memory:
        _say("ready")
        for line in sys.stdin:
            session = memory.session(json.loads(line))
            session.add_user_message("of another process")
            problems = list(session.verify().problems)
            last = session.entries()[-1].text
            _say(problems if last == "of another process" else [last])


def _say(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    answer(sys.argv[2], json.loads(sys.argv[3]))
