"""Importing a file, whatever its source: once, whole, repeatable, within bounded memory, with a report."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commands import CHAT, read, run, write_lines
from exports_chatgpt import simple, written
from palimpsest import AsyncMemory, ConfigError, ImportFailed, Memory
from palimpsest.testing import FakeClock

IMPORTER = Path(__file__).with_name("importer_process.py")


def messages(count: int) -> list[dict[str, Any]]:
    """Return so many user messages."""
    return [{"role": "user", "content": f"message {number}"} for number in range(count)]


def lines(said: list[dict[str, Any]]) -> bytes:
    """Return the messages as JSON lines."""
    return b"".join(json.dumps(message).encode() + b"\n" for message in said)


# --- once


def test_ids_of_imported_messages_never_change(memory: Memory) -> None:
    """The ids of imported messages are fixed: a later version must recognize what an earlier one imported."""
    memory.import_file(io.BytesIO(lines(CHAT)), session_id="lines")
    memory.import_file(io.BytesIO(json.dumps(CHAT).encode()), session_id="document")

    assert [memory.session(name).entries()[0].id for name in ("lines", "document")] == [
        "fe34a4c6-fc57-8a1c-ab8a-6d5962893b46",
        "fe34a4c6-fc57-8a1c-ab8a-6d5962893b46",
    ]


@pytest.mark.parametrize("kind", ["list", "lines"])
def test_a_file_that_grows_adds_only_its_end(memory: Memory, kind: str) -> None:
    """A growing file may be imported at any length and any number of times: each message comes once."""
    figures = []
    for length in (10, 300, 300, 700):
        given = messages(length)
        body = lines(given) if kind == "lines" else json.dumps(given).encode()
        report = memory.import_file(io.BytesIO(body), session_id="talk")
        figures.append((report.sessions["talk"].added, report.sessions["talk"].already_there))

    assert figures == [(10, 0), (290, 10), (0, 300), (400, 300)]
    assert [entry.text for entry in memory.session("talk").entries()] == [one["content"] for one in messages(700)]


def test_erased_messages_do_not_come_back(memory: Memory) -> None:
    """Messages erased after an import do not come back when the file is imported again."""
    body = written([simple("talk")])
    memory.import_file(io.BytesIO(body))
    memory.session("talk").erase([2])

    report = memory.import_file(io.BytesIO(body))

    assert report.sessions["talk"].added == 0
    assert memory.session("talk").entry(2).erased


# --- interrupted


def test_an_interrupted_import_is_completed_by_repeating_it(memory: Memory) -> None:
    """An import interrupted after any commit is completed by repeating it, and nothing is doubled."""
    body = written([simple(f"talk-{number}", 200) for number in range(3)])

    class Stop(BaseException):
        """Ends the import, and is caught by nobody in between."""

    committed: list[int] = []

    def stop(session: str, facts: dict[str, Any]) -> None:
        committed.append(facts["entry"].revision)
        if len(set(committed)) == 2 and session == "talk-0":
            raise Stop

    off = memory.on("entry:added", stop)
    with pytest.raises(Stop):
        memory.import_file(io.BytesIO(body))
    off()
    assert 0 < len(memory.session("talk-0").entries()) <= 400

    memory.import_file(io.BytesIO(body))

    for number in range(3):
        texts = [entry.text for entry in memory.session(f"talk-{number}").entries()]
        assert texts == [f"talk-{number} {what} {turn}" for turn in range(200) for what in ("question", "answer")]


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX")
@pytest.mark.parametrize("commits", [1, 3])
def test_a_killed_import_is_completed_by_repeating_it(tmp_path: Path, commits: int) -> None:
    """A process killed between commits leaves whole batches, and repeating the import completes it."""
    (tmp_path / "talk.jsonl").write_bytes(lines(messages(1200)))
    command = [sys.executable, str(IMPORTER), "kill", str(tmp_path / "log.db"), str(tmp_path / "talk.jsonl")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as importer:
        assert importer.stdin is not None
        assert importer.stdout is not None
        for number in range(1, commits + 1):
            assert importer.stdout.readline() == f"{number}\n"
            if number < commits:
                importer.stdin.write("go on\n")
                importer.stdin.flush()
        importer.send_signal(signal.SIGKILL)
    assert importer.returncode == -signal.SIGKILL

    with Memory.open(tmp_path / "log.db") as memory:
        assert len(memory.session("talk").entries()) == commits * 256
        memory.import_file(tmp_path / "talk.jsonl")
        assert [entry.text for entry in memory.session("talk").entries()] == [one["content"] for one in messages(1200)]


# --- refused


@pytest.mark.parametrize("kind", ["lines", "chatgpt", "export"])
def test_an_import_that_another_one_overtakes_adds_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """If another program imports the file at the same moment, all is stored once, and each tells its own part."""
    path = f"sqlite:///{tmp_path}/a.db"
    with Memory.open(path) as memory, Memory.open(path) as other, Memory.open("memory://") as third:
        third.import_file(io.BytesIO(lines(CHAT)), session_id="talk")
        exported = json.dumps(third.session("talk").export()).encode()
        body = {"lines": lines(CHAT), "chatgpt": written([simple("talk")]), "export": exported}[kind]
        options: dict[str, Any] = {} if kind != "lines" else {"session_id": "talk"}
        first: list[Any] = []

        def overtaken(verb: str) -> Callable[..., Any]:
            original = getattr(memory.store, verb)

            async def late(*given: Any, **named: Any) -> Any:
                if not first:
                    first.append(None)
                    first[0] = other.import_file(io.BytesIO(body), **options)
                return await original(*given, **named)

            return late

        for verb in ("append", "load"):
            monkeypatch.setattr(memory.store, verb, overtaken(verb))

        report = memory.import_file(io.BytesIO(body), **options)

        assert report.refused == first[0].refused == ()
        count = len(memory.session("talk").entries())
        assert count == len(CHAT)
        assert (first[0].sessions["talk"].added, report.sessions["talk"].added) == (count, 0)
        assert report.sessions["talk"].already_there == count


def no_secrets(text: str) -> list[Any]:
    """A recogniser that raises for a text with a secret, so that the policy refuses it."""
    if "secret" in text:
        raise ValueError(text)
    return []


@pytest.mark.parametrize("keyed", [False, True], ids=["messages", "chatgpt"])
def test_a_message_that_privacy_refuses_costs_no_other(clock: FakeClock, keyed: bool) -> None:
    """A message that the policy refuses is reported and the others are imported; `strict` finds it first."""
    talk = simple("talk", 3)
    talk.nodes["talk-4"]["message"]["content"]["parts"] = ["a secret"]
    given = messages(6)
    given[2]["content"] = "a secret"
    body = written([talk]) if keyed else lines(given)
    with Memory.open("memory://", clock=clock, privacy={"recognisers": [no_secrets]}) as memory:
        with pytest.raises(ImportFailed):
            memory.import_file(io.BytesIO(body), session_id="talk", strict=True)
        assert memory.sessions() == []

        first = memory.import_file(io.BytesIO(body), session_id="talk")
        again = memory.import_file(io.BytesIO(body), session_id="talk")

        assert [refusal.place for refusal in first.refused] == ["conversations[0].mapping.talk-4" if keyed else "3"]
        assert (first.sessions["talk"].added, again.sessions["talk"].added) == (5, 0)
        assert len(memory.session("talk").entries()) == 5


@pytest.mark.parametrize("seekable", [True, False])
def test_strict_reads_a_stream_twice(memory: Memory, seekable: bool) -> None:
    """`strict` finds a fault at the very end before anything is stored; a stream that cannot seek is copied first."""

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return seekable

        def seek(self, *_: Any) -> int:
            if not seekable:
                raise io.UnsupportedOperation
            return super().seek(*_)

    with pytest.raises(ImportFailed) as failed:
        memory.import_file(Pipe(lines(messages(300)) + b"{broken\n"), session_id="talk", strict=True)
    assert failed.value.where == "line 301"
    assert memory.sessions() == []

    report = memory.import_file(Pipe(lines(messages(300))), session_id="talk", strict=True)

    assert report.sessions["talk"].added == 300


def test_a_missing_file_raises_what_open_raises(memory: Memory, tmp_path: Path) -> None:
    """A path that cannot be opened raises the error of `open`."""
    with pytest.raises(FileNotFoundError):
        memory.import_file(tmp_path / "missing.json")


# --- large files, progress, event loops


def test_progress_counts_bytes_of_the_file(memory: Memory, tmp_path: Path) -> None:
    """Progress rises to the size of the file; the total is None for a stream of unknown size."""
    path = tmp_path / "talk.jsonl"
    path.write_bytes(lines(messages(1000)))
    progress: list[tuple[int, int | None]] = []

    memory.import_file(path, progress=lambda done, total: progress.append((done, total)))

    done = [count for count, _ in progress]
    assert len(done) > 4
    assert done == sorted(done)
    assert {total for _, total in progress} == {path.stat().st_size}
    assert done[-1] == path.stat().st_size


@pytest.mark.wide
@pytest.mark.skipif(sys.platform == "win32", reason="the measure is POSIX")
def test_memory_use_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """An export of 50 MB on one line is imported in a fraction of that memory, one conversation at a time."""
    path = tmp_path / "conversations.json"
    conversation = simple("talk", 20)
    for node in conversation.nodes.values():
        if node["message"] is not None:
            node["message"]["content"]["parts"] = ["some words that are said " * 200]
    body = json.dumps(conversation.done())
    count = 50_000_000 // len(body) + 1
    with path.open("w") as file:
        file.write("[")
        for number in range(count):
            file.write((", " if number else "") + body.replace('"talk"', f'"talk-{number}"'))
        file.write("]")
    assert path.stat().st_size > 50_000_000

    command = [sys.executable, str(IMPORTER), "peak", str(tmp_path / "log.db"), str(path)]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=300).stdout)

    assert (found["sessions"], found["added"]) == (count, count * 40)
    assert found["grown"] < 25_000_000


def test_reading_a_file_does_not_block_the_loop(tmp_path: Path) -> None:
    """An asynchronous import reads the file in the memory's worker thread, not in the event loop's."""
    import asyncio

    class Watched(io.BytesIO):
        def __init__(self, body: bytes) -> None:
            super().__init__(body)
            self.threads: set[str] = set()

        def read(self, *arguments: Any) -> bytes:
            self.threads.add(threading.current_thread().name)
            return super().read(*arguments)

    watched = Watched(lines(messages(2000)))

    async def imported() -> int:
        async with AsyncMemory.open(tmp_path / "log.db") as memory:
            report = await memory.import_file(watched, session_id="talk")
            return report.sessions["talk"].added

    assert asyncio.run(imported()) == 2000
    assert threading.current_thread().name not in watched.threads
    assert watched.threads


# --- at the terminal


def test_the_command_recognizes_every_source(here: Path) -> None:
    """`palimpsest import` recognizes what a file is, and prints that and what was left out."""
    (here / "conversations.json").write_bytes(written([simple("a"), simple("b")]))

    recognized = run("import", "conversations.json")
    repeated = read("import", "conversations.json", "--from", "chatgpt")

    assert recognized.exit_code == 0
    assert "conversations.json: read as chatgpt" in recognized.stderr
    assert "conversations.json: left out: 2 hidden or empty system messages" in recognized.stderr
    assert repeated[0]["sessions"][0] == {"session": "a", "added": 0, "already_there": 4, "title": "A talk"}
    assert (repeated[0]["source"], repeated[0]["format"]) == ("chatgpt", None)


def test_many_sessions_are_printed_as_one_line(here: Path) -> None:
    """A file of more than twenty conversations is one line of the table, and in full with `--json`."""
    (here / "conversations.json").write_bytes(written([simple(f"talk-{number}") for number in range(25)]))

    printed = run("import", "conversations.json").stdout
    listed = read("import", "conversations.json")

    assert printed.splitlines()[1].split() == ["conversations.json", "25", "sessions", "100", "0", "0"]
    assert len(listed[0]["sessions"]) == 25


def test_an_unrecognized_file_exits_with_1_and_others_are_imported(here: Path) -> None:
    """An unrecognized file exits with 1 and lists the known sources; the other files are imported."""
    (here / "odd.json").write_text('{"a": 1}')
    write_lines(here / "chat.jsonl", CHAT)

    result = run("import", "odd.json", "chat.jsonl")

    assert result.exit_code == 1
    assert "odd.json: is not recognised" in result.stderr
    assert "chatgpt, claude, langchain" in result.stderr
    assert [info["session"] for info in read("sessions")] == ["chat"]


def test_an_unknown_source_or_format_exits_with_2(here: Path) -> None:
    """An unknown `--from` or `--format` exits with 2 and suggests the nearest name."""
    write_lines(here / "chat.jsonl", CHAT)

    for option, name, nearest in (("--from", "chatgtp", "chatgpt"), ("--format", "opnai", "openai")):
        result = run("import", "chat.jsonl", option, name)
        assert result.exit_code == 2
        assert f"did you mean '{nearest}'?" in result.stderr


@pytest.mark.parametrize("name", ["chat.jsonl", "chat.ndjson", "chat.json", "chat"])
def test_an_export_of_ours_is_recognized_whatever_its_name(tmp_path: Path, name: str) -> None:
    """An export by Palimpsest is recognized by its content, even if its file name suggests JSON lines."""
    path = tmp_path / name
    with Memory.open("memory://") as memory, Memory.open("memory://") as other:
        memory.session("a").add_user_message("hello")
        with path.open("wb") as file:
            memory.session("a").export_to(file)

        report = other.import_file(path)

        assert (report.source, report.refused) == ("palimpsest", ())
        assert [entry.text for entry in other.session("a").entries()] == ["hello"]


@pytest.mark.parametrize("stem", ["talk\udcff", "talk\x01"], ids=["no UTF-8", "control"])
def test_a_file_whose_name_cannot_be_an_id_needs_one(memory: Memory, stem: str, tmp_path: Path) -> None:
    """A file without an id and with an unusable name is refused until a session id is given."""
    path = tmp_path / f"{stem}.jsonl"
    path.write_bytes(lines(CHAT))

    with pytest.raises(ConfigError, match=r"session_id: .*neither the file nor its name gives one"):
        memory.import_file(path)
    memory.import_file(path, session_id="talk")
    assert len(memory.session("talk").entries()) == len(CHAT)


@pytest.mark.parametrize("strict", [False, True])
def test_a_conversation_without_any_id_costs_no_other(memory: Memory, *, strict: bool) -> None:
    """In a stream, which has no name, a conversation without an id is refused; with `strict` nothing is stored."""
    talks = [{"id": "a", "messages": CHAT}, {"messages": CHAT}, {"id": "c", "messages": CHAT}]
    body = "\n".join(map(json.dumps, talks)).encode()

    if strict:
        with pytest.raises(ConfigError, match=r"session_id: .*neither the file nor its name gives one"):
            memory.import_file(io.BytesIO(body), strict=True)
        assert memory.sessions() == []
        return
    report = memory.import_file(io.BytesIO(body))

    (refused,) = report.refused
    assert refused.place == "2: messages[0]"
    assert "the conversation has no id" in refused.reason
    assert list(report.sessions) == ["a", "c"]


@pytest.mark.parametrize(
    ("names", "sessions"),
    [
        (["2026.01.05.jsonl", "2026.01.06.jsonl"], ["2026.01.05", "2026.01.06"]),
        (["Dr. Brown.jsonl", "Dr. Smith.jsonl"], ["Dr. Brown", "Dr. Smith"]),
        (["plain", "other.ndjson"], ["plain", "other"]),
    ],
)
def test_files_of_different_names_become_different_sessions(
    memory: Memory, tmp_path: Path, names: list[str], sessions: list[str]
) -> None:
    """The session of a file is named after all of its name but the ending, so that two files are not mixed into one."""
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(lines([{"role": "user", "content": f"in file {number}"}]))
        memory.import_file(tmp_path / name)

    told = {name: [entry.text for entry in memory.session(name).entries()] for name in sessions}
    assert told == {name: [f"in file {number}"] for number, name in enumerate(sessions)}
    assert len(memory.sessions()) == len(names)
