"""How entries are linked: groups, interactions, answers, late results; one rule of `palimpsest.log` a test."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies
from palimpsest.errors import InvalidEntry
from palimpsest.formats import find_format
from palimpsest.log.change import Change, apply
from palimpsest.log.entry import LAST_MOMENT, Entry, Reasoning, moment, pack, same, unpack
from palimpsest.log.head import CONTEXT_NAMES, GROUP_NAMES, NAMES, OPEN_CALLS, OPEN_GROUP, Cut, Head
from palimpsest.log.linking import link
from palimpsest.log.withdrawal import tombstone


def said(role: Any = "user", text: str = "hello", **fields: Any) -> Entry:
    return Entry(role=role, content=text, **fields)


def asked(call_id: str | None = "c", name: str = "find", **fields: Any) -> Entry:
    return Entry(kind="tool_call", role="assistant", content="{}", name=name, call_id=call_id, **fields)


def answered(call_id: str | None = "c", name: str | None = None) -> Entry:
    return Entry(kind="tool_result", role="tool", content="found", name=name, call_id=call_id)


def thought() -> Entry:
    return Entry(role="assistant", content=(Reasoning(text="hm"),))


def background(name: str = "a.py", text: str = "x = 1") -> Entry:
    return Entry(kind="context", role="user", name=name, content=text)


def linked(*batch: Entry) -> list[Entry]:
    """Append the entries one by one to a log and return it."""
    head, found = Head(), []
    for entry in batch:
        head, (one,) = link(head, [entry], 1)
        found.append(one)
    return found


def groups(*batch: Entry) -> list[int]:
    return [entry.group for entry in linked(*batch)]


def answers(*batch: Entry) -> list[tuple[int, bool]]:
    return [(entry.answers, entry.late) for entry in linked(*batch) if entry.kind == "tool_result"]


def test_a_message_is_its_own_group() -> None:
    """Messages, of whatever role, and background stand alone."""
    assert groups(said(), said("assistant"), said("system"), background()) == [1, 2, 3, 4]


def test_a_call_and_its_result_are_one_group() -> None:
    """The group is named by its first entry, and closes with the result."""
    assert groups(said(), asked(), answered(), said("assistant")) == [1, 2, 2, 4]


def test_parallel_calls_are_one_group() -> None:
    """Calls added before the group is answered join it, whatever the order of their results."""
    batch = (asked("a"), asked("b"), answered("b"), asked("c"), answered("a"), answered("c"), asked("d"))

    assert groups(*batch) == [1, 1, 1, 1, 1, 1, 7]


def test_a_call_joins_the_message_that_it_continues() -> None:
    """An assistant message and its calls are one group, as they are one message of the provider."""
    assert groups(said("assistant"), asked(continues=True), answered()) == [1, 1, 1]


def test_what_continues_joins_only_what_the_model_said_last() -> None:
    """An entry from the middle of another log's message joins nothing of others, and no group that is complete."""
    for other in (said(), said("system"), background(), answered(), said("user", pauses=True)):
        assert groups(said("assistant"), other, asked(continues=True), answered()) == [1, 2, 3, 3]
        assert groups(said("assistant"), other, said("assistant", continues=True)) == [1, 2, 3]
    assert groups(asked(), answered(), asked(continues=True), answered()) == [1, 1, 3, 3]
    assert groups(asked("a"), asked("b"), answered("b"), asked("c", continues=True)) == [1, 1, 1, 1]
    assert groups(asked(continues=True), answered()) == [1, 1]


ENTRIES = st.builds(
    lambda make, continues, pauses: msgspec.structs.replace(make(), continues=continues, pauses=pauses),
    st.sampled_from(
        [
            *(said, lambda: said("assistant"), lambda: said("system"), thought, background),
            *(lambda: asked("a"), lambda: asked("b"), lambda: answered("a"), lambda: answered("b")),
        ]
    ),
    st.booleans(),
    st.booleans(),
)
"""Entries of any kind, with flags that they can only have been given."""


@given(batch=st.lists(ENTRIES, max_size=12))
def test_only_the_model_s_entries_and_results_share_a_group(batch: list[Entry]) -> None:
    """Whatever is added, in whatever order: what others say stands alone, and a batch is linked as many batches."""
    log = linked(*batch)

    for entry in log:
        first = log[entry.group - 1]
        assert entry is first or first.kind == "tool_call" or first.role == "assistant"
        assert entry is first or entry.kind in ("tool_call", "tool_result") or entry.role == "assistant"
    assert [places(entry) for entry in link(Head(), batch, 1)[1]] == [places(entry) for entry in log]


def test_reasoning_stays_with_the_assistant_entry_that_follows() -> None:
    """Reasoning opens a group that the next message or call of the assistant joins."""
    assert groups(thought(), said("assistant"), said("assistant")) == [1, 1, 3]
    assert groups(thought(), asked(), answered()) == [1, 1, 1]
    assert groups(thought(), thought(), said("assistant")) == [1, 1, 1]
    assert groups(thought(), said(), said("assistant")) == [1, 2, 3]


def test_a_message_between_call_and_result_closes_the_group() -> None:
    """A result that comes after the group was closed is late, and stands for itself."""
    batch = (asked("a"), said(), answered("a"))

    assert groups(*batch) == [1, 2, 3]
    assert answers(*batch) == [(1, True)]


def test_a_context_entry_between_call_and_result_closes_the_group() -> None:
    """A context entry between call and result makes the result late."""
    assert answers(asked("a"), background(), answered("a")) == [(1, True)]


def test_results_of_calls_that_share_an_id_come_in_the_order_of_the_calls() -> None:
    """Call ids repeat: of two open calls of one id in one group the older is answered first."""
    assert answers(asked("a"), asked("a"), answered("a"), answered("a")) == [(1, False), (2, False)]
    assert answers(asked("a"), answered("a"), asked("a"), answered("a")) == [(1, False), (3, False)]


def test_a_late_result_answers_the_nearest_group_that_waits_for_its_id() -> None:
    """A late result answers the newest closed group with its id, and in it the oldest call."""
    batch = (asked("a"), said(), asked("a"), asked("a"), said(), answered("a"), answered("a"), answered("a"))

    assert answers(*batch) == [(3, True), (4, True), (1, True)]


def test_a_result_looks_in_the_open_group_first() -> None:
    """A call left open before the group is answered only when none of the group is left."""
    batch = (asked("a"), said(), asked("a"), asked("b"), answered("a"), answered("a"), answered("b"))

    assert answers(*batch) == [(3, False), (1, True), (4, False)]
    assert groups(*batch) == [1, 2, 3, 3, 3, 3, 3]


def test_a_result_without_id_answers_the_oldest_open_call_of_its_tool() -> None:
    """Results without ids answer a tool's calls in order and take over the calls' ids."""
    batch = (asked("a"), asked("b"), asked("c", "book"), answered(None, "find"), answered(None, "find"))

    assert answers(*batch) == [(1, False), (2, False)]
    assert [entry.call_id for entry in linked(*batch)[3:]] == ["a", "b"]


def test_a_result_takes_the_name_of_its_tool_from_the_call() -> None:
    """A provider's result that names no tool gets the call's, its own name is kept otherwise."""
    assert [entry.name for entry in linked(asked("a", "find"), answered("a"))] == ["find", "find"]
    assert linked(asked("a", "find"), answered("a", "other"))[1].name == "other"


def test_a_result_of_no_call_is_an_orphan() -> None:
    """A result of an unknown or answered id answers nothing and is not late."""
    assert answers(answered("x"), asked("a"), answered("a"), answered("a"), answered(None, "find")) == [
        (0, False),
        (2, False),
        (0, False),
        (0, False),
    ]


def test_an_orphan_inside_an_open_group_does_not_close_it() -> None:
    """The group waits for its own calls."""
    batch = (asked("a"), answered("x"), answered("a"))

    assert groups(*batch) == [1, 1, 1]
    assert answers(*batch) == [(0, False), (1, False)]


def test_a_human_message_starts_an_interaction() -> None:
    """Everything until the next human message carries its seq; what came before the first carries 0."""
    batch = (said("system"), said(), asked(), answered(), said("assistant"), said(), said())

    assert [entry.turn for entry in linked(*batch)] == [0, 2, 2, 2, 2, 6, 7]


def test_background_starts_no_interaction() -> None:
    """A context entry has the role of a user and is no human message."""
    assert [entry.turn for entry in linked(said(), background(), said("assistant"))] == [1, 1, 1]


def test_system_messages_and_pinned_entries_are_pinned_in_the_head() -> None:
    """The head lists what every context keeps."""
    head, _ = link(Head(), [said("system"), said(), said(pinned=True), background()], 1)

    assert head.pinned == (1, 3)


def test_the_head_knows_the_newest_version_of_a_context() -> None:
    """The head knows the newest version of each named context, up to a bound, forgetting the oldest names."""
    batch = [background(f"{i}.py") for i in range(CONTEXT_NAMES + 5)]
    head, _ = link(Head(), [*batch, background("5.py", "x = 2")], 1)

    assert len(head.contexts) == CONTEXT_NAMES
    assert head.contexts["5.py"][0] == len(batch) + 1
    assert "4.py" not in head.contexts


def test_the_head_names_every_call_of_the_open_group() -> None:
    """The head lists every open call of the open group, so that each result finds its own."""
    batch = [asked(f"c{i}") for i in range(OPEN_CALLS + 50)]
    head, _ = link(Head(), batch, 1)
    found = []
    for i in range(len(batch)):
        head, (result,) = link(head, [answered(f"c{i}")], 1)
        found.append((result.answers, result.group, result.late))

    assert found == [(i + 1, 1, False) for i in range(len(batch))]
    assert (head.group, head.calls) == (0, ())


def test_names_of_any_length_lose_no_result_of_the_open_group() -> None:
    """Ids that are longer together than a head keeps of closed groups are kept while their group is open."""
    ids = [f"{i}" + "x" * (NAMES // 4) for i in range(6)]
    head, _ = link(Head(), [asked(id) for id in ids], 1)

    assert [link(head, [answered(id)], 1)[1][0].answers for id in ids] == [1, 2, 3, 4, 5, 6]


def test_the_head_names_a_bounded_number_of_calls_of_closed_groups() -> None:
    """Of closed groups' calls the head keeps only the newest; a late result of an older one is an orphan."""
    batch = [asked(f"c{i}") for i in range(OPEN_CALLS + 1)]
    head, _ = link(Head(), [*batch, said()], 1)
    _, (first,) = link(head, [answered("c0")], 1)
    _, (second,) = link(head, [answered("c1")], 1)

    assert len(head.calls) == OPEN_CALLS
    assert (first.answers, second.answers) == (0, 2)


@pytest.mark.parametrize(("calls", "characters"), [(OPEN_GROUP + 1, 1), (3, GROUP_NAMES // 2 - 99)])
def test_more_open_calls_than_a_head_may_name_are_refused(calls: int, characters: int) -> None:
    """More open calls than a head may list are refused with the advice to add results."""
    batch = [asked(f"{i}" + "x" * characters) for i in range(calls)]
    head, _ = link(Head(), batch[:-1], 1)

    with pytest.raises(InvalidEntry, match=r"tool calls: .* may at once; add the results of some"):
        link(head, batch[-1:], 1)
    results = [answered(one.call_id) for one in batch]
    assert link(Head(), [*batch, *results], 1)[0].calls == ()


def test_an_imported_entry_keeps_its_time() -> None:
    """Imported entries keep `at`; the others get the time of the append."""
    assert [entry.at for entry in link(Head(), [said(at=5), said()], 9)[1]] == [5, 9]


def test_erasing_the_last_open_call_closes_its_group() -> None:
    """After the last open call is erased, its group is closed and holds nothing back."""
    head, _ = link(Head(), [said(), asked()], 1)
    after, _ = apply(head, Change(kind="erase", reason="r", seqs=(2,)), 2)

    assert (after.group, after.calls) == (0, ())
    assert link(after, [asked("d")], 3)[1][0].group == 3


def test_a_cut_takes_epoch_and_revision_from_its_commit() -> None:
    """A cut has the epoch and revision of its commit, whatever the change says."""
    cut = Cut(start=1, epoch=77, revision=77)
    after, record = apply(Head(revision=4, epoch=2), Change(kind="cut", reason="r", view="v", cut=cut), 1)

    assert (after.views["v"].epoch, after.views["v"].revision) == (3, 5)
    assert record is not None
    assert record.cut == after.views["v"]


def test_a_tombstone_keeps_no_content() -> None:
    """A tombstone keeps only id, seq, kind, time and links."""
    grave = tombstone(said("assistant", "secret", name="n", metadata={"a": 1}, id="x", seq=3, at=4))

    assert b"secret" not in pack(grave)
    assert (grave.id, grave.seq, grave.at, grave.role, grave.erased) == ("x", 3, 4, "assistant", True)


@given(log=strategies.logs(), at=st.integers(0, 10))
def test_a_batch_is_linked_like_single_appends(log: list[Any], at: int) -> None:
    """Appending a log at once or entry by entry gives the same links."""
    decode = find_format("openai").decode
    batch = [entry for one in log if isinstance(one, strategies.Batch) for entry in decode(one.messages, "messages")]
    batch += [asked(one.call_id, one.name) for one in log if isinstance(one, strategies.Call)]
    batch += [answered(one.call_id, one.name) for one in log if isinstance(one, strategies.Answer)]
    together = [places(entry) for entry in link(Head(), batch, at)[1]]

    assert [places(entry) for entry in linked(*batch)] == together


def places(entry: Entry) -> tuple[Any, ...]:
    return (entry.seq, entry.turn, entry.group, entry.answers, entry.late, entry.name, entry.call_id)


@given(text=strategies.texts(), metadata=st.none() | st.dictionaries(st.text(max_size=4), strategies.json_values))
def test_packing_and_unpacking_gives_an_equal_entry(text: str, metadata: Any) -> None:
    """The stored form keeps every field, lone surrogates included."""
    entry = said("assistant", text, id="x", seq=4, tokens=7, metadata=metadata, status="error", importance=0.25)

    again = unpack(pack(entry), 7)

    assert same(entry, again)
    assert (again.id, again.seq, again.content, again.metadata) == ("x", 4, text, metadata)
    assert (again.tokens, again.status) == (7, "error")


@given(at=st.integers(0, LAST_MOMENT))
def test_an_entry_expires_at_its_own_microsecond(at: int) -> None:
    """An entry expires exactly at `expires_at`; without one it never does."""
    entry = Entry(expires_at=moment(at))

    assert [entry.expired(now) for now in (at - 1, at, at + 1)] == [False, True, True]
    assert not Entry().expired(LAST_MOMENT)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"kind": 5}', b"\xff"])
def test_a_damaged_body_is_a_value_error(body: bytes) -> None:
    """A body that is no entry raises ValueError, which stores translate."""
    with pytest.raises(ValueError):  # noqa: PT011
        unpack(body)
