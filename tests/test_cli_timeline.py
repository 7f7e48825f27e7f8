"""`palimpsest history`, `diff`, `fork`, `rewind` and `show --at`: output, effect and refusals."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from commands import read, run
from palimpsest import Memory


@pytest.fixture(params=["sqlite:///chats.db", "file:chats"])
def grown(request: pytest.FixtureRequest, here: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a session of three revisions, in a SQLite store and in a file store; return its id."""
    monkeypatch.setenv("PALIMPSEST_STORE", request.param)
    with Memory.open(request.param) as memory:
        session = memory.session("trip")
        for number in (1, 2, 3):
            session.add(
                [{"role": "user", "content": f"ask {number}"}, {"role": "assistant", "content": f"say {number}"}]
            )
    return "trip"


def texts(*arguments: str) -> list[str]:
    """Return the texts of the entries that `show` lists."""
    return [entry["content"] for entry in read("show", *arguments)]


def test_history_lists_every_revision(grown: str) -> None:
    """`history` prints a line per revision with time, kind, entries and reason; `--after` and `--before` bound it."""
    with Memory.open(os.environ["PALIMPSEST_STORE"]) as memory:
        memory.session(grown).pin(1)
        memory.session(grown).erase([2], reason="asked for")

    records = read("history", grown)

    assert [record["kind"] for record in records] == ["add", "add", "add", "pin", "erase"]
    assert records[-1]["reason"] == "asked for"
    assert [record["revision"] for record in read("history", grown, "--after", "1", "--before", "4")] == [2, 3]
    lines = run("history", grown).stdout.splitlines()
    assert lines[0].split() == ["revision", "time", "what", "entries", "why"]
    assert lines[1].split()[-4:] == ["add", "1", "to", "2"]


def test_a_fork_and_its_source_are_independent(grown: str) -> None:
    """`fork` prints the new session, which holds the log up to a revision or entry and then goes its own way."""
    forked = run("fork", grown, "by-train", "--at", "2")
    third_id = read("show", grown)[2]["id"]

    assert forked.stdout == "by-train\n"
    assert "4 entries" in forked.stderr
    assert texts("by-train") == ["ask 1", "say 1", "ask 2", "say 2"]
    assert read("fork", grown, "short", "--behind", third_id) == {"session": "short", "entries": 3, "revision": 2}
    assert read("fork", grown)["session"].startswith("trip~")
    assert run("rewind", "by-train", "--to", "1").exit_code == 0
    assert len(texts(grown)) == 6


def test_fork_and_rewind_take_a_number_or_an_id(grown: str) -> None:
    """`--behind` of `fork` and `rewind` takes an entry's number or its id."""
    third = read("show", grown)[2]

    by_number = read("fork", grown, "by-number", "--behind", str(third["seq"]))
    by_id = read("fork", grown, "by-id", "--behind", third["id"])

    assert texts("by-number") == texts("by-id") == ["ask 1", "say 1", "ask 2"]
    assert by_number["revision"] == by_id["revision"]
    assert read("rewind", grown, "--behind", str(third["seq"]))["taken_back"] == 3
    assert texts(grown) == ["ask 1", "say 1", "ask 2"]


def test_a_rewind_can_be_undone(grown: str) -> None:
    """`rewind` prints what it took back and how to undo it; the later revision stays readable and restorable."""
    done = run("rewind", grown, "--to", "1")

    assert done.stdout == "Took back 4 entries; trip holds 2 entries.\n"
    assert "--to 3" in done.stderr
    assert texts(grown) == ["ask 1", "say 1"]
    assert len(texts(grown, "--at", "3")) == 6
    assert len(texts(grown, "--at", "2")) == 4
    assert run("rewind", grown, "--to", "3").exit_code == 0
    assert len(texts(grown)) == 6
    assert read("stats", grown)["rewound_entries"] == 0


def test_a_diff_shows_what_two_contexts_do_not_share(grown: str) -> None:
    """`diff` counts messages that two revisions' contexts share and lists the others by sign."""
    lines = run("diff", grown, "1", "3").stdout.splitlines()

    assert lines[0].startswith("- revision 1: 2 messages, ")
    assert lines[1].startswith("+ revision 3: 6 messages, ")
    assert lines[2] == "  2 messages alike"
    assert lines[3] == "+ 2  user: ask 2"
    assert run("diff", grown, "2", "2").stderr == "The model was given the same at both revisions.\n"
    back = read("diff", grown, "3", "1", "--format", "anthropic")
    assert [len(change.get("removed", ())) for change in back["changes"]] == [0, 4]
    assert back["same_prefix"] == 2


def test_bad_arguments_of_timeline_commands_are_refused(grown: str) -> None:
    """Unknown sessions, entries and revisions, taken names and contradictory options exit with their status.

    Nothing is changed.
    """
    refused = {
        ("fork", "tripp"): (3, "did you mean 'trip'?"),
        ("fork", grown, grown): (4, "exists already"),
        ("fork", grown, "x", "--at", "9"): (2, "a revision from 0 to 3"),
        ("fork", grown, "x", "--at", "1", "--behind", "y"): (2, "not both"),
        ("fork", grown, "x", "--behind", "y"): (3, "has no entry 'y'; give a number that `palimpsest show` prints"),
        ("rewind", grown, "--behind", "7"): (3, "has no entry '7'; give a number that `palimpsest show` prints"),
        ("rewind", grown, "--to", "1", "--behind", "2"): (2, "not both"),
        ("rewind", grown): (2, "give --to REVISION or --behind ENTRY"),
        ("rewind", grown, "--to", "4"): (2, "a revision from 0 to 3"),
        ("diff", grown, "1", "7"): (2, "a revision from 0 to 3"),
        ("diff", grown, "1", "2", "--format", "opneai"): (2, "did you mean 'openai'?"),
        ("show", grown, "--at", "7"): (2, "a revision from 0 to 3"),
        ("history", "nobody"): (3, "there is no session"),
    }
    for arguments, (status, words) in refused.items():
        result = run(*arguments)
        assert result.exit_code == status, arguments
        assert words in result.stderr, arguments
    assert len(texts(grown)) == 6
    assert [one["session"] for one in read("sessions")] == [grown]


def test_revision_0_is_the_empty_log(grown: str) -> None:
    """Revision 0, the empty log, is accepted wherever a revision is."""
    assert read("show", grown, "--at", "0") == []
    assert read("context", grown, "--at", "0", "--messages") == []
    assert run("diff", grown, "0", "1").exit_code == 0
    assert run("diff", grown, "0", "0").stderr == "The model was given the same at both revisions.\n"


def test_timeline_commands_escape_control_characters(here: Path) -> None:
    """`history` and `diff` show control characters of texts and reasons as escapes."""
    with Memory.open("sqlite:///chats.db") as memory:
        session = memory.session("evil")
        session.add_user_message("\x1b[2Jgone")
        session.add_user_message("more")
        session.erase([2], reason="\x1b]0;title\x07")

    for arguments in (("history", "evil"), ("diff", "evil", "1", "3"), ("diff", "evil", "1", "3", "--full")):
        assert "\x1b" not in run(*arguments).stdout
    for arguments in (("history", "evil"), ("diff", "evil", "1", "3")):
        assert "\x1b" not in run(*arguments, "--json").stdout
        json.loads(run(*arguments, "--json").stdout)


def test_sessions_shows_where_a_branch_came_from(grown: str) -> None:
    """`sessions --json` gives the session and revision that a branch was forked from, and null for others."""
    run("fork", grown, "branch", "--at", "2")

    origins = {one["session"]: (one["forked_from"], one["forked_at"]) for one in read("sessions")}

    assert origins == {"branch": ("trip", 2), "trip": (None, None)}
