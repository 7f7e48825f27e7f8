"""`palimpsest scan`: what it shows, asks and redacts, and its exit status."""

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
    """Make two sessions that hold an e-mail address."""
    write_lines(here / "chat.jsonl", CHAT)
    for session in ("one", "two"):
        assert run("import", "chat.jsonl", "--session", session).exit_code == 0


def test_scan_shows_findings_and_changes_nothing() -> None:
    """`scan` prints kinds, places, redacted samples and the next step, exits with 0, and changes nothing."""
    result = run("scan")

    assert result.exit_code == 0
    assert [" ".join(line.split()) for line in result.stdout.splitlines()] == [
        "kind place found",
        "email content 2",
        "",
        "session where kind would become",
        "one entry 1 email I am [REDACTED], order ACME-123456.",
        "two entry 1 email I am [REDACTED], order ACME-123456.",
        "",
        "Found something in 2 entries and 0 summaries, of 2 sessions.",
    ]
    assert "Run it again with --apply" in result.stderr
    assert "jane" not in result.output
    assert texts("one")[0] == CHAT[0]["content"]


def test_check_exits_with_1_if_something_is_found() -> None:
    """`scan --check` exits with 1 if something is found and with 0 if nothing is."""
    assert run("scan", "--check").exit_code == 1
    assert run("scan", "--check", "--rule", "nowhere").exit_code == 0
    assert "Nothing was found in 2 sessions." in run("scan", "--rule", "nowhere").stdout


def test_rules_and_recognisers_select_what_is_searched() -> None:
    """`--rule` and `--recogniser` replace the policy; `--session` and `--sample` limit sessions and samples."""
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
    """The policy is read from `--policy`, or else from `--privacy` or the environment."""
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
def test_a_bad_policy_or_option_of_scan_is_named(options: list[str], told: str) -> None:
    """A bad pattern, name, file or option exits with 2 and is named, and nothing is done."""
    result = run("scan", *options)

    assert result.exit_code == 2
    assert told in result.stderr


def test_an_unknown_session_of_scan_exits_with_3() -> None:
    """An unknown session exits with 3 and suggests the nearest id."""
    result = run("scan", "--session", "tow")

    assert result.exit_code == 3
    assert "did you mean 'two'?" in result.stderr


def test_apply_asks_before_it_redacts() -> None:
    """`scan --apply` shows what would be redacted and asks: a no changes nothing, a yes redacts."""
    refused = run("scan", "--apply", given="n\n")
    assert refused.exit_code == 1
    assert "This cannot be undone. [y/N]" in refused.output
    assert texts("one")[0] == CHAT[0]["content"]

    done = run("scan", "--apply", given="y\n")
    assert done.exit_code == 0
    assert done.output.rstrip().endswith("Redacted 2 entries and 0 summaries, of 2 sessions.")
    assert texts("one")[0] == "I am [REDACTED], order ACME-123456."
    assert "Nothing was found in 2 sessions." in run("scan", "--apply").stdout


def test_apply_with_yes_redacts_without_asking(here: Path) -> None:
    """`scan --apply --yes` redacts without asking, down to the bytes of the file; `--json` reports what was done."""
    done = read("scan", "--apply", "--yes")

    assert (done["redacted"], done["refused"], done["remains"]) == (2, [], [])
    assert [record["kind"] for record in read("history", "one")] == ["add", "redact"]
    assert b"jane" not in (here / "chats.db").read_bytes()


def test_an_entry_of_a_withheld_type_is_erased(here: Path) -> None:
    """`--apply` erases entries of a type that the policy does not let persist, and counts them."""
    (here / "policy.json").write_text(json.dumps({"non_persistable_message_types": ["assistant"]}), encoding="utf-8")

    result = run("scan", "--policy", "policy.json", "--apply", "--yes")

    assert "Redacted 0 entries and 0 summaries, and 2 entries of withheld types, of 2 sessions." in result.stdout
    assert [record["kind"] for record in read("history", "one")] == ["add", "erase"]


def test_scan_runs_as_a_process() -> None:
    """Run as a process without a terminal, `--apply` aborts unless `--yes` is given."""
    done = start("scan", "--apply", input="")

    assert done.returncode == 1
    assert "Aborted" in done.stderr
    assert start("scan", "--apply", "--yes").returncode == 0
    assert start("scan", "--check").returncode == 0
