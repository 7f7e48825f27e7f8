"""Sessions that keep no archive: what a flush destroys, and the summary that is all that tells of it from then on."""

from __future__ import annotations

import re
from typing import Any

import pytest

from palimpsest import ConfigError, Memory, Session
from palimpsest.strategies import CallableSummarizer, Summarize, Triggers

KEEP = Summarize(interaction_keep=1, cod_max_loops=0, triggers=Triggers(interaction_threshold_qty=100))


def naming(prompt: str) -> str:
    """Names the codes that it was told of."""
    return "They named " + ", ".join(sorted(set(re.findall(r"CODE-\d+", prompt)))) + "."


def flushing(memory: Memory, id: str = "s", **options: Any) -> Session:
    """A session that is compacted by hand, and keeps no archive."""
    kept = {"persistence": "flush", "archive": False, **options}
    summarizer = CallableSummarizer(naming, checked=False)
    return memory.session(id, auto_compact="off", long_term=KEEP, summarizer=summarizer, **kept)


def say(session: Session, *codes: int) -> None:
    """Add an interaction for each code, of two entries."""
    for code in codes:
        session.add_user_message(f"remember CODE-{code} " + "and more about things " * 20)
        session.add_assistant_message("noted " + "with a long answer " * 20)


def flushed(session: Session, *codes: int) -> None:
    """Say something in a turn, have all but the last of it summarised, and what that replaces destroyed."""
    with session.turn():
        say(session, *codes)
        assert session.compact().done


def told(session: Session) -> set[int]:
    """The codes that the session's current summaries tell of."""
    return {int(code) for made in session.summaries() for code in re.findall(r"CODE-(\d+)", made.text)}


def test_no_later_summary_forgets_what_a_flush_has_destroyed(memory: Memory) -> None:
    """What only summaries tell of is folded on for ever: a summary is not made anew of entries that are not there."""
    session = flushing(memory)

    for number in range(12):
        flushed(session, 2 * number, 2 * number + 1)
        assert told(session) == set(range(2 * number + 1))

    assert session.verify().ok


def test_an_archive_that_is_kept_later_is_read_again(memory: Memory) -> None:
    """What was flushed stays in the base of a summary, and all that came since is read again after every fifth time."""
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


def test_what_a_flush_has_destroyed_is_not_restored(memory: Memory) -> None:
    """`restore` refuses to take a summary away that alone tells of what it covers; before the flush it does not."""
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
