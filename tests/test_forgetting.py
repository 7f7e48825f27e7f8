"""`memory.forget`: everything that belongs to somebody or something goes everywhere, and the rest stays whole."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import strategies
from forgetter_process import USER, WORD
from palimpsest import BudgetImpossible, ConfigError, Entry, Image, Memory, Query, Session, Text
from palimpsest.strategies import Summarize
from palimpsest.testing import FakeClock
from palimpsest.types import Erased
from processes import Process, integrity, remains, together
from writer import quarters

SCRIPT = Path(__file__).with_name("forgetter_process.py")


def talk(session: Session, *texts: str, user: str | None = None) -> None:
    """Add one interaction for each text."""
    for text in texts:
        session.add_user_message(text, name=user)
        session.add_assistant_message(f"about that: {text}")


def texts(memory: Memory) -> dict[str, list[str]]:
    """Return the remaining texts of each session."""
    found = {}
    for info in memory.sessions():
        entries = memory.session(info.session).entries(rewound=True)
        found[info.session] = [entry.text for entry in entries if not entry.erased]
    return found


def anywhere(memory: Memory, word: str) -> bool:
    """Whether a word is in an export, context, entry or record of any session."""
    for info in memory.sessions():
        session = memory.session(info.session, counter=quarters)
        told = [
            json.dumps(session.export(), ensure_ascii=False),
            str(session.context(max_tokens=10_000, dry_run=True).messages),
            str(session.history()),
            str(session.summaries(history=True)),
            str(session.entries(rewound=True)),
        ]
        if any(word.lower() in each.lower() for each in told):
            return True
    return False


# --- users


def test_a_user_is_forgotten_everywhere(memory: Memory) -> None:
    """A user's messages and their answers go from all sessions; a session that is empty then is deleted."""
    talk(memory.session("both"), "from bob", user="bob")
    talk(memory.session("both"), "from ann", "ann again", user=USER)
    talk(memory.session("hers"), "only ann", user=USER)
    talk(memory.session("his"), "only bob", user="bob")

    done = memory.forget(user=USER)

    assert (done.entries, done.sessions, done.remains) == (6, ("hers",), ())
    assert texts(memory) == {
        "both": ["from bob", "about that: from bob"],
        "his": ["only bob", "about that: only bob"],
    }
    assert memory.forget(user=USER) == Erased(unknown=memory.forget(user=USER).unknown)


@pytest.mark.parametrize("subject", ["user", "session", "tenant"])
@pytest.mark.parametrize("name", ["", "a\ud800", "a\x00", "x" * 257], ids=["empty", "surrogate", "control", "long"])
def test_an_invalid_subject_id_is_refused(memory: Memory, subject: str, name: str) -> None:
    """A subject has to be an id of 1 to 256 characters."""
    with pytest.raises(ConfigError, match=f"{subject}: .*1 to 256 characters"):
        memory.forget(**{subject: name})  # type: ignore[arg-type]


def test_answers_to_a_forgotten_users_message_go_in_every_branch(memory: Memory) -> None:
    """Answers to a shared message of the user go in every branch."""
    session = memory.session("one", counter=quarters)
    talk(session, "from bob", user="bob")
    asked = session.add_user_message("from ann", name=USER)
    branch, other = session.fork("branch"), session.fork("other", at=asked)
    for each in (session, branch, other):
        each.add_assistant_message(f"said in {each.id} alone")
        talk(each, "bob goes on", user="bob")

    done = memory.forget(user=USER)

    assert done.entries == 4
    assert done.branches == ("branch", "one", "other")
    for left in texts(memory).values():
        assert left == ["from bob", "about that: from bob", "bob goes on", "about that: bob goes on"]
    assert all(memory.session(name).verify().ok for name in ("one", "branch", "other"))


def test_a_session_that_gets_a_message_meanwhile_is_not_deleted(memory: Memory, clock: FakeClock) -> None:
    """A session to which somebody adds meanwhile is not deleted."""
    talk(memory.session("hers"), "only ann", user=USER)
    memory.on("erased", lambda name, facts: memory.session(name).add_user_message("from bob", name="bob") and None)

    done = memory.forget(user=USER)

    assert (done.entries, done.sessions) == (2, ())
    assert texts(memory) == {"hers": ["from bob"]}


# --- sessions and tenants


def test_a_session_is_forgotten_with_its_copies(memory: Memory) -> None:
    """Forgetting a session erases its entries in all branches and deletes it; a branch's own entries stay."""
    session = memory.session("one", counter=quarters)
    talk(session, "shared " * 20, "shared too " * 20)
    session.compact(Summarize(interaction_keep=1))
    branch = session.fork("branch")
    talk(branch, "its own")

    done = memory.forget(session="one")

    assert (done.entries, done.sessions, done.branches, done.withdrawn) == (4, ("one",), ("branch",), 2)
    assert texts(memory) == {"branch": ["its own", "about that: its own"]}
    assert branch.verify().ok
    assert "shared" not in json.dumps(branch.export())
    assert memory.forget(session="one") == Erased(unknown="there is no session 'one'")


def test_a_tenant_is_forgotten_whole(tmp_path: Path) -> None:
    """Forgetting a tenant removes its sessions and items and no other tenant's; only the memory's own can be named."""
    place = tmp_path / "log.db"
    with Memory.open(place, tenant="acme") as acme, Memory.open(place, tenant="other") as other:
        for memory in (acme, other):
            talk(memory.session("one"), f"{WORD} of {memory.tenant}")
            memory.session("one").fork("two")
            run(memory, "put_item", memory.tenant, "facts", "k", f"{WORD} of {memory.tenant}".encode())

        with pytest.raises(ConfigError, match="tenant"):
            acme.forget(tenant="other")
        done = acme.forget(tenant="acme")

        assert (done.entries, done.sessions, done.items) == (2, ("one", "two"), {"facts": 1})
        assert acme.sessions() == []
        assert acme.forget(tenant="acme") == Erased()
        assert b"zanzibar of acme" not in remains(place)
        assert b"zanzibar of other" in remains(place)
        assert texts(other)["one"][0] == "zanzibar of other"


def run(memory: Memory, verb: str, *arguments: Any) -> Any:
    """Call a verb of the memory's store."""
    from palimpsest.runtime.runner import drive

    return drive(getattr(memory.store, verb)(*arguments))


# --- what matches


def test_matching_entries_are_erased_from_all_sessions(memory: Memory) -> None:
    """`matches` erases a text, or what a query selects, from all sessions, with one event for each."""
    told: list[tuple[str, Any]] = []
    memory.on("erased", lambda name, facts: told.append((name, facts)))
    for name in ("a", "b", "c"):
        talk(memory.session(name), f"{WORD} {name}" if name != "b" else "nothing", "kept")

    done = memory.forget(matches=WORD.upper(), reason="asked for")

    assert done.entries == 4
    assert [name for name, _ in told] == ["a", "c"]
    assert told[0][1] == {"seqs": (1, 2), "reason": "asked for", "branches": ()}
    assert memory.forget(matches=Query(text="kept", where="message.role == 'user'")).entries == 3
    assert texts(memory)["b"] == ["nothing", "about that: nothing", "about that: kept"]


@pytest.mark.parametrize("word", ["water", "tokens", "what", "kept", "covered", "forgotten", "quay-7"])
def test_forgetting_a_word_of_records_or_ids_ends(memory: Memory, word: str) -> None:
    """A text that is also a word of records, or a session's id, is gone after one look, and found no second time."""
    session = memory.session("quay-7", counter=quarters, max_tokens=400)
    for number in range(12):
        talk(session, f"{number} hello " * 10)
        session.context()
    session.fork("quay-7-b")
    session.compact(Summarize(interaction_keep=1))
    session.erase([1], reason="asked")

    done = memory.forget(matches=word)

    assert (done.entries, done.remains) == (0, ())
    before = {info.session: info.revision for info in memory.sessions()}
    assert not memory.forget(matches=word)
    assert {info.session: info.revision for info in memory.sessions()} == before
    assert all(memory.session(name, counter=quarters).verify().ok for name in before)


def test_a_text_of_the_default_reason_can_be_forgotten(memory: Memory) -> None:
    """A text that stands in the default reason is forgotten like any other, with no reason; a given one is refused."""
    session = memory.session("one")
    talk(session, "my request", "kept")

    with pytest.raises(ConfigError, match="reason"):
        memory.forget(matches="request", reason="the request of somebody")
    assert memory.forget(matches="request").entries == 2

    assert [record.reason for record in session.history() if record.kind == "erase"] == [""]
    assert not memory.forget(matches="request")


def test_a_dry_run_counts_and_changes_nothing(memory: Memory) -> None:
    """A dry run counts what would be erased and changes nothing."""
    session = memory.session("one", counter=quarters)
    talk(session, f"{WORD} " * 20, "kept " * 20, user=USER)
    session.compact(Summarize(interaction_keep=1))
    session.fork("branch")
    talk(memory.session("hers"), WORD, user=USER)
    before = {info.session: info.revision for info in memory.sessions()}

    for subject in ({"matches": WORD}, {"user": USER}, {"session": "one"}, {"tenant": "default"}):
        would = memory.forget(dry_run=True, **subject)
        assert would.dry_run
        assert {info.session: info.revision for info in memory.sessions()} == before
    would = memory.forget(matches=WORD, dry_run=True)
    assert (would.entries, would.branches, would.withdrawn) == (4, ("branch", "one"), 2)
    would, done = memory.forget(user=USER, dry_run=True), memory.forget(user=USER)

    assert (would.entries, would.sessions) == (done.entries, done.sessions) == (6, ("branch", "hers", "one"))


def crowded(memory: Memory, clock: FakeClock, seed: int) -> None:
    """Make sessions with branches, summaries, pictures, rewinds and clears, in which a user says a word."""
    chance = random.Random(seed)
    sessions = [memory.session(name, counter=quarters) for name in ("one", "hers")]
    for number in range(30):
        session = chance.choice(sessions)
        who = chance.choice([USER, "bob"]) if session.id != "hers" else USER
        step = chance.randrange(12)
        if step < 6:
            talk(session, f"{chance.choice([WORD, 'kept'])} {number} " * chance.choice([1, 20]), user=who)
        elif step == 6:
            session.add_user_message([Text(text="see"), Image(source="https://example.org/a.png")], name=who)
        elif step == 7 and len(sessions) < 6 and session.stats().revision:
            sessions.append(session.fork(f"branch{number}"))
        elif step in (8, 9):
            session.compact(Summarize(interaction_keep=1))
        elif step == 10 and session.stats().revision > 2:
            session.rewind(to=max(1, session.stats().revision - 2))
        elif step == 11 and not chance.randrange(3):
            session.clear()
        clock.advance(1)


@pytest.mark.sampled
@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 40), marks=pytest.mark.slow)], ids=["few", "many"])
@pytest.mark.parametrize(
    "subject", [{"matches": WORD}, {"user": USER}, {"session": "one"}, {"tenant": "default"}], ids=str
)
def test_a_dry_run_has_the_figures_of_the_real_run(
    memory: Memory, clock: FakeClock, subject: dict[str, Any], seeds: range
) -> None:
    """A dry run's figures are those of the real run, except rebuilt summaries, and it sends no event."""
    heard: list[str] = []
    memory.on("erased", lambda name, facts: heard.append(name) and None)
    for seed in seeds:
        memory.forget(tenant="default")
        crowded(memory, clock, seed)
        before = {info.session: (info.revision, memory.session(info.session).export()) for info in memory.sessions()}
        heard.clear()

        would, told = memory.forget(dry_run=True, **subject), list(heard)
        after = {info.session: (info.revision, memory.session(info.session).export()) for info in memory.sessions()}
        done = memory.forget(**subject)

        assert (after, told) == (before, []), seed
        assert would == msgspec.structs.replace(done, rebuilt=0, dry_run=True, remains=()), seed


def test_progress_counts_up_to_all_sessions(memory: Memory) -> None:
    """`progress` is called with the sessions done and their total."""
    for number in range(5):
        talk(memory.session(f"s{number}"), WORD if number == 2 else "nothing")
    told: list[tuple[int, int]] = []

    memory.forget(matches=WORD, progress=lambda done, total: told.append((done, total)))

    assert told[:5] == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]


SUBJECTS: list[dict[str, Any]] = [
    {},
    {"user": "a", "session": "b"},
    {"matches": ""},
    {"matches": 5},
    {"user": " "},
    {"session": ""},
    {"user": "a", "dry_run": "yes"},
    {"user": "a", "reason": 5},
]


@pytest.mark.parametrize("subject", SUBJECTS, ids=map(str, SUBJECTS))
def test_exactly_one_subject_is_forgotten(memory: Memory, subject: dict[str, Any]) -> None:
    """None, two or an invalid subject raises ConfigError, and nothing is forgotten."""
    talk(memory.session("one"), "a")

    with pytest.raises(ConfigError):
        memory.forget(**subject)

    assert len(texts(memory)["one"]) == 2


def test_a_read_only_memory_makes_dry_runs_only(tmp_path: Path) -> None:
    """A read-only memory refuses to forget, but makes dry runs."""
    with Memory.open(tmp_path / "log.db") as memory:
        talk(memory.session("one"), WORD)
    with Memory.open(tmp_path / "log.db", readonly=True) as memory:
        with pytest.raises(ConfigError, match="readonly"):
            memory.forget(matches=WORD)
        assert memory.forget(matches=WORD, dry_run=True).entries == 2


# --- processes


def place(kind: str, folder: Path) -> Any:
    """Return the place of a store of this kind."""
    return f"file://{folder}/logs" if kind == "file" else folder / "log.db"


def crowd(where: Any) -> None:
    """Make a store of many sessions and branches in which a user says a word."""
    with Memory.open(where, synchronous="NORMAL") as memory:
        for number in range(12):
            session = memory.session(f"s{number}", counter=quarters)
            talk(session, f"to {WORD}", user=USER)
            talk(session, f"bob stays {number}", user="bob")
            asked = session.add_user_message(f"to {WORD} again", name=USER)
            if number % 3 == 0:
                branch = session.fork(f"s{number}~branch", at=asked)
                branch.add_assistant_message(f"{WORD}, said in the branch alone")
            session.add_assistant_message(f"of course, {WORD}")


@pytest.mark.sampled
@pytest.mark.parametrize("what", ["user", "text"])
@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_killed_forget_is_completed_by_repeating_it(
    tmp_path: Path, kind: str, what: str, dice: random.Random
) -> None:
    """After a kill, repeating `forget` leaves no byte of the word and every session sound."""
    where = place(kind, tmp_path)
    crowd(where)
    address = where if kind == "file" else f"sqlite:///{where}"
    for _ in range(2):
        with Process("forget", address, what, script=SCRIPT) as process:
            assert process.hear() == "ready"
            process.tell()
            for _ in range(dice.randrange(1, 4)):
                process.hear()
            process.kill()
    with Process("forget", address, what, script=SCRIPT) as process:
        process.hear()
        process.tell()
        process.end()

    assert WORD.encode() not in remains(where)
    assert integrity(where) == "ok"
    with Memory.open(where) as memory:
        assert not anywhere(memory, WORD)
        for info in memory.sessions():
            assert memory.session(info.session).verify().ok, info
            assert any("bob stays" in text for text in texts(memory)[info.session])


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_one_process_forgets_while_another_adds(tmp_path: Path, kind: str) -> None:
    """Forgetting beside a writer loses nothing else; repeating it afterwards leaves nothing."""
    where = place(kind, tmp_path)
    crowd(where)
    address = where if kind == "file" else f"sqlite:///{where}"

    together([Process("forget", address, "text", script=SCRIPT), Process("append", address, "120", script=SCRIPT)])

    with Memory.open(where) as memory:
        memory.forget(matches=WORD)
        kept = [text for each in texts(memory).values() for text in each]
        assert sorted(text for text in kept if text.startswith("kept")) == sorted(
            f"kept {number}" for number in range(120) if number % 3
        )
        assert not anywhere(memory, WORD)
        assert all(memory.session(info.session).verify().ok for info in memory.sessions())
    assert WORD.encode() not in remains(where)


# --- whatever was said


MARK = "Zq9Xkv7Wpt"
"""Stands in what is to be forgotten, and in no other text."""


class Parrot:
    """A summarizer that repeats everything it was ever given."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.heard += [word for word in prompt.split() if MARK.lower() in word.lower()][:3]
        words = [word for word in prompt.split() if word.isalpha()]
        return " ".join([*words[-5:], *self.heard[:2]])


def marked(operations: Sequence[strategies.Operation], places: set[int]) -> list[strategies.Operation]:
    """Return the operations with the mark in what those at these places say."""
    found = []
    for number, operation in enumerate(operations):
        for field in ("content", "arguments", "output", "text"):
            value = getattr(operation, field, None)
            if number in places and isinstance(value, str):
                said = json.dumps({"said": [MARK.lower()]}) if field == "arguments" else f"{value} {MARK} x"
                operation = operation._replace(**{field: said})  # type: ignore[call-arg]  # noqa: PLW2901
        found.append(operation)
    return found


@pytest.mark.sampled
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.parametrize("kind", ["memory", "sqlite", "file"])
def test_forgetting_leaves_the_rest_valid(
    tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject
) -> None:
    """After any history, a forgotten text is nowhere, and the rest is valid, fits, verifies and exports."""
    folder = tmp_path_factory.mktemp("world")
    where: Any = "memory://" if kind == "memory" else place(kind, folder)
    durability: dict[str, Any] = {} if kind == "memory" else {"synchronous": "NORMAL"}
    clock, parrot = FakeClock(), Parrot()
    options: dict[str, Any] = {"counter": strategies.WORDS, "summarizer": parrot, "auto_compact": "off"}
    with Memory.open(where, clock=clock, **durability) as memory:
        sessions = [memory.session("s", **options)]
        log = data.draw(strategies.logs().filter(len))
        places = data.draw(st.sets(st.integers(0, len(log) - 1), min_size=1, max_size=4))
        for number, operation in enumerate(marked(log, places)):
            session = data.draw(st.sampled_from(sessions))
            strategies.perform(session, operation, clock.now)
            step = data.draw(st.integers(0, 9))
            if step == 0 and len(sessions) < 4:
                sessions.append(session.fork(f"s{len(sessions)}"))
            elif step in (1, 2, 6, 7, 8):
                talk(session, "alpha beta gamma delta " * 9)
                session.compact(Summarize(interaction_keep=0))
            elif step == 3 and session.stats().revision > 1:
                session.rewind(to=max(1, session.stats().revision - 2))
            elif step == 4:
                session.compact("simple_fifo")
            elif step == 5:
                shown(session)
            clock.advance(number)

        how = data.draw(st.sampled_from(["forget", "query", "ids"]))
        if how == "forget":
            memory.forget(matches=MARK)
        for session in sessions:
            if how == "query":
                session.erase(Query(text=MARK))
            elif how == "ids":
                session.erase([one.id for one in session.entries(rewound=True) if says_it(one)])

        for session in sessions:
            fresh = memory.session(session.id, counter=strategies.WORDS)
            assert MARK.lower() not in json.dumps(fresh.export(), ensure_ascii=False).lower() or how == "ids"
            assert not any(says_it(entry) for entry in fresh.entries(rewound=True))
            assert fresh.verify().problems == ()
            shown(fresh)
            memory.import_session(fresh.export(), session_id=f"copy of {session.id}")
            assert memory.session(f"copy of {session.id}").verify().ok
            memory.delete_session(f"copy of {session.id}")
        if kind != "memory" and how != "ids":
            assert MARK.lower().encode() not in remains(where).lower()


def says_it(entry: Entry) -> bool:
    """Whether the entry contains the mark."""
    return MARK.lower() in str(entry).lower()


def shown(session: Session) -> None:
    """Make the session's context and check that it is valid and fits."""
    try:
        assert session.context(max_tokens=60).tokens <= 60
    except BudgetImpossible:
        assert session.context().messages is not None
