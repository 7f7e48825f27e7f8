"""The command line: how sessions and entries are named, what is destroyed by name, and what is said of failures."""

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
    """A store with the sessions `support-7`, `support-71`, `support-72` and `trip`."""
    write_lines(here / "chat.jsonl", CHAT)
    for name in ("support-7", "support-71", "support-72", "trip"):
        assert run("import", "chat.jsonl", "--session", name).exit_code == 0
    return here


def names() -> list[str]:
    """The ids of all sessions."""
    return [info["session"] for info in read("sessions")]


def failed(*arguments: str, status: int) -> dict[str, Any]:
    """What a command tells of its failure with --json: the one object on standard error."""
    result = run(*arguments, "--json")
    assert (result.exit_code, result.stdout) == (status, ""), result.output
    told: dict[str, Any] = json.loads(result.stderr)
    return told


# --- ids


def test_the_beginning_of_an_id_names_a_session(several: Path) -> None:
    """An id may be cut short as far as no other begins so; the session that is meant is printed whole."""
    assert read("stats", "tr")["session"] == "trip"
    assert read("pin", "support-72", "1")["session"] == "support-72"
    assert "trip" in run("rewind", "t", "--to", "1").stdout


def test_a_whole_id_comes_before_those_that_begin_with_it(several: Path) -> None:
    """`support-7` is itself, though `support-71` begins with it."""
    assert read("stats", "support-7")["session"] == "support-7"


def test_several_that_begin_alike_are_listed(several: Path) -> None:
    """Which one is meant nobody guesses: the candidates are named, and the exit status is 2."""
    result = run("show", "supp")

    assert result.exit_code == 2
    assert "'support-7', 'support-71', 'support-72'" in result.stderr


def test_what_destroys_without_asking_takes_whole_ids(several: Path) -> None:
    """A script that runs twice deletes no other session the second time."""
    first, again = (run("delete", "support-7", "--yes").exit_code for _ in range(2))

    assert (first, again) == (0, 2)
    assert run("delete", "tri", "--yes").exit_code == 3
    assert run("erase", "tri", "1", "--yes").exit_code == 3
    assert run("forget", "--session", "tri", "--yes").exit_code == 3
    assert names() == ["support-71", "support-72", "trip"]


# --- deleting, erasing, pinning


@pytest.mark.parametrize("command", [("delete", "trip"), ("erase", "trip", "1")])
def test_nothing_is_destroyed_where_nobody_can_be_asked(several: Path, command: tuple[str, ...]) -> None:
    """Without a terminal, or with --json, it needs --yes; a dry run needs nothing and changes nothing."""
    for more in ((), ("--json",)):
        refused = run(*command, *more)

        assert refused.exit_code == 2
        assert "--yes" in refused.stderr
        assert run(*command, "--dry-run", *more).exit_code == 0
    assert "trip" in names()
    assert not any(entry.get("erased") for entry in read("show", "trip", "--all"))


def test_a_delete_asks_and_is_heard(several: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what would go, under the whole id, and goes on when that is confirmed."""
    monkeypatch.setattr("palimpsest.cli.app.on_terminal", lambda stream=None: stream is not None)

    declined = run("delete", "tri", given="n\n")

    assert declined.exit_code != 0
    assert "trip: 4 entries" in declined.stdout
    assert "trip" in names()
    assert run("delete", "tri", given="y\n").exit_code == 0
    assert "trip" not in names()


def test_entries_are_named_by_number_range_and_id(several: Path) -> None:
    """Each counts once, in the order of the log, and their places stay as tombstones."""
    id = read("show", "trip", "--entry", "4")["id"]

    done = read("erase", "trip", "2-3", "3", id, "--yes")

    assert done["meant"] == [2, 3, 4]
    assert [bool(entry.get("erased")) for entry in read("show", "trip", "--all")] == [False, True, True, True]
    assert read("erase", "trip", "2-4", "--yes") == {"session": "trip", "meant": [], "erased": None}


@pytest.mark.parametrize(("name", "status"), [("9", 3), ("2-9", 3), ("3-2", 2), ("nonsense", 3)])
def test_an_entry_that_is_not_there_erases_nothing(several: Path, name: str, status: int) -> None:
    """One wrong name among right ones stops all."""
    assert run("erase", "trip", "1", name, "--yes").exit_code == status
    assert not any(entry.get("erased") for entry in read("show", "trip", "--all"))


def test_a_pin_holds_until_it_is_let_go(here: Path) -> None:
    """`pin` keeps an entry in every context, however small its budget; `unpin` lets go of it."""
    said = [{"role": ("user", "assistant")[i % 2], "content": f"number {i}: " + "word " * 100} for i in range(20)]
    run("import", str(write_lines(here / "long.jsonl", said)))

    def holds_the_first() -> bool:
        return "number 0" in run("context", "long", "--max-tokens", "1000", "--messages").stdout

    before = holds_the_first()
    run("pin", "long", "1")
    pinned = holds_the_first()
    run("unpin", "long", "1-4")

    assert (before, pinned, holds_the_first()) == (False, True, False)


# --- titles and filters


def test_a_title_is_given_found_and_taken_away(several: Path) -> None:
    """`title` changes what a session is called, and `sessions` shows it and finds it."""
    assert run("title", "tr").stderr == "trip has no title.\n"
    assert run("title", "tr", "A week in Lisbon").stdout == "A week in Lisbon\n"

    assert [info["session"] for info in read("sessions", "--title", "LISBON")] == ["trip"]
    assert "A week in Lisbon" in run("sessions").stdout
    assert read("title", "trip", "--remove") == {"session": "trip", "title": None}
    assert read("sessions", "--title", "lisbon") == []
    assert run("title", "trip", "x", "--remove").exit_code == 2


def test_sessions_are_filtered_and_paged(several: Path) -> None:
    """By user, by the beginning of the id and by time; a page says where the next one begins."""
    with Memory.open("sqlite:///chats.db") as memory:
        memory.session("trip").describe(user="ann")

    assert [info["session"] for info in read("sessions", "--user", "ann")] == ["trip"]
    assert [info["session"] for info in read("sessions", "--prefix", "support-71")] == ["support-71"]
    assert read("sessions", "--before", "2001-01-01") == []
    assert len(read("sessions", "--since", "2001-01-01T12:00")) == 4
    assert "'2026-13-01' is no time; write it as 2026-11-01" in run("sessions", "--since", "2026-13-01").stderr
    assert run("sessions", "--user", "nobody").stderr == "No such sessions.\n"
    for order in ("id", "latest"):
        first = run("sessions", "--order", order, "--limit", "3", "--json")
        place = json.loads(first.stderr)["note"].split("'")[1]
        assert len(json.loads(first.stdout)) == 3
        assert len(read("sessions", "--order", order, "--after", place)) == 1


# --- failures


@pytest.mark.parametrize(
    ("given", "meant"),
    [("sesions", "sessions"), ("hist", "history"), ("ls", "sessions"), ("rm", "delete"), ("Show", "show")],
)
def test_an_unknown_command_suggests_the_nearest(given: str, meant: str) -> None:
    """What is misspelt, cut short, or called so elsewhere, names the command that does it."""
    result = run(given)

    assert result.exit_code == 2
    assert f"did you mean '{meant}'?" in result.stderr


def test_without_a_command_it_explains_itself() -> None:
    """Bare, it is a mistake of usage, and prints the same as `--help`, to standard error."""
    bare = run()

    assert (bare.exit_code, bare.stdout) == (2, "")
    assert bare.stderr == run("--help").stdout


def test_an_unknown_option_suggests_the_nearest(several: Path) -> None:
    """A misspelt option names those that are like it."""
    assert "--limit" in run("show", "trip", "--limt", "3").stderr
    assert "--tenant" in run("--tennant", "x", "sessions").stderr


def test_failures_are_json_for_programs(several: Path) -> None:
    """With `--json` one object on standard error has the kind, the words, the exit status, and what may be meant."""
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


def test_notes_and_warnings_are_json_for_programs_too(several: Path) -> None:
    """Beside `--json` every line of standard error is an object."""
    told = run("rewind", "trip", "--to", "0").stderr
    Path("odd.jsonl").write_text('{"role": "odd"}\n')

    refused = run("import", "odd.jsonl", "--json").stderr

    assert told.startswith("`palimpsest rewind")
    assert [list(json.loads(line)) for line in refused.splitlines()] == [["note"]]


# --- completion


def completed(line: str, **more: str) -> subprocess.CompletedProcess[str]:
    """What bash is offered for the last word of a line."""
    words = line.split(" ")
    asked = {"_PALIMPSEST_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), **more}
    return subprocess.run(START, capture_output=True, text=True, check=False, env={**os.environ, **asked}, timeout=120)


def offered(line: str, **more: str) -> list[str]:
    """The words that are offered; nothing else is printed."""
    done = completed(line, **more)
    assert done.stderr == ""
    return [one.partition(",")[2] for one in done.stdout.splitlines() if one]


def test_a_shell_completes_commands_and_ids(several: Path) -> None:
    """Ids come from the store of the environment, or of the line."""
    assert offered("palimpsest sess") == ["sessions"]
    assert offered("palimpsest show support-7") == ["support-7", "support-71", "support-72"]
    assert offered("palimpsest forget --session tr") == ["trip"]
    assert offered("palimpsest --store chats.db show t", PALIMPSEST_STORE="sqlite:///no.db") == ["trip"]
    assert offered("palimpsest show --tenant nobody t") == []


def test_completion_is_silent_where_something_is_in_the_way(here: Path) -> None:
    """No store, a foreign file, a bad address, a missing policy: nothing is offered, nothing said, nothing made."""
    (here / "foreign.db").write_bytes(b"not a database at all, but long enough to be looked at" * 20)

    for store in ("sqlite:///no.db", "foreign.db", "sqlit:///x", ":"):
        assert offered("palimpsest show t", PALIMPSEST_STORE=store) == []
    assert offered("palimpsest show t", PALIMPSEST_PRIVACY="missing.json") == []
    assert [path.name for path in here.iterdir()] == ["foreign.db"]


def test_no_id_is_completed_that_a_shell_would_run(here: Path) -> None:
    """Whoever chose an id chose no command: what has spaces or signs of a shell is not offered."""
    with Memory.open("sqlite:///chats.db") as memory:
        for name in ("a$(touch x)", "a;b", "a b", "-a", "a|b", "a`b`", "a'b", "a\u202eb", "a-b.c:d@e/f"):
            memory.session(name).add_user_message("hello")

    assert offered("palimpsest show a") == ["a-b.c:d@e/f"]


# --- narrow terminals


def on_a_terminal(columns: int, *arguments: str) -> list[str]:
    """The lines that a command prints on a terminal of so many columns."""
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
    except OSError:  # what Linux says when nobody has the other end any more
        return b""


@pytest.mark.sampled
@pytest.mark.parametrize("columns", [40, 60])
def test_a_narrow_terminal_keeps_the_id(here: Path, columns: int) -> None:
    """An id is never cut or broken; no line is wider than the terminal, and what has no room is left out."""
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
def test_an_empty_store_or_tenant_is_not_the_default_one(
    several: Path, command: tuple[str, ...], before: bool, option: str
) -> None:
    """Which a variable of the shell gives that is not set: nothing is read, stored or destroyed elsewhere."""
    there = names()
    whole = [option, "", *command] if before else [*command, option, ""]
    told = failed(*whole, status=2)
    assert (told["error"], told["message"].partition(":")[0]) == ("ConfigError", option.removeprefix("--"))
    assert names() == there


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("worker", "none.db", "--once"), "URL names another"),
        (("copy", "none.db", "other.db"), "SOURCE names the store"),
        (("show", "s", "--store", "none.db"), "--store names another"),
        (("sweep", "--untouched-for", "90"), "did you mean '90s'?"),
        (("import", "chats.db"), "`palimpsest copy`"),
    ],
)
def test_what_is_wrong_is_told_with_what_the_command_has(here: Path, command: tuple[str, ...], told: str) -> None:
    """A store that is not there, a length of time without its unit, a store of ours as a file to import."""
    with Memory.open("chats.db") as memory:
        memory.session("s").add_user_message("hello")

    done = run(*command)

    assert done.exit_code != 0
    assert told in done.output
    assert ("--store" in done.output) == ("--store" in command)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--strategy", "superseded_contexts", "--keep", "2"), "--keep is not for"),
        (("--if-over", "80"), "--if-over': 80.0 is not"),
    ],
)
def test_an_option_of_compact_is_told_by_its_own_name(here: Path, options: tuple[str, ...], told: str) -> None:
    """What the strategy does not take, or is no share, is named as the command has it."""
    with Memory.open("chats.db") as memory:
        memory.session("s").add_user_message("hello")

    done = run("compact", "s", "--store", "chats.db", *options)

    assert done.exit_code == 2
    assert told in done.output
