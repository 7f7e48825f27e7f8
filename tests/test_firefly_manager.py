"""MemoryManager of `palimpsest.compat.firefly`: its parts, forks, and settings from the environment.

A number such as (N12) at the end of a docstring names a known fault of Firefly's own memory: its code would fail the
test.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import firefly_stores
from firefly_process import Words, digest
from palimpsest import ConfigError, PalimpsestWarning
from palimpsest.compat import firefly
from palimpsest.compat.firefly import (
    FileStore,
    InMemoryStore,
    MemoryManager,
    MemoryStore,
    SQLiteStore,
    WorkingMemory,
    database_store,
    settings,
    summarization,
)
from palimpsest.compat.firefly.settings import MEMORY, Settings
from palimpsest.errors import StoreUnavailable
from test_docstrings import listed, parameters

BLOCK = """
export FIREFLY_AGENTIC_MEMORY_BACKEND=in_memory             # in_memory | file | postgres | mongodb
export FIREFLY_AGENTIC_MEMORY_MAX_CONVERSATION_TOKENS=64000
export FIREFLY_AGENTIC_MEMORY_SUMMARIZE_THRESHOLD=3000      # token count
export FIREFLY_AGENTIC_MEMORY_FILE_DIR=.elsewhere           # used by the "file" backend

# PostgreSQL backend
export FIREFLY_AGENTIC_MEMORY_POSTGRES_URL=postgresql://user:pass@localhost/firefly
export FIREFLY_AGENTIC_MEMORY_POSTGRES_POOL_SIZE=11
export FIREFLY_AGENTIC_MEMORY_POSTGRES_POOL_MIN_SIZE=3
export FIREFLY_AGENTIC_MEMORY_POSTGRES_SCHEMA=other_memory

# MongoDB backend
export FIREFLY_AGENTIC_MEMORY_MONGODB_URL='mongodb://localhost:27017/'
export FIREFLY_AGENTIC_MEMORY_MONGODB_DATABASE="other_memory"
export FIREFLY_AGENTIC_MEMORY_MONGODB_COLLECTION=others
export FIREFLY_AGENTIC_MEMORY_MONGODB_POOL_SIZE=12
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in an empty folder and without any Firefly variable in the environment."""
    for name in list(os.environ):
        if name.startswith("FIREFLY_AGENTIC_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def manager() -> Iterator[MemoryManager]:
    """Yield a manager in memory."""
    with MemoryManager() as made:
        yield made


def set_all(monkeypatch: pytest.MonkeyPatch, **values: object) -> None:
    """Set these variables of the environment, each with the prefix of a memory's settings."""
    for name, value in values.items():
        monkeypatch.setenv(f"{MEMORY}{name}", str(value))


# --- the manager


def test_a_manager_holds_conversations_and_facts() -> None:
    """A manager keeps turns, history, facts and the text of the facts, as Firefly documents."""
    mgr = MemoryManager(
        store=None, max_conversation_tokens=32_000, summarize_threshold=10, working_scope_id="main-session"
    )
    cid = mgr.new_conversation()
    raw_messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    mgr.add_turn(cid, "hello", "hi", raw_messages)

    assert mgr.get_message_history(cid) == raw_messages
    mgr.set_fact("doc_type", "invoice")
    assert mgr.get_fact("doc_type") == "invoice"
    assert mgr.get_fact("none", 3) == 3
    assert mgr.get_working_context() == "Working Memory:\n- doc_type: invoice"


def test_the_parts_can_be_reached_and_cleared(manager: MemoryManager) -> None:
    """Each clearing method clears the part that it names and no other."""
    one, other = manager.new_conversation(), manager.new_conversation()
    for cid in (one, other):
        manager.add_turn(cid, "a", "b", [])
    manager.set_fact("k", 1)

    assert isinstance(manager.store, InMemoryStore)
    assert isinstance(manager.working, WorkingMemory)
    assert manager.conversation.max_tokens == 128_000
    manager.clear_conversation(one)
    assert manager.conversation.conversation_ids == [other]
    assert manager.get_fact("k") == 1
    manager.clear_working()
    assert manager.get_working_context() == ""
    manager.set_fact("k", 1)
    manager.clear_all()
    assert (manager.conversation.conversation_ids, manager.get_fact("k")) == ([], None)


def test_the_names_and_defaults_are_the_documented_ones(manager: MemoryManager) -> None:
    """The manager's parameters, defaults and import paths are those that Firefly documents."""
    given = inspect.signature(MemoryManager.__init__).parameters
    assert [(name, given[name].default) for name in list(given)[1:5]] == [
        *(("store", None), ("max_conversation_tokens", 128_000), ("summarize_threshold", 10)),
        ("working_scope_id", "default"),
    ]
    assert manager.working.scope_id == "default"
    assert database_store.PostgreSQLStore is firefly.PostgreSQLStore
    assert database_store.MongoDBStore is firefly.MongoDBStore
    assert summarization.create_llm_summarizer is firefly.create_llm_summarizer


def test_async_methods_do_not_block_the_loop(manager: MemoryManager) -> None:
    """The awaitable twins of `add_turn` and `get_message_history` see what the plain methods have done."""

    async def main() -> None:
        turns = await asyncio.gather(*(manager.async_add_turn("c", f"q{i}", "a", []) for i in range(5)))
        assert sorted(turn.turn_id for turn in turns) == list(range(5))
        assert len(await manager.async_get_message_history("c")) == 10
        async with MemoryManager() as other:
            other.add_turn("c", "a", "b", [])

    asyncio.run(main())
    assert len(manager.conversation.get_turns("c")) == 5


class RedisStore:
    """The documented outline of a program's own store."""

    def save(self, namespace: str, entry: firefly.MemoryEntry) -> None: ...
    def load(self, namespace: str) -> list[firefly.MemoryEntry]: ...
    def load_by_key(self, namespace: str, key: str) -> firefly.MemoryEntry | None: ...
    def delete(self, namespace: str, entry_id: str) -> None: ...
    def clear(self, namespace: str) -> None: ...


@pytest.mark.filterwarnings("ignore:.*has no compare-and-set")
def test_a_programs_own_store_is_used() -> None:
    """An object with the five methods is a store, even if it is false; one without them is refused (N25)."""
    own_store = firefly_stores.FiveMethods()
    manager = MemoryManager(store=own_store)
    manager.add_turn("c", "a", "b", [])
    manager.set_fact("k", 1)

    assert isinstance(RedisStore(), MemoryStore)
    assert manager.store is own_store
    assert set(own_store.held) == {"conversations", "conversation:c", "working:default"}
    assert MemoryManager(store=own_store).conversation.get_turns("c")[0].user_prompt == "a"
    with pytest.raises(ConfigError, match="store"):
        MemoryManager(store={})  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:.*has no compare-and-set")
def test_a_turn_that_the_store_refuses_is_not_stored() -> None:
    """If a program's own store raises, the turn is not stored and the next one gets its number (N22)."""

    class Full(firefly_stores.FiveMethods):
        full = False

        def save(self, namespace: str, entry: firefly.MemoryEntry) -> None:
            if self.full:
                raise OSError("no space left")
            super().save(namespace, entry)

    own_store = Full()
    manager = MemoryManager(store=own_store)
    manager.add_turn("c", "a", "b", [])
    own_store.full = True
    with pytest.raises(OSError, match="no space"):
        manager.add_turn("c", "lost", "b", [])
    own_store.full = False

    assert manager.add_turn("c", "c", "d", []).turn_id == 1
    assert [turn.user_prompt for turn in manager.conversation.get_turns("c")] == ["a", "c"]
    assert len(own_store.load("conversation:c")) == 2


# --- forks


def test_a_fork_shares_conversations_but_not_facts(manager: MemoryManager) -> None:
    """A fork sees its parent's turns and adds to them; facts of either are unknown to the other."""
    manager.set_fact("k", "parent")
    manager.add_turn("c", "a", "b", [])
    child = manager.fork(working_scope_id="sub-agent-classify")
    child.set_fact("classification", "invoice")
    child.add_turn("c", "c", "d", [])

    assert manager.get_fact("classification") is None
    assert child.get_fact("k") is None
    assert [turn.user_prompt for turn in manager.conversation.get_turns("c")] == ["a", "c"]
    assert child.get_message_history("c") == manager.get_message_history("c")


def test_a_fork_destroys_nothing_that_is_shared(manager: MemoryManager) -> None:
    """A fork cannot clear, close or overwrite its parent's conversations; clearing it removes its own facts (N44)."""
    manager.add_turn("c", "a", "b", [])
    manager.set_fact("k", 1)
    child = manager.fork(working_scope_id="x")
    child.set_fact("own", 1)
    exported = child.conversation.export_conversation("c")

    child.clear_all()
    child.close()
    asyncio.run(child.aclose())
    for clear in (lambda: child.clear_conversation("c"), child.conversation.clear_all):
        with pytest.raises(ConfigError, match="fork"):
            clear()
    with pytest.raises(Exception, match=r"there already|exists"):
        child.conversation.import_conversation(exported)

    assert child.get_fact("own") is None
    assert manager.get_fact("k") == 1
    assert len(manager.conversation.get_turns("c")) == 1
    assert child.conversation.import_conversation(exported, conversation_id="new") == "new"


def test_a_fork_needs_a_scope_of_its_own(manager: MemoryManager) -> None:
    """A fork may not use the scope of its parent or of any ancestor, whose facts it could clear."""
    child = manager.fork(working_scope_id="x")
    for of, scope in ((manager, "default"), (child, "x"), (child, "default")):
        with pytest.raises(ConfigError, match="working_scope_id"):
            of.fork(working_scope_id=scope)
    assert child.fork(working_scope_id="y").working.scope_id == "y"


# --- the environment


def test_every_documented_variable_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every documented variable is read from the environment, or from a file if one is named.

    The environment wins over the file.
    """
    (tmp_path / ".env").write_text(BLOCK)
    environment_of = settings.environment
    parsed = Settings.read(environment_of(tmp_path / ".env"))

    assert {name: getattr(parsed, name) for name in parsed.given} == {
        "backend": "in_memory",
        "max_conversation_tokens": 64_000,
        "summarize_threshold": 3000,
        "file_dir": ".elsewhere",
        "postgres_url": "postgresql://user:pass@localhost/firefly",
        "postgres_pool_size": 11,
        "postgres_pool_min_size": 3,
        "postgres_schema": "other_memory",
        "mongodb_url": "mongodb://localhost:27017/",
        "mongodb_database": "other_memory",
        "mongodb_collection": "others",
        "mongodb_pool_size": 12,
    }
    set_all(monkeypatch, MAX_CONVERSATION_TOKENS=77)
    assert Settings.read(environment_of(tmp_path / ".env")).max_conversation_tokens == 77
    assert Settings.read(environment_of(None)).postgres_url is None  # without a name no file is read
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        manager = MemoryManager.from_config(env_file=tmp_path / ".env")
    assert manager.conversation.max_tokens == 77
    assert [f"{MEMORY}SUMMARIZE_THRESHOLD has no effect" in str(one.message) for one in warned] == [True]


def test_without_variables_the_defaults_apply() -> None:
    """`from_config()` of an empty environment makes a manager in memory with the documented defaults."""
    with MemoryManager.from_config() as manager:
        assert isinstance(manager.store, InMemoryStore)
        assert manager.conversation.max_tokens == 128_000
        manager.add_turn("c", "a", "b", [])
    assert Settings.read({}) == Settings(given=frozenset())


def test_the_threshold_acts_only_with_a_summarizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a summarizer the environment's threshold applies; the default of 10 warns that it is small (N17)."""
    set_all(monkeypatch, SUMMARIZE_THRESHOLD=30)
    with MemoryManager.from_config(summarizer=digest, estimator=Words(), working_scope_id="s") as manager:
        for i in range(3):
            manager.add_turn("c", f"q{i} " + "word " * 9, "word " * 10, [])
        assert manager.conversation.get_summary("c")
        assert manager.working.scope_id == "s"
    set_all(monkeypatch, SUMMARIZE_THRESHOLD=10)
    with pytest.warns(PalimpsestWarning, match="summarize_threshold is 10 tokens.*SUMMARIZE_THRESHOLD") as heard:
        MemoryManager.from_config(summarizer=digest).close()
    assert len(heard) == 1


def test_a_useless_threshold_is_warned_of() -> None:
    """A threshold without a summarizer, and one that summarizes nearly every turn, give a warning (N11, N17).

    The settings that the documents show give none.
    """
    with pytest.warns(PalimpsestWarning, match="no effect without a summarizer"):
        MemoryManager(summarize_threshold=3000).close()
    with pytest.warns(PalimpsestWarning, match="nearly every turn"):
        MemoryManager(summarizer=digest).close()
    for silent in ({"summarize_threshold": 10}, {"summarizer": digest, "summarize_threshold": 3000}, {}):
        MemoryManager(**silent).close()  # type: ignore[arg-type]
    for off in (0, None):
        MemoryManager(summarize_threshold=off).close()
        MemoryManager(summarizer=digest, summarize_threshold=off).close()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"BACKEND": "sqlite3"}, "in_memory, file, postgres, mongodb, sqlite, redis.*did you mean 'sqlite'"),
        ({"BACKEND": "FILE"}, "in_memory, file, postgres, mongodb, sqlite, redis"),
        ({"BACKEND": "postgresql"}, "in_memory, file, postgres, mongodb, sqlite, redis"),
        ({"BACKEND": "postgres"}, "FIREFLY_AGENTIC_MEMORY_POSTGRES_URL"),
        ({"BACKEND": "mongodb"}, "FIREFLY_AGENTIC_MEMORY_MONGODB_URL"),
        ({"BACKEND": "redis"}, "FIREFLY_AGENTIC_MEMORY_REDIS_URL"),
        ({"MAX_CONVERSATION_TOKENS": "many"}, "FIREFLY_AGENTIC_MEMORY_MAX_CONVERSATION_TOKENS.*at least 1"),
        ({"SUMMARIZE_THRESHOLD": "-1"}, "FIREFLY_AGENTIC_MEMORY_SUMMARIZE_THRESHOLD.*at least 0"),
        ({"BACKEND": "postgres", "POSTGRES_URL": "http://x", "POSTGRES_SCHEMA": "a"}, "postgresql://"),
        ({"BACKEND": "postgres", "POSTGRES_URL": "postgresql://x/y", "POSTGRES_SCHEMA": "a b"}, "schema_name"),
    ],
)
def test_an_invalid_setting_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, str], said: str
) -> None:
    """An unknown backend lists the known ones (N25); a missing address or a bad number names its variable (N37)."""
    set_all(monkeypatch, **values)
    with pytest.raises(ConfigError, match=said):
        MemoryManager.from_config()


def test_an_unknown_variable_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt variable warns and suggests the nearest one (N37)."""
    set_all(monkeypatch, MAX_CONVERSATION_TOKEN=5)
    with pytest.warns(PalimpsestWarning, match="did you mean FIREFLY_AGENTIC_MEMORY_MAX_CONVERSATION_TOKENS"):
        MemoryManager.from_config().close()
    monkeypatch.delenv(f"{MEMORY}MAX_CONVERSATION_TOKEN")
    set_all(monkeypatch, COLOUR="red")
    with pytest.warns(PalimpsestWarning, match=r"COLOUR is not a setting of a memory$"):
        MemoryManager.from_config().close()


@pytest.mark.parametrize("file", ["missing", ".", "binary", 5, b".env"])
def test_an_unreadable_env_file_is_refused(tmp_path: Path, file: Any) -> None:
    """An `env_file` that is missing, a folder, not text or not a path raises ConfigError.

    A number is not taken for a file descriptor.
    """
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="env_file"):
        MemoryManager.from_config(env_file=tmp_path / file if isinstance(file, str) else file)


def test_an_env_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """A byte order mark at the beginning of an `env_file` is ignored."""
    (tmp_path / ".env").write_bytes(b"\xef\xbb\xbf" + f"{MEMORY}MAX_CONVERSATION_TOKENS=77\r\n".encode())
    with MemoryManager.from_config(env_file=tmp_path / ".env") as manager:
        assert manager.conversation.max_tokens == 77


def test_a_bad_line_of_an_env_file_is_named(tmp_path: Path) -> None:
    """A line of an `env_file` that sets no variable raises ConfigError with its number."""
    (tmp_path / ".env").write_text("A=1\nthis is none\n")
    with pytest.raises(ConfigError, match="line 2"):
        MemoryManager.from_config(env_file=tmp_path / ".env")


def test_stores_on_disk_are_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The file and SQLite backends store at the configured path, and another manager finds it there."""
    set_all(monkeypatch, FILE_DIR=tmp_path / "files", SQLITE_PATH=tmp_path / "deep" / "memory.sqlite3")
    for backend, kind in (("file", FileStore), ("sqlite", SQLiteStore)):
        set_all(monkeypatch, BACKEND=backend)
        with MemoryManager.from_config() as manager:
            assert isinstance(manager.store, kind)
            manager.add_turn("c", backend, "b", [])
        with MemoryManager.from_config() as manager:
            assert manager.conversation.get_turns("c")[0].user_prompt == backend


def test_an_unreachable_server_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`from_config` connects: an unreachable server raises at once, without the password in the error (N27)."""
    set_all(monkeypatch, BACKEND="postgres", POSTGRES_URL="postgresql://u:hidden@127.0.0.1:1/x")
    with pytest.raises(StoreUnavailable) as raised:
        MemoryManager.from_config()
    assert "hidden" not in str(raised.value)


@pytest.mark.wide
@pytest.mark.parametrize("kind", firefly_stores.SERVED)
def test_a_manager_from_config_uses_a_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    """`from_config` connects to a real server, from plain programs and inside an event loop (N26)."""
    name = firefly_stores.name_of(tmp_path)
    set_all(monkeypatch, BACKEND=kind, **{f"{kind.upper()}_URL": firefly_stores.address(kind)})
    if kind == "postgres":
        set_all(monkeypatch, POSTGRES_SCHEMA=name, POSTGRES_POOL_SIZE=3, POSTGRES_POOL_MIN_SIZE=1)
    if kind == "mongodb":
        set_all(monkeypatch, MONGODB_DATABASE=name, MONGODB_POOL_SIZE=3)

    with MemoryManager.from_config() as manager:
        manager.add_turn(name, "plain", "b", [])
        manager.set_fact(name, 1)

    async def main() -> None:
        async with MemoryManager.from_config() as manager:
            manager.add_turn(name, "within", "b", [])
            assert [turn.user_prompt for turn in manager.conversation.get_turns(name)] == ["plain", "within"]
            assert manager.get_fact(name) == 1
            manager.clear_conversation(name)

    asyncio.run(main())


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["postgres", "mongodb"])
def test_a_manager_works_on_an_initialised_store(tmp_path: Path, kind: str) -> None:
    """The documented life of a server's store works: initialise it, give it to a manager, close it."""

    async def main() -> None:
        store: Any = firefly_stores.SERVED[kind](tmp_path)
        await store.initialize()
        memory = MemoryManager(store=store)
        memory.add_turn("c", "a", "b", [])
        assert len(await memory.async_get_message_history("c")) == 2
        await store.close()

    asyncio.run(main())


@pytest.mark.wide
@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("postgres", {"schema_name": "firefly_a"}, {"schema_name": "firefly_b"}),
        ("redis", {"prefix": "firefly_a"}, {"prefix": "firefly_b"}),
        ("mongodb", {"collection": "a"}, {"collection": "b"}),
    ],
)
def test_two_stores_on_one_server_share_nothing(
    tmp_path: Path, kind: str, one: dict[str, str], other: dict[str, str]
) -> None:
    """Stores with different schemas, prefixes or collections have separate conversations and facts (N21)."""
    name = firefly_stores.name_of(tmp_path)
    base = {"database": name} if kind == "mongodb" else {}
    classes: dict[str, Any] = {
        "postgres": firefly.PostgreSQLStore,
        "redis": firefly.RedisStore,
        "mongodb": firefly.MongoDBStore,
    }
    left, right = (classes[kind](firefly_stores.address(kind), **base, **given) for given in (one, other))
    try:
        MemoryManager(store=left).add_turn(name, "a", "b", [])
        MemoryManager(store=left).set_fact(name, 1)
        assert MemoryManager(store=right).conversation.get_turns(name) == []
        assert MemoryManager(store=right).get_fact(name) is None
        MemoryManager(store=right).clear_all()
        assert len(MemoryManager(store=left).conversation.get_turns(name)) == 1
    finally:
        left.close_sync()
        right.close_sync()


def test_the_import_loads_no_driver_or_framework() -> None:
    """Importing every name and using a conversation loads no driver and no agent framework."""
    program = """
import sys
from palimpsest.compat.firefly import ConversationMemory, FileStore, MemoryManager, PostgreSQLStore, RedisStore
from palimpsest.compat.firefly import create_llm_summarizer
from palimpsest.compat.firefly.database_store import MongoDBStore
from palimpsest.compat.firefly.summarization import create_llm_summarizer
manager = MemoryManager()
manager.add_turn("c", "a", "b", [{"role": "user", "content": "a", "n": 1}])
assert manager.get_message_history("c")
print([name for name in ("asyncpg", "pymongo", "redis", "pydantic_ai", "pydantic") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_docstrings_name_every_argument() -> None:
    """The docstring of each class, method and function names each of its arguments."""
    missing = []
    summarizer = firefly.create_llm_summarizer
    assert parameters(summarizer) == listed(inspect.getdoc(summarizer) or "")
    for name in ("ConversationMemory", "ConversationTurn", "MemoryEntry", "MemoryManager", "WorkingMemory"):
        value = getattr(firefly, name)
        docstring = f"{inspect.getdoc(value)}\n{inspect.getdoc(value.__init__)}"
        if parameters(value) != listed(docstring):
            missing.append(f"{name}.__init__")
        for verb, function in inspect.getmembers(value, inspect.isfunction):
            if not verb.startswith("_") and parameters(function) - {"self"} != listed(inspect.getdoc(function) or ""):
                missing.append(f"{name}.{verb}")
    assert missing == []
