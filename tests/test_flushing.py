"""Sessions without an archive: what a flush destroys, and the summaries that alone remain."""

from __future__ import annotations

import re
from typing import Any

import pytest

from palimpsest import ConfigError, Memory, Session
from palimpsest.log.entry import moment
from palimpsest.strategies import CallableSummarizer, SimpleFifo, Summarize, Triggers
from palimpsest.testing import FakeClock

KEEP = Summarize(interaction_keep=1, cod_max_loops=0, triggers=Triggers(interaction_threshold_qty=100))


def naming(prompt: str) -> str:
    """A summarizer that names the codes it was given."""
    return "They named " + ", ".join(sorted(set(re.findall(r"CODE-\d+", prompt)))) + "."


def flushing(memory: Memory, id: str = "s", **options: Any) -> Session:
    """Return a session without an archive that is compacted by hand."""
    kept = {"persistence": "flush", "archive": False, **options}
    summarizer = CallableSummarizer(naming, checked=False)
    return memory.session(id, auto_compact="off", long_term=KEEP, summarizer=summarizer, **kept)


def say(session: Session, *codes: int) -> None:
    """Add an interaction of two entries for each code."""
    for code in codes:
        session.add_user_message(f"remember CODE-{code} " + "and more about things " * 20)
        session.add_assistant_message("noted " + "with a long answer " * 20)


def flushed(session: Session, *codes: int) -> None:
    """Add interactions in a turn at whose end all but the last are summarized and destroyed."""
    with session.turn():
        say(session, *codes)
        assert session.compact().done


def told(session: Session) -> set[int]:
    """Return the codes in the session's current summaries."""
    return {int(code) for made in session.summaries() for code in re.findall(r"CODE-(\d+)", made.text)}


def test_later_summaries_keep_the_content_of_flushed_entries(memory: Memory) -> None:
    """What only summaries hold is carried into every later version; such a summary is never made from entries again."""
    session = flushing(memory)

    for number in range(12):
        flushed(session, 2 * number, 2 * number + 1)
        assert told(session) == set(range(2 * number + 1))

    assert session.verify().ok


def test_entries_archived_after_a_flush_are_summarised_from_the_source_again(memory: Memory) -> None:
    """With an archive from now on, later entries are read again every fifth time over the flushed base."""
    flushed(flushing(memory), 0, 1)
    session = flushing(memory, archive=True)

    folds = []
    for code in range(2, 16):
        say(session, code)
        made = session.compact().summary
        assert made is not None
        folds.append(made.folds)
        assert told(session) == set(range(code))

    assert max(folds) > 5


def test_restore_refuses_a_summary_of_flushed_entries(memory: Memory) -> None:
    """`restore` refuses a summary whose entries a flush has destroyed."""
    session = flushing(memory)
    say(session, 0, 1)
    session.compact()
    assert session.restore() == 2
    session.compact()
    session.end_turn()

    with pytest.raises(ConfigError, match="a flush has destroyed entries 1 to 2"):
        session.restore()

    assert told(session) == {0}
    assert session.verify().ok


# --- without turns


def evicting(memory: Memory, **options: Any) -> Session:
    """Return a session without an archive in which more than six messages leave by themselves, down to three."""
    fifo = SimpleFifo(max_messages=6, triggers=Triggers(threshold=1.0, max_messages=6))
    return memory.session("s", long_term=fifo, persistence="flush", archive=False, **options)


def left(session: Session) -> int:
    """Return how many entries have left the active set and are not destroyed."""
    return sum(not entry.erased for entry in session.entries()) - len(session.active_entries())


@pytest.mark.parametrize("auto_compact", ["inline", "background"])
def test_outside_of_a_turn_what_leaves_is_destroyed(memory: Memory, auto_compact: Any) -> None:
    """Outside of a turn nothing that compactions have replaced remains after an answer, or after a question that made
    one run."""
    session = evicting(memory, auto_compact=auto_compact)
    for code in range(10):
        say(session, code)
    for code in range(10):
        session.add_user_message(f"remember CODE-{code}")
    if auto_compact == "background":
        memory.close()
        return

    assert left(session) == 0
    assert len(session.active_entries()) < 6
    assert session.verify().erased > 20


def test_an_answer_destroys_what_was_compacted_by_hand(memory: Memory) -> None:
    """The next answer outside of a turn destroys what was compacted by hand before, also without any strategy."""
    session = memory.session("s", persistence="flush", archive=False)
    say(session, 0, 1)
    session.compact({"strategy": "simple_fifo", "max_messages": 2})
    assert left(session) > 0
    session.add_user_message("and then?")
    assert left(session) > 0

    session.add_assistant_message("nothing")

    assert left(session) == 0


def test_inside_a_turn_nothing_is_destroyed_before_its_end(memory: Memory) -> None:
    """Inside a turn compactions destroy nothing; its end does."""
    session = evicting(memory)
    with session.turn():
        for code in range(5):
            say(session, code)
        assert left(session) > 0

    assert left(session) == 0


# --- what an erasure reaches


def test_erasing_a_flushed_entry_removes_the_text_of_its_summaries(memory: Memory) -> None:
    """Erasing a flushed entry removes the text of every summary that covers it, once."""
    session = flushing(memory)
    flushed(session, 0, 1)
    session.fork("branch")
    branch = flushing(memory, "branch")
    flushed(session, 2)
    assert told(session) == {0, 1}

    done = session.erase(1)

    assert (done.entries, done.branches, done.withdrawn) == (1, ("branch",), 2)
    for one in (session, branch):
        assert not any("CODE-0" in made.text for made in one.summaries(history=True))
        assert one.verify().ok
    assert told(session) == {1}  # this is read again, for the branch keeps it
    assert not session.erase(1)
    counted = {one.session: one.entries for one in memory.sessions()}
    assert counted == {one.id: sum(not entry.erased for entry in one.entries()) for one in (session, branch)}


@pytest.mark.parametrize("by", ["name", "user_id"])
def test_forget_finds_the_speakers_of_flushed_entries(memory: Memory, by: str) -> None:
    """A flushed entry keeps its speaker while summaries cover it, so that `forget` finds them."""
    session = flushing(memory)
    who: dict[str, Any] = {"name": "ann"} if by == "name" else {"metadata": {"user_id": "ann", "mood": "good"}}
    with session.turn():
        session.add_user_message("remember CODE-0 " + "and more about things " * 20, **who)
        session.add_assistant_message("noted " + "with a long answer " * 20)
        say(session, 1, 2)
        session.compact()
    grave = session.entries()[0]
    assert (grave.erased, grave.text) == (True, "")
    assert "good" not in str(grave)

    done = memory.forget(user="ann")

    assert (done.entries, done.withdrawn) == (2, 1)
    assert told(session) == set()
    assert "ann" not in str(session.export())
    assert memory.forget(user="ann").unknown


def test_a_sweep_erases_flushed_entries_from_the_summary(memory: Memory, clock: FakeClock) -> None:
    """A sweep finds an entry that a flush has destroyed by its time, in the session and in a copy of it."""
    session = flushing(memory)
    with session.turn():
        expires = moment(clock() + 3600 * 1_000_000)
        session.add_user_message("remember CODE-0 " + "and more about things " * 20, expires_at=expires)
        session.add_assistant_message("noted " + "with a long answer " * 20)
        say(session, 1)
        session.compact()
    memory.import_session(session.export(), session_id="copy")
    copy = flushing(memory, "copy")
    assert told(session) == told(copy) == {0}
    assert memory.sweep() == 0

    clock.advance(7200)

    assert memory.sweep() == 2
    for one in (session, copy):
        assert told(one) == set()
        assert "CODE-0" not in str(one.export())
        assert one.verify().ok
    assert memory.sweep() == 0


def test_a_summary_made_again_after_an_erasure_keeps_flushed_content(memory: Memory) -> None:
    """After an erasure a summary is made again from its earlier version if that holds flushed entries."""
    session = flushing(memory)
    flushed(session, 0, 1)
    say(session, 2, 3)
    session.compact()
    assert told(session) == {0, 1, 2}

    done = session.erase(5)

    assert (done.withdrawn, done.rebuilt) == (1, 1)
    assert told(session) == {0, 1}
    assert session.verify().ok
    session.end_turn()
    flushed(session, 4)
    assert told(session) == {0, 1, 3}


def test_a_flushed_entry_without_a_summary_loses_its_speaker(memory: Memory) -> None:
    """A destroyed entry that no summary covers leaves a tombstone without its speaker."""
    session = flushing(memory)
    with session.turn():
        session.add_user_message("one", name="ann")
        session.add_assistant_message("two")
        say(session, 1)
        session.compact({"strategy": "simple_fifo", "max_messages": 3})
    assert [entry.erased for entry in session.entries()][:1] == [True]
    assert "ann" not in str(session.export())


# --- branches


def test_a_flush_keeps_entries_shared_with_a_branch(memory: Memory) -> None:
    """A flush keeps entries that a branch shares until the last of them lets go or is deleted."""
    session = flushing(memory)
    say(session, 0, 1)
    branch = session.fork("branch")
    session.compact()
    session.end_turn()

    for one in (session, branch):
        assert [entry.erased for entry in one.entries()] == [False] * 4
        assert one.verify().ok
    revision = session.stats().revision
    session.end_turn()
    assert session.stats().revision == revision

    branch = flushing(memory, "branch")
    say(branch, 2)
    branch.compact()
    branch.end_turn()
    assert [entry.erased for entry in branch.entries()] == [True, True, False, False, False, False]
    assert [entry.erased for entry in session.entries()] == [True, True, False, False]
    assert (told(session), told(branch)) == ({0}, {0, 1})
    assert session.verify().ok
    assert branch.verify().ok

    memory.delete_session("s")
    branch.end_turn()
    assert [entry.erased for entry in branch.entries()] == [True] * 4 + [False] * 2


def test_a_flush_keeps_restored_and_pinned_entries(memory: Memory) -> None:
    """A session that restored or pinned flushed entries keeps them."""
    session = flushing(memory)
    say(session, 0, 1)
    session.fork("branch")
    branch = flushing(memory, "branch")
    session.compact()
    session.end_turn()
    session.restore()

    branch.compact()
    branch.end_turn()

    assert [entry.text[:15] for entry in session.active_entries()][::2] == ["remember CODE-0", "remember CODE-1"]
    session.compact()
    session.pin(1)
    branch.end_turn()
    assert not session.entries()[0].erased


def test_a_new_branch_keeps_entries_that_its_origin_has_flushed(memory: Memory) -> None:
    """A new branch keeps entries that its origin has let go of, whatever other branches flush."""
    session = flushing(memory, "a")
    say(session, 0, 1)
    other = session.fork("b")
    with session.turn():
        session.compact()
    session.fork("c")

    with (again := flushing(memory, "b")).turn():
        assert again.compact().done

    branch = memory.session("c", auto_compact="off")
    assert [entry.erased for entry in branch.entries()] == [False] * 4
    assert branch.restore() == 2
    assert other.id == "b"


def test_speakers_are_erased_with_their_last_summary(memory: Memory) -> None:
    """When an erasure removes a summary, the speakers of entries that it alone covered are removed, too."""
    session = flushing(memory)
    with session.turn():
        for code, name in enumerate(("ann", "bob", "cid")):
            about = {"user_id": f"u-{name}"}
            session.add_user_message(f"CODE-{code} " + "and more " * 40, name=name, metadata=about)
            session.add_assistant_message("noted " + "with a long answer " * 20)
        assert session.compact().done
    assert "u-bob" in str(session.export())

    assert session.erase(1).entries == 1

    assert told(session) == set()
    assert "bob" not in str(session.export())
    assert [entry.flushed for entry in session.entries()] == [False] * 6
    assert not session.erase(3).entries
    assert session.verify().ok
