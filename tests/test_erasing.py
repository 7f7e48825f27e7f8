"""What `session.erase` promises: what a query selects, the report, and what becomes of summaries and derived data."""

from __future__ import annotations

import json
import logging
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from palimpsest import Audio, ConfigError, Entry, EntryNotFound, File, Image, Memory, Opaque, Query, Session, Text
from palimpsest.errors import Conflict, ErasureFailed
from palimpsest.strategies import CallableSummarizer, Summarize
from palimpsest.testing import FakeClock
from palimpsest.types import Erased
from writer import quarters

WORD = "zanzibar"


def talk(session: Session, *texts: str) -> None:
    """Add one interaction for each text."""
    for text in texts:
        session.add_user_message(text)
        session.add_assistant_message(f"about that: {text}")


def remaining(session: Session) -> list[int]:
    """Return the seqs of the entries that are not tombstones, rewound ones included."""
    return [entry.seq for entry in session.entries(rewound=True) if not entry.erased]


# --- what a query means

SURFACES: dict[str, dict[str, Any]] = {
    "content": {"role": "user", "content": f"to {WORD}"},
    "another case": {"role": "user", "content": "to ZANZIBAR"},
    "a provider's key": {"role": "user", "content": "x", "odd": {WORD: 1}},
    "a provider's value": {"role": "user", "content": "x", "odd": [{"deep": WORD}]},
    "escaped in JSON in a value": {"role": "user", "content": "x", "odd": '{"a": "\\u007aanzibar"}'},
    "an unknown part": {"role": "user", "content": [{"type": "mystery", "says": WORD}]},
    "an image's address": {"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"http://{WORD}/"}}]},
    "the head of an image's data": {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;name={WORD}.png;base64,QUJD"}}],
    },
    "the head of a file's data": {
        "role": "user",
        "content": [{"type": "file", "file": {"file_data": f"data:text/plain;name={WORD};base64,QUJD"}}],
    },
    "the head of data in an unknown part": {
        "role": "user",
        "content": [{"type": "mystery", "of": {"url": f"data:image/png;name={WORD};base64,QUJD"}}],
    },
    "a name": {"role": "user", "name": WORD, "content": "x"},
    "arguments": {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"at": "Zanzibar"}'}}],
    },
    "escaped arguments": {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"\\u007AanzIbar": 1}'}}
        ],
    },
    "a tool's name": {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": WORD, "arguments": "{}"}}],
    },
    "a call's id": {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": WORD, "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    },
}


@pytest.mark.sampled
@pytest.mark.parametrize("message", SURFACES.values(), ids=SURFACES)
def test_a_text_is_found_on_every_surface(session: Session, message: dict[str, Any]) -> None:
    """A query finds its text wherever a provider's message can hold it, and nothing else."""
    session.add({"role": "user", "content": "before"})
    session.add(message)
    session.add({"role": "user", "content": "zanzi bar"})

    done = session.erase(Query(text=WORD))

    assert (done.entries, remaining(session)) == (1, [1, 3])
    assert WORD not in json.dumps(session.export()).lower()


@pytest.mark.parametrize("metadata", [{WORD: 1}, {"a": {"b": [WORD.upper()]}}, {"a": {WORD: {}}}])
def test_a_text_is_found_in_metadata(session: Session, metadata: dict[str, Any]) -> None:
    """A query finds its text in keys and values of metadata, at any depth."""
    session.add_user_message("x", metadata=metadata)

    assert session.erase(Query(text=WORD)).entries == 1


@pytest.mark.sampled
@pytest.mark.parametrize("asked", ["NFC", "NFD", "NFKC", "NFKD"])
@pytest.mark.parametrize("said", ["NFC", "NFD"])
def test_a_query_compares_letters_by_normal_form(session: Session, said: str, asked: str) -> None:
    """A query compares letters by their normal form; a letter without the accent is another letter."""
    session.add_user_message(f"in {unicodedata.normalize(said, 'ZÜRICH')} there")
    session.add_user_message("in Zurich there")

    assert session.erase(Query(text=unicodedata.normalize(asked, "Zürich"))).entries == 1
    assert remaining(session) == [2]


@pytest.mark.parametrize("asked", ["istanbul", "İstanbul", "ISTANBUL", "İSTANBUL", "\u0131stanbul", "i\u0307stanbul"])
def test_a_query_treats_turkish_i_alike(session: Session, asked: str) -> None:
    """A query treats the dotted and dotless Turkish i alike, in either case."""
    talk(session, "İstanbul'da", "İSTANBUL", "ISTANBUL", "\u0131stanbul", "I\u0307stanbul", "Ankara")

    assert session.erase(Query(text=asked)).entries == 10
    assert remaining(session) == [11, 12]


def test_a_query_does_not_match_native_keys_or_media(session: Session) -> None:
    """A query does not match keys and types of providers' items, nor base64 data."""
    session.add_user_message([Text(text="hello"), Image(source="data:image/png;name=x;base64,dHlwZWFubmE=")])
    session.add(
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "anna", "format": "wav"}}]}
    )
    session.add_user_message([Opaque(item={"type": "tool_use", "id": "1", "input": {}})])

    for word in ("anna", "type", "tool_use", "input_audio", "image/png"):
        assert not session.erase(Query(text=word))
    assert remaining(session) == [1, 2, 3]


def test_fields_of_a_query_are_anded(session: Session) -> None:
    """A query selects the entries that meet all of its fields."""
    session.add_user_message("red", name="ann")
    session.add_user_message("red", name="bob")
    session.add_user_message("blue", name="ann")

    assert session.erase(Query(text="red", user="ann", where="message.name == 'ann'")).entries == 1
    assert remaining(session) == [2, 3]


def test_after_is_inclusive_and_before_exclusive(memory: Memory, clock: FakeClock) -> None:
    """A query's `after` is inclusive and its `before` exclusive."""
    session, begun = memory.session("one"), clock.now
    for _ in range(4):
        session.add_user_message("x")
        clock.advance(60)
    first = datetime.fromtimestamp(begun // 1_000_000, UTC)

    assert session.erase(Query(after=first + timedelta(minutes=1), before=first + timedelta(minutes=3))).entries == 2
    assert remaining(session) == [1, 4]


CONDITIONS = {
    "message.role == 'assistant'": [1, 3, 5],
    "message.index == 2 or contains(message.content, 'two')": [1, 2, 5],
    "message.age == 0": [1, 2, 3, 4],
    "interaction.index == 0": [3, 4, 5],
    "interaction.age == 1": [1, 2, 5],
    "session.message_count == 5": [],
    "message.metadata.lang == 'de'": [1, 2, 3, 4],
}


@pytest.mark.sampled
@pytest.mark.parametrize(("condition", "stays"), CONDITIONS.items())
def test_a_condition_selects_messages_or_whole_interactions(session: Session, condition: str, stays: list[int]) -> None:
    """A condition on messages selects messages; one on interactions or the session selects whole interactions."""
    talk(session, "one", "two")
    session.add_user_message("three", metadata={"lang": "de"})

    session.erase(Query(where=condition))

    assert remaining(session) == stays


def test_a_condition_that_cannot_be_evaluated_erases_nothing(session: Session) -> None:
    """If a condition cannot be evaluated, nothing is erased; the error names the entry, not the condition."""
    session.add_user_message("x", metadata={"amount": 7})
    session.add_user_message("y")

    with pytest.raises(ConfigError, match="entry 2") as raised:
        session.erase(Query(where="message.metadata.amount > 5"))

    assert "amount" not in str(raised.value)
    assert remaining(session) == [1, 2]
    assert (
        session.erase(Query(where="message.metadata.amount is not None and message.metadata.amount > 5")).entries == 1
    )


def test_user_selects_whole_interactions(session: Session) -> None:
    """`user` selects a user's messages, by name or metadata, with all that follows until the next human message."""
    session.add_user_message("hello", name="ann")
    session.add_tool_call("look", {})
    session.add_tool_result("look", "found")
    session.add_assistant_message("here")
    session.add_user_message("me, too", metadata={"user_id": "bob"})
    session.add_assistant_message("of course")
    session.add_assistant_message("by the way", metadata={"user_id": "ann"})

    assert session.erase(Query(user="ann")).entries == 5
    assert remaining(session) == [5, 6]


def test_a_query_reaches_rewound_entries(session: Session) -> None:
    """A query also erases rewound entries, by text, condition and user."""
    talk(session, "one")
    session.add_user_message(f"to {WORD}", name="ann")
    session.rewind(to=2)

    assert session.erase(Query(text=WORD)).entries == 1
    assert session.entry(3).erased
    assert session.verify().ok
    session.rewind(to=session.stats().revision)


BAD = {
    "nothing": {},
    "blank": {"text": " "},
    "no text": {"text": 5},
    "no condition": {"where": "message.secretword =="},
    "an unknown field": {"where": "message.secretword == 1"},
    "a naive time": {"before": datetime(2024, 1, 1)},  # noqa: DTZ001 (that is the mistake)
    "no time": {"after": "secretword"},
}


@pytest.mark.parametrize("fields", BAD.values(), ids=BAD)
def test_a_query_is_checked_when_it_is_made(fields: dict[str, Any]) -> None:
    """An invalid query raises a ConfigError when it is made, and the error does not quote it."""
    with pytest.raises(ConfigError) as raised:
        Query(**fields)

    fault: BaseException | None = raised.value
    while fault is not None:
        assert "secretword" not in str(fault)
        fault = fault.__cause__ or fault.__context__


def test_the_repr_of_a_query_hides_its_values() -> None:
    """The `repr` of a query names the fields that are set, not their values."""
    assert repr(Query(text=WORD, user="ann")) == "Query(text=…, user=…)"


# --- what is reported and told


def test_the_report_counts_erased_entries_and_media_once(memory: Memory) -> None:
    """The report counts entries, images, sounds and documents once each, and names the branches that shared them."""
    session = memory.session("one", counter=quarters)
    session.add_user_message([Text(text=WORD), Image(source="http://x/y.png"), Audio(data="QUJD", format="wav")])
    session.add_user_message([File(data="QUJD", filename=f"{WORD}.pdf")])
    talk(session, "kept")
    memory_branch = session.fork("branch")

    done = session.erase(Query(text=WORD))

    assert done == Erased(entries=2, branches=("branch",), media=3, remains=done.remains)
    assert remaining(memory_branch) == remaining(session) == [3, 4]
    assert session.erase(Query(text=WORD)) == Erased(remains=done.remains)


def test_a_query_is_neither_stored_nor_logged(
    memory: Memory, caplog: pytest.LogCaptureFixture, session: Session
) -> None:
    """Neither records, events nor the program's log hold the text or condition of a query."""
    told: list[Any] = []
    for event in ("erased", "compressed", "compaction:failed", "cut"):
        memory.on(event, lambda name, facts: told.append(facts))
    talk(session, f"to {WORD}", "kept")

    with caplog.at_level(logging.DEBUG):
        session.erase(Query(text=WORD, where="contains(message.content, 'zanzi')"))

    assert [facts["seqs"] for facts in told] == [(1, 2)]
    assert "zanzi" not in str(told) + caplog.text + json.dumps(session.export())
    assert "zanzi" not in str(memory.session("one").history())


def test_a_reason_that_contains_the_erased_text_is_refused(session: Session) -> None:
    """A reason that contains the text to be erased is refused, since reasons are kept in the log."""
    session.add_user_message(WORD)

    with pytest.raises(ConfigError, match="the log keeps the reason") as raised:
        session.erase(Query(text=WORD), reason="they went to Zanzibar")

    assert "anzibar" not in str(raised.value)
    assert remaining(session) == [1]


def test_a_query_removes_its_text_from_earlier_reasons(session: Session) -> None:
    """A query also removes its text from the reasons of earlier records."""
    talk(session, "one", "two", "three")
    session.erase([1], reason=f"about {WORD}")
    assert WORD in str(session.history())

    session.erase(Query(text=WORD))

    assert WORD not in str(session.history())
    assert WORD not in json.dumps(session.export())
    assert session.verify().ok


def test_a_query_removes_its_text_from_conditions_of_cuts(memory: Memory) -> None:
    """A query also removes recorded conditions of cuts that contain its text, from records and the head."""
    chosen = memory.session(
        "one", counter=quarters, max_tokens=60, conditions=[f"not contains(message.content, '{WORD}')"]
    )
    for number in range(30):
        talk(chosen, f"about {number}")
        chosen.context()
    assert WORD in json.dumps(chosen.export())

    memory.session("one", counter=quarters).erase(Query(text=WORD))

    plain = memory.session("one", counter=quarters, max_tokens=60)
    assert WORD not in json.dumps(plain.export())
    assert plain.verify().ok
    assert plain.context().tokens <= 60


def test_unknown_entries_and_invalid_arguments_are_refused(session: Session) -> None:
    """An unknown id raises EntryNotFound, anything but ids or a query ConfigError; nothing is erased."""
    talk(session, "one")

    with pytest.raises(EntryNotFound):
        session.erase([1, "nobody"])
    with pytest.raises(ConfigError, match="ids"):
        session.erase(None)  # type: ignore[arg-type]
    assert remaining(session) == [1, 2]


# --- summaries


class Parrot:
    """A summarizer that repeats its source, or always says the same sentence."""

    def __init__(self, always: str = "") -> None:
        self.always, self.asked = always, 0

    def __call__(self, prompt: str) -> str:
        self.asked += 1
        words = [word for word in prompt.split() if word.isalpha() and len(word) > 3]
        return " ".join([self.always, *words[-12:]])


def summarised(memory: Memory, summarizer: Any = None, *texts: str) -> Session:
    """Return a session of which all but the newest interaction is covered."""
    taken = summarizer and CallableSummarizer(summarizer, checked=False)
    session = memory.session("one", counter=quarters, summarizer=taken, auto_compact="off")
    for text in texts or (f"we went to {WORD} " * 8, "we went to the market " * 8, "we stayed at home " * 8):
        talk(session, text)
    talk(session, "and now")
    assert session.compact(Summarize(interaction_keep=1)).done
    return session


def test_a_summary_of_an_erased_entry_is_made_again_without_it(memory: Memory) -> None:
    """A summary of an erased entry is withdrawn, and a new one covers the other entries."""
    session = summarised(memory)

    done = session.erase(Query(text=WORD))

    assert (done.entries, done.withdrawn, done.rebuilt) == (2, 1, 1)
    (made,) = session.summaries()
    assert "market" in made.text
    assert WORD not in json.dumps(session.export())
    assert WORD not in str(session.context().messages)
    assert session.verify().ok


def test_a_summary_of_erased_entries_alone_is_withdrawn(memory: Memory) -> None:
    """A summary is withdrawn without a successor if all that it covered is erased."""
    session = summarised(memory, None, f"all of it {WORD} " * 10)

    done = session.erase(Query(text=WORD))

    assert (done.withdrawn, done.rebuilt, session.summaries()) == (1, 0, [])
    assert session.verify().ok


def test_a_summary_that_repeats_the_erased_text_is_refused(memory: Memory) -> None:
    """A summarizer's answer that contains the erased text is refused, and the heuristic's summary is taken."""
    parrot = Parrot(always=f"They went to {WORD.upper()}.")
    session = summarised(memory, parrot)
    before = parrot.asked

    done = session.erase(Query(text=WORD))

    assert parrot.asked > before
    assert done.rebuilt == 1
    (made,) = session.summaries()
    assert (made.method, made.fallback) == ("heuristic", "the summarizer repeated erased text")
    assert WORD not in json.dumps(session.export()).lower()
    assert WORD not in str(session.history()).lower()


def test_a_summary_that_contains_the_text_is_replaced(memory: Memory) -> None:
    """A summary that contains the text is replaced in every branch, even if no covered entry contains it."""
    parrot = Parrot(always=f"Somebody said {WORD}.")
    session = summarised(memory, parrot, "we went to the market " * 9, "we stayed at home " * 9)
    branch = session.fork("branch")
    assert WORD in branch.summaries()[0].text

    done = session.erase(Query(text=WORD))

    assert (done.entries, done.withdrawn, done.rebuilt) == (0, 2, 2)
    for each in (session, branch):
        assert WORD not in json.dumps(each.export()).lower()
        assert len(each.summaries()) == 1
        assert each.verify().ok
        assert each.stats().erased_entries == 0


def test_older_summary_versions_lose_their_text(memory: Memory) -> None:
    """Older versions of a summary with the erased text lose their text as well."""
    session = summarised(memory)
    talk(session, "we bought a boat " * 9, "and more")
    session.compact(Summarize(interaction_keep=1))
    assert len(session.summaries(history=True)) == 2

    session.erase(Query(text=WORD))

    history = session.summaries(history=True)
    assert [made.withdrawn for made in history[:2]] == [True, True]
    assert WORD not in str(history)
    assert session.verify().ok


# --- what is made from entries


class Index:
    """Derived data: texts by session and id."""

    name = "index"

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        self.broken = False

    async def erased(self, tenant: str, session: str, entries: Mapping[int, str]) -> int:
        if self.broken:
            raise OSError("the index is away")
        self.told.append((session, dict(entries)))
        return len(entries)

    async def gone(self, tenant: str, session: str) -> int:
        if self.broken:
            raise OSError("the index is away")
        self.told.append((session, None))
        return 1


def test_derived_data_is_told_of_an_erasure_in_every_branch(memory: Memory, session: Session) -> None:
    """An erasure tells derived data the seqs and ids of the entries, for each session that shares them."""
    index = Index()
    memory.derive(index)
    talk(session, "one", "two")
    branch = session.fork("branch")
    ids = {entry.seq: entry.id for entry in session.entries()}

    done = session.erase([1, 3])

    gone = {1: ids[1], 3: ids[3]}
    assert index.told == [("one", gone), ("branch", gone)]
    assert done.derived == {"index": 4}
    branch.erase([1])  # already erased, so the index is not called again
    assert len(index.told) == 2


def test_nothing_is_erased_if_derived_data_fails(memory: Memory, session: Session) -> None:
    """If derived data fails to erase, the entries stay, the error names it, and the erasure can be repeated."""
    index = Index()
    stop = memory.derive(index)
    index.broken = True
    talk(session, "one")

    for destroy in (
        lambda: session.erase([1]),
        session.clear,
        lambda: memory.delete_session("one"),
        lambda: memory.forget(matches="one"),
        lambda: memory.forget(session="one"),
        lambda: memory.forget(tenant="default"),
        lambda: memory.import_session(session.export(), on_conflict="replace"),
    ):
        with pytest.raises(ErasureFailed, match=r"index .* \(OSError\)") as raised:
            destroy()
        assert isinstance(raised.value.__cause__, OSError)
    assert remaining(session) == [1, 2]
    index.broken = False
    assert session.erase([1]).derived == {"index": 1}
    stop()
    session.erase([2])
    assert [seqs for _, seqs in index.told] == [{1: session.entry(1).id}]


def test_every_destroying_verb_tells_derived_data(memory: Memory, clock: FakeClock) -> None:
    """Clear, delete, replace, sweep, flush without archive, the neuralyzer and forget all tell derived data."""
    index = Index()
    memory.derive(index)

    def new(name: str, **options: Any) -> Session:
        index.told.clear()
        session = memory.session(name, counter=quarters, **options)
        talk(session, "one " * 9, "two " * 9, "three " * 9)
        return session

    new("cleared").clear()
    assert index.told == [("cleared", None)]
    new("deleted")
    memory.delete_session("deleted")
    assert index.told == [("deleted", None)]
    data = new("replaced").export()
    memory.import_session(data, on_conflict="replace")
    assert index.told == [("replaced", None)]
    session = new("swept")
    soon = session.entry(1).created_at + timedelta(minutes=1)
    session.add_user_message("expires", expires_at=soon)
    session.fork("swept too")
    clock.advance(3600)
    assert memory.sweep() >= 1
    assert sorted((name, [*seqs]) for name, seqs in index.told) == [("swept", [7]), ("swept too", [7])]
    session = new("flushed", persistence="flush", archive=False, max_messages=2)
    session.compact("simple_fifo")
    session.end_turn()
    assert [(name, [*seqs]) for name, seqs in index.told] == [("flushed", [1, 2, 3, 4, 5])]
    new("neuralyzed").compact("neuralyzer")
    assert [name for name, _ in index.told] == ["neuralyzed"]
    new("forgotten")
    memory.forget(session="forgotten")
    assert ("forgotten", None) in index.told
    new("ephemeral", persistence="ephemeral").erase([1])
    assert index.told == []


def test_derived_data_is_checked_when_it_is_registered(memory: Memory) -> None:
    """Derived data needs a unique name and both functions."""
    memory.derive(Index())

    for wrong in (object(), Index(), Index):
        with pytest.raises(ConfigError, match="derived"):
            memory.derive(wrong)  # type: ignore[arg-type]


# --- other writers


@pytest.mark.parametrize("memory", ["memory", "sqlite", "file"], indirect=True)  # a driver's loop runs what meddles
def test_entries_added_during_an_erasure_are_erased_too(memory: Memory, session: Session) -> None:
    """After an erasure its query is applied to entries added meanwhile, until none matches; none is erased twice."""
    session.add_user_message(f"to {WORD}")
    writer = memory.session("one")

    class Meddler(Index):
        async def erased(self, tenant: str, session: str, entries: Mapping[int, str]) -> int:
            if max(entries) < 4:
                await memory._core.session("one").add_user_message(f"again {WORD} {max(entries)}")
            return await super().erased(tenant, session, entries)

    memory.derive(Meddler())

    assert session.erase(Query(text=WORD)).entries == 4
    assert remaining(writer) == []
    assert [record.seqs for record in session.history() if record.kind == "erase"] == [(1,), (2,), (3,), (4,)]


# --- where nothing can be read, or nothing is stored


def test_a_query_removes_reasons_and_conditions_from_an_encrypted_store() -> None:
    """In an encrypted store, too, a query removes reasons and conditions that contain its text."""
    with Memory.open("memory://", encryption={"a": b"k" * 32}) as memory:
        picky = [f"not contains(message.content, '{WORD}')"]
        chosen = memory.session("one", counter=quarters, max_tokens=60, conditions=picky)
        for number in range(20):
            talk(chosen, f"about {number}")
            chosen.context()
        chosen.erase([1], reason=f"about {WORD}")
        branch = chosen.fork("branch")
        assert WORD in json.dumps(branch.export())

        chosen.erase(Query(text=WORD))

        for each in (memory.session("one", counter=quarters), memory.session("branch", counter=quarters)):
            assert WORD not in json.dumps(each.export())
            assert each.verify().ok
            assert each.context(max_tokens=60).tokens <= 60


def test_branches_keep_records_that_do_not_contain_the_text(memory: Memory) -> None:
    """A branch keeps its own record of a revision whose record in another branch contained the text."""
    session = memory.session("one", counter=quarters, auto_compact="off")
    talk(session, "we went to the market " * 40, "we stayed at home " * 40)
    branch = session.fork("branch")
    branch.compact(Summarize(interaction_keep=1))
    session.erase([2], reason=f"about {WORD}")
    talk(session, "more")
    (made,) = branch.summaries()

    session.erase(Query(text=WORD))

    assert WORD not in str(session.history())
    assert branch.summaries(history=True)[-1].covers == made.covers
    assert len(branch.summaries()) == 1
    assert branch.verify().ok


def test_an_erasure_in_an_ephemeral_session_leaves_the_store_unchanged(memory: Memory) -> None:
    """A query in an ephemeral session changes what that session shows, not the stored session."""
    stored = memory.session("one", counter=quarters)
    talk(stored, f"to {WORD}")
    stored.erase([2], reason=f"about {WORD}")
    ephemeral = memory.session("one", counter=quarters, persistence="ephemeral")
    ephemeral.add_user_message(f"{WORD} again")

    assert ephemeral.erase(Query(text=WORD)).entries == 2

    assert WORD not in json.dumps(ephemeral.export())
    assert WORD in stored.entry(1).text
    assert WORD in str(stored.history())


def test_async_memory_erases_and_forgets_alike(tmp_path: Any) -> None:
    """An asynchronous memory has `erase`, `forget` and derived data, too."""
    import asyncio

    from palimpsest import AsyncMemory

    async def main() -> None:
        async with AsyncMemory.open(tmp_path / "log.db") as memory:
            index = Index()
            await memory.derive(index)
            session = memory.session("one")
            await session.add_user_message(f"to {WORD}", name="ann")
            await session.add_user_message("kept")
            assert (await session.erase(Query(text=WORD))).derived == {"index": 1}
            assert (await memory.forget(matches="kept")).entries == 1
            assert (await memory.forget(session="one")).sessions == ("one",)

    asyncio.run(main())


def test_clear_with_seen_clears_only_an_unchanged_session() -> None:
    """`clear(seen=…)` clears only if nothing was added since that revision or context."""
    with Memory.open("memory://") as memory:
        session = memory.session("a", max_tokens=1000)
        session.add_user_message("one")
        context = session.context()
        session.add_user_message("two")
        for seen in (context, context.revision, 0):
            with pytest.raises(Conflict, match="revision"):
                session.clear(seen=seen)
        for wrong in ("1", True, 1.5):
            with pytest.raises(ConfigError, match="seen"):
                session.clear(seen=wrong)  # type: ignore[arg-type]
        assert len(session.entries()) == 2

        assert session.clear(seen=session.context()) == 2
        assert memory.session("never").clear(seen=0) == 0


# --- into another session


def test_tombstones_added_to_another_session_stay_tombstones() -> None:
    """Tombstones that are added to another session stay tombstones and are counted as such."""
    with Memory.open("memory://") as memory:
        one, other = memory.session("one"), memory.session("other")
        talk(one, "hello", WORD, "bye")
        call = one.add_tool_call("find", {"at": WORD})
        one.add_tool_result("find", WORD, call_id=call.call_id)
        one.add_context(WORD, name=WORD)
        one.add_tool_call("ask", {}, call_id="open")
        one.erase(Query(text=WORD))

        other.add_entries(one.entries())

        assert remaining(other) == remaining(one)
        assert [entry.content for entry in other.entries()] == [entry.content for entry in one.entries()]
        assert other.verify() == one.verify()
        assert other.verify().ok
        assert other.stats().erased_entries == one.stats().erased_entries > 0
        assert other.stats().open_calls == ("open",)
        other.resolve("open")
        other.add_user_message("go on")
        assert other.context(format="openai").messages


def test_an_entry_given_as_erased_is_stored_as_a_tombstone() -> None:
    """An entry that is given as erased or flushed is stored as a tombstone, in an atomic turn, too."""
    buried = {"content": WORD, "name": WORD, "metadata": {"user_id": WORD}}
    with Memory.open("memory://") as memory:
        session = memory.session("s")
        added = session.add_entries([Entry(**buried, erased=True), Entry(**buried, flushed=True)])
        with session.turn(atomic=True):
            added += session.add_entries([Entry(**buried, erased=True, flushed=True)])
        session.add_entries([Entry(kind="tool_call", erased=True)])
        session.add_tool_result("find", "found")

        assert WORD not in repr(added) + repr(session.entries())
        assert [entry.flushed for entry in added] == [False] * 3
        assert session.stats().erased_entries == 4
        assert session.verify().ok
