"""Hypothesis strategies for messages of Anthropic's API, requests and answers, with every type of block."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

import strategies

Message = dict[str, Any]
Block = dict[str, Any]

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
CALL_IDS = ("toolu_1", "toolu_2", "toolu_3", "odd id!", "odd-id?", "toolu_" + "a" * 50)
TOOL_NAMES = ("find", "book", "my tool", "my_tool", "mcp__server__" + "t" * 60)
ANSWER_KEYS: Message = {
    "id": "msg_1",
    "model": "claude",
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "type": "message",
    "usage": {"input_tokens": 10, "output_tokens": 3},
}

human_texts = strategies.texts(20).flatmap(lambda text: st.just(text) if text else st.sampled_from(["", "hello"]))
_marks: st.SearchStrategy[Block] = st.sampled_from(
    [{}, {}, {}, {"cache_control": {"type": "ephemeral"}}, {"cache_control": {"type": "ephemeral", "ttl": "1h"}}]
)
_unknown: st.SearchStrategy[Block] = st.sampled_from([{}, {}, {}, {"x_unknown": [1, None]}])
_nulls: st.SearchStrategy[Block] = st.sampled_from([{}, {"citations": None}])


def _block(**fields: Any) -> st.SearchStrategy[Block]:
    """A block with these fields (values or strategies), sometimes with a cache mark or an unknown key."""
    drawn = {key: value if isinstance(value, st.SearchStrategy) else st.just(value) for key, value in fields.items()}
    return st.builds(
        lambda block, *more: dict(block, **more[0], **more[1]), st.fixed_dictionaries(drawn), _marks, _unknown
    )


text_blocks = st.builds(lambda block, nulls: {**block, **nulls}, _block(type="text", text=human_texts), _nulls)
media: st.SearchStrategy[Block] = st.one_of(
    _block(type="image", source={"type": "url", "url": "https://example.com/a.png"}),
    _block(type="image", source={"type": "base64", "media_type": "image/png", "data": PIXEL}),
    _block(type="image", source={"type": "base64", "media_type": "image/tiff", "data": PIXEL}),
    _block(type="image", source={"type": "file", "file_id": "file_1"}),
    _block(
        type="document",
        source={"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjQ="},
        title=st.sampled_from(["report.pdf", None, ""]),
    ),
    _block(type="document", source={"type": "text", "media_type": "text/plain", "data": "plain words"}),
    _block(
        type="document",
        source={"type": "content", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
    ),
    _block(type="document", source={"type": "url", "url": "https://example.com/a.pdf"}, citations={"enabled": True}),
)
search_results = st.builds(
    lambda text: {
        "type": "search_result",
        "source": "https://example.com",
        "title": "A page",
        "content": [{"type": "text", "text": text or "nothing"}],
    },
    strategies.texts(8),
)
unknown_blocks: st.SearchStrategy[Block] = st.builds(
    lambda value: {"type": "hologram", "scene": value}, strategies.json_values
)


@st.composite
def thoughts(draw: st.DrawFn) -> list[Block]:
    """A thinking block, mostly signed, or redacted thinking."""
    if draw(st.integers(0, 3)) == 0:
        return [{"type": "redacted_thinking", "data": "ZW5jcnlwdGVk"}]
    thought: Block = {"type": "thinking", "thinking": draw(strategies.texts(12))}
    return [{**thought, **draw(st.sampled_from([{"signature": "c2ln"}, {"signature": "c2ln"}, {"signature": ""}, {}]))}]


@st.composite
def searches(draw: st.DrawFn) -> list[Block]:
    """A search that the provider ran itself, with its result."""
    query, id = draw(strategies.texts(6)), draw(st.sampled_from(["srvtoolu_1", "srvtoolu_2"]))
    return [
        {"type": "server_tool_use", "id": id, "name": "web_search", "input": {"query": query}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": id,
            "caller": None,
            "content": [
                {
                    "type": "web_search_result",
                    "url": "https://example.com",
                    "title": query,
                    "encrypted_content": "eA==",
                    "page_age": None,
                }
            ],
        },
    ]


inputs: st.SearchStrategy[Any] = st.one_of(
    st.dictionaries(st.sampled_from(["who", "where", "n"]), strategies.texts(12) | st.integers(0, 99), max_size=3),
    st.dictionaries(st.text(max_size=4), strategies.json_values, max_size=2),
    strategies.json_values,
)


@st.composite
def calls(draw: st.DrawFn) -> Block:
    """A call of a tool, sometimes with an odd id, an odd name, or an input that is no object."""
    block: Block = {
        "type": "tool_use",
        "id": draw(st.sampled_from(CALL_IDS)),
        "name": draw(st.sampled_from(TOOL_NAMES)),
        "input": draw(inputs),
    }
    more = [{}, {}, {"caller": {"type": "direct"}}, {"caller": None, "toolset_name": None}, {"x_unknown": 1}]
    return {**block, **draw(st.sampled_from(more)), **draw(_marks)}


@st.composite
def results(draw: st.DrawFn, call_id: str) -> Block:
    """The result of a call: text, blocks, nothing; with or without the flag of an error."""
    block: Block = {"type": "tool_result", "tool_use_id": call_id}
    inner = text_blocks | media | search_results | unknown_blocks
    content = draw(st.sampled_from(["text", "text", "blocks", "blocks", "absent", "null"]))
    if content == "text":
        block["content"] = draw(strategies.texts())
    elif content == "blocks":
        block["content"] = draw(st.lists(inner, max_size=3))
    elif content == "null":
        block["content"] = None
    flags: list[Block] = [{}, {}, {"is_error": True}, {"is_error": False}, {"is_error": None}]
    return {**block, **draw(st.sampled_from(flags)), **draw(_marks), **draw(_unknown)}


@st.composite
def humans(draw: st.DrawFn) -> Message:
    """A user's message, as text or in blocks."""
    if draw(st.booleans()):
        return {"role": "user", "content": draw(human_texts)}
    said = draw(text_blocks)
    more = draw(st.lists(text_blocks | media | search_results | unknown_blocks, max_size=2))
    return {"role": "user", "content": draw(st.permutations([said, *more]))}


@st.composite
def answers(draw: st.DrawFn, most_calls: int) -> Message:
    """A model's message: text, or blocks with thinking, searches and at most so many calls."""
    if most_calls == 0 and draw(st.booleans()):
        return {"role": "assistant", "content": draw(strategies.texts())}
    pieces: list[list[Block]] = []
    for _ in range(draw(st.integers(0 if most_calls == 0 else 1, 3))):
        kind = draw(st.sampled_from(["text", "text", "thought", "search", "unknown"]))
        if kind == "text":
            pieces.append([draw(text_blocks)])
        elif kind == "unknown":
            pieces.append([draw(unknown_blocks)])
        else:
            pieces.append(draw(thoughts() if kind == "thought" else searches()))
    pieces.extend([draw(calls())] for _ in range(draw(st.integers(1, most_calls)) if most_calls else 0))
    content = [block for piece in draw(st.permutations(pieces)) for block in piece]
    message: Message = {"role": "assistant", "content": content}
    return {**message, **ANSWER_KEYS} if draw(st.booleans()) else message


@st.composite
def exchanges(draw: st.DrawFn) -> list[Message]:
    """A message with calls and mostly one with their results, which may end with text of the user."""
    asked = draw(answers(3))
    ids = [block["id"] for block in asked["content"] if block["type"] == "tool_use"]
    if draw(st.integers(0, 6)) == 0:
        ids = ids[1:]
    given: list[Block] = [draw(results(id)) for id in draw(st.permutations(ids))]
    given.extend(draw(st.lists(text_blocks, max_size=1)))
    overtaken = [draw(humans())] if draw(st.integers(0, 7)) == 0 else []
    return [asked, *overtaken, *([{"role": "user", "content": given}] if given else [])]


@st.composite
def pauses(draw: st.DrawFn) -> list[Message]:
    """A turn that the provider has paused during a search, or until a tool that the search calls has answered.

    Mostly the turn goes on; sometimes a user's message comes first, or nothing more.
    """
    asked, found = draw(searches())
    before = draw(st.lists(text_blocks, max_size=1))
    call = [draw(calls())] if draw(st.integers(0, 3)) == 0 else []
    messages: list[Message] = [{"role": "assistant", "content": [*before, asked, *call]}]
    if call:
        messages.append({"role": "user", "content": [draw(results(call[0]["id"]))]})
    how = draw(st.integers(0, 5))
    if how == 0:
        return messages
    if how == 1:
        messages.append(draw(humans()))
    more: list[Block] = [draw(calls())] if draw(st.booleans()) else []
    messages.append({"role": "assistant", "content": [found, *draw(st.lists(text_blocks, max_size=1)), *more]})
    answered = draw(st.booleans())
    if more and answered:
        messages.append({"role": "user", "content": [draw(results(more[0]["id"]))]})
    return messages


system_messages: st.SearchStrategy[Message] = st.builds(
    lambda text, listed: {"role": "system", "content": [{"type": "text", "text": text}] if listed else text},
    strategies.texts(8),
    st.booleans(),
)


@st.composite
def batches(draw: st.DrawFn) -> list[Message]:
    """A few messages for one `add`: a user's, an exchange with tools, an answer, sometimes a system message."""
    messages: list[Message] = []
    if draw(st.integers(0, 5)) == 0:
        messages.append(draw(system_messages))
    if draw(st.booleans()):
        messages.append(draw(humans()))
    if draw(st.booleans()):
        messages.extend(draw(st.one_of(exchanges(), exchanges(), pauses())))
    if not messages or draw(st.booleans()):
        messages.append(draw(answers(0)))
    return messages
