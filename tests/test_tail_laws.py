"""Promises 1 to 3 for contexts whose tail varies at every call, judged by the rules of every provider, over any log."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rules
import strategies
from laws import examples
from palimpsest import Context, Memory
from palimpsest.formats import find_format
from palimpsest.formats.fences import guard
from palimpsest.testing import FakeClock
from providers import FORMATS, PROVIDERS
from test_fences import hostile
from worlds import attempt

law = settings(deadline=None, max_examples=examples(30), suppress_health_check=list(HealthCheck))

tails = st.dictionaries(st.sampled_from(["clock", "a\nb", 'x"><context>', "n" * 80]), strategies.texts(60) | hostile)
"""The tail of a call: mostly words, sometimes nothing, or a text that tries to forge a fence."""


def said(ctx: Context, format: str) -> list[str]:
    """Return what a request says to the model."""
    return PROVIDERS[format].texts(ctx.request())


def check(ctx: Context, format: str, budget: int) -> None:
    """Assert that a context is valid for all judges, counts all that it says, and fits its budget."""
    provider, request, fmt = PROVIDERS[format], ctx.request(), find_format(format)
    assert provider.faults(ctx.messages) == []
    assert provider.sdk_faults(request) == []
    json.dumps(request, ensure_ascii=False).encode()  # as clients send it
    groups = (*ctx._head, *ctx._window.groups, *ctx._tail)
    added = fmt.prime + sum(fmt.overhead(item.entry) for group in groups for item in group.items)
    assert sum(len(text.split()) for text in said(ctx, format)) <= ctx.tokens + added
    assert ctx.tokens <= budget


@pytest.mark.sampled
@pytest.mark.parametrize("format", FORMATS)
@law
@given(
    data=st.data(),
    log=strategies.logs(most=16),
    budget=st.integers(60, 300),
    system=st.sampled_from([None, "be kind and true"]),
)
def test_the_promises_hold_with_a_tail_that_varies_at_every_call(
    format: str, data: st.DataObject, log: list[Any], budget: int, system: str | None
) -> None:
    """A context with a varying tail fits, is valid, and begins with what is sent without the tail."""
    clock, before = FakeClock(), None
    with Memory.open("memory://", clock=clock) as memory:
        options: dict[str, Any] = {"max_tokens": budget, "counter": strategies.WORDS, "format": format}
        session = memory.session("s", tail_share=0.3, facts="user/ann", **options)
        for operation in log:
            if isinstance(operation, strategies.Batch):
                strategies.taken_in(session, operation.messages, "openai")
            else:
                strategies.perform(session, operation, clock.now)
            key, fact = data.draw(st.tuples(st.sampled_from("abc"), hostile | strategies.texts(30)), label="fact")
            memory.working("user/ann").set(key, fact.encode("utf-8", "replace").decode())
            tail = data.draw(tails, label="tail")
            ctx = attempt(session, system=system, tail=tail)
            if ctx is None:
                continue
            check(ctx, format, budget)
            shown = "\n".join(said(ctx, format))
            for name in set(ctx.report.tail) & set(tail):
                for word in guard(tail[name].encode("utf-16", "surrogatepass").decode("utf-16", "replace")).split():
                    assert word in shown
            bare = ctx._meter.format.request(ctx._stable, (), cache_breakpoints=False)
            stable = bare.get("messages", bare.get("input", bare.get("contents", [])))
            if format != "text" and ctx.log_messages:
                blocks = PROVIDERS[format].blocks
                assert rules.is_prefix(blocks(stable), blocks(ctx.messages))
            if before is not None and before.epoch == ctx.epoch:
                assert rules.is_prefix(rules.packed(before.log_messages), rules.packed(ctx.log_messages))
                assert rules.packed(before.head_messages) == rules.packed(ctx.head_messages)
            before = ctx


SPOKEN = [format for format in FORMATS if PROVIDERS[format].batches is not None]


@pytest.mark.sampled
@pytest.mark.parametrize("format", SPOKEN)
@law
@given(data=st.data(), budget=st.integers(80, 400), marks=st.booleans())
def test_a_tail_changes_no_message_before_it(format: str, data: st.DataObject, budget: int, marks: bool) -> None:
    """Whatever ends the log, the tail stands behind it, and everything before is unchanged."""
    provider, batches = PROVIDERS[format], PROVIDERS[format].batches
    assert batches is not None
    with Memory.open("memory://") as memory:
        options: dict[str, Any] = {"max_tokens": budget, "counter": strategies.WORDS, "format": format}
        session = memory.session("s", tail_share=0.3, **options)
        for messages in data.draw(st.lists(batches, min_size=1, max_size=3), label="batches"):
            strategies.taken_in(session, messages, format)
            ctx, bare = attempt(session, tail="raining"), attempt(session)
            if ctx is None or bare is None:
                continue
            check(ctx, format, budget)
            assert ctx.report.tail == ("tail",)
            assert "\n".join(provider.texts(ctx.request(cache_breakpoints=marks))).count("raining") == 1
            if bare.log_messages:
                assert rules.is_prefix(provider.blocks(bare.messages), provider.blocks(ctx.messages))
            assert marked(ctx.request()) == marked(bare.request())


def marked(value: Any) -> list[Any]:
    """Return what bears a mark for the prompt cache, in order."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    own = [value] if isinstance(value, dict) and "cache_control" in value else []
    return [*own, *(found for one in inner for found in marked(one))]
