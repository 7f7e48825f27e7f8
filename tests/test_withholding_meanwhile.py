"""Contexts with withheld entries follow changes of the stored session by any memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from palimpsest import Memory, Session
from palimpsest.sessions.withheld import Withheld
from palimpsest.strategies import CallableSummarizer
from writer import quarters

SECRET = "walrus-and-carpenter"
POLICY: dict[str, Any] = {"non_persistable_message_types": ["health"]}
TYPED = {"type": "health"}
SUMMARIZER = {"strategy": "summarizer", "interaction_keep": 1, "cod_max_loops": 0, "summary_floor": 10}
Verb = Callable[[Session], object]


def chat(memory: Memory, **options: Any) -> Session:
    """Return the session of these tests."""
    brief = CallableSummarizer(lambda prompt: "They spoke at length.", checked=False)
    return memory.session("s", counter=quarters, max_tokens=20_000, summarizer=brief, **options)


def others(session: Session) -> list[str]:
    """Return the texts that a context shows, in order, without withheld ones and their stubs."""
    texts = [str(message["content"] or "") for message in session.context().messages]
    return [text for text in texts if text and SECRET not in text and "[REDACTED]" not in text]


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[Session, Session]]:
    """A session in whose open interaction messages and a call are withheld, and the same session in another memory."""
    where = f"sqlite:///{tmp_path}/log.db"
    with Memory.open(where, privacy=POLICY) as here, Memory.open(where, privacy=POLICY) as there:
        ours, theirs = chat(here), chat(there)
        for number in range(1, 4):
            ours.add_user_message(f"question {number} " + "at length " * 40)
            ours.add_assistant_message(f"answer {number} " + "at length " * 40)
        ours.add_user_message("the first of now")  # 7
        ours.add_user_message(SECRET, metadata=TYPED)
        ours.add_user_message("the second of now")  # 8
        ours.add_tool_call("look", {"at": SECRET}, call_id="c1", metadata=TYPED)
        ours.add_tool_call("look", {"at": "it"}, call_id="c2")  # 9
        ours.add_tool_result("look", "seen it", call_id="c2")  # 10
        ours.add_tool_result("look", SECRET, call_id="c1", metadata=TYPED)  # 11
        ours.add_user_message("the third of now")  # 12
        assert SECRET in str(ours.context().messages)
        assert others(theirs)
        yield ours, theirs


VERBS: dict[str, Verb] = {
    "hide": lambda session: session.hide(1, 2, 8),
    "hide a group": lambda session: session.hide(10),
    "show": lambda session: (session.hide(1, 2, 8, 12), session.context(), session.show(2, 8)),
    "pin what is hidden": lambda session: (session.hide(1, 8, 12), session.context(), session.pin(1, 8)),
    "unpin what is hidden": lambda session: (
        (session.hide(1, 8), session.pin(1, 8), session.context(), session.unpin(8), session.hide(3))
    ),
    "summarise": lambda session: session.compact(SUMMARIZER),
    "evict": lambda session: session.compact({"strategy": "simple_fifo", "interaction_keep": 1}),
    "restore": lambda session: (
        session.compact(SUMMARIZER),
        session.context(),
        session.restore(session.summaries()[0]),
    ),
    "replace": lambda session: session.replace([{"role": "user", "content": "something else"}]),
}


@pytest.mark.parametrize("whose", ["ours", "theirs"])
@pytest.mark.parametrize("verb", list(VERBS))
def test_contexts_with_withheld_entries_follow_changes_of_the_stored_session(
    both: tuple[Session, Session], verb: str, whose: str
) -> None:
    """A context shows what a context of the stored session shows, with the withheld entries in between."""
    ours, theirs = both
    before = others(ours)
    VERBS[verb](ours if whose == "ours" else theirs)

    stored = others(theirs)
    assert others(ours) == stored
    assert stored != before or verb.startswith("restore")
    if verb != "replace":
        assert SECRET in str(ours.context().messages)
        ours.add_user_message("and on")
        assert others(ours) == others(theirs)
    ours.add_assistant_message("an answer")
    assert others(ours) == others(theirs)
    assert SECRET not in str(ours.context().messages)
    assert ours.verify().ok


def test_contexts_with_withheld_entries_follow_several_changes_in_a_row(both: tuple[Session, Session]) -> None:
    """Changes by both memories in turn are all followed, with contexts between them or not."""
    ours, theirs = both
    theirs.hide(1)
    ours.compact(SUMMARIZER)
    theirs.pin(3)
    ours.add_user_message("more of now")
    assert others(ours) == others(theirs)
    theirs.hide(13)
    ours.add_user_message(f"more {SECRET}", metadata=TYPED)
    theirs.unpin(3)
    assert others(ours) == others(theirs)
    assert str(ours.context().messages).count(SECRET) > 1


def test_usage_reported_while_entries_are_withheld_scales_the_budget(tmp_path: Path) -> None:
    """A cut in a context with withheld entries uses the usage reported meanwhile."""
    with Memory.open(f"sqlite:///{tmp_path}/log.db", privacy=POLICY) as memory:
        session = memory.session("s", model="claude-sonnet-4-5", max_tokens=20_000)
        session.add_user_message("hello")
        session.add_user_message(SECRET, metadata=TYPED)
        for _ in range(2):
            session.record_usage(input_tokens=session.context().counted * 2)
        session.hide(1)
        budget = session.context().budget
        assert budget is not None
        assert budget.factor == 2.0


def test_contexts_with_withheld_entries_show_no_text_redacted_since(
    both: tuple[Session, Session], tmp_path: Path
) -> None:
    """A text that another memory redacts after it was added is in no context, withheld entries or not."""
    ours, _ = both
    assert "third of now" in str(ours.context().messages)
    with Memory.open(f"sqlite:///{tmp_path}/log.db") as third:
        assert third.scan({"redact_patterns": ["third of now"]}, apply=True).redacted == 1
    assert "third of now" not in str(ours.context().messages)


@pytest.mark.parametrize("verb", ["erase", "clear", "rewind", "replace", "delete"])
def test_entries_withheld_after_anothers_change_are_shown(
    both: tuple[Session, Session], tmp_path: Path, verb: str
) -> None:
    """A change by another memory removes entries withheld before it, not those withheld since."""
    ours, theirs = both
    verbs: dict[str, Callable[[], object]] = {
        "erase": lambda: theirs.erase([1]),
        "clear": theirs.clear,
        "rewind": lambda: theirs.rewind(3),
        "replace": lambda: theirs.replace([{"role": "user", "content": "something else"}]),
    }
    if verb == "delete":
        with Memory.open(f"sqlite:///{tmp_path}/log.db") as third:
            third.delete_session("s")
    else:
        verbs[verb]()
    ours.add_user_message(f"a new {SECRET}", metadata=TYPED)

    text = str(ours.context().messages)
    assert f"a new {SECRET}" in text
    assert text.count(SECRET) == 1
    assert others(ours) == others(theirs)


def test_entries_added_while_a_context_is_made_keep_the_withheld_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A context does not mistake the session for a new one because entries are added while it is made."""
    with Memory.open(f"sqlite:///{tmp_path}/log.db", privacy=POLICY) as memory:
        session, original = chat(memory), Withheld.session
        session.add_user_message(SECRET, metadata=TYPED)

        def late(*given: Any) -> Any:
            chat(memory).add_user_message("late")
            return original(*given)

        monkeypatch.setattr(Withheld, "session", late)
        assert SECRET in str(session.context().messages)
        assert others(session) == ["late"] * 2
