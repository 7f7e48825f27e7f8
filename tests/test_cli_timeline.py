"""`palimpsest history`, `diff`, `fork`, `rewind`, `show --at`: what they print, what they change, what they refuse."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from commands import read, run
from palimpsest import Memory


@pytest.fixture(params=["sqlite:///chats.db", "file:chats"])
def grown(request: pytest.FixtureRequest, here: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A session of three revisions in a store of each kind on disk; returns its id."""
    monkeypatch.setenv("PALIMPSEST_STORE", request.param)
    with Memory.open(request.param) as memory:
        session = memory.session("trip")
        for number in (1, 2, 3):
            session.add(
                [{"role": "user", "content": f"ask {number}"}, {"role": "assistant", "content": f"say {number}"}]
            )
    return "trip"


def texts(*arguments: str) -> list[str]:
    """What `show` lists."""
    return [entry["content"] for entry in read("show", *arguments)]


def test_history_lists_every_revision(grown: str) -> None:
    """One line a revision with time, kind, entries and reason; `--after` and `--before` bound them."""
    with Memory.open(os.environ["PALIMPSEST_STORE"]) as memory:
        memory.session(grown).pin(1)
        memory.session(grown).erase([2], reason="asked for")

    told = read("history", grown)

    assert [record["kind"] for record in told] == ["add", "add", "add", "pin", "erase"]
    assert told[-1]["reason"] == "asked for"
    assert [record["revision"] for record in read("history", grown, "--after", "1", "--before", "4")] == [2, 3]
    lines = run("history", grown).stdout.splitlines()
    assert lines[0].split() == ["revision", "time", "what", "entries", "why"]
    assert lines[1].split()[-4:] == ["add", "1", "to", "2"]


def test_a_fork_and_its_session_go_their_own_ways(grown: str) -> None:
    """The new session is printed; it holds what was there at the revision, or behind the entry."""
    made = run("fork", grown, "by-train", "--at", "2")
    behind = read("show", grown)[2]["id"]

    assert made.stdout == "by-train\n"
    assert "4 entries" in made.stderr
    assert texts("by-train") == ["ask 1", "say 1", "ask 2", "say 2"]
    assert read("fork", grown, "short", "--behind", behind) == {"session": "short", "entries": 3, "revision": 2}
    assert read("fork", grown)["session"].startswith("trip~")
    assert run("rewind", "by-train", "--to", "1").exit_code == 0
    assert len(texts(grown)) == 6


def test_an_entry_to_go_back_to_is_named_by_its_number_or_its_id(grown: str) -> None:
    """Behind the number that `show` prints is behind the id of that entry, for a fork and for a rewind."""
    third = read("show", grown)[2]

    by_number = read("fork", grown, "by-number", "--behind", str(third["seq"]))
    by_id = read("fork", grown, "by-id", "--behind", third["id"])

    assert texts("by-number") == texts("by-id") == ["ask 1", "say 1", "ask 2"]
    assert by_number["revision"] == by_id["revision"]
    assert read("rewind", grown, "--behind", str(third["seq"]))["taken_back"] == 3
    assert texts(grown) == ["ask 1", "say 1", "ask 2"]


def test_a_rewind_says_how_to_undo_it(grown: str) -> None:
    """What was taken back is told, `show --at` still shows it, and going to the later revision brings it back."""
    done = run("rewind", grown, "--to", "1")

    assert done.stdout == "Took back 4 entries; trip holds 2 entries.\n"
    assert "--to 3" in done.stderr
    assert texts(grown) == ["ask 1", "say 1"]
    assert len(texts(grown, "--at", "3")) == 6
    assert len(texts(grown, "--at", "2")) == 4
    assert run("rewind", grown, "--to", "3").exit_code == 0
    assert len(texts(grown)) == 6
    assert read("stats", grown)["rewound_entries"] == 0


def test_a_diff_shows_what_one_call_had_and_the_other_had_not(grown: str) -> None:
    """Messages of both are counted, others are listed by sign; between the same nothing differs."""
    told = run("diff", grown, "1", "3").stdout.splitlines()

    assert told[0].startswith("- revision 1: 2 messages, ")
    assert told[1].startswith("+ revision 3: 6 messages, ")
    assert told[2] == "  2 messages alike"
    assert told[3] == "+ 2  user: ask 2"
    assert run("diff", grown, "2", "2").stderr == "Both were given the same.\n"
    back = read("diff", grown, "3", "1", "--format", "anthropic")
    assert [len(change.get("removed", ())) for change in back["changes"]] == [0, 4]
    assert back["same_prefix"] == 2


def test_what_cannot_be_is_refused_by_name(grown: str) -> None:
    """Unknown sessions and entries, times that never were, names that are taken, and contradictory options."""
    refused = {
        ("fork", "tripp"): (3, "did you mean 'trip'?"),
        ("fork", grown, grown): (4, "is there already"),
        ("fork", grown, "x", "--at", "9"): (2, "a revision from 0 to 3"),
        ("fork", grown, "x", "--at", "1", "--behind", "y"): (2, "not both"),
        ("fork", grown, "x", "--behind", "y"): (3, "has no entry 'y'; give a number that `palimpsest show` prints"),
        ("rewind", grown, "--behind", "7"): (3, "has no entry '7'; give a number that `palimpsest show` prints"),
        ("rewind", grown, "--to", "1", "--behind", "2"): (2, "not both"),
        ("rewind", grown): (2, "say where to"),
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


def test_revision_0_is_that_of_nothing(grown: str) -> None:
    """What was before the first entry can be asked for wherever a revision is."""
    assert read("show", grown, "--at", "0") == []
    assert read("context", grown, "--at", "0", "--messages") == []
    assert run("diff", grown, "0", "1").exit_code == 0
    assert run("diff", grown, "0", "0").stderr == "Both were given the same.\n"


def test_hostile_texts_stay_texts(here: Path) -> None:
    """Control characters of a log and of its reasons are shown as escapes by each of these commands."""
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


def test_a_listing_says_where_a_branch_came_from(grown: str) -> None:
    """The session and revision that a branch parted from are in the JSON of `sessions`; others have none."""
    run("fork", grown, "branch", "--at", "2")

    told = {one["session"]: (one["forked_from"], one["forked_at"]) for one in read("sessions")}

    assert told == {"branch": ("trip", 2), "trip": (None, None)}
