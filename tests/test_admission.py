"""Admission: pseudonyms that a session keeps, errors and logs that quote nothing private, what is refused."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from palimpsest import AsyncMemory, ConfigError, Entry, InvalidEntry, Memory, Policy, Redactor, Session, Span
from palimpsest.errors import PrivacyRefused
from palimpsest.log.head import SessionKey
from palimpsest.strategies import CallableSummarizer

KEY = b"sixteen bytes and more"
MAIL = {"recognisers": {"email": "pseudonym"}}
MARKER = "QX-4711-PRIVATE"
MARKS = {"redact_patterns": [r"QX-\d{4}-[A-Z]+"]}


def numbered(**more: Any) -> Redactor:
    return Redactor({**MAIL, **more}, key=KEY)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    """A memory that replaces addresses by numbered pseudonyms."""
    with Memory.open(tmp_path / "log.db", privacy=numbered()) as memory:
        yield memory


@pytest.fixture
def marked(tmp_path: Path) -> Iterator[Memory]:
    """A memory in which the marker is private."""
    with Memory.open(tmp_path / "log.db", privacy=MARKS) as memory:
        yield memory


def texts(session: Session) -> list[str]:
    return [entry.text for entry in session.entries()]


# --- what `privacy` may be


@pytest.mark.parametrize(
    "given",
    ["default", "email", {"recognisers": "email"}, Policy(recognisers=["email"]), Redactor({"recognisers": "email"})],
    ids=["preset", "name", "mapping", "policy", "redactor"],
)
def test_a_policy_is_given_in_any_form(given: Any) -> None:
    """A preset's name, a mapping, a policy and a redactor are equivalent."""
    with Memory.open("memory://", privacy=given) as memory:
        assert memory.session("s").add_user_message("to ann@example.com").text == "to [REDACTED]"


def test_without_a_policy_everything_is_kept() -> None:
    """Without a policy nothing is redacted."""
    with Memory.open("memory://") as memory:
        assert memory.session("s").add_user_message("to ann@example.com").text == "to ann@example.com"


@pytest.mark.parametrize("given", ["emial", 7, {"redact_pattern": []}, {"redact_patterns": ["(a+)+"]}, MAIL])
def test_an_invalid_policy_is_refused_before_any_file_is_made(tmp_path: Path, given: Any) -> None:
    """An invalid policy raises ConfigError before any file is made."""
    with pytest.raises(ConfigError):
        Memory.open(tmp_path / "log.db", privacy=given)

    assert list(tmp_path.iterdir()) == []


# --- pseudonyms


def test_one_value_has_one_pseudonym_throughout_a_session(tmp_path: Path) -> None:
    """A value has one pseudonym in a session, in every process, field and spelling; another session counts
    separately."""
    with Memory.open(tmp_path / "log.db", privacy=numbered()) as memory:
        memory.session("s").add_user_message("ann@example.com and bob@example.com")
    with Memory.open(tmp_path / "log.db", privacy=numbered()) as memory:
        session = memory.session("s")
        session.add_tool_call("mail", {"to": "BOB@example.com", "cc": "eve@example.com"})
        memory.session("t").add_user_message("bob@example.com")

        assert texts(session) == ["[EMAIL_1] and [EMAIL_2]", '{"to": "[EMAIL_2]", "cc": "[EMAIL_3]"}']
        assert texts(memory.session("t")) == ["[EMAIL_1]"]


def test_pseudonyms_survive_branches_imports_and_rewinds_but_no_clear(memory: Memory) -> None:
    """Pseudonyms are kept in branches, imports and rewinds, and start again after a clear."""
    session = memory.session("s")
    first = session.add_user_message("ann@example.com")
    session.add_user_message("bob@example.com")
    branch = session.fork("branch", at=first)
    branch.add_user_message("bob@example.com, eve@example.com")
    memory.import_session(session.export(), session_id="copy")
    memory.session("copy").add_user_message("eve@example.com, bob@example.com")
    session.rewind(first)
    session.add_user_message("eve@example.com")

    assert texts(branch)[-1] == "[EMAIL_2], [EMAIL_3]"
    assert texts(memory.session("copy"))[-1] == "[EMAIL_3], [EMAIL_2]"
    assert texts(session) == ["[EMAIL_1]", "[EMAIL_3]"]
    session.clear()
    assert session.add_user_message("eve@example.com").text == "[EMAIL_1]"


def test_a_redacted_keyed_batch_added_again_adds_nothing(memory: Memory) -> None:
    """Adding a batch again under its key adds nothing, though its addresses came with other numbers at first sight."""
    batch = [{"role": "user", "content": "bob@example.com"}, {"role": "assistant", "content": "ann@example.com"}]
    session = memory.session("s")
    session.add_user_message("ann@example.com")

    first = session.add(batch, key="k")
    again = session.add(batch, key="k")

    assert first == again
    assert texts(session) == ["[EMAIL_1]", "[EMAIL_2]", "[EMAIL_1]"]


WRITES = """
import sys
from palimpsest import Memory, Redactor
privacy = Redactor({"recognisers": {"email": "pseudonym"}}, key=b"sixteen bytes and more")
with Memory.open(sys.argv[1], privacy=privacy) as memory:
    for i in range(30):
        memory.session("s").add_user_message(f"{sys.argv[2]}{i}@example.com shared{i % 5}@example.com")
"""


def test_two_processes_never_give_one_pseudonym_to_two_values(tmp_path: Path) -> None:
    """If two processes write at once, every value has one number and every number one value."""
    path = f"sqlite:///{tmp_path}/log.db"
    Memory.open(path).close()
    writers = [subprocess.Popen([sys.executable, "-c", WRITES, path, name]) for name in "ab"]
    assert [writer.wait(60) for writer in writers] == [0, 0]

    with Memory.open(tmp_path / "log.db", privacy=numbered()) as memory:
        said = texts(memory.session("s"))
        own = [text.split()[0] for text in said]
        shared = {text.split()[1] for text in said}
        assert len(said) == 60
        assert len(set(own)) == 60
        assert len(shared) == 5
        assert not shared & set(own)


async def _write_at_once(path: Path) -> list[str]:
    async with AsyncMemory.open(path, privacy=numbered()) as memory:
        session = memory.session("s")
        await asyncio.gather(*(session.add_user_message(f"{i % 4}@example.com") for i in range(40)))
        return [entry.text for entry in await session.entries()]


def test_tasks_that_write_at_once_share_pseudonyms(tmp_path: Path) -> None:
    """Forty tasks that add four addresses use four numbers, ten times each."""
    said = asyncio.run(_write_at_once(tmp_path / "log.db"))

    assert sorted(said) == sorted(f"[EMAIL_{i}]" for i in (1, 2, 3, 4) for _ in range(10))


def test_a_redacted_named_context_added_again_adds_nothing(memory: Memory) -> None:
    """A named context is compared as it is stored."""
    session = memory.session("s")

    first = session.add_context("mail ann@example.com", name="notes of ann@example.com")
    again = session.add_context("mail ann@example.com", name="notes of ann@example.com")
    other = session.add_context("mail bob@example.com", name="notes of ann@example.com")

    assert first == again
    assert (first.text, first.name) == ("mail [EMAIL_1]", "notes of [EMAIL_1]")
    assert other.seq == 2


async def _add_long(path: Path) -> bool:
    """Return whether the event loop went on while a long text was checked."""
    gate = threading.Event()

    def slow(text: str) -> list[Span]:
        if not gate.wait(30):
            raise TimeoutError
        return []

    async with AsyncMemory.open(path, privacy={"recognisers": [slow]}) as memory:
        adding = asyncio.create_task(memory.session("s").add_user_message("long " * 20_000))
        await asyncio.sleep(0)
        gate.set()  # this line runs only if the loop is not blocked
        return (await adding).seq == 1


def test_a_long_text_is_checked_beside_the_event_loop(tmp_path: Path) -> None:
    """A text of 100,000 characters may take its time, and others of the loop go on."""
    assert asyncio.run(_add_long(tmp_path / "log.db"))


# --- errors, logs, events


def quoted(fault: BaseException) -> str:
    """Return all that an error says."""
    return "".join(traceback.format_exception(fault)) + repr(fault) + repr(vars(fault)) + repr(fault.args)


def test_a_shortened_error_quotes_nothing_private(marked: Memory) -> None:
    """The value is cleaned before it is shortened: half of a secret matches no pattern."""
    with pytest.raises(InvalidEntry) as caught:
        marked.session("s").add_user_message("x", name={"a" * 60: MARKER})  # type: ignore[arg-type]

    assert "QX-" not in quoted(caught.value)
    assert "'[REDACTED" in str(caught.value)


def test_an_error_keeps_causes_that_hold_nothing_private(marked: Memory) -> None:
    """An error without private text keeps its text and its cause."""
    with pytest.raises(ConfigError) as caught:
        marked.session("s", max_tokns=3)  # type: ignore[call-arg]

    assert caught.value.nearest == "max_tokens"


def test_a_handlers_error_is_logged_without_private_text(marked: Memory, caplog: pytest.LogCaptureFixture) -> None:
    """The log line has the handler's traceback, and none of what its error quotes."""

    def handler(session: str, facts: dict[str, Any]) -> None:
        raise ValueError(f"cannot send {MARKER}")

    marked.on("entry:added", handler)
    with caplog.at_level(logging.DEBUG):
        marked.session("s").add_user_message("hello")

    assert "in handler" in caplog.text
    assert "ValueError: cannot send [REDACTED]" in caplog.text
    assert MARKER not in caplog.text + repr([vars(record) for record in caplog.records])


def test_a_condition_with_private_text_is_refused(marked: Memory) -> None:
    """Conditions are stored with every cut, so the session is not opened; the error does not quote it."""
    with pytest.raises(ConfigError, match=r"conditions\[0\]") as caught:
        marked.session("s", conditions=[f"contains(message.content, '{MARKER}')"])

    assert MARKER not in quoted(caught.value)


def test_a_refusal_stores_nothing_and_sends_an_event(tmp_path: Path) -> None:
    """A recogniser that raises refuses the whole batch; handlers hear of it without the text."""
    told: list[dict[str, Any]] = []

    def shaky(text: str) -> list[Span]:
        if MARKER in text:
            raise RuntimeError(text)
        return []

    with Memory.open(tmp_path / "log.db", privacy={"recognisers": [shaky]}) as memory:
        memory.on("privacy:refused", lambda _, facts: told.append(facts))
        session = memory.session("s")
        with pytest.raises(PrivacyRefused) as caught:
            session.add([{"role": "user", "content": "fine"}, {"role": "user", "content": MARKER}])

        assert session.entries() == []
        assert MARKER not in quoted(caught.value) + repr(told)
        assert [facts["rule"] for facts in told] == ["recognisers.shaky"]
    assert MARKER.encode() not in (tmp_path / "log.db").read_bytes()


# --- what comes in from elsewhere, and what was there before


def test_every_part_of_an_import_is_redacted(marked: Memory) -> None:
    """Entries, tombstones that still have content, records and summaries of an export pass the same step."""
    with Memory.open("memory://") as other:
        plain = other.session("s", long_term="summarizer", summarizer=lambda prompt: f"They spoke of {MARKER}.")
        for i in range(4):
            plain.add_user_message(f"{MARKER} {i} " + "and so on " * 60)
            plain.add_assistant_message("yes " * 60)
        plain.compact({"strategy": "summarizer", "interaction_keep": 1})
        plain.erase([2], reason=f"asked for by {MARKER}")
        data = plain.export()
    data["tombstones"][0]["content"] = f"not quite gone: {MARKER}"
    assert MARKER in repr(data["records"])

    marked.import_session(data)

    again = marked.session("s").export()
    assert MARKER not in repr(again)
    assert again["tombstones"][0].get("content", "") == ""
    assert marked.session("s").verify().ok


def test_an_import_withholds_entries_of_withheld_types() -> None:
    """A withheld entry of an export becomes a tombstone, and summaries of it are not imported."""
    with Memory.open("memory://") as other:
        plain = other.session("s", summarizer=lambda prompt: "The patient takes warfarin.")
        for i in range(3):
            plain.add_user_message(f"I take warfarin {i}" + " every day" * 60, metadata={"type": "health"})
            plain.add_assistant_message("I see." + " Take care." * 60)
        plain.compact({"strategy": "summarizer", "interaction_keep": 1})
        data = plain.export()
    with Memory.open("memory://", privacy={"non_persistable_message_types": ["HEALTH"]}) as memory:
        memory.import_session(data)
        session = memory.session("s")

        assert "warfarin" not in repr(session.export())
        assert [entry.erased for entry in session.entries()] == [True, False] * 3
        assert session.verify().ok
        assert session.context().messages


def test_entries_older_than_the_policy_leave_the_process_redacted(tmp_path: Path) -> None:
    """Entries stored before there was a policy leave the process cleaned: for a summarizer, and in every export."""
    asked: list[str] = []

    def summarize(prompt: str) -> str:
        asked.append(prompt)
        return f"They spoke of {MARKER} and of trains."

    with Memory.open(tmp_path / "log.db") as memory:
        for i in range(4):
            memory.session("s").add_user_message(f"{MARKER} {i} " + "by train " * 60)
            memory.session("s").add_assistant_message(f"train {i} " * 60)
    with Memory.open(tmp_path / "log.db", privacy=MARKS) as memory:
        session = memory.session("s", summarizer=CallableSummarizer(summarize))
        done = session.compact({"strategy": "summarizer", "interaction_keep": 1})
        session.export_to(tmp_path / "chat.json", format="openai")
        session.export_to(tmp_path / "whole.json")

        assert done.summary is not None
        assert asked
        assert MARKER not in repr(asked)
        assert MARKER not in done.summary.text
        assert MARKER not in repr(session.export())
        assert MARKER not in (tmp_path / "chat.json").read_text() + (tmp_path / "whole.json").read_text()


def test_compaction_fails_if_summaries_are_withheld() -> None:
    """A summary is an entry of a kind: where that may not be kept, compaction fails and nothing changes."""
    with Memory.open("memory://", privacy={"non_persistable_message_types": ["summary"]}) as memory:
        session = memory.session("s")
        session.add_entries([Entry(content="long " * 200), Entry(role="assistant", content="long " * 200)] * 3)

        done = session.compact({"strategy": "summarizer", "interaction_keep": 1})

        assert (done.reason, session.summaries()) == ("failed", [])
        assert session.verify().active == 6


def test_private_names_of_views_and_counters_are_refused() -> None:
    """A view or counter with a private name is refused, since names are stored with cuts and counts."""

    class Counter:
        name, overhead = MARKER, 0

        def count(self, text: str) -> int:
            return len(text)

    with Memory.open("memory://", privacy=MARKS) as memory:
        for ask in (
            lambda: memory.session("s", view=MARKER),
            lambda: memory.session("s", counter=Counter()),
            lambda: memory.session("s").context(view=MARKER),
        ):
            with pytest.raises(ConfigError) as raised:
                ask()
            assert MARKER not in str(raised.value)


def test_an_import_redacts_fields_for_ids_and_names() -> None:
    """Details of records hold ids as text, and views have names: what else stands there is cleaned."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", max_messages=2)
        for _ in range(3):
            session.add_user_message("x")
            session.add_assistant_message("y")
        session.context()
        given = session.export()
    given["head"]["views"] = {MARKER: given["head"]["views"]["main"]}
    given["records"][-1] |= {"view": MARKER, "detail": {"session": [MARKER], "summary": {"a": MARKER}}}
    with Memory.open("memory://", privacy=MARKS) as memory:
        memory.import_session(given)
        stored = asyncio.run(_stored(memory))

    assert MARKER not in stored


async def _stored(memory: Memory) -> str:
    """Return the stored head and records of the only session."""
    key = SessionKey(memory.tenant, "s")
    return repr((await memory.store.head(key), await memory.store.records(key)))
