"""Acceptance of privacy policies: the examples in the bytes of every store, refusals, and failures."""

from __future__ import annotations

import json
import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from commands import run
from palimpsest import ConfigError, Memory, PalimpsestError, StoreUnavailable
from palimpsest.errors import PrivacyRefused
from palimpsest.privacy.redaction import Redactor
from palimpsest.strategies import CallableSummarizer
from sealed import bytes_of
from watched_memory import found_in
from writer import quarters

SSN = {"redact_patterns": [r"\b\d{3}-\d{2}-\d{4}\b"], "default_redaction_string": "[SSN]"}
BOTH = {"redact_patterns": [r"\b\d{3}-\d{4}\b", r"[\w.]+@[\w.]+\.\w+"]}
EXAMPLES = [
    (SSN, "My SSN is 123-45-6789", "My SSN is [SSN]", ("123-45-6789",)),
    (
        BOTH,
        "My phone is 555-1234 and email is test@example.com",
        "My phone is [REDACTED] and email is [REDACTED]",
        ("555-1234", "test@example.com"),
    ),
]


@pytest.mark.parametrize("kind", ["sqlite", "file"])
@pytest.mark.parametrize(("policy", "said", "kept", "private"), EXAMPLES, ids=["one pattern", "two patterns"])
def test_every_way_of_adding_stores_the_same_redacted_text(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    policy: dict[str, Any],
    said: str,
    kept: str,
    private: tuple[str, ...],
) -> None:
    """Append, batch, import, command line and summaries store the same redacted text; no file or log has another."""
    caplog.set_level(logging.DEBUG)
    folder = tmp_path / "store"
    folder.mkdir()
    where = f"sqlite:///{folder}/log.db" if kind == "sqlite" else f"file://{folder}/logs"
    told: list[object] = []

    def summarizer(prompt: str) -> str:
        told.append(prompt)
        return f"The human said: {said}"

    with Memory.open(where, privacy=policy) as memory:
        for event in ("entry:added", "compressed", "compaction:failed", "session:imported"):
            memory.on(event, lambda session, facts: told.append(facts))
        one = memory.session("append")
        assert one.add_user_message(said).text == kept
        assert one.add_context(said, name=said).name == kept
        assert json.loads(one.add_tool_call("f", {said: said}, call_id="c").content) == {kept: kept}
        assert one.add_tool_result("f", said, call_id="c", metadata={said: [said]}).metadata == {kept: [kept]}
        batch = memory.session("batch").add([{"role": "user", "content": said}, {"role": "assistant", "content": said}])
        assert [entry.text for entry in batch] == [kept, kept]
        path = tmp_path / "talk.jsonl"
        path.write_text(json.dumps({"role": "user", "content": said}), encoding="utf-8")
        memory.import_file(path, session_id="import")
        with Memory.open("memory://") as other:
            other.session("export").add_user_message(said)
            memory.import_session(other.session("export").export())
        summed = memory.session("summary", counter=quarters, summarizer=CallableSummarizer(summarizer, checked=False))
        for number in range(4):
            summed.add_user_message(f"{number} {said} " + "and much more " * 40)
            summed.add_assistant_message("an answer " * 40)
        summed.compact({"strategy": "summarizer", "interaction_keep": 1, "cod_max_loops": 0, "summary_floor": 10})
        assert kept in summed.summaries()[0].text
        for name in ("import", "export"):
            assert memory.session(name).entries()[0].text == kept
        told += [memory.session(one.session).export() for one in memory.sessions()]
        (tmp_path / "policy.json").write_text(json.dumps(policy), encoding="utf-8")
    options = ("--store", where, "--privacy", str(tmp_path / "policy.json"))
    result = run("import", str(path), "--session", "shell", *options)
    assert result.exit_code == 0, result.output

    data = bytes_of(folder)
    assert data.count(kept.encode()) >= 10
    for text in private:
        assert found_in(data, text) == []
        assert found_in(f"{told!r} {caplog.text} {result.output}".encode(), text) == []


def test_private_text_is_redacted_before_it_is_counted(tmp_path: Path) -> None:
    """No counter sees private text, of entries, of a context or of a summary."""
    counted: list[str] = []

    def counter(text: str) -> int:
        counted.append(text)
        return quarters(text)

    said = f"{EXAMPLES[0][1]} " + "and much more " * 40
    with Memory.open("memory://", privacy=SSN) as memory:
        session = memory.session("s", counter=counter, max_tokens=2_000, summarizer=lambda prompt: EXAMPLES[0][1])
        for _ in range(4):
            session.add_user_message(said, name="123-45-6789")
            session.add_tool_call("f", {"ssn": "123-45-6789"}, call_id="c")
            session.add_tool_result("f", said, call_id="c")
            session.add_assistant_message("an answer " * 40)
            session.context()
        session.compact({"strategy": "summarizer", "interaction_keep": 1, "cod_max_loops": 0, "summary_floor": 10})
        session.context()

        assert session.summaries()[0].text == "My SSN is [SSN]"
    assert any("[SSN]" in text for text in counted)
    assert [text for text in counted if "123-45-6789" in text] == []


def test_a_message_is_checked_before_waiting_for_a_lock(tmp_path: Path) -> None:
    """A message that cannot be checked is refused at once, even while another process holds the write lock."""
    path = tmp_path / "log.db"
    with Memory.open(path, busy_seconds=0, privacy={"recognisers": [Flaky(3)]}) as memory:
        session = memory.session("s")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")

            assert refusal(session).kind == "error"
            with pytest.raises(StoreUnavailable):
                session.add_user_message("something private")


@pytest.mark.parametrize("pattern", ["(a+)+", "(a*)*", "(a|a)*", "(.+)+", "(x+x+)+y", "(.*a){10,}", "[invalid("])
def test_an_invalid_or_exponential_pattern_is_refused_at_load(pattern: str) -> None:
    """A pattern that is invalid, or can backtrack exponentially, is refused with its index."""
    with pytest.raises(ConfigError) as refused:
        Memory.open("memory://", privacy={"redact_patterns": [r"\d+", pattern]})

    assert "redact_patterns[1]" in refused.value.where


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"\b\d{3}-\d{2}-\d{4}\b", "123-45-6789"),
        (r"(\d{3}-)+\d{4}", "123-456-7890"),
        (r"(?i)(?:password|pwd)\s*[:=]\s*\S+", "PWD = secret"),
    ],
)
def test_harmless_patterns_are_accepted(pattern: str, text: str) -> None:
    """Patterns with repeated groups and inline flags are accepted and redact."""
    with Memory.open("memory://", privacy={"redact_patterns": [pattern]}) as memory:
        assert memory.session("s").add_user_message(f"it is {text}, see").text.startswith("it is [REDACTED]")


@pytest.mark.parametrize("withheld", ["system", "SYSTEM"])
def test_withheld_types_ignore_case(withheld: str) -> None:
    """A message of a type that may not be kept is in this process's contexts and not in the log; case is ignored."""
    with Memory.open("memory://", privacy={"non_persistable_message_types": [withheld]}) as memory:
        session = memory.session("s", counter=quarters)
        session.add_system_message("be kind")
        session.add_user_message("hello")

        assert "be kind" in str(session.context().messages)
        assert [entry.text for entry in session.entries()] == ["hello"]


class Flaky:
    """A recogniser that fails a number of times and then finds the word "private"."""

    __name__ = "flaky"

    def __init__(self, failures: int) -> None:
        self.failures, self.asked = failures, 0

    def __call__(self, text: str) -> list[tuple[int, int, str]]:
        self.asked += 1
        if self.failures > 0:
            self.failures -= 1
            raise RuntimeError(text)
        start = text.find("private")
        return [(start, start + 7, "word")] if start >= 0 else []


def test_a_recogniser_that_succeeds_at_the_third_try_redacts() -> None:
    """A failing recogniser is tried twice more; if that succeeds, the text is stored redacted."""
    with Memory.open("memory://", privacy={"recognisers": [Flaky(2)]}) as memory:
        assert memory.session("s").add_user_message("something private").text == "something [REDACTED]"


def test_three_failures_of_a_recogniser_store_nothing_and_raise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After three failures nothing is stored; event and error name the rule and hold nothing of the text."""
    caplog.set_level(logging.DEBUG)
    flaky, told = Flaky(3), list[object]()
    with Memory.open(tmp_path / "log.db", privacy={"recognisers": [flaky]}) as memory:
        memory.on("privacy:refused", lambda session, facts: told.append((session, facts)))
        session = memory.session("s")
        with pytest.raises(PrivacyRefused) as refused:
            session.add_user_message("something private")

        assert flaky.asked == 3
        assert memory.sessions() == []
        assert told == [("s", {"rule": "recognisers.flaky", "kind": "error", "why": "it raised RuntimeError"})]
        assert (refused.value.rule, refused.value.kind) == ("recognisers.flaky", "error")
        assert refused.value.__cause__ is None
        assert session.add_user_message("something private").text == "something [REDACTED]"
    assert found_in(bytes_of(tmp_path) + f"{told} {refused.value} {caplog.text}".encode(), "something private") == []


def test_observers_hear_how_many_entries_were_redacted() -> None:
    """`privacy:redacted` says of how many entries of a batch private text was redacted or withheld, not which text."""
    told = list[object]()
    policy = {"redact_patterns": ["secret-[0-9]+"], "non_persistable_message_types": ["system"]}
    with Memory.open("memory://", privacy=policy) as memory:
        memory.on("privacy:redacted", lambda session, facts: told.append((session, facts)))
        session = memory.session("s", counter=quarters)
        session.add_user_message("nothing private")
        session.add(
            [
                {"role": "system", "content": "be kind"},
                {"role": "user", "content": "secret-1 and secret-2"},
                {"role": "assistant", "content": "fine"},
            ]
        )
        session.replace([{"role": "user", "content": "secret-3"}])

    assert told == [("s", {"entries": 2}), ("s", {"entries": 1})]


def test_the_breaker_opens_and_recovers() -> None:
    """After ten refusals in a row nothing is tried for five seconds; then one try closes or reopens the breaker."""
    now = [100.0]
    flaky = Flaky(33)
    redactor = Redactor({"recognisers": [flaky]}, clock=lambda: now[0])
    with Memory.open("memory://", privacy=redactor) as memory:
        session = memory.session("s")
        for _ in range(10):
            assert refusal(session).kind == "error"
        assert flaky.asked == 30
        paused = refusal(session)
        assert (paused.kind, flaky.asked) == ("paused", 30)
        assert "5.0 s" in str(paused)
        now[0] += 4.9
        assert refusal(session).kind == "paused"
        now[0] += 0.2
        assert refusal(session).kind == "error"
        assert refusal(session).kind == "paused"
        now[0] += 5.1
        assert session.add_user_message("something private").text == "something [REDACTED]"
        assert session.add_user_message("more").text == "more"
        assert len(session.entries()) == 2


def refusal(session: Any) -> PrivacyRefused:
    """Return the error with which a message is refused."""
    with pytest.raises(PalimpsestError) as refused:
        session.add_user_message("something private")
    assert isinstance(refused.value, PrivacyRefused)
    return refused.value
