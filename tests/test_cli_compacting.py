"""`palimpsest compact`, `summaries` and `verify`: what they print, what they change, how they end."""

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


def test_compact_says_what_it_did(long_chat: str) -> None:
    """Figures of before and after, and the summary itself."""
    ended = run("compact", long_chat, "--strategy", "summarizer", "--keep", "2")

    assert ended.exit_code == 0
    assert "16 entries covered" in ended.stdout
    assert "[Previous conversation summary]" in ended.stdout
    assert "ORD-1003" in ended.stdout


def test_compact_as_json(long_chat: str) -> None:
    """`--json` gives every figure, the summary with its coverage among them."""
    told = read("compact", long_chat, "--strategy", "summarizer", "--keep", "2")

    assert (told["covered"], told["reason"], told["dry_run"]) == (16, None, False)
    assert told["summary"]["entries"] == 16
    assert told["summary"]["method"] == "heuristic"
    assert told["tokens_saved"] == told["tokens_before"] - told["tokens_after"] > 0


def test_a_dry_run_writes_nothing(long_chat: str, here: Path) -> None:
    """`--dry-run` says what would be done; no byte of the store changes, and there are no summaries."""
    before = (here / "chats.db").read_bytes()

    ended = run("compact", long_chat, "--dry-run")

    assert ended.exit_code == 0
    assert "would be" in ended.stdout
    assert (here / "chats.db").read_bytes() == before
    assert read("summaries", long_chat) == []


def test_nothing_to_do_is_no_error(long_chat: str) -> None:
    """A second compaction has nothing to do, says so and ends well; below a threshold, too."""
    run("compact", long_chat, "--strategy", "summarizer", "--keep", "2")

    again = run("compact", long_chat, "--strategy", "summarizer", "--keep", "2")
    below = run("compact", long_chat, "--strategy", "simple_fifo", "--max-tokens", "100000", "--if-over", "0.5")

    assert (again.exit_code, below.exit_code) == (0, 0)
    assert "nothing to compact" in again.stdout
    assert "below threshold" in below.stdout


def test_summaries_are_listed_expanded_and_restored(long_chat: str) -> None:
    """The summary is printed, expanded to what it covers, and taken back by its id."""
    run("compact", long_chat, "--strategy", "summarizer", "--keep", "2")
    (made,) = read("summaries", long_chat)
    (expanded,) = read("summaries", long_chat, "--expand")

    assert [entry["seq"] for entry in expanded["covered"]] == list(range(1, 17))
    assert "question 0" in run("summaries", long_chat, "--expand").stdout
    restored = run("summaries", long_chat, "--restore", made["id"])
    assert restored.exit_code == 0
    assert "16 entries back" in restored.stdout
    assert read("summaries", long_chat) == []
    assert [one["version"] for one in read("summaries", long_chat, "--all")] == [1]


def test_an_unknown_summary_or_strategy_is_named(long_chat: str) -> None:
    """An id that is no summary's ends with 3, a strategy that does not exist with 2 and the list of those that do."""
    run("compact", long_chat)

    missing = run("summaries", long_chat, "--restore", "nobody")
    unknown = run("compact", long_chat, "--strategy", "magic")
    share = run("compact", long_chat, "--if-over", "1.5")

    assert (missing.exit_code, unknown.exit_code, share.exit_code) == (3, 2, 2)
    assert "nobody" in missing.stderr
    assert "hybrid_summary" in unknown.stderr
    assert run("compact", "nobody").exit_code == 3


def test_a_summarizer_that_cannot_be_reached_ends_with_one(long_chat: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that gives no answer changes nothing; the reason is told, and the exit status is 1."""
    before = read("verify", long_chat)

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    ended = run("compact", long_chat, "--strategy", "summarizer", "--summarizer", "openai:gpt-4o-mini")

    assert ended.exit_code == 1
    assert "openai" in ended.stderr
    assert read("verify", long_chat) == before


def test_verify_counts_every_entry(long_chat: str) -> None:
    """All sessions, or one: each entry in one state; ends with 0 where all is whole."""
    run("compact", long_chat, "--strategy", "summarizer", "--keep", "2")

    told = read("verify")

    assert told[long_chat]["covered"] == 16
    assert told[long_chat]["active"] == 4
    assert told[long_chat]["ok"]
    assert run("verify", long_chat).exit_code == 0
    assert run("verify", "nobody").exit_code == 3


def test_verify_ends_with_one_where_something_is_wrong(long_chat: str, here: Path) -> None:
    """A session whose records do not hold together is named with what is wrong."""
    run("compact", long_chat, "--strategy", "summarizer", "--keep", "2")
    raw = sqlite3.connect(here / "chats.db")
    raw.execute(f"DELETE FROM other WHERE {of('record')}")
    raw.commit()
    raw.close()

    ended = run("verify", long_chat)

    assert ended.exit_code == 1
    assert "has no record" in ended.stderr


def test_stats_tell_what_summaries_cost(long_chat: str) -> None:
    """The figures of a session count summaries and what they have cost."""
    run("compact", long_chat, "--strategy", "summarizer")
    figures = read("stats", long_chat)
    assert figures["summaries"] == 1
    assert json.dumps(figures)


# --- what destroys


def neuralyze(session: str, *more: str, given: str | None = None) -> Result:
    """Have the neuralyzer keep two interactions."""
    return run("compact", session, "--strategy", "neuralyzer", "--keep", "2", *more, given=given)


def erased(session: str) -> int:
    """How many entries of the session are tombstones."""
    return sum(entry.get("erased", False) for entry in read("show", session, "--all"))


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_what_destroys_is_not_done_where_nobody_can_be_asked(long_chat: str, more: tuple[str, ...]) -> None:
    """Without a terminal, or with --json, the neuralyzer destroys nothing unless --yes says so."""
    refused = neuralyze(long_chat, *more)

    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    assert erased(long_chat) == 0
    assert neuralyze(long_chat, *more, "--yes").exit_code == 0
    assert erased(long_chat) == 16


def test_what_destroys_asks(long_chat: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The neuralyzer shows what would go, and goes on when that is confirmed; other strategies ask nothing."""
    monkeypatch.setattr("palimpsest.cli.app.on_terminal", lambda stream=None: stream is not None)

    declined = neuralyze(long_chat, given="n\n")

    assert declined.exit_code != 0
    assert "16 entries erased" in declined.stdout
    assert "Destroy this?" in declined.stdout
    assert erased(long_chat) == 0
    assert "Destroy this?" not in neuralyze(long_chat, "--dry-run").stdout
    assert "Destroy this?" not in run("compact", long_chat, "--strategy", "lru", "--max-messages", "18").stdout
    assert neuralyze(long_chat, given="y\n").exit_code == 0
    assert erased(long_chat) == 16
