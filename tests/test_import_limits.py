"""Limits of an import: what exceeds one is reported by the limit's name, and the rest is imported."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest

import exports_chatgpt
import exports_claude
from commands import run
from palimpsest import ConfigError, ImportFailed, Memory
from palimpsest.transfer.reading import imported
from palimpsest.transfer.sources.detection import find_source
from palimpsest.transfer.sources.files import SourceFile
from palimpsest.transfer.sources.limits import Limits
from test_import_identity import agents, dumped, lines, said

IMPORTER = Path(__file__).with_name("importer_process.py")
LONG = "x" * 5_000


def packed(body: bytes, kind: int = zipfile.ZIP_DEFLATED, others: int = 0) -> bytes:
    """Return a zip archive that holds this export of conversations."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", kind) as archive:
        archive.writestr("conversations.json", body)
        for number in range(others):
            archive.writestr(f"image-{number}.png", b"")
    return stream.getvalue()


def talk(count: int) -> bytes:
    """Return a ChatGPT export of a conversation of `count` turns."""
    return exports_chatgpt.written([exports_chatgpt.simple("talk", count)])


def bushy(branches: int) -> exports_chatgpt.Talk:
    """Return a ChatGPT conversation whose answer was regenerated `branches` times."""
    made = exports_chatgpt.Talk("talk")
    first = made.said("user", "question")
    for number in range(branches + 1):
        made.said("assistant", f"answer {number}", after=first)
    return made


def bushy_claude(branches: int) -> exports_claude.Talk:
    """Return a Claude conversation whose answer was regenerated `branches` times."""
    made = exports_claude.Talk("talk", parents=True)
    first = made.said("human", "question")
    for number in range(branches + 1):
        made.said("assistant", f"answer {number}", after=first)
    return made


PASSED: dict[str, tuple[str, bytes, dict[str, int], dict[str, Any], str]] = {
    "line": ("value", lines(said(["one", LONG, "two"])), {"value": 2_000}, {}, "2"),
    "item": ("value", dumped(said(["one", LONG, "two"])), {"value": 2_000}, {}, "messages[1]"),
    "last item": ("value", dumped(said(["one", "two", LONG])), {"value": 2_000}, {}, "messages[2]"),
    "between": (
        "value",
        dumped([*said(["one"]), LONG, *said(["two"])]),
        {"value": 2_000},
        {"source": "messages"},
        "messages[1]",
    ),
    "string": ("string", lines(said(["one", LONG, "two"])), {"string": 2_000}, {}, "2"),
    "key": ("string", lines([*said(["one"]), {LONG: 1}, *said(["two"])]), {"string": 2_000}, {}, "2"),
    "values": ("values", lines([*said(["one"]), [[]] * 900, *said(["two"])]), {"values": 500}, {}, "2"),
    "branches": (
        "branches",
        exports_chatgpt.written([bushy(5), exports_chatgpt.simple("other", 1)]),
        {"branches": 3},
        {"branches": True},
        "conversations[0].mapping",
    ),
    "messages of branches": (
        "branch_messages",
        exports_claude.written([bushy_claude(5)]),
        {"branch_messages": 6},
        {"branches": True},
        "conversations[0].chat_messages",
    ),
    "row": ("value", agents(["one", LONG, "two"]), {"value": 4_000}, {}, "agent_messages.id=2"),
}


@pytest.mark.parametrize("case", PASSED)
def test_a_value_beyond_a_limit_is_reported_and_the_rest_imported(memory: Memory, case: str) -> None:
    """A value beyond a limit is reported with its place, the limit, and how to raise it; the rest is imported.

    With the usual limits all of it is imported.
    """
    limit, body, limits, options, place = PASSED[case]

    def taken(body: bytes, **more: Any) -> Any:
        return memory.import_file(io.BytesIO(body), session_id="talk", **options, **more)

    report = taken(body, limits=limits)

    (refused,) = report.refused
    assert refused.place == place
    assert (
        f"(the limit '{limit}'; raise it with limits={{'{limit}': ...}}, or --limit {limit}=NUMBER)" in refused.reason
    )
    assert f"{limits[limit]:,}" in refused.reason
    texts = {entry.text for entry in memory.session("talk").entries()}
    assert {"one", "two"} <= texts or {"question", "answer 5"} <= texts
    assert not any("the limit" in one.reason for one in taken(body).refused)


WHOLE: dict[str, tuple[str, Callable[[], bytes], dict[str, int]]] = {
    "document": ("value", lambda: dumped({"messages": said([LONG])}), {"value": 2_000}),
    "first line": ("value", lambda: dumped(said([LONG])[0]) + b"\n" * 3, {"value": 2_000}),
    "spaces": ("value", lambda: b" " * 3_000_000 + b"{}", {"value": 2_000}),
    "unpacked": ("unpacked", lambda: packed(talk(40)), {"unpacked": 5_000}),
    "ratio": ("ratio", lambda: packed(b" " * (80 << 20) + talk(1)), {}),
    "members": ("members", lambda: packed(talk(1), others=20), {"members": 20}),
    "directory": ("members", lambda: packed(talk(1), others=30_000), {"members": 100}),
    "database": ("database", lambda: agents(["one"]), {"database": 4_096}),
}


@pytest.mark.sampled
@pytest.mark.parametrize("case", WHOLE)
def test_a_file_wholly_beyond_a_limit_is_refused(memory: Memory, case: str) -> None:
    """If nothing of a file can be read within a limit, it is refused with the limit's name."""
    limit, made, limits = WHOLE[case]
    body = made()

    with pytest.raises(ImportFailed) as failed:
        memory.import_file(io.BytesIO(body), session_id="talk", limits=limits)

    assert f"(the limit '{limit}'; " in failed.value.reason
    assert f"--limit {limit}=NUMBER" in failed.value.reason
    assert memory.sessions() == []


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_archives_with_other_compressions_are_refused(memory: Memory, kind: int) -> None:
    """An archive compressed with bzip2 or LZMA is refused, because it unpacks to any size at once."""
    with pytest.raises(ImportFailed, match="compressed by an unknown method"):
        memory.import_file(io.BytesIO(packed(talk(1), kind)))


def test_faults_are_listed_up_to_a_limit(memory: Memory) -> None:
    """The report lists faults up to a limit and counts the others."""
    body = lines(said(["one"])) + b"{broken\n" * 50

    report = memory.import_file(io.BytesIO(body), session_id="talk", limits={"refused": 10})

    assert [one.place for one in report.refused] == [str(number) for number in range(2, 12)]
    assert report.left_out == {"more malformed items": 40}
    assert report.sessions["talk"].added == 1


@pytest.mark.parametrize("given", [{"vaule": 1}, {"value": 0}, {"value": True}, {"value": "1"}, [1], 5], ids=str)
def test_invalid_limits_are_refused(memory: Memory, given: Any) -> None:
    """An unknown limit, or one that is no positive whole number, raises ConfigError before anything is read."""
    with pytest.raises(ConfigError, match="limits"):
        memory.import_file(io.BytesIO(b"[]"), limits=given)


def test_limits_are_set_on_the_command_line(here: Path) -> None:
    """`--limit NAME=NUMBER` changes a limit; an invalid one exits with 2."""
    (here / "chat.jsonl").write_bytes(lines(said(["one", LONG])))

    low = run("import", "chat.jsonl", "--limit", "value=2000")
    high = run("import", "chat.jsonl", "--limit", "value=20000", "--limit", "string=20000")

    assert (low.exit_code, high.exit_code) == (1, 0)
    assert "chat.jsonl:2: more than 2,000 bytes in one line (the limit 'value'" in low.stderr
    for wrong in ("value", "value=", "value=-1", "value=1e9", "vaule=5"):
        assert run("import", "chat.jsonl", "--limit", wrong).exit_code == 2


# --- memory


def _flood(write: Callable[[bytes], object], kind: str, mebibytes: int) -> None:
    """Write a file that repeats one thing for so many mebibytes."""
    begin, unit, end = {
        "spaces": (b"[", b" ", b"]"),
        "line": (b"", b" ", b"{}\n"),
        "string": (b'[{"title": "', b"a", b'"}]'),
        "escapes": (b'[{"title": "', b"\\\\", b'"}]'),
        "document": (b'{"title": "', b"a", b'"}'),
        "lists": (b'[{"a": [', b"[],", b"1]}]"),
        "numbers": (b"[", b"1,", b"1]"),
        "text": (b'["', b"a", b'"]'),
        "deep": (b"", b"[", b""),
        "quotes": (b"[{", b'"', b"}]"),
        "lines": (b"", b"x\n", b""),
        "blank": (b"", b"\n", b""),
    }[kind]
    write(begin)
    for _ in range(mebibytes):
        write(unit * ((1 << 20) // len(unit)))
    write(end)


FLOODS = ["spaces", "line", "string", "escapes", "document", "lists", "numbers", "text", "deep", "quotes", "lines"]


@contextmanager
def exported_to(path: Path) -> Iterator[IO[bytes]]:
    """Open the conversations of a new archive for writing."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("conversations.json", "w", force_zip64=True) as member,
    ):
        yield member


def _grown(tmp_path: Path, bodies: list[Path], limits: dict[str, int]) -> dict[str, int]:
    """Import each file in a process and return the bytes by which its memory grew."""
    command = [
        sys.executable,
        str(IMPORTER),
        "refused",
        str(tmp_path / "log.db"),
        json.dumps(limits),
        *map(str, bodies),
    ]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=600).stdout)
    assert found["added"] == 0
    return {Path(path).stem: grown for path, grown in found["grown"].items()}


@pytest.mark.wide
@pytest.mark.skipif(sys.platform == "win32", reason="the measure is POSIX")
def test_refusing_takes_memory_for_the_limit_only(tmp_path: Path) -> None:
    """Passing over anything endless in a file takes memory for the limit, not for the file."""
    bodies = []
    for kind in FLOODS:
        body = tmp_path / f"{kind}.json"
        with body.open("wb") as file:
            _flood(file.write, kind, 12)
        bodies.append(body)

    grown = _grown(tmp_path, bodies, {"value": 1 << 18, "string": 1 << 18, "refused": 100})

    assert {kind: much for kind, much in grown.items() if much > 8 << 20} == {}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the measure is POSIX")
@pytest.mark.parametrize("kind", [*FLOODS, "blank"])
@pytest.mark.parametrize("way", ["file", "archive"])
def test_refusing_a_gigabyte_takes_bounded_memory(tmp_path: Path, kind: str, way: str) -> None:
    """A gigabyte of anything is refused within bounded memory under the usual limits."""
    body = tmp_path / "conversations.json"
    if way == "file":
        with body.open("wb") as file:
            _flood(file.write, kind, 1024)
    else:
        body = tmp_path / "archive.zip"
        with exported_to(body) as member:
            _flood(member.write, kind, 1024)

    grown = _grown(tmp_path, [body], {"ratio": 2_000})

    assert grown[body.stem] < 8 * Limits().value


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the measure is POSIX")
def test_a_large_export_is_imported(tmp_path: Path) -> None:
    """An archive of 400 MB is imported with the usual limits, one conversation at a time."""
    body = tmp_path / "archive.zip"
    conversation = exports_chatgpt.simple("talk", 500)
    for number, node in enumerate(conversation.nodes.values()):
        if node["message"] is not None:
            node["message"]["content"]["parts"] = [f"some words of {number} that are said " * 100]
    whole = json.dumps(conversation.done())
    count = 400_000_000 // len(whole) + 1
    with exported_to(body) as member:
        for number in range(count):
            member.write((("[" if not number else ", ") + whole.replace('"talk"', f'"talk-{number}"')).encode())
        member.write(b"]")
    command = [sys.executable, str(IMPORTER), "peak", str(tmp_path / "log.db"), str(body)]

    found = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=1200).stdout)

    assert (found["sessions"], found["added"]) == (count, count * 1000)
    assert found["grown"] < 120_000_000


def chatgpt_calls(count: int) -> Any:
    """Return a conversation of `count` calls followed by results that answer none of them."""
    mapping: dict[str, Any] = {}
    for number in range(2 * count):
        code = {"content_type": "code", "text": "x"}
        call = {"author": {"role": "assistant"}, "recipient": f"tool{number}", "content": code}
        result = {"author": {"role": "tool", "name": "other"}, "content": {"content_type": "text", "parts": ["x"]}}
        parent = f"n{number - 1}" if number else None
        mapping[f"n{number}"] = {"parent": parent, "message": call if number < count else result}
    return {"conversation_id": "talk", "mapping": mapping, "current_node": f"n{2 * count - 1}"}


def claude_calls(count: int, *, named: bool) -> Any:
    """Return a message of calls and their results, which name their calls by id, or only by tool."""
    calls = [{"type": "tool_use", "id": f"t{number}", "name": "look", "input": {}} for number in range(count)]
    results: list[Any] = [{"type": "tool_result", "name": "look", "content": "x"} for _ in range(count)]
    for number, one in enumerate(results if named else ()):
        one["tool_use_id"] = f"t{count - 1 - number}"
    return {"uuid": "talk", "chat_messages": [{"uuid": "m", "sender": "assistant", "content": [*calls, *results]}]}


@pytest.mark.parametrize("made", [chatgpt_calls, partial(claude_calls, named=True), partial(claude_calls, named=False)])
def test_open_calls_cost_linear_time(made: Callable[[int], Any]) -> None:
    """Reading four times as many calls and results takes about four times as many steps."""
    steps = 0

    def noted(frame: Any, event: str, _: object) -> Any:
        nonlocal steps
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        steps += event == "opcode"
        return noted

    def work(count: int) -> int:
        nonlocal steps
        file = SourceFile(io.BytesIO(json.dumps([made(count)]).encode()))
        steps = 0
        before = sys.gettrace()
        sys.settrace(noted)
        try:
            for piece in find_source("auto", file)[1](file).pieces():
                assert piece.fault is None
        finally:
            sys.settrace(before)
        return steps

    assert work(400) < 6 * work(100)


def rewinds(data: Any) -> None:
    """Hide every second entry by a rewind of its own."""
    data["head"]["rewound"] = [[seq, seq] for seq in range(1, len(data["entries"]), 2)]


def open_calls(data: Any) -> None:
    """Make every entry a call that nothing answers."""
    for entry in data["entries"]:
        entry.update(kind="tool_call", role="assistant", name="look", call_id=f"c{entry['seq']}", content="{}")
        entry["links"] = {"revision": entry["links"]["revision"]}


@pytest.mark.parametrize("changed", [rewinds, open_calls])
def test_an_export_costs_linear_time(memory: Memory, changed: Callable[[Any], None]) -> None:
    """Importing four times as many entries makes about four times as many function calls."""
    calls = 0

    def noted(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event.endswith("call")

    def work(count: int) -> int:
        nonlocal calls
        chat = memory.session(f"talk-{count}")
        chat.add([{"role": "user", "content": f"question {number}"} for number in range(count)])
        data = chat.export()
        changed(data)
        calls = 0
        sys.setprofile(noted)
        try:
            imported(data)
        finally:
            sys.setprofile(None)
        return calls

    assert work(1000) < 6 * work(250)
