"""The command line: naming sessions and entries, consent before destroying, errors, completion, narrow terminals."""

from __future__ import annotations

import json
import os
import re
import subprocess
import termios
from pathlib import Path
from typing import Any

import pytest

from commands import CHAT, START, read, run, write_lines
from palimpsest import Memory


@pytest.fixture
def several(here: Path) -> Path:
    """Make a store with the sessions `support-7`, `support-71`, `support-72` and `trip`; return its folder."""
    write_lines(here / "chat.jsonl", CHAT)
    for name in ("support-7", "support-71", "support-72", "trip"):
        assert run("import", "chat.jsonl", "--session", name).exit_code == 0
    return here


def names() -> list[str]:
    """Return the ids of all sessions."""
    return [info["session"] for info in read("sessions")]


def failed(*arguments: str, status: int) -> dict[str, Any]:
    """Run a command with --json that must fail with `status`, and return the error object from standard error."""
    result = run(*arguments, "--json")
    assert (result.exit_code, result.stdout) == (status, ""), result.output
    error: dict[str, Any] = json.loads(result.stderr)
    return error


# --- ids


def test_the_beginning_of_an_id_names_a_session(several: Path) -> None:
    """A session may be named by the beginning of its id if only one id begins so; the whole id is printed."""
    assert read("stats", "tr")["session"] == "trip"
    assert read("pin", "support-72", "1")["session"] == "support-72"
    assert "trip" in run("rewind", "t", "--to", "1").stdout


def test_an_exact_id_comes_before_longer_ids(several: Path) -> None:
    """An exact id names its session even if longer ids begin with it."""
    assert read("stats", "support-7")["session"] == "support-7"


def test_an_ambiguous_beginning_lists_the_candidates(several: Path) -> None:
    """A beginning that several ids share exits with 2 and lists them."""
    result = run("show", "supp")

    assert result.exit_code == 2
    assert "'support-7', 'support-71', 'support-72'" in result.stderr


def test_destroying_without_asking_needs_the_whole_id(several: Path) -> None:
    """Commands that destroy with `--yes` accept whole ids only.

    So a script that runs twice does not delete another session the second time.
    """
    first, again = (run("delete", "support-7", "--yes").exit_code for _ in range(2))

    assert (first, again) == (0, 2)
    assert run("delete", "tri", "--yes").exit_code == 3
    assert run("erase", "tri", "1", "--yes").exit_code == 3
    assert run("forget", "--session", "tri", "--yes").exit_code == 3
    assert names() == ["support-71", "support-72", "trip"]


# --- deleting, erasing, pinning


@pytest.mark.parametrize("command", [("delete", "trip"), ("erase", "trip", "1")])
def test_destroying_needs_yes_where_nobody_can_be_asked(several: Path, command: tuple[str, ...]) -> None:
    """`delete` and `erase` need `--yes` without a terminal or with `--json`; `--dry-run` needs no consent."""
    for more in ((), ("--json",)):
        refused = run(*command, *more)

        assert refused.exit_code == 2
        assert "--yes" in refused.stderr
        assert run(*command, "--dry-run", *more).exit_code == 0
    assert "trip" in names()
    assert not any(entry.get("erased") for entry in read("show", "trip", "--all"))


def test_a_delete_asks_at_a_terminal(several: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a terminal `delete` shows what would go under the whole id, and deletes only after a yes."""
    monkeypatch.setattr("palimpsest.cli.app.on_terminal", lambda stream=None: stream is not None)

    declined = run("delete", "tri", given="n\n")

    assert declined.exit_code != 0
    assert "trip: 4 entries" in declined.stdout
    assert "trip" in names()
    assert run("delete", "tri", given="y\n").exit_code == 0
    assert "trip" not in names()


def test_entries_are_named_by_number_range_and_id(several: Path) -> None:
    """Entries are named by number, range or id; each is erased once and stays in the log as a tombstone."""
    id = read("show", "trip", "--entry", "4")["id"]

    erased = read("erase", "trip", "2-3", "3", id, "--yes")

    assert erased["meant"] == [2, 3, 4]
    assert [bool(entry.get("erased")) for entry in read("show", "trip", "--all")] == [False, True, True, True]
    assert read("erase", "trip", "2-4", "--yes") == {"session": "trip", "meant": [], "erased": None}


@pytest.mark.parametrize(("name", "status"), [("9", 3), ("2-9", 3), ("3-2", 2), ("nonsense", 3)])
def test_one_unknown_entry_stops_the_erasure(several: Path, name: str, status: int) -> None:
    """If one of the named entries does not exist, none is erased."""
    assert run("erase", "trip", "1", name, "--yes").exit_code == status
    assert not any(entry.get("erased") for entry in read("show", "trip", "--all"))


def test_a_pinned_entry_is_in_every_context(here: Path) -> None:
    """`pin` keeps an entry in every context, however small the budget; `unpin` ends that."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": f"number {i}: " + "word " * 100} for i in range(20)]
    run("import", str(write_lines(here / "long.jsonl", messages)))

    def holds_the_first() -> bool:
        return "number 0" in run("context", "long", "--max-tokens", "1000", "--messages").stdout

    before = holds_the_first()
    run("pin", "long", "1")
    pinned = holds_the_first()
    run("unpin", "long", "1-4")

    assert (before, pinned, holds_the_first()) == (False, True, False)


# --- titles and filters


def test_a_title_is_set_searched_and_removed(several: Path) -> None:
    """`title` sets, prints and removes a session's title; `sessions --title` searches titles regardless of case."""
    assert run("title", "tr").stderr == "trip has no title.\n"
    assert run("title", "tr", "A week in Lisbon").stdout == "A week in Lisbon\n"

    assert [info["session"] for info in read("sessions", "--title", "LISBON")] == ["trip"]
    assert "A week in Lisbon" in run("sessions").stdout
    assert read("title", "trip", "--remove") == {"session": "trip", "title": None}
    assert read("sessions", "--title", "lisbon") == []
    assert run("title", "trip", "x", "--remove").exit_code == 2


def test_sessions_are_filtered_and_paged(several: Path) -> None:
    """`sessions` filters by user, beginning of the id and time, and pages in either order."""
    with Memory.open("sqlite:///chats.db") as memory:
        memory.session("trip").describe(user="ann")

    assert [info["session"] for info in read("sessions", "--user", "ann")] == ["trip"]
    assert [info["session"] for info in read("sessions", "--prefix", "support-71")] == ["support-71"]
    assert read("sessions", "--before", "2001-01-01") == []
    assert len(read("sessions", "--since", "2001-01-01T12:00")) == 4
    assert "'2026-13-01' is not a time; write it as 2026-11-01" in run("sessions", "--since", "2026-13-01").stderr
    assert run("sessions", "--user", "nobody").stderr == "No such sessions.\n"
    for order in ("id", "latest"):
        first = run("sessions", "--order", order, "--limit", "3", "--json")
        next_after = json.loads(first.stderr)["note"].split("'")[1]
        assert len(json.loads(first.stdout)) == 3
        assert len(read("sessions", "--order", order, "--after", next_after)) == 1


# --- failures


@pytest.mark.parametrize(
    ("given", "meant"),
    [("sesions", "sessions"), ("hist", "history"), ("ls", "sessions"), ("rm", "delete"), ("Show", "show")],
)
def test_an_unknown_command_suggests_the_nearest(given: str, meant: str) -> None:
    """A misspelt, shortened or foreign command name suggests the command that was meant."""
    result = run(given)

    assert result.exit_code == 2
    assert f"did you mean '{meant}'?" in result.stderr


def test_without_a_command_the_help_is_printed() -> None:
    """Without a command the help goes to standard error, with exit status 2."""
    bare = run()

    assert (bare.exit_code, bare.stdout) == (2, "")
    assert bare.stderr == run("--help").stdout


def test_an_unknown_option_suggests_the_nearest(several: Path) -> None:
    """A misspelt option suggests the nearest one, for a command and for `palimpsest` itself."""
    assert "--limit" in run("show", "trip", "--limt", "3").stderr
    assert "--tenant" in run("--tennant", "x", "sessions").stderr


def test_failures_are_json_for_programs(several: Path) -> None:
    """With `--json` a failure is one object on standard error: kind, message, status and suggestions."""
    assert failed("nonsense", status=2)["error"] == "UsageError"
    assert failed("sesions", status=2)["suggestions"] == ["sessions"]
    assert "'many' is not a valid whole number" in failed("show", "trip", "--limit", "many", status=2)["message"]
    assert failed("context", "trip", "--max-tokens", "5", status=1)["error"] == "BudgetImpossible"
    assert failed("context", "trip", "--format", "antropic", status=2)["suggestions"] == ["anthropic"]
    assert failed("show", "trp", status=3)["error"] == "SessionNotFound"
    assert failed("show", "supp", status=2)["suggestions"] == ["support-7", "support-71", "support-72"]
    assert failed("show", "trip", "--entry", "99", status=3)["error"] == "EntryNotFound"
    assert failed("sessions", "--store", "other.db", status=5)["error"] == "StoreUnavailable"
    assert failed("--tennant", "x", "sessions", status=2)["suggestions"] == ["--tenant"]


def test_notes_are_json_for_programs_too(several: Path) -> None:
    """With `--json` every line on standard error is a JSON object, notes included."""
    note = run("rewind", "trip", "--to", "0").stderr
    Path("odd.jsonl").write_text('{"role": "odd"}\n')

    refused = run("import", "odd.jsonl", "--json").stderr

    assert note.startswith("`palimpsest rewind")
    assert [list(json.loads(line)) for line in refused.splitlines()] == [["note"]]


# --- completion


def completed(line: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run bash's completion for the last word of a command line."""
    words = line.split(" ")
    asked = {"_PALIMPSEST_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), **more}
    return subprocess.run(START, capture_output=True, text=True, check=False, env={**os.environ, **asked}, timeout=120)


def offered(line: str, **more: str) -> list[str]:
    """Return the words that completion offers, and assert that it prints nothing else."""
    done = completed(line, **more)
    assert done.stderr == ""
    return [one.partition(",")[2] for one in done.stdout.splitlines() if one]


def test_a_shell_completes_commands_and_ids(several: Path) -> None:
    """Completion offers commands and session ids, from the store of the line or of the environment."""
    assert offered("palimpsest sess") == ["sessions"]
    assert offered("palimpsest show support-7") == ["support-7", "support-71", "support-72"]
    assert offered("palimpsest forget --session tr") == ["trip"]
    assert offered("palimpsest --store chats.db show t", PALIMPSEST_STORE="sqlite:///no.db") == ["trip"]
    assert offered("palimpsest show --tenant nobody t") == []


def test_completion_is_silent_about_problems(here: Path) -> None:
    """With no store, a foreign file, a bad address or a missing policy, completion offers nothing and prints nothing.

    It creates no file either.
    """
    (here / "foreign.db").write_bytes(b"not a database at all, but long enough to be looked at" * 20)

    for store in ("sqlite:///no.db", "foreign.db", "sqlit:///x", ":"):
        assert offered("palimpsest show t", PALIMPSEST_STORE=store) == []
    assert offered("palimpsest show t", PALIMPSEST_PRIVACY="missing.json") == []
    assert [path.name for path in here.iterdir()] == ["foreign.db"]


def test_completion_offers_no_id_that_a_shell_would_run(here: Path) -> None:
    """An id with spaces or characters that a shell interprets is not offered."""
    with Memory.open("sqlite:///chats.db") as memory:
        for name in ("a$(touch x)", "a;b", "a b", "-a", "a|b", "a`b`", "a'b", "a\u202eb", "a-b.c:d@e/f"):
            memory.session(name).add_user_message("hello")

    assert offered("palimpsest show a") == ["a-b.c:d@e/f"]


# --- narrow terminals


def on_a_terminal(columns: int, *arguments: str) -> list[str]:
    """Run a command on a pseudo-terminal of `columns` columns and return the lines it prints."""
    reader, writer = os.openpty()
    termios.tcsetwinsize(writer, (24, columns))
    environ = {**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "xterm"}
    with subprocess.Popen([*START, *arguments], stdin=writer, stdout=writer, stderr=writer, env=environ) as process:
        os.close(writer)
        printed = b""
        while piece := _read(reader):
            printed += piece
    os.close(reader)
    assert process.returncode == 0, printed
    return [line.rstrip() for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", printed.decode()))]


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # Linux raises EIO once the other end is closed
        return b""


@pytest.mark.sampled
@pytest.mark.parametrize("columns", [40, 60])
def test_a_narrow_terminal_never_cuts_an_id(here: Path, columns: int) -> None:
    """On a narrow terminal ids are not cut or wrapped, and no line is wider than the terminal."""
    id = "support-7-of-the-shop-in-april"
    run("import", str(write_lines(here / "chat.jsonl", CHAT)), "--session", id)

    listed, verified = on_a_terminal(columns, "sessions"), on_a_terminal(columns, "verify")
    history = on_a_terminal(columns, "history", "supp")

    assert any(id in line for line in listed)
    assert any(id in line for line in verified)
    assert any("add" in line for line in history)
    assert max(map(len, [*listed, *verified, *history])) <= columns


@pytest.mark.parametrize("option", ["--store", "--tenant"])
@pytest.mark.parametrize("before", [False, True], ids=["behind", "before"])
@pytest.mark.parametrize("command", [("delete", "trip", "--yes"), ("sessions",), ("import", "chat.jsonl")])
def test_an_empty_store_or_tenant_is_an_error(
    several: Path, command: tuple[str, ...], before: bool, option: str
) -> None:
    """An empty `--store` or `--tenant`, as an unset shell variable gives it, is an error.

    It does not select the default: nothing is read, stored or destroyed elsewhere.
    """
    stored = names()
    arguments = [option, "", *command] if before else [*command, option, ""]
    error = failed(*arguments, status=2)
    assert (error["error"], error["message"].partition(":")[0]) == ("ConfigError", option.removeprefix("--"))
    assert names() == stored


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("worker", "none.db", "--once"), "or give the URL of another store"),
        (("copy", "none.db", "other.db"), "or name another store as SOURCE"),
        (("show", "s", "--store", "none.db"), "or name another store with --store"),
        (("sweep", "--untouched-for", "90"), "did you mean '90s'?"),
        (("import", "chats.db"), "`palimpsest copy`"),
    ],
)
def test_an_error_advises_only_options_of_its_command(here: Path, command: tuple[str, ...], told: str) -> None:
    """An error for a missing store, a time without a unit, or a store as a file names options of this command only."""
    with Memory.open("chats.db") as memory:
        memory.session("s").add_user_message("hello")

    done = run(*command)

    assert done.exit_code != 0
    assert told in done.output
    assert ("--store" in done.output) == ("--store" in command)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--strategy", "superseded_contexts", "--keep", "2"), "the strategy superseded_contexts takes no --keep"),
        (("--if-over", "80"), "--if-over': 80.0 is not"),
    ],
)
def test_an_error_of_compact_names_its_option(here: Path, options: tuple[str, ...], told: str) -> None:
    """`compact` names the option whose value the strategy does not accept."""
    with Memory.open("chats.db") as memory:
        memory.session("s").add_user_message("hello")

    done = run("compact", "s", "--store", "chats.db", *options)

    assert done.exit_code == 2
    assert told in done.output
