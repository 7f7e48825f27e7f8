"""A whole number names an entry (its `seq`) or a time (a revision): every verb and command says which it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest

from palimpsest import ConfigError, Entry, Memory, Session
from palimpsest.cli.app import COMMANDS, palimpsest
from palimpsest.errors import EntryNotFound


@pytest.fixture
def session() -> Iterator[Session]:
    """A session of three entries in two revisions."""
    with Memory.open("memory://") as memory:
        chat = memory.session("one", max_tokens=1_000)
        chat.add([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
        chat.add_user_message("c")
        yield chat


NAMES: dict[str, Callable[[Entry], Any]] = {
    "seq": lambda one: one.seq,
    "id": lambda one: one.id,
    "entry": lambda one: one,
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_an_entry_is_named_by_its_seq_its_id_or_itself(session: Session, name: Callable[[Entry], Any]) -> None:
    """A verb takes an entry as its seq, its id or the entry itself."""
    first, second, third = session.entries()

    session.pin(name(first))
    assert session.stats().pinned == 1
    session.unpin(name(first))
    assert session.stats().pinned == 0
    assert session.entry(name(first)).id == first.id
    assert session.hide(name(second)) == 1
    assert session.show(name(second)) == 1
    assert [one.seq for one in session.passages(name(third)).passages] == [3]
    assert session.erase([name(third)]).entries == 1
    assert session.erase(name(second)).entries == 1


def test_an_entry_of_another_session_is_not_found(session: Session) -> None:
    """An entry that is given is looked up by its id, not by its place."""
    with Memory.open("memory://") as memory:
        other = memory.session("other").add_user_message("x")

    with pytest.raises(EntryNotFound, match=other.id):
        session.pin(other)


@pytest.fixture
def numbered() -> Iterator[Session]:
    """A session of three entries whose ids are digits; the first two have each other's `seq` as id."""
    with Memory.open("memory://") as memory:
        chat = memory.session("numbered", max_tokens=1_000)
        for id, text in (("2", "first"), ("1", "second"), ("20260131", "third")):
            chat.add_entries([Entry(id=id, role="user", content=text)])
        yield chat


def test_an_entry_object_is_looked_up_by_its_id_alone(numbered: Session) -> None:
    """An id of digits is no `seq` where the entry itself is given: nothing else is read, or destroyed."""
    first, second, _ = numbered.entries()

    assert numbered.entry(first).text == "first"
    assert [one.text for one in numbered.passages(first).passages] == ["first"]
    numbered.pin(first)
    with pytest.raises(ConfigError, match="unpin"):
        numbered.hide(first)
    numbered.unpin(first)
    numbered.hide(first)
    assert [one.text for one in numbered.active_entries()] == ["second", "third"]
    numbered.show(first)
    assert [one.text for one in numbered.fork(at=second).entries()] == ["first", "second"]
    numbered.erase([first])
    assert [one.text for one in numbered.entries() if not one.erased] == ["second", "third"]


def test_a_text_of_digits_is_a_seq_or_else_an_id(numbered: Session) -> None:
    """A text of digits is a `seq`, or an id if no entry has that `seq`; where a number is a revision, it is an id."""
    assert numbered.entry("2").text == "second"
    assert numbered.entry("20260131").text == "third"
    assert numbered.erase("20260131").entries == 1
    with pytest.raises(EntryNotFound):
        numbered.entry(20260131)
    assert numbered.rewind("2") == 1  # the third is erased
    assert [one.text for one in numbered.entries()] == ["first"]


VERBS: dict[str, Callable[[Session, Any], Any]] = {
    "entry": lambda session, number: session.entry(number),
    "pin": lambda session, number: session.pin(number),
    "unpin": lambda session, number: session.unpin(number),
    "hide": lambda session, number: session.hide(number),
    "show": lambda session, number: session.show(number),
    "erase": lambda session, number: session.erase(number),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_the_error_for_an_unknown_number_calls_it_a_seq(session: Session, verb: Callable[[Session, Any], Any]) -> None:
    """The error for an unknown number says that it was taken as a `seq`."""
    with pytest.raises(EntryNotFound, match="session 'one' has no entry with the `seq` 9;"):
        verb(session, 9)


def test_values_that_name_no_entry_are_refused_with_what_is_allowed(session: Session) -> None:
    """Anything that names no entry is refused with what was given and what is allowed."""
    for given in (True, 1.5, session.context()):
        with pytest.raises(ConfigError, match=r"entries: .* allowed: Entry objects, ids, or numbers \(`seq`\)$"):
            session.passages([1, given])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match=r"'more than 1,000 names' is not accepted; allowed: at most 1,000 entries$"):
        session.passages(range(1, 1002))
    with pytest.raises(EntryNotFound, match="no open call 1;"):
        session.resolve(1, status="error")  # type: ignore[arg-type]


PAST: dict[str, Callable[[Session, Any], Any]] = {
    "context": lambda session, when: session.context(at=when),
    "entries": lambda session, when: session.entries(at=when),
    "fork": lambda session, when: session.fork(at=when),
    "rewind": lambda session, when: session.rewind(when),
}


@pytest.mark.parametrize("verb", PAST.values(), ids=PAST)
def test_the_error_for_an_unknown_time_calls_it_a_revision(
    session: Session, verb: Callable[[Session, Any], Any]
) -> None:
    """The error for a number without a time says that it was taken as a revision."""
    with pytest.raises(ConfigError, match="3 is not accepted; allowed: a revision from 0 to 2"):
        verb(session, 3)


@pytest.mark.parametrize("verb", [PAST["context"], PAST["entries"]], ids=["context", "entries"])
def test_entries_and_contexts_given_as_revisions_are_refused_with_advice(
    session: Session, verb: Callable[[Session, Any], Any]
) -> None:
    """An entry or a context in the place of a revision is refused with what to give."""
    for given in (session.entry(2), session.context()):
        with pytest.raises(ConfigError, match=r"allowed: a revision from 0 to 2, such as its `revision`$"):
            verb(session, given)


@pytest.mark.parametrize("verb", [PAST["fork"], PAST["rewind"]], ids=["fork", "rewind"])
def test_fork_and_rewind_take_numbers_as_revisions(session: Session, verb: Callable[[Session, Any], Any]) -> None:
    """`fork` and `rewind` take a number as a revision, and the error says how to name an entry."""
    for given in (3, "3"):
        with pytest.raises(ConfigError, match=r"or an Entry or its id \(a number is a revision here, not a `seq`\)$"):
            verb(session, given)
    with pytest.raises(ConfigError, match="such as its `revision`"):
        verb(session, session.context())


def test_entries_are_bounded_by_seq_and_records_by_revision(session: Session) -> None:
    """Entries and messages are bounded by `seq`, records by revision."""
    for bounded in (session.entries, session.messages):
        with pytest.raises(ConfigError, match=r"after: .*allowed: a `seq`: a whole number"):
            bounded(after="x")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"before: .*allowed: a `seq`: a whole number"):
            bounded(before=-1)
    with pytest.raises(ConfigError, match=r"after: .*allowed: a revision: a whole number"):
        session.history(after=-1)
    with pytest.raises(ConfigError, match=r"before: .*allowed: a revision: a whole number"):
        session.history(before="x")  # type: ignore[arg-type]


SAYS = {"ENTRY": "number", "ENTRY...": "number", "REVISION": "palimpsest history", "REV1": "palimpsest history"}
"""What a command takes, and a word of what its help says about it: where such numbers are found."""


def test_every_command_says_which_number_it_takes() -> None:
    """The help of a command says of an entry that it is its number in `show`, and where revisions are listed."""
    root, found = click.Context(palimpsest), set[str]()
    for name in COMMANDS:
        command = palimpsest.get_command(root, name)
        assert command is not None
        for given in command.params:
            told = (given.help if isinstance(given, click.Option) else command.help) or ""
            if given.metavar in SAYS and name != "history":  # which lists them
                assert SAYS[given.metavar] in told.replace("\n", " "), f"{name} {given.metavar}"
                found.add(name)

    assert found >= {"pin", "unpin", "erase", "show", "fork", "rewind", "diff", "context"}
