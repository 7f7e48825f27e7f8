"""Entries of withheld types are in this process's contexts until their interaction ends, and are never stored."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from palimpsest import AsyncMemory, Conflict, Entry, Memory, Redactor, Session, Text
from palimpsest.formats import find_format
from palimpsest.sessions.withheld import Withheld
from palimpsest.strategies import CallableSummarizer
from processes import at_once
from sealed import bytes_of
from watched_memory import found_in
from writer import quarters

SECRET = "walrus-and-carpenter"
POLICY: dict[str, Any] = {
    "non_persistable_message_types": ["health", "System", "summary"],
    "redact_patterns": [(r"\d{3}-\d{2}-\d{4}", "[SSN]")],
}
TYPED = {"type": "Health"}


@pytest.fixture(params=["sqlite", "file", "memory"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Memory]:
    """An empty store of each kind with a policy; nothing withheld is in its files when the test is over."""
    (tmp_path / "store").mkdir()
    where = {"sqlite": f"sqlite:///{tmp_path}/store/log.db", "file": f"file://{tmp_path}/store/logs"}
    with Memory.open(where.get(request.param, "memory://"), privacy=POLICY) as memory:
        yield memory
        assert found_in(bytes_of(tmp_path / "store"), SECRET) == []
    assert found_in(bytes_of(tmp_path / "store"), SECRET) == []


def chat(memory: Memory, name: str = "s", **options: Any) -> Session:
    """A session of the memory."""
    return memory.session(name, **{"counter": quarters, **options})


def shown(session: Session, **options: Any) -> str:
    """Return everything that a context gives the model, after checking that its provider accepts it."""
    context = session.context(**options)
    format = options.get("format", "openai")
    if format != "text":
        assert find_format(format).validate(context.messages) == []
    return f"{context.system} {context.messages} {context.text if format == 'text' else ''}"


def is_nowhere(memory: Memory, session: Session) -> bool:
    """Whether neither the session nor the memory, apart from contexts, returns withheld text."""
    told = [session.entries(rewound=True), session.active_entries(), session.interactions(), session.history()]
    told += [session.export(), session.summaries(history=True), memory.sessions(), session.stats()]
    return SECRET not in repr(told)


# --- usable until the interaction ends, and then nowhere


@pytest.mark.parametrize("format", ["openai", "openai-responses", "anthropic", "gemini", "text"])
def test_a_withheld_entry_is_in_contexts_until_the_final_message(memory: Memory, format: str) -> None:
    """In every format all sessions of the memory show a withheld entry in its place, until the answer is added."""
    session, other = chat(memory), chat(memory, format=format)
    session.add_user_message("before")
    session.add_user_message(SECRET, metadata=TYPED)
    session.add_user_message("after")

    text = shown(other, format=format)
    assert text.index("before") < text.index(SECRET) < text.index("after")
    assert SECRET in shown(session)
    assert SECRET not in shown(chat(memory, "another"))
    assert is_nowhere(memory, session)
    assert (session.stats().total_entries, session.count()) == (2, 0)

    session.add_assistant_message("an answer")

    assert SECRET not in shown(session) + shown(other, format=format)
    assert is_nowhere(memory, session)


@pytest.mark.parametrize(
    "entry",
    [
        Entry(content=SECRET, metadata=TYPED),
        Entry(content=SECRET, metadata={"tags": ["x", "HEALTH"]}),
        Entry(content=SECRET, role="system"),
        Entry(kind="context", content=SECRET, name="notes", metadata={"tags": "health"}),
        Entry(kind="summary", role="assistant", content=SECRET),
    ],
    ids=["metadata.type", "tag", "role", "context", "kind"],
)
def test_a_withheld_type_is_a_role_a_kind_or_a_tag(memory: Memory, entry: Entry) -> None:
    """Types are compared with role, kind, type and tags without case; the entry is returned as given and not stored."""
    session = chat(memory)
    session.add_user_message("hello")
    (given,) = session.add_entries([entry])

    assert (given.text, given.revision) == (SECRET, 0)
    assert SECRET in shown(session)
    assert len(session.entries()) == 1


@pytest.mark.parametrize(
    "marked", [{"metadata": TYPED}, {"metadata": {"tags": ["health"]}}, TYPED, {"tags": ["HEALTH"]}]
)
def test_mappings_are_withheld_by_their_type_or_tags(memory: Memory, marked: dict[str, Any]) -> None:
    """A message given as a mapping is withheld by its own type or tags, with all its calls; the messages beside it are
    stored."""
    call = {"id": "c1", "type": "function", "function": {"name": "record", "arguments": f'{{"who": "{SECRET}"}}'}}
    session = chat(memory)
    session.add({"role": "user", "content": f"about {SECRET}", **marked})
    session.add({"role": "assistant", "content": f"I record {SECRET}", "tool_calls": [call], **marked})
    session.add({"role": "tool", "tool_call_id": "c1", "content": f"recorded {SECRET}", **marked})
    assert SECRET in shown(session)
    session.add([{"role": "assistant", "content": "It is done."}, {"role": "user", "content": "Thanks."}])
    assert SECRET not in shown(session)
    assert is_nowhere(memory, session)
    session.replace(
        [{"role": "user", "content": f"again {SECRET}", **marked}, {"role": "assistant", "content": "Yes."}]
    )
    assert is_nowhere(memory, session)
    assert "Yes." in [entry.text for entry in session.active_entries()]


def test_a_withheld_result_leaves_a_stub_that_answers_its_call(memory: Memory) -> None:
    """The log stores the redaction string in its place, which contexts show once the answer is added."""
    session = chat(memory)
    session.add_user_message("how am I?")
    session.add_tool_call("look", {}, call_id="c1")
    session.add_tool_call("look", {}, call_id="c2")
    session.add_tool_result("look", SECRET, call_id="c1", metadata=TYPED)
    session.add_tool_result("look", "fine", call_id="c2")

    assert SECRET in shown(session)
    assert [entry.text for entry in session.entries()][-2:] == ["[REDACTED]", "fine"]
    session.add_assistant_message("well")
    text = shown(session)
    assert SECRET not in text
    assert "[REDACTED]" in text
    assert session.stats().open_calls == ()


def test_contexts_are_valid_with_and_without_a_withheld_call(memory: Memory) -> None:
    """A withheld call is shown with its result; after the answer, the context is valid without the call."""
    session = chat(memory)
    session.add_user_message("how am I?")
    session.add_tool_call("look", {"at": SECRET}, call_id="c1", metadata=TYPED)
    session.add_tool_result("look", "fine", call_id="c1")

    assert SECRET in shown(session)
    session.add_assistant_message("well")
    assert SECRET not in shown(session)


def test_withheld_entries_of_a_batch_keep_their_place(memory: Memory) -> None:
    """Withheld entries between stored and redacted entries of a batch are shown in their order."""
    session = chat(memory)
    given = session.add_entries(
        [
            Entry(content="one 123-45-6789"),
            Entry(content=f"two {SECRET}", metadata=TYPED),
            Entry(content=f"three {SECRET}", metadata=TYPED),
            Entry(content="four"),
            Entry(content=f"five {SECRET} 123-45-6789", metadata=TYPED),
        ]
    )

    assert [entry.text[:3] for entry in given] == ["one", "two", "thr", "fou", "fiv"]
    text = shown(session)
    places = [text.index(word) for word in ("one [SSN]", "two", "three", "four", "five")]
    assert places == sorted(places)
    assert [entry.text for entry in session.entries()] == ["one [SSN]", "four"]


@pytest.mark.parametrize(
    ("format", "messages"),
    [
        ("anthropic", [{"role": "user", "content": SECRET}]),
        (
            "anthropic",
            [
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": SECRET},
                        {"type": "tool_use", "id": "t1", "name": "record", "input": {"who": SECRET}},
                    ],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": SECRET}]},
            ],
        ),
        ("gemini", [{"role": "user", "parts": [{"text": SECRET}]}]),
        ("openai-responses", [{"type": "message", "role": "user", "content": SECRET}]),
        (
            "openai-responses",
            [
                {"type": "function_call", "call_id": "c1", "name": "record", "arguments": f'{{"who": "{SECRET}"}}'},
                {"type": "function_call_output", "call_id": "c1", "output": SECRET},
            ],
        ),
    ],
)
def test_messages_of_every_format_are_withheld_by_their_metadata(
    memory: Memory, format: Any, messages: list[dict[str, Any]]
) -> None:
    """Messages of every format are withheld by the type in their metadata, wherever the format holds their content."""
    session = chat(memory, format=format)
    session.add([{**message, "metadata": TYPED} for message in messages], format=format)
    assert SECRET in shown(session, format=format)
    session.add_assistant_message("It is done.")
    assert SECRET not in shown(session, format=format)
    assert is_nowhere(memory, session)


def test_an_answer_ends_withholding_even_in_one_batch_with_the_next_question(memory: Memory) -> None:
    """An answer ends the interaction whose content was withheld, also when the same batch brings the next question;
    what is withheld of that next interaction stays."""
    session = chat(memory)
    answered = [{"role": "assistant", "content": "It is done."}, {"role": "user", "content": "Thanks."}]
    session.add_user_message(SECRET, metadata=TYPED)
    session.add({"role": "user", "content": "Well?"})
    assert SECRET in shown(session)
    session.add(answered)
    assert SECRET not in shown(session)
    session.add([*answered, {"role": "user", "content": SECRET, "metadata": TYPED}])
    assert SECRET in shown(session)
    session.add_assistant_message("Noted.")
    assert SECRET not in shown(session)


def test_a_turn_keeps_withheld_entries_to_its_end(memory: Memory) -> None:
    """Inside a `turn()`, withheld entries are shown until the end of the block, even an end by an error."""
    session = chat(memory)
    with session.turn():
        session.add_user_message(SECRET, metadata=TYPED)
        session.add_assistant_message("one step")
        assert SECRET in shown(session)
    assert SECRET not in shown(session)

    session.add_user_message(SECRET, metadata=TYPED)
    session.add_user_message("x")
    session.end_turn()
    assert SECRET not in shown(session)

    def broken() -> None:
        with session.turn():
            session.add_user_message(SECRET, metadata=TYPED)
            raise KeyError

    with pytest.raises(KeyError):
        broken()
    assert SECRET not in shown(session)


def test_an_atomic_turn_stores_no_withheld_entry(memory: Memory) -> None:
    """An atomic turn is committed without its withheld entries."""
    session = chat(memory)
    with session.turn(atomic=True):
        session.add_user_message("hello")
        session.add_user_message(SECRET, metadata=TYPED)
        session.add_assistant_message("an answer")

    assert [entry.text for entry in session.entries()] == ["hello", "an answer"]
    assert SECRET not in shown(session)


def test_an_ephemeral_session_forgets_withheld_entries_after_its_turn(memory: Memory) -> None:
    """An ephemeral session shows withheld entries during its turn, and not after it."""
    session = chat(memory, persistence="ephemeral")
    with session.turn():
        session.add_user_message("hello")
        session.add_user_message(SECRET, metadata=TYPED)
        assert SECRET in shown(session)
    assert SECRET not in shown(session)
    assert memory._core._scope.withheld == {}


# --- what others do meanwhile


def test_contexts_with_withheld_entries_show_what_other_processes_add(tmp_path: Path) -> None:
    """A context shows entries of another process, in order, among withheld ones; that process sees none of these."""
    where = f"sqlite:///{tmp_path}/log.db"
    with Memory.open(where, privacy=POLICY) as here, Memory.open(where, privacy=POLICY) as there:
        ours, theirs = chat(here), chat(there)
        ours.add_user_message(SECRET, metadata=TYPED)
        theirs.add_user_message("from elsewhere")
        ours.add_user_message("and from here")
        theirs.add_user_message("once more")

        text = shown(ours)
        places = [text.index(word) for word in (SECRET, "from elsewhere", "and from here", "once more")]
        assert places == sorted(places)
        assert SECRET not in shown(theirs)


@pytest.mark.parametrize("how", ["erase", "clear", "rewind", "delete", "replace"])
def test_erasing_clearing_and_rewinding_remove_withheld_entries(memory: Memory, how: str) -> None:
    """Erasing, clearing, rewinding, deleting and replacing leave nothing of it, also where nothing else was added."""
    session = chat(memory)
    session.add_user_message("hello")
    before = session.export()
    session.add_user_message(SECRET, metadata=TYPED)
    assert SECRET in shown(session)
    verbs = {
        "erase": lambda: session.erase([1]),
        "clear": session.clear,
        "rewind": lambda: session.rewind(1),
        "delete": lambda: memory.delete_session("s"),
        "replace": lambda: memory.import_session(before, on_conflict="replace"),
    }
    verbs[how]()

    assert SECRET not in shown(session)
    assert memory._core._scope.withheld == {}


def test_a_deleted_sessions_withheld_entries_are_not_in_its_successor(tmp_path: Path) -> None:
    """After another memory deletes the session, its withheld entries are not shown, even if the id is used again."""
    where = f"sqlite:///{tmp_path}/log.db"
    with Memory.open(where, privacy=POLICY) as here, Memory.open(where, privacy=POLICY) as there:
        session = chat(here)
        session.add_user_message("hello")
        session.add_user_message(SECRET, metadata=TYPED)
        assert SECRET in shown(session)
        there.delete_session("s")
        assert SECRET not in shown(session)

        session.add_user_message("hello again")
        session.add_user_message(SECRET, metadata=TYPED)
        there.delete_session("s")
        for number in range(3):
            chat(there).add_user_message(f"anew {number}")
        text = shown(session)
        assert SECRET not in text
        assert "anew 2" in text


def test_a_growing_keyed_batch_shows_withheld_entries_once(memory: Memory) -> None:
    """Adding a growing list under one key shows its withheld entry once, and not again after the answer."""
    session = chat(memory)
    messages: list[dict[str, Any]] = [{"role": "system", "content": SECRET}, {"role": "user", "content": "hello"}]
    for _ in range(2):
        session.add(messages, key="list")
        assert shown(session).count(SECRET) == 1
    messages.append({"role": "assistant", "content": "an answer"})
    session.add(messages, key="list")
    assert SECRET not in shown(session)

    session.add(messages, key="list")
    assert SECRET not in shown(session)
    messages.append({"role": "user", "content": "more"})
    session.add(messages, key="list")
    assert SECRET not in shown(session)


def test_a_refused_batch_withholds_nothing(memory: Memory) -> None:
    """If the store refuses a batch, contexts show none of its withheld entries."""
    session = chat(memory)
    session.add_entries([Entry(id="one", content="hello")])
    with pytest.raises(Conflict):
        session.add_entries([Entry(content=SECRET, metadata=TYPED), Entry(id="one", content="something else")])

    assert SECRET not in shown(session)
    assert memory._core._scope.withheld == {}


# --- budgets


def test_contexts_with_withheld_entries_fit_and_store_no_cut(memory: Memory) -> None:
    """A context over its budget cuts withheld entries like others, and the stored session gets no cut."""
    session = chat(memory, max_tokens=400)
    for number in range(20):
        session.add_user_message(f"question {number} " + "word " * 20)
        session.add_tool_call("look", {"at": number}, call_id=f"c{number}")
        session.add_tool_result("look", f"{SECRET} {number} " * 5, call_id=f"c{number}", metadata=TYPED)
        context = session.context()
        assert context.tokens <= 400
        assert find_format("openai").validate(context.messages) == []
        assert context.epoch is None
    assert SECRET in str(context.messages)
    assert session.stats().epoch == 0
    assert [record.kind for record in session.history() if record.kind != "add"] == []


# --- threads, tasks, memory


@pytest.mark.anyio
async def test_tasks_of_an_asynchronous_memory_share_withheld_entries(tmp_path: Path) -> None:
    """Tasks that add to one session at once see all of its withheld entries, once each; another session sees none."""
    async with AsyncMemory.open(f"sqlite:///{tmp_path}/log.db", privacy=POLICY) as memory:
        one, two = (memory.session(name, counter=quarters) for name in ("one", "two"))

        async def add(number: int) -> None:
            await one.add_user_message(f"({number}) {SECRET}", metadata=TYPED)
            await one.add_user_message(f"<{number}>")
            await two.add_user_message(f"two {number}")

        await asyncio.gather(*(add(number) for number in range(12)))
        text = str((await one.context()).messages)
        assert [text.count(f"({number}) {SECRET}") for number in range(12)] == [1] * 12
        assert [text.count(f"<{number}>") for number in range(12)] == [1] * 12
        assert SECRET not in str((await two.context()).messages)
        await one.add_assistant_message("an answer")
        assert SECRET not in str((await one.context()).messages)
        assert memory._scope.withheld == {}
    assert found_in(bytes_of(tmp_path), SECRET) == []


def test_withheld_entries_of_several_threads_are_all_shown_once(memory: Memory) -> None:
    """Every thread's withheld messages and stubs are in the context, once each."""
    session = chat(memory)
    session.add_user_message("begin")

    def add(number: int) -> None:
        own = chat(memory)
        for turn in range(5):
            own.add_user_message(f"({number}.{turn}) {SECRET}", metadata=TYPED)
            own.add_user_message(f"<{number}.{turn}>")

    at_once(add, 4)

    text = shown(session)
    labels = [f"{number}.{turn}" for number in range(4) for turn in range(5)]
    assert [label for label in labels if text.count(f"({label}) {SECRET}") != 1] == []
    assert [label for label in labels if text.count(f"<{label}>") != 1] == []


def test_withheld_entries_are_released_after_the_interaction() -> None:
    """After the interaction nothing in the process refers to the withheld entries."""
    with Memory.open("memory://", privacy=POLICY) as memory:
        session = chat(memory)
        session.add_user_message("hello")
        session.add_user_message(SECRET, metadata=TYPED)
        session.context()
        (held,) = memory._core._scope.withheld.values()
        assert isinstance(held, Withheld)
        gone = weakref.ref(held)
        del held
        session.add_assistant_message("an answer")
        gc.collect()

        assert gone() is None
        assert memory._core._scope.withheld == {}


def test_interactions_that_nobody_ends_do_not_pile_up(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process keeps what is withheld of the interactions that began last: otherwise one in which nobody answers, such
    as a service to which programs only append, would keep all of it for ever."""
    monkeypatch.setattr("palimpsest.sessions.withheld.MOST", 3)
    for name in "abcde":
        chat(memory, name).add_user_message(SECRET, metadata=TYPED)
        chat(memory, name).add_user_message(f"hello from {name}")

    assert [SECRET in shown(chat(memory, name)) for name in "abcde"] == [False, False, True, True, True]
    assert all("hello from" in shown(chat(memory, name)) for name in "abcde")
    chat(memory, "a").add_user_message(SECRET, metadata=TYPED)
    assert [SECRET in shown(chat(memory, name)) for name in "abc"] == [True, False, False]


@pytest.mark.parametrize("format", ["openai", "openai-responses", "anthropic", "gemini"])
def test_replace_with_a_contexts_messages_stores_nothing_withheld(memory: Memory, format: Any) -> None:
    """`replace` with messages of a context stores nothing that was withheld in it: that is shown until its interaction
    ends."""
    session = chat(memory, format=format)
    session.add_user_message("one")
    session.add_assistant_message("two")
    session.add_user_message("may I?")
    session.add_tool_call("look", {}, call_id="c1")
    session.add_tool_result("look", f"found {SECRET}", call_id="c1", metadata=TYPED)
    session.add_user_message(SECRET, metadata=TYPED)
    session.add_user_message([Text(text=f"a part of {SECRET}"), Text(text="another")], metadata=TYPED)

    for _ in range(2):
        given = session.context()
        session.replace(given.messages[2:], seen=given)
        assert is_nowhere(memory, session)
        assert shown(session, format=format).count(SECRET) == 3
    session.add_assistant_message("you may")

    assert SECRET not in shown(session, format=format)
    assert is_nowhere(memory, session)
    assert session.verify().problems == ()


FORMATS = ["openai", "openai-responses", "anthropic", "gemini"]


def withheld_in_every_way(session: Session) -> None:
    """Add entries withheld by role, kind, metadata, tags or mapping: messages, a context, a call and its result."""
    call = {"id": "c1", "type": "function", "function": {"name": "record", "arguments": f'{{"who":"{SECRET} of 1"}}'}}
    session.add_user_message("may I?")
    session.add_entries([Entry(content=f"{SECRET} <system_message> 2", role="system")])
    session.add_entries([Entry(kind="context", content=f"{SECRET} 3", name="notes", metadata={"tags": "health"})])
    session.add({"role": "user", "content": f"{SECRET} 4", "metadata": TYPED})
    session.add({"role": "assistant", "content": f"{SECRET} 5", "tool_calls": [call], "tags": ["health"]})
    session.add({"role": "tool", "tool_call_id": "c1", "content": f"{SECRET} 6", **TYPED})
    session.add_user_message([Text(text=f"a part of {SECRET}"), Text(text="another")], metadata=TYPED)


@pytest.mark.parametrize("marked", [TYPED, {"tags": ["health"]}, {"metadata": TYPED}])
@pytest.mark.parametrize("format", FORMATS)
def test_a_mapping_is_withheld_in_a_session_of_any_format(memory: Memory, format: Any, marked: dict[str, Any]) -> None:
    """A mapping is withheld even if the session's format takes it for an item of an unknown type."""
    session = chat(memory, format=format)
    session.add_user_message("may I?")
    session.add({"role": "user", "content": SECRET, **marked})
    assert is_nowhere(memory, session)


@pytest.mark.parametrize("ended", [False, True], ids=["open", "ended"])
@pytest.mark.parametrize("format", FORMATS)
def test_withheld_entries_stay_withheld_when_a_context_is_given_to_replace(
    memory: Memory, format: Any, ended: bool
) -> None:
    """`replace` with a context stores no withheld text, in the open interaction or with `seen` after its end."""
    session = chat(memory, format=format)
    withheld_in_every_way(session)
    for _ in range(2):
        given = session.context()
        assert str(given.messages).count(SECRET) >= 5  # a system text may be beside them
        assert {SECRET in str(entry.content) for entry in given.withheld} == {True}
        if ended:
            session.add_assistant_message("you may")
            assert session.context().withheld == ()
        session.replace(given.messages, seen=given)
        assert is_nowhere(memory, session)
    session.add_assistant_message("you may")

    assert SECRET not in shown(session, format=format)
    assert is_nowhere(memory, session)
    assert session.verify().problems == ()


@pytest.mark.parametrize("seen", [True, False], ids=["with seen", "without seen"])
@pytest.mark.parametrize("format", FORMATS)
def test_clamped_withheld_entries_stay_withheld_when_given_to_replace(memory: Memory, format: Any, seen: bool) -> None:
    """A withheld text that a context has clamped, and so changed, is recognised by `replace` and not stored."""
    session = chat(memory, format=format, max_tokens=600)
    session.add_user_message("may I?")
    session.add_tool_call("look", {}, call_id="c1")
    session.add_tool_result("look", f"{SECRET} found " * 400, call_id="c1", metadata=TYPED)
    given = session.context()
    assert "tokens left out" in str(given.messages)
    assert SECRET in str(given.messages)
    session.replace(given.messages, seen=given if seen else None)

    assert is_nowhere(memory, session)
    session.add_assistant_message("you may")
    assert SECRET not in shown(session, format=format)
    assert is_nowhere(memory, session)


def test_withheld_entries_given_to_replace_get_no_pseudonym() -> None:
    """Private values of withheld entries are given no pseudonym in the session's head."""
    redactor = Redactor(
        {"recognisers": {"email": "pseudonym"}, "non_persistable_message_types": ["health"]}, key=b"k" * 32
    )
    with Memory.open("memory://", privacy=redactor) as memory:
        session = chat(memory)
        session.add_user_message("hello")
        session.add_user_message("I am jane@example.com", metadata=TYPED)
        given = session.context()
        session.replace(given.messages, seen=given)
        assert "jane" in shown(session)
        session.add_user_message("I am joe@example.com")
        assert session.entries()[-1].text == "I am [EMAIL_1]"


def test_an_import_under_withheld_summaries_reactivates_their_entries(memory: Memory) -> None:
    """An import without its withheld summary makes the covered entries active, and the session verifies."""
    strategy = {"strategy": "summarizer", "interaction_keep": 1, "cod_max_loops": 0, "summary_floor": 10}
    with Memory.open("memory://") as other:
        session = chat(other, summarizer=CallableSummarizer(lambda prompt: f"They spoke of {SECRET}.", checked=False))
        for number in range(4):
            session.add_user_message(f"{number} " + "words " * 100)
            session.add_assistant_message(f"{number} " + "words " * 100)
        assert session.compact(strategy).done
        memory.import_session(session.export())

    imported = chat(memory)
    assert imported.verify().problems == ()
    assert len(imported.active_entries()) == 8
    assert SECRET not in shown(imported)
    assert is_nowhere(memory, imported)
