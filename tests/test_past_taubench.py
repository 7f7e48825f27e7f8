"""On real conversations `context(at=…)` and `palimpsest diff` agree with a recording of the calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commands import read
from palimpsest import Memory, Session
from recordings import joined, tau_bench

SYSTEM = "You are a customer service agent of an airline."
FORMATS = ("openai", "openai-responses", "anthropic", "gemini", "text")


@pytest.fixture(scope="module")
def messages() -> list[dict[str, Any]]:
    return joined(tau_bench()[:15])


def recorded(session: Session, messages: list[dict[str, Any]]) -> dict[int, list[Any]]:
    """Add the messages one by one; record by revision what each answer of the model was given."""
    calls: dict[int, list[Any]] = {}
    for message in messages:
        if message["role"] == "assistant":
            given = session.context(system=SYSTEM)
            calls[given.revision] = json.loads(json.dumps(given.messages))
        session.add(message, format="openai")
    return calls


@pytest.mark.sampled
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("budget", [2_500, pytest.param(8_000, marks=pytest.mark.slow)])
def test_past_contexts_equal_the_recorded_ones(
    tmp_path: Path, messages: list[dict[str, Any]], format: str, budget: int
) -> None:
    """Every call of fifteen joined conversations, in every format, equals its recording, read by another memory."""
    with Memory.open(tmp_path / "log.db", synchronous="NORMAL") as memory:
        options: Any = {"model": "gpt-4o", "max_tokens": budget, "format": format}
        calls = recorded(memory.session("s", **options), messages)
        branch = memory.session("s", **options).fork("branch")
        memory.session("s", **options).rewind(0)
    cuts = 0
    with Memory.open(tmp_path / "log.db", readonly=True) as memory:
        for name in ("s", branch.id):
            session = memory.session(name, format=format)
            cuts += session.stats().cuts
            for revision, given in list(calls.items())[:: 1 if name == "s" else 7]:
                assert session.context(at=revision, system=SYSTEM).messages == given
    assert len(calls) > 90
    assert cuts > 4


def test_a_diff_turns_one_recorded_context_into_the_next(
    here: Path, monkeypatch: pytest.MonkeyPatch, messages: list[dict[str, Any]]
) -> None:
    """Applying a diff to the earlier recorded context gives the later one; cuts in between are named."""
    with Memory.open(here / "chats.db", synchronous="NORMAL") as memory:
        session = memory.session("air", model="gpt-4o", max_tokens=4_000)
        calls = {revision: given[1:] for revision, given in recorded(session, messages).items()}  # without system text
        cuts = {record.revision for record in session.history() if record.kind == "cut"}
    revisions = list(calls)

    for one, other in [*zip(revisions[:60:6], revisions[1:60:6], strict=False), (revisions[3], revisions[-1])]:
        told = read("diff", "air", str(one), str(other))

        given, made, position = calls[one], list[Any](), 0
        for change in told["changes"]:
            kept = change.get("kept", 0)
            made += given[position : position + kept]
            position += kept
            for removed in change.get("removed", []):
                assert given[removed["index"]] == removed["message"]
                position += 1
            for added in change.get("added", []):
                assert len(made) == added["index"]
                made.append(added["message"])
        assert made == calls[other]
        assert {record["revision"] for record in told["records"] if record["kind"] == "cut"} == {
            cut for cut in cuts if one <= cut <= other and cut != one
        }
        if not told["records"]:
            assert told["same_prefix"] == len(given)
