"""Conversations in a store of a program's own, which has five methods: loaded once, and kept in a memory beside it.

A conversation is a namespace with one entry for each turn, and one that says which turns are kept and what stands for
the others. Another namespace has the ids.
"""

from __future__ import annotations

from _thread import RLock
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary, finalize

from palimpsest import Conflict, Memory
from palimpsest.compat.firefly.entries import MemoryEntry, MemoryScope, portable, restored
from palimpsest.compat.firefly.store import MemoryStore
from palimpsest.compat.firefly.transfer import Given
from palimpsest.compat.firefly.turns import Kept, about_of
from palimpsest.compat.firefly.weighing import Scale
from palimpsest.compat.firefly.working import checked, turn_at
from palimpsest.log.entry import now_us
from palimpsest.runtime.once import ProcessLock

IDS = "conversations"
STATE = "state"

_mirrors: WeakValueDictionary[int, Mirror] = WeakValueDictionary()
_making = ProcessLock()


class Mirror:
    """The conversations of one store, for all that use it in this process."""

    def __init__(self, store: MemoryStore) -> None:
        self.store, self.memory = store, Memory.open("memory://")
        finalize(self, self.memory.close)
        self.turn: RLock = turn_at(store)
        """Is held by whoever changes something."""
        self._prepared: set[str] = set()

    @classmethod
    def of(cls, store: object) -> Mirror:
        """The mirror of a store, always the same. Raises ConfigError for what is none."""
        found = checked(store)
        with _making.own():
            mirror = _mirrors.get(id(found))
            if mirror is None or mirror.store is not found:
                mirror = _mirrors[id(found)] = cls(found)
            return mirror

    def prepare(self, conversation_id: str, scale: Scale) -> None:
        """Load a conversation, unless it is there."""
        with self.turn:
            if conversation_id in self._prepared:
                return
            entries = self.store.load(_namespace(conversation_id))
            turns = [restored(one.content) for one in entries if one.key != STATE]
            states = [restored(one.content) for one in entries if one.key == STATE]
            state = states[-1] if states else {}
            if turns or state.get("summary"):
                first = state.get("first", 0)
                given = Given({"turns": turns, "summary": state.get("summary")})
                gone = sum(turn.turn_id < first for turn in given.turns)
                self.memory.import_session(
                    given.natively(conversation_id, scale, now_us(), gone), on_conflict="replace"
                )
            self._prepared.add(conversation_id)

    def conversation_ids(self) -> list[str]:
        """The ids, in the order in which the conversations began."""
        with self.turn:
            return list(dict.fromkeys(str(one.key) for one in self.store.load(IDS)))

    def save(self, conversation_id: str, turn: Kept) -> None:
        """Keep a turn, which is in the memory already."""
        self._save(conversation_id, _told(turn))

    def _save(self, conversation_id: str, told: dict[str, Any]) -> None:
        namespace = _namespace(conversation_id)
        if self.store.load_by_key(IDS, conversation_id) is None:
            self.store.save(IDS, _entry(f"conversation:{conversation_id}", conversation_id, conversation_id))
        self.store.save(namespace, _entry(uuid4().hex, f"turn:{told['turn_id']}", told))

    def undo(self, conversation_id: str) -> None:
        """Have a conversation loaded again: what is in the memory is not in the store."""
        self.memory.delete_session(conversation_id)
        self._prepared.discard(conversation_id)

    def save_state(self, conversation_id: str, first: int, summary: str | None) -> None:
        """Keep which turns are kept, those from the number `first` on, and what stands for the others."""
        with self.turn:
            namespace = _namespace(conversation_id)
            there = self.store.load_by_key(namespace, STATE)
            entry = _entry(
                uuid4().hex if there is None else there.entry_id, STATE, {"first": first, "summary": summary}
            )
            self.store.save(namespace, entry)

    def replace(self, conversation_id: str, given: Given, *, replaces: bool) -> None:
        """Keep a conversation that comes in; one that is there it `replaces`, or else raises Conflict."""
        with self.turn:
            namespace = _namespace(conversation_id)
            if not replaces and self.store.load(namespace):
                raise Conflict(f"conversation {conversation_id!r}", "is there already")
            self.store.clear(namespace)
            for one in given.turns:
                self._save(conversation_id, one.told())
            if given.summary:
                self.save_state(conversation_id, given.turns[0].turn_id if given.turns else 0, given.summary)
            self._prepared.add(conversation_id)

    def clear(self, conversation_id: str) -> None:
        """Destroy a conversation."""
        with self.turn:
            self.store.clear(_namespace(conversation_id))
            while (there := self.store.load_by_key(IDS, conversation_id)) is not None:
                self.store.delete(IDS, there.entry_id)
                if self.store.load_by_key(IDS, conversation_id) == there:
                    break


def _namespace(conversation_id: str) -> str:
    return f"conversation:{str.__str__(conversation_id)}"


def _entry(entry_id: str, key: str, content: Any) -> MemoryEntry:
    return MemoryEntry(entry_id=entry_id, scope=MemoryScope.CONVERSATION, key=key, content=portable(content, "a turn"))


def _told(turn: Kept) -> dict[str, Any]:
    """A turn as an export has it, raw messages included where they can be stored."""
    about = about_of(turn.entry)
    told = {
        "turn_id": turn.turn_id,
        "user_prompt": turn.user,
        "assistant_response": turn.response,
        "timestamp": turn.entry.created_at.isoformat(),
        "metadata": about.get("metadata", {}),
        "token_estimate": turn.declared,
    }
    if turn.raw.form == "plain":
        told["raw_messages"] = turn.raw.messages
    elif about.get("raw") is not None:
        told["raw_messages"] = about["raw"]
    return told
