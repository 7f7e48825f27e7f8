"""Drivers like those of `write_paths` for other ways into a memory: declared memories, tools, compatibility layers.

Each driver passes private text to every argument that takes text, and records what summarizers and handlers receive.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from palimpsest.compat.agterm import MemoryManager
from palimpsest.compat.firefly import ConversationMemory, ConversationTurn
from palimpsest.integrations.tools import MemoryTools
from palimpsest.resources import Resources
from private_messages import metadata
from watched_memory import Watched

WORDS = "words that are to be summarised " * 30


def _agterm(watched: Watched) -> None:
    """Drive AGTerm's manager: entries, compression, exports and imports of states, events."""
    marker = watched.marker
    config = {"max_tokens": 900, "max_entries": 4, "recent_window": 1, "min_entries_to_compress": 2}
    manager = MemoryManager(config, store=watched.memory)
    for event in ("entry:added", "compressed", "session:cleared", "config:changed"):
        manager.on(event, lambda *given: watched.emitted.append(("event", repr(given))))
        manager.on(event, _failing(marker))
    manager.set_summarize_callback(watched.asked)
    for number in range(4):
        manager.add_user_message("s", f"{number} {marker} {WORDS}", metadata(marker))
        manager.add_assistant_message("s", f"{number} {WORDS} {marker}", metadata(marker))
    manager.add_tool_call("s", "find", {marker: marker}, "c1")
    manager.add_tool_result("s", "find", {marker: [marker]}, "error", "c1")
    manager.add_context("s", marker, marker)
    manager.compress("s")
    assert manager.get_summaries("s")
    watched.emitted.append(("context", manager.get_context_for_llm("s") + repr(manager.context("s"))))
    watched.emitted.append(
        ("read", repr([manager.get_active_entries("s"), manager.get_summaries("s"), manager.get_stats("s")]))
    )
    state = manager.export_session("s").to_dict()
    watched.emitted.append(("state", json.dumps(state)))
    imported = (
        json.loads(json.dumps(state).replace(watched.case.stand_in, marker))
        if watched.case.stand_in != "[EMAIL"
        else state
    )
    key = "sessionId" if "sessionId" in imported else "session_id"
    manager.import_session({**imported, key: "back"})
    watched.emitted.append(("state", json.dumps(manager.export_session("back").to_dict())))
    invalid: list[Any] = [{marker: marker}, {**imported, marker: 1}, {key: marker}]
    invalid += [{**imported, "entries": [marker]}, {**imported, "entries": [{marker: marker}]}]
    for bad in invalid:
        watched.refused(manager.import_session, bad)
    watched.refused(manager.on, marker, print)
    watched.refused(manager.update_config, {marker: marker})
    manager.update_config({"max_tokens": 5000})
    manager.clear_session("back")


def _failing(marker: str) -> Callable[..., None]:
    def fails(*given: object) -> None:
        raise ValueError(f"{marker} {given!r}")

    return fails


class _Message:
    """A raw message that cannot be written as JSON."""

    def __init__(self, content: str) -> None:
        self.content, self.itself = content, object()

    def __repr__(self) -> str:
        return f"_Message({self.content})"


def _firefly(watched: Watched) -> None:
    """Drive Firefly's conversations: turns with raw messages of every form, summaries, exports and imports."""
    marker = watched.marker

    def summarizer(turns: list[ConversationTurn]) -> str:
        watched.emitted.append(("turns", repr([_said(turn) for turn in turns])))
        return f"They spoke of {marker}."

    conversations = ConversationMemory(
        max_tokens=900, summarize_threshold=800, summarizer=summarizer, store=watched.memory
    )
    conversations.on("context:over_budget", _failing(marker))
    conversations.on("context:over_budget", lambda *given: watched.emitted.append(("event", repr(given))))
    messages = [{"role": "user", "content": f"I am {marker}"}, {"role": "assistant", "content": f"You are {marker}"}]
    forms: list[Any] = [
        None,
        messages,
        [*messages, {marker: marker, "deep": [{marker: [marker]}]}],
        [_Message(marker)],
        [_Message("x")],
    ]
    for number, raw in enumerate(forms * 3):
        name = f"c{number % 2}"
        turn = conversations.add_turn(name, f"I am {marker}", f"You are {marker}", raw, metadata=metadata(marker))
        watched.emitted.append(("turn", repr(_said(turn))))
        conversations.add_turn(name, f"{number} {WORDS}", WORDS, [_Message(marker)])
        watched.emitted.append(("turns", repr([_said(turn) for turn in conversations.get_turns(name)])))
        watched.emitted.append(("history", repr(conversations.get_message_history(name))))
        watched.emitted.append(("summary", repr(conversations.get_summary(name))))
    conversations.add_turn("c0", f"{marker} " * 2000, marker, None)
    watched.emitted.append(("history", repr(conversations.get_message_history("c0"))))
    exported = conversations.export_conversation("c1")
    watched.emitted.append(("export", json.dumps(exported)))
    conversations.import_conversation(exported, conversation_id="back")
    with ConversationMemory() as plain:
        plain.add_turn("x", f"I am {marker}", marker, forms[2], metadata=metadata(marker))
        conversations.import_conversation(plain.export_conversation("x"), conversation_id="brought")
    watched.emitted.append(("turns", repr([_said(turn) for turn in conversations.get_turns("brought")])))
    watched.emitted.append(("history", repr(conversations.get_message_history("brought"))))
    watched.refused(conversations.add_turn, "c", [marker], marker)
    watched.refused(conversations.add_turn, "c", marker, marker, raw_messages=marker)
    watched.refused(conversations.add_turn, "c", marker, marker, metadata=marker)
    watched.refused(conversations.add_turn, {marker: marker}, marker, marker)
    for bad in (
        {marker: marker},
        {"conversation_id": "x", "turns": marker},
        {"conversation_id": "x", "turns": [{marker: marker}]},
        marker,
    ):
        watched.refused(conversations.import_conversation, bad)
    watched.refused(conversations.on, marker, print)


def _said(turn: ConversationTurn) -> object:
    return turn.user_prompt, turn.assistant_response, turn.raw_messages, turn.metadata, repr(turn)


DECLARED: dict[str, Any] = {"resource": "memory", "id": "m", "type": "token_based", "max_tokens": 900}
DECLARED |= {"persistence": {"type": "in_memory", "ttl": "1d"}}


def _declared(watched: Watched) -> None:
    """Drive declared memories: verbs by key, agents, sessions."""
    marker = watched.marker
    with Resources.load(DECLARED, privacy=watched.redactor) as resources:
        keyed = resources.keyed("m")
        told = {"role": "user", "content": marker, "metadata": {marker: marker}}
        keyed.append("k", [told, {"role": "assistant", "content": marker}])
        keyed.append("k", marker)
        keyed.write("k", [{"role": "user", "content": f"again {marker}"}])
        watched.emitted.append(("read", repr([keyed.read("k"), keyed.stats("k"), keyed.health(), keyed.flush("k")])))
        keyed.clear("k", confirm=True, backup=True)
        agent = resources.agent([{"id": "m", "key": "a"}])
        agent.add(f"I am {marker}", f"You are {marker}", key=f"of {marker}")
        watched.emitted.append(("context", repr(agent.context(system="be brief"))))
        refusals: tuple[tuple[Callable[..., object], tuple[object, ...]], ...] = (
            (keyed.append, ("k", [marker, {marker: marker}])),
            (keyed.append, ("k", {marker: marker})),
            (keyed.append, ("k", [{"role": "user", "content": marker, marker: marker}])),
            (keyed.write, ("k", [{"role": marker, "content": marker}])),
            (keyed.read, (marker + "\n",)),
            (agent.add, ([marker], marker)),
        )
        for verb, given in refusals:
            watched.attempted(verb, *given)
        memory = resources.memory("m")
        exports = repr([memory.session(info.session).export() for info in memory.sessions()])
        watched.emitted.append(("stored", exports))
        assert watched.case.stand_in in exports
    watched.session().add_user_message(marker)


def _tools(watched: Watched) -> None:
    """Drive the tools that a model may call: searches, reading, facts."""
    marker = watched.marker
    watched.session().add_user_message(f"It is {marker} {WORDS}")
    tools = MemoryTools(watched.memory, session="s", facts="user/ann")
    for name, arguments in (
        ("search_memory", {"query": marker}),
        ("search_memory", {"query": "summarised", marker: marker}),
        ("search_memory", marker),
        ("read_entries", {"entries": [1]}),
        ("read_entries", {"entries": [marker]}),
        ("remember_fact", {"key": marker, "value": {marker: [marker]}}),
        ("remember_fact", {"key": "a", "value": marker}),
        ("remember_fact", {"key": "password", "value": f"pw {marker}"}),
        ("recall_facts", {}),
        ("list_facts", {"prefix": marker}),
        ("forget_fact", {"key": marker}),
        (marker, {marker: marker}),
    ):
        watched.emitted.append((f"tool {name[:4]}", tools.call(name, arguments).text))


DOORS: dict[str, Callable[[Watched], None]] = {
    "AGTerm": _agterm,
    "Firefly": _firefly,
    "declared memories": _declared,
    "tools": _tools,
}
