"""Wrong input is refused with what is wrong, where, and what to do instead; nothing is written."""

from __future__ import annotations

import copy
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from palimpsest import (
    AsyncMemory,
    BudgetImpossible,
    ConfigError,
    Conflict,
    EntryNotFound,
    ImportFailed,
    InvalidEntry,
    Memory,
    Query,
    Redactor,
    Session,
    carry,
)
from palimpsest.strategies import MaxTokens
from writer import turn


class Case(NamedTuple):
    """A call that must fail, with the error and the words in its message."""

    call: Callable[[Memory, Session], object]
    error: type[Exception]
    words: tuple[str, ...]


@pytest.fixture
def memory(path: Path) -> Iterator[Memory]:
    """A store with one turn in the session "one" and a batch under a key."""
    with Memory.open(path) as memory:
        memory.session("one").add(turn("1"))
        memory.session("one").add(turn("2"), key="known")
        yield memory


def rows(path: Path) -> list[str]:
    """Return everything in the file."""
    with closing(sqlite3.connect(path)) as db:
        return list(db.iterdump())


def refused(memory: Memory, path: Path, case: Case) -> None:
    """Check a case: the error, its words, and that the file is unchanged."""
    before, revision = rows(path), memory.session("one").stats().revision
    before = rows(path)  # the first look may count tokens

    with pytest.raises(case.error) as caught:
        case.call(memory, memory.session("one"))

    assert type(caught.value) is case.error
    for word in case.words:
        assert word in str(caught.value)
    assert rows(path) == before
    assert memory.session("one").stats().revision == revision


def table(**cases: tuple) -> Any:
    """Parametrize a test with a table of cases by name."""
    made = []
    for name, (call, error, *rest) in cases.items():
        made.append(pytest.param(Case(call, error, tuple(rest)), id=name.replace("_", " ")))
    return pytest.mark.parametrize("case", made)


# --- opening


@table(
    store_option=(
        lambda m, s: Memory.open("sqlite:///x.db", synchronos=1),
        ConfigError,
        "did you mean 'synchronous'",
    ),
    memory_option=(lambda m, s: Memory.open("memory://", readonly=True), ConfigError, "readonly", "none"),
    durability=(lambda m, s: Memory.open("sqlite:///x.db", synchronous="OFF"), ConfigError, "'OFF'", "FULL", "NORMAL"),
    busy=(lambda m, s: Memory.open("sqlite:///x.db", busy_seconds=-1), ConfigError, "busy_seconds", "-1", "0 or more"),
    busy_bool=(lambda m, s: Memory.open("sqlite:///x.db", busy_seconds=True), ConfigError, "busy_seconds", "True"),
    readonly=(
        lambda m, s: Memory.open("sqlite:///x.db", readonly="no"),
        ConfigError,
        "readonly",
        "'no'",
    ),
    scheme=(lambda m, s: Memory.open("sqlit:///x.db"), ConfigError, "did you mean 'sqlite'", "memory:"),
    unknown_scheme=(lambda m, s: Memory.open("mysql://x"), ConfigError, "'mysql://x'", "sqlite:", "memory:"),
    two_slashes=(lambda m, s: Memory.open("sqlite://x"), ConfigError, "'sqlite://x'", "sqlite:///relative.db"),
    no_file=(lambda m, s: Memory.open("sqlite:///"), ConfigError, "sqlite:///relative.db"),
    kind_alone=(lambda m, s: Memory.open("memory"), ConfigError, "'memory'", "memory://", "agent.db"),
    no_address=(lambda m, s: Memory.open(""), ConfigError, "''", "agent.db"),
    a_folder=(lambda m, s: Memory.open("."), ConfigError, "'.'", "file:."),
    no_folder=(lambda m, s: Memory.open("logs/"), ConfigError, "'logs/'", "file:logs/"),
    no_text=(lambda m, s: Memory.open(7), ConfigError, "7", "sqlite:///agent.db"),
    memory_name=(lambda m, s: Memory.open("memory://name"), ConfigError, "'memory://name'", "memory://"),
    no_tenant=(lambda m, s: Memory.open("memory://", tenant=""), ConfigError, "tenant", "1 to 256"),
    odd_tenant=(lambda m, s: Memory.open("memory://", tenant="a\nb"), ConfigError, "tenant", "control characters"),
    tenant_type=(lambda m, s: Memory.open("memory://", tenant=None), ConfigError, "tenant", "None"),
)
def test_a_wrong_address_or_option_of_a_store_is_refused_by_name(
    memory: Memory, path: Path, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong address or option is refused by name with what is allowed, and no file is made."""
    monkeypatch.chdir(tmp_path)

    refused(memory, path, case)

    assert {file.name for file in tmp_path.iterdir()} <= {"log.db", "log.db-wal", "log.db-shm"}


def session(**options: Any) -> Callable[[Memory, Session], object]:
    return lambda m, s: m.session("one", **options)


@table(
    unknown=(session(max_token=1), ConfigError, "did you mean 'max_tokens'"),
    far_from_all=(session(zzz=1), ConfigError, "'zzz'", "max_tokens, max_messages"),
    negative=(session(max_tokens=-5), ConfigError, "max_tokens", "-5", "at least 0"),
    boolean=(session(max_tokens=True), ConfigError, "max_tokens", "True"),
    text=(session(max_tokens="8000"), ConfigError, "max_tokens", "'8000'", "whole number"),
    fraction=(session(max_tokens=1.5), ConfigError, "max_tokens", "1.5"),
    messages=(session(max_messages=-1), ConfigError, "max_messages", "-1"),
    reserve=(session(reserve=-1), ConfigError, "reserve", "-1"),
    reserve_text=(session(reserve="1k"), ConfigError, "reserve", "'1k'"),
    ratio=(session(max_context_ratio=1.5, model="gpt-4o"), ConfigError, "max_context_ratio", "at most 1"),
    ratio_of_nothing=(
        session(max_context_ratio=0.5),
        ConfigError,
        "max_context_ratio",
        "a model with known window",
    ),
    low_water=(session(low_water=1), ConfigError, "low_water", "under 1"),
    low_water_text=(session(low_water="half"), ConfigError, "low_water", "'half'"),
    cache_never=(session(cache_seconds=0), ConfigError, "cache_seconds", "over 0"),
    cache_text=(session(cache_seconds="5m"), ConfigError, "cache_seconds", "'5m'"),
    cache_not_a_number=(session(cache_seconds=float("nan")), ConfigError, "cache_seconds", "nan"),
    format=(session(format="openia"), ConfigError, "did you mean 'openai'"),
    format_type=(session(format=None), ConfigError, "format", "None", "openai"),
    view=(session(view=""), ConfigError, "view", "1 to 256"),
    counter=(session(counter="o200k"), ConfigError, "did you mean 'o200k_base'"),
    counter_type=(session(counter=3), ConfigError, "counter", "function from text"),
    model_type=(session(model=4), ConfigError, "model", "'gpt-4o'"),
    oversize=(session(oversize="clip"), ConfigError, "oversize", "'clip'", "clamp, drop, error, keep_newest"),
    mask=(session(mask="no"), ConfigError, "mask", "'no'", "True or False"),
    readonly=(session(readonly="no"), ConfigError, "readonly", "'no'", "True or False"),
    condition=(session(conditions=["message.rolle == 'user'"]), ConfigError, "conditions[0]", "did you mean 'role'"),
    block_key=(session(short_term={"memory_max_token": 1}), ConfigError, "did you mean 'memory_max_tokens'"),
    block_range=(session(short_term=[MaxTokens(memory_max_tokens=-2)]), ConfigError, "short_term[0]", "at least -1"),
    block_type=(session(short_term=["max_tokens"]), ConfigError, "short_term[0]", "MaxTokens or a mapping"),
    empty_id=(lambda m, s: m.session(""), ConfigError, "session", "1 to 256"),
    long_id=(lambda m, s: m.session("x" * 257), ConfigError, "session", "1 to 256"),
    control_id=(lambda m, s: m.session("a\x00b"), ConfigError, "session", "control characters"),
    delete_id=(lambda m, s: m.session("a\x7f"), ConfigError, "session", "control characters"),
    surrogate_id=(lambda m, s: m.session("a\ud800"), ConfigError, "session", "control characters"),
    id_type=(lambda m, s: m.session(7), ConfigError, "session", "7"),
)
def test_a_wrong_option_of_a_session_is_refused_by_name(memory: Memory, path: Path, case: Case) -> None:
    """A wrong option of a session is refused by name, with what was found and what is allowed."""
    refused(memory, path, case)


# --- adding


def add(messages: Any, **options: Any) -> Callable[[Memory, Session], object]:
    return lambda m, s: s.add(messages, **options)


def said(**options: Any) -> Callable[[Memory, Session], object]:
    return lambda m, s: s.add_user_message("hello", **options)


USER = {"role": "user", "content": "fine"}
DEEP: list = []
for _ in range(200):
    DEEP = [DEEP]


def calling(**call: Any) -> list[dict]:
    return [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]


@table(
    a_text=(add("hello"), InvalidEntry, "messages", "a list of messages"),
    a_number=(add(7), InvalidEntry, "messages", "int"),
    no_mapping=(add([USER, "hello"]), InvalidEntry, "messages[1]", "mapping"),
    no_role=(add([{"content": "hello"}]), InvalidEntry, "messages[0].role", "None", "user, assistant"),
    odd_role=(add([USER, {"role": "robot", "content": "x"}]), InvalidEntry, "messages[1].role", "'robot'"),
    no_content=(add([{"role": "user"}]), InvalidEntry, "messages[0].content", "needs content"),
    null_content=(add([USER, {"role": "user", "content": None}]), InvalidEntry, "messages[1].content"),
    content_type=(add([{"role": "user", "content": 3}]), InvalidEntry, "messages[0].content", "3"),
    part_type=(add([{"role": "user", "content": ["x"]}]), InvalidEntry, "messages[0].content[0]"),
    part_type_list=(add([{"role": "user", "content": [{"type": ["x"]}]}]), InvalidEntry, "messages[0].content[0]"),
    part_of_no_text=(
        add([{"role": "user", "content": [{"type": "text"}]}]),
        InvalidEntry,
        "messages[0].content",
        "nothing",
    ),
    part_of_null=(add([{"role": "system", "content": [{"type": "text", "text": None}]}]), InvalidEntry, "messages[0]"),
    item_of_no_text=(
        add([{"role": "user", "content": [{"type": "input_text"}]}]),
        InvalidEntry,
        "messages[0]",
        "nothing",
    ),
    part_of_nothing=(add([{"role": "user", "parts": [{}]}]), InvalidEntry, "messages[0].parts", "nothing"),
    result_of_nothing=(add([{"role": "tool", "content": "x"}]), InvalidEntry, "messages[0].tool_call_id"),
    user_with_calls=(add([{**USER, "tool_calls": []}]), InvalidEntry, "messages[0].tool_calls", "assistant"),
    call_type=(add([{"role": "assistant", "tool_calls": ["x"]}]), InvalidEntry, "messages[0].tool_calls[0]"),
    call_without_name=(add(calling(id="1", type="function", function={})), InvalidEntry, "messages[1].tool_calls[0]"),
    name_type=(add([{**USER, "name": 5}]), InvalidEntry, "messages[0].name", "5"),
    odd_key=(add([{**USER, "extra": {1, 2}}]), InvalidEntry, "messages[0].extra", "plain JSON"),
    nan_in_key=(add([{**USER, "extra": float("nan")}]), InvalidEntry, "messages[0].extra", "no JSON form"),
    status=(add([USER, *turn("x")[1:]], statuses={"x-left": "fine"}), InvalidEntry, "messages", "'fine'", "success"),
    statuses_type=(
        add(turn("x"), statuses=["x"]),
        ConfigError,
        "statuses",
        "mapping",
    ),
    unknown_format=(add([USER], format="antropic"), ConfigError, "format", "'antropic'", "openai"),
    empty_key=(add([USER], key=""), InvalidEntry, "key", "names this batch"),
    key_type=(add([USER], key=7), InvalidEntry, "key", "7"),
    key_again=(add(turn("3"), key="known"), Conflict, "other content", "number 7 of the log", "used once", "another"),
)
def test_malformed_messages_are_refused_whole(memory: Memory, path: Path, case: Case) -> None:
    """A malformed message is an InvalidEntry that names its place; nothing of its batch is stored."""
    refused(memory, path, case)


@table(
    an_object=(said(metadata={"at": datetime}), InvalidEntry, "metadata.at", "convert it first"),
    a_set_inside=(said(metadata={"a": [{"b": {1}}]}), InvalidEntry, "metadata.a[0].b", "set"),
    a_tuple=(said(metadata={"a": (1, 2)}), InvalidEntry, "metadata.a", "tuple"),
    not_a_number=(said(metadata={"x": float("nan")}), InvalidEntry, "metadata.x", "nan"),
    infinite=(said(metadata={"x": [1.0, float("inf")]}), InvalidEntry, "metadata.x[1]", "inf"),
    large=(said(metadata={"x": 2**64}), InvalidEntry, "metadata.x", "64 bits"),
    key=(said(metadata={"x": {1: 2}}), InvalidEntry, "metadata.x", "key 1", "not text"),
    deep=(said(metadata={"x": DEEP}), InvalidEntry, "metadata.x[0][0]", "100 levels"),
    no_mapping=(said(metadata=["x"]), InvalidEntry, "metadata", "mapping"),
    of_a_batch=(add([USER], metadata={"x": {1}}), InvalidEntry, "metadata.x"),
    of_a_call=(lambda m, s: s.add_tool_call("look", {}, metadata={"x": {1}}), InvalidEntry, "metadata.x"),
    importance=(said(importance=7), InvalidEntry, "importance", "7", "between 0 and 1"),
    importance_nan=(said(importance=float("nan")), InvalidEntry, "importance", "between 0 and 1"),
    importance_text=(said(importance="high"), InvalidEntry, "importance", "'high'", "between 0 and 1"),
    importance_bool=(said(importance=True), InvalidEntry, "importance", "True", "between 0 and 1"),
    naive=(said(expires_at=datetime(2030, 1, 1)), InvalidEntry, "expires_at", "time zone"),  # noqa: DTZ001
    expiry_type=(said(expires_at=1_900_000_000), InvalidEntry, "expires_at", "datetime"),
    pinned=(said(pinned="yes"), InvalidEntry, "pinned", "'yes'", "True nor False"),
    name=(said(name=5), InvalidEntry, "name", "5", "text"),
    content=(
        lambda m, s: s.add_user_message(5),
        InvalidEntry,
        "content",
        "5",
    ),
    no_content=(
        lambda m, s: s.add_user_message(None),
        InvalidEntry,
        "content",
        "None",
    ),
    parts=(lambda m, s: s.add_user_message(["x"]), InvalidEntry, "content", "parts"),
    tool_name=(lambda m, s: s.add_tool_call("", {}), InvalidEntry, "name", "tool"),
    arguments=(lambda m, s: s.add_tool_call("look", {"x": {1}}), InvalidEntry, "arguments.x", "set"),
    call_id=(lambda m, s: s.add_tool_call("look", {}, call_id=5), InvalidEntry, "call_id", "5"),
    result_of_nothing=(lambda m, s: s.add_tool_result(None, "x"), InvalidEntry, "call_id", "name of the tool"),
    output=(lambda m, s: s.add_tool_result("look", {"x": {1}}), InvalidEntry, "output.x", "set"),
    status=(lambda m, s: s.add_tool_result("look", "x", status="ok"), InvalidEntry, "status", "'ok'", "success"),
    context_name=(lambda m, s: s.add_context("text", name=""), InvalidEntry, "name"),
    context_text=(lambda m, s: s.add_context(5, name="x"), InvalidEntry, "text"),
)
def test_a_field_with_a_wrong_value_is_named(memory: Memory, path: Path, case: Case) -> None:
    """A value that an entry may not have is an InvalidEntry that names the field, down to the place inside."""
    refused(memory, path, case)


def test_a_result_without_a_call_is_kept_as_data(memory: Memory) -> None:
    """A result that answers nothing is no error: it is stored, and shown as plain data in a valid context."""
    one = memory.session("one")

    entry = one.add_tool_result("look", "found it", call_id="nobody asked")

    assert entry.answers == 0
    last = one.context().messages[-1]
    assert last["role"] == "user"
    assert "found it" in last["content"]
    assert "<unmatched_result" in last["content"]


# --- other verbs


def context(**call: Any) -> Callable[[Memory, Session], object]:
    return lambda m, s: s.context(**call)


@table(
    entry=(lambda m, s: s.entry("nobody"), EntryNotFound, "'one'", "'nobody'", "entries()"),
    entry_seq=(lambda m, s: s.entry(99), EntryNotFound, "99"),
    entry_zero=(lambda m, s: s.entry(0), EntryNotFound, "0"),
    entry_negative=(lambda m, s: s.entry(-1), EntryNotFound, "-1"),
    entry_type=(lambda m, s: s.entry(None), EntryNotFound, "None"),
    entry_digits=(lambda m, s: s.entry("²"), EntryNotFound, "²"),
    pin=(lambda m, s: s.pin(1, "nobody"), EntryNotFound, "'nobody'"),
    unpin=(lambda m, s: s.unpin("nobody"), EntryNotFound, "'nobody'"),
    erase=(lambda m, s: s.erase([1, 2, "nobody"]), EntryNotFound, "'nobody'"),
    resolve=(lambda m, s: s.resolve("nobody"), EntryNotFound, "open call 'nobody'", "stats().open_calls"),
    resolve_answered=(lambda m, s: s.resolve("1-left"), EntryNotFound, "open call '1-left'"),
    restore=(lambda m, s: s.restore("nobody"), EntryNotFound, "no summary 'nobody'", "summaries(history=True)"),
    restore_newest=(lambda m, s: s.restore(), EntryNotFound, "no summary;", "summaries(history=True)"),
    hide_list=(lambda m, s: s.hide([1, 2]), ConfigError, "[1, 2]", "as separate arguments"),
    pin_list=(lambda m, s: s.pin([1]), ConfigError, "[1]", "as separate arguments"),
    at_future=(context(at=99), ConfigError, "at", "99", "0 to 2"),
    at_negative=(context(at=-1), ConfigError, "at", "-1", "0 to 2"),
    at_bool=(context(at=True), ConfigError, "at", "True"),
    at_text=(context(at="2"), ConfigError, "at", "'2'"),
    system=(context(system=5), ConfigError, "system", "5", "text"),
    tools=(context(tools=["look"]), ConfigError, "tools[0]", "mapping"),
    format=(context(format="gemni"), ConfigError, "format", "'gemni'"),
    view=(context(view=""), ConfigError, "view", "1 to 256"),
    budget=(context(max_tokens=-1), ConfigError, "max_tokens", "-1"),
    no_messages=(context(max_messages=0), BudgetImpossible, "messages", "raise max_messages"),
    dry_run=(context(dry_run="no"), ConfigError, "dry_run", "'no'", "True or False"),
    tail=(context(tail=5), ConfigError, "tail", "int", "texts by name"),
    tail_name=(context(tail={1: "noon"}), ConfigError, "tail", "1", "'clock'"),
    tail_text=(context(tail={"clock": 5}), ConfigError, "tail['clock']", "int", "a text"),
    query_type=(lambda m, s: s.erase(Query(text=5)), ConfigError, "text", "'int'"),
    query_time=(lambda m, s: s.erase(Query(after="2026-11-01")), ConfigError, "after", "'a text'", "time zone"),
    folder=(lambda m, s: s.export_to("none/here.json"), FileNotFoundError, "'none/here.json'"),
    carried=(lambda m, s: carry(5), ConfigError, "function", "5"),
    no_key=(
        lambda m, s: m.scan({"recognisers": {"email": "pseudonym"}}),
        ConfigError,
        "no key",
        "Redactor(policy, key",
    ),
    text_key=(
        lambda m, s: Redactor({"recognisers": {"email": "pseudonym"}}, key="x" * 32),
        ConfigError,
        "another type",
        "at least 16 bytes, of type bytes",
    ),
    messages=(context(max_messages="5"), ConfigError, "max_messages", "'5'"),
    reserve=(context(reserve=1.5), ConfigError, "reserve", "1.5"),
    impossible=(context(max_tokens=3), BudgetImpossible, "max_tokens", "available"),
    impossible_system=(context(max_tokens=20, system="long " * 100), BudgetImpossible, "system"),
    usage=(lambda m, s: s.record_usage(input_tokens=-1), ConfigError, "input_tokens", "-1"),
    usage_type=(lambda m, s: s.record_usage(input_tokens=1, output_tokens="2"), ConfigError, "output_tokens", "'2'"),
    usage_cached=(
        lambda m, s: s.record_usage(input_tokens=1, cached_tokens=-1),
        ConfigError,
        "cached_tokens",
        "-1",
    ),
    event=(lambda m, s: m.on("entry:aded", print), ConfigError, "did you mean 'entry:added'"),
    handler=(lambda m, s: m.on("entry:added", None), ConfigError, "handler", "None"),
    conflict_rule=(lambda m, s: m.import_session(s.export(), on_conflict="skip"), ConfigError, "'skip'", "merge"),
    import_id=(lambda m, s: m.import_session(s.export(), session_id="a\n"), ConfigError, "control characters"),
    import_twice=(lambda m, s: m.import_session(s.export()), Conflict, "'one'", "replace"),
    delete_id=(lambda m, s: m.delete_session(""), ConfigError, "session", "1 to 256"),
)
def test_every_verb_refuses_invalid_values_by_name(memory: Memory, path: Path, case: Case) -> None:
    """A verb refuses a wrong or unknown value with an error that says which value and what is allowed."""
    refused(memory, path, case)


def test_a_turn_inside_a_turn_is_refused(memory: Memory, path: Path) -> None:
    """A second `turn()` on a session object that holds one is a ConfigError; the first one goes on."""
    session = memory.session("one")
    with session.turn():
        before = rows(path)
        with pytest.raises(ConfigError, match=r"a turn inside a turn.*one turn at a time.*add"), session.turn():
            pytest.fail("the block must not run")
        assert rows(path) == before
        session.add_user_message("goes on")
    assert session.entries()[-1].text == "goes on"


# --- what is imported from an export


def changed(change: Callable[[dict], object]) -> Callable[[Memory, Session], object]:
    """Import the session under another id after changing its export."""

    def call(memory: Memory, session: Session) -> None:
        data = copy.deepcopy(session.export())
        change(data)
        memory.import_session(data, session_id="copy")

    return call


@table(
    no_mapping=(lambda m, s: m.import_session([1], session_id="copy"), ImportFailed, "data", "list"),
    nothing=(lambda m, s: m.import_session({}, session_id="copy"), ImportFailed, "schema_version"),
    newer=(
        changed(lambda d: d.update(schema_version=9)),
        ImportFailed,
        "schema_version",
        "9",
        "this Palimpsest reads 1",
    ),
    version_text=(changed(lambda d: d.update(schema_version="1")), ImportFailed, "schema_version", "'1'"),
    version_bool=(changed(lambda d: d.update(schema_version=True)), ImportFailed, "schema_version", "True"),
    kind=(changed(lambda d: d.update(kind="other/thing")), ImportFailed, "data.kind", "other/thing"),
    session_id=(changed(lambda d: d.update(session_id=4)), ImportFailed, "session_id", "4"),
    head=(changed(lambda d: d.pop("head")), ImportFailed, "data.head", "missing"),
    head_type=(changed(lambda d: d["head"].update(revision="x")), ImportFailed, "data.head"),
    head_first=(changed(lambda d: d["head"].update(first_seq="x")), ImportFailed, "data.head.first_seq"),
    head_turns=(changed(lambda d: d["head"].update(turns="x")), ImportFailed, "data.head.turns"),
    missing_entry=(changed(lambda d: d["entries"].pop(3)), ImportFailed, "data.entries", "4 is missing"),
    missing_last=(changed(lambda d: d["entries"].pop()), ImportFailed, "data.entries", "12 is missing"),
    repeated_id=(changed(lambda d: d["entries"][1].update(id=d["entries"][0]["id"])), ImportFailed, "repeated"),
    no_id=(changed(lambda d: d["entries"][1].update(id="")), ImportFailed, "entry 2", "missing"),
    answers_later=(changed(lambda d: d["entries"][3]["links"].update(answers=9)), ImportFailed, "entry 4 answers 9"),
    answers_no_call=(changed(lambda d: d["entries"][3]["links"].update(answers=1)), ImportFailed, "entry 4 answers 1"),
    entries_type=(changed(lambda d: d.update(entries="x")), ImportFailed, "data.entries", "not a list"),
    entry_type=(changed(lambda d: d["entries"].insert(0, 5)), ImportFailed, "data.entries[0]", "mapping"),
    links_type=(changed(lambda d: d["entries"][0].update(links=[1])), ImportFailed, "data.entries[0].links"),
    unknown_field=(changed(lambda d: d["entries"][0].update(mood="good")), ImportFailed, "data.entries[0].mood"),
    unknown_kind=(changed(lambda d: d["entries"][0].update(kind="joke")), ImportFailed, "data.entries[0]", "joke"),
    bad_content=(changed(lambda d: d["entries"][0].update(content=5)), ImportFailed, "data.entries[0]"),
    bad_importance=(changed(lambda d: d["entries"][0].update(importance=7)), ImportFailed, "entries[0].importance"),
    naive_time=(changed(lambda d: d["entries"][0].update(created_at="2026-01-01T00:00:00")), ImportFailed, "time zone"),
    bad_time=(changed(lambda d: d["entries"][0].update(created_at="today")), ImportFailed, "entries[0].created_at"),
    time_type=(changed(lambda d: d["entries"][0].update(created_at=5)), ImportFailed, "entries[0].created_at"),
    record_type=(changed(lambda d: d.update(records=[{"kind": "cut"}])), ImportFailed, "data.records[0]"),
    records_number=(changed(lambda d: d.update(records=[7])), ImportFailed, "data.records[0]"),
    usage=(changed(lambda d: d.update(usage={"input_tokens": "x"})), ImportFailed, "data.usage"),
    pinned=(changed(lambda d: d["head"].update(pinned=["x"])), ImportFailed, "data.head"),
)
def test_an_inconsistent_export_is_refused_whole(memory: Memory, path: Path, case: Case) -> None:
    """An import checks everything first: it raises ImportFailed naming the first place, and imports nothing."""
    refused(memory, path, case)

    assert [info.session for info in memory.sessions()] == ["one"]


def test_a_too_deeply_nested_value_is_refused_by_name() -> None:
    """A value nested too deeply to be shown is refused by the option's name."""
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with Memory.open("memory://") as memory:
        with pytest.raises(ConfigError, match="order"):
            memory.sessions(order=deep)
        with pytest.raises(ConfigError, match="auto_compact"):
            memory.session("a", auto_compact=deep)


@pytest.mark.parametrize("given", [(), ("agent.db",), (Path("agent.db"),), (None,)])
@pytest.mark.parametrize("kind", [Memory, AsyncMemory])
def test_calling_the_memory_class_advises_open(kind: Any, given: tuple[Any, ...]) -> None:
    """Calling the class raises an error that says how to open a memory."""
    with pytest.raises(ConfigError, match=rf"{kind.__name__}\.open\(address\)"):
        kind(*given)


class Unshowable:
    """An object whose `repr` raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no connection")


def test_an_object_whose_repr_raises_is_refused_with_a_message() -> None:
    """An object whose `repr` raises is refused with a message that says so."""
    with Memory.open("memory://") as memory, pytest.raises(ConfigError, match="a Unshowable that cannot be shown"):
        memory.session("s", max_tokens=Unshowable())  # type: ignore[arg-type]
