"""`palimpsest search` and `palimpsest index`."""

from __future__ import annotations

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
    """A folder with a store of two sessions, as the command line finds it."""
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
    """Where what a search has found is."""
    return [(one["session"], one["seq"]) for one in read("search", *arguments)["passages"]]


def test_a_search_goes_through_all_sessions_and_says_where_and_how_well(here: Path) -> None:
    """Each passage has its score, session, number, who said it and when; the best one comes first."""
    result = run("search", "where does Ann fly")

    assert result.exit_code == 0
    title, text, *_ = result.stdout.splitlines()
    assert title.startswith("1.00  trip  1  user (ann)  20")
    assert text == "      I fly to Oslo in May."


def test_json_has_the_whole_of_each_passage(here: Path) -> None:
    """With --json a passage has its text, which characters of the entry that is, and which of it were asked for."""
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
def test_options_say_which_entries_may_answer(
    here: Path, options: tuple[str, ...], expected: set[tuple[str, int]]
) -> None:
    """Each filter takes away what it does not mean; one that is given again means either."""
    assert set(hits("Oslo", *options)) == expected


def test_limit_and_tokens_bound_what_is_printed(here: Path) -> None:
    """--limit is a number of passages, --tokens what all of them may cost; how many had no room is told."""
    assert len(hits("Oslo", "--limit", "2")) == 2

    result = run("search", "Oslo", "--tokens", "60")

    assert "more passages had no room in 60 tokens" in result.stderr
    assert 0 < result.stdout.count("\n") / 2 < 5
    assert read("search", "Oslo", "--tokens", "60")["tokens"] <= 60

    none = run("search", "Oslo", "--tokens", "3")

    assert "passages had no room in 3 tokens" in none.stderr
    assert "Nothing was found" not in none.stderr


def test_a_long_passage_is_shown_around_what_was_asked_for(here: Path) -> None:
    """What stands around the words is shown, with dots for the rest; --full shows the whole passage."""
    shown = run("search", "harbour").stdout.splitlines()[1].strip()
    full = run("search", "harbour", "--full").stdout.splitlines()[1].strip()

    assert "harbour" in shown
    assert (shown[:2], shown[-2:]) == ("… ", " …")
    assert len(shown) < 350 < len(full)


@pytest.mark.wide
def test_words_that_were_asked_for_stand_out_on_a_terminal(here: Path) -> None:
    """On a terminal they are in bold; elsewhere there is the text alone."""
    outer, inner = os.openpty()
    with closing(os.fdopen(outer, "rb")) as screen:
        subprocess.run([*START, "search", "harbour"], stdout=inner, env={**os.environ, "TERM": "xterm"}, check=True)
        os.close(inner)
        shown = screen.read1(1 << 16)

    assert b"\x1b[1;33mharbour\x1b[0m" in shown
    assert "\x1b" not in start("search", "harbour").stdout


def test_nothing_found_is_no_error(here: Path) -> None:
    """A search without a hit says so on standard error, and a session that is not there is one."""
    nothing = run("search", "zeppelin")
    absent = run("search", "Oslo", "--session", "nobody")

    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", "Nothing was found.\n")
    assert absent.exit_code == 3


@pytest.mark.parametrize("query", ['"', "NEAR(a b)", "a* OR -b", "terms:x", "'; DROP TABLE words_1; --", ".*(", "\\"])
def test_a_query_is_text_and_nothing_else(here: Path, query: str) -> None:
    """What would mean something to an index, a database or a pattern means nothing here."""
    assert run("search", "--", query).exit_code == 0
    assert hits("harbour")[0] == ("trip", 2)


def test_no_log_has_a_query(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither a log nor an error quotes what somebody looked for."""
    caplog.set_level(logging.DEBUG)
    run("search", "zeppelin", "--tokens", "20")
    refused = run("search", "zeppelin " * 2000)

    assert "zeppelin" not in caplog.text
    assert refused.exit_code == 2
    assert "zeppelin" not in refused.stderr


def test_a_search_keeps_the_index_it_has_made(here: Path) -> None:
    """The first search makes a file beside the store, so the next one, of any process, finds it."""
    assert not Path("palimpsest.db.recall").exists()

    start("search", "Oslo")
    status = read("index", "status")

    assert Path("palimpsest.db.recall").stat().st_size == status["bytes"]
    assert (status["where"], status["is_kept"]) == (str(here / "palimpsest.db.recall"), True)
    assert (status["sessions"], status["entries"], status["behind"]) == (2, 5, 0)


@WORDLLAMA
def test_a_search_compares_meanings_where_it_is_given_a_model(here: Path) -> None:
    """Without one words alone count, and an unknown one is refused with the name that was meant."""
    assert hits("bill to pay") == []
    assert ("work", 1) in hits("bill to pay", "--embedder", "wordllama")
    refused = run("search", "bill", "--embedder", "worldlama")
    assert refused.exit_code == 2
    assert "did you mean 'wordllama'" in refused.stderr


# --- the index


def test_status_tells_how_far_behind_an_index_is_and_changes_nothing(here: Path) -> None:
    """Before the first search all sessions are behind, and after it those that were written to since."""
    first = run("index")

    assert "behind    2 sessions" in first.stdout
    assert "Nothing is indexed yet" in first.stderr
    assert not Path("palimpsest.db.recall").exists()

    run("search", "Oslo")
    with Memory.open("sqlite:///palimpsest.db") as memory:
        memory.session("trip").add_user_message("And Bergen.")

    assert read("index")["behind"] == 1
    assert read("index")["behind"] == 1


def test_a_rebuilt_index_finds_what_it_found(here: Path) -> None:
    """Rebuilding takes in every session, and leaves nothing that is stale."""
    before = hits("Oslo")

    status = read("index", "rebuild")

    assert (status["sessions"], status["entries"], status["behind"], status["stale"]) == (2, 5, 0, 0)
    assert hits("Oslo") == before


@WORDLLAMA
def test_an_index_is_rebuilt_with_its_vectors(here: Path) -> None:
    """Where the model is named: the next search of a program finds them there, and its model is given the question."""
    assert read("index", "rebuild", "--embedder", "wordllama")["entries"] == 5

    with closing(sqlite3.connect(here / "palimpsest.db.recall")) as db:
        vectors, parts = (db.execute(f"SELECT count(*) FROM {name}_1").fetchone() for name in ("vector", "entry"))
        assert vectors >= parts == (5,)
    run("index", "rebuild")
    with closing(sqlite3.connect(here / "palimpsest.db.recall")) as db:
        assert db.execute("SELECT count(*) FROM vector_1").fetchone() == (0,)


def test_an_index_of_another_tenant_is_another_one(here: Path) -> None:
    """A tenant's status and rebuild say and do nothing of another's."""
    run("search", "Oslo")

    assert read("index", "rebuild", "--tenant", "acme")["sessions"] == 0
    assert read("index")["sessions"] == 2


def test_an_index_in_memory_is_not_rebuilt_for_nobody(here: Path) -> None:
    """Where each process has an index of its own, that is told, and nothing is done."""
    result = run("index", "rebuild", "--store", "memory://")

    assert "Nothing was rebuilt" in result.stderr
    assert read("index", "rebuild", "--store", "memory://")["is_kept"] is False


def test_a_memory_tells_of_its_index_and_rebuilds_it(tmp_path: Path) -> None:
    """The verbs of a memory: status, and rebuilding, whose progress counts sessions; who only reads rebuilds none."""
    where = f"sqlite:///{tmp_path}/a.db"
    told: list[tuple[int, int]] = []
    with Memory.open(where) as memory:
        for number in range(3):
            memory.session(f"s{number}").add_user_message(f"Number {number}.")
        assert memory.index_status().behind == 3

        status = memory.rebuild_index(progress=lambda done, total: told.append((done, total)))

        assert told == [(1, 3), (2, 3), (3, 3)]
        assert (status.sessions, status.entries, status.behind) == (3, 3, 0)
        assert memory.index_status() == status

    with Memory.open(where, readonly=True) as memory:
        assert memory.index_status() == status
        with pytest.raises(ConfigError, match="readonly"):
            memory.rebuild_index()


def test_an_index_in_a_file_of_ones_own_is_told_of_as_kept(tmp_path: Path) -> None:
    """Also by who only reads the store, whatever file it is."""
    where, own = f"sqlite:///{tmp_path}/a.db", tmp_path / "own.recall"
    with Memory.open(where, recall_index=own) as memory:
        memory.session("s").add_user_message("The zeppelin lands.")
        assert memory.recall("zeppelin")
        kept = memory.index_status()

    with Memory.open(where, recall_index=own, readonly=True) as memory:
        assert memory.index_status() == kept
    assert (kept.where, kept.is_kept) == (str(own), True)


def test_what_was_erased_is_stale_no_longer_after_a_rebuild(tmp_path: Path) -> None:
    """An entry whose words nobody had any more when it went is counted, until the index is made anew."""
    with Memory.open(f"sqlite:///{tmp_path}/a.db") as memory:
        chat = memory.session("s")
        said = chat.add_user_message("The zeppelin lands.")
        assert memory.recall("zeppelin")
        chat.erase([said.id])
        assert not memory.recall("zeppelin")

        assert memory.rebuild_index().stale == 0
    assert b"zeppelin" not in (tmp_path / "a.db.recall").read_bytes()
