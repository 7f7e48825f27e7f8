"""Turns that Anthropic pauses while its own tool runs: call and result stay together or are shown apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import rules_anthropic
from palimpsest import Context, Memory, Session
from palimpsest.errors import BudgetImpossible
from providers import FORMATS, PROVIDERS
from worlds import STORES

ASKED = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {}}
QUESTION = {"role": "user", "content": "look it up please"}


def said(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "found"}]}
PAUSED = said(text("I search."), ASKED)
GOES_ON = said(FOUND, text("here it is"))


@pytest.fixture(params=[*STORES, "encrypted"])
def session(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Session]:
    """A session in Anthropic's format in a store of each kind."""
    addresses = {"memory": "memory://", "file": f"file://{tmp_path}/logs"}
    sealed: dict[str, Any] = {"encryption": {"k": "11" * 32}} if request.param == "encrypted" else {}
    with Memory.open(addresses.get(request.param, tmp_path / "log.db"), **sealed) as memory:
        yield memory.session("s", format="anthropic")


def accepted(ctx: Context) -> list[Any]:
    """Return the messages of a context, checked by Anthropic's types and by the rules of the tests."""
    assert rules_anthropic.faults(ctx.messages) == []
    assert rules_anthropic.sdk_faults(ctx.request()) == []
    return ctx.messages


def test_a_paused_message_and_its_continuation_are_one_group(session: Session) -> None:
    """A paused message and the one that continues it are one group."""
    for message in (QUESTION, PAUSED, GOES_ON, QUESTION, said(text("and so on"))):
        session.add([message])

    assert [entry.group for entry in session.entries()] == [1, 2, 2, 4, 5]


@pytest.mark.wide
def test_a_paused_search_may_wait_for_a_client_tool(session: Session) -> None:
    """A search that calls the client's tool goes on after its result, in the same group, in their order."""
    for message in (QUESTION, said(ASKED, CALL), RESULT, GOES_ON):
        session.add([message])

    messages = accepted(session.context())

    assert [entry.group for entry in session.entries()] == [1, 2, 2, 2, 2]
    assert messages == [QUESTION, said(ASKED, CALL), RESULT, GOES_ON]


@pytest.mark.parametrize("format", FORMATS)
def test_messages_before_a_pause_are_sent_unchanged_while_the_turn_continues(session: Session, format: str) -> None:
    """While the rest of a turn comes, with calls that are still open, what came before the pause is sent as it was."""
    before: list[bytes] = []
    for message in (QUESTION, PAUSED, said(FOUND, text("more"), CALL), RESULT, said(text("done"))):
        session.add([message])

        ctx = session.context(format=format)

        now = PROVIDERS[format].blocks(ctx.messages)
        assert PROVIDERS[format].faults(ctx.messages) == []
        assert now[: len(before)] == before
        before = now


@pytest.mark.parametrize(
    "condition",
    [
        *(f"not contains(message.content, '{part}')" for part in ("I search", "more", "secret", "here", "found")),
        *("not message.has_tool_calls", "message.kind != 'tool_call'", "message.kind != 'tool_result'"),
    ],
)
def test_conditions_change_nothing_sent_before_a_pause(condition: str) -> None:
    """Messages, searches, calls and results that a condition drops change nothing that was sent before."""
    first, before = said(ASKED, {**CALL, "id": "toolu_0"}), list[bytes]()
    found = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_0", "content": "a secret"}]}
    secret = {**CALL, "input": {"about": "a secret"}}
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="anthropic", conditions=[condition])
        for message in (QUESTION, first, found, PAUSED, said(FOUND, text("more"), secret), RESULT, GOES_ON):
            session.add([message])

            ctx = session.context()

            now = PROVIDERS["anthropic"].blocks(accepted(ctx))
            assert now[: len(before)] == before
            before = now


@pytest.mark.wide
def test_a_paused_message_is_sent_back_as_it_came(session: Session) -> None:
    """A turn that is to go on is sent back as it came: the API then goes on with it."""
    session.add([QUESTION, PAUSED])

    assert accepted(session.context()) == [QUESTION, PAUSED]


def test_an_abandoned_pause_shows_its_search_as_failed(session: Session) -> None:
    """If the user speaks instead, the paused search is shown as failed."""
    session.add([QUESTION, PAUSED, {"role": "user", "content": "never mind"}])

    messages = accepted(session.context())

    error = {"type": "web_search_tool_result_error", "error_code": "unavailable"}
    assert messages[1] == said(text("I search."), ASKED, {**FOUND, "content": error})


def test_a_result_whose_search_was_erased_becomes_text(session: Session) -> None:
    """A result whose search was erased is shown as text in a fence."""
    session.add([QUESTION, PAUSED, GOES_ON])

    session.erase([2])
    messages = accepted(session.context())

    assert messages[1]["content"][0]["text"].startswith("<provider_item")
    assert messages[1]["content"][1] == text("here it is")


def test_searches_with_a_repeated_id_are_numbered(session: Session) -> None:
    """An id that comes back gets a number, in call and result alike, across a pause too."""
    session.add([QUESTION, PAUSED, GOES_ON, QUESTION, PAUSED, GOES_ON])

    messages = accepted(session.context())

    again = [block for block in messages[3]["content"] if block["type"] != "text"]
    assert again == [{**ASKED, "id": "srvtoolu_1_2"}, {**FOUND, "tool_use_id": "srvtoolu_1_2"}]


def test_paused_turns_are_valid_under_any_budget() -> None:
    """The API accepts a paused turn under any budget."""
    answer = said(text("I search. " + "word " * 60), ASKED)
    shown = 0
    with Memory.open("memory://") as memory:
        for limit in range(60, 400, 8):
            session = memory.session(f"s{limit}", max_tokens=limit, format="anthropic")
            session.add([QUESTION, answer, GOES_ON])
            try:
                ctx = session.context()
            except BudgetImpossible:
                continue
            assert ctx.tokens <= limit
            shown += "here it is" in str(accepted(ctx))
    assert shown


def test_validate_names_a_result_without_its_search() -> None:
    """`validate` names a result without its search."""
    from palimpsest.formats import find_format

    (problem,) = find_format("anthropic").validate([QUESTION, GOES_ON])

    assert "without its call before it" in str(problem)


def test_a_search_without_a_result_is_shown_as_failed(session: Session) -> None:
    """If the model continues without the search's result, a failure is shown before its text."""
    session.add([QUESTION, said(ASKED, CALL), RESULT, {"role": "assistant", "content": "never mind"}, QUESTION])

    messages = accepted(session.context())

    assert [block["type"] for block in messages[3]["content"]] == ["web_search_tool_result", "text"]


def test_a_paused_call_of_an_unknown_provider_tool_is_sent_unchanged(session: Session) -> None:
    """A paused call of an unknown provider tool is sent unchanged."""
    asked = {**ASKED, "name": "telepathy"}
    session.add([QUESTION, said(asked, CALL), RESULT, {"role": "assistant", "content": "well"}, QUESTION])

    messages = session.context().messages

    assert messages == [QUESTION, said(asked, CALL), RESULT, {"role": "assistant", "content": "well"}, QUESTION]
