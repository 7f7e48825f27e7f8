"""Hypothesis strategies of the whole project: texts, messages, operations on a session, logs.

A log is a list of operations; `perform` does one of them to a session. Human messages and calls carry distinct numbers,
so that a test can tell which of them a context shows, even where their texts are alike.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from hypothesis import strategies as st

from palimpsest.errors import InvalidEntry
from palimpsest.formats import FormatName, find_format
from palimpsest.log.entry import Entry, Image, Opaque, Part, Reasoning, Role, Status, Text
from palimpsest.sessions.sync import Session
from palimpsest.tokens.counter import FunctionCounter

Message = dict[str, Any]


def _words(text: str) -> int:
    return len(text.split())


WORDS = FunctionCounter(_words, name="words")
"""Counts one token for each word and nothing for a message itself, so that most laws need no vocabulary."""

TOOLS: tuple[Message, ...] = (
    {"type": "function", "function": {"name": "find", "description": "Find a thing.", "parameters": {}}},
    {
        "type": "function",
        "function": {
            "name": "book",
            "description": "Book a place on a flight for somebody.",
            "parameters": {"type": "object", "properties": {"who": {"type": "string", "description": "Whose place"}}},
        },
    },
)

ODD = (
    "",
    " ",
    "\n",
    "\ud800 alone",
    "naïve ☂ 漢字",
    "</context>",
    "[old result left out: entry 1]",
    "a\x00b",
    "\u2028",
)
CALL_IDS = ("call_1", "call_2", "call_3", "", "toolu_" + "a" * 50)
TOOL_NAMES = ("find", "book", "think", "find", "book", "my tool", "my_tool", "ns.tool:x", "mcp__server__" + "t" * 120)
SPEAKERS = (None, None, None, "ann", "bot", "John Smith", "John_Smith", "<a|b>", "n" * 80)
SOURCES = ("a.py", "b.py", 'c".py')


# --- operations


class Say(NamedTuple):
    """A message of one role; `expires` is in seconds from now."""

    role: Role
    content: str | tuple[Part, ...]
    name: str | None = None
    pinned: bool = False
    expires: int | None = None


class Call(NamedTuple):
    """A tool call, added with `add_tool_call`."""

    name: str
    arguments: str
    call_id: str | None


class Answer(NamedTuple):
    """A tool result, added with `add_tool_result`: it names the call's id, or only the tool."""

    name: str | None
    output: str
    call_id: str | None
    status: Status = "unknown"


class Background(NamedTuple):
    """A named context, such as a file, added with `add_context`."""

    name: str
    text: str
    pinned: bool = False
    expires: int | None = None


class Batch(NamedTuple):
    """Provider messages, added with one `add`."""

    messages: list[Message]


Operation = Say | Call | Answer | Background | Batch


def perform(session: Session, operation: Operation, now: int = 0) -> None:
    """Do the operation to the session; `now` is the session's time in microseconds since 1970."""
    if isinstance(operation, Batch):
        taken_in(session, operation.messages)
    elif isinstance(operation, Call):
        session.add_tool_call(operation.name, operation.arguments, call_id=operation.call_id)
    elif isinstance(operation, Answer):
        name, output, call_id, status = operation
        session.add_tool_result(name, output, call_id=call_id, status=status)
    elif isinstance(operation, Background):
        session.add_context(
            operation.text, name=operation.name, pinned=operation.pinned, expires_at=_moment(now, operation.expires)
        )
    else:
        role, content, name, pinned, expires = operation
        expires_at = _moment(now, expires)
        if role != "assistant" and isinstance(content, str) and not content.strip():
            entry = Entry(role=role, content=content, name=name, pinned=pinned, expires_at=expires_at)
            session.add_entries([entry])
        elif role == "system":
            session.add_system_message(content, name=name, expires_at=expires_at)
        elif role == "user":
            session.add_user_message(content, name=name, pinned=pinned, expires_at=expires_at)
        else:
            session.add_assistant_message(content, name=name, pinned=pinned, expires_at=expires_at)


def taken_in(session: Session, messages: Sequence[Any], format: FormatName | None = None) -> tuple[Entry, ...]:
    """Add messages of a log that was made elsewhere and return its entries.

    `add` refuses a human message that says nothing, but a log from elsewhere may hold some: they go in as entries then.
    """
    try:
        return session.add(messages, format=format)
    except InvalidEntry as fault:
        if "says nothing" not in fault.reason:
            raise
    return session.add_entries(find_format(format or session.options.format).decode(messages, "messages"))


def _moment(now: int, seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(now // 1_000_000 + seconds, UTC)


# --- texts and parts

_VOCABULARY = ("alpha", "beta", "gamma", "delta", "epsilon")


@st.composite
def texts(draw: st.DrawFn, most: int = 120) -> str:
    """Draw a text: mostly a few words, sometimes empty, odd, or up to `most` words long."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.sampled_from(ODD))
    count = draw(st.integers(30, max(most, 30))) if kind == 1 else draw(st.integers(1, 8))
    word = draw(st.sampled_from(_VOCABULARY))
    return " ".join([word] * count)


def parts() -> st.SearchStrategy[tuple[Part, ...]]:
    """Content of several parts: texts, images, and parts of unknown types."""
    part: st.SearchStrategy[Part] = st.one_of(
        st.builds(lambda text: Text(text=text or "x"), texts(40)),
        st.just(Image(source="https://example.com/a.png", detail="low")),
        st.builds(lambda text: Opaque(item={"type": "hologram", "scene": text}), texts(12)),
    )
    return st.lists(part, min_size=1, max_size=3).map(tuple)


def reasoning() -> st.SearchStrategy[tuple[Part, ...]]:
    """Content that consists of reasoning alone."""
    return texts(20).map(lambda text: (Reasoning(text=text or "hm"),))


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
"""Plain JSON values, as provider messages carry them under keys that the library does not know."""


# --- strategies of operations

human = st.builds(
    Say,
    role=st.just("user"),
    content=texts(20) | parts(),
    name=st.sampled_from(SPEAKERS),
    pinned=st.sampled_from([False] * 9 + [True]),
    expires=st.sampled_from([None] * 9 + [50]),
)
assistant = st.builds(
    Say,
    role=st.just("assistant"),
    content=texts() | parts(),
    name=st.sampled_from(SPEAKERS),
    pinned=st.sampled_from([False] * 9 + [True]),
    expires=st.sampled_from([None] * 9 + [50]),
)
system = st.builds(
    lambda text, expires: Say("system", text, expires=expires), texts(10), st.sampled_from([None, None, 50])
)
thought = reasoning().map(lambda parts: Say("assistant", parts))
call = st.builds(
    Call, name=st.sampled_from(TOOL_NAMES), arguments=texts(40), call_id=st.sampled_from([*CALL_IDS, None])
)
answer = st.builds(
    Answer,
    name=st.sampled_from([*TOOL_NAMES, None]),
    output=texts(),
    call_id=st.sampled_from([*CALL_IDS, "nobody"]),
    status=st.sampled_from(["success", "error", "unknown"]),
).filter(lambda one: one.name or one.call_id)
answer_by_name = st.builds(Answer, name=st.sampled_from(TOOL_NAMES), output=texts(), call_id=st.none())
background = st.builds(
    Background,
    name=st.sampled_from(SOURCES),
    text=texts(),
    pinned=st.sampled_from([False] * 4 + [True]),
    expires=st.sampled_from([None] * 6 + [50]),
)


@st.composite
def exchanges(draw: st.DrawFn) -> list[Operation]:
    """Draw an optional human message, parallel calls with their results in any order, and an optional answer."""
    count = draw(st.integers(1, 3))
    calls = [draw(call)._replace(call_id=f"call_{draw(st.integers(1, 4))}") for _ in range(count)]
    answers: list[Operation] = [Answer(None, draw(texts()), one.call_id) for one in draw(st.permutations(calls))]
    before: list[Operation] = [draw(human)] if draw(st.booleans()) else []
    if draw(st.integers(0, 4)) == 0:
        before.append(draw(thought))
    after: list[Operation] = [draw(assistant)] if draw(st.booleans()) else []
    if draw(st.integers(0, 5)) == 0:
        answers.insert(
            draw(st.integers(0, count - 1)), draw(human)
        )  # a human message between results makes the results behind it late
    if draw(st.integers(0, 7)) == 0:
        answers.pop()
    return [*before, *calls, *answers, *after]


_extra: st.SearchStrategy[Message] = st.sampled_from(
    (
        *({}, {}, {}, {"x_unknown": {"a": [1, None]}}, {"refusal": None}, {"annotations": []}, {"audio": {"id": "a1"}}),
        *({"x_words": ["kappa", None]}, {"name": "Ann B. <c>"}),
    )
)
_answer_extra: st.SearchStrategy[Message] = _extra | st.sampled_from(
    [
        {"refusal": "lambda I cannot"},
        {"reasoning_content": "my thoughts"},
        {"function_call": {"name": "f", "arguments": '{"x": "omega"}'}},
        {"tool_calls": None},
        {"tool_calls": []},
    ]
)
"""Keys that answers of chat completions, and of compatible services, hold beside their content."""


@st.composite
def provider_batches(draw: st.DrawFn) -> Batch:
    """Draw chat-completions messages with all they may hold: parts, names, parallel calls, unknown keys."""
    messages: list[Message] = []
    if draw(st.booleans()):
        role = draw(st.sampled_from(["user", "user", "user", "assistant", "system", "developer"]))
        listed = [{"type": "text", "text": text} for text in draw(st.lists(texts(20), min_size=1, max_size=2))]
        content = draw(texts(20)) if draw(st.booleans()) else listed
        messages.append({"role": role, "content": content, **draw(_extra)})
    if draw(st.booleans()):
        ids = [f"call_{draw(st.integers(1, 4))}" for _ in range(draw(st.integers(1, 3)))]
        arguments = [draw(texts(30)) for _ in ids]
        calls = [
            {"id": id, "type": "function", "function": {"name": draw(st.sampled_from(TOOL_NAMES)), "arguments": text}}
            for id, text in zip(ids, arguments, strict=True)
        ]
        if draw(st.integers(0, 5)) == 0:
            calls[0] = {"id": ids[0], "type": "custom", "custom": {"name": "paint", "input": arguments[0]}}
        said = draw(st.none() | texts(20))
        messages.append({"role": "assistant", "content": said, "tool_calls": calls, **draw(_extra)})
        for id in draw(st.permutations(ids)):
            parts = st.lists(texts(8).map(lambda text: {"type": "text", "text": text}), max_size=2)
            result: Message = {"role": "tool", "tool_call_id": id, "content": draw(texts() | parts)}
            messages.append({**result, "name": "find"} if draw(st.booleans()) else result)
    if draw(st.booleans()) or not messages:
        messages.append({"role": "assistant", "content": draw(texts()), **draw(_answer_extra)})
    return Batch(messages)


def operations() -> st.SearchStrategy[Operation]:
    """One operation of any kind, whatever precedes it."""
    return st.one_of(human, assistant, system, thought, call, answer, answer_by_name, background, provider_batches())


def steps() -> st.SearchStrategy[list[Operation]]:
    """A few operations: a whole exchange, or one operation that is unrelated to those before."""
    plain = st.tuples(human, assistant).map(list)
    return st.one_of(plain, exchanges(), operations().map(lambda one: [one]))


@st.composite
def logs(draw: st.DrawFn, most: int = 14, least: int = 0) -> list[Operation]:
    """Draw a log of `least` to `most` steps, whose human messages and calls are numbered."""
    drawn = [one for step in draw(st.lists(steps(), min_size=least, max_size=most)) for one in step]
    return numbered(drawn)


def numbered(log: Sequence[Operation], start: int = 0) -> list[Operation]:
    """Put a distinct number into each call and each human message that says something."""
    return [_numbered(one, start + i) for i, one in enumerate(log)]


def _numbered(one: Operation, number: int) -> Operation:
    if isinstance(one, Say) and one.role == "user" and one.content:
        label = f"human{number} "
        if isinstance(one.content, str):
            return one._replace(content=label + one.content)
        return one._replace(content=(Text(text=label), *one.content))
    if isinstance(one, Call):
        return one._replace(arguments=json.dumps({"number": number, "text": one.arguments}))
    if isinstance(one, Batch):
        return Batch([_numbered_message(message, f"{number}.{i}") for i, message in enumerate(one.messages)])
    return one


def _numbered_message(message: Message, number: str) -> Message:
    if message["role"] == "user" and isinstance(message["content"], str) and message["content"]:
        return {**message, "content": f"human{number} {message['content']}"}
    if not message.get("tool_calls"):
        return message
    calls = []
    for i, one in enumerate(message["tool_calls"]):
        kind, field = ("function", "arguments") if one["type"] == "function" else ("custom", "input")
        text = json.dumps({"number": f"{number}.{i}", "text": one[kind][field]})
        calls.append({**one, kind: {**one[kind], field: text}})
    return {**message, "tool_calls": calls}


# --- arguments of `context`

requests: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "system": st.sampled_from([None, "be kind", "be kind and brief and true " * 3]),
        "tools": st.sampled_from([(), TOOLS[:1], TOOLS]),
        "reserve": st.sampled_from([None, 0, 3, 20]),
    }
)
