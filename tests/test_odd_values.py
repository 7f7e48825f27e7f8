"""Odd values for any option of any verb: an error of the library names the option, and nothing is lost."""

from __future__ import annotations

import datetime as dt
import inspect
import io
import math
import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commands import run
from palimpsest import ConfigError, Entry, InvalidEntry, Memory, PalimpsestError, Session, StoreUnavailable
from palimpsest.errors import StoreCorrupt
from palimpsest.log.entry import LAST_MOMENT, Native, Text
from palimpsest.sessions.options import GivenOptions
from worlds import STORES

GUARDS: dict[str, dict[str, Any]] = {"plain": {}, "encryption": {"encryption": {"k": "11" * 32}}}


def where(kind: str, folder: Path) -> str:
    return {"memory": "memory://", "sqlite": f"sqlite:///{folder}/log.db", "file": f"file://{folder}/logs"}[kind]


def options(kind: str) -> dict[str, Any]:
    return {} if kind == "memory" else {"synchronous": "NORMAL"}


def deep(levels: int, kind: type = dict) -> Any:
    """Return deeply nested mappings or lists."""
    value: Any = kind()
    for _ in range(levels):
        value = [value] if kind is list else {"a": value}
    return value


def tool(schema: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": schema}}


def odd() -> list[Any]:
    """Return new values that fit hardly any option."""
    far = dt.timezone(dt.timedelta(hours=14))
    numbers = [0, -1, 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 2**70, -(2**70), 10**400, 10**5000]
    floats = [0.5, -0.5, 1e300, math.nan, math.inf, -math.inf, 1 + 2j]
    texts = ["", "x", "s", "main", "\0", "\ud800", "n\ud800", "x" * 6000, "9" * 5000, b"x", b"", "openai", "summarizer"]
    nested = [deep(200), deep(990), deep(5000), deep(990, list), [tool(deep(990))], [tool({"\ud800": 1})]]
    messages = [
        {"role": "user"},
        {"role": "user", "content": deep(990, list)},
        {"role": "user", "content": "x", "extra": deep(990)},
        [{"role": "user", "content": "hi", "name": 5}],
    ]
    times = [
        dt.datetime.fromisoformat("0001-01-01"),
        dt.datetime.fromisoformat("9999-12-31"),
        dt.datetime(1, 1, 1, tzinfo=far),
        dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=14))),
        dt.datetime(2030, 1, 1, tzinfo=dt.timezone(dt.timedelta(seconds=1))),
        dt.date(2030, 1, 1),
    ]
    entries: list[Any] = [
        Entry(id="\ud800"),
        *([Entry(**{field: value})] for field, value in FIELDS),  # type: ignore[arg-type]
        (Text(text=5),),  # type: ignore[arg-type]
        (Text(text="\ud800"),),
    ]
    rest: list[Any] = [None, True, [], {}, (), set(), [[]], [None], ["s"], [2**70], ["\ud800"], {1: 2}, object()]
    return [*numbers, *floats, *texts, *nested, *messages, *times, *entries, *rest, io.BytesIO(b"{"), iter([1])]


FIELDS: list[tuple[str, Any]] = [
    ("at", 2**70),
    ("at", -5),
    ("at", 0.5),
    ("tokens", "x"),
    ("tokens", -5),
    ("seq", [1]),
    ("answers", -1),
    ("late", 1),
    ("native", Native(format="x", keep={"a": object()})),
    ("native", {"format": "x"}),
    ("metadata", deep(990)),
    ("continues", "x"),
    ("turn", "x"),
    ("name", 0),
    ("id", 5),
    ("content", 5),
    ("content", (Text(text=None),)),  # type: ignore[arg-type]
]
"""Fields of entries with values that no codec would read back."""


# --- every verb

APART = ("close", "open", "from_env", "from_resource", "on", "derive", "turn", "connect")
"""Verbs that are tested by themselves, or that take functions of the program's own."""

GOOD: dict[str, Callable[[Memory], Any]] = {
    "session_id": lambda m: "s",
    "content": lambda m: "hi",
    "name": lambda m: "n",
    "arguments": lambda m: {},
    "output": lambda m: "done",
    "text": lambda m: "t",
    "messages": lambda m: {"role": "user", "content": "hi"},
    "entries": lambda m: [Entry(content="e")],
    "call_id": lambda m: "c0",
    "what": lambda m: [1],
    "file": lambda m: io.BytesIO(),
    "path": lambda m: io.BytesIO(b'{"role":"user","content":"x"}\n'),
    "data": lambda m: m.session("s").export(),
}
"""What a verb gets for what it must be given."""


def verbs(face: type) -> list[str]:
    return [name for name in sorted(vars(face)) if callable(getattr(face, name)) and not name.startswith("_")]


def called(memory: Memory, dice: random.Random) -> str:
    """Call a random verb with an odd value for one option and return it; only errors of the library or a disk pass."""
    owner: Any = memory if dice.random() < 0.3 else memory.session("s", counter=len)
    verb = getattr(owner, dice.choice([name for name in verbs(type(owner)) if name not in APART]))
    parameters = [one for one in inspect.signature(verb).parameters.values() if one.name != "self"]
    if not parameters:
        return ""
    bad, value = dice.choice(parameters), dice.choice(odd())
    given: list[Any] = []
    named: dict[str, Any] = {}
    for one in parameters:
        if one.kind is one.VAR_KEYWORD:
            named |= {dice.choice(GivenOptions.__struct_fields__): value} if one is bad else {}
        elif one is bad or (one.default is one.empty and one.kind is not one.VAR_POSITIONAL):
            taken = value if one is bad else GOOD.get(one.name, lambda m: 1)(memory)
            if one.kind is one.KEYWORD_ONLY:
                named[one.name] = taken
            else:
                given.append(taken)
    done = f"{verb.__name__}({bad.name})"
    try:
        made = verb(*given, **named)
        if isinstance(made, Session):
            made.add_user_message("x")
            made.context()
    except StoreCorrupt as fault:
        raise AssertionError(f"{done} has damaged the store") from fault
    except (PalimpsestError, OSError):  # files that are not there are the system's errors, as documented
        pass
    except Exception as fault:
        raise AssertionError(f"{done} raised {type(fault).__name__}") from fault
    return done


def fresh(memory: Memory) -> None:
    """Reset the store to one session with a message, a call and a context."""
    for one in memory.sessions():
        memory.delete_session(one.session)
    session = memory.session("s", counter=len)
    session.add_user_message("hello")
    session.add_tool_call("f", {}, call_id="c0")
    session.add_context("background", name="file")


def stand(kind: str, folder: Path, guard: dict[str, Any], dice: random.Random, calls: int) -> None:
    """Call so many verbs; after each everything can be read, and an untouched session is unchanged."""
    with (
        Memory.open(where(kind, folder), **options(kind), **guard) as memory,
        Memory.open("memory://") as apart,
    ):
        for number in range(calls):
            if number % 25 == 0:
                fresh(memory)
                kept = memory.session("kept").add_user_message("zebra")
            seed = dice.randrange(2**32)
            done = called(memory, random.Random(seed))
            session = memory.session("s")
            assert session.verify().ok, (done, seed)
            session.stats()
            if done == "sweep(untouched_for)":
                kept = memory.session("kept").add_user_message("zebra")  # it may be untouched for as long as was odd
            assert memory.session("kept").entries()[-1].id == kept.id, (done, seed)
            if session.entries():
                apart.import_session(session.export(), session_id="copy", on_conflict="replace")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, since some odd values are names of files."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


@pytest.mark.sampled
@pytest.mark.filterwarnings("ignore::palimpsest.PalimpsestWarning")
@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("kind", STORES)
def test_an_odd_value_is_refused_or_harmless(kind: str, guard: str, here: Path, dice: random.Random) -> None:
    """A verb with an odd value raises an error of the library or works; the store stays sound."""
    stand(kind, here, GUARDS[guard], dice, 25)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::palimpsest.PalimpsestWarning")
@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("kind", STORES)
def test_thousands_of_odd_values_are_refused_or_harmless(
    kind: str, guard: str, here: Path, dice: random.Random
) -> None:
    """Every verb with an odd value for every option raises an error of the library or works."""
    stand(kind, here, GUARDS[guard], dice, 800)


# --- each kind


@pytest.fixture(params=STORES)
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Memory]:
    with Memory.open(where(request.param, tmp_path)) as memory:
        memory.session("s").add_user_message("hello")
        yield memory


@pytest.mark.sampled
@pytest.mark.parametrize("levels", [200, 20_000])
def test_too_deeply_nested_tool_schemas_are_refused(memory: Memory, levels: int) -> None:
    """A tool schema of more than a hundred levels is refused by name; one of a dozen levels is counted and sent."""
    session = memory.session("s")

    with pytest.raises(ConfigError, match=r"tools\[1\].*100 levels"):
        session.context(tools=[tool(deep(12)), tool(deep(levels))], max_tokens=5000)

    assert session.context(tools=[tool(deep(12))], max_tokens=5000).request()["tools"] == [tool(deep(12))]


TOO_MUCH: dict[str, Callable[[Session], object]] = {
    "max_tokens": lambda s: s.context(max_tokens=2**70),
    "max_messages": lambda s: s.context(max_messages=2**70),
    "reserve": lambda s: s.context(reserve=2**64),
    "limit": lambda s: s.entries(limit=2**64),
    "after": lambda s: s.entries(after=2**64),
    "before": lambda s: s.history(before=2**64),
    "at": lambda s: s.entries(at=2**64),
    "to": lambda s: s.rewind(2**64),
    "input_tokens": lambda s: s.record_usage(input_tokens=2**64),
}


def test_numbers_beyond_what_a_store_keeps_are_refused(memory: Memory) -> None:
    """The error names the option and its allowed numbers; a seq that no log can have is an unknown entry."""
    session = memory.session("s")

    for name, call in TOO_MUCH.items():
        with pytest.raises(ConfigError, match=name):
            call(session)
    for place in (2**32, 2**64, 10**400, "9" * 5000):
        with pytest.raises(PalimpsestError, match="no entry"):
            session.entry(place)


@pytest.mark.parametrize(
    "now", [1.5, -1, 2**63, 10**5000, LAST_MOMENT + 1, None, "now", True, math.nan], ids=lambda now: type(now).__name__
)
def test_an_invalid_result_of_a_clock_is_refused(now: Any, tmp_path: Path) -> None:
    """An invalid result of a clock is refused, so that nothing is stored under an unreadable time."""
    for kind in STORES:
        with (
            pytest.raises(ConfigError, match=r"clock.*microseconds"),
            Memory.open(where(kind, tmp_path), clock=lambda: now) as memory,
        ):
            memory.session("s").add_user_message("hello")
        with Memory.open(where(kind, tmp_path)) as memory:
            assert memory.sessions() == []


@pytest.mark.parametrize("now", [0, LAST_MOMENT])
def test_the_first_and_last_moments_are_valid_times(now: int, tmp_path: Path) -> None:
    """Entries of 1970 and of the last microsecond of 9999 can be read, exported and imported."""
    for kind in STORES:
        with Memory.open(where(kind, tmp_path), clock=lambda: now) as memory:
            session = memory.session("s")
            entry = session.add_user_message("hello")
            memory.import_session(session.export(), session_id="copy")

            assert entry.created_at.year in (1970, 9999)
            assert memory.session("copy").entries()[0].at == now


def test_a_clock_must_be_a_function() -> None:
    """A clock that is a number is refused."""
    with pytest.raises(ConfigError, match="clock"):
        Memory.open("memory://", clock=5)  # type: ignore[arg-type]


class Named(os.PathLike[Any]):
    """A path whose name is bytes."""

    def __fspath__(self) -> Any:
        return b"log.db"


ADDRESSES = {
    "NUL": ("sqlite:///a\0b.db", "file:a\0b", Path("a\0b")),
    "surrogate": ("sqlite:///\ud800.db", "file:\ud800", Path("\ud800")),
    "long": ("sqlite:///" + "a/" * 3000 + "x.db", "file:" + "x/" * 3000, Path("y/" * 3000)),
    "bytes": (b"sqlite:///x.db", Named()),
}


@pytest.mark.parametrize("kind", ADDRESSES)
def test_an_impossible_file_address_is_refused(kind: str, here: Path) -> None:
    """An address that no file can have is refused in every form, and no file is made."""
    for address in ADDRESSES[kind]:
        with pytest.raises(ConfigError, match="store"):
            Memory.open(address)  # type: ignore[arg-type]

    assert list(here.joinpath("work").iterdir()) == []


@pytest.mark.parametrize("address", ["sqlite:///" + "x" * 300, "file:" + "x" * 300])
def test_a_file_name_too_long_for_the_system_raises_store_unavailable(address: str, here: Path) -> None:
    """A name that is too long for the file system raises StoreUnavailable."""
    with pytest.raises(StoreUnavailable):
        Memory.open(address)


@pytest.mark.parametrize("address", ["sqlite:///\ud800.db", "sqlite:///" + "a/" * 3000, "file:\ud800", "sqlit:x"])
def test_the_command_line_reports_a_wrong_address_in_one_line(address: str, here: Path) -> None:
    """The command line reports a wrong address in one line."""
    (here / "work" / "chat.jsonl").write_text('{"role": "user", "content": "hi"}')

    for command in (("sessions",), ("import", "chat.jsonl", "--session", "s")):
        result = run(*command, "--store", address)

        assert result.exit_code != 0
        assert isinstance(result.exception, SystemExit)
        assert "store" in result.output


def test_a_password_in_an_address_is_not_repeated() -> None:
    """An address of an unknown scheme is quoted without its password."""
    with pytest.raises(ConfigError) as caught:
        Memory.open("oracle://user:secret@host/db")

    assert re.search("oracle.*host", str(caught.value))
    assert "secret" not in str(caught.value)


def test_fields_of_entries_are_checked_before_they_are_stored(memory: Memory) -> None:
    """A field that could not be read back is refused by name on every store."""
    session = memory.session("s")
    for field, value in FIELDS:
        with pytest.raises(InvalidEntry, match=rf"entries\[0\]\.{field}"):
            session.add_entries([Entry(**{field: value})])  # type: ignore[arg-type]

    assert len(session.entries()) == 1


def test_entries_with_a_role_that_does_not_fit_their_kind_are_refused(memory: Memory) -> None:
    """An entry whose role does not fit its kind is refused, since no provider would take its context."""
    session = memory.session("s")
    refused = [Entry(role="tool", content="x")]
    refused += [Entry(kind="tool_call", role=role, name="f", call_id="c") for role in ("user", "system", "tool")]
    for entry in refused:
        with pytest.raises(InvalidEntry, match=r"entries\[0\]\.role: .* give "):
            session.add_entries([entry])

    assert len(session.entries()) == 1


def test_token_counts_of_another_session_are_dropped(memory: Memory) -> None:
    """Stored counts of an added entry are dropped: the session's own counter counts it."""
    session = memory.session("s")
    (added,) = session.add_entries([Entry(content="hello", tokens=100_000)])

    assert added.tokens is None
    assert session.cost(added) == session.cost(Entry(content="hello"))


def test_two_surrogates_of_a_pair_become_one_character(memory: Memory) -> None:
    """Text with two surrogates that make a pair is stored, returned and recognised as text with the one character."""
    halves, whole = "\ud83d\ude00 hi", "\U0001f600 hi"
    message = {"role": "assistant", "content": [{"type": "text", "text": halves, "mine": {halves: [halves]}}]}
    session = memory.session("halves", counter=len, max_tokens=1_000)
    question = {"role": "user", "content": halves}
    adds: list[Callable[[], object]] = [
        lambda: session.add([question, message], key="k"),
        lambda: session.add([question, message], unless_last=True),
        lambda: session.add_entries([Entry(id="mine", role="user", content=halves)]),
        lambda: session.add_context(halves, name="f"),
        lambda: session.replace([question, message], key="r"),
        lambda: session.replace([question, message]),
    ]
    for number, add in enumerate(adds):
        added = add()
        stored = session.entries()
        for entry in added if isinstance(added, tuple) else (added,):
            assert session.entry(entry.id) == entry, number
        add()
        assert session.entries() == stored, number

    assert {entry.text for entry in session.entries()} == {whole}
    with session.turn(atomic=True):
        assert session.add_user_message(halves).text == whole
    with session.stream() as answer:
        for piece in ("\ud83d", "\ude00 hi"):
            answer.feed({"choices": [{"index": 0, "delta": {"content": piece}}], "object": "chat.completion.chunk"})
        answer.feed(
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "object": "chat.completion.chunk"}
        )
    assert answer.entries[0].text == session.entries()[-1].text == whole
