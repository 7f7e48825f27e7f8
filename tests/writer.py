"""A process that tests start, watch and kill: `python writer.py MODE STORE [ARGUMENT ...]`.

STORE is the path of an SQLite file, or the address of any store.

It prints what the library has acknowledged, one JSON value a line, and never prints before the acknowledgement, so a
test that kills the process knows what has to be in the store. A mode that waits for other processes prints "ready"
and goes on when it reads a line.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from palimpsest import Conflict, Memory, PalimpsestError, Session
from palimpsest.errors import Closed, ForkedProcess
from palimpsest.formats import find_format
from palimpsest.stores.sqlite import scrubbing

SESSION = "writer"
NOBODY = 65534
"""The id of the user `nobody`, who has no rights to the files of a test."""
BUDGET = 200
"""The budget of this process's contexts in tokens: small, so that every few turns need a cut."""


def known_to(memory: Memory, turns: int, *, summary: bool = False) -> Session:
    """Return a session of so many turns whose state is completely cached: it was counted and has given two contexts."""
    session = memory.session("s", max_tokens=2000, counter=quarters)
    for begin in range(0, turns, 200):
        session.add([message for number in range(begin, min(begin + 200, turns)) for message in turn(str(number))])
    if summary:
        session.compact({"strategy": "summarizer", "interaction_keep": 2, "cod_max_loops": 0})
    session.count()
    session.context()
    session.context()
    return session


def quarters(text: str) -> int:
    """Count one token for every four characters. It needs no vocabulary, so a process starts quickly."""
    return -(-len(text) // 4)


def turn(label: str) -> list[dict[str, Any]]:
    """Return one turn as chat-completions messages: a question, two parallel calls, two results, an answer."""
    calls = [
        {"id": f"{label}-{side}", "type": "function", "function": {"name": "look", "arguments": f'{{"at": "{label}"}}'}}
        for side in ("left", "right")
    ]
    return [
        {"role": "user", "content": f"question {label}"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": f"{label}-left", "content": f"left {label}"},
        {"role": "tool", "tool_call_id": f"{label}-right", "content": f"right {label}"},
        {"role": "assistant", "content": f"answer {label}"},
    ]


ENTRIES_A_TURN = 6
"""Entries of one turn in the log: the assistant message with two calls becomes two entries."""


def address(path: str) -> str:
    """Return `path` if it is an address already, otherwise the address of the SQLite file."""
    return path if ":" in path else f"sqlite:///{path}"


def labels(path: str) -> itertools.count[int]:
    """Return numbers for the labels of turns that no earlier process has used: they begin behind the end of the log."""
    with Memory.open(address(path)) as memory:
        return itertools.count(sum(info.revision for info in memory.sessions()) + 1)


def say(value: object) -> None:
    """Print one JSON line and flush it at once."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def meet() -> None:
    """Print "ready" and wait for a line from the test."""
    say("ready")
    sys.stdin.readline()


def budgeted(memory: Memory) -> Session:
    """Return the session with a budget that a few turns exceed."""
    return memory.session(SESSION, max_tokens=BUDGET, counter=quarters)


# --- modes that run until the process is killed


def vacuum(path: str) -> None:
    """Add turns, erase a question, and vacuum the store in many small steps. Report each step."""
    scrubbing.SMALL, scrubbing.PIECE = 1 << 16, 1 << 15
    numbers = labels(path)
    with Memory.open(address(path)) as memory:
        for number in numbers:
            questions = [memory.session(SESSION).add(turn(f"{number}.{i}"))[0] for i in range(4)]
            say(["added", number])
            memory.session(SESSION).erase([questions[1].id])
            say(["erased", number])
            memory.vacuum(progress=lambda done, total: say(["step", done, total]))
            say(["vacuumed", number])


def append(path: str) -> None:
    """Add one turn after another; report each when `add` has returned."""
    numbers = labels(path)
    with Memory.open(address(path)) as memory:
        session = memory.session(SESSION)
        for number in numbers:
            session.add(turn(str(number)))
            say(number)


def context(path: str) -> None:
    """Add a turn, make a context and report its revision, epoch and prefix; every few turns a cut is committed."""
    numbers = labels(path)
    with Memory.open(address(path)) as memory:
        session = budgeted(memory)
        for number in numbers:
            session.add(turn(str(number)))
            given = session.context()
            say({"turn": number, "revision": given.revision, "epoch": given.epoch, "hash": given.prefix.hash})


def erase(path: str) -> None:
    """Add a turn and erase its question; clear the session every eighth time. Report each step."""
    numbers = labels(path)
    with Memory.open(address(path)) as memory:
        session = memory.session(SESSION)
        for number in numbers:
            question = session.add(turn(str(number)))[0]
            say(["added", number])
            session.erase([question.id])
            say(["erased", number])
            if number % 8 == 0:
                session.clear()
                say(["cleared", number])


def large(path: str) -> None:
    """Add a text so large that it is stored beside its entry; erase every second one. Report each step."""
    numbers = labels(path)
    with Memory.open(address(path)) as memory:
        session = memory.session(SESSION)
        for number in numbers:
            entry = session.add_user_message(f"large {number} " * 6_000)
            say(["added", number])
            if number % 2:
                session.erase([entry.id])
                say(["erased", number])


def branch(path: str) -> None:
    """Add turns; fork at every fourth and add to the branch; rewind every third. Report each step."""
    numbers = labels(path)
    with Memory.open(address(path)) as memory:
        session = memory.session(SESSION)
        for number in numbers:
            before = session.stats().revision
            session.add(turn(str(number)))
            say(["added", number])
            if number % 4 == 0:
                other = session.fork(f"branch {number}")
                say(["forked", number])
                other.add(turn(f"{number}.b"))
                say(["grown", number])
            if number % 3 == 0:
                session.rewind(before)
                say(["rewound", number])


# --- modes that run beside other processes


def threads(path: str, name: str, count: str, turns: str) -> None:
    """Add turns from several threads at once."""
    with Memory.open(address(path)) as memory:
        spoken = threading.Lock()

        def work(thread: int) -> None:
            session = memory.session(SESSION)
            for number in range(int(turns)):
                label = f"{name}.{thread}.{number}"
                session.add(turn(label))
                with spoken:
                    say(label)

        meet()
        workers = [threading.Thread(target=work, args=(thread,)) for thread in range(int(count))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


def facts(path: str, name: str, count: str, times: str) -> None:
    """Count up a shared fact, overwrite another, and set an own fact, from several threads at once."""
    with Memory.open(address(path)) as memory:

        def work(thread: int) -> None:
            working = memory.working(SESSION)
            for number in range(int(times)):
                while True:
                    fact = working.fact("count")
                    before, version = (fact.value, fact.version) if fact is not None else (0, 0)
                    try:
                        working.set("count", before + 1, version=version)
                        break
                    except Conflict:
                        continue
                working.set("last", f"{name}.{thread}.{number}")
                working.set(f"{name}.{thread}.{number}", number)
                say(f"{name}.{thread}.{number}")

        meet()
        workers = [threading.Thread(target=work, args=(thread,)) for thread in range(int(count))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


def first(path: str, name: str) -> None:
    """Open a file that may not exist yet and add one turn."""
    meet()
    with Memory.open(address(path)) as memory:
        memory.session(SESSION).add(turn(name))
        say(name)


def contexts(path: str) -> None:
    """Make a context whenever a line comes in and report it."""
    with Memory.open(address(path)) as memory:
        session = budgeted(memory)
        say("ready")
        while sys.stdin.readline().strip():
            given = session.context()
            problems = [*given.problems, *map(str, find_format("openai").validate(given.messages))]
            say({"epoch": given.epoch, "tokens": given.tokens, "problems": problems, "notes": given.report.notes})


def turns(path: str, name: str, count: str) -> None:
    """Hold `turn()` several times, and add an entry at the beginning and at the end of each."""
    with Memory.open(address(path)) as memory:
        session = memory.session(SESSION)
        meet()
        for _ in range(int(count)):
            with session.turn():
                session.add_user_message(f"begin {name}")
                session.add_assistant_message(f"end {name}")
        say("done")


def hold(path: str) -> None:
    """Hold `turn()` until a line comes in."""
    with Memory.open(address(path)) as memory:
        session = memory.session(SESSION)
        with session.turn():
            session.add_user_message("begin held")
            meet()
            session.add_assistant_message("end held")
        say("done")


def keyed(path: str, count: str) -> None:
    """Add batches under keys that another process uses as well; report the ids that `add` returned."""
    with Memory.open(address(path)) as memory:
        session = memory.session(SESSION)
        meet()
        for number in range(int(count)):
            say([entry.id for entry in session.add(turn(str(number)), key=f"key {number}")])


def fork(path: str) -> None:
    """Fork with an open memory: the child reports what each attempt raises, and the parent goes on."""
    with Memory.open(address(path)) as memory:
        session = memory.session(SESSION)
        session.add_user_message("before the fork")
        child = os.fork()
        if child == 0:
            for attempt in (lambda: session.add_user_message("child"), session.entries, session.context):
                say(raised(attempt))
            memory.close()
            say(raised(session.entries))
            os._exit(0)
        os.waitpid(child, 0)
        session.add_user_message("after the fork")
        say([entry.text for entry in session.entries()])


def raised(attempt: Callable[[], object]) -> str | None:
    """Return the name of the error that `attempt` raises, or None if it raises none."""
    try:
        attempt()
    except (ForkedProcess, Closed) as error:
        return type(error).__name__
    return None


# --- modes in which the disk or the permissions are missing


def limited(path: str) -> None:
    """Write until the file may not grow further, then lift the limit and write again."""
    import resource

    with Memory.open(address(path)) as memory:
        session = memory.session(SESSION)
        session.add(turn("before"))
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, hard))
        try:
            while True:
                session.add_user_message("x" * 50_000)
        except PalimpsestError as error:
            say([type(error).__name__, str(error)])
        full = [entry.text for entry in session.entries()]
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        session.add_user_message("after")
        say(full == [entry.text for entry in session.entries()][:-1])


def attempt(path: str, readonly: str) -> None:
    """Open, read and write as a user without rights; report what each step returned or raised."""
    scheme = address(path).partition(":")[0]
    # Import everything now: the user `nobody` may not read the library's files.
    with tempfile.TemporaryDirectory() as folder:
        with Memory.open(f"{scheme}:///{folder}/warm") as memory:
            memory.session(SESSION).add(turn("warm"))
        with Memory.open(f"{scheme}:///{folder}/warm", readonly=True) as memory:
            memory.session(SESSION).entries()
    outcome: dict[str, Any] = {}
    try:
        become_nobody()
        with Memory.open(address(path), readonly=readonly == "readonly") as memory:
            session = memory.session(SESSION)
            outcome["read"] = [entry.text for entry in session.entries()]
            session.add_user_message("may I?")
            outcome["written"] = True
    except (PalimpsestError, PermissionError) as error:
        outcome["error"], outcome["text"] = type(error).__name__, str(error)
    say(outcome)


def become_nobody() -> None:
    """Become the user `nobody`, since root may do everything."""
    if sys.platform != "win32" and os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


MODES: dict[str, Callable[..., None]] = {
    mode.__name__: mode
    for mode in (
        append,
        context,
        erase,
        branch,
        large,
        threads,
        facts,
        first,
        contexts,
        turns,
        hold,
        keyed,
        fork,
        limited,
        attempt,
        vacuum,
    )
}

if __name__ == "__main__":
    MODES[sys.argv[1]](*sys.argv[2:])
