"""Declared memories over HTTP: what each operation answers, and what is refused."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import running_service as serving
from palimpsest import ConfigError, PalimpsestError, errors
from palimpsest.errors import MissingExtra
from palimpsest.log.entry import Entry
from palimpsest.resources import AsyncDeclaredMemory, AsyncResources, Resources
from palimpsest.resources.clearing import held
from palimpsest.resources.refusals import ANSWERS, refusal_of
from palimpsest.resources.service import application
from palimpsest.resources.service.metrics import NAMES
from palimpsest.sessions.lease import Lease
from palimpsest.summaries.models import SUMMARIZERS
from palimpsest.types import CompactionResult
from running_service import BASE, Called, called

pytestmark = pytest.mark.anyio

CHAT: dict[str, Any] = {
    "resource": "memory",
    "id": "chat",
    "type": "token_based",
    "max_tokens": 1000,
    "max_messages": 100,
    "auto_compact": "off",
    "flushing": {"type": "simple_fifo"},
    "privacy_policy": {"redact_patterns": [r"\b\d{3}-\d{2}-\d{4}\b"], "default_redaction_string": "[SSN]"},
    "persistence": {"type": "in_memory"},
}
PAGE = Path(__file__).resolve().parent.parent / "docs" / "service.md"
TOKEN = "a token of the tests"


def declared(**more: Any) -> dict[str, Any]:
    """Return a declaration that differs from the usual one in these keys."""
    return {**CHAT, **more}


@pytest.fixture
async def chat() -> AsyncIterator[Called]:
    """The service of one memory, `chat`."""
    async with called(CHAT) as service:
        yield service


async def filled(service: Called, key: str, count: int, ref: str = "chat") -> None:
    """Append numbered messages to a key."""
    answer = await service.ask(
        f"/memory/{ref}/append", {"key": key, "messages": [f"message {i}" for i in range(count)]}
    )
    assert answer.data["appended"] == count


# --- read, append, write


async def test_appended_messages_are_read_in_order(chat: Called) -> None:
    """`append` answers how many messages it added, and how many there are; `read` returns them in order, with all that
    they say."""
    ann = {"key": "user:ann"}
    first = await chat.ask("/memory/chat/append", {**ann, "messages": "Where is order 7?"})
    more = [{"role": "assistant", "content": "On its way."}, "Thanks."]
    second = await chat.ask("/memory/chat/append", {**ann, "messages": more})
    read = await chat.ask("/memory/chat/read", key="user:ann")

    assert first.body["status"] == 200
    assert first.data == {"success": True, "key": "user:ann", "appended": 1, "total_count": 1}
    assert (second.data["appended"], second.data["total_count"]) == (2, 3)
    assert [(message["role"], message["content"]) for message in read.data["messages"]] == [
        ("user", "Where is order 7?"),
        ("assistant", "On its way."),
        ("user", "Thanks."),
    ]
    assert all(
        message.keys() >= {"id", "kind", "role", "content", "created_at", "metadata"}
        for message in read.data["messages"]
    )
    assert {**read.data, "messages": []} == {
        "key": "user:ann", "messages": [], "total_count": 3, "has_more": False, "limit": 50, "offset": 0,
    }  # fmt: skip


async def test_metadata_comes_back_as_it_was_sent(chat: Called) -> None:
    """A message has the metadata it was appended or written with, and no other; anything but an object is refused."""
    noted = {"role": "user", "content": "Where is order 7?", "metadata": {"channel": "mail", "tags": ["order"]}}
    for verb in ("append", "write"):
        await chat.ask(f"/memory/chat/{verb}", {"key": verb, "messages": [noted, "Thanks."]})
        read = await chat.ask("/memory/chat/read", key=verb)
        refused = await chat.ask(f"/memory/chat/{verb}", {"key": verb, "messages": [{**noted, "metadata": "mail"}]})

        assert [message["metadata"] for message in read.data["messages"]] == [noted["metadata"], None]
        assert refused.body["status"] == 400
        assert "messages[0].metadata" in str(refused.body["error"])


async def test_limit_and_offset_select_exact_pages(chat: Called) -> None:
    """`limit` and `offset` select a page, and `has_more` says whether others follow; an unknown key has none."""
    await filled(chat, "k", 10)

    async def page(**query: int) -> tuple[list[str], int, bool]:
        data = (await chat.ask("/memory/chat/read", key="k", **query)).data
        return [message["content"][8:] for message in data["messages"]], data["total_count"], data["has_more"]

    assert await page(offset=0, limit=3) == (["0", "1", "2"], 10, True)
    assert await page(offset=3, limit=3) == (["3", "4", "5"], 10, True)
    assert await page(offset=7) == (["7", "8", "9"], 10, False)
    assert await page(offset=20) == ([], 10, False)
    unknown = await chat.ask("/memory/chat/read", key="nobody")
    assert (unknown.data["messages"], unknown.data["total_count"]) == ([], 0)


async def test_a_repeated_append_adds_nothing(chat: Called) -> None:
    """Repeating a request with its `Idempotency-Key` gives the same answer and adds nothing; other messages under that
    key conflict."""
    body, once = {"key": "k", "messages": ["one", "two"]}, {"Idempotency-Key": "request-7"}
    answers = [await chat.ask("/memory/chat/append", body, once) for _ in range(3)]
    other = await chat.ask("/memory/chat/append", {"key": "k", "messages": ["three"]}, once)
    elsewhere = await chat.ask("/memory/chat/append", {**body, "key": "m"}, once)

    assert [answer.data for answer in answers] == [answers[0].data] * 3
    bad = await chat.ask("/memory/chat/append", body, {"Idempotency-Key": "x" * 257})

    assert bad.body["error"]["details"]["field"] == "Idempotency-Key"
    assert other.code == (409, "conflict")
    assert elsewhere.data["total_count"] == 2
    assert (await chat.ask("/memory/chat/read", key="k")).data["total_count"] == 2


async def test_an_append_that_is_stored_is_never_denied(chat: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store fails between an append and the counting, the answer says what was added, without a count."""

    async def away(*_: object, **__: object) -> Any:
        raise errors.StoreUnavailable("redis://", "it went away")

    with monkeypatch.context() as patched:
        patched.setattr(AsyncDeclaredMemory, "read", away)
        answer = await chat.ask("/memory/chat/append", {"key": "k", "messages": "hello"})

    assert answer.data == {"success": True, "key": "k", "appended": 1, "total_count": None}
    assert (await chat.ask("/memory/chat/read", key="k")).data["total_count"] == 1


async def test_a_write_replaces_the_active_messages(chat: Called) -> None:
    """`write` puts messages in the place of the active ones, which go to the archive."""
    await filled(chat, "k", 3)
    written = await chat.ask("/memory/chat/write", {"key": "k", "messages": [{"content": "anew"}]})
    stats = (await chat.ask("/memory/chat/stats", key="k")).data

    assert written.data == {"success": True, "key": "k", "count": 1}
    assert (stats["message_count"], stats["archived_count"]) == (1, 3)


async def test_private_text_is_redacted_before_it_is_stored(chat: Called) -> None:
    """The memory's policy applies to what requests write, and the metrics count it."""
    for verb in ("append", "write"):
        await chat.ask(f"/memory/chat/{verb}", {"key": "k", "messages": ["My SSN is 123-45-6789", "It is secret."]})
    read = await chat.ask("/memory/chat/read", key="k")

    assert read.data["messages"][0]["content"] == "My SSN is [SSN]"
    assert "palimpsest_redactions_total 2.0" in (await chat.ask("/metrics")).body


# --- flush, clear, delete


async def test_a_flush_answers_its_figures_or_why_it_did_nothing(chat: Called) -> None:
    """`flush` answers what it did, or would do, with the figures that a read gives next, and why it did nothing."""
    await filled(chat, "k", 80)
    body = {"key": "k"}
    dry = (await chat.ask("/memory/chat/flush", {**body, "dry_run": True})).data
    done = (await chat.ask("/memory/chat/flush", body)).data
    idle = (await chat.ask("/memory/chat/flush", body)).data
    nothing = (await chat.ask("/memory/chat/flush", {"key": "nobody", "force": True})).data
    stats = (await chat.ask("/memory/chat/stats", key="k")).data

    assert (dry["dry_run"], dry["would_flush"], dry["flushed"]) == (True, True, False)
    assert (done["dry_run"], done["would_flush"], done["flushed"]) == (False, False, True)
    assert done["message_count"] == dry["message_count"] == stats["message_count"] == 50
    assert done["token_count"] == stats["token_count"]
    assert done["tokens_saved"] == done["tokens_before"] - done["token_count"] > 0
    assert (done["actual_strategy"], done["summary_generated"], done["reason"]) == ("simple_fifo", False, None)
    assert (idle["flushed"], idle["reason"]) == (False, "below_threshold")
    assert (nothing["success"], nothing["reason"]) == (True, "nothing_to_compact")
    assert stats["last_flush"]


async def test_a_flush_takes_a_strategy_and_a_threshold(chat: Called) -> None:
    """A request may name another strategy or threshold; unknown ones are refused, also for a pattern without keys."""
    await filled(chat, "k", 60)
    by_name = await chat.ask("/memory/chat/flush", {"key": "k", "strategy": "lru", "threshold": 0.5, "dry_run": True})

    assert (by_name.data["actual_strategy"], by_name.data["would_flush"]) == ("lru", True)
    for key in ("k", "none:*"):
        refused = await chat.ask("/memory/chat/flush", {"key": key, "strategy": "magic"})
        assert refused.code == (400, "invalid_request")
        assert "simple_fifo, lru, hybrid_summary, token_aware_lru" in refused.body["error"]["message"]
        for threshold in (0, 1.1):
            bad = await chat.ask("/memory/chat/flush", {"key": key, "threshold": threshold})
            assert bad.body["error"]["details"]["field"] == "threshold"


async def test_a_memory_with_hybrid_summary_is_flushed_with_a_summary() -> None:
    """A memory that declares `hybrid_summary` is flushed with a summary."""
    flushing = {"type": "hybrid_summary", "summary_tokens": 100, "summarize_threshold": 0.5}
    async with called(declared(flushing=flushing)) as service:
        turns = [
            {"role": role, "content": f"{role} {i} speaks of order {i} at length. " * 8}
            for i in range(5)
            for role in ("user", "assistant")
        ]
        await service.ask("/memory/chat/append", {"key": "k", "messages": turns})
        done = (await service.ask("/memory/chat/flush", {"key": "k", "force": True})).data

        assert (done["flushed"], done["summary_generated"]) == (True, True)
        assert 'palimpsest_flushes_total{strategy="hybrid_summary"} 1.0' in (await service.ask("/metrics")).body


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("pending", (409, "flush_pending")),
        ("conflict", (409, "conflict")),
        ("failed", (503, "flush_failed")),
        ("empty", (503, "flush_failed")),
    ],
)
async def test_a_flush_that_cannot_be_done_is_refused(
    chat: Called, reason: Any, code: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush during another, or one that fails, is refused with the status of its reason."""

    async def flush(self: AsyncDeclaredMemory, key: str, **_: Any) -> dict[str, CompactionResult]:
        return {key: CompactionResult(strategy="lru", reason=reason, why="a reason")}

    monkeypatch.setattr(AsyncDeclaredMemory, "flush", flush)
    refused = await chat.ask("/memory/chat/flush", {"key": "k"})

    assert refused.code == code
    assert refused.body["error"]["details"]["why"] == "a reason"
    assert ("retry-after" in refused.headers) == (code[0] == 503)


async def test_of_two_flushes_at_once_one_is_refused() -> None:
    """While a flush waits for its summarizer, a second one of the same key is refused at once; the first is done."""
    loop, begun, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def summarize(_: str) -> str:
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(120)
        return "Order 0, order 1, order 2 and order 3 left the warehouse in Halden."

    SUMMARIZERS.register("held for a test of the service", summarize)
    config = declared(
        flushing={"type": "hybrid_summary", "summary_tokens": 100, "cod_max_loops": 0},
        summarizer="held for a test of the service",
    )
    async with called(config) as service:
        said = "Order {} left the warehouse in Halden. "
        turns = [{"role": role, "content": said.format(i) * 5} for i in range(5) for role in ("user", "assistant")]
        await service.ask("/memory/chat/append", {"key": "k", "messages": turns})
        flush = {"key": "k", "force": True}
        first = asyncio.create_task(service.ask("/memory/chat/flush", flush))
        try:
            await begun.wait()
            second = await service.ask("/memory/chat/flush", flush)
        finally:
            go_on.set()

        assert second.code == (409, "flush_pending")
        assert (await first).data["flushed"] is True


async def test_a_clear_needs_consent_and_may_leave_a_backup(chat: Called) -> None:
    """`clear` is refused without `confirm: true`; it answers how much it destroyed, and which session is the backup."""
    await filled(chat, "k", 3)
    refused = await chat.ask("/memory/chat/clear", {"key": "k", "backup": True})
    kept = (await chat.ask("/memory/chat/read", key="k")).data["total_count"]
    cleared = (await chat.ask("/memory/chat/clear", {"key": "k", "confirm": True, "backup": True})).data
    again = (await chat.ask("/memory/chat/clear", {"key": "k", "confirm": True})).data

    assert refused.code == (400, "unconfirmed")
    assert kept == 3
    assert (cleared["success"], cleared["messages_cleared"], cleared["backup_created"]) == (True, 3, True)
    assert len(await chat.resources.memory("chat").session(cleared["backup_id"]).entries()) == 3
    assert (again["messages_cleared"], again["backup_created"], again["backup_id"]) == (0, False, None)


async def test_delete_destroys_a_key(chat: Called) -> None:
    """`delete` destroys the key; a key that nothing was written to is unknown."""
    await filled(chat, "k", 3)

    assert (await chat.ask("/memory/chat/delete", {"key": "k"})).data == {"success": True, "key": "k", "deleted": 1}
    assert (await chat.ask("/memory/chat/delete", {"key": "k"})).code == (404, "unknown_key")


async def test_a_pattern_answers_for_each_key(chat: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern answers for each of its keys in order, one that fails in its place, and says whether there are more
    keys than it may reach."""
    for key in ("a:2", "a:1", "a:3", "b:1"):
        await filled(chat, key, 2)
    stats = (await chat.ask("/memory/chat/stats", key="a:*", max_keys=2)).data
    clear = AsyncDeclaredMemory.clear

    async def clear_unless(self: AsyncDeclaredMemory, key: str, **options: Any) -> Any:
        if key == "a:2":
            raise errors.LockTimeout("the clear of a:2", 5)
        return await clear(self, key, **options)

    monkeypatch.setattr(AsyncDeclaredMemory, "clear", clear_unless)
    cleared = (await chat.ask("/memory/chat/clear", {"key": "a:*", "confirm": True})).data
    deleted = (await chat.ask("/memory/chat/delete", {"key": "*"})).data

    assert [one["key"] for one in stats["results"]] == ["a:1", "a:2"]
    assert stats["max_keys_reached"] is True
    assert [(one["key"], one["success"]) for one in cleared["results"]] == [
        ("a:1", True),
        ("a:2", False),
        ("a:3", True),
    ]
    assert cleared["results"][1]["error"]["code"] == "locked"
    assert (cleared["success"], cleared["max_keys_reached"]) == (False, False)
    assert (deleted["deleted"], len(deleted["results"])) == (4, 4)


# --- figures and health


@pytest.mark.parametrize(("fails", "written", "done"), [("a", False, None), ("c", None, ["a", "b"])])
async def test_a_store_that_fails_amid_a_pattern_hides_nothing(
    chat: Called, monkeypatch: pytest.MonkeyPatch, fails: str, written: bool | None, done: list[str] | None
) -> None:
    """If the store fails amid the keys of a pattern, the answer says which were done before, and no longer that nothing
    was changed."""
    for key in ("a", "b", "c"):
        await filled(chat, key, 1)
    delete = AsyncDeclaredMemory.delete

    async def failing(self: AsyncDeclaredMemory, key: str, **options: Any) -> int:
        if key == fails:
            raise errors.StoreUnavailable("redis://", "it went away", written=False)
        return await delete(self, key, **options)

    monkeypatch.setattr(AsyncDeclaredMemory, "delete", failing)
    answer = await chat.ask("/memory/chat/delete", {"key": "*"})
    details = answer.body["error"]["details"]

    assert answer.code == (503, "store_unavailable")
    assert details["written"] is written
    assert (details.get("results") and [one["key"] for one in details["results"]]) == done


async def test_stats_are_those_of_the_library(chat: Called) -> None:
    """`stats` answers counts, shares of the limit, roles and averages; a key without messages has zeros."""
    await filled(chat, "k", 4)
    stats = (await chat.ask("/memory/chat/stats", key="k")).data
    library = (await chat.resources.keyed("chat").stats("k"))["k"]
    nothing = (await chat.ask("/memory/chat/stats", key="nobody")).data

    assert stats["token_count"] == stats["context_window_used"] == library.tokens
    assert stats["token_limit"] == 1000
    assert stats["token_utilization"] == library.tokens / 1000
    assert stats["avg_tokens_per_message"] == library.tokens / 4
    assert (stats["role_distribution"], stats["last_flush"]) == ({"user": 4}, None)
    assert (nothing["message_count"], nothing["avg_tokens_per_message"], nothing["role_distribution"]) == (0, 0, {})


async def test_health_checks_the_store_and_the_key(chat: Called) -> None:
    """`health` of a key checks the store, adds the key's figures unless they are not wanted, and names keys that are
    near their limit."""
    await filled(chat, "k", 90)
    health = (await chat.ask("/memory/chat/health", key="k")).data
    bare = (await chat.ask("/memory/chat/health", key="k", include_stats="false")).data
    every = (await chat.ask("/memory/chat/health")).data
    unknown = (await chat.ask("/memory/chat/health", key="nobody")).data

    assert (health["healthy"], health["near_limit"], health["message_count"]) == (True, ["k"], 90)
    assert health["checks"] == [{"name": "store", "healthy": True, "error": None}]
    assert health["actual_strategy"] == "simple_fifo"
    assert "message_count" not in bare
    assert (unknown["healthy"], unknown["message_count"], unknown["token_count"]) == (True, 0, 0)
    assert (every["key"], every["near_limit"]) == ("*", ["k"])


async def test_a_fresh_service_is_healthy(chat: Called) -> None:
    """The service is healthy before a key was written to."""
    assert (await chat.ask("/memory/health")).data == {
        "healthy": True,
        "checks": [{"name": "chat", "healthy": True, "error": None}],
    }


# --- refusals


@pytest.mark.parametrize(
    ("query", "field", "rule"),
    [
        ({}, "key", "required"),
        ({"key": ""}, "key", "1 to 256"),
        ({"key": "user name"}, "key", "1 to 256"),
        ({"key": "user:*"}, "key", "1 to 256"),
        ({"key": "__x"}, "key", "1 to 256"),
        ({"key": "k", "limit": 0}, "limit", ">= 1"),
        ({"key": "k", "limit": 1001}, "limit", "<= 1000"),
        ({"key": "k", "limit": "ten"}, "limit", "int"),
        ({"key": "k", "offset": -1}, "offset", ">= 0"),
        ({"key": "k", "offset": 10**30}, "offset", ""),
        ({"key": "k", "page": 2}, "page", "key, limit, offset"),
    ],
)
async def test_a_bad_parameter_is_named(chat: Called, query: dict[str, object], field: str, rule: str) -> None:
    """A missing, unknown or invalid parameter is refused; the details name it and the rule."""
    refused = await chat.ask("/memory/chat/read", **query)

    assert refused.code == (400, "invalid_request")
    assert refused.body["status"] == 400
    assert refused.body["error"]["details"]["field"] == field
    assert rule in refused.body["error"]["details"]["rule"]
    assert refused.body["error"]["message"]


async def test_a_parameter_that_is_given_twice_is_refused(chat: Called) -> None:
    """A parameter may be given once."""
    refused = await chat.ask("/memory/chat/read?key=a&key=b")

    assert refused.body["error"]["details"]["field"] == "key"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "body"),
        (b"[1]", "body"),
        (b'{"key": "k"', "body"),
        (b"[" * 100_000, "body"),
        (b'{"key": "\xff"}', "body"),
        ({"key": "k"}, "messages"),
        ({"key": 7, "messages": "x"}, "key"),
        ({"key": "k", "messages": "x", "limit": 3}, "limit"),
        ({"key": "k", "messages": {"text": "x"}}, "messages"),
        ({"key": "k", "messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"key": "k", "messages": ["x", 7]}, "messages[1]"),
        ({"key": "k", "messages": ""}, "messages[0].content"),
        ({"key": "k", "messages": ["x", {"role": "system", "content": " "}]}, "messages[1].content"),
        ({"key": "k", "messages": ["x", {"content": "x", "metdata": {"user": "ann"}}]}, "messages[1]"),
        ({"key": "k", "messages": {"content": "x", "id": "1", "kind": "message"}}, "messages"),
    ],
)
@pytest.mark.parametrize("verb", ["append", "write"])
async def test_a_bad_body_is_refused_whole(chat: Called, verb: str, body: object, field: str) -> None:
    """A body that is no JSON object, or has a missing, unknown or invalid field, is refused, and stores nothing. So is
    a message with an unknown field, or an empty one of the user or the system."""
    refused = await chat.ask(f"/memory/chat/{verb}", body)

    assert refused.status == 400
    assert refused.body["error"]["details"]["field"] == field
    assert (await chat.ask("/memory/chat/read", key="k")).data["total_count"] == 0


@pytest.mark.parametrize(
    "messages",
    [["m"] * 101, "x" * 10_241, ["x" * 10_240] * 11],
    ids=["messages", "content", "total"],
)
@pytest.mark.parametrize("verb", ["append", "write"])
async def test_messages_over_a_limit_are_refused_whole(chat: Called, verb: str, messages: object) -> None:
    """Too many messages, too long a content, or too much in all is refused, and changes nothing."""
    await filled(chat, "k", 1)
    refused = await chat.ask(f"/memory/chat/{verb}", {"key": "k", "messages": messages})

    assert refused.code == (413, "too_large")
    assert [message["content"] for message in (await chat.ask("/memory/chat/read", key="k")).data["messages"]] == [
        "message 0"
    ]


async def test_a_large_body_is_refused_before_it_is_read() -> None:
    """A body over `body_bytes` is refused, whether its length is announced or not."""
    async with called(CHAT, body_bytes=1000) as service:
        body = json.dumps({"key": "k", "messages": "x" * 1000}).encode()
        announced = await service.ask("/memory/chat/append", body)

        async def pieces() -> AsyncIterator[bytes]:
            for i in range(0, len(body), 100):
                yield body[i : i + 100]

        streamed = await service._client.post(
            f"{BASE}/memory/chat/append", content=pieces(), headers={"Content-Type": "application/json"}
        )

    assert announced.code == (413, "too_large")
    assert (streamed.status_code, streamed.json()["error"]["code"]) == (413, "too_large")


async def test_an_unknown_memory_route_or_method_is_named(chat: Called) -> None:
    """An unknown memory, an unknown route and a wrong method are refused in the same form."""
    assert (await chat.ask("/memory/other/read", key="k")).code == (404, "unknown_memory")
    assert (await chat.ask("/memory/chat/sing", key="k")).code == (404, "unknown_route")
    wrong = await chat.ask("/memory/chat/append", key="k")
    assert wrong.code == (405, "wrong_method")
    assert "POST" in wrong.headers["allow"]
    for path in ("/memory/chat/read/", "/memory/health/", "/memory/chat/append/"):  # nothing is redirected
        assert (await chat.ask(path, key="k")).code == (404, "unknown_route")


@pytest.mark.parametrize("by", ["service", "declaration"])
async def test_a_read_only_memory_is_not_changed(tmp_path: Path, by: str) -> None:
    """Changes of a memory that is read-only here, or is declared so, are refused; it is read as any other. An unknown
    one is a mistake."""
    config = declared(persistence={"type": "sqlite", "path": str(tmp_path / "a.db")})
    async with AsyncResources.load(config) as resources:
        await resources.keyed("chat").append("k", "hello")
    there, options = (config, {"read_only": ["chat"]}) if by == "service" else ({**config, "readonly": True}, {})
    async with called(there, **options) as service:
        bodies = {
            "append": {"messages": "x"},
            "write": {"messages": "x"},
            "delete": {},
            "flush": {"force": True},
            "clear": {"confirm": True},
        }
        for verb, body in bodies.items():
            assert (await service.ask(f"/memory/chat/{verb}", {"key": "k", **body})).code == (403, "read_only")
        assert (await service.ask("/memory/chat/read", key="k")).data["total_count"] == 1
    for unknown in (["caht"], "chat"):
        with pytest.raises(ConfigError, match=r"caht|read_only"):
            async with called(CHAT, read_only=unknown):
                pass


def broken(text: str) -> list[tuple[int, int, str]]:
    """A recogniser that fails for a text with the word "private"."""
    if "private" in text:
        raise RuntimeError(text)
    return []


async def test_a_policy_that_fails_refuses_and_stores_nothing() -> None:
    """If the privacy policy cannot be applied, the request is refused, nothing of it is stored, and it is a metric."""
    async with called(CHAT, loading={"privacy": {"recognisers": [broken]}}) as service:
        refused = await service.ask("/memory/chat/append", {"key": "k", "messages": "something private"})
        read = await service.ask("/memory/chat/read", key="k")
        metrics = (await service.ask("/metrics")).body

    assert refused.code == (422, "privacy_refused")
    assert "recognisers.broken" in refused.body["error"]["details"]["rule"]
    assert "something private" not in json.dumps(refused.body)
    assert read.data["total_count"] == 0
    assert "palimpsest_privacy_refusals_total 1.0" in metrics


@pytest.mark.slow
async def test_a_clear_that_waits_too_long_is_refused(chat: Called) -> None:
    """A clear that others do not let begin is refused after five seconds, and what it waited is a metric if it may."""
    await filled(chat, "k", 1)
    memory = chat.resources.memory("chat")
    async with held(memory, "default/chat/k", 60):
        refused = await chat.ask("/memory/chat/clear", {"key": "k", "confirm": True})

    assert refused.code == (423, "locked")


async def test_waits_for_a_lock_are_a_metric(chat: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that an operation waits for another caller's lock is a metric."""
    await filled(chat, "k", 1)
    memory, loop = chat.resources.memory("chat"), asyncio.get_running_loop()
    waits, try_to_take = asyncio.Event(), Lease.try_to_take

    async def watched(lease: Lease) -> bool:
        taken = await try_to_take(lease)
        if not taken:
            loop.call_soon_threadsafe(waits.set)
        return taken

    async with held(memory, "default/chat/k", 60):
        monkeypatch.setattr(Lease, "try_to_take", watched)
        waiting = asyncio.create_task(chat.ask("/memory/chat/clear", {"key": "k", "confirm": True}))
        await waits.wait()

    assert (await waiting).data["messages_cleared"] == 1
    assert "palimpsest_lock_wait_seconds_count 1.0" in (await chat.ask("/metrics")).body


def test_every_error_has_a_status() -> None:
    """Each error of the library that a request can cause has a status; the others are faults of the service's own."""
    own = {
        "ConditionFailed", "ForkedProcess", "ImportFailed", "InvalidContext", "MissingExtra", "PalimpsestError",
        "PastUnknown", "StoreError",
    }  # fmt: skip
    kinds = {
        name: kind
        for name in errors.__all__
        if isinstance(kind := getattr(errors, name), type) and issubclass(kind, PalimpsestError)
    }
    answered = {name for name, kind in kinds.items() if any(issubclass(kind, one) for one, _, _ in ANSWERS)}

    assert kinds.keys() - answered == own - {"StoreError"}
    order = [kind for kind, _, _ in ANSWERS]
    assert not any(issubclass(later, kind) for i, kind in enumerate(order) for later in order[i + 1 :])
    assert refusal_of(MissingExtra("a model", "llm")) is None


async def test_a_fault_of_the_service_has_a_number(
    chat: Called, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault that nobody expected answers 500 with a number, under which the log has it, without private text."""

    async def broken(*_: object, **__: object) -> Any:
        raise ZeroDivisionError("of 123-45-6789")

    monkeypatch.setattr(AsyncDeclaredMemory, "read", broken)
    failed = await chat.ask("/memory/chat/read", key="k")

    assert failed.code == (500, "internal")
    number = failed.body["error"]["details"]["id"]
    assert "123-45-6789" not in json.dumps(failed.body)
    logged = [record.getMessage() for record in caplog.records if record.name == "palimpsest"]
    assert [number in text and "ZeroDivisionError" in text and "123-45-6789" not in text for text in logged] == [True]


# --- who may ask


async def test_every_route_refuses_requests_without_the_token() -> None:
    """With a token every route refuses requests without it, and the host does not matter."""
    async with called(CHAT, token=TOKEN) as service:
        right = {"Authorization": f"Bearer {TOKEN}", "Host": "memory.example:8321"}
        for given in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": f"Basic {TOKEN}"},
            {"Authorization": ""},
        ):
            for path in ("/memory/health", "/memory/chat/read?key=k", "/metrics", "/openapi.json", "/nothing"):
                refused = await service.ask(path, None, given)
                assert refused.code == (401, "unauthorized")
                assert refused.headers["www-authenticate"] == "Bearer"
        assert (await service.ask("/memory/chat/read", None, right, key="k")).status == 200


@pytest.mark.parametrize(
    "token",
    ["", "short", "ein längerer Schlüssel", f"{TOKEN}\n", f" {TOKEN}", f"{TOKEN}\t", "a token\nof the tests", " " * 20],
)
async def test_a_weak_token_is_refused(token: str) -> None:
    """A token is ASCII text of at least 16 characters that a header can hold; the error does not show it."""
    with pytest.raises(ConfigError, match="at least 16") as raised:
        async with called(CHAT, token=token):
            pass
    assert not token.strip() or token.strip() not in str(raised.value)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8321", 200), ("127.0.0.1", 200), ("[::1]:8321", 200), ("LOCALHOST.", 200), ("memory.internal", 200),
        ("evil.example", 400), ("127.0.0.1.evil.example", 400), ("localhost.evil.example:80", 400), ("", 400),
    ],
)  # fmt: skip
async def test_without_a_token_only_local_hosts_are_accepted(host: str, status: int) -> None:
    """Without a token a request must name this machine as its host, or a name that is allowed: pages of other sites do
    not reach the service through a browser."""
    async with called(CHAT, hosts=["memory.internal"]) as service:
        assert (await service.ask("/memory/health", None, {"Host": host})).status == status


@pytest.mark.parametrize("hosts", ["localhost", [1], 7])
async def test_hosts_are_a_list_of_names(hosts: Any) -> None:
    """Names of the host are a list of texts, each with or without its port; one text is not taken for its letters."""
    with pytest.raises(ConfigError, match="hosts"):
        async with called(CHAT, hosts=hosts):
            pass
    async with called(CHAT, hosts=["Memory.internal:8321", "fd00::1"]) as service:
        for host in ("memory.internal", "memory.internal:8321", "[fd00::1]:8321"):
            assert (await service.ask("/memory/health", None, {"Host": host})).status == 200


async def test_a_change_without_a_json_content_type_is_refused(chat: Called) -> None:
    """A change that does not say it is JSON is refused: browsers send other types to other sites without asking."""
    body = json.dumps({"key": "k", "messages": "x"}).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "", "application/jsonp"):
        refused = await chat.ask("/memory/chat/append", body, {"Content-Type": kind})
        assert refused.body["error"]["details"]["field"] == "Content-Type"
    accepted = await chat.ask("/memory/chat/append", body, {"Content-Type": "application/json; charset=utf-8"})
    assert accepted.data["total_count"] == 1


async def test_the_log_of_requests_has_no_keys(chat: Called, caplog: pytest.LogCaptureFixture) -> None:
    """A request's line in the log has its method, operation, memory and status, and nothing that it said."""
    with caplog.at_level(logging.INFO, "palimpsest.service"):
        await chat.ask("/memory/chat/append", {"key": "user:ann", "messages": "a secret"}, {"Idempotency-Key": "seven"})
        await chat.ask("/memory/user:ann/read", key="user:ann")
        await chat.ask("/user:ann")
        await chat.ask("/memory/health", None, {"Host": "user-ann.example"})
    lines = [record.getMessage() for record in caplog.records if record.name == "palimpsest.service"]

    assert [re.sub(r"\d+ ms", "", line).strip() for line in lines] == [
        "POST append chat 200",
        "GET read - 404",
        "GET - - 404",
        "GET - - 400",
    ]
    assert 'palimpsest_operations_total{operation="-",outcome="wrong_host"} 1.0' in (await chat.ask("/metrics")).body


# --- what describes the service


async def test_the_metrics_are_those_that_are_documented(chat: Called) -> None:
    """The names that are exposed are those of the documentation, and say what happened."""
    await filled(chat, "k", 80)
    await chat.ask("/memory/chat/flush", {"key": "k"})
    await chat.ask("/memory/chat/read", key="user name")
    text = (await chat.ask("/metrics")).body

    families = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    assert {name for name in families if not name.endswith("_created")} == set(NAMES)
    assert set(re.findall(r"`(palimpsest_\w+)`", PAGE.read_text("utf-8"))) == set(NAMES)
    assert 'palimpsest_operations_total{operation="append",outcome="ok"} 1.0' in text
    assert 'palimpsest_operations_total{operation="read",outcome="invalid_request"} 1.0' in text
    assert 'palimpsest_flushes_total{strategy="simple_fifo"} 1.0' in text
    assert float(re.findall(r"^palimpsest_tokens_saved_total (\S+)", text, re.MULTILINE)[0]) > 0


async def test_every_route_is_described(chat: Called) -> None:
    """The OpenAPI document has every route with its method, and the fields of its requests."""
    document = (await chat.ask("/openapi.json")).body

    routes = {path.removeprefix(BASE): list(methods) for path, methods in document["paths"].items()}
    changes = ("append", "write", "delete", "flush", "clear")
    assert routes == {
        **{f"/memory/{{ref}}/{verb}": ["post"] for verb in changes},
        **{f"/memory/{{ref}}/{verb}": ["get"] for verb in ("read", "health", "stats")},
        "/memory/health": ["get"],
        "/metrics": ["get"],
    }
    assert document["servers"] == [{"url": "/"}]
    flush = document["components"]["schemas"]["FlushRequest"]
    assert flush["properties"].keys() == {"key", "force", "dry_run", "strategy", "threshold", "max_keys"}
    assert (flush["required"], flush["additionalProperties"]) == (["key"], False)
    read = document["paths"][f"{BASE}/memory/{{ref}}/read"]["get"]
    assert [one["name"] for one in read["parameters"]] == ["ref", "key", "limit", "offset"]


async def test_every_answer_is_described(chat: Called) -> None:
    """The OpenAPI document has each status that the page of the service has, but for that of a wrong method, which no
    route answers; and answers are as it says."""
    document = (await chat.ask("/openapi.json")).body
    table = PAGE.read_text("utf-8").partition("| status | codes | when |")[2].partition("\n\n")[0]
    statuses = set(re.findall(r"^\| (\d+) ", table, re.MULTILINE)) - {"405"}
    asked: list[tuple[str, str, object, dict[str, object]]] = [
        ("append", "post", {"key": "k", "messages": "x"}, {}),
        ("append", "post", {"key": "k", "messages": ["x"] * 101}, {}),
        ("delete", "post", {"key": "nobody"}, {}),
        ("stats", "get", None, {"key": "k*"}),
        ("read", "get", None, {"key": "k", "limit": 0}),
    ]

    for verb, method, body, query in asked:
        responses = document["paths"][f"{BASE}/memory/{{ref}}/{verb}"][method]["responses"]
        answer = await chat.ask(f"/memory/chat/{verb}", body, **query)
        schema = responses[str(answer.status)]["content"]["application/json"]["schema"]
        jsonschema.validate(answer.body, {**schema, "components": document["components"]})
        assert responses.keys() == statuses


async def test_the_service_may_be_mounted_in_another_application() -> None:
    """A program may mount the service in its own application, and goes on to use the memories itself. What the service
    says of its routes is true there."""
    async with AsyncResources.load(CHAT) as resources:
        outer = Starlette(routes=[Mount("/memories", application(resources))])
        transport = serving.httpx2.ASGITransport(app=outer)
        async with serving.httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            body = {"key": "k", "messages": "hello"}
            lost = (await client.post("/memories/nothing", json=body)).json()["error"]["message"]
            described = (await client.get(lost.partition("; ")[2].split()[0])).json()
            base = described["servers"][0]["url"]
            done = await client.post(f"{base}{BASE}/memory/chat/append", json=body)
        (entry,) = await resources.session({"id": "chat", "key": "k"}).entries()

    assert done.status_code == 200
    assert base == "/memories"
    assert isinstance(entry, Entry)
    assert entry.text == "hello"


async def test_a_file_that_is_no_store_answers_503(tmp_path: Path) -> None:
    """If the store's file is something else, every operation answers 503 and does not blame the request."""
    (tmp_path / "no.db").write_text("this is no database " * 1000)
    config = declared(persistence={"type": "sqlite", "path": str(tmp_path / "no.db")})
    for verb, body in (("clear", {"confirm": True}), ("delete", {}), ("flush", {}), ("append", {"messages": "x"})):
        async with called(config) as service:
            answer = await service.ask(f"/memory/chat/{verb}", {"key": "k", **body})
            assert answer.code == (503, "store_unavailable")


def test_a_memory_that_cannot_be_opened_fails_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A memory whose environment variable is missing is an error of the start, not of each request."""
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    config = declared(persistence={"type": "redis", "url": "${NO_SUCH_KEY}", "ttl": "1h"})
    with Resources.load(config), pytest.raises(ConfigError, match="NO_SUCH_KEY"):
        application(AsyncResources.load(config))
