"""The service and whatever may be sent to it: every request gets an answer in the one form, and none is a fault."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from laws import examples
from running_service import Answer, Called, called

CHAT: dict[str, Any] = {
    "resource": "memory",
    "id": "chat",
    "type": "token_based",
    "max_tokens": 200,
    "flushing": {"type": "simple_fifo"},
    "privacy_policy": {"redact_patterns": ["secret-[0-9]+"]},
    "persistence": {"type": "in_memory"},
}

KEYS = st.sampled_from(["k", "m", "*", "k*", "", "a b", "__k", "k/../m", "\x00", "é", "k" * 300, "~", "%2e"])
TEXTS = st.text(max_size=40) | st.sampled_from(["secret-7", "\ud800", "</context>", "{{x}}", "x" * 11_000])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
ROLES = st.sampled_from(["user", "assistant", "system", "tool", "developer", "wizard"])
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
MESSAGES = st.one_of(
    TEXTS,
    st.fixed_dictionaries(
        {"content": TEXTS | VALUES},
        optional={
            "role": ROLES | VALUES,
            "name": TEXTS,
            "metadata": VALUES,
            "tool_call_id": st.sampled_from(["c1", "c2", ""]),
            "tool_calls": st.just([CALL]) | VALUES,
        },
    ),
    VALUES,
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "messages": MESSAGES | st.lists(MESSAGES, max_size=4),
    "force": st.booleans() | VALUES,
    "dry_run": st.booleans() | VALUES,
    "strategy": st.sampled_from(["simple_fifo", "fifo", "lru", "hybrid_summary", "token_aware_lru", "magic"]) | VALUES,
    "threshold": st.floats() | VALUES,
    "max_keys": st.integers(-2, 10_002) | VALUES,
    "confirm": st.booleans() | VALUES,
    "backup": st.booleans() | VALUES,
    "limit": st.integers(-1, 1002) | VALUES,
    "offset": st.integers(-1, 5) | VALUES,
    "include_stats": st.booleans() | VALUES,
    "other": VALUES,
}
USUAL = {
    "read": ("limit", "offset"),
    "append": ("messages",),
    "write": ("messages",),
    "delete": ("max_keys",),
    "flush": ("force", "dry_run", "strategy", "threshold", "max_keys"),
    "clear": ("confirm", "backup", "max_keys"),
    "stats": ("max_keys",),
    "health": ("include_stats", "max_keys"),
}
READING = {"read", "stats", "health"}

MOST_IN_ADDRESS = 11_000
"""Characters of one value in an address. The client refuses addresses of more than 65,536 characters."""


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Return a verb, what a request says, and its headers; mostly fields that the verb knows."""
    verb = draw(st.sampled_from(sorted(USUAL)))
    names = [name for name in USUAL[verb] if draw(st.integers(0, 3))] + draw(
        st.lists(st.sampled_from(sorted(FIELDS)), max_size=1)
    )
    said = {"key": draw(KEYS if draw(st.integers(0, 5)) else VALUES)}
    said |= {name: draw(FIELDS[name]) for name in names}
    once = {"Idempotency-Key": draw(st.sampled_from(["one", "two", "", "x" * 300]))} if draw(st.booleans()) else {}
    return verb, said, once


def written(value: Any) -> bytes:
    """Return a value as JSON, in which lone surrogates and numbers that are none may stand."""
    return json.dumps(value).encode("utf-8", "surrogatepass")


def plain(value: Any) -> str:
    """Return a value as it stands in an address, and no more of it than the client sends there beside others."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:MOST_IN_ADDRESS].encode("utf-8", "replace").decode()


async def sent(service: Called, verb: str, said: dict[str, Any], headers: dict[str, str]) -> Answer:
    """Send the request and return its answer."""
    if verb in READING:
        return await service.ask(f"/memory/chat/{verb}", **{name: plain(value) for name, value in said.items()})
    return await service.ask(f"/memory/chat/{verb}", written(said), headers)


def check(answer: Answer) -> None:
    """Check that an answer has the one form, and that it is no fault of the service."""
    assert answer.status in {200, 400, 404, 409, 413, 422}, answer
    if answer.status == 200:
        assert answer.body.keys() == {"status", "message", "data"}
    else:
        assert answer.body.keys() == {"status", "error"}
        assert answer.body["error"].keys() == {"code", "message", "details"}
        assert answer.body["error"]["message"]
    assert answer.body["status"] == answer.status


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(requests(), min_size=1, max_size=8))
def test_no_request_causes_a_fault_of_the_service(asked: list[tuple[str, dict[str, Any], dict[str, str]]]) -> None:
    """Whatever a request says, its answer has the one form, and is never a fault of the service. Afterwards the memory
    is sound, and holds nothing that its policy forbids."""

    async def run() -> None:
        async with called(CHAT) as service:
            for verb, said, headers in asked:
                check(await sent(service, verb, said, headers))
            memory = service.resources.memory("chat")
            for info in await memory.sessions():
                session = memory.session(info.session)
                assert (await session.verify()).problems == ()
                assert "secret-7" not in json.dumps(await session.export(), default=str)

    asyncio.run(run())
