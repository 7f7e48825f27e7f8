"""Conversations in a program's own store, which has only five methods: loaded once into a memory of this process.

A conversation is a namespace with one entry for each turn, and one entry with its state: which turns are kept, and the
summary of the others. A further namespace lists the ids of the conversations.
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
from palimpsest.compat.firefly.working import checked, lock_of
from palimpsest.log.entry import now_us
from palimpsest.runtime.once import ProcessLock

IDS = "conversations"
STATE = "state"

_mirrors: WeakValueDictionary[int, Mirror] = WeakValueDictionary()
_making = ProcessLock()


class Mirror:
    """The conversations of one store, mirrored in a memory that all users in this process share."""

    def __init__(self, store: MemoryStore) -> None:
        self.store, self.memory = store, Memory.open("memory://")
        finalize(self, self.memory.close)
        self.lock: RLock = lock_of(store)
        """The lock of the store, which every change and every load holds."""
        self._prepared: set[str] = set()

    @classmethod
    def of(cls, store: object) -> Mirror:
        """Return the mirror of a store, which is always the same.

        Raises ConfigError for an object that is not a store.
        """
        checked_store = checked(store)
        with _making.own():
            mirror = _mirrors.get(id(checked_store))
            if mirror is None or mirror.store is not checked_store:
                mirror = _mirrors[id(checked_store)] = cls(checked_store)
            return mirror

    def prepare(self, conversation_id: str, scale: Scale) -> None:
        """Load a conversation from the store, unless that was done before."""
        with self.lock:
            if conversation_id in self._prepared:
                return
            entries = self.store.load(_namespace(conversation_id))
            turns = [restored(entry.content) for entry in entries if entry.key != STATE]
            states = [restored(entry.content) for entry in entries if entry.key == STATE]
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
        """Return the ids, in the order in which the conversations began."""
        with self.lock:
            return list(dict.fromkeys(str(entry.key) for entry in self.store.load(IDS)))

    def save(self, conversation_id: str, turn: Kept) -> None:
        """Write a turn to the store. The memory has it already."""
        self._save(conversation_id, _exported(turn))

    def _save(self, conversation_id: str, turn: dict[str, Any]) -> None:
        namespace = _namespace(conversation_id)
        if self.store.load_by_key(IDS, conversation_id) is None:
            self.store.save(IDS, _entry(f"conversation:{conversation_id}", conversation_id, conversation_id))
        self.store.save(namespace, _entry(uuid4().hex, f"turn:{turn['turn_id']}", turn))

    def undo(self, conversation_id: str) -> None:
        """Drop a conversation whose turn could not be written to the store, so that it is loaded again."""
        self.memory.delete_session(conversation_id)
        self._prepared.discard(conversation_id)

    def save_state(self, conversation_id: str, first: int, summary: str | None) -> None:
        """Write the number of the first kept turn, and the summary of the turns before it, to the store."""
        with self.lock:
            namespace = _namespace(conversation_id)
            stored = self.store.load_by_key(namespace, STATE)
            entry = _entry(
                uuid4().hex if stored is None else stored.entry_id, STATE, {"first": first, "summary": summary}
            )
            self.store.save(namespace, entry)

    def replace(self, conversation_id: str, given: Given, *, replaces: bool) -> None:
        """Write an imported conversation to the store.

        An existing one of its id is replaced, or else Conflict is raised.
        """
        with self.lock:
            namespace = _namespace(conversation_id)
            if not replaces and self.store.load(namespace):
                raise Conflict(f"conversation {conversation_id!r}", "exists already")
            self.store.clear(namespace)
            for turn in given.turns:
                self._save(conversation_id, turn.as_exported())
            if given.summary:
                self.save_state(conversation_id, given.turns[0].turn_id if given.turns else 0, given.summary)
            self._prepared.add(conversation_id)

    def clear(self, conversation_id: str) -> None:
        """Delete a conversation from the store."""
        with self.lock:
            self.store.clear(_namespace(conversation_id))
            while (entry := self.store.load_by_key(IDS, conversation_id)) is not None:
                self.store.delete(IDS, entry.entry_id)
                if self.store.load_by_key(IDS, conversation_id) == entry:
                    break  # the store does not delete


def _namespace(conversation_id: str) -> str:
    return f"conversation:{str.__str__(conversation_id)}"


def _entry(entry_id: str, key: str, content: Any) -> MemoryEntry:
    return MemoryEntry(entry_id=entry_id, scope=MemoryScope.CONVERSATION, key=key, content=portable(content, "a turn"))


def _exported(turn: Kept) -> dict[str, Any]:
    """Return a turn as an export has it, with its raw messages if they can be stored."""
    about = about_of(turn.entry)
    fields = {
        "turn_id": turn.turn_id,
        "user_prompt": turn.user,
        "assistant_response": turn.response,
        "timestamp": turn.entry.created_at.isoformat(),
        "metadata": about.get("metadata", {}),
        "token_estimate": turn.declared,
    }
    if turn.raw.form == "plain":
        fields["raw_messages"] = turn.raw.messages
    elif about.get("raw") is not None:
        fields["raw_messages"] = about["raw"]
    return fields
