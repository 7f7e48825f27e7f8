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
from watched import Watched

WORDS = "words that are to be summarised " * 30


def _agterm(w: Watched) -> None:
    """Drive AGTerm's manager: entries, compression, exports and imports of states, events."""
    m = w.marker
    config = {"max_tokens": 900, "max_entries": 4, "recent_window": 1, "min_entries_to_compress": 2}
    manager = MemoryManager(config, store=w.memory)
    for event in ("entry:added", "compressed", "session:cleared", "config:changed"):
        manager.on(event, lambda *given: w.emitted.append(("event", repr(given))))
        manager.on(event, _failing(m))
    manager.set_summarize_callback(w.asked)
    for number in range(4):
        manager.add_user_message("s", f"{number} {m} {WORDS}", metadata(m))
        manager.add_assistant_message("s", f"{number} {WORDS} {m}", metadata(m))
    manager.add_tool_call("s", "find", {m: m}, "c1")
    manager.add_tool_result("s", "find", {m: [m]}, "error", "c1")
    manager.add_context("s", m, m)
    manager.compress("s")
    assert manager.get_summaries("s")
    w.emitted.append(("context", manager.get_context_for_llm("s") + repr(manager.context("s"))))
    w.emitted.append(
        ("read", repr([manager.get_active_entries("s"), manager.get_summaries("s"), manager.get_stats("s")]))
    )
    state = manager.export_session("s").to_dict()
    w.emitted.append(("state", json.dumps(state)))
    imported = json.loads(json.dumps(state).replace(w.case.stand_in, m)) if w.case.stand_in != "[EMAIL" else state
    key = "sessionId" if "sessionId" in imported else "session_id"
    manager.import_session({**imported, key: "back"})
    w.emitted.append(("state", json.dumps(manager.export_session("back").to_dict())))
    invalid: list[Any] = [{m: m}, {**imported, m: 1}, {key: m}]
    invalid += [{**imported, "entries": [m]}, {**imported, "entries": [{m: m}]}]
    for bad in invalid:
        w.refused(manager.import_session, bad)
    w.refused(manager.on, m, print)
    w.refused(manager.update_config, {m: m})
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


def _firefly(w: Watched) -> None:
    """Drive Firefly's conversations: turns with raw messages of every form, summaries, exports and imports."""
    m = w.marker

    def summarizer(turns: list[ConversationTurn]) -> str:
        w.emitted.append(("turns", repr([_said(turn) for turn in turns])))
        return f"They spoke of {m}."

    conversations = ConversationMemory(max_tokens=900, summarize_threshold=800, summarizer=summarizer, store=w.memory)
    conversations.on("context:over_budget", _failing(m))
    conversations.on("context:over_budget", lambda *given: w.emitted.append(("event", repr(given))))
    messages = [{"role": "user", "content": f"I am {m}"}, {"role": "assistant", "content": f"You are {m}"}]
    forms: list[Any] = [None, messages, [*messages, {m: m, "deep": [{m: [m]}]}], [_Message(m)], [_Message("x")]]
    for number, raw in enumerate(forms * 3):
        name = f"c{number % 2}"
        turn = conversations.add_turn(name, f"I am {m}", f"You are {m}", raw, metadata=metadata(m))
        w.emitted.append(("turn", repr(_said(turn))))
        conversations.add_turn(name, f"{number} {WORDS}", WORDS, [_Message(m)])
        w.emitted.append(("turns", repr([_said(turn) for turn in conversations.get_turns(name)])))
        w.emitted.append(("history", repr(conversations.get_message_history(name))))
        w.emitted.append(("summary", repr(conversations.get_summary(name))))
    conversations.add_turn("c0", f"{m} " * 2000, m, None)
    w.emitted.append(("history", repr(conversations.get_message_history("c0"))))
    exported = conversations.export_conversation("c1")
    w.emitted.append(("export", json.dumps(exported)))
    conversations.import_conversation(exported, conversation_id="back")
    with ConversationMemory() as plain:
        plain.add_turn("x", f"I am {m}", m, forms[2], metadata=metadata(m))
        conversations.import_conversation(plain.export_conversation("x"), conversation_id="brought")
    w.emitted.append(("turns", repr([_said(turn) for turn in conversations.get_turns("brought")])))
    w.emitted.append(("history", repr(conversations.get_message_history("brought"))))
    w.refused(conversations.add_turn, "c", [m], m)
    w.refused(conversations.add_turn, "c", m, m, raw_messages=m)
    w.refused(conversations.add_turn, "c", m, m, metadata=m)
    w.refused(conversations.add_turn, {m: m}, m, m)
    for bad in ({m: m}, {"conversation_id": "x", "turns": m}, {"conversation_id": "x", "turns": [{m: m}]}, m):
        w.refused(conversations.import_conversation, bad)
    w.refused(conversations.on, m, print)


def _said(turn: ConversationTurn) -> object:
    return turn.user_prompt, turn.assistant_response, turn.raw_messages, turn.metadata, repr(turn)


DECLARED: dict[str, Any] = {"resource": "memory", "id": "m", "type": "token_based", "max_tokens": 900}
DECLARED |= {"persistence": {"type": "in_memory", "ttl": "1d"}}


def _declared(w: Watched) -> None:
    """Drive declared memories: verbs by key, agents, sessions."""
    m = w.marker
    with Resources.load(DECLARED, privacy=w.redactor) as resources:
        keyed = resources.keyed("m")
        keyed.append("k", [{"role": "user", "content": m, m: m}, {"role": "assistant", "content": m}])
        keyed.append("k", m)
        keyed.write("k", [{"role": "user", "content": f"again {m}"}])
        w.emitted.append(("read", repr([keyed.read("k"), keyed.stats("k"), keyed.health(), keyed.flush("k")])))
        keyed.clear("k", confirm=True, backup=True)
        agent = resources.agent([{"id": "m", "key": "a"}])
        agent.add(f"I am {m}", f"You are {m}", key=f"of {m}")
        w.emitted.append(("context", repr(agent.context(system="be brief"))))
        refusals: tuple[tuple[Callable[..., object], tuple[object, ...]], ...] = (
            (keyed.append, ("k", [m, {m: m}])),
            (keyed.append, ("k", {m: m})),
            (keyed.write, ("k", [{"role": m, "content": m}])),
            (keyed.read, (m + "\n",)),
            (agent.add, ([m], m)),
        )
        for verb, given in refusals:
            w.attempted(verb, *given)
        memory = resources.memory("m")
        exports = repr([memory.session(info.session).export() for info in memory.sessions()])
        w.emitted.append(("stored", exports))
        assert w.case.stand_in in exports
    w.session().add_user_message(m)


def _tools(w: Watched) -> None:
    """Drive the tools that a model may call: searches, reading, facts."""
    m = w.marker
    w.session().add_user_message(f"It is {m} {WORDS}")
    tools = MemoryTools(w.memory, session="s", facts="user/ann")
    for name, arguments in (
        ("search_memory", {"query": m}),
        ("search_memory", {"query": "summarised", m: m}),
        ("search_memory", m),
        ("read_entries", {"entries": [1]}),
        ("read_entries", {"entries": [m]}),
        ("remember_fact", {"key": m, "value": {m: [m]}}),
        ("remember_fact", {"key": "a", "value": m}),
        ("remember_fact", {"key": "password", "value": f"pw {m}"}),
        ("recall_facts", {}),
        ("list_facts", {"prefix": m}),
        ("forget_fact", {"key": m}),
        (m, {m: m}),
    ):
        w.emitted.append((f"tool {name[:4]}", tools.call(name, arguments).text))


DOORS: dict[str, Callable[[Watched], None]] = {
    "AGTerm": _agterm,
    "Firefly": _firefly,
    "declared memories": _declared,
    "tools": _tools,
}
