"""How many messages of a key are active is counted by what is new, and is right whatever happened to the key."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laws import examples
from palimpsest import PalimpsestError
from palimpsest.log.entry import Entry
from palimpsest.resources import DeclaredMemory, Resources
from palimpsest.sessions.sync import Memory, Session
from palimpsest.testing import FakeClock
from test_erasing_costs import watched

CHAT: dict[str, Any] = {
    "resource": "memory",
    "id": "chat",
    "type": "token_based",
    "max_tokens": 400,
    "max_messages": 30,
    "flushing": {"type": "simple_fifo"},
    "privacy_policy": {"non_persistable_message_types": ["system"]},
}
LIFETIME = 100


class Pair(NamedTuple):
    """A key as one program reaches it (`keyed`), as another one does (`other` in `memory`), and the clock of both."""

    keyed: DeclaredMemory
    memory: Memory
    other: Session
    clock: FakeClock


def _at(pair: Pair, share: float) -> Entry | None:
    """Return the entry at this share of the log; None if there is none."""
    entries = pair.other.entries()
    return entries[int(share * len(entries))] if entries else None


def _with_entry(verb: str) -> Callable[[Pair, float], object]:
    """Return an act that calls this verb with an entry."""

    def act(pair: Pair, share: float) -> object:
        entry = _at(pair, share)
        return None if entry is None else getattr(pair.other, verb)(entry)

    return act


def _expiring(pair: Pair, share: float) -> object:
    moment = datetime.fromtimestamp(pair.clock.now / 1_000_000 + 60 * share, UTC)
    return pair.other.add_entries([Entry(kind="message", role="user", content="for a while", expires_at=moment)])


def _imported(pair: Pair, share: float) -> object:
    exported = pair.other.export()
    pair.keyed.append("k", "what the import drops")
    return pair.memory.import_session(exported, on_conflict="replace" if share < 0.5 else "merge")


def _answered(pair: Pair, _: float) -> object:
    return [pair.other.add_tool_result(call, "found") for call in pair.other.stats().open_calls[:1]]


ACTS: dict[str, Callable[[Pair, float], object]] = {
    "append": lambda pair, share: pair.keyed.append("k", [f"message {share}"] * (1 + int(share * 3))),
    "append twice": lambda pair, share: pair.keyed.append("k", "once", idempotency_key="once"),
    "append withheld": lambda pair, _: pair.keyed.append("k", [{"role": "system", "content": "hush"}, "said"]),
    "append elsewhere": lambda pair, share: pair.other.add_user_message(f"from elsewhere {share}"),
    "many elsewhere": lambda pair, _: pair.other.add([{"role": "user", "content": "many"}] * 300),
    "write": lambda pair, _: pair.keyed.write("k", ["anew", "and more"]),
    "expiring": _expiring,
    "context": lambda pair, share: pair.other.add_context(f"version {share}", name=f"file {int(share * 2)}"),
    "call": lambda pair, share: pair.other.add_tool_call("look", {}, call_id=f"c{share}"),
    "result": _answered,
    "import": _imported,
    "cut": lambda pair, share: pair.other.context(),
    "flush": lambda pair, share: pair.keyed.flush("k", force=share > 0.5),
    "clear": lambda pair, _: pair.keyed.clear("k", confirm=True),
    "delete": lambda pair, _: pair.keyed.delete("k"),
    "rewind": lambda pair, share: pair.other.rewind(_at(pair, share) or 0),
    "hide": _with_entry("hide"),
    "show": _with_entry("show"),
    "pin": _with_entry("pin"),
    "unpin": _with_entry("unpin"),
    "erase": _with_entry("erase"),
    "time": lambda pair, share: pair.clock.advance(share * 60),
    "time back": lambda pair, share: pair.clock.advance(-share * 60),
}


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(ACTS)), st.floats(0, 0.99, allow_subnormal=False)), max_size=30),
    st.booleans(),
)
def test_a_count_is_what_a_read_finds(acts: list[tuple[str, float]], lasts: bool) -> None:
    """Whatever one program and another do to a key, the count alone is always that of the entries that are read."""
    clock = FakeClock()
    with tempfile.TemporaryDirectory() as folder:
        place = {"type": "sqlite", "path": str(Path(folder) / "a.db"), **({} if lasts else {"ttl": LIFETIME})}
        declared = {**CHAT, "persistence": place}
        with Resources.load(declared, clock=clock) as one, Resources.load(declared, clock=clock) as two:
            keyed = one.keyed("chat")
            pair = Pair(keyed, two.memory("chat"), two.keyed("chat").session("k"), clock)
            for name, share in acts:
                with suppress(PalimpsestError):  # such as a rewind to nothing: it is refused, and changes nothing
                    ACTS[name](pair, share)
                assert keyed.read("k", limit=0).total == len(keyed.read("k").entries), name


def test_a_count_costs_what_is_new(tmp_path: Path) -> None:
    """An append and the count after it take the same statements and rows in a long key as in a short one."""
    path = str(tmp_path / "a.db")
    declared = {**CHAT, "max_messages": 10_000, "auto_compact": "off", "persistence": {"type": "sqlite", "path": path}}

    def cost(keyed: DeclaredMemory, memory: Memory, key: str) -> tuple[list[str], int]:
        keyed.append(key, ["one", "two"])
        with watched(memory) as seen:
            keyed.read(key, limit=0)
            return seen.done()[0], seen.rows()

    with Resources.load(declared) as resources:
        keyed, memory = resources.keyed("chat"), resources.memory("chat")
        for key, rounds in (("short", 1), ("long", 20)):
            for _ in range(rounds):
                keyed.append(key, ["said"] * 30)
            keyed.read(key, limit=0)
        short, long = cost(keyed, memory, "short"), cost(keyed, memory, "long")

    assert long == short
    assert short[1] < 10


CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("messages", "count"),
    [
        ("said", 1),
        ([{"role": "system", "content": "hush"}, "said"], 1),
        ([{"role": "system", "content": "hush"}], 0),
        ([{"role": "assistant", "content": "I look.", "tool_calls": [CALL]}], 2),
        ([], 0),
    ],
)
def test_what_was_added_is_counted_as_it_is_read(messages: Any, count: int) -> None:
    """`append` and `write` return how many messages a read finds more, or in their place: none for what a policy
    withholds, one for each call of a tool. A repeated append returns the same."""
    with Resources.load({**CHAT, "persistence": {"type": "in_memory"}}) as resources:
        keyed = resources.keyed("chat")
        keyed.append("k", "before")
        again = [keyed.append("k", messages, idempotency_key="one") for _ in range(2)]

        assert (again, keyed.read("k").total) == ([count, count], 1 + count)
        assert keyed.write("k", messages) == keyed.read("k").total == count
