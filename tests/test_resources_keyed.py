"""A declared memory by its keys: read, append, write, flush, clear, delete, stats, health."""

from __future__ import annotations

import itertools
import logging
import sqlite3
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from palimpsest import ConfigError
from palimpsest.errors import Conflict, InvalidEntry, LockTimeout, StoreCorrupt
from palimpsest.resources import AsyncResources, DeclaredMemory, Limits, Resources
from palimpsest.resources.keys import Template, matcher
from palimpsest.resources.operations import COPIES
from test_resources import MINIMAL, loaded
from writer import quarters

ID = "user_conversation"


@pytest.fixture(params=["memory", "sqlite"])
def resources(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Resources]:
    """Yield a memory of 1,000 tokens and 100 messages, in memory and in a file."""
    place = {"type": "in_memory"} if request.param == "memory" else {"type": "sqlite", "path": str(tmp_path / "a.db")}
    flushing = {"type": "simple_fifo", "low_water": 0.5}
    more = {"max_tokens": 1_000, "max_messages": 100, "flushing": flushing, "auto_compact": "off", "persistence": place}
    with Resources.load({**loaded(MINIMAL), **more}) as found:
        yield found


@pytest.fixture
def keyed(resources: Resources) -> DeclaredMemory:
    """Return the memory by its keys."""
    return resources.keyed(ID)


def filled(keyed: DeclaredMemory, key: str, count: int) -> None:
    """Append `count` messages of a user under a key."""
    for start in range(0, count, 50):
        keyed.append(key, [f"message {number}" for number in range(start, min(start + 50, count))])


def test_pages_are_in_order_and_their_total_is_exact(keyed: DeclaredMemory) -> None:
    """`read` returns pages in order with the exact total; an unknown key is empty."""
    assert keyed.append("k", "message 0") == 1
    assert keyed.append("k", [{"content": "message 1"}, {"content": "message 2", "role": "assistant"}]) == 2
    filled(keyed, "k", 7)
    page = keyed.read("k", offset=0, limit=3)
    assert ([entry.text for entry in page.entries], page.total) == (["message 0", "message 1", "message 2"], 10)
    assert [entry.role for entry in page.entries] == ["user", "user", "assistant"]
    assert [entry.text for entry in keyed.read("k", offset=3, limit=3).entries] == [f"message {n}" for n in range(3)]
    assert keyed.read("k", offset=20) == type(page)(entries=(), total=10)
    assert keyed.read("unknown").total == 0
    for wrong in ({"offset": -1}, {"limit": "x"}):
        with pytest.raises(ConfigError):
            keyed.read("k", **wrong)  # type: ignore[arg-type]


def test_a_write_replaces_the_active_messages(keyed: DeclaredMemory) -> None:
    """`write` replaces the active messages in one step and archives them; a write that fails changes nothing."""
    keyed.write("fresh", "hello")
    assert keyed.stats("fresh")["fresh"].last_flush is None
    filled(keyed, "k", 6)
    assert keyed.write("k", ["one", {"content": "two", "role": "assistant"}]) == 2
    assert [entry.text for entry in keyed.read("k").entries] == ["one", "two"]
    assert keyed.stats("k")["k"].archived == 6
    assert keyed.stats("k")["k"].last_flush is not None
    with pytest.raises(InvalidEntry):
        keyed.write("k", ["three", {"content": "four", "role": "nobody"}])
    assert keyed.read("k").total == 2


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        ("x" * 10_241, "10,241 bytes"),
        (["é" * 5_121], "10,242 bytes"),
        (["x"] * 101, "101 messages"),
        (["x" * 10_240] * 10 + ["x"], "102,401 bytes"),
        ([{"role": "user"}], "content"),
        (7, "is not a message"),
        ([7], "is not a message"),
        ("", "says nothing"),
    ],
)
def test_a_payload_too_large_or_invalid_is_refused_whole(keyed: DeclaredMemory, payload: Any, told: str) -> None:
    """A payload over a limit or with an invalid message is refused whole; one at the limit is accepted."""
    with pytest.raises(InvalidEntry, match=told):
        keyed.append("k", payload)
    assert keyed.read("k").total == 0
    assert keyed.append("k", ["x" * 10_240] * 10) == 10


def test_limits_come_from_the_program_or_the_environment(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits are set by the program or by variables, and both are checked."""
    with pytest.raises(InvalidEntry, match="at most 3"):
        resources.keyed(ID, limits={"content_bytes": 3}).append("k", "four")
    with pytest.raises(InvalidEntry, match="at most 1 "):
        resources.keyed(ID, limits=Limits(messages=1)).append("k", ["a", "b"])
    monkeypatch.setenv("MAX_MESSAGE_CONTENT_LENGTH", "5")
    monkeypatch.setenv("MAX_TOTAL_CONTENT_SIZE", "8")
    small = resources.keyed(ID)
    assert small.append("k", ["12345", "123"]) == 2
    with pytest.raises(InvalidEntry, match="9 bytes"):
        small.append("k", ["12345", "1234"])
    monkeypatch.setenv("MAX_TOTAL_CONTENT_SIZE", "many")
    with pytest.raises(ConfigError, match="MAX_TOTAL_CONTENT_SIZE"):
        resources.keyed(ID)
    for wrong in ({"content_bytes": 0}, {"bytes": 1}, 7):
        with pytest.raises(ConfigError, match="limits"):
            resources.keyed(ID, limits=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["k", "*"])
def test_a_readonly_memory_is_not_changed(tmp_path: Path, key: str) -> None:
    """Every verb that changes a key of a memory that is declared `readonly` is refused, and leaves the store as it is:
    nothing is destroyed, and no backup is made. Reading works."""
    place = {"persistence": {"type": "sqlite", "path": str(tmp_path / "a.db")}}
    with Resources.load({**loaded(MINIMAL), **place}) as resources:
        filled(resources.keyed(ID), "k", 3)
    with Resources.load({**loaded(MINIMAL), **place, "readonly": True}) as resources:
        keyed, memory = resources.keyed(ID), resources.memory(ID)
        before = memory.sessions()
        verbs = [
            lambda: keyed.append("k", "x"),
            lambda: keyed.write("k", "x"),
            lambda: keyed.flush(key, force=True),
            lambda: keyed.clear(key, confirm=True, backup=True),
            lambda: keyed.delete(key),
        ]
        for verb in verbs:
            with pytest.raises(ConfigError, match="readonly"):
                verb()

        assert memory.sessions() == before
        assert keyed.read("k").total == 3


def test_a_flush_runs_over_the_threshold_or_if_forced(keyed: DeclaredMemory) -> None:
    """`flush` runs if a key is over the threshold or `force` is given, for one key or a pattern.

    A dry run returns the same and changes nothing.
    """
    filled(keyed, "k", 80)
    filled(keyed, "few", 5)
    preview = keyed.flush("k", dry_run=True)["k"]
    assert (preview.done, keyed.read("k").total) == (True, 80)
    results = keyed.flush("*")
    assert sorted(results) == ["few", "k"]
    assert (results["k"].done, results["few"].reason) == (True, "below_threshold")
    assert keyed.read("k").total == 50
    assert [entry.text for entry in keyed.read("k", limit=1).entries] == ["message 30"]
    assert keyed.flush("few", force=True, strategy="lru")["few"].strategy == "lru"
    assert keyed.flush("few", force=True, strategy="fifo")["few"].strategy == "simple_fifo"
    assert keyed.flush("few", threshold=0.01)["few"].reason != "below_threshold"
    filled(keyed, "forced", 5)
    assert keyed.flush("forced", threshold=1.0)["forced"].reason == "below_threshold"
    assert keyed.flush("forced", threshold=1.0, force=True)["forced"].reason != "below_threshold"
    assert keyed.flush("unknown") == {}
    for wrong, told in (
        ({"strategy": "magic"}, "simple_fifo, lru, hybrid_summary, token_aware_lru"),
        ({"strategy": "hybrid_summary"}, "summary_tokens"),
        ({"threshold": 0}, "threshold"),
        ({"threshold": 1.1}, "threshold"),
        ({"threshold": float("nan")}, "threshold"),
        ({"dry_run": "yes"}, "dry_run"),
        ({"force": 1}, "force"),
        ({"max_keys": -1}, "max_keys"),
        ({"max_keys": 10_001}, "max_keys"),
    ):
        for key in ("k", "unknown", "unknown*"):
            with pytest.raises(ConfigError, match=told):
                keyed.flush(key, **wrong)  # type: ignore[arg-type]


def test_clear_needs_consent_and_can_keep_a_copy(resources: Resources, keyed: DeclaredMemory) -> None:
    """`clear` needs `confirm`; `backup` keeps a copy as a session that no pattern of keys matches."""
    for count, key in ((3, "a:1"), (2, "a:2"), (1, "b")):
        filled(keyed, key, count)
    with pytest.raises(ConfigError, match="confirm"):
        keyed.clear("a:1")
    cleared = keyed.clear("a:*", confirm=True, backup=True)
    assert cleared.entries == {"a:1": 3, "a:2": 2}
    assert [keyed.read(key).total for key in ("a:1", "a:2", "b")] == [0, 0, 1]
    copied = resources.memory(ID).session(cleared.backups["a:1"]).entries()
    assert [entry.text for entry in copied] == ["message 0", "message 1", "message 2"]
    assert sorted(keyed.stats("*")) == ["a:1", "a:2", "b"]
    assert keyed.clear("a:1", confirm=True).backups == {}


@pytest.mark.parametrize("others", [1, 3, COPIES])
def test_everything_that_clear_destroys_is_in_its_copy(
    resources: Resources, keyed: DeclaredMemory, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """Entries added while the copy is made are in it, or `clear` gives up and destroys nothing.

    Earlier copies are removed.
    """
    filled(keyed, "a", 1)
    memory, adding = resources.memory(ID), iter(range(others))
    real = memory.import_session

    def copied(*given: Any, **more: Any) -> Any:
        imported = real(*given, **more)
        for number in itertools.islice(adding, 1):
            keyed.session("a").add_user_message(f"late {number}")
        return imported

    monkeypatch.setattr(memory, "import_session", copied)
    texts = ["message 0", *(f"late {number}" for number in range(others))]
    if others < COPIES:
        cleared = keyed.clear("a", confirm=True, backup=True)
        assert cleared.entries == {"a": len(texts)}
        assert [entry.text for entry in memory.session(cleared.backups["a"]).entries()] == texts
        assert keyed.read("a").total == 0
    else:
        with pytest.raises(Conflict, match="revision"):
            keyed.clear("a", confirm=True, backup=True)
        assert [entry.text for entry in keyed.session("a").entries()] == texts
    assert len([one for one in memory.sessions() if "/~" in one.session]) == (others < COPIES)


def test_delete_removes_keys(keyed: DeclaredMemory) -> None:
    """`delete` removes a key, or keys of a pattern up to `max_keys`; invalid keys are refused."""
    for number in range(5):
        filled(keyed, f"k{number}", 1)
    assert keyed.delete("k0") == 1
    assert keyed.delete("k0") == 0
    assert keyed.delete("k*", max_keys=3) == 3
    assert keyed.delete("*") == 1
    for wrong in ("user name", "__x", "", "a/*", "a" * 257):
        with pytest.raises(ConfigError, match="key"):
            keyed.delete(wrong)


def test_a_damaged_key_costs_no_other_key_of_a_pattern(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A verb over a pattern does all other keys in order, and names the damaged key with the reason.

    Named alone, that key raises StoreCorrupt.
    """
    place = {"type": "sqlite", "path": str(tmp_path / "a.db")}
    declared = {**loaded(MINIMAL), "auto_compact": "off", "persistence": place}
    with Resources.load(declared) as found:
        for key in ("a:1", "a:2", "a:3"):
            filled(found.keyed(ID), key, 3)
    with sqlite3.connect(tmp_path / "a.db") as db:
        db.execute("UPDATE place SET hot = zeroblob(length(hot)) WHERE name LIKE '%a:2'")
    db.close()
    with Resources.load(declared) as found:
        keyed = found.keyed(ID)
        assert list(keyed.stats("a:*")) == ["a:1", "a:3"]
        flushed = keyed.flush("a:*", force=True)
        assert list(flushed) == ["a:1", "a:2", "a:3"]
        assert (flushed["a:2"].reason, "cannot be read" in flushed["a:2"].why) == ("failed", True)
        assert "failed" not in (flushed["a:1"].reason, flushed["a:3"].reason)
        health = keyed.health()
        assert (health.works, list(health.failed)) == (True, ["a:2"])
        cleared = keyed.clear("a:*", confirm=True, backup=True)
        assert (list(cleared.entries), list(cleared.backups), list(cleared.failed)) == (
            ["a:1", "a:3"],
            ["a:1", "a:3"],
            ["a:2"],
        )
        assert "a:2" in caplog.text
        for verb in (keyed.stats, keyed.flush, lambda key: keyed.clear(key, confirm=True)):
            with pytest.raises(StoreCorrupt):
                verb("a:2")
        assert keyed.keys("a:*") == ["a:1", "a:2", "a:3"]
        assert keyed.delete("a:2") == 1
        assert keyed.keys() == ["a:1", "a:3"]


def test_a_locked_key_stops_no_other_deletion(keyed: DeclaredMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleting a pattern deletes all other keys before it raises LockTimeout for a locked one."""
    for number in range(3):
        filled(keyed, f"k{number}", 1)
    real = keyed._memory.delete_session

    def deleted(session: str, *given: Any, **more: Any) -> Any:
        if session.endswith("k1"):
            raise LockTimeout("the clear of k1", 5)
        return real(session, *given, **more)

    monkeypatch.setattr(keyed._memory, "delete_session", deleted)
    with pytest.raises(LockTimeout):
        keyed.delete("k*")
    assert list(keyed.stats("*")) == ["k1"]


@pytest.mark.parametrize("verb", ["delete", "clear", "flush", "stats", "health"])
def test_a_pattern_with_too_many_keys_is_warned_of(
    keyed: DeclaredMemory, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    """A pattern that means more than `max_keys` keys logs a warning; one that means no more logs none."""
    for number in range(4):
        filled(keyed, f"k{number}", 1)
    more = {"confirm": True} if verb == "clear" else {}
    with caplog.at_level(logging.WARNING, "palimpsest"):
        getattr(keyed, verb)("k*", max_keys=4, **more)
        assert caplog.text == ""
        for number in range(4):
            filled(keyed, f"k{number}", 1)
        getattr(keyed, verb)("k*", max_keys=3, **more)
    assert "k* matches more than 3 keys" in caplog.text


def test_stats_describe_the_active_messages(resources: Resources) -> None:
    """`stats` gives messages by role, tokens and share of the limit; `health` names keys near their limit."""
    declared = {**loaded(MINIMAL), "max_tokens": 100, "auto_compact": "off"}
    with Resources.load(declared) as loaded_resources:
        keyed = DeclaredMemory(
            loaded_resources.memory(ID),
            loaded_resources[ID],
            {**loaded_resources[ID].options, "counter": quarters},
            Limits(),
        )
        keyed.append("k", ["x" * 160, {"role": "assistant", "content": "x" * 180}])
        stats = keyed.stats("k")["k"]
        assert (stats.messages, stats.tokens, stats.limit) == (2, 85, 100)
        assert stats.utilization == 0.85
        assert stats.roles == {"user": 1, "assistant": 1}
        assert (stats.archived, stats.last_flush) == (0, None)
        keyed.append("few", "x")
        health = keyed.health()
        assert (health.works, health.error, health.near_limit) == (True, None, ("k",))
        assert loaded_resources.memory(ID).scopes("health") == []
        assert keyed.stats("unknown") == {}


def test_a_limit_of_messages_counts_for_health() -> None:
    """A limit of messages counts for `health` even if it is the only limit."""
    declared = {**loaded(MINIMAL), "type": "message_count_based", "max_messages": 20, "auto_compact": "off"}
    del declared["max_tokens"]
    with Resources.load(declared) as loaded_resources:
        keyed = loaded_resources.keyed(ID)
        keyed.append("few", ["x"] * 16)
        keyed.append("many", ["x"] * 17)
        assert (keyed.stats("many")["many"].limit, keyed.stats("many")["many"].utilization) == (None, 0.85)
        assert keyed.health().near_limit == ("many",)


def test_limits_count_all_that_a_message_holds(keyed: DeclaredMemory) -> None:
    """Limits count everything in a message, tool calls and nested values included; endless nesting is refused."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "x" * 110_000}}
    endless: list[Any] = []
    endless.append(endless)
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    for payload, told in (
        ({"role": "assistant", "content": "", "tool_calls": [call]}, r"in all; at most 102,400"),
        ({"content": "x", "reasoning_content": "y" * 110_000}, r"in all; at most 102,400"),
        ({"content": deep}, "100 levels deep"),
        ({"content": endless}, "100 levels deep"),
        ({"content": "x", "more": endless}, "100 levels deep"),
        (range(10**30), "messages"),
    ):
        with pytest.raises(InvalidEntry, match=told):
            keyed.append("k", payload)  # type: ignore[arg-type]
    assert keyed.read("k").total == 0


def test_a_key_may_be_a_text_enum(resources: Resources, keyed: DeclaredMemory) -> None:
    """A member of a text enumeration is accepted as key, variable and pattern."""

    class Name(str, Enum):  # noqa: UP042 - one of its own text, which `str` does not give
        ANN = "ann"
        ALL = "a*"

    keyed.append(Name.ANN, "hello")
    assert keyed.read("ann").total == keyed.read(Name.ANN).total == 1
    assert resources[ID].session_id(Name.ANN) == resources[ID].session_id("ann")
    assert list(keyed.stats(Name.ALL)) == ["ann"]
    assert Template("user:{{.name}}").key({"name": Name.ANN}) == "user:ann"
    assert keyed.delete(Name.ANN) == 1


def test_health_reports_a_store_that_fails(tmp_path: Path) -> None:
    """`health` reports a store that fails instead of raising."""
    place = {"type": "sqlite", "path": str(tmp_path / "a.db")}
    with Resources.load({**loaded(MINIMAL), "persistence": place}) as loaded_resources:
        keyed = loaded_resources.keyed(ID)
        keyed.append("k", "hello")
        loaded_resources.memory(ID).close()
        health = keyed.health()
    assert health.works is False
    assert "closed" in (health.error or "")


@pytest.mark.anyio
async def test_asynchronous_keyed_operations_work_alike() -> None:
    """The operations of AsyncResources are the same, awaited."""
    async with AsyncResources.load(loaded(MINIMAL)) as loaded_resources:
        keyed = loaded_resources.keyed(ID)
        assert await keyed.append("k", "hello") == 1
        assert (await keyed.read("k")).total == 1
        assert (await keyed.clear("k", confirm=True)).entries == {"k": 1}
        assert (await keyed.health()).works
        assert await keyed.delete("*") == 1


@pytest.mark.parametrize(
    ("pattern", "key", "fits"),
    [
        ("*", "a", True),
        ("a*", "ab", True),
        ("a*", "ba", False),
        ("*a", "ba", True),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("a**b", "axb", True),
        ("*a*b*", "xaybz", True),
        ("*a*b*", "xbyaz", False),
        ("a.c*", "abc", False),
        ("*" * 200 + "b", "a" * 200, False),
    ],
)
def test_a_star_matches_any_characters(pattern: str, key: str, fits: bool) -> None:
    """A star matches any characters, and nothing else in a pattern is special."""
    assert matcher(pattern)(key) is fits


@pytest.mark.parametrize("verb", ["append", "write", "flush", "agent"])
def test_by_key_what_leaves_a_memory_without_archive_is_destroyed(verb: str) -> None:
    """A memory that is declared FLUSH and keeps no archive keeps none by key either: no turn ends there."""
    declared = {
        **loaded(MINIMAL),
        "max_messages": 8,
        "flushing": {"type": "simple_fifo"},
        "persistence_strategy": "FLUSH",
        "archive": False,
    }
    with Resources.load(declared) as resources:
        keyed, agent = resources.keyed(ID), resources.agent([{"id": ID, "key": "k"}])
        for number in range(3 if verb == "flush" else 10):
            pair = [{"role": "user", "content": f"and {number}?"}, {"role": "assistant", "content": "noted"}]
            if verb == "agent":
                agent.add(f"and {number}?", "noted")
            elif verb == "write":
                keyed.write("k", pair)
            else:
                keyed.append("k", pair)
        if verb == "flush":
            assert keyed.flush("k", force=True)["k"].evicted > 0

        entries = keyed.session("k").entries()

    assert 0 < sum(not entry.erased for entry in entries) < 8
    assert any(entry.erased for entry in entries)


def test_messages_of_chat_completions_may_be_written_as_they_are(keyed: DeclaredMemory) -> None:
    """Messages by key may have every field of chat completions; a field that is none, or no text, is refused."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    given = [
        {"role": "user", "content": "q", "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "annotations": []},
        {"role": "tool", "content": "found", "tool_call_id": "c"},
        {"role": "assistant", "content": "a", "reasoning_content": "thought"},
    ]
    for write in (keyed.append, keyed.write):
        write("k", given)
        shown = keyed.session("k").context().messages
        assert [message["role"] for message in shown] == ["user", "assistant", "tool", "assistant"]
        assert (shown[0]["name"], shown[1]["tool_calls"], shown[2]["tool_call_id"]) == ("ann", [call], "c")
    for bad in ({"content": "q", "metdata": {}}, {"content": "q", 7: "x"}, {"content": ""}):
        for write in (keyed.append, keyed.write):
            with pytest.raises(InvalidEntry):
                write("k", [bad])  # type: ignore[list-item]
    assert keyed.read("k").total == 4
