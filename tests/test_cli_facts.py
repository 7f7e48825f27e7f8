"""`palimpsest facts`: facts of working memories on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import run
from palimpsest import Memory


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Return the address of a store file that does not exist yet."""
    return f"sqlite:///{tmp_path}/a.db"


def test_a_fact_is_set_shown_and_deleted(store: str) -> None:
    """`facts` sets a fact, shows its value, version and history, and deletes it; a value that is not JSON is a text."""
    assert run("facts", "user/ann", "n", "7", "--store", store).stdout == "7\n"
    assert run("facts", "user/ann", "n", "eight", "--importance", "0.9", "--ttl", "1d", "--store", store).exit_code == 0
    run("facts", "session/a", "list", '[1, "x"]', "--store", store)

    with Memory.open(store) as memory:
        fact = memory.working("user/ann").fact("n")
        assert fact is not None
        assert (fact.value, fact.version, fact.importance, fact.history[0].value) == ("eight", 2, 0.9, 7)
        assert fact.expires_at is not None
        assert memory.working("session/a").get("list") == [1, "x"]
    listed = json.loads(run("facts", "--json", "--store", store).stdout)
    assert listed == [{"scope": "session/a", "facts": 1}, {"scope": "user/ann", "facts": 1}]
    (shown,) = json.loads(run("facts", "user/ann", "--json", "--store", store).stdout)
    assert (shown["key"], shown["value"], shown["history"][0]["value"]) == ("n", "eight", 7)
    printed = run("facts", "user/ann", "n", "--store", store)
    assert printed.stdout == "eight\n"
    assert "version 1" in printed.stderr

    deleted = json.loads(run("facts", "user/ann", "n", "--delete", "--json", "--store", store).stdout)
    assert deleted == {"scope": "user/ann", "key": "n", "deleted": True}
    assert run("facts", "user/ann", "--store", store).stderr == "user/ann has no facts.\n"


def test_values_that_json_lacks_are_shown_as_texts_and_lists(store: str) -> None:
    """Bytes are shown as texts and sets as lists, since JSON lacks both."""
    with Memory.open(store) as memory:
        memory.working("a").set("k", {1: (b"x", {2})})

    shown = json.loads(run("facts", "a", "k", "--json", "--store", store).stdout)
    assert shown["value"] == {"1": ["b'x'", [2]]}


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (("a", "k"), 3, "no fact k"),
        (("a", "k", "1", "--version", "7"), 4, "version"),
        (("a//b", "k", "1"), 2, "scope"),
        (("a", "k", "1", "--ttl", "soon"), 2, "ttl"),
        (("a", "k", "[" * 100_000), 2, "VALUE is nested too deeply"),
        (("a", "k", "1", "--importance", "7"), 2, "importance"),
        (("a", "--delete"), 2, "--delete"),
        (("a", "k", "1", "--delete"), 2, "--delete"),
        (("a", "k", "--ttl", "1d"), 2, "VALUE"),
        (("a", "k", "--version", "1"), 2, "--version"),
        (("a", "k", "--delete", "--version", "3"), 4, "version"),
    ],
)
def test_bad_arguments_of_facts_change_nothing(store: str, arguments: tuple[str, ...], status: int, told: str) -> None:
    """Bad arguments of `facts` exit with the status of their kind and change no fact."""
    run("facts", "a", "other", "1", "--store", store)

    done = run("facts", *arguments, "--store", store)

    assert done.exit_code == status
    assert told in done.stderr
    with Memory.open(store) as memory:
        assert memory.working("a").to_dict() == {"other": 1}


def test_a_context_ends_with_the_facts_asked_for(store: str) -> None:
    """`context --facts` appends the facts of a scope to the context and counts them."""
    with Memory.open(store) as memory:
        memory.session("a").add_user_message("hello")
        memory.working("user/ann").set("seat", "12A")

    shown = json.loads(
        run("context", "a", "--max-tokens", "1000", "--facts", "user/ann", "--json", "--store", store).stdout
    )
    assert shown["report"]["tail"] == ["user/ann"]
    assert shown["parts"]["tail"] > 0
    printed = run("context", "a", "--max-tokens", "1000", "--facts", "user/ann", "--store", store).stdout
    assert "tail" in printed
    sent = run("context", "a", "--facts", "user/ann", "--messages", "--store", store).stdout
    assert "seat: 12A" in sent
    plain = run("context", "a", "--max-tokens", "1000", "--store", store).stdout
    assert "tail" not in plain
