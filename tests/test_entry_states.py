"""Every entry is in one state, and all verbs that report states agree."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laws import examples
from palimpsest import BudgetImpossible, Memory, Session
from palimpsest.errors import ConfigError, EntryNotFound
from palimpsest.log import spans
from palimpsest.strategies import Summarize, Triggers

OLD = datetime(2020, 1, 1, tzinfo=UTC)


def agreed(chat: Session) -> list[int]:
    """Check that all reports of states agree; return the active seqs."""
    told, stats, active = chat.verify(), chat.stats(), chat.active_entries()
    covered = spans.union(*(one.covers for one in chat.summaries()))

    assert told.problems == ()
    assert told.active == stats.active_entries == len(active)
    assert told.covered + told.evicted + told.expired == stats.archived_entries
    assert (told.erased, told.rewound) == (stats.erased_entries, stats.rewound_entries)
    assert not [entry.seq for entry in active if spans.within(covered, entry.seq)]
    return [entry.seq for entry in active]


def test_a_question_beside_the_summary_that_covers_it_is_covered() -> None:
    """A covered question that a cut shows ahead of an open call is still reported as covered."""
    with Memory.open("memory://") as memory:
        chat = memory.session("s", max_tokens=700, low_water=0.8)
        chat.add_user_message("What does page 1 say?")
        chat.add_tool_call("catalogue", {"page": 1})
        chat.add_user_message("Never mind.")
        chat.add_assistant_message("As you like. " * 20)
        chat.compact({"strategy": "summarizer", "interaction_keep": 0})
        assert chat.summaries()[0].covers == ((1, 1), (3, 4))
        chat.add_user_message("And page 2?")
        call = chat.add_tool_call("catalogue", {"page": 2})
        chat.add_tool_result("catalogue", "screws and nails " * 150, call_id=call.call_id)
        chat.add_assistant_message("Screws.")
        chat.add_user_message("And page 3? " + "please " * 200)

        shown = [entry.seq for entry in chat.context().entries]

        assert shown == [1, 2, 5, 6, 7, 8, 9]
        assert agreed(chat) == [2, 5, 6, 7, 8, 9]
        assert chat.verify().covered == 3


def test_a_pin_activates_evicted_entries_but_not_covered_ones() -> None:
    """A pinned entry is in every context. Where a summary names it, it stays covered; else it is active, with its
    whole group."""
    with Memory.open("memory://") as memory:
        chat = memory.session("s", max_tokens=4_000)
        for number in range(6):
            chat.add_user_message(f"Question {number}")
            call = chat.add_tool_call("catalogue", {"page": number})
            chat.add_tool_result("catalogue", f"Page {number}", call_id=call.call_id)
            chat.add_assistant_message(f"Answer {number}. " + "It is there. " * 20)
        chat.compact({"strategy": "summarizer", "interaction_keep": 4})
        chat.hide(9, 10)
        assert agreed(chat) == [12, *range(13, 25)]

        chat.pin(1)
        chat.pin(10)

        assert agreed(chat) == [10, 11, 12, *range(13, 25)]
        assert {1, 10, 11} < {entry.seq for entry in chat.context().entries}
        assert agreed(chat) == [10, 11, 12, *range(13, 25)]


def test_an_older_version_of_a_named_context_is_evicted() -> None:
    """Contexts show the newest version of a named text; the older one is in the archive, before and after the next
    cut, and is active again when the newer one is taken back."""
    with Memory.open("memory://") as memory:
        chat = memory.session("s", max_tokens=4_000)
        chat.add_context("const port = 80", name="main.ts")
        chat.add_user_message("Change the port.")
        before = chat.stats().revision
        chat.add_context("const port = 81", name="main.ts")

        assert agreed(chat) == [2, 3]
        assert [entry.seq for entry in chat.context().entries] == [2, 3]
        assert agreed(chat) == [2, 3]
        assert chat.verify().evicted == 1

        chat.rewind(to=before)

        assert agreed(chat) == [1, 2]


WORDS = st.sampled_from(["short", "word " * 12, "word " * 60])
STEPS = st.tuples(
    st.sampled_from(
        [
            *("user", "user", "assistant", "assistant", "call", "call", "result", "file", "context", "context"),
            *("compact", "evict", "again", "pin", "hide", "show", "erase", "expiring", "rewind", "restore"),
        ]
    ),
    WORDS,
    st.integers(0, 60),
)
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ladder": {"long_term": "ladder"},
    "fifo": {"long_term": {"strategy": "simple_fifo", "triggers": {"message_count": 6}}},
    "entries": {
        "long_term": Summarize(recent_entries=3, min_entries=2, summaries="chain", triggers=Triggers(max_entries=8))
    },
    "conditions": {"conditions": ["message.kind != 'tool_result'", "interaction.age < 3"]},
}


@given(st.sampled_from(sorted(KINDS)), st.sampled_from([300, 700, 1500]), st.lists(STEPS, min_size=8, max_size=40))
@settings(max_examples=examples(90))
def test_all_verbs_that_report_states_agree(kind: str, most: int, steps: list[tuple[str, str, int]]) -> None:
    """After any steps `verify`, `stats`, `active_entries` and contexts agree on the state of every entry."""
    with Memory.open("memory://") as memory:
        chat = memory.session("s", max_tokens=most, **KINDS[kind])
        for verb, text, number in steps:
            with suppress(BudgetImpossible, ConfigError, EntryNotFound):
                _do(chat, verb, text, number)
            agreed(chat)
        with suppress(BudgetImpossible):
            shown = {entry.seq for entry in chat.context().entries}
            covered = spans.union(*(one.covers for one in chat.summaries()))
            assert {seq for seq in shown if not spans.within(covered, seq)} <= {*agreed(chat)}


def _do(chat: Session, verb: str, text: str, number: int) -> None:
    """Do a step; `number` selects an entry, call or revision."""
    stats = chat.stats()
    match verb:
        case "user":
            chat.add_user_message(text)
        case "assistant":
            chat.add_assistant_message(text)
        case "expiring":
            chat.add_assistant_message(text, expires_at=OLD + timedelta(days=number * 365))
        case "file":
            chat.add_context(f"{text} {number}", name="ab"[number % 2])
        case "call":
            chat.add_tool_call("tool", {"say": text})
        case "result" if stats.open_calls:
            chat.add_tool_result("tool", text, call_id=stats.open_calls[number % len(stats.open_calls)])
        case "context":
            chat.context()
        case _:
            _change(chat, verb, number, number % max(len(chat.entries()), 1) + 1)


def _change(chat: Session, verb: str, number: int, place: int) -> None:
    """Do a step that changes entries."""
    match verb:
        case "compact":
            chat.compact({"strategy": "summarizer", "interaction_keep": number % 3})
        case "evict":
            chat.compact({"strategy": "simple_fifo", "triggers": {"message_count": 4}})
        case "again":
            chat.compact("mask_results" if number % 2 else "superseded_contexts")
        case "pin":
            (chat.unpin if number % 3 == 0 else chat.pin)(place)
        case "hide":
            chat.hide(place)
        case "show":
            chat.show(place)
        case "erase" if number % 4 == 0:
            chat.erase([place])
        case "rewind" if (before := chat.stats().revision - 1) > 0 and number % 4 == 0:
            chat.rewind(to=before)
        case "restore" if chat.summaries():
            chat.restore(chat.summaries()[-1])


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("parallel", [1, 2, 3])
def test_a_result_whose_call_was_erased_is_not_active(parallel: int, pinned: bool) -> None:
    """A result without its call is in no context, listing or count, and erasing it changes none of them."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", model="gpt-4o", max_tokens=8_000)
        session.add_user_message("go")
        calls = [session.add_tool_call("find", {"page": i}) for i in range(parallel)]
        results = [session.add_tool_result("find", "found", call_id=call.call_id) for call in calls]
        session.add_assistant_message("done")
        if pinned:
            session.pin(results[0])
        session.erase([calls[0].id])

        context, stats = session.context(), session.stats()

        shown = [entry.seq for entry in context.entries]
        assert results[0].seq not in shown
        assert [entry.seq for entry in session.active_entries()] == shown
        assert context.report.entries == stats.active_entries == session.verify().active == len(shown)
        assert stats.active_tokens == context.parts.head + context.parts.log
        session.erase([results[0].id])
        assert session.stats().active_tokens == stats.active_tokens
        assert session.context().messages == context.messages
