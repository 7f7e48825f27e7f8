"""A request can be made again, and for another model than the session's."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from palimpsest import AsyncMemory, ConfigError, Entry, Memory, PalimpsestWarning, Session
from palimpsest.log.entry import Status
from palimpsest.testing import FakeClock

QUESTION = {"role": "user", "content": "Which gate?"}
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "B 12"}
PICTURE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


@pytest.mark.parametrize(
    "batch",
    [[QUESTION], [RESULT], [{"role": "user", "content": [{"type": "text", "text": "This?"}, PICTURE]}, QUESTION]],
    ids=["a question", "a result", "several"],
)
def test_unless_last_skips_messages_at_the_end_of_the_log(memory: Memory, batch: list[dict[str, object]]) -> None:
    """With `unless_last`, messages with which the log ends are not added again; their entries are returned."""
    memory.session("s").add([QUESTION, CALLING])
    first = memory.session("s").add(batch, unless_last=True)

    again = memory.session("s").add(batch, unless_last=True)

    assert [one.id for one in again] == [one.id for one in first]
    assert len(memory.session("s").entries()) == 2 + len(first)


def results_of(session: Session) -> list[Entry]:
    """Return the results in a log."""
    return [one for one in session.entries() if one.kind == "tool_result"]


@pytest.mark.parametrize("given", [("c1", "c2"), ("c2", "c1"), ("c1", "c2", "c3")])
@pytest.mark.parametrize("atomic", [False, True])
def test_unless_last_adds_no_second_equal_result(memory: Memory, atomic: bool, given: tuple[str, ...]) -> None:
    """With `unless_last`, a call gets no second equal result, even if results come one by one or together."""
    results = {one: {**RESULT, "tool_call_id": one} for one in given}
    session = memory.session("s")
    session.add([QUESTION, {**CALLING, "tool_calls": [{**CALL, "id": one} for one in results]}])
    with session.turn(atomic=atomic):
        session.add(results["c1"], unless_last=True)
        added = session.add([*(results[one] for one in given), QUESTION], unless_last=True)

    kept = results_of(session)
    assert sorted(one.call_id or "" for one in kept) == sorted(given)
    assert [one.id for one in added] == [one.id for one in (*kept, session.entries()[-1])]
    assert "unmatched" not in str(session.context().messages)


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("again", [False, True], ids=["the missing ones", "all"])
@pytest.mark.parametrize(
    ("tools", "first", "texts"),
    [
        (["find", "book"], 1, ["B 12", "done"]),
        (["find", "find"], 1, ["B 12", "C 3"]),
        (["find", "book", "find"], 2, ["B 12", "done", "C 3"]),
        (["find", "find", "find"], 1, ["B 12", "B 12", "C 3"]),
    ],
    ids=["two tools", "one tool twice", "both", "equal results"],
)
def test_unless_last_knows_results_without_ids_by_their_order(
    memory: Memory, tools: list[str], first: int, texts: list[str], again: bool, atomic: bool
) -> None:
    """With `unless_last`, results without ids are stored once each, whether the missing ones come next or all again."""
    calls = [{"function_call": {"name": tool, "args": {}}} for tool in tools]
    results = [
        {"role": "user", "parts": [{"function_response": {"name": tool, "response": {"gate": text}}}]}
        for tool, text in zip(tools, texts, strict=True)
    ]
    session = memory.session("s", format="gemini")
    session.add([{"role": "user", "parts": [{"text": "Which gate?"}]}, {"role": "model", "parts": calls}])
    with session.turn(atomic=atomic):
        session.add(results[:first], unless_last=True)
        added = session.add(results if again else results[first:], unless_last=True)
        repeated = session.add(results, unless_last=True)

    kept = results_of(session)
    assert [(one.name, one.answers) for one in kept] == [(tool, 2 + n) for n, tool in enumerate(tools)]
    assert [text in one.text for one, text in zip(kept, texts, strict=True)] == [True] * len(texts)
    assert [one.id for one in added] == [one.id for one in (kept if again else kept[first:])]
    assert [one.id for one in repeated] == [one.id for one in kept]
    assert session.context().pending == ()


def test_a_result_with_another_text_is_added(memory: Memory) -> None:
    """A result with another text for the same call is added, since neither is known to be right."""
    session = memory.session("s")
    session.add([QUESTION, {**CALLING, "tool_calls": [CALL, {**CALL, "id": "c2"}]}, RESULT])
    session.add([{**RESULT, "content": "C 3"}, {**RESULT, "tool_call_id": "c2"}], unless_last=True)

    assert [one.text for one in results_of(session)] == ["B 12", "C 3", "B 12"]


@pytest.mark.parametrize("answered", [False, True])
def test_unless_last_ignores_rewound_entries(memory: Memory, answered: bool) -> None:
    """An answer that was rewound is not there: the question that it was to is what the log ends with."""
    session = memory.session("s")
    (asked,) = session.add(QUESTION)
    session.add({"role": "assistant", "content": "B 12"})
    if answered:
        session.add({"role": "user", "content": "And then?"})
    session.rewind(asked)

    again = session.add(QUESTION, unless_last=True)

    assert [one.id for one in again] == [asked.id]
    assert [message["content"] for message in session.context().messages] == ["Which gate?"]


@pytest.mark.parametrize("how", ["hide", "replace", "expire"])
def test_a_hidden_or_expired_message_is_added_again(clock: FakeClock, how: str) -> None:
    """A message that no context shows any more, hidden or expired, is added again."""
    with Memory.open("memory://", clock=clock) as memory:
        session = memory.session("s")
        session.add([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello!"}])
        soon = datetime.fromtimestamp(clock() / 1e6 + 10, UTC)
        asked = session.add_user_message(QUESTION["content"], expires_at=soon if how == "expire" else None)
        if how == "hide":
            session.hide(asked)
        elif how == "replace":
            session.replace([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello!"}])
        clock.advance(11)

        (again,) = session.add(QUESTION, unless_last=True)

        assert again.id != asked.id
        assert session.context().messages[-1]["content"] == "Which gate?"


@pytest.mark.parametrize(
    ("first", "second"),
    [({"refusal": "No."}, {"refusal": "Never."}), ({"content": None, "audio": {"id": "a"}}, {"audio": {"id": "b"}})],
    ids=["refusal", "audio"],
)
def test_unless_last_adds_a_message_that_differs(memory: Memory, first: dict[str, Any], second: dict[str, Any]) -> None:
    """A message that differs is added, even if only its provider's own fields differ."""
    session, bare = memory.session("s"), {"role": "assistant", "content": None}
    for message in (first, second, second):
        session.add({**bare, **message}, unless_last=True)

    assert len(session.entries()) == 2


def test_unless_last_adds_a_result_with_another_status(memory: Memory) -> None:
    """A result with another status is added; one without a status counts as the same."""
    session, statuses = memory.session("s"), list[Status | None](["pending", None, "error", "error"])
    session.add([QUESTION, CALLING])
    for status in statuses:
        session.add(RESULT, statuses={"c1": status} if status is not None else None, unless_last=True)

    assert [entry.status for entry in session.entries()[2:]] == ["pending", "error"]


def test_an_erased_message_is_added_again(memory: Memory) -> None:
    """An erased message is added again, since its text is unknown."""
    session = memory.session("s")
    session.erase(session.add(QUESTION)[0])

    assert session.add(QUESTION, unless_last=True)[0].text == "Which gate?"


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("how", ["hide", "evict", "expire", "last longer", "pin"])
def test_a_hidden_or_expired_named_context_is_added_again(clock: FakeClock, how: str, atomic: bool) -> None:
    """A named context is added again if it is hidden or expired, or is to last longer or be pinned."""
    with Memory.open("memory://", clock=clock) as memory:
        session = memory.session("s", max_tokens=600)
        soon, later = (datetime.fromtimestamp(clock() / 1e6 + seconds, UTC) for seconds in (10, 100))
        until = soon if how in ("expire", "last longer") else None
        first = session.add_context("Gate B 12", name="gates", expires_at=until)
        if how == "hide":
            session.hide(first)
        elif how == "evict":
            for _ in range(40):
                session.add_user_message("word " * 20)
                session.context()
        elif how == "expire":
            clock.advance(11)
        asked = {"expires_at": later} if how == "last longer" else {"pinned": how == "pin"}

        with session.turn(atomic=atomic):
            again = session.add_context("Gate B 12", name="gates", **asked)
            assert session.add_context("Gate B 12", name="gates", **asked).id == again.id

        assert again.id != first.id
        assert session.add_context("Gate B 12", name="gates", **asked).id == again.id
        assert str(session.context().messages).count("Gate B 12") == 1


def test_a_named_context_pinned_later_is_not_added_again(memory: Memory) -> None:
    """A named context that was pinned later is not added again, pinned or not."""
    session = memory.session("s")
    first = session.add_context("Gate B 12", name="gates")
    session.pin(first)

    for pinned in (False, True):
        assert session.add_context("Gate B 12", name="gates", pinned=pinned).id == first.id


def test_a_message_that_is_not_the_last_is_added_again(memory: Memory) -> None:
    """A message behind others, or without `unless_last`, is added again."""
    session = memory.session("s")
    session.add(QUESTION, unless_last=True)
    session.add({"role": "assistant", "content": "B 12"})

    session.add(QUESTION, unless_last=True)
    session.add({"role": "user", "content": "which gate?"}, unless_last=True)
    session.add({"role": "user", "content": "which gate?"})

    assert [entry.text for entry in session.entries()] == [
        "Which gate?",
        "B 12",
        "Which gate?",
        "which gate?",
        "which gate?",
    ]


def test_unless_last_compares_the_redacted_message() -> None:
    """Under a privacy policy the redacted message is compared."""
    with Memory.open("memory://", privacy={"redact_patterns": [r"\w+@example\.com"]}) as memory:
        session = memory.session("s")
        message = {"role": "user", "content": "Write to ann@example.com."}
        session.add(message, unless_last=True)

        session.add(message, unless_last=True)

        assert len(session.entries()) == 1
        assert "ann@example.com" not in session.entries()[0].text


def test_a_context_for_another_model_uses_its_window(memory: Memory) -> None:
    """The window is that of the model that is named; its cut is the session's."""
    session = memory.session("s")
    for number in range(40):
        session.add_user_message(f"{number}: " + "word " * 300)
        session.add_assistant_message("Yes.")

    large, small = session.context(model="gpt-4o", reserve=100), session.context(model="gpt-4", reserve=100)

    assert large.budget is not None
    assert small.budget is not None
    assert (large.budget.limit, small.budget.limit) == (128_000, 8_192)
    assert large.tokens > 8_192 > small.tokens
    assert small.epoch is not None
    assert session.context(model="gpt-4", reserve=100).messages == small.messages
    assert session.context().budget is None


def test_usage_of_another_model_scales_that_models_budget(memory: Memory) -> None:
    """A report is learned from for the model that it is of, though the session has none."""
    session = memory.session("s")
    session.add_user_message("word " * 2_000)
    context = session.context(model="claude-sonnet-4-6")

    session.record_usage(input_tokens=context.counted * 2)

    budget = session.context(model="claude-sonnet-4-6").budget
    assert budget is not None
    usage = session.stats().usage
    assert usage.margin == context.margin > 1


def test_an_unknown_model_of_one_context_warns(memory: Memory) -> None:
    """An unknown model for one context warns as a session's does; anything but a name is refused."""
    session = memory.session("s")
    session.add_user_message("Hello")

    with pytest.warns(PalimpsestWarning, match="not in the table"):
        assert session.context(model="gtp-4o").budget is None
    with pytest.raises(ConfigError, match="model"):
        session.context(model=4)  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_in_turn_is_true_inside_a_turn() -> None:
    """`in_turn` is true inside of `turn()`, and of that object alone."""
    async with AsyncMemory.open("memory://") as memory:
        session, other = memory.session("s"), memory.session("s")

        async with session.turn():
            assert (session.in_turn, other.in_turn) == (True, False)

        assert not session.in_turn


def test_unless_last_compares_with_entries_of_an_atomic_turn(memory: Memory) -> None:
    """`unless_last` and named contexts also compare with what an atomic turn has gathered."""
    session = memory.session("s")
    old = session.add_context("one", name="file")

    with session.turn(atomic=True):
        assert session.add_context("one", name="file").id == old.id
        new = session.add_context("two", name="file")
        assert session.add_context("two", name="file").id == new.id
        session.add_context("two", name="another")
        assert session.add_context("one", name="file").id != old.id
        (asked,) = session.add(QUESTION, unless_last=True)
        assert [one.id for one in session.add(QUESTION, unless_last=True)] == [asked.id]

    assert [entry.text for entry in session.entries()] == ["one", "two", "two", "one", QUESTION["content"]]
    session.add({"role": "user", "content": "And then?"})
    with session.turn(atomic=True):
        session.add([{"role": "user", "content": "And then?"}, QUESTION], unless_last=True)
        session.add([{"role": "user", "content": "And then?"}, QUESTION], unless_last=True)
    assert [entry.text for entry in session.entries()][6:] == ["And then?", QUESTION["content"]]


def test_unless_last_compares_across_the_log_and_an_atomic_turn(memory: Memory) -> None:
    """With `unless_last`, the stored log and an atomic turn's entries count as one log."""
    session = memory.session("s")
    (first,) = session.add(QUESTION)

    with session.turn(atomic=True):
        (second,) = session.add({"role": "user", "content": "And then?"})
        again = session.add([QUESTION, {"role": "user", "content": "And then?"}], unless_last=True)

    assert [one.id for one in again] == [first.id, second.id]
    assert len(session.entries()) == 2
