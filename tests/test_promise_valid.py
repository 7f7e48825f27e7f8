"""Promise 2, valid: a provider accepts every context; a broken log is repaired in the context, never in the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rules
import strategies
from laws import examples
from palimpsest.errors import BudgetImpossible
from palimpsest.strategies import MaxTokens
from worlds import KINDS, open_world

pytestmark = pytest.mark.parametrize("kind", KINDS)
law = settings(deadline=None, max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.sampled
@law
@given(log=strategies.logs(), budget=st.none() | st.integers(0, 300), request=strategies.requests)
def test_a_context_breaks_no_rule_of_chat_completions(
    kind: str, folder: Path, log: list[Any], budget: int | None, request: dict[str, Any]
) -> None:
    """After every operation the context is valid and shows no half of a group, and the log is as it was."""
    with open_world(kind, folder, max_tokens=budget) as world:
        for operation in log:
            world.play([operation])
            before = world.session.entries()

            try:
                ctx = world.session.context(**request)
            except BudgetImpossible:
                ctx = None

            entries = world.session.entries()
            assert [without_count(entry) for entry in entries] == [without_count(entry) for entry in before]
            if ctx is not None:
                assert rules.faults(ctx.messages) == []
                assert rules.half_groups(ctx.messages, entries) == []
                assert rules.parted(ctx, entries) == []


def without_count(entry: Any) -> dict[str, Any]:
    """Return the entry's fields without its stored count, which a context may add."""
    return {field: getattr(entry, field) for field in entry.__struct_fields__ if field != "tokens"}


@law
@given(
    log=strategies.logs(),
    budget=st.none() | st.integers(20, 300),
    conditions=st.lists(
        st.sampled_from(
            [
                "message.kind != 'tool_result' or message.content_length < 40",
                "message.role != 'assistant' or message.tokens > 3",
                "interaction.age < 3",
                "not message.has_tool_calls",
            ]
        ),
        min_size=1,
        max_size=2,
        unique=True,
    ),
)
def test_conditions_leave_a_valid_context(
    kind: str, folder: Path, log: list[Any], budget: int | None, conditions: list[str]
) -> None:
    """Conditions drop calls and results in pairs, so that the rest is still accepted."""
    with open_world(kind, folder, max_tokens=budget, conditions=conditions) as world:
        for operation in log:
            world.play([operation])
            try:
                ctx = world.session.context()
            except BudgetImpossible:
                continue
            assert rules.faults(ctx.messages) == []


@pytest.mark.sampled
@law
@given(log=strategies.logs(), budget=st.none() | st.integers(20, 300), data=st.data())
def test_erasing_leaves_a_valid_context(
    kind: str, folder: Path, log: list[Any], budget: int | None, data: st.DataObject
) -> None:
    """However much of the log is erased, the context stays valid and shows nothing that was erased."""
    with open_world(kind, folder, max_tokens=budget) as world:
        world.play(log)
        seqs = [entry.seq for entry in world.session.entries()]
        gone = data.draw(st.lists(st.sampled_from(seqs), unique=True)) if seqs else []
        world.session.erase(gone)

        try:
            ctx = world.session.context()
        except BudgetImpossible:
            return

        assert rules.faults(ctx.messages) == []
        tombstones = world.session.entries()
        assert all(entry.erased and not entry.content for entry in tombstones if entry.seq in gone)


@pytest.mark.sampled
@law
@given(log=strategies.logs(), data=st.data())
def test_pins_leave_the_context_valid(kind: str, folder: Path, log: list[Any], data: st.DataObject) -> None:
    """Whatever is pinned, contexts show it with its whole group, before and after a cut, and are valid."""
    with open_world(kind, folder, max_tokens=data.draw(st.integers(30, 300))) as world:
        world.play(log)
        seqs = [entry.seq for entry in world.session.entries()]
        world.session.pin(*(data.draw(st.lists(st.sampled_from(seqs), unique=True, max_size=3)) if seqs else ()))
        for _ in range(2):
            try:
                ctx = world.session.context()
            except BudgetImpossible:
                return
            entries = world.session.entries()
            assert rules.faults(ctx.messages) == []
            assert rules.half_groups(ctx.messages, entries) == []
            assert rules.parted(ctx, entries) == []
            assert rules.unshown_pins(ctx, entries) == []
            world.play(strategies.numbered(log, start=1000))


@pytest.mark.sampled
@law
@given(log=strategies.logs(), budget=st.none() | st.integers(30, 300), data=st.data())
def test_no_context_shows_what_has_expired_or_was_superseded(
    kind: str, folder: Path, log: list[Any], budget: int | None, data: st.DataObject
) -> None:
    """No context shows an expired entry, pinned or not, or another than the newest version of a named context."""
    with open_world(kind, folder, max_tokens=budget) as world:
        for operation in log:
            world.play([operation])
            world.clock.advance(data.draw(st.sampled_from([0, 0, 20]), label="seconds"))
            try:
                ctx = world.session.context()
            except BudgetImpossible:
                continue
            newest = {entry.name: entry.seq for entry in world.session.entries() if entry.kind == "context"}
            for entry in shown_entries(ctx):
                assert entry.expires_at is None or entry.expires_at.timestamp() * 1e6 > world.clock.now
                assert entry.kind != "context" or newest[entry.name] == entry.seq


def test_an_exact_walk_shows_nothing_expired_or_superseded(kind: str, folder: Path) -> None:
    """A short-term strategy that selects entries anew at each call leaves out the same entries as the window does."""
    with open_world(kind, folder, short_term=[MaxTokens(memory_max_tokens=1000)]) as world:
        world.play(
            [
                strategies.Say("user", "hello"),
                strategies.Background("a.py", "old text"),
                strategies.Say("assistant", "for a while", expires=50),
                strategies.Background("a.py", "new text"),
            ]
        )
        world.clock.advance(60)

        text = str(world.session.context().messages)

        assert "new text" in text
        assert "old text" not in text
        assert "for a while" not in text


def shown_entries(ctx: Any) -> list[Any]:
    """Return the entries that the context was made of."""
    return [item.entry for group in (*ctx._head, *ctx._window.groups) for item in group.items]


def test_a_crash_between_call_and_result_is_repaired_in_the_context_alone(kind: str, folder: Path) -> None:
    """A call without a result gets a stand-in result, in the context alone, once a later message has been added."""
    with open_world(kind, folder) as world:
        world.session.add_user_message("find it")
        world.session.add_tool_call("find", {}, call_id="c")
        world.session.add_user_message("are you there?")

        ctx = world.session.context()

        assert [message["role"] for message in ctx.messages] == ["user", "assistant", "tool", "user"]
        assert ctx.report.repaired == ("c",)
        assert [entry.kind for entry in world.session.entries()] == ["message", "tool_call", "message"]


def test_an_open_group_is_held_back_until_it_is_answered(kind: str, folder: Path) -> None:
    """A call that may still be answered is reported as pending; it is shown together with its result."""
    with open_world(kind, folder) as world:
        world.session.add_user_message("find it")
        world.session.add_tool_call("find", {}, call_id="c")

        before = world.session.context()
        world.session.add_tool_result(None, "here", call_id="c")
        after = world.session.context()

        assert before.pending == ("c",)
        assert [message["role"] for message in before.messages] == ["user"]
        assert [message["role"] for message in after.messages] == ["user", "assistant", "tool"]
        assert after.pending == ()
