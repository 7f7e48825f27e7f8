"""`palimpsest scan`: what it shows, what it asks, what it redacts, and its exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import read, run, start, texts, write_lines

CHAT = [
    {"role": "user", "content": "I am jane@example.com, order ACME-123456."},
    {"role": "assistant", "content": "It is on its way."},
]


@pytest.fixture(autouse=True)
def chats(here: Path) -> None:
    """Two sessions in which something private stands."""
    write_lines(here / "chat.jsonl", CHAT)
    for session in ("one", "two"):
        assert run("import", "chat.jsonl", "--session", session).exit_code == 0


def test_it_shows_what_is_found_and_changes_nothing() -> None:
    """Kinds, places, samples as they would be, and what to do next; the exit status is 0."""
    result = run("scan")

    assert result.exit_code == 0
    assert [" ".join(line.split()) for line in result.stdout.splitlines()] == [
        "kind place found",
        "email content 2",
        "",
        "session where kind as it would be",
        "one entry 1 email I am [REDACTED], order ACME-123456.",
        "two entry 1 email I am [REDACTED], order ACME-123456.",
        "",
        "Found something in 2 entries and 0 summaries, of 2 sessions.",
    ]
    assert "Run it again with --apply" in result.stderr
    assert "jane" not in result.output
    assert texts("one")[0] == CHAT[0]["content"]


def test_check_is_for_other_programs() -> None:
    """With --check the exit status is 1 where something is found, and 0 where nothing is."""
    assert run("scan", "--check").exit_code == 1
    assert run("scan", "--check", "--rule", "nowhere").exit_code == 0
    assert "Nothing was found in 2 sessions." in run("scan", "--rule", "nowhere").stdout


def test_rules_and_recognisers_are_the_policy() -> None:
    """What is asked for alone is looked for; a session, and a number of samples, can be named."""
    found = read("scan", "--rule", "ACME-[0-9]{6}", "--recogniser", "email", "--sample", "1")
    assert {(one["kind"], one["count"]) for one in found["findings"]} == {("email", 2), ("redact_patterns[0]", 2)}
    assert len(found["samples"]) == 1

    found = read("scan", "--rule", "ACME-[0-9]{6}", "--session", "two")
    assert found["sessions"] == 1
    assert found["samples"] == [
        {
            "session": "two",
            "where": 1,
            "kind": "redact_patterns[0]",
            "place": "content",
            "text": "…@example.com, order [REDACTED].",
        }
    ]


def test_a_policy_comes_from_a_file_or_from_privacy(here: Path) -> None:
    """--policy reads JSON; else it is what --privacy or the environment names."""
    (here / "policy.json").write_text(json.dumps({"redact_patterns": [["ACME-[0-9]+", "[ORDER]"]]}), encoding="utf-8")

    assert read("scan", "--policy", "policy.json")["samples"][0]["text"].endswith("order [ORDER].")
    assert read("scan", "--privacy", "policy.json")["samples"][0]["text"].endswith("order [ORDER].")
    assert read("scan", "--privacy", "secrets")["findings"] == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--rule", "ok", "--rule", "(a+)+$"], "redact_patterns[1]: '(a+)+$'"),
        (["--rule", "[invalid("], "redact_patterns[0]: '[invalid('"),
        (["--recogniser", "emial"], "did you mean 'email'?"),
        (["--policy", "nowhere.json"], "nowhere.json"),
        (["--policy", "policy.json", "--rule", "x"], "--policy has patterns"),
        (["--apply", "--json"], "give --yes"),
        (["--sample", "-1"], "--sample"),
    ],
)
def test_what_is_wrong_with_a_policy_is_named(options: list[str], told: str) -> None:
    """A pattern, a name or a file that is not accepted is told, with the exit status 2, and nothing is done."""
    result = run("scan", *options)

    assert result.exit_code == 2
    assert told in result.stderr


def test_a_session_that_is_not_there() -> None:
    """The exit status is 3, and the nearest id is told."""
    result = run("scan", "--session", "tow")

    assert result.exit_code == 3
    assert "did you mean 'two'?" in result.stderr


def test_apply_asks_first() -> None:
    """What would go is shown, then it asks; a no changes nothing, a yes redacts."""
    refused = run("scan", "--apply", given="n\n")
    assert refused.exit_code == 1
    assert "This cannot be undone. [y/N]" in refused.output
    assert texts("one")[0] == CHAT[0]["content"]

    done = run("scan", "--apply", given="y\n")
    assert done.exit_code == 0
    assert done.output.rstrip().endswith("Redacted 2 entries and 0 summaries, of 2 sessions.")
    assert texts("one")[0] == "I am [REDACTED], order ACME-123456."
    assert "Nothing was found in 2 sessions." in run("scan", "--apply").stdout


def test_yes_asks_nothing(here: Path) -> None:
    """With --yes it redacts at once; --json tells what was done; the bytes are gone."""
    done = read("scan", "--apply", "--yes")

    assert (done["redacted"], done["refused"], done["remains"]) == (2, [], [])
    assert [record["kind"] for record in read("history", "one")] == ["add", "redact"]
    assert b"jane" not in (here / "chats.db").read_bytes()


def test_a_withheld_type_is_erased(here: Path) -> None:
    """What the policy does not let persist is counted, and goes."""
    (here / "policy.json").write_text(json.dumps({"non_persistable_message_types": ["assistant"]}), encoding="utf-8")

    result = run("scan", "--policy", "policy.json", "--apply", "--yes")

    assert "Redacted 0 entries and 0 summaries, and 2 entries of withheld types, of 2 sessions." in result.stdout
    assert [record["kind"] for record in read("history", "one")] == ["add", "erase"]


def test_it_runs_as_a_program() -> None:
    """In a process of its own, without a terminal, nothing is asked that nobody can answer."""
    done = start("scan", "--apply", input="")

    assert done.returncode == 1
    assert "Aborted" in done.stderr
    assert start("scan", "--apply", "--yes").returncode == 0
    assert start("scan", "--check").returncode == 0
