"""`palimpsest compact`, `summaries` and `verify`: output, effect on the session, and exit status."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from click.testing import Result

from commands import read, run, write_lines
from sqlitestore import of


@pytest.fixture
def long_chat(here: Path) -> str:
    """A session of ten interactions, imported from JSON lines; returns its id."""
    messages = []
    for i in range(10):
        messages.append({"role": "user", "content": f"question {i} about order ORD-{1000 + i} " + "and more " * 30})
        messages.append({"role": "assistant", "content": f"answer {i} " + "in some detail " * 30})
    write_lines(here / "long.jsonl", messages)
    assert run("import", "long.jsonl", "--session", "long").exit_code == 0
    return "long"


def test_compact_prints_figures_and_the_summary(long_chat: str) -> None:
    """`compact` prints how many entries were covered, and the summary."""
    result = run("compact", long_chat, "--strategy", "summarizer", "--keep", "2")

    assert result.exit_code == 0
    assert "16 entries covered" in result.stdout
    assert "[Previous conversation summary]" in result.stdout
    assert "ORD-1003" in result.stdout


def test_compact_as_json(long_chat: str) -> None:
    """`compact --json` gives every figure, and the summary with its number of covered entries."""
    result = read("compact", long_chat, "--strategy", "summarizer", "--keep", "2")

    assert (result["covered"], result["reason"], result["dry_run"]) == (16, None, False)
    assert result["summary"]["entries"] == 16
    assert result["summary"]["method"] == "heuristic"
    assert result["tokens_saved"] == result["tokens_before"] - result["tokens_after"] > 0


def test_a_dry_run_writes_nothing(long_chat: str, here: Path) -> None:
    """`compact --dry-run` prints what would be done and changes no byte of the store."""
    before = (here / "chats.db").read_bytes()

    result = run("compact", long_chat, "--dry-run")

    assert result.exit_code == 0
    assert "would be" in result.stdout
    assert (here / "chats.db").read_bytes() == before
    assert read("summaries", long_chat) == []


def test_nothing_to_compact_exits_with_0(long_chat: str) -> None:
    """A compaction with nothing to do, or below its threshold, says so and exits with 0."""
    run("compact", long_chat, "--strategy", "summarizer", "--keep", "2")

    again = run("compact", long_chat, "--strategy", "summarizer", "--keep", "2")
    below = run("compact", long_chat, "--strategy", "simple_fifo", "--max-tokens", "100000", "--if-over", "0.5")

    assert (again.exit_code, below.exit_code) == (0, 0)
    assert "nothing to compact" in again.stdout
    assert "below threshold" in below.stdout


def test_summaries_are_listed_expanded_and_restored(long_chat: str) -> None:
    """`summaries` lists summaries, `--expand` shows what they cover, and `--restore` makes those entries active.

    `--all` also lists summaries that were restored.
    """
    run("compact", long_chat, "--strategy", "summarizer", "--keep", "2")
    (summary,) = read("summaries", long_chat)
    (expanded,) = read("summaries", long_chat, "--expand")

    assert [entry["seq"] for entry in expanded["covered"]] == list(range(1, 17))
    assert "question 0" in run("summaries", long_chat, "--expand").stdout
    restored = run("summaries", long_chat, "--restore", summary["id"])
    assert restored.exit_code == 0
    assert "16 entries active again" in restored.stdout
    assert read("summaries", long_chat) == []
    assert [one["version"] for one in read("summaries", long_chat, "--all")] == [1]


def test_an_unknown_summary_or_strategy_is_refused(long_chat: str) -> None:
    """An unknown summary exits with 3; an unknown strategy exits with 2 and lists the known ones."""
    run("compact", long_chat)

    missing = run("summaries", long_chat, "--restore", "nobody")
    unknown = run("compact", long_chat, "--strategy", "magic")
    share = run("compact", long_chat, "--if-over", "1.5")

    assert (missing.exit_code, unknown.exit_code, share.exit_code) == (3, 2, 2)
    assert "nobody" in missing.stderr
    assert "hybrid_summary" in unknown.stderr
    assert run("compact", "nobody").exit_code == 3


def test_a_summarizer_that_cannot_be_reached_exits_with_1(long_chat: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A summarizer that gives no answer exits with 1, prints the reason, and changes nothing."""
    before = read("verify", long_chat)

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    result = run("compact", long_chat, "--strategy", "summarizer", "--summarizer", "openai:gpt-4o-mini")

    assert result.exit_code == 1
    assert "openai" in result.stderr
    assert read("verify", long_chat) == before


def test_verify_counts_every_entry(long_chat: str) -> None:
    """`verify` reports all sessions or one, with each entry counted in one state, and exits with 0 if all are sound."""
    run("compact", long_chat, "--strategy", "summarizer", "--keep", "2")

    report = read("verify")

    assert report[long_chat]["covered"] == 16
    assert report[long_chat]["active"] == 4
    assert report[long_chat]["ok"]
    assert run("verify", long_chat).exit_code == 0
    assert run("verify", "nobody").exit_code == 3


def test_verify_exits_with_1_for_a_damaged_session(long_chat: str, here: Path) -> None:
    """`verify` names a session whose records are incomplete, says what is missing, and exits with 1."""
    run("compact", long_chat, "--strategy", "summarizer", "--keep", "2")
    database = sqlite3.connect(here / "chats.db")
    database.execute(f"DELETE FROM other WHERE {of('record')}")
    database.commit()
    database.close()

    result = run("verify", long_chat)

    assert result.exit_code == 1
    assert "has no record" in result.stderr


def test_stats_count_summaries(long_chat: str) -> None:
    """`stats` counts the summaries of a session."""
    run("compact", long_chat, "--strategy", "summarizer")
    figures = read("stats", long_chat)
    assert figures["summaries"] == 1
    assert json.dumps(figures)


# --- what destroys


def neuralyze(session: str, *more: str, given: str | None = None) -> Result:
    """Run the `neuralyzer` strategy, which erases, and keep two interactions."""
    return run("compact", session, "--strategy", "neuralyzer", "--keep", "2", *more, given=given)


def erased(session: str) -> int:
    """Return how many entries of the session are tombstones."""
    return sum(entry.get("erased", False) for entry in read("show", session, "--all"))


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_erasing_needs_yes_where_nobody_can_be_asked(long_chat: str, more: tuple[str, ...]) -> None:
    """Without a terminal, or with `--json`, the neuralyzer erases nothing unless `--yes` is given."""
    refused = neuralyze(long_chat, *more)

    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    assert erased(long_chat) == 0
    assert neuralyze(long_chat, *more, "--yes").exit_code == 0
    assert erased(long_chat) == 16


def test_erasing_asks_at_a_terminal(long_chat: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a terminal the neuralyzer shows what would be erased and asks; strategies that erase nothing do not ask."""
    monkeypatch.setattr("palimpsest.cli.app.on_terminal", lambda stream=None: stream is not None)

    declined = neuralyze(long_chat, given="n\n")

    assert declined.exit_code != 0
    assert "16 entries erased" in declined.stdout
    assert "Destroy this?" in declined.stderr
    assert erased(long_chat) == 0
    assert "Destroy this?" not in neuralyze(long_chat, "--dry-run").output
    assert "Destroy this?" not in run("compact", long_chat, "--strategy", "lru", "--max-messages", "18").output
    assert neuralyze(long_chat, given="y\n").exit_code == 0
    assert erased(long_chat) == 16
