"""Definitions of declared sessions: stored with them, noticed when they change, applied at the next cut."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest import Keys, Memory, Session
from palimpsest.errors import ImportFailed
from palimpsest.log.codec import encode
from palimpsest.resources import AsyncResources, Resources
from palimpsest.resources.opening import session_options
from palimpsest.stores.copying import copy_store
from palimpsest.testing import FakeClock
from writer import quarters

DECLARED: dict[str, Any] = {
    "resource": "memory",
    "id": "chat",
    "version": "1.0.0",
    "max_tokens": 400,
    "low_water": 0.5,
}


def declared(path: Path, **more: Any) -> Resources:
    """Load the memory `chat` over an SQLite file, with these keys added or replaced."""
    return Resources.load({**DECLARED, "store": f"sqlite:///{path}", **more})


def chat(resources: Resources, **options: Any) -> Session:
    """Return the session of the key `ann`."""
    return resources.session({"id": "chat", "key": "ann"}, counter=quarters, **options)


def say(session: Session, numbers: range, size: int = 60) -> None:
    """Add interactions of a human message of so many characters and an answer."""
    for number in numbers:
        session.add_user_message(f"{number}: " + "q" * size)
        session.add_assistant_message(f"answer {number}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of the store."""
    return tmp_path / "chat.db"


# --- what is kept


def test_a_session_stores_its_definitions_name_version_and_digest(path: Path) -> None:
    """The first entry stores them with the session; the definition itself is stored once in the store."""
    with declared(path) as resources:
        say(chat(resources), range(2))
        resources.session({"id": "chat", "key": "bob"}, counter=quarters).add_user_message("Hello.")
        infos = resources.memory("chat").sessions()
        digest = resources["chat"].digest

    assert [info.definition and info.definition.memory for info in infos] == ["default/chat"] * 2
    assert {(info.definition.version, info.definition.digest) for info in infos if info.definition} == {
        ("1.0.0", digest[:32])
    }
    with Memory.open(path) as memory:
        (info,) = memory.definitions()
    assert (info.sessions, info.definition.digest) == (2, digest[:32])
    assert info.settings is not None


def test_a_session_stores_one_name_of_its_definition(path: Path) -> None:
    """A session stores one name of its definition, however often that changes."""
    sizes = list[int]()
    for number in range(6):
        with declared(
            path, version=f"1.0.{number}", max_tokens=200 + number, conditions=["message.tokens < 900"]
        ) as one:
            session = chat(one)
            say(session, range(20))
            session.context()
            definition = session.info().definition
            assert definition is not None
            assert definition.version == f"1.0.{number}"
            sizes.append(len(encode(definition)))

    assert max(sizes) == min(sizes) <= 128


def test_the_definition_follows_forks_exports_and_copies(path: Path, tmp_path: Path) -> None:
    """A session keeps its definition through forks, clears, rewinds, imports, copies of the store, and encryption."""
    keys = Keys({"one": bytes(range(32))})
    with declared(path) as resources:
        session = chat(resources)
        say(session, range(3))
        of = session.info().definition
        say(session, range(3, 4))
        session.rewind(session.entries()[1].seq)
        assert of is not None
        assert session.info().definition == of
        assert session.fork("branch").info().definition == of
        data = session.export()
        session.clear()
        assert session.info().definition == of
    copy_store(path, tmp_path / "copy.db")
    with Memory.open(tmp_path / "copy.db") as copied:
        assert copied.info("default/chat/ann").definition == of
        assert [one.settings is not None for one in copied.definitions()] == [True]
    with Memory.open(tmp_path / "sealed.db", encryption=keys) as sealed:
        sealed.import_session(data)
        assert sealed.info("default/chat/ann").definition == of
        assert [one.settings for one in sealed.definitions()] == [None]
    assert of.digest.encode() not in (tmp_path / "sealed.db").read_bytes()


@pytest.mark.parametrize("wrong", [7, {"memory": "x"}, {"memory": "x", "digest": 5}, {"memory": "\x00", "digest": "y"}])
def test_an_export_with_an_invalid_definition_is_refused(path: Path, wrong: Any) -> None:
    """An import checks the definition in an export like everything else."""
    with declared(path) as resources:
        session = chat(resources)
        say(session, range(2))
        data = session.export()
    data["head"]["about"]["definition"] = wrong

    with Memory.open("memory://") as memory, pytest.raises(ImportFailed, match="definition"):
        memory.import_session(data)


def test_no_secret_is_kept_or_digested(path: Path) -> None:
    """Another key or password gives the same digest, and no secret is stored."""
    provider = {"model": "gpt-4o", "api_key": "sk-one"}
    with declared(path, token_provider=provider) as resources:
        say(chat(resources), range(2))
        first = resources["chat"].digest
    second = Resources.load({**DECLARED, "store": f"sqlite:///{path}", "token_provider": {**provider, "api_key": "x"}})

    assert b"sk-one" not in b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert second["chat"].digest == first
    addresses = [f"postgres://ann:{word}@localhost/x" for word in ("one", "two")]
    assert len({Resources.load({**DECLARED, "store": one})["chat"].digest for one in addresses}) == 1


# --- what is noticed


def test_a_changed_definition_is_noticed(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each session sends an event once, each change is logged once, and figures name the definition in force."""
    with declared(path) as resources:
        for key in ("ann", "bob"):
            resources.session({"id": "chat", "key": key}, counter=quarters).add_user_message("Hello.")
    heard = list[tuple[str, dict[str, Any]]]()
    with declared(path, version="2.0.0", max_tokens=300) as resources, caplog.at_level(logging.WARNING, "palimpsest"):
        resources.memory("chat").on("config:changed", lambda id, facts: heard.append((id, facts)))
        for key in ("ann", "bob"):
            session = resources.session({"id": "chat", "key": key}, counter=quarters)
            session.context()
            session.context()
            session.add_user_message("Again.")
            in_force = session.stats().definition
            assert in_force is not None
            assert in_force.version == "1.0.0"

    assert [id for id, _ in heard] == ["default/chat/ann", "default/chat/bob"]
    facts = heard[0][1]
    assert (facts["memory"], facts["before"]["version"], facts["now"]["version"]) == ("default/chat", "1.0.0", "2.0.0")
    (record,) = [one for one in caplog.records if "definition" in one.message]
    assert "default/chat changed from version 1.0.0" in record.message


def test_an_append_alone_notices_a_changed_definition(path: Path) -> None:
    """An append notices a changed definition, even in a process that makes no context."""
    with declared(path) as resources:
        say(chat(resources), range(1))
    heard = list[str]()
    with declared(path, max_tokens=300) as resources:
        resources.memory("chat").on("config:changed", lambda id, _: heard.append(id))
        say(chat(resources), range(2))

    assert heard == ["default/chat/ann"]


# --- when it is applied


def test_a_changed_limit_applies_at_the_next_cut(path: Path) -> None:
    """A changed limit applies from the next cut on; until then prefixes stay."""
    with declared(path) as resources:
        session = chat(resources)
        say(session, range(12))
        before = session.context()
    with declared(path, max_tokens=200) as resources:
        session = chat(resources)
        same = session.context()
        assert (same.messages, same.epoch) == (before.messages, before.epoch)
        assert same.budget is not None
        assert same.budget.share == 400
        number = 12
        while (context := session.context()).epoch == before.epoch:
            assert context.messages[: len(before.messages)] == before.messages
            say(session, range(number, number + 1))
            number += 1
        assert context.report.epoch_reason == "changed definition"
        assert context.parts.log <= 200
        assert session.info().definition == chat(resources).options.definition.definition
        say(session, range(number, number + 1))
        assert session.context().budget.share == 200


def test_the_cut_under_a_larger_limit_keeps_all_that_fits(path: Path) -> None:
    """The cut that the smaller limit makes due keeps everything that fits the larger one."""
    with declared(path) as resources:
        session = chat(resources)
        say(session, range(15))
        shown = session.context().messages
    with declared(path, max_tokens=4000) as resources:
        session = chat(resources)
        for number in range(15, 40):
            say(session, range(number, number + 1))
            context = session.context()
            assert context.messages[: len(shown)] == shown
        assert context.parts.log > 400


def test_options_of_the_program_apply_at_once(path: Path) -> None:
    """Options that the program or a call gives apply at once."""
    with declared(path) as resources:
        session = chat(resources)
        say(session, range(12))
        session.context()
    with declared(path, max_tokens=300) as resources:
        assert chat(resources, max_log_tokens=100).context(dry_run=True).parts.log <= 100
        assert chat(resources).context(max_tokens=120).tokens <= 120


def test_changed_conditions_and_masks_apply_at_the_next_cut(path: Path) -> None:
    """Changed conditions and masks apply from the next cut on."""
    with declared(path) as resources:
        session = chat(resources)
        say(session, range(3))
        session.add_tool_call("look", {}, call_id="a")
        session.add_tool_result("look", "r" * 40, call_id="a")
        session.add_assistant_message("Done.")
        before = session.context().messages
    with declared(path, conditions=["message.role != 'tool'"], mask=False) as resources:
        session = chat(resources)
        assert session.context().messages == before
        say(session, range(3, 30))
        assert not [message for message in session.context().messages if message["role"] == "tool"]


def test_the_old_definition_decides_when_to_flush_and_the_new_one_how(path: Path) -> None:
    """The old definition decides when a flush happens, and the new one how."""
    flushing = {"type": "simple_fifo", "summarize_threshold": 0.8}
    with declared(path, flushing=flushing, type="token_based", persistence=None) as resources:
        session = chat(resources)
        say(session, range(8))
        assert session.stats().archived_entries == 0
    with declared(path, flushing={**flushing, "summarize_threshold": 0.3, "low_water": 0.1}) as resources:
        session = chat(resources)
        say(session, range(8, 10))
        assert session.stats().archived_entries == 0
        say(session, range(10, 20))
        stats = session.stats()
        assert stats.archived_entries > 0
        assert stats.active_tokens <= 120


def test_an_exact_walk_begins_when_a_cut_is_due(path: Path) -> None:
    """A strategy without a window stores no cut; the session still comes under its definition when a cut is due."""
    with declared(path) as resources:
        session = chat(resources)
        say(session, range(12))
        before = session.context()
    short = {"memory_strategy_id": "max_tokens", "memory_max_tokens": 100}
    with declared(path, short_term_memory_strategy=short) as resources:
        session = chat(resources)
        assert session.context().messages == before.messages
        say(session, range(12, 40))
        assert session.context().parts.log <= 100
        definition = session.info().definition
        assert definition is not None
        assert definition.digest == resources["chat"].digest[:32]


def test_an_unknown_definition_is_replaced_at_once(path: Path) -> None:
    """If a session's definition is unknown, as after an import, the new one applies at once."""
    with declared(path) as resources:
        session = chat(resources)
        say(session, range(12))
        session.context()
        data = session.export()
    other = path.with_name("other.db")
    with declared(other, max_tokens=200) as resources:
        resources.memory("chat").import_session(data)
        assert chat(resources).context().parts.log <= 200


def test_a_session_without_a_definition_gets_the_first_that_cuts_it(path: Path) -> None:
    """A session from before definitions comes under the first definition that cuts it."""
    with Memory.open(path) as memory:
        say(memory.session("default/chat/ann"), range(12))
    with declared(path, max_tokens=200) as resources:
        assert chat(resources).context().parts.log <= 200
        assert chat(resources).info().definition is not None


def test_a_dry_run_changes_no_definition(path: Path) -> None:
    """A dry run shows the new definition's context and changes nothing."""
    with declared(path) as resources:
        session = chat(resources)
        say(session, range(12))
        session.context()
    with declared(path, max_tokens=200) as resources:
        session = chat(resources)
        say(session, range(12, 30))
        before = session.info()
        assert session.context(dry_run=True).parts.log <= 200
        assert session.info() == before
        reader = chat(resources, readonly=True)
        reader.context()
        assert session.info() == before


@pytest.mark.anyio
async def test_async_memory_applies_a_changed_definition_at_the_next_cut(path: Path) -> None:
    """An asynchronous memory applies a changed definition at the next cut, too."""
    source = {**DECLARED, "store": f"sqlite:///{path}"}
    async with AsyncResources.load(source) as resources:
        session = resources.session({"id": "chat", "key": "ann"}, counter=quarters)
        for number in range(12):
            await session.add_user_message(f"{number} " + "q" * 60)
        before = (await session.context()).messages
    async with AsyncResources.load({**source, "max_tokens": 200}) as resources:
        session = resources.session({"id": "chat", "key": "ann"}, counter=quarters)
        assert (await session.context()).messages == before


# --- for any two definitions

LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "max_tokens": st.integers(60, 600),
        "max_messages": st.integers(2, 30),
        "low_water": st.sampled_from([0.2, 0.36, 0.7]),
        "mask": st.booleans(),
        "oversize": st.sampled_from(["clamp", "keep_newest"]),
        "conditions": st.sampled_from([[], ["message.tokens < 25"], ["interaction.age < 4"]]),
        "summary_share": st.sampled_from([0.1, 0.5]),
    },
)


@pytest.mark.wide
@settings(max_examples=60, deadline=None)
@given(old=LIMITS, new=LIMITS, sizes=st.lists(st.integers(1, 140), min_size=8, max_size=24), split=st.integers(1, 20))
def test_contexts_follow_the_old_definition_until_the_next_cut(
    old: dict[str, Any], new: dict[str, Any], sizes: list[int], split: int
) -> None:
    """Contexts equal those of the old definition until the next cut, and those of the new one from then on."""
    old = {"resource": "memory", "id": "chat", "max_tokens": 300, **old}
    new = {"resource": "memory", "id": "chat", "max_tokens": 300, **new}
    plain = {
        name: {**Resources.load(one)["chat"].options, "counter": quarters} for name, one in (("old", old), ("new", new))
    }
    with (
        Memory.open("memory://") as stays,
        Memory.open("memory://") as changes,
        Memory.open("memory://") as other,
    ):
        control = stays.session("s", **plain["old"])
        session, epoch, applied = changes.session("s", **as_declared(old)), 0, False
        for i, size in enumerate(sizes):
            if i == split:
                epoch = control.context().epoch or 0
                session = changes.session("s", **as_declared(new))
            for one in (control, session):
                say(one, range(i, i + 1), size)
            if i < split or not applied:
                expected = control.context()
                if i >= split and expected.epoch != epoch:
                    applied = True
                    other.import_session(session.export())
                    expected = other.session("s", **plain["new"]).context()
            else:
                expected = other_context(other, session, plain["new"])
            assert session.context().messages == expected.messages


def as_declared(source: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a session of this memory."""
    return {**session_options(Resources.load(source)["chat"]), "counter": quarters}


def other_context(other: Memory, session: Session, options: dict[str, Any]) -> Any:
    """Return the context of a session without definitions over the same log, after the same cuts."""
    other.import_session(session.export(), on_conflict="replace")
    return other.session("s", **options).context()


def test_a_stored_definition_has_every_setting_of_config_show(path: Path) -> None:
    """A stored definition has every setting that `palimpsest config show` prints."""
    with declared(path) as resources:
        say(chat(resources), range(1))
        (info,) = resources.memory("chat").definitions()
        shown = {one.option for one in resources["chat"].effective()}

    assert info.settings is not None
    assert set(info.settings) == shown
    assert (info.settings["max_log_tokens"], info.settings["version"]) == (400, "1.0.0")


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_a_session_begun_by_a_replacement_has_its_definition(path: Path, backend: str) -> None:
    """A session whose first entries come by `write` has its definition, its user, and its time."""
    clock = FakeClock()
    store = "memory://" if backend == "memory" else f"sqlite:///{path}"
    source = {"resource": "memory", "id": "chat", "max_tokens": 400, "lifetime": "10s", "store": store}
    with Resources.load(source, clock=clock) as resources:
        resources.keyed("chat").write("ann", "Hello.")
        owned = resources.session({"id": "chat", "key": "bob"}, user="bob")
        owned.replace([{"role": "user", "content": "Hello."}])
        memory = resources.memory("chat")
        ann, bob = memory.sessions()
        assert ann.definition is not None
        assert (bob.user, bob.definition) == ("bob", ann.definition)
        assert [info.session for info in memory.sessions(user="bob")] == ["default/chat/bob"]
        clock.advance(11)
        assert memory.sessions() == []
