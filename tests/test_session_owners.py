"""A session's user, title and metadata: stored, changed, listed, and searched by."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drivers import driven
from exports_chatgpt import simple
from laws import examples
from palimpsest import AsyncMemory, Entry, Keys, Memory, Query
from palimpsest.errors import ConfigError, Conflict, EntryNotFound, SessionNotFound, WrongUser
from palimpsest.stores import STORES
from palimpsest.stores.encrypted.rotation import rotate_keys
from palimpsest.strategies import KnowledgeBase, Summarize, Triggers
from palimpsest.testing import FakeClock
from suspending import awaited

KEYS = Keys({"one": bytes(range(32))}, current="one")
KINDS = ("memory", "sqlite", "file", "memory sealed", "sqlite sealed", "file sealed", "driver")


def opened(kind: str, folder: Path, clock: FakeClock, **options: Any) -> Any:
    """Open a store of this kind."""
    if kind == "driver":
        return awaited("suspending://", clock=clock, **options)
    name, _, sealed = kind.partition(" ")
    addresses = {"memory": "memory://", "sqlite": f"sqlite:///{folder}/log.db", "file": f"file://{folder}/logs"}
    return Memory.open(addresses[name], clock=clock, encryption=KEYS if sealed else None, **options)


@pytest.fixture(params=KINDS)
def memory(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Memory]:
    """An empty store of each kind."""
    with opened(request.param, tmp_path, clock) as memory:
        yield memory


def said(memory: Memory, id: str, **options: Any) -> None:
    """Add a message to a session."""
    memory.session(id, **options).add_user_message("hello")


def ids(page: Any) -> list[str]:
    """Return the ids of listed sessions."""
    return [one.session for one in page]


# --- what is said of one


def test_user_title_and_metadata_are_stored_with_the_first_entry(memory: Memory) -> None:
    """User, title and metadata come with the step that makes the session; before that there is none."""
    chat = memory.session("s", user="ann", title="Trip to Rome", metadata={"channel": "web", "tags": [1, None]})
    with pytest.raises(SessionNotFound):
        chat.info()

    chat.add_user_message("hello")

    info = chat.info()
    assert (info.user, info.title, info.metadata) == ("ann", "Trip to Rome", {"channel": "web", "tags": [1, None]})
    assert info == memory.info("s") == memory.sessions()[0]
    assert info.entries == 1


def test_exports_and_listings_report_the_number_of_interactions(memory: Memory) -> None:
    """Exports, listings and branches report the number of human messages ever added, erased ones included."""
    chat = memory.session("s")
    for i in range(3):
        chat.add_user_message(f"question {i}")
        chat.add_assistant_message("answer")
    chat.erase(1)

    memory.import_session(chat.export(), session_id="copy")
    chat.fork("branch")

    assert [one.interactions for one in memory.sessions()] == [3, 3, 3]
    assert chat.info().interactions == 3


def test_odd_text_in_metadata_comes_back_equal(memory: Memory) -> None:
    """Lone surrogates, numbers and nesting come back equal from the store, a listing, and an imported export."""
    odd = {"lone": "\ud800", "big": 2**63, "share": 0.1, "deep": [[[{"": None}]]], "é": "\u0000"}
    chat = memory.session("s", metadata=odd)
    chat.add_user_message("hello")
    memory.import_session(chat.export(), session_id="copy")

    assert [one.metadata for one in memory.sessions()] == [odd, odd]


def test_a_later_opening_changes_no_title_or_metadata(memory: Memory) -> None:
    """Title and metadata of a later opening change nothing."""
    said(memory, "s", title="Rome", metadata={"a": 1})

    said(memory, "s", title="Paris", metadata={"b": 2})

    assert (memory.info("s").title, memory.info("s").metadata) == ("Rome", {"a": 1})


def test_another_user_neither_reads_nor_writes(memory: Memory) -> None:
    """Every verb of a session that was opened as another user's names both users and does nothing."""
    said(memory, "s", user="ann")
    said(memory, "nobody's")

    for id, owner in (("s", "ann"), ("nobody's", None)):
        other = memory.session(id, user="bob", max_tokens=1000)
        for verb in (
            lambda: other.add_user_message("mine now"),  # noqa: B023
            lambda: other.add([{"role": "user", "content": "x"}], key="k"),  # noqa: B023
            other.entries,
            other.context,
            other.info,
            other.export,
            other.clear,
            lambda: other.describe(user="bob"),  # noqa: B023
            lambda: other.erase([1]),  # noqa: B023
        ):
            with pytest.raises(WrongUser) as caught:
                verb()
            assert (caught.value.session, caught.value.user, caught.value.owner) == (id, "bob", owner)
        assert memory.info(id).entries == 1
        assert memory.info(id).user == owner


GIVEN: dict[str, tuple[Any, ...]] = {
    "add": ({"role": "user", "content": "x"},),
    "add_assistant_message": ("x",),
    "add_context": ("x",),
    "add_entries": ([Entry(role="user", content="x")],),
    "add_system_message": ("x",),
    "add_tool_call": ("lookup", {}),
    "add_tool_result": ("lookup", "x"),
    "add_user_message": ("x",),
    "delete": ("k",),
    "entry": (1,),
    "erase": ([1],),
    "export_to": (io.BytesIO(),),
    "fact": ("k",),
    "get": ("k",),
    "has": ("k",),
    "hide": (1,),
    "passages": ([1],),
    "pin": (1,),
    "recall": ("hello",),
    "replace": ([{"role": "user", "content": "x"}],),
    "resolve": ("x",),
    "rewind": (0,),
    "search": ("hello",),
    "set": ("k", "another's"),
    "set_many": ({"k": "another's"},),
    "show": (1,),
    "unpin": (1,),
}
"""What a verb is given that takes something, in a session, its working memory, or a knowledge base."""

NAMED: dict[str, dict[str, Any]] = {
    "add_context": {"name": "f"},
    "record_usage": {"input_tokens": 1},
    "context": {"max_tokens": 1000},
}
SILENT = frozenset(
    {"id", "options", "redact", "in_turn", "in_atomic_turn", "cost", "scope_id", "is_readonly", "readonly"}
)
"""What tells of the object itself, or of what it is given, and nothing of what is stored. A `readonly` one is below."""

BESIDE = {"working", "knowledge"}
"""What gives something else of the session, which is gone through as well."""


def asked(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield every public verb of a session and of the objects it returns, by name, as a call."""
    for name in sorted({name for name in dir(thing) if not name.startswith("_")} - SILENT):
        found = getattr(thing, name)
        if name in BESIDE:
            yield from asked(found() if callable(found) else found)
        elif name in ("turn", "stream"):
            yield name, found().__enter__
        else:
            given = ("other", "text") if "document_id" in signature(found).parameters else GIVEN.get(name, ())
            yield name, partial(found, *given[: len(signature(found).parameters)], **NAMED.get(name, {}))


def refused(verb: Callable[[], Any]) -> bool:
    """Whether the call raises WrongUser."""
    try:
        verb()
    except WrongUser:
        return True
    return False


def test_every_verb_of_a_session_refuses_another_user(memory: Memory) -> None:
    """Every verb of a session, with blocks, facts and knowledge, refuses another user and changes nothing."""
    strategy = Summarize(
        knowledge_base=KnowledgeBase(collection_id="notes"), triggers=Triggers(interaction_threshold_qty=50)
    )
    ann = memory.session("s", user="ann")
    ann.add_user_message("hello")
    ann.working.set("k", "Ann's own")
    memory.knowledge("notes", user="ann").add("handbook", "hello, said Ann")
    bob = memory.session("s", user="bob", long_term=strategy, max_tokens=1000)

    verbs = list(asked(bob))
    let_in = [name for name, verb in verbs if not refused(verb)]

    assert let_in == []
    assert len(verbs) > 60
    assert ann.working.to_dict() == {"k": "Ann's own"}
    assert (memory.info("s").entries, memory.info("s").revision) == (1, 1)
    with ann.turn(wait=0):
        pass


def test_facts_are_refused_once_the_session_has_another_user(memory: Memory) -> None:
    """A working memory checks the session's user at each verb."""
    ann = memory.session("s", user="ann")
    ann.add_user_message("hello")
    facts = ann.working
    facts.set("k", 1)

    memory.session("s").describe(user="bob")

    with pytest.raises(WrongUser):
        facts.get("k")
    with pytest.raises(WrongUser):
        facts.readonly().keys()


@pytest.mark.parametrize("kind", ["sqlite", "file"])
@pytest.mark.parametrize("how", ["handed over", "deleted and begun anew"])
def test_an_owner_set_by_another_process_is_let_in(tmp_path: Path, kind: str, how: str, clock: FakeClock) -> None:
    """A new owner is let in even by a process that has seen the session under another user."""
    first: tuple[Callable[[Any], Any], ...] = (
        lambda chat: chat.entries(),
        lambda chat: chat.add_user_message("more"),
        lambda chat: chat.recall("hello"),
        lambda chat: chat.clear(),
    )
    with opened(kind, tmp_path, clock) as memory, opened(kind, tmp_path, clock) as other:
        for number, verb in enumerate(first):
            for owner in (None, "ann"):
                id = f"s{number} {owner}"
                said(memory, id, user=owner)
                if how == "handed over":
                    other.session(id).describe(user="bob")
                else:
                    other.delete_session(id)
                    said(other, id, user="bob")

                verb(memory.session(id, user="bob"))

                with pytest.raises(WrongUser):
                    memory.session(id, user="ann").entries()


def test_a_session_given_away_refuses_its_former_user(memory: Memory) -> None:
    """A session that was given away, or deleted and made again by another, refuses its former user."""
    ann = memory.session("s", user="ann")
    ann.add_user_message("hello")

    memory.session("s").describe(user="bob")
    with pytest.raises(WrongUser):
        ann.entries()
    with pytest.raises(WrongUser):
        ann.add_user_message("more")
    memory.delete_session("s")

    ann.add_user_message("anew")
    assert memory.info("s").user == "ann"


def test_describe_changes_only_the_given_fields(memory: Memory) -> None:
    """`describe` changes the given fields, removes those given as None, and creates a missing session."""
    chat = memory.session("s", user="ann", title="Rome")
    made = chat.describe(metadata={"a": 1})
    assert (made.user, made.title, made.metadata, made.entries) == ("ann", "Rome", {"a": 1}, 0)

    chat.add_user_message("hello")
    chat.describe(title="Paris")
    assert (memory.info("s").user, memory.info("s").title, memory.info("s").metadata) == ("ann", "Paris", {"a": 1})
    chat.describe(title=None, metadata=None)
    assert (memory.info("s").user, memory.info("s").title, memory.info("s").metadata) == ("ann", None, {})

    chat.describe(user="bob")
    chat.add_user_message("handed over")
    assert ids(memory.sessions(user="bob")) == ["s"]
    assert memory.sessions(user="ann") == []
    chat.describe(user=None)
    assert memory.sessions(user="bob") == []


@pytest.mark.parametrize(
    "options",
    [
        {"user": ""},
        {"user": "a\x00"},
        {"user": 7},
        {"title": ""},
        {"title": "x" * 1001},
        {"title": "\ud800"},
        {"metadata": [1]},
        {"metadata": {"x": object()}},
        {"metadata": {"\ud800": 1}},
        {"metadata": {"x": "y" * 20_000}},
    ],
)
def test_an_invalid_user_title_or_metadata_is_refused(options: dict[str, Any]) -> None:
    """An invalid user, title or metadata is refused by name, when opening and when describing."""
    (name,) = options
    with Memory.open("memory://") as memory:
        with pytest.raises(ConfigError, match=name):
            memory.session("s", **options)
        with pytest.raises(ConfigError, match=name):
            memory.session("s").describe(**options)
        assert memory.sessions() == []


def test_the_description_survives_changes_of_the_log(memory: Memory) -> None:
    """Clears, rewinds and compactions keep the description; branches, exports and imports carry it."""
    chat = memory.session("s", user="ann", title="Rome", metadata={"a": 1})
    first = chat.add_user_message("one")
    chat.add_user_message("two")
    chat.fork("b")
    chat.rewind(first.id)
    exported = chat.export()
    memory.import_session(exported, session_id="i")
    memory.import_session(exported, session_id="b", on_conflict="replace")
    chat.clear()

    for id in ("s", "b", "i"):
        info = memory.info(id)
        assert (info.user, info.title, info.metadata) == ("ann", "Rome", {"a": 1})
    assert ids(memory.sessions(user="ann")) == ["b", "i", "s"]


def test_the_description_is_read_after_reopening(tmp_path: Path, clock: FakeClock) -> None:
    """The description is read from plain and encrypted files, and is not readable in an encrypted one."""
    for kind in ("sqlite", "file", "sqlite sealed", "file sealed"):
        folder = tmp_path / kind.replace(" ", "-")
        folder.mkdir()
        with opened(kind, folder, clock) as memory:
            said(memory, "s", user="ann-of-arc", title="Trip to Rouen", metadata={"secret": "siege"})
            memory.session("s").fork("branch")
        with opened(kind, folder, clock) as memory:
            assert [(one.session, one.user) for one in memory.sessions(user="ann-of-arc")] == [
                ("branch", "ann-of-arc"),
                ("s", "ann-of-arc"),
            ]
        if kind.endswith("sealed"):
            for file in folder.rglob("*"):
                stored = file.read_bytes() if file.is_file() else b""
                assert not any(word in stored for word in (b"ann-of-arc", b"Rouen", b"siege"))


def test_deleting_a_session_removes_it_from_its_users_listing(memory: Memory) -> None:
    """Deleting a session removes it from its user's listing; a branch stays, and a successor has its own user."""
    said(memory, "s", user="ann")
    memory.session("s").fork("b")
    exported = memory.session("s").export()
    memory.delete_session("s")
    assert ids(memory.sessions(user="ann")) == ["b"]

    said(memory, "s", user="bob")
    assert ids(memory.sessions(user="bob")) == ["s"]
    memory.import_session(exported, session_id="s", on_conflict="replace")

    assert ids(memory.sessions(user="ann")) == ["b", "s"]
    assert memory.sessions(user="bob") == []
    assert memory.delete_session("b")
    assert memory.delete_session("s")
    assert memory.sessions(user="ann") == []


# --- listing


def many(memory: Memory, clock: FakeClock) -> dict[str, tuple[str, str, int]]:
    """Make sessions of three users; return user, title and time of last use by id."""
    made: dict[str, tuple[str, str, int]] = {}
    for number in range(23):
        clock.advance(60)
        id, user, title = f"{'ab'[number % 2]}-{number * 7 % 23:02}", ("ann", "bob", "cy")[number % 3], f"Trip {number}"
        said(memory, id, user=user, title=title)
        made[id] = (user, title, clock())
    for id in ("a-00", "a-14"):
        clock.advance(60)
        said(memory, id)
        made[id] = (*made[id][:2], clock())
    return made


@pytest.mark.sampled
def test_pages_give_each_session_once(memory: Memory, clock: FakeClock) -> None:
    """In both orders, with every filter and page size, pages together equal a single listing."""
    made = many(memory, clock)
    latest = sorted(made, key=lambda id: -made[id][2])
    when = datetime.fromtimestamp(made[latest[9]][2] / 1_000_000, UTC)
    filters: list[tuple[dict[str, Any], Any]] = [
        ({}, lambda id: True),
        ({"user": "bob"}, lambda id: made[id][0] == "bob"),
        ({"user": "nobody"}, lambda id: False),
        ({"title": "TRIP 1"}, lambda id: "Trip 1" in made[id][1]),
        ({"prefix": "a-"}, lambda id: id.startswith("a-")),
        ({"prefix": "a-0", "user": "ann"}, lambda id: id.startswith("a-0") and made[id][0] == "ann"),
        ({"since": when}, lambda id: id in latest[:10]),
        ({"before": when}, lambda id: id in latest[10:]),
    ]
    for options, fits in filters:
        for order, wanted in (("id", sorted(made)), ("latest", latest)):
            expected = [id for id in wanted if fits(id)]
            assert ids(memory.sessions(order=order, **options)) == expected
            for limit in (1, 4, len(expected) or 1, 100):
                found, page = [], memory.sessions(order=order, limit=limit, **options)
                found += page
                while page.next is not None:
                    assert len(page) == limit
                    page = memory.sessions(order=order, limit=limit, after=page.next, **options)
                    found += page
                assert ids(found) == expected


def test_invalid_page_arguments_are_refused_by_name(memory: Memory) -> None:
    """An invalid order, a cursor of another order, and a time without a zone are refused by name."""
    refused: list[tuple[str, dict[str, Any]]] = [
        ("order", {"order": "newest"}),
        ("after", {"order": "latest", "after": "a-01"}),
        ("after", {"after": 3}),
        ("since", {"since": datetime(2026, 1, 1)}),  # noqa: DTZ001
        ("limit", {"limit": -1}),
        ("user", {"user": ""}),
        ("prefix", {"prefix": None}),
        ("title", {"title": 5}),
    ]
    for name, options in refused:
        with pytest.raises(ConfigError, match=name):
            memory.sessions(**options)


def test_tenants_do_not_see_each_other_s_users(tmp_path: Path, clock: FakeClock) -> None:
    """The same user and session id in two tenants are separate."""
    for kind in ("sqlite", "sqlite sealed"):
        folder = tmp_path / kind.replace(" ", "-")
        folder.mkdir()
        for tenant in ("one", "two"):
            with opened(kind, folder, clock, tenant=tenant) as memory:
                said(memory, f"of {tenant}", user="ann")
        with opened(kind, folder, clock, tenant="two") as memory:
            assert ids(memory.sessions(user="ann")) == ["of two"]


def test_async_memory_lists_like_memory(clock: FakeClock) -> None:
    """The asynchronous memory describes and lists as the synchronous one does."""

    async def main() -> None:
        async with AsyncMemory.open("memory://", clock=clock) as memory:
            chat = memory.session("s", user="ann", title="Rome")
            await chat.add_user_message("hello")
            await chat.describe(title="Paris")
            with pytest.raises(WrongUser):
                await memory.session("s", user="bob").entries()
            page = await memory.sessions(user="ann", since=datetime.now(UTC) - timedelta(days=36500), limit=1)
            assert [(one.title, page.next) for one in page] == [("Paris", None)]

    asyncio.run(main())


# --- what is private


def test_a_policy_redacts_titles_and_metadata(clock: FakeClock) -> None:
    """A privacy policy redacts title and metadata and refuses a private user id."""
    with ExitStack() as stack:
        memory = stack.enter_context(Memory.open("memory://", clock=clock, privacy="default"))
        said(memory, "s", title="Mail to ann@example.com", metadata={"mail": ["ann@example.com"]})
        memory.session("t").describe(title="ann@example.com")

        with pytest.raises(ConfigError, match="user"):
            memory.session("u", user="ann@example.com")

        told = str([memory.info("s"), memory.info("t"), memory.session("s").export()])
        assert "ann@example.com" not in told
        assert memory.info("s").title.startswith("Mail to ")


def test_a_scan_redacts_titles_and_metadata_from_before_the_policy(memory: Memory, clock: FakeClock) -> None:
    """A scan finds and redacts private text in titles and metadata."""
    memory.session("s", user="ann", title="Mail to ann@example.com", metadata={"m": ["ann@example.com"]}).describe()
    said(memory, "s")
    memory.session("s").describe(title="Mail to ann@example.com", metadata={"m": ["ann@example.com"]})

    assert {found.place for found in memory.scan("default").samples} >= {"title", "metadata"}
    memory.scan("default", apply=True)

    assert "ann@example.com" not in str([memory.info("s"), memory.session("s").export()])
    assert memory.info("s").user == "ann"
    assert not memory.scan("default").samples


def test_forgetting_a_text_removes_titles_that_contain_it(memory: Memory) -> None:
    """Forgetting a text removes titles and metadata that contain it, in branches, too, and keeps others."""
    chat = memory.session("s", user="ann", title="About Zanzibar", metadata={"a": 1})
    chat.add_user_message("I go to Zanzibar")
    chat.fork("b").describe(title="Rome", metadata={"to": ["Zanzibar"]})
    said(memory, "other", title="Zanzibar, too")

    memory.forget(matches="Zanzibar")

    assert [(one.session, one.title, one.metadata) for one in memory.sessions()] == [
        ("b", "Rome", {}),
        ("other", None, {}),
        ("s", None, {"a": 1}),
    ]
    assert memory.info("s").user == "ann"


# --- forgetting a user


def test_forgetting_a_user_takes_their_sessions(memory: Memory) -> None:
    """Forgetting a user deletes their sessions whole, with what others' branches share; a dry run counts the same."""
    said(memory, "s1", user="ann")
    memory.session("s1").add_assistant_message("hello, you")
    memory.session("s1").fork("of-bob").describe(user="bob")
    said(memory, "of-bob")
    said(memory, "s2", user="ann")
    said(memory, "nobody's")
    memory.session("nobody's").add_user_message("by name", name="ann")
    said(memory, "bob's", user="bob")
    seen: list[tuple[int, int]] = []

    would = memory.forget(user="ann", dry_run=True)
    done = memory.forget(user="ann", progress=lambda *told: seen.append(told))

    assert done.sessions == would.sessions == ("s1", "s2")
    assert done.entries == would.entries == 4
    assert done.branches == ("of-bob",)
    assert not done.unknown
    assert seen[-1][0] == seen[-1][1]
    assert [(one.session, one.entries) for one in memory.sessions()] == [("bob's", 1), ("nobody's", 1), ("of-bob", 1)]
    assert memory.sessions(user="ann") == []
    again = memory.forget(user="ann")
    assert not again
    assert "'ann'" in again.unknown


def test_a_users_sessions_are_found_after_a_key_rotation(tmp_path: Path, clock: FakeClock) -> None:
    """After a key rotation a user's sessions are found with the new key alone."""
    both = Keys({"one": bytes(range(32)), "two": bytes(range(1, 33))}, current="two")
    with opened("sqlite sealed", tmp_path, clock) as memory:
        for number in range(5):
            said(memory, f"s{number}", user="ann" if number % 2 else "bob")
    where = f"sqlite:///{tmp_path}/log.db"
    with Memory.open(where, clock=clock, encryption=both) as memory:
        rotate_keys(memory)
    with Memory.open(where, clock=clock, encryption=Keys({"two": bytes(range(1, 33))}, current="two")) as memory:
        assert ids(memory.sessions(user="ann")) == ["s1", "s3"]
        memory.session("s1").describe(user="bob")
        memory.delete_session("s0")
        assert ids(memory.sessions(user="bob")) == ["s1", "s2", "s4"]


# --- whatever happens between a look and what is written by it

USERS = st.sampled_from([None, "ann", "bob"])
DEEDS = st.tuples(st.sampled_from([*["give"] * 6, "title", "add", "add", "pin", "clear", "delete", "fork"]), USERS)


def does(memory: Memory, deed: str, user: str | None) -> None:
    """Do something with a session that states its user, or may."""
    chat = memory.session("s")
    try:
        if deed == "give":
            chat.describe(user=user)
        elif deed == "title":
            chat.describe(title=f"of {user}")
        elif deed == "add":
            memory.session("s", user=user).add_user_message("hello")
        elif deed == "pin":
            chat.pin(1)
        elif deed == "clear":
            chat.clear()
        elif deed == "fork":
            chat.fork(f"branch of {user}")
        else:
            memory.delete_session("s")
    except (SessionNotFound, EntryNotFound, WrongUser, ConfigError, Conflict):
        pass


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["sqlite", "file", "sqlite sealed", "file sealed"])
@settings(deadline=None, max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(deeds=st.lists(st.tuples(DEEDS, st.none() | DEEDS), min_size=1, max_size=8))
def test_a_users_listing_agrees_with_the_session_heads(kind: str, deeds: list[Any]) -> None:
    """A user's listing agrees with the sessions' heads, even if two writers change, make or delete them at once."""
    clock = FakeClock()
    with (
        TemporaryDirectory() as folder,
        opened(kind, Path(folder), clock) as memory,
        opened(kind, Path(folder), clock) as other,
    ):
        backend = getattr(memory.store.backend, "below", memory.store.backend)
        write, meanwhile = backend.write, list[Any]()

        async def overtaken(*arguments: Any, **options: Any) -> Any:
            if meanwhile:
                does(other, *meanwhile.pop())
            return await write(*arguments, **options)

        backend.write = overtaken
        does(memory, "add", "ann")
        for own, theirs in deeds:
            meanwhile[:] = [theirs] if theirs is not None else []
            does(memory, *own)
            _owners_agree(memory)


def _owners_agree(memory: Memory) -> None:
    """Check that each user's listing has exactly the sessions whose heads name that user."""
    of = {one.session: one.user for one in memory.sessions()}
    for user in ("ann", "bob"):
        assert set(ids(memory.sessions(user=user))) == {id for id, whose in of.items() if whose == user}


# --- titles of conversations that are imported


def test_imports_set_titles_without_overwriting_changes(memory: Memory, tmp_path: Path) -> None:
    """Imports of other programs bring valid titles and do not overwrite a title changed here."""
    long = "Bread " * 400
    talks = {"talk-1": "Baking bread", "talk-2": None, "talk-3": long, "talk-4": "\ud800 half"}
    export = []
    for id, title in talks.items():
        talk = simple(id)
        talk.title = title
        export.append(talk.done())
    (tmp_path / "conversations.json").write_text(json.dumps(export))
    plain = {"session_id": "own", "title": "Ours", "messages": [{"role": "user", "content": "x"}]}
    (tmp_path / "own.json").write_text(json.dumps(plain))

    memory.import_file(tmp_path / "conversations.json")
    memory.import_file(tmp_path / "own.json")

    titles = {one.session: one.title for one in memory.sessions()}
    assert titles == {
        "talk-1": "Baking bread",
        "talk-2": None,
        "talk-3": long[:1000],
        "talk-4": "? half",
        "own": "Ours",
    }
    memory.session("talk-1").describe(title="Sourdough")
    memory.import_file(tmp_path / "conversations.json")
    assert memory.info("talk-1").title == "Sourdough"


# --- what it costs


def test_listing_one_user_takes_a_constant_number_of_calls(clock: FakeClock) -> None:
    """Listing a user's sessions takes two calls, an append by a user one, however many sessions there are."""

    async def main() -> None:
        backend = driven()
        STORES.register("counted", lambda _, __: backend)
        async with AsyncMemory.open("counted://", clock=clock) as memory:
            for number in range(300):
                await memory.session(f"s{number:03}", user=f"user {number % 100}").add_user_message("x")
            backend.calls.clear()

            page = await memory.sessions(user="user 7", order="latest")

            assert sorted(one.session for one in page) == ["s007", "s107", "s207"]
            assert backend.calls == ["places", "look"]
            backend.calls.clear()
            await memory.session("s007", user="user 7").add_user_message("more")
            assert backend.calls == ["write"]

    asyncio.run(main())


def test_conditions_see_the_metadata_of_the_session(memory: Memory) -> None:
    """`session.metadata` in a condition is the described metadata: for cuts, queries and triggers."""
    roles = {}
    for kind in ("test", "other"):
        rule = "message.role == 'user' or session.metadata.kind != 'test'"
        chat = memory.session(f"cut-{kind}", max_tokens=200, low_water=0.8, metadata={"kind": kind}, conditions=[rule])
        context = chat.context()
        while not context.report.left_out:  # conditions of the session are asked at a cut
            chat.add_user_message("A question about something")
            chat.add_assistant_message("An answer to it, in some words")
            context = chat.context()
        roles[kind] = {message["role"] for message in context.messages}
    assert roles == {"test": {"user"}, "other": {"user", "assistant"}}

    triggers = Triggers(interaction_threshold_qty=3, interaction_conditions=["session.metadata.kind == 'test'"])
    kept = Summarize(interaction_keep=1, triggers=triggers)
    counted, not_counted = (memory.session(id, metadata={"kind": id}, long_term=kept) for id in ("test", "other"))
    for one in (counted, not_counted):
        for number in range(4):
            one.add_user_message(f"Question {number} " + "about something " * 20)
            one.add_assistant_message(f"Answer {number} " + "in some detail " * 20)
    assert (counted.verify().covered > 0, not_counted.verify().covered) == (True, 0)

    assert counted.erase(Query(where="session.metadata.kind == 'other'")).entries == 0
    assert counted.erase(Query(where="session.metadata.kind == 'test'")).entries == 8


def test_forgetting_an_unknown_session_is_reported(memory: Memory) -> None:
    """Forgetting an unknown session reports that; forgetting one twice is allowed."""
    memory.session("trip").add_user_message("hello")

    assert memory.forget(session="tripp").unknown == "there is no session 'tripp'"
    done = memory.forget(session="trip")
    assert (done.sessions, done.unknown) == (("trip",), "")
    assert memory.forget(session="trip").unknown == "there is no session 'trip'"
