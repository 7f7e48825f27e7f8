"""Interrupting a verb at every moment at which CPython could run a signal handler, and seeing what it leaves behind.

`Points` counts them by a trace function: where a function is entered or goes on (RESUME), where a loop begins again,
and after each call. `Verb` is something that a memory does; `Site` is a store in which it is done, beside another
memory of this process and one of another process. Run as a program it is that other process.
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
"""Seconds that anybody waits for a lock: whatever was left locked fails a test after that."""

NEVER = sys.maxsize

_CALLS = {opcode for name, opcode in dis.opmap.items() if name.startswith("CALL")}
_BACK = {opcode for name, opcode in dis.opmap.items() if name.startswith("JUMP_BACKWARD")}
_IMPORTS = "<frozen importlib"


class Interruption(KeyboardInterrupt):
    """What a signal handler raises."""


class Points:
    """Counts the moments at which a signal handler could run in this thread, and raises at one of them."""

    def __init__(self, at: int) -> None:
        self._at, self.passed = at, 0
        self._codes: dict[CodeType, tuple[bytes, list[int]]] = {}

    def __enter__(self) -> Self:
        self._collects = gc.isenabled()
        gc.disable()  # whoever is called when that runs, such as what watches tests, has moments of his own
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
        code = frame.f_code
        if code.co_filename.startswith(_IMPORTS) or code is Points.__exit__.__code__ or _in_del(frame):
            return None
        if code not in self._codes:
            self._codes[code] = code.co_code, _handlers(code)
        raw, handlers = self._codes[code]
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        before = -1

        def step(frame: FrameType, event: str, _: object) -> Any:
            nonlocal before
            if event == "opcode":
                last, before = before, frame.f_lasti
                called = last >= 0 and raw[last] in _CALLS and handlers[last] == handlers[before]
                if called or raw[before] in _BACK:
                    self._point()
            return step

        self._point()
        return step


def _handlers(code: CodeType) -> list[int]:
    """Where an exception goes, by the place in the code where it is raised.

    CPython raises at the call, the trace function behind it. Where those two differ, as at the end of a `with` block,
    it would raise where no signal handler can.
    """
    places = [-1] * (len(code.co_code) + 2)
    for entry in dis._parse_exception_table(code):  # type: ignore[attr-defined]
        for at in range(entry.start, min(entry.end, len(places))):
            places[at] = entry.target
    return places


def _in_del(frame: FrameType | None) -> bool:
    """Whether this is, or was called by, a `__del__`: what a handler raises there ends nothing but that."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back if "palimpsest" in frame.f_code.co_filename else None
    return frame is not None


def points(act: Callable[[], object]) -> int:
    """How many moments there are until it is done."""
    with Points(NEVER) as counted:
        act()
    return counted.passed


def interrupted(act: Callable[[], object], at: int) -> Interruption | None:
    """Do it, interrupted at this moment; return what it raised, which keeps every frame that it left alive."""
    try:
        with Points(at):
            act()
    except Interruption as raised:
        return raised
    return None


# --- what is done


class Verb(NamedTuple):
    """What is done to a session that `begin` has made. With `whole`, it is there wholly or not at all afterwards."""

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
"""What is interrupted, by name."""


class Site:
    """A store with a memory of this process that is interrupted, and others beside it."""

    def __init__(self, where: str, options: dict[str, Any]) -> None:
        self.where, self._options, self.clock = where, options, FakeClock()
        self.memory: Memory = self.another()
        self.beside: Memory = self.another() if where.startswith(("file:", "sqlite:")) else self.memory
        self.kept: dict[str, Any] = {}
        self.names = (f"s{number}" for number in itertools.count())

    def another(self) -> Memory:
        """Another memory of the same store."""
        return Memory.open(self.where, clock=self.clock, **self._options)

    def session(self, name: str) -> Session:
        """The session of this name, with a small budget."""
        return self.memory.session(name, max_tokens=200, counter=quarters)

    def close(self) -> None:
        """Close what is open."""
        self.beside.close()
        self.memory.close()

    def state(self, name: str) -> Any:
        """What is stored under this name, without what differs from run to run."""
        memory, there = self.beside, []
        for one in memory.sessions(after=name[:-1], limit=100_000):
            if one.session != name and not one.session.startswith(f"{name} "):
                continue
            session = memory.session(one.session)
            texts = [(entry.text, entry.erased, entry.pinned) for entry in session.entries(rewound=True)]
            head = drive(memory.store.head(session.options.key))
            assert head is not None
            records = [record.kind for record in session.history()]
            marks = (head.pinned, head.rewound, head.first_seq, head.usage is not None)
            there.append((one.session.removeprefix(name), texts, marks, records))
        items = [(item.key, item.value) for item in drive(memory.store.list_items("default", name))]
        return there, items


def left_sound(site: Site, name: str) -> None:
    """Check that everybody can read and write a session at once, and that all in it holds together."""
    for number, memory in enumerate(
        (site.beside, site.memory)
    ):  # first who was not there: it makes the other's state old
        session = memory.session(name)
        before = [entry.text for entry in session.entries()]
        session.add_user_message(f"after {number}")
        assert [entry.text for entry in session.entries()] == [*before, f"after {number}"]
        assert session.verify().problems == ()
        drive(memory.store.put_item("default", f"{name} after", "key", b"value"))


def try_at(site: Site, verb: Verb, at: int, states: tuple[Any, Any] | None) -> None:
    """Do the verb, interrupted at this moment, and check what it left."""
    name = next(site.names)
    verb.begin(site, name)
    files = open_files()

    raised = interrupted(lambda: verb.act(site, name), at)

    if verb.whole and states is not None:
        now = site.state(name)
        assert now in states if raised else now == states[1], f"left by an interruption at {at}"
    left_sound(site, name)
    raised = None
    if open_files() > files:
        gc.collect()
    if open_files() > files:
        # SQLite keeps a file that it may not close while another connection has locks on it, and opens that next: so
        # a few are left for good, and however often this happens, they become no more.
        counts = [_left_open(site, verb, name, at) for _ in range(2)]
        assert counts[0] == counts[1], f"files are left open by an interruption at {at}"


def _left_open(site: Site, verb: Verb, name: str, at: int) -> int:
    """How many files are open when the verb was interrupted at this moment a few times more."""
    for _ in range(4):
        interrupted(lambda: verb.act(site, name), at)
    gc.collect()
    return open_files()


def states_of(site: Site, verb: Verb) -> tuple[Any, Any]:
    """What is stored before and after a verb that nobody interrupts."""
    name = next(site.names)
    verb.begin(site, name)
    before = site.state(name)
    verb.act(site, name)
    return before, site.state(name)


def moments(site: Site, verb: Verb) -> int:
    """How many moments there are until the verb is done."""
    name = next(site.names)
    verb.begin(site, name)
    return points(lambda: verb.act(site, name))


def open_files() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


# --- real signals


@contextlib.contextmanager
def alarms() -> Iterator[Callable[[float], None]]:
    """Give a function that has a signal come after so many seconds, whose handler raises Interruption; 0: none.

    One that is on its way by then may still be given to another thread: it does nothing any more.
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
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # drops it, lest it ends the process
        signal.signal(signal.SIGALRM, before)


# --- the other process


def answer(where: str, options: dict[str, Any]) -> None:
    """Write to, read and verify the sessions whose names come in; say what is wrong."""
    with Memory.open(where, **options) as memory:
        _say("ready")
        for line in sys.stdin:
            session = memory.session(json.loads(line))
            session.add_user_message("of another process")
            problems = list(session.verify().problems)
            last = session.entries()[-1].text
            _say(problems if last == "of another process" else [last])


def _say(what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    answer(sys.argv[2], json.loads(sys.argv[3]))
