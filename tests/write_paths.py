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
from watched import Unstored, Watched

Driver = Callable[[Watched], Unstored | None]

WORDS = "words that are to be summarised " * 30
SUMMARY = {"strategy": "summarizer", "interaction_keep": 1, "cod_max_loops": 0, "summary_floor": 10}


def _talk(w: Watched, session: Any, turns: int = 4) -> None:
    """Add interactions that are worth a summary."""
    for number in range(turns):
        session.add_user_message(f"{number} {w.marker} {WORDS}")
        session.add_assistant_message(f"{number} {WORDS} {w.marker}")


def _sent(w: Watched, *events: str) -> None:
    """Check that the memory has sent these events."""
    missing = set(events) - set(w.events)
    assert not missing, f"never sent: {missing}"


# --- knowledge bases


def _document(w: Watched) -> Unstored:
    base = w.memory.knowledge("handbook")
    base.add("a", f"About {w.marker}. {WORDS}", title=w.marker, metadata={"said": [w.marker]})
    w.refused(base.add, w.marker, "x")
    for bad in ({"text": [w.marker]}, {"text": "x", "metadata": [w.marker]}, {"text": "x", "title": [w.marker]}):
        w.refused(base.add, "a", **bad)
    base.search(w.marker)
    kept = repr(base.documents())
    assert w.case.stand_in in kept
    w.emitted.append(("documents", kept))
    return Unstored("documents are in another tenant; the driver itself has checked the stand-in")


def _knowledge(w: Watched) -> Unstored:
    w.refused(w.memory.knowledge, w.marker + "\n")
    w.refused(w.memory.knowledge, [w.marker])
    w.refused(w.memory.knowledge(w.marker).add, "a", "x")
    return _document(w)


def _refresh(w: Watched) -> None:
    strategy = {**SUMMARY, "knowledge_base": {"collection_id": "notes"}}
    session = w.session(long_term=strategy, auto_compact="off")
    _talk(w, session)
    session.compact()
    session.knowledge().refresh()
    session.context()


# --- adding


def _user(w: Watched) -> None:
    session = w.session()
    session.add_user_message(w.marker, name=w.marker, metadata=metadata(w.marker), importance=0.9, pinned=True)
    session.add_user_message(parts(w.marker), expires_at=datetime.now(UTC) + timedelta(days=900_000))
    session.context()
    _sent(w, "entry:added")
    for bad in (
        {"content": [w.marker]},
        {"content": w.marker, "metadata": {"x": {w.marker}}},
        {"content": w.marker, "metadata": {w.marker: object()}},
        {"content": w.marker, "metadata": {1: w.marker}},
        {"content": "x", "metadata": w.marker},
        {"content": "x", "name": [w.marker]},
        {"content": "x", "importance": w.marker},
        {"content": "x", "pinned": w.marker},
        {"content": "x", "expires_at": w.marker},
        {"content": {w.marker: w.marker}},
    ):
        w.refused(session.add_user_message, **bad)


def _assistant(w: Watched) -> None:
    w.session().add_assistant_message(parts(w.marker), name=w.marker, metadata=metadata(w.marker))
    w.session().add_assistant_message(f"{w.marker}\ud800", metadata={"lone": f"\ud800{w.marker}"})


def _system(w: Watched) -> None:
    w.session().add_system_message(w.marker, name=w.marker, metadata=metadata(w.marker))


def _call(w: Watched) -> None:
    session = w.session()
    session.add_tool_call("find", arguments(w.marker), call_id="c1", metadata=metadata(w.marker))
    session.add_tool_call("find", json.loads(arguments(w.marker)))
    session.add_tool_call("find", f"{{broken {w.marker}")
    session.add_tool_call("find", f"\ufeff{arguments(w.marker)}")
    w.refused(session.add_tool_call, [w.marker], {})
    w.refused(session.add_tool_call, "find", {w.marker})
    w.refused(session.add_tool_call, "find", {w.marker: float("nan")})
    w.refused(session.add_tool_call, "find", {}, call_id=[w.marker])


def _result(w: Watched) -> None:
    session = w.session()
    session.add_tool_call("find", {}, call_id="c1")
    session.add_tool_call("find", {}, call_id="c2")
    session.add_tool_result("find", w.marker, call_id="c1", status="error", metadata=metadata(w.marker))
    session.add_tool_result("find", {w.marker: [w.marker]}, call_id="c2")
    session.add_tool_result("find", w.marker, call_id="nobody's")
    w.refused(session.add_tool_result, "find", "x", status=w.marker)
    w.refused(session.add_tool_result, "find", {w.marker})


def _context(w: Watched) -> None:
    session = w.session()
    for text in (w.marker, w.marker, f"new {w.marker}"):
        session.add_context(text, name=f"{w.marker} notes.md", metadata=metadata(w.marker), pinned=True)
    assert len(session.entries()) == 2
    w.refused(session.add_context, [w.marker], name="x")
    w.refused(session.add_context, "x", name={w.marker: 1})


def _add(w: Watched) -> None:
    for name, make in MESSAGES.items():
        session = w.session(name, format=name)
        options = {"key": "batch", "statuses": {"c1": "error"}, "metadata": metadata(w.marker)}
        first = session.add(make(w.marker), **options)
        assert session.add(make(w.marker), **options) == first
        for line in malformed(w.marker):
            try:
                given = json.loads(line)
            except ValueError:
                given = line
            w.attempted(session.add, given)
            w.attempted(session.add, [given])
        w.refused(session.add, [{"role": "user", "content": f"other {w.marker}"}], key="batch")
        w.refused(session.add, w.marker)
        w.refused(session.add, [w.marker])
        w.refused(session.add, [], format=w.marker)
        w.refused(session.add, [{"role": "user", "content": "x"}], key={w.marker: 1})
        w.refused(session.add, [{"role": "user", "content": "x"}], statuses=w.marker)
    assert w.errors >= 6 * len(MESSAGES)
    w.refused(w.session("text", format="text").add, w.marker, format="text")


def _stream(w: Watched) -> None:
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "find", "arguments": arguments(w.marker)}}
    said = {"role": "assistant", "content": f"it is {w.marker}", "reasoning_content": w.marker, w.marker: w.marker}
    chunk = {"object": "chat.completion.chunk", "id": w.marker, "model": w.marker}
    first = {**chunk, "choices": [{"index": 0, "delta": {**said, "tool_calls": [call]}, w.marker: w.marker}]}
    last = {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 5}}
    for events in ([first, last], [first]):
        with w.session().stream(metadata=metadata(w.marker)) as answer:
            for event in events:
                answer.feed(event)
            for bad in (w.marker, {w.marker: w.marker}, {"type": "message_start", w.marker: 1}):
                w.refused(answer.feed, bad)
    w.refused(w.session().stream, cut_off=w.marker)


def _add_entries(w: Watched) -> None:
    session = w.session()
    session.add_entries(entries(w.marker))
    session.add_entries(entries(w.marker), key="batch")
    w.refused(session.add_entries, [Entry(id="one", content=w.marker), w.marker])
    session.add_entries([Entry(id="one", content="x")])
    w.refused(session.add_entries, [Entry(id="one", content=w.marker)])
    w.refused(session.add_entries, [Entry(kind=w.marker)])  # type: ignore[arg-type]
    w.refused(session.add_entries, [Entry(role=w.marker)])  # type: ignore[arg-type]
    w.refused(session.add_entries, [Entry(status=w.marker)])  # type: ignore[arg-type]
    w.attempted(session.add_entries, [Entry(content=(Text(text=[w.marker]),))])  # type: ignore[arg-type]
    w.attempted(session.add_entries, [Entry(native=Native(format="openai", keep={"x": {w.marker}}))])


def _replace(w: Watched) -> None:
    for name, make in MESSAGES.items():
        session = w.session(name, format=name)
        session.add(make(w.marker), metadata=metadata(w.marker))
        given = [*make(f"new {w.marker}"), *make(w.marker)]
        options = {"key": f"of {w.marker}", "metadata": metadata(w.marker)}
        first = session.replace(given, **options)
        assert session.replace(given, **options) == first
        session.replace(make(w.marker))
        w.refused(session.replace, make(f"other {w.marker}"), key=f"of {w.marker}")
        w.refused(session.replace, w.marker)
        w.refused(session.replace, [w.marker])
        w.refused(session.replace, [], format=w.marker)
        w.refused(session.replace, [], seen=w.marker)
        w.refused(session.replace, [], seen={w.marker: 1})
        w.refused(session.replace, [], statuses=w.marker)
        with session.turn(atomic=True):
            session.add(make(w.marker))
            w.refused(session.replace, make(w.marker))
    _sent(w, "session:replaced")


def _resolve(w: Watched) -> None:
    session = w.session()
    session.add_tool_call("find", {}, call_id="c1")
    session.resolve("c1", output=w.marker)
    w.refused(session.resolve, w.marker)


def _turn(w: Watched) -> None:
    session = w.session(
        persistence="flush", archive=False, long_term={**SUMMARY, "message_count": 3}, summarizer=w.asked
    )
    with session.turn():
        session.add_user_message(f"{w.marker} {WORDS}")
        session.add_assistant_message(f"{w.marker} {WORDS}")
    with session.turn(atomic=True):
        given = session.add_user_message(f"{w.marker} {WORDS}")
        assert w.marker not in given.text
        session.add_context(w.marker, name=w.marker)
        session.add_assistant_message(w.marker)
    ephemeral = w.session("gone", persistence="ephemeral")
    with ephemeral.turn():
        ephemeral.add_user_message(w.marker)
        assert w.marker not in str(ephemeral.context().messages)

    def broken() -> None:
        with session.turn(atomic=True):
            session.add_user_message(w.marker)
            session.add_user_message(w.marker, importance=w.marker)

    w.refused(broken)
    w.refused(session.turn, atomic=w.marker)


def _end_turn(w: Watched) -> None:
    session = w.session(long_term={**SUMMARY, "interaction_threshold_qty": 2}, summarizer=w.asked)
    _talk(w, session)
    session.end_turn()
    _sent(w, "turn:ended")


# --- contexts, usage, pins, erasure


def _view(w: Watched) -> Unstored | None:
    odd = "message.content < 3"
    session = w.session(max_tokens=900, view="small", conditions=[odd])
    _talk(w, session, 6)
    session.context(system=w.marker, tools=[{"type": "function", "function": {"name": "f", "description": w.marker}}])
    _sent(w, "cut", "condition:error")
    where = f"not contains(message.content, '{w.marker}')"
    w.refused(w.session, conditions=[where])
    w.refused(w.session, short_term={"memory_strategy_id": "max_tokens", "conditions": [where], "cut": "low_water"})
    w.refused(session.context, system="x " * 2_000 + w.marker)
    w.refused(session.context, system=[w.marker])
    w.refused(session.context, tools=[w.marker])
    w.refused(session.context, format=w.marker)
    w.refused(session.context, at=w.marker)
    block = {"memory_strategy_id": "max_tokens", "memory_max_tokens": None, "conditions": [odd], "strict": True}
    strict = w.session(short_term=block)
    w.refused(strict.context)
    return None


def _usage(w: Watched) -> Unstored:
    w.session().add_user_message("x")
    w.session().record_usage(input_tokens=10, output_tokens=2, cached_tokens=1)
    w.refused(w.session().record_usage, w.marker)
    w.refused(w.session().record_usage, 1, context=w.marker)
    w.session().record_usage({"id": w.marker, "usage": {"prompt_tokens": 9}, w.marker: w.marker})
    w.refused(w.session().record_usage, {w.marker: w.marker})
    return Unstored("it stores numbers, and a fingerprint of the response's id")


def _pin(w: Watched) -> Unstored:
    w.session().add_user_message("x")
    w.session().pin(1)
    w.refused(w.session().pin, w.marker)
    w.refused(w.session().unpin, {w.marker: 1})
    return Unstored("it takes only ids")


def _hide(w: Watched) -> Unstored:
    w.session().add_user_message("x")
    w.session().hide(1)
    w.session().show(1)
    w.refused(w.session().hide, w.marker)
    w.refused(w.session().show, {w.marker: 1})
    return Unstored("it takes only ids")


def _erase(w: Watched) -> None:
    session = w.session(summarizer=w.asked)
    _talk(w, session)
    session.compact(SUMMARY)
    session.erase([1], reason=f"because of {w.marker}")
    _sent(w, "erased")
    w.refused(session.erase, [w.marker])
    w.refused(session.erase, [1], reason=[w.marker])


def _clear(w: Watched) -> Unstored:
    session = w.session()
    session.add_user_message(w.marker)
    session.clear()
    return Unstored("the session is empty afterwards")


def _fork(w: Watched) -> None:
    session = w.session()
    session.add_user_message(w.marker)
    session.fork("branch").add_user_message(f"again {w.marker}")
    w.refused(session.fork, "x", at=w.marker)
    w.refused(session.fork, [w.marker])


def _rewind(w: Watched) -> None:
    session = w.session()
    session.add_user_message(w.marker)
    session.add_user_message(w.marker)
    session.rewind(1)
    w.refused(session.rewind, w.marker)


# --- exports


def _export(w: Watched) -> None:
    play(w.session(summarizer=w.asked), w.marker)
    w.emitted.append(("export", json.dumps(w.session().export())))


def _export_to(w: Watched) -> None:
    session = w.session(summarizer=w.asked)
    _talk(w, session)
    session.add_entries(entries(w.marker))
    for format in ("palimpsest", *MESSAGES, "text"):
        session.export_to(w.folder / f"export.{format}", format=format)

    class Full(io.BytesIO):
        def write(self, data: Any, /) -> int:
            w.emitted.append(("written", bytes(data).decode()))
            raise OSError(28, "no space left")

    w.refused(session.export_to, Full())
    w.refused(session.export_to, w.folder / "x", format=w.marker)


# --- compaction


def _compact(w: Watched) -> None:
    focus = f"leave {w.marker} out"
    template = f"{w.marker}: {{content}}"
    answers: dict[str, Any] = {
        "repeats": w.asked,
        "raises": _raising(w),
        "awaited": _awaited(w),
        "says nothing": lambda prompt: "",
        "gives JSON": lambda prompt: {
            "items": [{"kind": "fact", "text": w.marker, "sources": [1], "status": w.marker}]
        },
        "gives what is none": lambda prompt: {w.marker},
        "is slow": CallableSummarizer(_slow(w), timeout=0.02),
        "is none": None,
    }
    for name, answer in answers.items():
        session = w.session(name, summarizer=answer)
        _talk(w, session)
        session.compact({**SUMMARY, "instructions": focus, "on_failure": "keep"})
        session.compact({**SUMMARY, "prompt_template": template})
        session.compact({**SUMMARY, "cod_max_loops": 2, "on_failure": "heuristic"})
        _talk(w, session)
        session.compact({**SUMMARY, "rebuild_every": 1})
        session.compact("ladder")
        session.compact({"strategy": "mask_results"})
        for summary in session.summaries(history=True):
            w.emitted.append(("summary", repr(summary)))
    _sent(w, "compressed", "compaction:failed")
    session = w.session("strange")
    _talk(w, session)
    w.refused(session.compact, w.marker)
    w.refused(session.compact, {"strategy": "lru", w.marker: 1})
    w.refused(session.compact, {"strategy": "summarizer", "instructions": [w.marker]})
    session.compact(Neuralyzer(interaction_keep=1))
    by_itself = w.session(
        "background", summarizer=w.asked, auto_compact="background", long_term={**SUMMARY, "message_count": 4}
    )
    _talk(w, by_itself, 5)
    failing = w.session(
        "failing", summarizer=_raising(w), auto_compact="background", long_term={**SUMMARY, "message_count": 4}
    )
    _talk(w, failing, 5)
    strange = w.session("planner", auto_compact="background", long_term=_Strange(w.marker))
    _talk(w, strange, 2)
    w.settle()
    gc.collect()  # an event loop reports a task's unretrieved error when the task is collected


def _raising(w: Watched) -> Callable[[str], str]:
    def summarizer(prompt: str) -> str:
        w.emitted.append(("prompt", prompt))
        fault = ValueError(f"no answer to {w.marker}: {prompt}")
        fault.add_note(f"it was about {w.marker}")
        raise fault from KeyError(w.marker)

    return summarizer


def _awaited(w: Watched) -> Callable[[str], Any]:
    async def summarizer(prompt: str) -> str:
        return w.asked(prompt)

    return summarizer


def _slow(w: Watched) -> Callable[[str], Any]:
    async def summarizer(prompt: str) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError as cancelled:
            raise ValueError(f"stopped at {w.marker}") from cancelled
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


def _restore(w: Watched) -> None:
    session = w.session(summarizer=w.asked)
    _talk(w, session)
    session.compact(SUMMARY)
    session.restore()
    _sent(w, "restored")
    w.refused(session.restore, w.marker)
    w.refused(session.expand, {w.marker: 1})


# --- memories


def _import_session(w: Watched) -> None:
    given = export(w.marker)
    w.memory.import_session(given)
    w.memory.import_session(given, on_conflict="replace")
    w.session("merged").add_user_message("there already")
    w.memory.import_session(given, session_id="merged", on_conflict="merge")
    w.memory.import_session(given, session_id="fresh", on_conflict="merge")
    w.session("s").context()
    _sent(w, "session:imported")
    w.refused(w.memory.import_session, given)
    w.refused(w.memory.import_session, w.marker)
    w.refused(w.memory.import_session, given, on_conflict=w.marker)
    wrong: list[tuple[str, Any]] = [
        ("kind", w.marker),
        ("schema_version", w.marker),
        ("session_id", [w.marker]),
        ("head", w.marker),
        ("entries", w.marker),
        ("entries", [w.marker]),
        ("entries", [{w.marker: 1}]),
        ("entries", [{"id": "x", "seq": 1, "content": [w.marker]}]),
        ("entries", [{"id": "x", "seq": 1, "kind": w.marker}]),
        ("entries", [{"id": "x", "seq": 1, "created_at": w.marker}]),
        ("entries", [{"id": "x", "seq": 1, "links": w.marker}]),
        ("records", [{w.marker: 1}]),
        ("usage", w.marker),
    ]
    for place, value in wrong:
        w.refused(w.memory.import_session, {**given, place: value}, session_id="y")
    outlines: list[tuple[str, Any]] = [
        ("revision", w.marker),
        ("views", {"main": w.marker}),
        ("rewound", w.marker),
        ("attempts", w.marker),
        ("pseudonyms", w.marker),
        ("pseudonyms", {w.marker: 1}),
        ("created_at", w.marker),
        ("forked_from", [w.marker]),
        ("first_seq", w.marker),
        ("turns", w.marker),
    ]
    for name, value in outlines:
        head = {**given["head"], name: value}
        w.refused(w.memory.import_session, {**given, "head": head}, session_id="y")


def _import_file(w: Watched) -> None:
    for name, path in files(w.marker, w.inputs).items():
        report = w.memory.import_file(path)
        assert any(one.added for one in report.sessions.values()), name
        w.emitted.append((f"report of {name}", f"{report!r}"))
        w.emitted.append((f"again of {name}", f"{w.memory.import_file(path)!r}"))
        w.attempted(w.memory.import_file, path, strict=True, session_id="strict")
    for line in malformed(w.marker):
        given = (line + "\n").encode()
        report = w.attempted(w.memory.import_file, io.BytesIO(given), session_id="bad", format="openai")
        w.emitted.append(("report", repr(report)))
        w.attempted(w.memory.import_file, io.BytesIO(given), session_id="bad", strict=True)
    good = json.dumps({"role": "user", "content": "x"})
    w.memory.import_file(io.BytesIO(f"{good}\n{{{w.marker}\n{good}\n".encode()), session_id="lines")
    w.refused(w.memory.import_file, io.BytesIO(b"{}"), source=w.marker, session_id="x")
    w.refused(w.memory.import_file, io.BytesIO(b"{}"), format=w.marker, session_id="x")
    w.refused(w.memory.import_file, io.BytesIO(b"{}"), key=[w.marker], session_id="x")


def _delete(w: Watched) -> Unstored:
    w.session().add_user_message(w.marker)
    w.memory.delete_session("s")
    w.refused(w.memory.delete_session, [w.marker])
    return Unstored("the session is deleted")


def _sweep(w: Watched) -> None:
    session = w.session()
    session.add_user_message(w.marker, expires_at=datetime.fromtimestamp(w.clock() / 1e6 + 60, UTC))
    session.add_user_message(w.marker)
    w.clock.advance(120)
    assert w.memory.sweep() == 1


def _describe(w: Watched) -> None:
    session = w.session()
    session.describe(title=w.marker, metadata=metadata(w.marker))
    session.add_user_message(w.marker)
    session.describe(title=f"again {w.marker}")
    w.refused(session.describe, user=w.marker)
    w.refused(session.describe, title=[w.marker])
    w.refused(session.describe, metadata={w.marker: {w.marker}})


def _session(w: Watched) -> None:
    w.session().add_user_message(w.marker)
    for option in (
        {"model": [w.marker]},
        {"format": w.marker},
        {"counter": w.marker},
        {"persistence": w.marker},
        {"user": w.marker},
        {"user": [w.marker]},
        {"title": [w.marker]},
        {"title": f"\ud800{w.marker}"},
        {"metadata": [w.marker]},
        {"metadata": {w.marker: {w.marker}}},
        {"auto_compact": w.marker},
        {"summarizer": {w.marker: 1}},
        {"long_term": w.marker},
        {"long_term": {"strategy": w.marker}},
        {"long_term": {w.marker: 1}},
        {"long_term": {"strategy": "lru", "interaction_conditions": [f"{w.marker} +"]}},
        {"short_term": {w.marker: 1}},
        {"conditions": [f"message.content == '{w.marker}"]},
        {"conditions": [f"len('{w.marker}') > 3"]},
        {"oversize": w.marker},
        {"max_tokens": w.marker},
        {"summarizer": f"nobody:{w.marker}"},
        {w.marker: 1},
    ):
        w.attempted(w.memory.session, "s", **option)
    w.session("said", title=f"to {w.marker}", metadata=metadata(w.marker)).add_user_message("x")
    w.session("warned", model=f"nobody's {w.marker}")
    assert w.errors >= 14
    w.refused(w.memory.session, f"a\n{w.marker}")


def _derive(w: Watched) -> None:
    """Derived data is given the ids of erased entries, and its errors are emitted."""

    class Index:
        name = "index"

        async def erased(self, tenant: str, session: str, entries: Mapping[int, str]) -> int:
            w.emitted.append(("derived", f"{tenant} {session} {entries}"))
            raise ValueError(f"it was {w.marker}")

        async def gone(self, tenant: str, session: str) -> int:
            raise ValueError(f"it was {w.marker}")

    session = w.session()
    session.add_user_message(w.marker)
    stop = w.memory.derive(Index())
    w.refused(session.erase, [1])
    w.refused(w.memory.delete_session, "s")
    stop()
    w.refused(w.memory.derive, w.marker)


def _forget(w: Watched) -> None:
    session = w.session(summarizer=w.asked)
    _talk(w, session)
    session.compact(SUMMARY)
    session.add_user_message("to be forgotten", name="ann")
    session.add_user_message(w.marker)
    w.emitted.append(("dry run", repr(w.memory.forget(matches=w.marker, dry_run=True))))
    w.emitted.append(("forgotten", repr(w.memory.forget(user="ann", reason=f"because of {w.marker}"))))
    w.emitted.append(("forgotten", repr(w.memory.forget(matches=f"9 {w.marker}", reason=f"because of {w.marker}"))))
    w.refused(w.memory.forget, user=[w.marker])
    w.refused(w.memory.forget, tenant=w.marker)
    w.refused(w.memory.forget, user="x", session=w.marker)


def _scan(w: Watched) -> None:
    session = w.session()
    _talk(w, session)
    w.emitted.append(("scanned", repr(w.memory.scan(apply=True))))
    w.refused(w.memory.scan, w.marker)
    w.refused(w.memory.scan, {w.marker: 1})
    w.refused(w.memory.scan, sample=w.marker)


def _on(w: Watched) -> Unstored:
    w.refused(w.memory.on, w.marker, print)
    w.refused(w.memory.on, "cut", w.marker)
    return Unstored("it stores nothing")


def _close(w: Watched) -> Unstored | None:
    session = w.session()
    session.add_user_message(w.marker)
    w.close()
    w.refused(session.add_user_message, w.marker)
    w.open()
    return Unstored("the store was only in memory") if w.where == "memory://" else None


def _working(w: Watched) -> None:
    for bad in (w.marker, f"user/{w.marker}"):
        w.refused(w.memory.working, bad)
    _fact(w)


def _fork_of_memory(w: Watched) -> None:
    fork = w.memory.fork("child")
    fork.working().set("k", {"to": [w.marker]})
    w.emitted.append(("fact", repr(fork.working().fact("k"))))
    w.refused(w.memory.fork("x").working, w.marker)


def _fact(w: Watched) -> None:
    facts = w.memory.working("user/ann")
    facts.set("k", w.marker)
    facts.set("k", {"to": [(w.marker,)], 7: {w.marker}, "then": {w.marker: 1}})
    facts.set("bytes", w.marker.encode())
    w.emitted.append(("prompt", facts.to_context_string()))
    w.emitted.append(("facts", repr(facts.facts())))
    w.refused(facts.set, w.marker, 1)
    w.refused(facts.get, w.marker + "\n")
    w.refused(facts.set, "k", object(), ttl=w.marker)
    w.refused(facts.set, "k", {w.marker: object()})
    w.refused(facts.set, "k", f"{w.marker} {WORDS * 100}")
    w.refused(facts.set, "k", w.marker, version=7)
    w.refused(facts.set, "k", 1, importance=w.marker)


def _facts(w: Watched) -> None:
    facts = w.memory.working("a")
    facts.set_many({"a": w.marker, "b": [w.marker]})
    w.refused(facts.set_many, {"a": 1, w.marker: 1})
    w.refused(facts.set_many, w.marker)
    session = w.session()
    session.add_user_message("hello")
    session.working.set("k", [w.marker])
    w.emitted.append(("export", json.dumps(session.export())))
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
