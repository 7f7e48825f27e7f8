"""Replacing what is active: the list given is what contexts show, and nothing of what was there is lost."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import strategies
from palimpsest import AsyncMemory, ConfigError, Conflict, InvalidEntry, Memory, Session
from palimpsest.log.change import Change
from palimpsest.log.entry import Entry, moment
from palimpsest.log.head import Head, SessionKey
from palimpsest.testing import FakeClock
from rival_writer import RivalWriter, adding
from talks import Listener, words
from worlds import STORES, open_world

law = settings(deadline=None, max_examples=4, suppress_health_check=[HealthCheck.too_slow])
kinds = pytest.mark.parametrize("kind", STORES)
options = {"log": strategies.logs(most=8), "more": strategies.logs(most=5), "data": st.data()}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call(id: str, name: str = "find") -> dict[str, Any]:
    function = {"name": name, "arguments": "{}"}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": id, "type": "function", "function": function}]}


def result(id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": text}


def texts(entries: Any) -> list[str]:
    return [entry.text for entry in entries]


def shown(session: Session) -> list[Any]:
    return session.context(dry_run=True).messages


@st.composite
def answers(draw: st.DrawFn, now: list[Any]) -> list[Any]:
    """A list that an agent may come back with: of what it was given some is left out, some is new, some is moved."""
    found: list[Any] = []
    for message in now:
        match draw(st.sampled_from("kkkkkklen")):
            case "k":
                found.append(message)
            case "e":
                found.append(user(f"instead {len(found)}"))
            case "n":
                found += [message, assistant(f"new {len(found)}")]
    if draw(st.integers(0, 5)) == 0:
        found = found[::-1]
    return found + [
        one for batch in draw(st.lists(strategies.provider_batches(), max_size=2)) for one in batch.messages
    ]


def goes_on(kind: str, folder: Path, log: list[Any], more: list[Any], data: st.DataObject) -> None:
    more = strategies.numbered(more, start=1000)
    with open_world(kind, folder) as world, open_world(kind, folder) as fresh:
        world.play(log)
        for _ in range(data.draw(st.integers(1, 2))):
            before = world.session.entries()
            given = data.draw(answers(shown(world.session)))
            stored = world.session.replace(given)
            assert world.session.entries()[: len(before)] == before
        strategies.taken_in(fresh.session, given)

        assert [entry.content for entry in stored] == [entry.content for entry in fresh.session.entries()]
        for _ in range(2):
            assert unplaced(world.session) == unplaced(fresh.session)
            mine, theirs = world.session.stats(), fresh.session.stats()
            assert len(mine.open_calls) == len(theirs.open_calls)
            assert mine.active_tokens == theirs.active_tokens
            assert world.session.verify().problems == ()
            world.memory.import_session(world.session.export(), session_id="copy", on_conflict="replace")
            copy = world.memory.session("copy", **world.options)
            assert uncounted(copy.entries()) == uncounted(world.session.entries())
            assert shown(copy) == shown(world.session)
            assert copy.stats().open_calls == mine.open_calls
            world.play(more)
            fresh.play(more)


@pytest.mark.parametrize("between", [[], [{"role": "user", "content": "wait"}]])
def test_an_overtaken_call_without_its_late_result_is_open_again(between: list[Any]) -> None:
    """A call that was overtaken and then answered waits in a list without its result, and takes the next one."""
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    asked = [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "user", "content": "and now?"}]
    result = {"role": "tool", "tool_call_id": "c1", "content": "found"}
    with Memory.open("memory://") as memory:
        session = memory.session("one")
        for message in (*asked, *between, result):
            session.add(message)

        session.replace(asked)

        assert session.stats().open_calls == ("c1",)
        session.add(result)
        assert session.stats().open_calls == ()
        assert session.verify().problems == ()


@pytest.mark.sampled
@kinds
@law
@given(**options)
def test_a_replaced_session_continues_like_a_new_one(kind: str, folder: Path, **drawn: Any) -> None:
    """After a replacement contexts and what follows are as in a new session to which the list was added."""
    goes_on(kind, folder, **drawn)


@pytest.mark.slow
@settings(law, max_examples=200)
@given(**options)
def test_any_replaced_session_continues_like_a_new_one(folder: Path, **drawn: Any) -> None:
    """The same holds for many more sessions."""
    goes_on("memory", folder, **drawn)


def unplaced(session: Session) -> str:
    """The session's context without its numbers, and with ids in the order that they come in: places, and ids that
    calls are given or that were made to fit beside others, are others in another log."""
    ids: dict[str, int] = {}

    def plain(found: re.Match[str]) -> str:
        return f'"{found[1]}": {ids.setdefault(found[2], len(ids))}' if found[1] else "#"

    return re.sub(r'"(id|tool_call_id)": "([^"]*)"|call_[0-9a-f]{24}|\d+', plain, json.dumps(shown(session)))


def uncounted(entries: list[Entry]) -> list[Entry]:
    return [replace(entry, tokens=None) for entry in entries]


@pytest.mark.sampled
@kinds
@law
@given(log=options["log"], data=options["data"])
def test_every_revision_around_a_replacement_can_be_rebuilt_and_rewound_to(
    kind: str, folder: Path, log: list[Any], data: st.DataObject
) -> None:
    """Contexts and branches of every revision are what they were, and a rewind brings each of them back."""
    with open_world(kind, folder) as world:
        was: dict[int, tuple[list[Any], tuple[str, ...], int]] = {}
        for operation in log:
            if data.draw(st.integers(0, 2)) == 0:
                world.session.replace(data.draw(answers(shown(world.session))))
            else:
                world.play([operation])
            stats = world.session.stats()
            if stats.revision:
                messages = world.session.context().messages
                was[world.session.stats().revision] = messages, stats.open_calls, stats.pinned

        for revision, (messages, open_calls, pinned) in was.items():
            assert world.session.context(at=revision).messages == messages
            branch = world.session.fork(f"at {revision}", at=revision)
            assert (branch.stats().open_calls, branch.stats().pinned) == (open_calls, pinned)
            assert shown(branch) == messages
            assert branch.verify().problems == ()
        for revision, (messages, open_calls, pinned) in was.items():
            world.session.rewind(revision)
            assert (world.session.stats().open_calls, world.session.stats().pinned) == (open_calls, pinned)
            assert shown(world.session) == messages
            assert world.session.verify().problems == ()


# --- by example


def test_a37_the_list_becomes_the_active_set(memory: Memory) -> None:
    """A37: the list is active, what it leaves out is archived, entries that are there keep their ids."""
    session = memory.session("one")
    first, second, third = session.add([user("one"), assistant("two"), user("three")])

    done = session.replace([user("one"), user("three"), assistant("four")])

    assert [entry.id for entry in done[:2]] == [first.id, third.id]
    assert session.context().messages == [user("one"), user("three"), assistant("four")]
    assert texts(session.active_entries()) == ["one", "three", "four"]
    assert session.entry(second.id).text == "two"
    assert texts(session.entries()) == ["one", "two", "three", "four"]
    proof = session.verify()
    assert (proof.active, proof.evicted, proof.problems) == (3, 1, ())


def test_calls_with_a_repeated_long_id_are_numbered_as_in_a_new_session(memory: Memory) -> None:
    """An id that repeats is numbered by its place, and made to fit: other calls are the same, each with its result."""
    session, fresh = memory.session("one"), memory.session("fresh")
    session.add([user("left out"), assistant("too")])
    long = "toolu_" + "a" * 50
    calls = {"role": "assistant", "content": None, "tool_calls": [call(long)["tool_calls"][0] for _ in range(2)]}

    session.replace([user("find")])
    fresh.add([user("find")])
    for one in (session, fresh):
        one.add([calls, result(long, "first"), result(long, "second")])

    asked, *told = shown(session)[1:]
    ids = [one["id"] for one in asked["tool_calls"]]
    assert len(set(ids)) == 2
    assert {one["tool_call_id"] for one in told} == set(ids)
    assert shown(session) != shown(fresh)
    assert unplaced(session) == unplaced(fresh)


def test_a_replacement_is_one_revision_and_one_record(memory: Memory) -> None:
    """Entries and record are of one revision, and `history` lists it once; where nothing changes there is none."""
    session = memory.session("one")
    session.add([user("one"), assistant("two")])

    session.replace([user("one"), user("three")])

    added, record = session.history()
    assert (added.kind, record.kind, record.revision, record.seqs) == ("add", "replace", 2, (3,))
    assert record.detail == {"entries": 2, "added": 1, "archived": 1}
    assert session.entry(3).revision == 2
    session.replace([user("one"), user("three")])
    assert session.stats().revision == 2
    assert memory.session("new").replace([]) == ()
    assert len(memory.sessions()) == 1


def test_messages_behind_a_new_one_are_new_and_keep_their_expiry(memory: Memory, clock: FakeClock) -> None:
    """A log has one order: behind a new message there are only new ones, with what was said of them beside words."""
    session = memory.session("one")
    end = moment(clock.now + 60_000_000)
    old = session.add_user_message("kept", expires_at=end, metadata={"a": 1}, importance=0.9, pinned=True)

    summed, moved = session.replace([user("in short: they met"), user("kept")])

    assert (summed.expires_at, summed.pinned) == (None, False)
    assert moved.id != old.id
    assert (moved.expires_at, moved.metadata, moved.importance, moved.pinned) == (end, {"a": 1}, 0.9, True)
    clock.advance(61)
    assert memory.sweep() == 2
    assert session.context().messages == [user("in short: they met")]


def test_omitted_pins_system_messages_and_summaries_are_archived(memory: Memory) -> None:
    """Only the list is shown: no earlier pin, system message or summary."""
    session = memory.session("one", counter=words)
    session.add(
        [{"role": "system", "content": "be old"}, user("pin me"), assistant("yes"), user("more"), assistant("!")]
    )
    session.pin(2)
    session.compact({"strategy": "summarizer", "interaction_keep": 1})
    made = session.compact({"strategy": "simple_fifo"}) and session.summaries(history=True)

    given = [{"role": "system", "content": "be new"}, user("now")]
    session.replace(given)

    assert session.context().messages == given
    assert (session.summaries(), session.stats().pinned) == ([], 1)
    for summary in made:
        assert session.expand(summary)
    session.pin(2)
    assert user("pin me") in session.context().messages


def test_an_omitted_call_is_not_waited_for(memory: Memory) -> None:
    """A result of an omitted call is plain data; a call that the list keeps can be answered by the list or later."""
    session = memory.session("one")
    session.add([user("find"), call("c1")])
    session.replace([user("never mind")])
    assert session.stats().open_calls == ()
    late = session.add_tool_result("find", "found", call_id="c1")
    assert (late.answers, session.verify().problems) == (0, ())
    assert session.context().messages[0] == user("never mind")

    other = memory.session("other")
    other.add([user("find"), call("c1")])
    *_, kept, answer = other.replace([user("find"), call("c1"), result("c1", "found")])
    assert (kept.seq, answer.answers) == (2, 2)
    again = other.replace([user("find"), call("c1")])
    assert other.stats().open_calls == ("c1",)
    assert other.add_tool_result("find", "again", call_id="c1").answers == again[-1].seq
    assert other.verify().problems == ()


def test_entries_added_after_seen_stay_active(memory: Memory) -> None:
    """With `seen` what was added since that context, or revision, is active beside the list, with its whole group."""
    session, other = memory.session("one"), memory.session("one")
    session.add([user("one"), assistant("two")])
    context = session.context()
    other.add([user("from another"), call("c1")])

    for seen in (context, context.revision):
        session.replace([user("all in one")], seen=seen)
        assert texts(session.active_entries())[:2] == ["from another", "{}"]

    half = memory.session("half")
    half.add([user("find"), call("c1")])
    before = half.stats().revision
    half.add([result("c1", "found")])
    half.replace([user("and again")], seen=before)
    assert [entry.kind for entry in half.active_entries()] == ["tool_call", "tool_result", "message"]

    session.replace([user("last")])
    assert session.context().messages == [user("last")]
    with pytest.raises(ConfigError, match="seen"):
        session.replace([], seen=10_000)


def test_a_replacement_based_on_a_cleared_session_conflicts(memory: Memory) -> None:
    """If the session was cleared since `seen`, the replacement conflicts and writes nothing."""
    session, other = memory.session("one"), memory.session("one")
    session.add([user("one"), assistant("two")])
    context = session.context()
    other.clear()
    other.add([user("anew")])

    for seen in (context, context.revision):
        with pytest.raises(Conflict, match="cleared"):
            session.replace([user("all in one")], seen=seen)
        assert texts(session.active_entries()) == ["anew"]
    session.replace([user("all in one")], seen=session.context())
    assert texts(session.active_entries()) == ["all in one"]


def test_a_keyed_replacement_is_made_once(memory: Memory) -> None:
    """Repeating it under its key changes nothing; other messages under the key conflict; a rewind frees the key."""
    session = memory.session("one")
    session.add([user("one"), user("two")])
    done = session.replace([user("one")], key="turn 7")
    session.add([assistant("since")])
    revision = session.stats().revision
    assert session.history()[1].detail.keys() == {"entries", "added", "archived", "once"}

    assert session.replace([user("one")], key="turn 7") == done
    with pytest.raises(Conflict, match="key"):
        session.replace([user("other")], key="turn 7")
    assert session.stats().revision == revision

    session.rewind(1)
    session.replace([user("one")], key="turn 7")
    assert session.context().messages == [user("one")]
    with pytest.raises(InvalidEntry, match="key"):
        session.replace([], key="")


def test_a_refused_replacement_changes_nothing(memory: Memory) -> None:
    """Malformed messages, an unknown format, a session that only reads and an atomic turn: nothing is written."""
    session = memory.session("one")
    session.add([user("one")])
    before = session.export()
    for bad in ("text", [user("fine"), {"role": "nobody"}], [7], [{"role": "user", "content": 7}]):
        with pytest.raises(InvalidEntry):
            session.replace(bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="format"):
        session.replace([], format="nobody's")
    with pytest.raises(ConfigError, match="readonly"):
        memory.session("one", readonly=True).replace([])
    with session.turn(atomic=True), pytest.raises(ConfigError, match="atomic"):
        session.replace([])
    assert session.export() == before | {"exported_at": session.export()["exported_at"]}


def test_a_replacement_sends_an_event_and_counts_in_a_turn(memory: Memory) -> None:
    """`session:replaced` says what came of it, `entry:added` names what is new, and a turn counts that."""
    heard = Listener().to(memory, "entry:added", "session:replaced")
    session = memory.session("one")
    session.add([user("one"), user("two")])
    heard.heard.clear()

    with session.turn():
        session.replace([user("one"), user("three")])
        assert session.end_turn().added == 1

    assert heard.names() == ["entry:added", "session:replaced"]
    assert heard.heard[-1][1] == {"revision": 2, "entries": 2, "added": 1, "archived": 1}


def test_a_replacement_is_redacted_and_withheld_like_an_add(tmp_path: Path) -> None:
    """The list passes the one admission: what may not be kept is nowhere, and this process goes on with it."""
    path = tmp_path / "log.db"
    policy = {"redact_patterns": ["tw[o]"], "non_persistable_message_types": ["tool_result"]}
    with Memory.open(path, privacy=policy) as memory:
        session = memory.session("one")
        session.add([user("one"), assistant("two")])
        kept = session.entries()

        done = session.replace([user("one"), assistant("two"), call("c1"), result("c1", "hush hush")])

        assert [entry.id for entry in done[:2]] == [entry.id for entry in kept]
        assert session.context().messages[-1] == result("c1", "hush hush")
        session.add_assistant_message("done")
        assert "hush hush" not in str(session.context().messages)
        assert session.verify().problems == ()
    assert b"hush hush" not in path.read_bytes()


def test_withheld_entries_of_a_replacement_keep_their_place_beside_others(tmp_path: Path) -> None:
    """Entries that others add before and after the commit are shown around the withheld ones of this process."""
    policy = {"non_persistable_message_types": ["tool_result"]}
    with Memory.open(tmp_path / "log.db", privacy=policy) as memory:
        session = memory.session("one")
        session.add([user("one"), assistant("two")])
        RivalWriter(memory, adding, times=1)

        session.replace([user("one"), call("c1"), result("c1", "hush hush")])
        memory.session("one").add_user_message("since")

        messages = session.context().messages
        assert [one["content"] for one in messages] == ["one", messages[1]["content"], None, "hush hush", "since"]
        assert session.verify().problems == ()


@pytest.mark.parametrize("how", ["clear", "delete"])
def test_replace_returns_its_entries_even_if_they_were_cleared_at_once(tmp_path: Path, how: str) -> None:
    """`replace` returns the entries that it stored, although another caller cleared or deleted the session right after
    the commit."""
    with Memory.open(tmp_path / "log.db") as memory:
        session = memory.session("one", max_tokens=500, long_term={"strategy": "simple_fifo", "max_entries": 2})
        session.add([user("one"), assistant("two")])
        commit = memory.store.commit

        async def then_destroyed(key: SessionKey, change: Change, **options: Any) -> Head:
            head = await commit(key, change, **options)
            if change.kind == "replace" and how == "clear":
                await commit(key, Change(kind="clear", reason="clear"))
            elif change.kind == "replace":
                await memory.store.delete(key)
            return head

        memory.store.commit = then_destroyed  # type: ignore[assignment]
        done = session.replace([user("three"), assistant("four")])

        assert texts(done) == ["three", "four"]
        assert session.entries() == []
        assert session.verify().problems == ()


def test_an_earlier_branch_keeps_the_replaced_entries(memory: Memory) -> None:
    """A fork shares the entries and not what becomes of them."""
    session = memory.session("one")
    session.add([user("one"), assistant("two")])
    branch = session.fork("branch")

    session.replace([user("all new")])

    assert branch.context().messages == [user("one"), assistant("two")]
    assert session.fork("later").context().messages == [user("all new")]


@pytest.mark.parametrize("left_out", [1, 3], ids=["the question", "the newest"])
def test_later_entries_do_not_join_groups_of_omitted_and_erased_ones(memory: Memory, left_out: int) -> None:
    """The log continues as if omitted entries had never been, also in a branch, after a rewind, and in an import."""
    session = memory.session("one")
    session.add([user("one"), assistant("two")])
    session.add_tool_call("find", {}, call_id="c")
    session.replace([])
    session.erase([left_out])
    revision = session.stats().revision
    session.add([call("d"), result("d", "found")])
    links = [(entry.turn, entry.group) for entry in session.entries()[3:]]

    memory.import_session(session.export(), session_id="copy")
    others = {"copy": memory.session("copy"), "branch": session.fork("branch", at=revision)}
    for other in ("branch", "one"):
        if other == "one":
            session.rewind(revision)
        others[other] = memory.session(other)
        others[other].add([call("d"), result("d", "found")])

    assert links == [(0, 4), (0, 4)]
    for name, other in others.items():
        added = other.entries()[3:]
        assert [(entry.turn, entry.group - added[0].seq) for entry in added] == [(0, 0)] * 2, name
        assert other.verify().problems == ()


def test_a_replacement_in_an_ephemeral_session_leaves_the_store_unchanged(memory: Memory) -> None:
    """The ephemeral session shows the list, and the store is unchanged."""
    memory.session("one").add([user("one")])
    guest = memory.session("one", persistence="ephemeral")

    guest.replace([user("one"), user("two")])

    assert guest.context().messages == [user("one"), user("two")]
    assert memory.session("one").context().messages == [user("one")]


def test_async_session_replaces_alike(tmp_path: Path) -> None:
    """`AsyncSession.replace` is the same verb."""

    async def main() -> list[Any]:
        async with AsyncMemory.open(tmp_path / "log.db") as memory:
            session = memory.session("one")
            await session.add([user("one"), assistant("two")])
            await session.replace([user("one"), assistant("three")])
            return (await session.context()).messages

    assert asyncio.run(main()) == [user("one"), assistant("three")]


def test_interactions_after_a_replacement_begin_at_human_messages(session: Session) -> None:
    """What comes behind a replacement is of the interaction in which it stands, whatever that has left out: there is
    one preamble at the most, no index twice, and as many interactions as the figures say. Pages say the same."""
    session.add_system_message("be brief")
    session.add([user("u1"), assistant("a1"), user("u2"), assistant("a2"), call("c")])
    session.replace([{"role": "system", "content": "be brief"}, user("u1"), assistant("a1")])
    session.add_assistant_message("a3")
    session.replace([assistant("told")])
    session.add_assistant_message("more")
    session.add([user("u3"), assistant("a4")])
    session.replace([assistant("told again")])
    session.count()

    found = session.interactions()

    said = [(one.index, [entry.text for entry in one.entries], one.open) for one in found]
    assert said == [
        (-1, ["be brief"], False),
        (0, ["u1", "a1"], False),
        (1, ["u2", "a2", "{}", "a3", "told", "more"], False),
        (2, ["u3", "a4", "told again"], False),
    ]
    assert session.stats().interactions == 3
    pages = session.interactions(limit=1)
    while page := session.interactions(after=pages[-1], limit=1):
        pages += page
    assert pages == found
