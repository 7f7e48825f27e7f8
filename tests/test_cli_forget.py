"""`palimpsest forget`: what it asks, shows and destroys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import run, write_lines
from palimpsest import Memory
from processes import remains

WORD = "zanzibar"


@pytest.fixture
def shop(here: Path) -> Path:
    """Make a store with two sessions in which ann and bob speak; return its file."""
    lines = [
        {"role": "user", "name": "ann", "content": f"to {WORD}"},
        {"role": "assistant", "content": "Of course."},
        {"role": "user", "name": "bob", "content": "me, too"},
    ]
    write_lines(here / "a.jsonl", lines)
    write_lines(here / "b.jsonl", lines[:2])
    assert run("import", "a.jsonl", "b.jsonl").exit_code == 0
    return here / "chats.db"


def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let standard input pass for a terminal at which somebody can be asked."""
    monkeypatch.setattr("palimpsest.cli.app.on_terminal", lambda stream=None: True)


def test_dry_run_shows_what_would_go_and_changes_nothing(shop: Path) -> None:
    """`forget --dry-run` prints what would be destroyed and changes no byte."""
    before = shop.read_bytes()

    shown = run("forget", "--user", "ann", "--dry-run")

    assert shown.exit_code == 0
    assert shown.stdout.split() == ["would", "be", "destroyed", "entries", "4", "sessions,", "whole", "b"]
    assert shop.read_bytes() == before


def test_yes_destroys_without_asking(shop: Path) -> None:
    """`forget --user --yes` destroys the user's entries to the last byte; the same again finds nothing."""
    done = run("forget", "--user", "ann", "--yes", "--json")

    assert json.loads(done.stdout) == {
        "entries": 4,
        "branches": [],
        "sessions": ["b"],
        "withdrawn": 0,
        "rebuilt": 0,
        "derived": {},
        "items": {},
        "media": 0,
        "remains": [],
        "unknown": "",
        "dry_run": False,
    }
    assert WORD.encode() not in remains(shop)
    again = run("forget", "--user", "ann", "--yes")
    assert (again.exit_code, again.stdout) == (0, "")
    assert again.stderr.startswith("Nothing to forget: no session belongs to user")


def test_forget_asks_before_it_destroys(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `--yes`, `forget` shows what would go and asks: a no keeps all, a yes destroys it."""
    terminal(monkeypatch)

    refused = run("forget", "--session", "a", given="n\n")
    assert refused.exit_code == 1
    assert "would be destroyed" in refused.stdout
    assert WORD.encode() in remains(shop)
    done = run("forget", "--session", "a", given="y\n")

    assert done.exit_code == 0
    assert "cannot be undone" in done.stdout + done.stderr
    with Memory.open(shop) as memory:
        assert [info.session for info in memory.sessions()] == ["b"]


def test_a_text_comes_from_standard_input(shop: Path) -> None:
    """`--matches -` reads the text from standard input, so that no shell history holds it."""
    done = run("forget", "--matches", "-", "--yes", given="TO ZANZIBAR\n")

    assert done.exit_code == 0
    assert done.stdout.split()[:3] == ["destroyed", "entries", "2"]
    assert WORD.encode() not in remains(shop)


def test_a_tenant_alone_is_forgotten_whole(shop: Path) -> None:
    """`--tenant` alone forgets the whole tenant; beside another option it says whose sessions are searched."""
    run("import", "a.jsonl", "--tenant", "acme")

    assert json.loads(run("forget", "--user", "ann", "--tenant", "acme", "--yes", "--json").stdout)["entries"] == 2
    done = json.loads(run("forget", "--tenant", "acme", "--yes", "--json").stdout)

    assert (done["entries"], done["sessions"]) == (1, ["a"])
    assert len(json.loads(run("sessions", "--json").stdout)) == 2


WRONG = {
    "nothing": [],
    "two": ["--user", "ann", "--session", "a", "--yes"],
    "nobody to ask": ["--user", "ann"],
    "nobody to ask in JSON": ["--user", "ann", "--json"],
    "a tenant before the command": ["--yes"],
    "a blank text": ["--matches", " ", "--yes"],
    "a reason that says it": ["--matches", WORD, "--reason", f"about {WORD}", "--yes"],
}


@pytest.mark.parametrize("options", WRONG.values(), ids=WRONG)
def test_bad_usage_of_forget_destroys_nothing(shop: Path, options: list[str]) -> None:
    """Bad usage exits with 2, destroys nothing, and does not repeat the text to be forgotten."""
    refused = run("forget", *options)

    assert refused.exit_code == 2
    assert WORD not in refused.stderr
    assert WORD.encode() in remains(shop)


def test_an_unknown_session_exits_with_3(shop: Path) -> None:
    """An unknown session exits with 3 and suggests the nearest id."""
    missing = run("forget", "--session", "aa", "--yes")

    assert missing.exit_code == 3
    assert "did you mean 'a'" in missing.stderr
