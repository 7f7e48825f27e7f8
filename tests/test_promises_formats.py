"""Promises 1 to 3 in every format, and for logs written in one format and read in another."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rules
import strategies
from laws import examples
from palimpsest import Context, Entry, Memory
from palimpsest.formats import find_format
from palimpsest.testing import FakeClock
from providers import FORMATS, PROVIDERS, SPOKEN
from worlds import attempt

law = settings(deadline=None, max_examples=examples(25), suppress_health_check=list(HealthCheck))


def check(ctx: Context, format: str, budget: int | None) -> None:
    """Assert that a context is valid for all judges, counts all that it says, and fits its budget."""
    provider, request = PROVIDERS[format], ctx.request()
    assert provider.faults(ctx.messages) == []
    assert provider.sdk_faults(request) == []
    words = sum(len(text.split()) for text in provider.texts(without_tools(request)))
    assert words <= ctx.tokens + slack(ctx, format)
    assert budget is None or ctx.tokens <= budget


def slack(ctx: Context, format: str) -> int:
    """Return the words that a format adds to entries, which a counter of words does not count."""
    fmt = find_format(format)
    shown = [item.entry for group in (*ctx._head, *ctx._window.groups) for item in group.items]
    return fmt.prime + sum(map(fmt.overhead, shown))


def without_tools(request: dict[str, Any]) -> dict[str, Any]:
    """Return the request without its tool schemas, which are counted by another rule."""
    config = {key: value for key, value in request.get("config", {}).items() if key != "tools"}
    rest = {key: value for key, value in request.items() if key not in ("tools", "config")}
    return {**rest, "config": config} if config else rest


@pytest.mark.parametrize("format", FORMATS)
@law
@given(
    log=strategies.logs(), budget=st.none() | st.integers(15, 300), system=st.sampled_from([None, "be kind and true"])
)
def test_the_promises_hold_in_every_format(format: str, log: list[Any], budget: int | None, system: str | None) -> None:
    """After every operation the context is valid, fits, and continues its epoch."""
    clock = FakeClock()
    with Memory.open("memory://", clock=clock) as memory:
        session = memory.session("s", max_tokens=budget, counter=strategies.WORDS, format=format)
        before: Context | None = None
        for operation in log:
            if isinstance(operation, strategies.Batch):
                strategies.taken_in(session, operation.messages, "openai")
            else:
                strategies.perform(session, operation, clock.now)
            ctx = attempt(session, system=system)
            if ctx is None:
                continue
            check(ctx, format, budget)
            goes_on(before, ctx, format)
            before = ctx


def goes_on(before: Context | None, ctx: Context, format: str) -> None:
    """Assert that a context begins with all of the previous context of its epoch."""
    if before is None or before.epoch != ctx.epoch:
        return
    assert rules.is_prefix(rules.packed(before.log_messages), rules.packed(ctx.log_messages))
    assert rules.packed(before.head_messages) == rules.packed(ctx.head_messages)
    if before.log_messages and before.system == ctx.system:
        blocks = PROVIDERS[format].blocks
        assert rules.is_prefix(blocks(before.messages), blocks(ctx.messages))


PAIRS = [(one, other) for one in SPOKEN for other in FORMATS]


@pytest.mark.sampled
@pytest.mark.parametrize(("one", "other"), PAIRS, ids=[f"{one} to {other}" for one, other in PAIRS])
@law
@given(data=st.data(), budget=st.none() | st.integers(40, 400))
def test_a_log_of_one_format_is_valid_in_another_and_keeps_its_content(
    one: str, other: str, data: st.DataObject, budget: int | None
) -> None:
    """Every log of one provider is accepted by any other, fits, and contains what was said.

    What was sent once keeps its bytes.
    """
    batches = PROVIDERS[one].batches
    assert batches is not None
    before: Context | None = None
    with Memory.open("memory://") as memory:
        session = memory.session("s", format=other, max_tokens=budget, counter=strategies.WORDS)
        for messages in data.draw(st.lists(batches, min_size=1, max_size=3), label="batches"):
            strategies.taken_in(session, messages, one)
            ctx = attempt(session)
            if ctx is None:
                continue
            check(ctx, other, budget)
            assert missing(ctx, other) == []
            assert unreported(ctx, other) == []
            goes_on(before, ctx, other)
            before = ctx


def missing(ctx: Context, format: str) -> list[str]:
    """Return what entries say that a context shows whole but its request lacks."""
    said = normal("\n".join(PROVIDERS[format].texts(without_tools(ctx.request()))))
    shown = [item for group in (*ctx._head, *ctx._window.groups) for item in group.items]
    return [text for item in shown if item.text is None for text in sayings(item.entry) if normal(text) not in said]


UNSAID = {"id", "model", "stop_reason", "stop_sequence", "type", "role", "name", "usage", "cache_control", "caller"}
UNSAID |= {"status", "created_by", "phase", "signature", "thought_signature", "thoughtSignature", "encrypted_content"}
UNSAID |= {"data", "mime_type", "mimeType", "file_uri", "fileUri", "detail", "logprobs", "arguments", "input", "args"}
UNSAID |= {"shape", "place", "namespace", "media_type", "toolset_name", "file_id", "call_id"}
"""Keys that say nothing to a reader, or what is said elsewhere."""


def unreported(ctx: Context, format: str) -> list[str]:
    """Return the words of other providers' items that are neither shown nor reported."""
    said = normal("\n".join(PROVIDERS[format].texts(without_tools(ctx.request()))))
    shown = [item for group in (*ctx._head, *ctx._window.groups) for item in group.items]
    reported = {note.seq for note in ctx.report.adapted}
    found = []
    for item in shown:
        entry = item.entry
        theirs = (entry.native.format if entry.native else "openai") != format
        if theirs and item.text is None and entry.seq not in reported:
            native = [entry.native.keep, entry.native.call] if entry.native else []
            extras = [] if isinstance(entry.content, str) else [getattr(part, "extra", None) for part in entry.content]
            found += [text for text in words([*native, *extras]) if normal(text) not in said]
    return found


def words(value: Any) -> Iterator[str]:
    """Yield every text in the value except those under keys without content."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for inner in value:
            yield from words(inner)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key not in UNSAID:
                yield from words(inner)


def sayings(entry: Entry) -> Iterator[str]:
    """Return what must be found of an entry: its texts, and the words of a call's arguments."""
    if entry.kind != "tool_call":
        yield from entry.text.splitlines()
        return
    try:
        yield from leaves(json.loads(entry.text))
    except ValueError:
        yield entry.text


def leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from value.splitlines()
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from leaves(inner)


def normal(text: str) -> str:
    """Normalise spacing, escapes and invisible marks of a text."""
    text = rules.scrubbed(text)
    text = re.sub(r"\\u[0-9a-f]{4}|\\[nrtbf]|&lt;|[^\w]", "", text)
    return "".join(text.split())


@pytest.mark.parametrize("format", SPOKEN)
@law
@given(data=st.data())
def test_messages_come_back_equal_from_every_store(format: str, data: st.DataObject) -> None:
    """Decoded, stored, linked, exported, imported and encoded again, the messages are the equal ones."""
    batches = PROVIDERS[format].batches
    assert batches is not None
    given = data.draw(batches, label="messages")
    with Memory.open("memory://") as memory:
        session = memory.session("s", format=format)
        strategies.taken_in(session, given)
        memory.import_session(json.loads(json.dumps(session.export())), session_id="copy")

        for name in ("s", "copy"):
            assert find_format(format).encode(memory.session(name).entries()) == given
