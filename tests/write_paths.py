"""All public verbs through which text gets into a store or out of a memory, each with a driver or a reason.

`MEMORY`, `SESSION`, `WORKING` and `KNOWLEDGE` list every public verb of these classes and of their asynchronous faces.
A verb that writes or emits text has a driver: a function that passes private text to every argument that takes text. A
verb that does neither has a string that says why. `FACES` and `VALUES` list the public names that are neither records
nor errors; `write_commands` lists the commands. `test_write_paths.py` fails for a public name in no list.
"""

from __future__ import annotations

import asyncio
import gc
import io
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from palimpsest import Entry, Text
from palimpsest.log.entry import Native
from palimpsest.strategies import CallableSummarizer, Neuralyzer
from private_messages import MESSAGES, arguments, entries, export, files, malformed, metadata, parts, play
from watched_memory import Unstored, Watched

Driver = Callable[[Watched], Unstored | None]

WORDS = "words that are to be summarised " * 30
SUMMARY = {"strategy": "summarizer", "interaction_keep": 1, "cod_max_loops": 0, "summary_floor": 10}


def _talk(watched: Watched, session: Any, turns: int = 4) -> None:
    """Add interactions that are worth a summary."""
    for number in range(turns):
        session.add_user_message(f"{number} {watched.marker} {WORDS}")
        session.add_assistant_message(f"{number} {WORDS} {watched.marker}")


def _sent(watched: Watched, *events: str) -> None:
    """Check that the memory has sent these events."""
    missing = set(events) - set(watched.events)
    assert not missing, f"never sent: {missing}"


# --- knowledge bases


def _document(watched: Watched) -> Unstored:
    base = watched.memory.knowledge("handbook")
    base.add("a", f"About {watched.marker}. {WORDS}", title=watched.marker, metadata={"said": [watched.marker]})
    watched.refused(base.add, watched.marker, "x")
    for bad in (
        {"text": [watched.marker]},
        {"text": "x", "metadata": [watched.marker]},
        {"text": "x", "title": [watched.marker]},
    ):
        watched.refused(base.add, "a", **bad)
    base.search(watched.marker)
    kept = repr(base.documents())
    assert watched.case.stand_in in kept
    watched.emitted.append(("documents", kept))
    return Unstored("documents are in another tenant; the driver itself has checked the stand-in")


def _knowledge(watched: Watched) -> Unstored:
    watched.refused(watched.memory.knowledge, watched.marker + "\n")
    watched.refused(watched.memory.knowledge, [watched.marker])
    watched.refused(watched.memory.knowledge(watched.marker).add, "a", "x")
    return _document(watched)


def _refresh(watched: Watched) -> None:
    strategy = {**SUMMARY, "knowledge_base": {"collection_id": "notes"}}
    session = watched.session(long_term=strategy, auto_compact="off")
    _talk(watched, session)
    session.compact()
    session.knowledge().refresh()
    session.context()


# --- adding


def _user(watched: Watched) -> None:
    session = watched.session()
    session.add_user_message(
        watched.marker, name=watched.marker, metadata=metadata(watched.marker), importance=0.9, pinned=True
    )
    session.add_user_message(parts(watched.marker), expires_at=datetime.now(UTC) + timedelta(days=900_000))
    session.context()
    _sent(watched, "entry:added")
    for bad in (
        {"content": [watched.marker]},
        {"content": watched.marker, "metadata": {"x": {watched.marker}}},
        {"content": watched.marker, "metadata": {watched.marker: object()}},
        {"content": watched.marker, "metadata": {1: watched.marker}},
        {"content": "x", "metadata": watched.marker},
        {"content": "x", "name": [watched.marker]},
        {"content": "x", "importance": watched.marker},
        {"content": "x", "pinned": watched.marker},
        {"content": "x", "expires_at": watched.marker},
        {"content": {watched.marker: watched.marker}},
    ):
        watched.refused(session.add_user_message, **bad)


def _assistant(watched: Watched) -> None:
    watched.session().add_assistant_message(
        parts(watched.marker), name=watched.marker, metadata=metadata(watched.marker)
    )
    watched.session().add_assistant_message(f"{watched.marker}\ud800", metadata={"lone": f"\ud800{watched.marker}"})


def _system(watched: Watched) -> None:
    watched.session().add_system_message(watched.marker, name=watched.marker, metadata=metadata(watched.marker))


def _call(watched: Watched) -> None:
    session = watched.session()
    session.add_tool_call("find", arguments(watched.marker), call_id="c1", metadata=metadata(watched.marker))
    session.add_tool_call("find", json.loads(arguments(watched.marker)))
    session.add_tool_call("find", f"{{broken {watched.marker}")
    session.add_tool_call("find", f"\ufeff{arguments(watched.marker)}")
    watched.refused(session.add_tool_call, [watched.marker], {})
    watched.refused(session.add_tool_call, "find", {watched.marker})
    watched.refused(session.add_tool_call, "find", {watched.marker: float("nan")})
    watched.refused(session.add_tool_call, "find", {}, call_id=[watched.marker])


def _result(watched: Watched) -> None:
    session = watched.session()
    session.add_tool_call("find", {}, call_id="c1")
    session.add_tool_call("find", {}, call_id="c2")
    session.add_tool_result("find", watched.marker, call_id="c1", status="error", metadata=metadata(watched.marker))
    session.add_tool_result("find", {watched.marker: [watched.marker]}, call_id="c2")
    session.add_tool_result("find", watched.marker, call_id="nobody's")
    watched.refused(session.add_tool_result, "find", "x", status=watched.marker)
    watched.refused(session.add_tool_result, "find", {watched.marker})


def _context(watched: Watched) -> None:
    session = watched.session()
    for text in (watched.marker, watched.marker, f"new {watched.marker}"):
        session.add_context(text, name=f"{watched.marker} notes.md", metadata=metadata(watched.marker), pinned=True)
    assert len(session.entries()) == 2
    watched.refused(session.add_context, [watched.marker], name="x")
    watched.refused(session.add_context, "x", name={watched.marker: 1})


def _add(watched: Watched) -> None:
    for name, make in MESSAGES.items():
        session = watched.session(name, format=name)
        options = {"key": "batch", "statuses": {"c1": "error"}, "metadata": metadata(watched.marker)}
        first = session.add(make(watched.marker), **options)
        assert session.add(make(watched.marker), **options) == first
        for line in malformed(watched.marker):
            try:
                given = json.loads(line)
            except ValueError:
                given = line
            watched.attempted(session.add, given)
            watched.attempted(session.add, [given])
        watched.refused(session.add, [{"role": "user", "content": f"other {watched.marker}"}], key="batch")
        watched.refused(session.add, watched.marker)
        watched.refused(session.add, [watched.marker])
        watched.refused(session.add, [], format=watched.marker)
        watched.refused(session.add, [{"role": "user", "content": "x"}], key={watched.marker: 1})
        watched.refused(session.add, [{"role": "user", "content": "x"}], statuses=watched.marker)
    assert watched.errors >= 6 * len(MESSAGES)
    watched.refused(watched.session("text", format="text").add, watched.marker, format="text")


def _stream(watched: Watched) -> None:
    call = {
        "index": 0,
        "id": "c1",
        "type": "function",
        "function": {"name": "find", "arguments": arguments(watched.marker)},
    }
    said = {
        "role": "assistant",
        "content": f"it is {watched.marker}",
        "reasoning_content": watched.marker,
        watched.marker: watched.marker,
    }
    chunk = {"object": "chat.completion.chunk", "id": watched.marker, "model": watched.marker}
    first = {
        **chunk,
        "choices": [{"index": 0, "delta": {**said, "tool_calls": [call]}, watched.marker: watched.marker}],
    }
    last = {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 5}}
    for events in ([first, last], [first]):
        with watched.session().stream(metadata=metadata(watched.marker)) as answer:
            for event in events:
                answer.feed(event)
            for bad in (watched.marker, {watched.marker: watched.marker}, {"type": "message_start", watched.marker: 1}):
                watched.refused(answer.feed, bad)
    watched.refused(watched.session().stream, cut_off=watched.marker)


def _add_entries(watched: Watched) -> None:
    session = watched.session()
    session.add_entries(entries(watched.marker))
    session.add_entries(entries(watched.marker), key="batch")
    watched.refused(session.add_entries, [Entry(id="one", content=watched.marker), watched.marker])
    session.add_entries([Entry(id="one", content="x")])
    watched.refused(session.add_entries, [Entry(id="one", content=watched.marker)])
    watched.refused(session.add_entries, [Entry(kind=watched.marker)])  # type: ignore[arg-type]
    watched.refused(session.add_entries, [Entry(role=watched.marker)])  # type: ignore[arg-type]
    watched.refused(session.add_entries, [Entry(status=watched.marker)])  # type: ignore[arg-type]
    watched.attempted(session.add_entries, [Entry(content=(Text(text=[watched.marker]),))])  # type: ignore[arg-type]
    watched.attempted(session.add_entries, [Entry(native=Native(format="openai", keep={"x": {watched.marker}}))])


def _replace(watched: Watched) -> None:
    for name, make in MESSAGES.items():
        session = watched.session(name, format=name)
        session.add(make(watched.marker), metadata=metadata(watched.marker))
        given = [*make(f"new {watched.marker}"), *make(watched.marker)]
        options = {"key": f"of {watched.marker}", "metadata": metadata(watched.marker)}
        first = session.replace(given, **options)
        assert session.replace(given, **options) == first
        session.replace(make(watched.marker))
        watched.refused(session.replace, make(f"other {watched.marker}"), key=f"of {watched.marker}")
        watched.refused(session.replace, watched.marker)
        watched.refused(session.replace, [watched.marker])
        watched.refused(session.replace, [], format=watched.marker)
        watched.refused(session.replace, [], seen=watched.marker)
        watched.refused(session.replace, [], seen={watched.marker: 1})
        watched.refused(session.replace, [], statuses=watched.marker)
        with session.turn(atomic=True):
            session.add(make(watched.marker))
            watched.refused(session.replace, make(watched.marker))
    _sent(watched, "session:replaced")


def _resolve(watched: Watched) -> None:
    session = watched.session()
    session.add_tool_call("find", {}, call_id="c1")
    session.resolve("c1", output=watched.marker)
    watched.refused(session.resolve, watched.marker)


def _turn(watched: Watched) -> None:
    session = watched.session(
        persistence="flush", archive=False, long_term={**SUMMARY, "message_count": 3}, summarizer=watched.asked
    )
    with session.turn():
        session.add_user_message(f"{watched.marker} {WORDS}")
        session.add_assistant_message(f"{watched.marker} {WORDS}")
    with session.turn(atomic=True):
        given = session.add_user_message(f"{watched.marker} {WORDS}")
        assert watched.marker not in given.text
        session.add_context(watched.marker, name=watched.marker)
        session.add_assistant_message(watched.marker)
    ephemeral = watched.session("gone", persistence="ephemeral")
    with ephemeral.turn():
        ephemeral.add_user_message(watched.marker)
        assert watched.marker not in str(ephemeral.context().messages)

    def broken() -> None:
        with session.turn(atomic=True):
            session.add_user_message(watched.marker)
            session.add_user_message(watched.marker, importance=watched.marker)

    watched.refused(broken)
    watched.refused(session.turn, atomic=watched.marker)


def _end_turn(watched: Watched) -> None:
    session = watched.session(long_term={**SUMMARY, "interaction_threshold_qty": 2}, summarizer=watched.asked)
    _talk(watched, session)
    session.end_turn()
    _sent(watched, "turn:ended")


# --- contexts, usage, pins, erasure


def _view(watched: Watched) -> Unstored | None:
    odd = "message.content < 3"
    session = watched.session(max_tokens=900, view="small", conditions=[odd])
    _talk(watched, session, 6)
    session.context(
        system=watched.marker, tools=[{"type": "function", "function": {"name": "f", "description": watched.marker}}]
    )
    _sent(watched, "cut", "condition:error")
    where = f"not contains(message.content, '{watched.marker}')"
    watched.refused(watched.session, conditions=[where])
    watched.refused(
        watched.session, short_term={"memory_strategy_id": "max_tokens", "conditions": [where], "cut": "low_water"}
    )
    watched.refused(session.context, system="x " * 2_000 + watched.marker)
    watched.refused(session.context, system=[watched.marker])
    watched.refused(session.context, tools=[watched.marker])
    watched.refused(session.context, format=watched.marker)
    watched.refused(session.context, at=watched.marker)
    block = {"memory_strategy_id": "max_tokens", "memory_max_tokens": None, "conditions": [odd], "strict": True}
    strict = watched.session(short_term=block)
    watched.refused(strict.context)
    return None


def _usage(watched: Watched) -> Unstored:
    watched.session().add_user_message("x")
    watched.session().record_usage(input_tokens=10, output_tokens=2, cached_tokens=1)
    watched.refused(watched.session().record_usage, watched.marker)
    watched.refused(watched.session().record_usage, 1, context=watched.marker)
    watched.session().record_usage(
        {"id": watched.marker, "usage": {"prompt_tokens": 9}, watched.marker: watched.marker}
    )
    watched.refused(watched.session().record_usage, {watched.marker: watched.marker})
    return Unstored("it stores numbers, and a fingerprint of the response's id")


def _pin(watched: Watched) -> Unstored:
    watched.session().add_user_message("x")
    watched.session().pin(1)
    watched.refused(watched.session().pin, watched.marker)
    watched.refused(watched.session().unpin, {watched.marker: 1})
    return Unstored("it takes only ids")


def _hide(watched: Watched) -> Unstored:
    watched.session().add_user_message("x")
    watched.session().hide(1)
    watched.session().show(1)
    watched.refused(watched.session().hide, watched.marker)
    watched.refused(watched.session().show, {watched.marker: 1})
    return Unstored("it takes only ids")


def _erase(watched: Watched) -> None:
    session = watched.session(summarizer=watched.asked)
    _talk(watched, session)
    session.compact(SUMMARY)
    session.erase([1], reason=f"because of {watched.marker}")
    _sent(watched, "erased")
    watched.refused(session.erase, [watched.marker])
    watched.refused(session.erase, [1], reason=[watched.marker])


def _clear(watched: Watched) -> Unstored:
    session = watched.session()
    session.add_user_message(watched.marker)
    session.clear()
    return Unstored("the session is empty afterwards")


def _fork(watched: Watched) -> None:
    session = watched.session()
    session.add_user_message(watched.marker)
    session.fork("branch").add_user_message(f"again {watched.marker}")
    watched.refused(session.fork, "x", at=watched.marker)
    watched.refused(session.fork, [watched.marker])


def _rewind(watched: Watched) -> None:
    session = watched.session()
    session.add_user_message(watched.marker)
    session.add_user_message(watched.marker)
    session.rewind(1)
    watched.refused(session.rewind, watched.marker)


# --- exports


def _export(watched: Watched) -> None:
    play(watched.session(summarizer=watched.asked), watched.marker)
    watched.emitted.append(("export", json.dumps(watched.session().export())))


def _export_to(watched: Watched) -> None:
    session = watched.session(summarizer=watched.asked)
    _talk(watched, session)
    session.add_entries(entries(watched.marker))
    for format in ("palimpsest", *MESSAGES, "text"):
        session.export_to(watched.folder / f"export.{format}", format=format)

    class Full(io.BytesIO):
        def write(self, data: Any, /) -> int:
            watched.emitted.append(("written", bytes(data).decode()))
            raise OSError(28, "no space left")

    watched.refused(session.export_to, Full())
    watched.refused(session.export_to, watched.folder / "x", format=watched.marker)


# --- compaction


def _compact(watched: Watched) -> None:
    focus = f"leave {watched.marker} out"
    template = f"{watched.marker}: {{content}}"
    answers: dict[str, Any] = {
        "repeats": watched.asked,
        "raises": _raising(watched),
        "awaited": _awaited(watched),
        "says nothing": lambda prompt: "",
        "gives JSON": lambda prompt: {
            "items": [{"kind": "fact", "text": watched.marker, "sources": [1], "status": watched.marker}]
        },
        "gives what is none": lambda prompt: {watched.marker},
        "is slow": CallableSummarizer(_slow(watched), timeout=0.02),
        "is none": None,
    }
    for name, answer in answers.items():
        session = watched.session(name, summarizer=answer)
        _talk(watched, session)
        session.compact({**SUMMARY, "instructions": focus, "on_failure": "keep"})
        session.compact({**SUMMARY, "prompt_template": template})
        session.compact({**SUMMARY, "cod_max_loops": 2, "on_failure": "heuristic"})
        _talk(watched, session)
        session.compact({**SUMMARY, "rebuild_every": 1})
        session.compact("ladder")
        session.compact({"strategy": "mask_results"})
        for summary in session.summaries(history=True):
            watched.emitted.append(("summary", repr(summary)))
    _sent(watched, "compressed", "compaction:failed")
    session = watched.session("strange")
    _talk(watched, session)
    watched.refused(session.compact, watched.marker)
    watched.refused(session.compact, {"strategy": "lru", watched.marker: 1})
    watched.refused(session.compact, {"strategy": "summarizer", "instructions": [watched.marker]})
    session.compact(Neuralyzer(interaction_keep=1))
    by_itself = watched.session(
        "background", summarizer=watched.asked, auto_compact="background", long_term={**SUMMARY, "message_count": 4}
    )
    _talk(watched, by_itself, 5)
    failing = watched.session(
        "failing", summarizer=_raising(watched), auto_compact="background", long_term={**SUMMARY, "message_count": 4}
    )
    _talk(watched, failing, 5)
    strange = watched.session("planner", auto_compact="background", long_term=_Strange(watched.marker))
    _talk(watched, strange, 2)
    watched.settle()
    gc.collect()  # an event loop reports a task's unretrieved error when the task is collected


def _raising(watched: Watched) -> Callable[[str], str]:
    def summarizer(prompt: str) -> str:
        watched.emitted.append(("prompt", prompt))
        fault = ValueError(f"no answer to {watched.marker}: {prompt}")
        fault.add_note(f"it was about {watched.marker}")
        raise fault from KeyError(watched.marker)

    return summarizer


def _awaited(watched: Watched) -> Callable[[str], Any]:
    async def summarizer(prompt: str) -> str:
        return watched.asked(prompt)

    return summarizer


def _slow(watched: Watched) -> Callable[[str], Any]:
    async def summarizer(prompt: str) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError as cancelled:
            raise ValueError(f"stopped at {watched.marker}") from cancelled
        return prompt

    return summarizer


class _Strange:
    """A user's strategy whose plan fails with an error that quotes private text."""

    name, summarizes, erases = "strange", False, False

    def __init__(self, marker: str) -> None:
        from palimpsest.compaction.style import Style
        from palimpsest.strategies import Triggers

        self._marker, self.style = marker, Style()
        condition = f"not contains(interaction.tool_names, '{marker}') and interaction.metadata < 3"
        self.triggers = Triggers(message_count=2, interaction_threshold_qty=1, interaction_conditions=(condition,))

    def plan(self, snapshot: Any) -> Any:
        raise RuntimeError(f"it was {self._marker}")


def _restore(watched: Watched) -> None:
    session = watched.session(summarizer=watched.asked)
    _talk(watched, session)
    session.compact(SUMMARY)
    session.restore()
    _sent(watched, "restored")
    watched.refused(session.restore, watched.marker)
    watched.refused(session.expand, {watched.marker: 1})


# --- memories


def _import_session(watched: Watched) -> None:
    given = export(watched.marker)
    watched.memory.import_session(given)
    watched.memory.import_session(given, on_conflict="replace")
    watched.session("merged").add_user_message("there already")
    watched.memory.import_session(given, session_id="merged", on_conflict="merge")
    watched.memory.import_session(given, session_id="fresh", on_conflict="merge")
    watched.session("s").context()
    _sent(watched, "session:imported")
    watched.refused(watched.memory.import_session, given)
    watched.refused(watched.memory.import_session, watched.marker)
    watched.refused(watched.memory.import_session, given, on_conflict=watched.marker)
    wrong: list[tuple[str, Any]] = [
        ("kind", watched.marker),
        ("schema_version", watched.marker),
        ("session_id", [watched.marker]),
        ("head", watched.marker),
        ("entries", watched.marker),
        ("entries", [watched.marker]),
        ("entries", [{watched.marker: 1}]),
        ("entries", [{"id": "x", "seq": 1, "content": [watched.marker]}]),
        ("entries", [{"id": "x", "seq": 1, "kind": watched.marker}]),
        ("entries", [{"id": "x", "seq": 1, "created_at": watched.marker}]),
        ("entries", [{"id": "x", "seq": 1, "links": watched.marker}]),
        ("records", [{watched.marker: 1}]),
        ("usage", watched.marker),
    ]
    for place, value in wrong:
        watched.refused(watched.memory.import_session, {**given, place: value}, session_id="y")
    outlines: list[tuple[str, Any]] = [
        ("revision", watched.marker),
        ("views", {"main": watched.marker}),
        ("rewound", watched.marker),
        ("attempts", watched.marker),
        ("pseudonyms", watched.marker),
        ("pseudonyms", {watched.marker: 1}),
        ("created_at", watched.marker),
        ("forked_from", [watched.marker]),
        ("first_seq", watched.marker),
        ("turns", watched.marker),
    ]
    for name, value in outlines:
        head = {**given["head"], name: value}
        watched.refused(watched.memory.import_session, {**given, "head": head}, session_id="y")


def _import_file(watched: Watched) -> None:
    for name, path in files(watched.marker, watched.inputs).items():
        report = watched.memory.import_file(path)
        assert any(one.added for one in report.sessions.values()), name
        watched.emitted.append((f"report of {name}", f"{report!r}"))
        watched.emitted.append((f"again of {name}", f"{watched.memory.import_file(path)!r}"))
        watched.attempted(watched.memory.import_file, path, strict=True, session_id="strict")
    for line in malformed(watched.marker):
        given = (line + "\n").encode()
        report = watched.attempted(watched.memory.import_file, io.BytesIO(given), session_id="bad", format="openai")
        watched.emitted.append(("report", repr(report)))
        watched.attempted(watched.memory.import_file, io.BytesIO(given), session_id="bad", strict=True)
    good = json.dumps({"role": "user", "content": "x"})
    watched.memory.import_file(io.BytesIO(f"{good}\n{{{watched.marker}\n{good}\n".encode()), session_id="lines")
    watched.refused(watched.memory.import_file, io.BytesIO(b"{}"), source=watched.marker, session_id="x")
    watched.refused(watched.memory.import_file, io.BytesIO(b"{}"), format=watched.marker, session_id="x")
    watched.refused(watched.memory.import_file, io.BytesIO(b"{}"), key=[watched.marker], session_id="x")


def _delete(watched: Watched) -> Unstored:
    watched.session().add_user_message(watched.marker)
    watched.memory.delete_session("s")
    watched.refused(watched.memory.delete_session, [watched.marker])
    return Unstored("the session is deleted")


def _sweep(watched: Watched) -> None:
    session = watched.session()
    session.add_user_message(watched.marker, expires_at=datetime.fromtimestamp(watched.clock() / 1e6 + 60, UTC))
    session.add_user_message(watched.marker)
    watched.clock.advance(120)
    assert watched.memory.sweep() == 1


def _describe(watched: Watched) -> None:
    session = watched.session()
    session.describe(title=watched.marker, metadata=metadata(watched.marker))
    session.add_user_message(watched.marker)
    session.describe(title=f"again {watched.marker}")
    watched.refused(session.describe, user=watched.marker)
    watched.refused(session.describe, title=[watched.marker])
    watched.refused(session.describe, metadata={watched.marker: {watched.marker}})


def _session(watched: Watched) -> None:
    watched.session().add_user_message(watched.marker)
    for option in (
        {"model": [watched.marker]},
        {"format": watched.marker},
        {"counter": watched.marker},
        {"persistence": watched.marker},
        {"user": watched.marker},
        {"user": [watched.marker]},
        {"title": [watched.marker]},
        {"title": f"\ud800{watched.marker}"},
        {"metadata": [watched.marker]},
        {"metadata": {watched.marker: {watched.marker}}},
        {"auto_compact": watched.marker},
        {"summarizer": {watched.marker: 1}},
        {"long_term": watched.marker},
        {"long_term": {"strategy": watched.marker}},
        {"long_term": {watched.marker: 1}},
        {"long_term": {"strategy": "lru", "interaction_conditions": [f"{watched.marker} +"]}},
        {"short_term": {watched.marker: 1}},
        {"conditions": [f"message.content == '{watched.marker}"]},
        {"conditions": [f"len('{watched.marker}') > 3"]},
        {"oversize": watched.marker},
        {"max_tokens": watched.marker},
        {"summarizer": f"nobody:{watched.marker}"},
        {watched.marker: 1},
    ):
        watched.attempted(watched.memory.session, "s", **option)
    watched.session("said", title=f"to {watched.marker}", metadata=metadata(watched.marker)).add_user_message("x")
    watched.session("warned", model=f"nobody's {watched.marker}")
    assert watched.errors >= 14
    watched.refused(watched.memory.session, f"a\n{watched.marker}")


def _derive(watched: Watched) -> None:
    """Derived data is given the ids of erased entries, and its errors are emitted."""

    class Index:
        name = "index"

        async def erased(self, tenant: str, session: str, entries: Mapping[int, str]) -> int:
            watched.emitted.append(("derived", f"{tenant} {session} {entries}"))
            raise ValueError(f"it was {watched.marker}")

        async def gone(self, tenant: str, session: str) -> int:
            raise ValueError(f"it was {watched.marker}")

    session = watched.session()
    session.add_user_message(watched.marker)
    stop = watched.memory.derive(Index())
    watched.refused(session.erase, [1])
    watched.refused(watched.memory.delete_session, "s")
    stop()
    watched.refused(watched.memory.derive, watched.marker)


def _forget(watched: Watched) -> None:
    session = watched.session(summarizer=watched.asked)
    _talk(watched, session)
    session.compact(SUMMARY)
    session.add_user_message("to be forgotten", name="ann")
    session.add_user_message(watched.marker)
    watched.emitted.append(("dry run", repr(watched.memory.forget(matches=watched.marker, dry_run=True))))
    watched.emitted.append(
        ("forgotten", repr(watched.memory.forget(user="ann", reason=f"because of {watched.marker}")))
    )
    watched.emitted.append(
        ("forgotten", repr(watched.memory.forget(matches=f"9 {watched.marker}", reason=f"because of {watched.marker}")))
    )
    watched.refused(watched.memory.forget, user=[watched.marker])
    watched.refused(watched.memory.forget, tenant=watched.marker)
    watched.refused(watched.memory.forget, user="x", session=watched.marker)


def _scan(watched: Watched) -> None:
    session = watched.session()
    _talk(watched, session)
    watched.emitted.append(("scanned", repr(watched.memory.scan(apply=True))))
    watched.refused(watched.memory.scan, watched.marker)
    watched.refused(watched.memory.scan, {watched.marker: 1})
    watched.refused(watched.memory.scan, sample=watched.marker)


def _on(watched: Watched) -> Unstored:
    watched.refused(watched.memory.on, watched.marker, print)
    watched.refused(watched.memory.on, "cut", watched.marker)
    return Unstored("it stores nothing")


def _close(watched: Watched) -> Unstored | None:
    session = watched.session()
    session.add_user_message(watched.marker)
    watched.close()
    watched.refused(session.add_user_message, watched.marker)
    watched.open()
    return Unstored("the store was only in memory") if watched.where == "memory://" else None


def _working(watched: Watched) -> None:
    for bad in (watched.marker, f"user/{watched.marker}"):
        watched.refused(watched.memory.working, bad)
    _fact(watched)


def _fork_of_memory(watched: Watched) -> None:
    fork = watched.memory.fork("child")
    fork.working().set("k", {"to": [watched.marker]})
    watched.emitted.append(("fact", repr(fork.working().fact("k"))))
    watched.refused(watched.memory.fork("x").working, watched.marker)


def _fact(watched: Watched) -> None:
    facts = watched.memory.working("user/ann")
    facts.set("k", watched.marker)
    facts.set("k", {"to": [(watched.marker,)], 7: {watched.marker}, "then": {watched.marker: 1}})
    facts.set("bytes", watched.marker.encode())
    watched.emitted.append(("prompt", facts.to_context_string()))
    watched.emitted.append(("facts", repr(facts.facts())))
    watched.refused(facts.set, watched.marker, 1)
    watched.refused(facts.get, watched.marker + "\n")
    watched.refused(facts.set, "k", object(), ttl=watched.marker)
    watched.refused(facts.set, "k", {watched.marker: object()})
    watched.refused(facts.set, "k", f"{watched.marker} {WORDS * 100}")
    watched.refused(facts.set, "k", watched.marker, version=7)
    watched.refused(facts.set, "k", 1, importance=watched.marker)


def _facts(watched: Watched) -> None:
    facts = watched.memory.working("a")
    facts.set_many({"a": watched.marker, "b": [watched.marker]})
    watched.refused(facts.set_many, {"a": 1, watched.marker: 1})
    watched.refused(facts.set_many, watched.marker)
    session = watched.session()
    session.add_user_message("hello")
    session.working.set("k", [watched.marker])
    watched.emitted.append(("export", json.dumps(session.export())))
    session.fork("branch")


MEMORY: Mapping[str, Driver | str] = {
    "open": "it takes an address, options and a policy, and no text to store; every driver begins with it",
    "connect": "as `open`",
    "from_resource": "it opens the memory that a file declares, with a policy as `open` takes it",
    "from_env": "it opens the memory that environment variables declare; only a file that they name has a policy",
    "for_tenant": "it takes an id and returns a memory, whose verbs are in this list",
    "fork": _fork_of_memory,
    "bind": "it takes a session and stores nothing",
    "working": _working,
    "knowledge": _knowledge,
    "scopes": "it reads names of scopes",
    "definitions": "it reads definitions",
    "session": _session,
    "sessions": "it reads ids, numbers, and the descriptions of sessions",
    "info": "it reads ids and numbers",
    "import_session": _import_session,
    "import_file": _import_file,
    "recall": "it reads; it may store terms of entries that are already redacted, and when an entry was accessed",
    "index_status": "it returns numbers",
    "rebuild_index": "it stores terms of stored entries",
    "delete_session": _delete,
    "derive": _derive,
    "derivers": "it reads names of indexes",
    "underive": "it removes an index's name",
    "forget": _forget,
    "scan": _scan,
    "sweep": _sweep,
    "durability": "it returns settings",
    "vacuum": "it copies stored data, and returns sizes",
    "on": _on,
    "close": _close,
    "store": "the store below the memory, which no policy protects: it keeps whatever is written to it",
    "redact": "it redacts the text it is given and stores nothing",
    "tenant": "an id",
}

KNOWLEDGE: Mapping[str, Driver | str] = {
    "add": _document,
    "refresh": _refresh,
    "remove": "it removes documents",
    "documents": "it reads",
    "search": "it reads",
}
WORKING: Mapping[str, Driver | str] = {
    "set": _fact,
    "set_many": _facts,
    "delete": "it removes facts",
    "clear": "it removes facts",
    "readonly": "it writes nothing",
    **dict.fromkeys(("is_readonly", "scope_id"), "an argument with which the object was made"),
    **dict.fromkeys(
        ("get", "fact", "has", "keys", "items", "to_dict", "facts", "page", "to_context_string"), "it reads"
    ),
}
SESSION: Mapping[str, Driver | str] = {
    "working": "as that of a memory",
    "knowledge": "as that of a memory",
    "add_user_message": _user,
    "add_assistant_message": _assistant,
    "add_system_message": _system,
    "add_tool_call": _call,
    "add_tool_result": _result,
    "add_context": _context,
    "add": _add,
    "add_entries": _add_entries,
    "stream": _stream,
    "replace": _replace,
    "resolve": _resolve,
    "turn": _turn,
    "end_turn": _end_turn,
    "context": _view,
    "record_usage": _usage,
    "describe": _describe,
    "info": "it reads numbers, and the description of the session",
    "pin": _pin,
    "unpin": _pin,
    "erase": _erase,
    "clear": _clear,
    "repair": "it removes damaged data and keeps nothing of it",
    "fork": _fork,
    "rewind": _rewind,
    "export": _export,
    "export_to": _export_to,
    "compact": _compact,
    "restore": _restore,
    "entries": "it reads",
    "entry": "it reads; it may store when an entry was accessed",
    "recall": "as that of a memory",
    "passages": "it reads; it may store when an entry was accessed",
    "active_entries": "it reads",
    "messages": "it reads",
    "hide": _hide,
    "show": _hide,
    "interactions": "it reads",
    "history": "it reads",
    "stats": "it reads; it may store token counts",
    "count": "it stores token counts",
    "summaries": "it reads",
    "expand": "it reads",
    "verify": "it reads",
    "id": "an id",
    "cost": "it counts tokens and stores nothing",
    "redact": "it redacts the text it is given and stores nothing",
    "in_turn": "whether a turn is open",
    "in_atomic_turn": "whether an atomic turn is open",
    "options": "the options with which the session was opened",
}

FACES = {
    *("Memory", "AsyncMemory", "Session", "AsyncSession"),
    *("WorkingMemory", "AsyncWorkingMemory", "Knowledge", "AsyncKnowledge"),
}
"""Public classes with verbs that write."""

VALUES = {
    "SourceSummarizer": "calls a function; a memory passes it only redacted entries and summaries",
    "CallableSummarizer": "calls a function; a memory passes it only prompts of redacted text",
    "Derived": "is a program's own index, to which a memory passes only ids",
    "Keys": "holds keys",
    "ModelSummarizer": "calls a model; a memory passes it only prompts of redacted text",
    "Answer": "collects the events of a stream; its session stores the result",
    "Context": "is returned by a session and stores nothing",
    "Recogniser": "finds private text",
    "Redactor": "redacts private text",
    "SessionPage": "is a list of stored sessions",
    "Strategy": "plans, from entries that are already redacted",
}
"""Public names that are neither records, errors nor faces, each with the reason why it writes nothing unredacted."""


def driven(lists: Mapping[str, Driver | str]) -> dict[str, Driver]:
    """Return the drivers in a list, by the name of the verb."""
    return {name: driver for name, driver in lists.items() if not isinstance(driver, str)}
