"""`palimpsest search` and `palimpsest index`, and the index verbs of a memory."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import subprocess
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from commands import START, read, run, start
from palimpsest import ConfigError, Memory
from palimpsest.testing import FakeClock
from writer import quarters

WORDLLAMA = pytest.mark.skipif(find_spec("wordllama") is None, reason="the extra vectors is not installed")
LONG = "Nothing of note was said here. " * 40


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a store of two sessions, at the address that the command line uses by default."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PALIMPSEST_STORE", raising=False)
    clock = FakeClock()
    with Memory.open("sqlite:///palimpsest.db", clock=clock) as memory:
        trip = memory.session("trip", user="ann", counter=quarters)
        trip.add_user_message("I fly to Oslo in May.", name="ann")
        trip.add_assistant_message(f"{LONG}The harbour of Oslo is lovely. {LONG}")
        trip.add_tool_call("weather", {"city": "Oslo"}, call_id="c1")
        trip.add_tool_result("weather", "Rain in Oslo.", call_id="c1")
        memory.session("work", user="bob", counter=quarters).add_user_message("The Oslo invoice is 4417-B.")
    return tmp_path


def hits(*arguments: str) -> list[tuple[str, int]]:
    """Run a search and return session and number of each entry found, best first."""
    return [(one["session"], one["seq"]) for one in read("search", *arguments)["passages"]]


def test_a_search_covers_all_sessions_best_first(here: Path) -> None:
    """A search covers all sessions and prints the best passage first, with score, session, number, speaker and time."""
    result = run("search", "where does Ann fly")

    assert result.exit_code == 0
    title, text, *_ = result.stdout.splitlines()
    assert title.startswith("1.00  trip  1  user (ann)  20")
    assert text == "      I fly to Oslo in May."


def test_json_has_the_whole_passage(here: Path) -> None:
    """With `--json` a passage has its text, its place in the entry, and the places of the words that matched."""
    found = read("search", "harbour")

    passage = found["passages"][0]
    first, last = passage["matched"][0]
    assert passage["text"][first:last] == "harbour"
    with Memory.open("sqlite:///palimpsest.db", readonly=True) as memory:
        whole = memory.session("trip").entry(2).text
    assert whole[passage["start"] : passage["end"]] == passage["text"]
    assert passage["id"]
    assert passage["score"] == 1.0
    assert (found["found"], found["left_out"]) == (len(found["passages"]), 0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), {("trip", 1), ("trip", 2), ("trip", 3), ("trip", 4), ("work", 1)}),
        (("--session", "work"), {("work", 1)}),
        (("--session", "wo", "--session", "trip", "--role", "user"), {("trip", 1), ("work", 1)}),
        (("--user", "ann", "--kind", "message"), {("trip", 1), ("trip", 2)}),
        (("--kind", "tool_call", "--kind", "tool_result"), {("trip", 3), ("trip", 4)}),
        (("--name", "weather"), {("trip", 3), ("trip", 4)}),
        (("--until", "2001-01-01"), set()),
        (("--since", "2001-01-01", "--role", "assistant", "--kind", "message"), {("trip", 2)}),
    ],
    ids=["all", "session", "two sessions", "user", "kinds", "name", "until", "since"],
)
def test_filters_select_the_entries_searched(
    here: Path, options: tuple[str, ...], expected: set[tuple[str, int]]
) -> None:
    """Each filter of `search` narrows the entries searched; repeating one widens it to either value."""
    assert set(hits("Oslo", *options)) == expected


def test_limit_and_tokens_bound_the_output(here: Path) -> None:
    """`--limit` bounds the number of passages and `--tokens` their cost; how many had no room is printed."""
    assert len(hits("Oslo", "--limit", "2")) == 2

    result = run("search", "Oslo", "--tokens", "60")

    assert "more passages had no room in 60 tokens" in result.stderr
    assert 0 < result.stdout.count("\n") / 2 < 5
    assert read("search", "Oslo", "--tokens", "60")["tokens"] <= 60

    none = run("search", "Oslo", "--tokens", "3")

    assert "passages had no room in 3 tokens" in none.stderr
    assert "Nothing was found" not in none.stderr


def test_a_long_passage_is_shortened_around_the_match(here: Path) -> None:
    """A long passage is shortened around the words that matched; `--full` prints all of it."""
    shown = run("search", "harbour").stdout.splitlines()[1].strip()
    full = run("search", "harbour", "--full").stdout.splitlines()[1].strip()

    assert "harbour" in shown
    assert (shown[:2], shown[-2:]) == ("… ", " …")
    assert len(shown) < 350 < len(full)


@pytest.mark.wide
def test_matches_are_bold_on_a_terminal(here: Path) -> None:
    """Matching words are bold on a terminal, and plain text elsewhere."""
    outer, inner = os.openpty()
    with closing(os.fdopen(outer, "rb")) as screen:
        subprocess.run([*START, "search", "harbour"], stdout=inner, env={**os.environ, "TERM": "xterm"}, check=True)
        os.close(inner)
        shown = screen.read1(1 << 16)

    assert b"\x1b[1;33mharbour\x1b[0m" in shown
    assert "\x1b" not in start("search", "harbour").stdout


def test_nothing_found_is_no_error(here: Path) -> None:
    """A search that finds nothing says so and exits with 0; an unknown session exits with 3."""
    nothing = run("search", "zeppelin")
    absent = run("search", "Oslo", "--session", "nobody")

    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", "Nothing was found.\n")
    assert absent.exit_code == 3


@pytest.mark.parametrize("query", ['"', "NEAR(a b)", "a* OR -b", "terms:x", "'; DROP TABLE words_1; --", ".*(", "\\"])
def test_a_query_is_only_text(here: Path, query: str) -> None:
    """Operators of an index, a database or a pattern mean nothing in a query."""
    assert run("search", "--", query).exit_code == 0
    assert hits("harbour")[0] == ("trip", 2)


def test_no_log_or_error_quotes_the_query(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither a log line nor an error quotes the query."""
    caplog.set_level(logging.DEBUG)
    run("search", "zeppelin", "--tokens", "20")
    refused = run("search", "zeppelin " * 2000)

    assert "zeppelin" not in caplog.text
    assert refused.exit_code == 2
    assert "zeppelin" not in refused.stderr


def test_the_index_is_kept_beside_the_store(here: Path) -> None:
    """The first search makes an index file beside the store, which later processes use."""
    assert not Path("palimpsest.db.recall").exists()

    start("search", "Oslo")
    status = read("index", "status")

    assert Path("palimpsest.db.recall").stat().st_size == status["bytes"]
    assert (status["where"], status["is_kept"]) == (str(here / "palimpsest.db.recall"), True)
    assert (status["sessions"], status["entries"], status["behind"]) == (2, 5, 0)


@WORDLLAMA
def test_an_embedder_finds_by_meaning(here: Path) -> None:
    """With `--embedder` a search compares meanings; without it only words count.

    An unknown embedder suggests the nearest name.
    """
    assert hits("bill to pay") == []
    assert ("work", 1) in hits("bill to pay", "--embedder", "wordllama")
    refused = run("search", "bill", "--embedder", "worldlama")
    assert refused.exit_code == 2
    assert "did you mean 'wordllama'" in refused.stderr


# --- the index


def test_index_status_counts_sessions_behind(here: Path) -> None:
    """`index` counts the sessions that the index lacks or has in an older state, and changes nothing."""
    first = run("index")

    assert "behind    2 sessions" in first.stdout
    assert "Nothing is indexed yet" in first.stderr
    assert not Path("palimpsest.db.recall").exists()

    run("search", "Oslo")
    with Memory.open("sqlite:///palimpsest.db") as memory:
        memory.session("trip").add_user_message("And Bergen.")

    assert read("index")["behind"] == 1
    assert read("index")["behind"] == 1


def test_a_rebuilt_index_finds_the_same(here: Path) -> None:
    """`index rebuild` indexes every session, and searches find what they found before."""
    before = hits("Oslo")

    status = read("index", "rebuild")

    assert (status["sessions"], status["entries"], status["behind"], status["stale"]) == (2, 5, 0, 0)
    assert hits("Oslo") == before


@WORDLLAMA
def test_an_index_is_rebuilt_with_vectors_if_an_embedder_is_named(here: Path) -> None:
    """`index rebuild --embedder` stores vectors; a rebuild without it stores none."""
    assert read("index", "rebuild", "--embedder", "wordllama")["entries"] == 5

    with closing(sqlite3.connect(here / "palimpsest.db.recall")) as db:
        vectors, parts = (db.execute(f"SELECT count(*) FROM {name}_1").fetchone() for name in ("vector", "entry"))
        assert vectors >= parts == (5,)
    run("index", "rebuild")
    with closing(sqlite3.connect(here / "palimpsest.db.recall")) as db:
        assert db.execute("SELECT count(*) FROM vector_1").fetchone() == (0,)


def test_each_tenant_has_its_own_index(here: Path) -> None:
    """Status and rebuild of one tenant's index do not touch another tenant's."""
    run("search", "Oslo")

    assert read("index", "rebuild", "--tenant", "acme")["sessions"] == 0
    assert read("index")["sessions"] == 2


def test_an_index_in_memory_is_not_rebuilt(here: Path) -> None:
    """An index that lives in the process's memory is not rebuilt, and the command says so."""
    result = run("index", "rebuild", "--store", "memory://")

    assert "Nothing was rebuilt" in result.stderr
    assert read("index", "rebuild", "--store", "memory://")["is_kept"] is False


def test_a_rebuild_fails_if_the_index_cannot_be_opened(here: Path) -> None:
    """If the index cannot be opened, its rebuild says so and fails, and a search succeeds."""
    index = here / "palimpsest.db.recall"
    index.mkdir()

    result = run("index", "rebuild")

    assert result.exit_code == 5
    assert "nothing was rebuilt" in result.stderr
    assert str(index) in result.stderr
    assert json.loads(run("index", "rebuild", "--json").stderr.splitlines()[-1])["error"] == "StoreUnavailable"
    assert read("search", "Oslo")["found"]


def test_index_status_and_rebuild_of_a_memory(tmp_path: Path) -> None:
    """`Memory.rebuild_index` reports progress in sessions and returns the status; a read-only memory refuses it."""
    address = f"sqlite:///{tmp_path}/a.db"
    progress: list[tuple[int, int]] = []
    with Memory.open(address) as memory:
        for number in range(3):
            memory.session(f"s{number}").add_user_message(f"Number {number}.")
        assert memory.index_status().behind == 3

        status = memory.rebuild_index(progress=lambda done, total: progress.append((done, total)))

        assert progress == [(1, 3), (2, 3), (3, 3)]
        assert (status.sessions, status.entries, status.behind) == (3, 3, 0)
        assert memory.index_status() == status

    with Memory.open(address, readonly=True) as memory:
        assert memory.index_status() == status
        with pytest.raises(ConfigError, match="readonly"):
            memory.rebuild_index()


def test_an_index_at_its_own_path_is_reported_as_kept(tmp_path: Path) -> None:
    """An index at a path of its own is reported as kept, also by a memory that only reads."""
    address, index_path = f"sqlite:///{tmp_path}/a.db", tmp_path / "own.recall"
    with Memory.open(address, recall_index=index_path) as memory:
        memory.session("s").add_user_message("The zeppelin lands.")
        assert memory.recall("zeppelin")
        kept = memory.index_status()

    with Memory.open(address, recall_index=index_path, readonly=True) as memory:
        assert memory.index_status() == kept
    assert (kept.where, kept.is_kept) == (str(index_path), True)


def test_a_rebuild_removes_stale_words(tmp_path: Path) -> None:
    """A rebuild removes what the index still held of erased entries."""
    with Memory.open(f"sqlite:///{tmp_path}/a.db") as memory:
        chat = memory.session("s")
        message = chat.add_user_message("The zeppelin lands.")
        assert memory.recall("zeppelin")
        chat.erase([message.id])
        assert not memory.recall("zeppelin")

        assert memory.rebuild_index().stale == 0
    assert b"zeppelin" not in (tmp_path / "a.db.recall").read_bytes()
