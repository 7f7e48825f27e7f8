"""Values of classes close to the expected one are accepted as such, or refused by the library's error."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palimpsest import ConfigError, Entry, Memory, PalimpsestError, Query
from worlds import STORES


class Word(str):
    """A subclass of str, like safe markup or numpy's strings."""

    __slots__ = ()


class Count(int):
    """A subclass of int."""


class Name(str, Enum):  # noqa: UP042 (its `str()` is not its value, which that of a StrEnum is)
    """A str enumeration that prints as something else."""

    S = "s"


def address(kind: str, folder: Path) -> str:
    return {"memory": "memory://", "sqlite": f"sqlite:///{folder}/log.db", "file": f"file://{folder}/logs"}[kind]


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("word", [Word("s"), Name.S, np.str_("s")], ids=["subclass", "enum", "numpy"])
def test_a_str_subclass_is_stored_as_plain_text(tmp_path: Path, kind: str, word: str) -> None:
    """Ids, names, content, keys of facts and filters of a str subclass are stored, found and erased as plain text."""
    with Memory.open(address(kind, tmp_path), tenant=word) as memory:
        session = memory.session(word, user=word, title=word)
        session.describe(metadata={"of": word, "count": Count(3), "share": np.float64(0.5)})
        session.add_user_message(word, name=word, metadata={word: word})
        session.add([{"role": "user", "content": word}, {"role": "user", "content": [{"type": "text", "text": word}]}])
        session.add_tool_call(word, {word: word}, call_id=word)
        session.add_entries([Entry(content=word, name=word)])
        session.fork(Word("branch"))
        memory.working(word).set(word, 1)
        memory.knowledge(word).add(word, word, title=word)
        found = memory.recall(word, sessions=[word], roles=[Word("user")]).hits

        assert memory.sessions()[-1].metadata == {"of": "s", "count": 3, "share": 0.5}
        assert {type(one.session) for one in memory.sessions()} == {str}
        assert memory.working("s").get("s") == memory.working(word).get(word) == 1
        assert [type(fact.key) for fact in memory.working("s").facts()] == [str]
        assert memory.knowledge("s").search("s", search_type="keyword") != []
        assert {hit.session for hit in found} == {"s"}
        assert [entry.text for entry in memory.session("s", user="s").entries()][:3] == ["s", "s", "s"]

        memory.delete_session(word)
        memory.forget(user=word)
        assert memory.sessions() == []


def test_get_returns_its_default_itself() -> None:
    """`get` returns the given default itself; a value of a str subclass is refused, since its type could not be
    kept."""
    with Memory.open("memory://") as memory:
        facts = memory.working("agent")

        assert facts.get("colour", Name.S) is Name.S
        with pytest.raises(ConfigError, match="Word"):
            facts.set("colour", Word("red"))


SEVERAL = np.array([0.1, 0.2])
"""Whoever asks whether it is true is told that it may not be asked."""

NO_DIMENSION: Any = np.array(1)
"""Iterable by its class, and not at all."""


class Unreadable(Mapping[str, Any]):
    """A mapping that raises when it is read."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError(key)

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no keys")

    def __len__(self) -> int:
        return 1


class Zoneless(dt.tzinfo):
    """A time zone without an offset."""

    def utcoffset(self, _: dt.datetime | None) -> None:
        return None


NOWHERE = dt.datetime(2030, 1, 1, tzinfo=Zoneless())

REFUSED: dict[str, Callable[[Memory], object]] = {
    "facts after": lambda m: m.working("a").page(after=SEVERAL),  # type: ignore[arg-type]
    "kind of search": lambda m: m.knowledge("b").search("x", search_type=SEVERAL),  # type: ignore[arg-type]
    "conflict": lambda m: m.import_session(m.session("s").export(), on_conflict=SEVERAL),  # type: ignore[arg-type]
    "source": lambda m: m.import_file("x.json", source=SEVERAL),  # type: ignore[arg-type]
    "strict": lambda m: m.import_file("x.json", strict=SEVERAL),  # type: ignore[arg-type]
    "format of messages": lambda m: m.session("s").messages(format=SEVERAL),  # type: ignore[arg-type]
    "format of an export": lambda m: m.session("s").export_to("x", format=SEVERAL),  # type: ignore[arg-type]
    "model": lambda m: m.session("s").context(model=SEVERAL),  # type: ignore[arg-type]
    "tools": lambda m: m.session("s").context(tools=SEVERAL),  # type: ignore[arg-type]
    "status": lambda m: m.session("s").add_tool_result("f", "x", status=SEVERAL),  # type: ignore[arg-type]
    "status resolved": lambda m: m.session("s").resolve("c", status=SEVERAL),  # type: ignore[arg-type]
    "call resolved": lambda m: m.session("s").resolve(SEVERAL),  # type: ignore[arg-type]
    "cut off": lambda m: m.session("s").stream(cut_off=SEVERAL).__enter__(),  # type: ignore[arg-type]
    "kinds": lambda m: m.session("s").recall("x", kinds=NO_DIMENSION),
    "sessions": lambda m: m.recall("x", sessions=NO_DIMENSION),
    "passages": lambda m: m.session("s").passages(NO_DIMENSION),
    "erased": lambda m: m.session("s").erase(NO_DIMENSION),
    "id": lambda m: m.delete_session(Unreadable()),  # type: ignore[arg-type]
    "tenant": lambda m: m.for_tenant(Unreadable()),  # type: ignore[arg-type]
    "switch": lambda m: m.session("s").compact(dry_run=Unreadable()),  # type: ignore[arg-type]
    "expiry": lambda m: m.session("s").add_user_message("x", expires_at=NOWHERE),
    "since": lambda m: m.recall("x", since=NOWHERE),
    "listed": lambda m: m.sessions(before=NOWHERE),
    "asked": lambda _: Query(before=NOWHERE),
    "many messages": lambda m: m.session("s").add(range(10**15)),
    "much content": lambda m: m.session("s").add_user_message(range(10**15)),  # type: ignore[arg-type]
    "many strategies": lambda m: m.session("s").compact(range(10**15)),  # type: ignore[arg-type]
    "many kinds": lambda m: m.recall("x", kinds=range(10**15)),  # type: ignore[arg-type]
    "many passages": lambda m: m.session("s").passages(range(1, 10**15)),
    "many erased": lambda m: m.session("s").erase(range(2, 10**15)),
    "many tools": lambda m: m.session("s").context(tools=range(10**15)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED.keys())
def test_unusual_arrays_mappings_and_times_are_refused(call: Callable[[Memory], object]) -> None:
    """Arrays without a truth value, unreadable mappings, naive times and huge sizes raise errors of the library."""
    with Memory.open("memory://") as memory:
        memory.session("s").add_user_message("hello")

        with pytest.raises(PalimpsestError) as refused:
            call(memory)

        assert str(refused.value)
        assert [entry.text for entry in memory.session("s").entries()] == ["hello"]
        assert [one.session for one in memory.sessions()] == ["s"]
