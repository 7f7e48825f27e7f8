"""Reading, checking or importing a long log holds one page of it at a time, and the result."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from backend_reads import watched
from palimpsest import Memory, Session
from palimpsest.stores.engine.counting import MANY
from worlds import STORES
from writer import quarters

LONG = 6_000
MEBIBYTE = 1 << 20


def opened(kind: str, folder: Path) -> Memory:
    """Open an empty store of a kind."""
    addresses: dict[str, Any] = {"memory": "memory://", "file": f"file://{folder}/logs"}
    return Memory.open(
        addresses.get(kind, folder / "log.db"), **({} if kind == "memory" else {"synchronous": "NORMAL"})
    )


def fill(session: Session, entries: int, size: int) -> None:
    """Add entries of so many characters, some of them calls with results."""
    for first in range(0, entries, 500):
        session.add(
            [{"role": ("user", "assistant")[i % 2], "content": f"{first + i} " + "x" * size} for i in range(500)]
        )


@contextmanager
def traced() -> Iterator[Callable[[], tuple[int, int]]]:
    """Trace allocations: the bytes held now, and their peak."""
    tracemalloc.start()
    try:
        yield tracemalloc.get_traced_memory
    finally:
        tracemalloc.stop()


@pytest.mark.sampled
@pytest.mark.parametrize("kind", STORES)
def test_a_pass_over_a_long_log_reads_pages(kind: str, tmp_path: Path) -> None:
    """Every verb that goes through a log reads at most one page of rows at once."""
    with opened(kind, tmp_path) as memory:
        session = memory.session("s", max_tokens=2_000, counter=quarters)
        fill(session, LONG, 1)
        verbs: dict[str, Callable[[], Any]] = {
            "count": session.count,
            "stats": session.stats,
            "verify": session.verify,
            "entries": session.entries,
            "interactions": session.interactions,
        }
        session.context()
        most: dict[str, int] = {}
        for name, verb in verbs.items():
            with watched(memory) as reads:
                assert verb() is not None
            most[name] = reads.most
        with watched(memory) as reads:
            page = session.entries(after=LONG // 2, limit=20)

    assert max(most.values()) <= MANY < LONG, most
    assert ([entry.seq for entry in page], reads.rows) == ([*range(LONG // 2 + 1, LONG // 2 + 21)], 20)


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_reading_all_entries_takes_only_their_own_memory(kind: str, tmp_path: Path) -> None:
    """Returning all entries or interactions allocates little beside the result."""
    with opened(kind, tmp_path) as memory:
        session = memory.session("s", counter=quarters)
        fill(session, 3_000, 3_000)
        for verb in (session.entries, session.interactions):
            with traced() as allocated:
                found = verb()
                there, most = allocated()

            assert found
            assert there > 8 * MEBIBYTE
            assert most < there + 6 * MEBIBYTE, f"{verb.__name__}: {most} bytes for {there}"
            del found


def test_entries_that_are_read_by_pages_are_those_of_one_log(tmp_path: Path) -> None:
    """Entries that are read in pages are complete and in order, from any place, without rewound ones."""
    with opened("sqlite", tmp_path) as memory:
        session = memory.session("s", counter=quarters)
        fill(session, 2_000, 1)
        revision = session.stats().revision
        fill(session, 500, 1)
        session.rewind(revision)
        fill(session, 500, 1)

        shown = [*range(1, 2_001), *range(2_501, 3_001)]
        assert [entry.seq for entry in session.entries()] == shown
        assert [entry.seq for entry in session.entries(rewound=True)] == [*range(1, 3_001)]
        assert [entry.seq for entry in session.entries(after=700, limit=1_400)] == shown[700:2_100]
        assert [entry.seq for entry in session.entries(at=revision)] == shown[:2_000]


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_an_import_holds_a_piece_of_what_it_stores(kind: str, tmp_path: Path) -> None:
    """Beside the export itself, an import needs far less memory than the texts it stores."""
    entries, size = 4_000, 16_000
    with opened("memory", tmp_path) as memory:
        session = memory.session("s", counter=quarters)
        fill(session, entries, size)
        data = session.export()

    with opened(kind, tmp_path) as memory:
        memory.session("other").add_user_message("what is loaded once")
        with traced() as allocated:
            name = memory.import_session(data)
            _, most = allocated()
        assert memory.session(name, counter=quarters).stats().total_entries == entries

    assert most < entries * size // 2, f"{most} bytes"


@pytest.mark.wide
@pytest.mark.sampled
@pytest.mark.parametrize("shape", ["messages", "langchain", "pydantic-ai"])
def test_an_import_of_an_object_with_messages_holds_a_piece_of_it(shape: str, tmp_path: Path) -> None:
    """Messages inside one JSON object are imported one by one, whatever other keys it has."""
    made: dict[str, Callable[[int, str], dict[str, Any]]] = {
        "messages": lambda i, text: {"role": ("user", "assistant")[i % 2], "content": text},
        "langchain": lambda i, text: {"type": ("human", "ai")[i % 2], "data": {"content": text}},
        "pydantic-ai": lambda _, text: {"kind": "response", "parts": [{"part_kind": "text", "content": text}]},
    }
    path = tmp_path / "talk.json"
    said = [made[shape](i, f"{i} " + "x" * 6_000) for i in range(3_000)]
    path.write_text(json.dumps({"model": "m", "messages": said, "id": "talk", "system": "Be brief."}))
    del said

    with opened("sqlite", tmp_path) as memory:
        memory.session("other").add_user_message("what is loaded once")
        with traced() as allocated:
            report = memory.import_file(path, source=shape)
            _, most = allocated()

    assert report.sessions["talk"].added == 3_001
    assert path.stat().st_size > 17 * MEBIBYTE
    assert most < 12 * MEBIBYTE, f"{most} bytes"


@pytest.mark.wide
def test_an_import_of_one_value_holds_its_bytes_and_the_value(tmp_path: Path) -> None:
    """A conversation that is needed whole is read whole, yet its text is not there once more beside its bytes."""
    with opened("memory", tmp_path) as memory:
        session = memory.session("s", counter=quarters)
        fill(session, 3_000, 3_000)
        path = tmp_path / "talk.json"
        path.write_text(json.dumps(session.export()))

    with opened("sqlite", tmp_path) as memory:
        memory.session("other").add_user_message("what is loaded once")
        with traced() as allocated:
            report = memory.import_file(path)
            _, most = allocated()

    assert [one.added for one in report.sessions.values()] == [3_000]
    assert most < 3.4 * path.stat().st_size, f"{most} bytes"
