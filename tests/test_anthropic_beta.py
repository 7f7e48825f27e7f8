"""What Anthropic's API has in beta: models that stand in for one that declines, and summaries of the API's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from palimpsest import Memory, Session
from palimpsest.formats import find_format
from sdks import load

Block = dict[str, Any]

SEAM = {"type": "fallback", "from": {"model": "claude-fable-5-1"}, "to": {"model": "claude-opus-5"}, "trigger": None}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {}}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
SUMMARY = {"type": "compaction", "content": "<summary>They spoke of Oslo.</summary>", "signature": "c2ln"}


@pytest.fixture
def session() -> Iterator[Session]:
    with Memory.open("memory://") as memory:
        yield memory.session("s", format="anthropic", model="claude-opus-5")


def text(words: str) -> Block:
    return {"type": "text", "text": words}


def test_unfinished_calls_of_a_declined_model_are_not_sent_back(session: Session) -> None:
    """Before the last seam only texts and finished searches go back, and no result is awaited for a call there."""
    left = [THOUGHT, text("I"), CALL, {"type": "connector_text", "text": "x"}, SEARCH, SEAM, text("I see."), SEAM]
    answer = {"role": "assistant", "content": [*left, THOUGHT, {**CALL, "id": "toolu_2"}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_2", "content": "found"}]}
    session.add([{"role": "user", "content": "Find it."}, answer, result])

    context = session.context()

    sent = [text("I"), SEAM, text("I see."), SEAM, THOUGHT, {**CALL, "id": "toolu_2"}]
    assert context.messages[1]["content"] == sent
    assert context.pending == ()
    assert len(context.report.adapted) == 4
    assert find_format("anthropic").encode(session.entries())[1] == answer


def test_a_finished_search_of_a_declined_model_is_sent_back(session: Session) -> None:
    """A hosted call goes back if its result has come before the model declined."""
    content = [SEARCH, FOUND, SEAM, text("Found.")]
    session.add([{"role": "user", "content": "Find it."}, {"role": "assistant", "content": content}])

    assert session.context().messages[1]["content"] == content


def test_an_answer_with_an_unfinished_call_of_a_declined_model_is_shown(session: Session) -> None:
    """An answer with such a call and nothing else to answer is complete: a context shows it at once."""
    content = [CALL, SEAM, text("Sorry.")]
    session.add([{"role": "user", "content": "Find it."}, {"role": "assistant", "content": content}])

    assert session.context().messages[1]["content"] == content[1:]
    assert session.stats().open_calls == ()


@pytest.mark.parametrize("dumps", [{}, {"by_alias": True}, {"mode": "json"}], ids=str)
def test_a_fallback_block_is_sent_with_the_keys_of_the_api(session: Session, dumps: dict[str, Any]) -> None:
    """A block whose key is a word of Python goes back as the API spells it, however the client dumped it."""
    types = load("anthropic.types.beta")
    trigger = {"type": "refusal", "category": None}
    block = types.BetaFallbackBlock.model_validate({**SEAM, "trigger": trigger})
    content = [block.model_dump(**dumps), text("Yes.")]
    session.add([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": content}])

    assert session.context().messages[1]["content"] == [{**SEAM, "trigger": trigger}, text("Yes.")]


def test_a_signed_summary_is_sent_only_as_the_first_block(session: Session) -> None:
    """A signed summary of the API's own begins a request as it came, without an opening; elsewhere it is text."""
    session.add([{"role": "assistant", "content": [SUMMARY]}, {"role": "user", "content": "Go on."}])
    session.add([{"role": "assistant", "content": [SUMMARY, text("Yes.")]}, {"role": "user", "content": "And?"}])

    messages = session.context().messages

    assert [message["role"] for message in messages] == ["assistant", "user", "assistant", "user"]
    assert messages[0]["content"] == [SUMMARY]
    assert messages[2]["content"][0]["text"].startswith('<provider_item type="compaction">')
    assert "They spoke of Oslo." in messages[2]["content"][0]["text"]


def test_a_summary_made_at_a_threshold_comes_back_as_it_was(session: Session) -> None:
    """A summary with encrypted content stays where it is and keeps its text, tags included."""
    summary = {"type": "compaction", "content": "<summary>Oslo</summary>", "encrypted_content": "eA=="}
    said = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": [summary, text("Yes.")]}]
    session.add(said)

    assert session.context().messages == said


def test_an_overtaken_call_of_an_adviser_gets_a_failed_result(session: Session) -> None:
    """A call of an adviser that the user overtakes gets a result that says that it failed."""
    call = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "advisor", "input": {}}
    session.add([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": [text("I ask."), call]}])
    session.add({"role": "user", "content": "Never mind."})

    assert session.context().messages[1]["content"][-1] == {
        "type": "advisor_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": {"type": "advisor_tool_result_error", "error_code": "unavailable"},
    }
