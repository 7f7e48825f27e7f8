"""Scans beside other writers and killed in the middle lose nothing, and repeating them completes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from marked_sessions import COMPACT, POLICY, Words, everything, left_in, opened, session_of
from palimpsest import Entry, Memory
from palimpsest.log.head import SessionKey
from palimpsest.stores import Store
from palimpsest.strategies import CallableSummarizer
from processes import Process, integrity
from scan_process import EVERYTHING
from sealed import address, bytes_of

pytestmark = pytest.mark.wide

SCRIPT = Path(__file__).with_name("scan_process.py")
KEY = SessionKey("default", "one")


class Hooked:
    """A store that runs something at the beginning of a verb, but not while that runs."""

    def __init__(self, store: Store) -> None:
        self._verbs: dict[str, Any] = {name: getattr(store, name) for name in ("read", "page", "records", "rewrite")}
        for name in self._verbs:
            setattr(store, name, partial(self._called, name))
        self.hooks: dict[str, list[Callable[[], object]]] = {}
        self._inside = False

    def _at(self, verb: str) -> None:
        waiting = self.hooks.get(verb)
        if waiting and not self._inside:
            self._inside = True
            waiting.pop(0)()
            self._inside = False

    async def _called(self, name: str, *arguments: Any, **options: Any) -> Any:
        self._at(name)
        return await self._verbs[name](*arguments, **options)


def hooked(memory: Memory) -> Hooked:
    """Return the hooks of the memory's store."""
    if "hooked" not in vars(memory.store):
        vars(memory.store)["hooked"] = Hooked(memory.store)
    found: Hooked = vars(memory.store)["hooked"]
    return found


# --- beside others, step by step


def test_entries_added_during_a_scan_are_scanned() -> None:
    """Entries added during a scan are scanned, too, until there are no new ones."""
    with Memory.open("memory://") as memory:
        session = session_of(memory)
        session.add_user_message("zq100secret")
        hooked(memory).hooks["records"] = [lambda: session.add_user_message("zq101secret more")] * 3

        done = memory.scan(POLICY, apply=True)

        assert [entry.text for entry in session.entries()] == ["[REDACTED]", *["[REDACTED] more"] * 3]
        assert done.entries == 4


def test_sessions_created_during_a_scan_are_scanned() -> None:
    """Sessions and branches that others make are looked at, too."""
    with Memory.open("memory://") as memory:
        session = session_of(memory)
        session.add_user_message("zq100secret")
        hooked(memory).hooks["records"] = [lambda: session.fork("a-branch")]

        assert memory.scan(POLICY, apply=True).sessions == 2

        assert session_of(memory, "a-branch").entry(1).text == "[REDACTED]"


@pytest.mark.parametrize("verb", ["records", "rewrite"])
def test_a_scan_starts_over_after_anothers_epoch(verb: str) -> None:
    """After another's erasure or compaction a scan looks at everything again and undoes nothing."""
    with Memory.open("memory://") as memory:
        session = session_of(memory, summarizer=CallableSummarizer(lambda _: "It was zq103secret.", checked=False))
        for number in range(6):
            session.add_user_message(f"zq{number + 100}secret " + "words " * 60)
            session.add_assistant_message("words " * 60)
        compaction = {"strategy": "summarizer", "interaction_keep": 1, "cod_max_loops": 0, "summary_floor": 10}
        hooked(memory).hooks[verb] = [lambda: session.compact(compaction), lambda: session.erase([1])]

        memory.scan(POLICY, apply=True)

        assert left_in(everything(memory)) == []
        assert session.entry(1).erased
        assert session.verify().problems == ()
        assert session.verify().versions >= 1


@pytest.mark.parametrize("verb", ["records", "rewrite"])
def test_a_scan_does_not_recreate_a_session_deleted_meanwhile(verb: str) -> None:
    """A scan does not recreate a session that is deleted meanwhile."""
    with Memory.open("memory://") as memory:
        session_of(memory).add_user_message("zq100secret")
        hooked(memory).hooks[verb] = [lambda: memory.delete_session("one")]

        memory.scan(POLICY, apply=True)

        assert memory.sessions() == []


@pytest.mark.parametrize("verb", ["records", "rewrite"])
def test_a_session_replaced_during_a_scan_is_scanned_from_its_start(verb: str) -> None:
    """A session that is replaced during a scan is scanned from its first entry."""
    with Memory.open("memory://") as memory:
        session_of(memory, "other").add_entries([Entry(content=f"zq10{i}secret other") for i in range(3)])
        export = session_of(memory, "other").export()
        session_of(memory).add_user_message("zq100secret")
        put = memory.import_session
        hooked(memory).hooks[verb] = [lambda: put(export, session_id="one", on_conflict="replace")]

        memory.scan(POLICY, session="one", apply=True)

        assert [entry.text for entry in session_of(memory).entries()] == ["[REDACTED] other"] * 3


@pytest.mark.parametrize("at", [1, 2])
def test_no_context_mixes_texts_from_before_and_after_a_redaction(at: int) -> None:
    """A context that was begun before a redaction and read after it is of one epoch, and of that alone."""
    with Memory.open("memory://") as memory:
        session = session_of(memory)
        session.add_entries([Entry(content=f"zq100secret {i}") for i in range(400)])  # read in two chunks
        hooks = [lambda: None] * (at - 1) + [lambda: memory.scan(POLICY, apply=True)]
        hooked(memory).hooks["page"] = hooks

        context = session.context()

        head = drive_head(memory)
        assert context.epoch == head.epoch
        assert [message["content"] for message in context.messages] == [f"[REDACTED] {i}" for i in range(400)]


def test_a_context_overtaken_at_every_read_has_no_epoch() -> None:
    """If a new epoch begins at every read, a context is given without an epoch."""
    with Memory.open("memory://") as memory:
        session = session_of(memory)
        session.add_user_message(" ".join(f"word{number}." for number in range(8)))
        rules = [{"redact_patterns": [rf"word{number}\."]} for number in range(8)]
        hooked(memory).hooks["page"] = [partial(memory.scan, rule, apply=True) for rule in rules]

        context = session.context()

        assert context.epoch is None
        assert "belongs to no epoch" in context.report.notes[-1]
        hooked(memory).hooks.clear()
        assert session.context().epoch == drive_head(memory).epoch


def drive_head(memory: Memory) -> Any:
    """Return the head of the test's session."""
    from palimpsest.runtime.runner import drive

    return drive(memory.store.head(KEY))


# --- killed


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_scan_killed_at_any_step_is_completed_by_repeating_it(kind: str, every: int, tmp_path: Path) -> None:
    """Whenever the process is killed, the sessions are whole, and the next scan leaves what an undisturbed one does."""
    pristine = tmp_path / "pristine"
    word = Words()
    with opened(kind, pristine, large_bytes=64) as memory:
        session = session_of(
            memory, summarizer=CallableSummarizer(lambda _: f"It was about {word.used[0]}.", checked=False)
        )
        for _ in range(2):
            session.add_user_message(f"{word()} " + "words to be summarised " * 8)
            session.add_assistant_message("words " * 8)
        session.compact(COMPACT)
        session.add_context(word() * 10, name=word())
        session.context()
        session.fork("branch").add_user_message(word())
        session.add_user_message(word(), metadata={"type": "health"})
        session.add_assistant_message("so it is")
    name = address(kind, pristine).rpartition("/")[2]

    runs = Process("die", pristine, name, every, script=SCRIPT).end()

    assert [run["killed"] for run in runs] == [True] * (len(runs) - 1) + [False]
    assert len(runs) > 20 // every
    finished: set[str] = set()
    for run in runs:
        folder = Path(run["folder"])
        with opened(kind, folder, large_bytes=64) as memory:
            for one in memory.sessions():
                assert session_of(memory, one.session).verify().problems == ()
            memory.scan(EVERYTHING, apply=True)
            assert left_in(everything(memory)) == []
            assert memory.scan(EVERYTHING).findings == {}
            finished.add(repr([_texts(memory, one.session) for one in memory.sessions()]))
        stored = bytes_of(folder)
        assert [marker for marker in word.used if marker.encode() in stored] == []
        assert integrity(folder / name if kind == "sqlite" else f"file://{folder}/{name}") == "ok"
    assert len(finished) == 1


def _texts(memory: Memory, name: str) -> list[Any]:
    session = session_of(memory, name)
    said = [(entry.id, entry.content, entry.name, entry.metadata) for entry in session.entries(rewound=True)]
    return [*said, *(made.text for made in session.summaries(history=True))]


# --- beside other processes


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_writers_and_redactors_work_at_once_without_loss(kind: str, tmp_path: Path) -> None:
    """While two processes append and two others redact, nothing is lost and no context mixes texts."""
    where, number = address(kind, tmp_path), 60
    with opened(kind, tmp_path) as memory:
        session_of(memory).add_user_message("zq100secret first")
        session_of(memory).fork("branch")
    writers = [Process("write", where, number, script=SCRIPT) for _ in range(2)]
    redactors = [Process("scan", where, script=SCRIPT) for _ in range(2)]
    for process in (*writers, *redactors):
        assert process.hear() == "ready"
    for process in (*writers, *redactors):
        process.tell()
    for process in writers:
        process.end()
    for process in redactors:
        process.tell("end")
    redacted = sum(process.end()[-1] for process in redactors)

    with opened(kind, tmp_path) as memory:
        memory.scan(POLICY, apply=True)

        session = session_of(memory)
        texts = sorted(entry.text for entry in session.entries())
        assert texts == sorted(["[REDACTED] first", *(f"[REDACTED] {i}" for i in range(number) for _ in range(2))])
        assert session.verify().problems == ()
        assert redacted > 0
    assert b"zq100secret" not in bytes_of(tmp_path)
