"""Law: an export with odd values is refused with their place, or imported and harmless in every verb."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from palimpsest import ImportFailed, Memory, PalimpsestError, Query, Session
from palimpsest.errors import StoreError
from worlds import STORES

LOUD = (StoreError,)
"""Errors that report a damaged store. Nothing that an import accepted may cause one."""


def nested(depth: int) -> Any:
    """Return a list nested so deeply."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def values() -> list[Any]:
    """Return odd values to put in the place of others, new objects each time."""
    sizes = [-(2**63), -1, 0, 1, 7, 2**31, 2**32, 2**40, 2**53, 2**62, 2**63, 2**64, 10**40, 10**400]
    floats = [-0.5, 0.5, 1e300, float("nan"), float("inf"), -float("inf")]
    texts = ["", "x" * 3000, "\0", "\ud800", "n\udfff", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00"]
    ranges = [[[1, 10**9]], [[-5, 5]], [[1, 2**62]], [[5, 1]], [[1, 1]] * 5, [[1, 3], [2, 4]], [[40, 41]]]
    odd = [None, True, False, [], {}, [[]], {"\ud800": 1}, {"a": {"b": [1]}}, [None], ["main"], [2, 3]]
    return [*sizes, *floats, *texts, *ranges, *odd, nested(200), nested(5000)]


@cache
def exported() -> str:
    """Return the export of a session that has something of everything."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", max_tokens=500, counter=len)
        for i in range(8):
            session.add_user_message("hello " * 20, metadata={"k": 1}, importance=0.5)
            session.add_tool_call("f", {"a": 1}, call_id=f"c{i}")
            session.add_tool_result("f", "r" * 30, call_id=f"c{i}")
            session.add_assistant_message("ok " * 20)
            session.context()
        session.add({"role": "user", "content": [{"type": "text", "text": "see"}], "extra": 1})
        session.add_context("context", name="file")
        session.pin(3)
        session.record_usage(input_tokens=5)
        session.compact("summarizer")
        session.context()
        session.erase([2])
        session.rewind(session.stats().revision - 1)
        return json.dumps(session.fork("branch").export())


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every place in a JSON value, to a depth of twelve."""
    if len(at) > 12:
        return
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, held in inner:
        yield (*at, key)
        yield from places(held, (*at, key))


def poisoned(dice: random.Random) -> dict[str, Any]:
    """Return the export with one or two values replaced by odd ones."""
    data: dict[str, Any] = json.loads(exported())
    for _ in range(dice.choice([1, 1, 1, 2])):
        place = dice.choice(list(places(data)))
        holder: Any = data
        for key in place[:-1]:
            holder = holder[key]
        holder[place[-1]] = dice.choice(values())
    return data


VERBS: dict[str, Callable[[Memory, Session], object]] = {
    "context": lambda m, s: s.context(),
    **{
        form: lambda m, s, form=form: s.context(format=form)  # type: ignore[misc]
        for form in ("anthropic", "gemini", "openai-responses", "text")
    },
    "then": lambda m, s: s.context(at=max(1, s.stats().revision - 2)),
    "entries": lambda m, s: s.entries(rewound=True),
    "entries then": lambda m, s: s.entries(at=max(1, s.stats().revision - 3)),
    "interactions": lambda m, s: s.interactions(),
    "active": lambda m, s: s.active_entries(),
    "history": lambda m, s: s.history(),
    "summaries": lambda m, s: s.summaries(history=True),
    "expand": lambda m, s: s.expand(),
    "stats": lambda m, s: s.stats(),
    "verify": lambda m, s: s.verify(),
    "listing": lambda m, s: m.sessions(),
    "export": lambda m, s: m.import_session(s.export(), session_id="again", on_conflict="replace"),
    "export to": lambda m, s: s.export_to(io.BytesIO()),
    "export messages": lambda m, s: s.export_to(io.BytesIO(), format="openai"),
    "usage": lambda m, s: s.record_usage(input_tokens=100, context=s.context()),
    "add": lambda m, s: s.add_user_message("more " * 30),
    "call": lambda m, s: s.add_tool_call("f", {}, call_id="c1"),
    "result": lambda m, s: s.add_tool_result("f", "done", call_id="c1"),
    "compact": lambda m, s: s.compact("summarizer"),
    "restore": lambda m, s: s.restore(),
    "mask": lambda m, s: s.compact("mask_results"),
    "fork": lambda m, s: s.fork("fork", at=max(1, s.stats().revision - 2)),
    "rewind": lambda m, s: s.rewind(max(1, s.stats().revision - 4)),
    "erase": lambda m, s: s.erase([1]),
    "erase matching": lambda m, s: s.erase(Query(text="ok")),
    "sweep": lambda m, s: m.sweep(),
    "context again": lambda m, s: s.context(),
    "verify again": lambda m, s: s.verify(),
    "clear": lambda m, s: s.clear(),
    "delete": lambda m, s: m.delete_session(s.id),
}


def refused(memory: Memory, data: dict[str, Any], name: str) -> str | None:
    """Import and return the place at which that is refused, or None."""
    try:
        memory.import_session(data, session_id=name)
    except ImportFailed as fault:
        return fault.where
    return None


def tried(memory: Memory, data: dict[str, Any], seed: int) -> bool:
    """Import the data and try every verb; return whether it was imported.

    A refusal must name a place, and no verb may report a damaged store.
    """
    name = f"s{seed}"
    place = refused(memory, data, name)
    if place is not None:
        assert place.startswith("data")
        assert memory.sessions() == []
        return False
    session = memory.session(name, max_tokens=500, counter=len)
    for verb, call in VERBS.items():
        try:
            call(memory, session)
        except LOUD as fault:
            raise AssertionError(f"seed {seed}: {verb}: the store calls itself damaged: {fault}") from fault
        except PalimpsestError:
            pass
    for other in memory.sessions():
        memory.delete_session(other.session)
    return True


def opened(kind: str, folder: Path) -> Memory:
    """Open an empty store of this kind."""
    if kind == "memory":
        return Memory.open("memory://")
    where = f"sqlite:///{folder}/log.db" if kind == "sqlite" else f"file://{folder}/logs"
    return Memory.open(where, synchronous="NORMAL")


@pytest.mark.sampled
@pytest.mark.parametrize("kind", STORES)
def test_a_poisoned_export_is_refused_or_harmless(kind: str, tmp_path: Path, dice: random.Random) -> None:
    """An export with odd values at any place is refused at that place, or harmless in every verb."""
    with opened(kind, tmp_path) as memory:
        seeds = [dice.randrange(2**32) for _ in range(25)]
        taken = [tried(memory, poisoned(random.Random(seed)), seed) for seed in seeds]

    assert len(taken) == len(seeds)


@pytest.mark.slow
@pytest.mark.parametrize("kind", STORES)
def test_a_thousand_poisoned_exports_are_refused_or_harmless(kind: str, tmp_path: Path, dice: random.Random) -> None:
    """The same holds for a thousand exports on each kind of store."""
    with opened(kind, tmp_path) as memory:
        taken = [tried(memory, poisoned(random.Random(seed)), seed) for seed in dice.sample(range(2**32), 1000)]

    assert 100 < sum(taken) < 900


def test_the_sound_export_is_imported() -> None:
    """The export that the others are made from is imported, works with every verb, and verifies."""
    with Memory.open("memory://") as memory:
        assert tried(memory, json.loads(exported()), 0)
        memory.import_session(json.loads(exported()), session_id="whole")
        assert memory.session("whole").verify().ok


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("head", "views", "main", "factor"), float("nan")),
        (("head", "views", "main", "gone"), [[1, 2**50]]),
        (("head", "epoch_reason"), "\ud800"),
        (("records", 0, "at"), 2**63),
        (("entries", 2, "role"), "\ud800"),
        (("entries", 2, "links", "group"), True),
        (("entries", 2, "metadata"), {"\ud800": 1}),
        (("entries", 2, "metadata"), nested(5000)),
        (("entries", 2, "created_at"), "1969-12-31T23:59:59Z"),
        (("usage", "input_tokens"), 2**63),
        (("usage", "input_tokens"), -5),
    ],
)
def test_a_refusal_names_the_place(place: tuple[Any, ...], value: Any) -> None:
    """A hostile value is refused at its path in the document, and nothing is stored."""
    data = json.loads(exported())
    holder = data
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    path = "data" + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place[:2])
    with Memory.open("memory://") as memory:
        with pytest.raises(ImportFailed) as caught:
            memory.import_session(data, session_id="s")

        assert caught.value.where.startswith(path)
        assert "codec" not in str(caught.value)
        assert memory.sessions() == []
