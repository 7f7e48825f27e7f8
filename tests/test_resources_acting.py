"""Fields of Compozy's resources act when they stand in a file: limits, leases, breaker, flushing, allocation."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from failing_backends import flaky, hanging
from palimpsest import Entry, LockTimeout, StoreUnavailable
from palimpsest.errors import InvalidEntry, InvalidResource
from palimpsest.formats import FORMATS
from palimpsest.formats.openai_chat import OpenAIChat
from palimpsest.resources import AsyncResources, Resources
from palimpsest.strategies import CallableSummarizer
from palimpsest.testing import FakeClock
from processes import PATIENCE
from test_resources_cases import SHORT, compozy, load, open_in, refused, turns

__all__ = ["load"]  # the fixture


def sqlite(folder: Path, **keys: Any) -> dict[str, Any]:
    """Return a resource stored in a SQLite file, which several memories may open."""
    return compozy(persistence={"type": "sqlite", "path": str(folder / "a.db")}, **keys)


# --- how large what is written may be


def test_limits_bound_what_is_written_by_key(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each limit bounds what is written by key; the environment overrides the file, and the program both."""
    limits = {"max_message_content": 5, "max_total_content_size": 8, "max_messages_per_request": 3}
    with load(compozy(max_tokens=1000, limits=limits)) as resources:
        keyed = resources.keyed("memory")
        assert keyed.append("a", ["12345", "123"]) == 2
        for payload, told in ((["123456"], "6 bytes"), (["12345", "1234"], "9 bytes"), (["1"] * 4, "4 messages")):
            with pytest.raises(InvalidEntry, match=told):
                keyed.append("a", payload)
            with pytest.raises(InvalidEntry, match=told):
                keyed.write("a", payload)
        assert keyed.read("a").total == 2
        monkeypatch.setenv("MAX_MESSAGE_CONTENT_LENGTH", "7")
        assert resources.keyed("memory").append("b", "1234567") == 1
        with pytest.raises(InvalidEntry, match="at most 8"):
            resources.keyed("memory").append("b", ["1234567", "12"])
        assert resources.keyed("memory", limits={"content_bytes": 20}).append("b", "1" * 20) == 1
    settings = {one.option: one for one in load(compozy(max_tokens=1, limits=limits))["memory"].effective()}
    assert (settings["limits.total_bytes"].value, settings["limits.total_bytes"].origin) == (8, "given")
    wrong = {"max_message_content": 0, "max_messages_per_request": "x", "content": 1}
    keys = refused(load, compozy(max_tokens=1000, limits=wrong))
    assert sorted(keys) == ["limits.content", "limits.max_message_content", "limits.max_messages_per_request"]


# --- leases


def test_append_ttl_is_the_lease_of_a_turn(load: Any, tmp_path: Path) -> None:
    """A turn of a process that gives no sign of life blocks the next one for exactly `append_ttl`."""
    clock = FakeClock()
    source = sqlite(tmp_path, max_tokens=1000, locking={"append_ttl": "20s"})
    with load(source, clock=clock) as first, load(source, clock=clock) as other, open_in(first).turn():
        clock.advance(19)
        with pytest.raises(LockTimeout), open_in(other).turn(wait=0):
            pass
        clock.advance(2)
        with open_in(other).turn(wait=0):
            pass


def test_flush_ttl_is_the_lease_of_a_flush(load: Any, tmp_path: Path) -> None:
    """While a flush runs another is `pending`; after `flush_ttl` the other does the flush itself."""
    clock, reasons = FakeClock(), list[str | None]()
    flushing = {"type": "hybrid_summary", "summary_tokens": 60, "cod_max_loops": 0}
    source = sqlite(tmp_path, max_tokens=10_000, flushing=flushing, locking={"flush_ttl": "90s"}, auto_compact="off")
    with load(source, clock=clock) as first, load(source, clock=clock) as other:

        def late(_: str) -> str:
            for seconds in (89, 2) if not reasons else ():
                clock.advance(seconds)
                reasons.append(open_in(other, summarizer=SHORT).compact().reason)
            return "short"

        session = open_in(first, summarizer=CallableSummarizer(late, checked=False))
        turns(session, *[60] * 4)
        session.compact()
        assert reasons == ["pending", None]
        assert session.verify().ok


def destroying(resources: Resources, verb: str, done: list[str]) -> threading.Thread:
    """Start a thread that clears the key with a backup, or deletes it, and notes what it did."""
    keyed = resources.keyed("memory")

    def destroy() -> None:
        if verb == "clear":
            done.append(f"cleared {keyed.clear('a', confirm=True, backup=True).entries['a']}")
        else:
            done.append(f"deleted {keyed.delete('a')}")

    thread = threading.Thread(target=destroy, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(("verb", "said"), [("clear", "cleared 0"), ("delete", "deleted 1")])
def test_clear_ttl_is_the_lease_of_a_clear(load: Any, tmp_path: Path, verb: str, said: str) -> None:
    """Two that destroy a key at once go one after the other; a silent one is waited for as long as `clear_ttl`."""
    clock, done = FakeClock(), list[str]()
    source = sqlite(tmp_path, max_tokens=1000, locking={"clear_ttl": "50s"})
    with load(source, clock=clock) as first, load(source, clock=clock) as other:

        def in_the_middle(*_: object) -> None:
            waiting = destroying(other, verb, done)
            clock.advance(49)
            waiting.join(0.5)  # it cannot end, however long one waits
            assert done == []
            clock.advance(2)
            waiting.join(PATIENCE)
            done.append("the first goes on")

        open_in(first).add_user_message("hello")
        keyed, memory = first.keyed("memory"), first.memory("memory")
        memory.on("session:cleared", in_the_middle)
        assert keyed.clear("a", confirm=True).entries == {"a": 1}
        assert done == [said, "the first goes on"]


@pytest.mark.wide
def test_waiting_too_long_for_a_clear_raises(load: Any, tmp_path: Path) -> None:
    """After waiting five seconds for another clear, LockTimeout names the session and nothing is destroyed."""
    errors = list[BaseException]()
    source = sqlite(tmp_path, max_tokens=1000)
    with load(source) as first, load(source) as other:

        def in_the_middle(*_: object) -> None:
            with pytest.raises(LockTimeout, match="the clear of session 'default/memory/a'") as caught:
                other.keyed("memory").delete("a")
            errors.append(caught.value)

        open_in(first).add_user_message("hello")
        first.memory("memory").on("session:cleared", in_the_middle)
        first.keyed("memory").clear("a", confirm=True)
        assert len(errors) == 1
        assert open_in(first).info().session == "default/memory/a"


# --- a store that does not answer


@pytest.mark.anyio
async def test_a_slow_store_is_given_up_after_the_breakers_timeout(load: Any, tmp_path: Path) -> None:
    """A store that takes longer than the breaker's `timeout` raises StoreUnavailable, which counts as a failure."""
    hanging("hangingdeclared")
    source = compozy(max_tokens=100, persistence=None, store="hangingdeclared://", circuit_breaker={"timeout": "20ms"})
    path = tmp_path / "memory.json"
    path.write_text(json.dumps(source), "utf-8")
    async with AsyncResources.load(path) as resources:
        session = resources.session({"id": "memory", "key": "a"})
        with pytest.raises(StoreUnavailable, match=r"within 0\.02 seconds"):
            await session.add_user_message("hello")


@pytest.mark.parametrize(("enabled", "asked"), [(True, 2), (False, 7)])
def test_a_breaker_acts_as_declared(load: Any, enabled: bool, asked: int) -> None:
    """After `max_failures` the breaker asks the store no more until `reset_timeout`; a disabled one always asks."""
    clock, backend = FakeClock(), flaky("flakyacting")
    breaker = {"enabled": enabled, "max_failures": 2, "reset_timeout": "7s"}
    source = compozy(max_tokens=100, persistence=None, store="flakyacting://", circuit_breaker=breaker)
    with load(source, clock=clock) as resources:
        session = open_in(resources)
        session.add_user_message("hello")
        backend.away, backend.asked = True, 0
        for _ in range(7):
            with pytest.raises(StoreUnavailable):
                session.entries()
        assert backend.asked == asked
        backend.away = False
        clock.advance(6)
        if enabled:
            with pytest.raises(StoreUnavailable):
                session.entries()
        clock.advance(1)
        assert len(session.entries()) == 1


# --- how a memory is flushed


def flushed(load: Any, **flushing: Any) -> list[str]:
    """Add ten turns of 20 tokens and return the first words of the questions still active."""
    with load(compozy(max_tokens=200, flushing=flushing)) as resources:
        session = open_in(resources, summarizer=SHORT)
        turns(session, *[20] * 10)
        return [entry.text.split()[0] for entry in session.active_entries() if entry.is_human]


def test_threshold_and_low_water_come_from_the_file(load: Any) -> None:
    """`summarize_threshold` decides when a memory is flushed, and `low_water` down to what."""
    assert flushed(load, type="simple_fifo", summarize_threshold=0.8, low_water=0.5)[0] == "q3"
    assert flushed(load, type="simple_fifo", summarize_threshold=1.0, low_water=0.5)[0] == "q5"
    assert flushed(load, type="simple_fifo", summarize_threshold=0.8, low_water=0.2) == ["q6", "q7", "q8", "q9"]


def test_summarize_oldest_percent_decides_how_much_is_covered(load: Any) -> None:
    """`summarize_oldest_percent` decides what share of the entries a summary covers, within `summary_tokens`."""
    for percent, covered in ((0.25, 4), (0.75, 12)):
        flushing = {
            "type": "hybrid_summary",
            "summary_tokens": 12,
            "summarize_oldest_percent": percent,
            "low_water": 0.79,
            "cod_max_loops": 0,
        }
        with load(compozy(max_tokens=10_000, flushing=flushing, auto_compact="off")) as resources:
            session = open_in(resources)
            turns(session, *[30] * 8)
            result = session.compact()
            assert result.covered == covered
            assert result.summary is not None
            assert result.summary.tokens <= 12


# --- how the room is shared out


KNOWN = " ".join(["The kettle of Ann leaks at its handle."] * 4)


@pytest.mark.parametrize("long_term", [0.3, 0.1])
def test_summaries_and_recalled_text_share_long_term(load: Any, long_term: float) -> None:
    """Summaries and recalled text together keep to the share `long_term` of `token_allocation`."""
    base = {"collection_id": "notes", "search_type": "keyword"}
    block = {"long_term_memory_id": "summarizer", "interaction_threshold_qty": 4, "interaction_keep": 1}
    shares = {"short_term": 0.9 - long_term, "long_term": long_term, "system": 0.1}
    source = compozy(
        max_tokens=1000,
        token_allocation=shares,
        long_term_memory_strategy=[{**block, "cod_max_loops": 0, "knowledge_base": base}],
    )
    with load(source) as resources:
        for number in range(20):
            resources.memory("memory").knowledge("notes").add(f"d{number}", f"{number} {KNOWN}")
        summarizer = CallableSummarizer(lambda _: "They spoke. " * 250, checked=False)
        session = open_in(resources, summarizer=summarizer)
        turns(session, *[300] * 4)
        session.add_user_message("Which kettle leaks?")
        parts = session.context().parts
        assert parts.summaries > 0
        assert parts.tail > 0
        assert parts.summaries + parts.tail <= long_term * 1000


def test_tail_share_is_a_part_of_long_term(load: Any) -> None:
    """`tail_share` is a part of `long_term`: a larger one is refused, in the file and by the program."""
    shares = {"short_term": 0.7, "long_term": 0.2, "system": 0.1}
    source = compozy(max_tokens=1000, token_allocation=shares)
    assert refused(load, {**source, "tail_share": 0.25}) == ["tail_share"]
    with load({**source, "tail_share": 0.15}) as resources:
        assert resources["memory"].options["summary_share"] == pytest.approx(0.05)
    with load(source) as resources:
        options = resources.session({"id": "memory", "key": "a"}, facts=("ann",)).options
        assert (options.summary_share, options.tail_share) == (pytest.approx(0.1), 0.1)
    none = {"short_term": 0.9, "long_term": 0, "system": 0.1}
    assert any("long_term is 0" in text for text in load(compozy(max_tokens=9, token_allocation=none)).warnings)


# --- what a file says of itself


def test_another_resource_type_is_refused(load: Any) -> None:
    """A file of another resource type is refused; a memory's `description` is kept."""
    with pytest.raises(InvalidResource, match="memory"):
        load(compozy(max_tokens=10, resource="agent"))
    assert load(compozy(max_tokens=10, description="What Ann says"))["memory"].description == "What Ann says"


def test_bt12_a_format_adds_its_providers_overhead(load: Any) -> None:
    """A message costs its content, role and 2 tokens, or what its format's provider documents."""

    class Plain(OpenAIChat):
        """A format whose provider says nothing of what a message costs beside its content."""

        name = "plain"

        def overhead(self, entry: Entry) -> int:
            return len(entry.role.encode()) // 4 + 2

    class Quarters:
        """A quarter of a text's bytes, with what the format adds."""

        name, overhead = "quarters with overhead", True

        def count(self, text: str) -> int:
            return len(text.encode()) // 4

    FORMATS.register("plain", Plain)
    for format, tokens in (("plain", 3 + 1 + 2), ("openai", 3 + 1 + 3)):
        with load(compozy(max_tokens=1000, format=format)) as resources:
            session = open_in(resources, Quarters())
            assert session.cost(session.add_user_message("Hello, world!")) == tokens
