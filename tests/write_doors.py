"""Other entrances to a memory, driven like its own verbs: declared memories, tools, and the compatibility modules.

Each driver gives an entrance private text wherever it takes text, and has a summarizer, a handler and a counter see
what these get.
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
    """AGTerm's manager: entries, compression, states in both directions, its events."""
    m = w.marker
    config = {"max_tokens": 900, "max_entries": 4, "recent_window": 1, "min_entries_to_compress": 2}
    manager = MemoryManager(config, store=w.memory)
    for event in ("entry:added", "compressed", "session:cleared", "config:changed"):
        manager.on(event, lambda *given: w.told.append(("event", repr(given))))
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
    w.told.append(("context", manager.get_context_for_llm("s") + repr(manager.context("s"))))
    w.told.append(("read", repr([manager.get_active_entries("s"), manager.get_summaries("s"), manager.get_stats("s")])))
    state = manager.export_session("s").to_dict()
    w.told.append(("state", json.dumps(state)))
    back = json.loads(json.dumps(state).replace(w.case.stand_in, m)) if w.case.stand_in != "[EMAIL" else state
    key = "sessionId" if "sessionId" in back else "session_id"
    manager.import_session({**back, key: "back"})
    w.told.append(("state", json.dumps(manager.export_session("back").to_dict())))
    for bad in ({m: m}, {**back, m: 1}, {**back, "entries": [m]}, {**back, "entries": [{m: m}]}, {key: m}):
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
    """A raw message without a form in JSON."""

    def __init__(self, said: str) -> None:
        self.content, self.itself = said, object()

    def __repr__(self) -> str:
        return f"_Message({self.content})"


def _firefly(w: Watched) -> None:
    """Firefly's conversations: turns with raw messages of every form, summaries, exports in both directions."""
    m = w.marker

    def tells(turns: list[ConversationTurn]) -> str:
        w.told.append(("turns", repr([_said(turn) for turn in turns])))
        return f"They spoke of {m}."

    made = ConversationMemory(max_tokens=900, summarize_threshold=800, summarizer=tells, store=w.memory)
    made.on("context:over_budget", _failing(m))
    made.on("context:over_budget", lambda *given: w.told.append(("event", repr(given))))
    spoken = [{"role": "user", "content": f"I am {m}"}, {"role": "assistant", "content": f"You are {m}"}]
    forms: list[Any] = [None, spoken, [*spoken, {m: m, "deep": [{m: [m]}]}], [_Message(m)], [_Message("x")]]
    for number, raw in enumerate(forms * 3):
        name = f"c{number % 2}"
        turn = made.add_turn(name, f"I am {m}", f"You are {m}", raw, metadata=metadata(m))
        w.told.append(("turn", repr(_said(turn))))
        made.add_turn(name, f"{number} {WORDS}", WORDS, [_Message(m)])
        w.told.append(("turns", repr([_said(one) for one in made.get_turns(name)])))
        w.told.append(("history", repr(made.get_message_history(name))))
        w.told.append(("summary", repr(made.get_summary(name))))
    made.add_turn("c0", f"{m} " * 2000, m, None)
    w.told.append(("history", repr(made.get_message_history("c0"))))
    exported = made.export_conversation("c1")
    w.told.append(("export", json.dumps(exported)))
    made.import_conversation(exported, conversation_id="back")
    with ConversationMemory() as plain:
        plain.add_turn("x", f"I am {m}", m, forms[2], metadata=metadata(m))
        made.import_conversation(plain.export_conversation("x"), conversation_id="brought")
    w.told.append(("turns", repr([_said(one) for one in made.get_turns("brought")])))
    w.told.append(("history", repr(made.get_message_history("brought"))))
    w.refused(made.add_turn, "c", [m], m)
    w.refused(made.add_turn, "c", m, m, raw_messages=m)
    w.refused(made.add_turn, "c", m, m, metadata=m)
    w.refused(made.add_turn, {m: m}, m, m)
    for bad in ({m: m}, {"conversation_id": "x", "turns": m}, {"conversation_id": "x", "turns": [{m: m}]}, m):
        w.refused(made.import_conversation, bad)
    w.refused(made.on, m, print)


def _said(turn: ConversationTurn) -> object:
    return turn.user_prompt, turn.assistant_response, turn.raw_messages, turn.metadata, repr(turn)


DECLARED: dict[str, Any] = {"resource": "memory", "id": "m", "type": "token_based", "max_tokens": 900}
DECLARED |= {"persistence": {"type": "in_memory", "ttl": "1d"}}


def _declared(w: Watched) -> None:
    """Declared memories: verbs by key, agents, sessions."""
    m = w.marker
    with Resources.load(DECLARED, privacy=w.redactor) as resources:
        keyed = resources.keyed("m")
        keyed.append("k", [{"role": "user", "content": m, m: m}, {"role": "assistant", "content": m}])
        keyed.append("k", m)
        keyed.write("k", [{"role": "user", "content": f"again {m}"}])
        w.told.append(("read", repr([keyed.read("k"), keyed.stats("k"), keyed.health(), keyed.flush("k")])))
        keyed.clear("k", confirm=True, backup=True)
        agent = resources.agent([{"id": "m", "key": "a"}])
        agent.add(f"I am {m}", f"You are {m}", key=f"of {m}")
        w.told.append(("context", repr(agent.context(system="be brief"))))
        refusals: tuple[tuple[Callable[..., object], tuple[object, ...]], ...] = (
            (keyed.append, ("k", [m, {m: m}])),
            (keyed.append, ("k", {m: m})),
            (keyed.write, ("k", [{"role": m, "content": m}])),
            (keyed.read, (m + "\n",)),
            (agent.add, ([m], m)),
        )
        for verb, given in refusals:
            w.attempted(verb, *given)
        told = [resources.memory("m").session(one.session).export() for one in resources.memory("m").sessions()]
        w.told.append(("stored", repr(told)))
        assert w.case.stand_in in repr(told)
    w.session().add_user_message(m)


def _tools(w: Watched) -> None:
    """What a model may call: searches, reading, facts."""
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
        w.told.append((f"tool {name[:4]}", tools.call(name, arguments).text))


DOORS: dict[str, Callable[[Watched], None]] = {
    "AGTerm": _agterm,
    "Firefly": _firefly,
    "declared memories": _declared,
    "tools": _tools,
}
