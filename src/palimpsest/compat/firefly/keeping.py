"""The conversations behind `ConversationMemory`: each is a session of a Palimpsest memory.

`Keeper` caches what this process has read of each conversation. It removes the oldest turns where they cost too much.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from inspect import isawaitable
from time import time_ns
from typing import Any
from uuid import uuid4
from weakref import finalize

from palimpsest import ConfigError, Entry, Memory
from palimpsest.compat.firefly.kept import Conversation
from palimpsest.compat.firefly.leaving import Leaving, joined
from palimpsest.compat.firefly.mirror import Mirror
from palimpsest.compat.firefly.raw import Raw
from palimpsest.compat.firefly.store import EntryStore
from palimpsest.compat.firefly.summarization import LLMSummarizer
from palimpsest.compat.firefly.transfer import Given
from palimpsest.compat.firefly.turns import ConversationTurn, Kept, entries_of, kept_of
from palimpsest.compat.firefly.weighing import Scale
from palimpsest.compat.firefly.working import checked
from palimpsest.errors import Closed
from palimpsest.log.ids import ID_RULE, is_id
from palimpsest.runtime.logs import log_failure
from palimpsest.runtime.once import new_lock
from palimpsest.strategies import SourceSummarizer, SummarySource
from palimpsest.types import CompactionResult

TurnSummarizer = Callable[[list[ConversationTurn]], str | Awaitable[str]]
"""Writes one text that stands for the turns that leave a conversation."""

KEPT = 1024
"""How many conversations are cached at once. Any other is read again in full when it is used."""

SLACK_FROM, SLACK = 1000, 8
"""Budgets of at least `SLACK_FROM` tokens may be exceeded by 1/`SLACK`, so that turns are not archived one by one."""

SUMMARY_SECONDS = 300.0
"""The longest that one call of the summarizer may take, in seconds."""

VIEW = "firefly"


def checked_store(store: object) -> object:
    """Return the store if it can hold conversations, else raise ConfigError."""
    return store if store is None or isinstance(store, Memory) else checked(store)


class Keeper:
    """Keeps conversations in a memory.

    A program's own store, which has only the five methods of `MemoryStore`, is mirrored in a memory of this process.
    """

    def __init__(
        self, store: object, scale: Scale, max_tokens: int, limit: int, summarizer: TurnSummarizer | None
    ) -> None:
        self.scale, self.max_tokens = scale, max_tokens
        self._limit, self._summarizer = limit, summarizer
        self._store, self._memory = checked_store(store), store if isinstance(store, Memory) else None
        self._mirror: Mirror | None = None
        self._close: finalize[[], Keeper] | None = None
        self._conversations: dict[str, Conversation] = {}
        self._new_ids: dict[str, None] = {}  # of conversations without a turn, which no store knows
        self._opening = new_lock()

    @property
    def memory(self) -> Memory:
        """The memory whose sessions are the conversations. It is opened on first use."""
        if self._memory is None:
            with self._opening:
                self._memory = self._memory or self._opened(self._store)
        return self._memory

    @property
    def redact(self) -> Callable[[str], str] | None:
        """What removes from a text all that the privacy policy finds; None without a policy or an open memory."""
        return self._memory.redact if self._memory is not None else None

    def _opened(self, store: object) -> Memory:
        if isinstance(store, EntryStore):
            return store.conversations()
        if store is not None:
            self._mirror = Mirror.of(store)
            return self._mirror.memory
        own = Memory.open("memory://")
        self._close = finalize(self, own.close)  # many programs never close a ConversationMemory
        return own

    def close(self) -> None:
        """Close the memory if this object opened it."""
        if self._close is not None:
            self._close()

    def conversation(self, conversation_id: str) -> Conversation:
        """Return the cached conversation of this id, and begin to cache it where it is not."""
        conversation = self._conversations.get(conversation_id) if isinstance(conversation_id, str) else None
        if conversation is None:
            _check_id(conversation_id)
            memory = self.memory
            if self._mirror is not None:
                self._mirror.prepare(conversation_id, self.scale)
            with self._opening:
                if (conversation := self._conversations.get(conversation_id)) is None:
                    conversation = self._conversations[conversation_id] = self._begin(memory, conversation_id)
        return conversation

    def _forget(self, conversation_id: str) -> None:
        """Drop the cached conversation, because what is stored under its id is a different one now."""
        with self._opening:
            self._conversations.pop(conversation_id, None)

    def _begin(self, memory: Memory, conversation_id: str) -> Conversation:
        if len(self._conversations) >= KEPT:  # keep those with raw messages that exist only in this process
            self._conversations = {id: cached for id, cached in self._conversations.items() if cached.has_objects}
        conversation = Conversation(self.scale)
        summarizer = None
        if self._summarizer is not None:
            summarizer = SourceSummarizer(partial(self._summary_text, conversation), name=VIEW, timeout=SUMMARY_SECONDS)
        conversation.session = memory.session(
            conversation_id, counter=self.scale.counter, view=VIEW, summarizer=summarizer
        )
        return conversation

    # --- adding

    def add(self, conversation_id: str, user: str, response: str, raw: Raw, metadata: Any) -> Kept:
        """Store a turn and return it. If the turns then cost too much, the oldest leave."""
        given = entries_of(user, response, raw, metadata, named=self.memory.redact is not None)
        bound = self.scale.bound(user, response, raw.messages if raw.form != "plain" else ())
        conversation = self.conversation(conversation_id)
        if self._mirror is None:
            turn = self._append(conversation, given, raw, bound)
        else:
            with self._mirror.lock:
                conversation = self.conversation(conversation_id)  # another thread's failed save may have dropped it
                turn = self._append(conversation, given, raw, bound)
                try:
                    if turn.entry.seq:
                        self._mirror.save(conversation_id, turn)
                except BaseException:
                    self._mirror.undo(conversation_id)
                    self._forget(conversation_id)
                    raise
        if self._new_ids:
            self._new_ids.pop(conversation_id, None)
        self._make_room(conversation_id, conversation)
        return turn

    def _append(self, conversation: Conversation, given: list[Entry], raw: Raw, bound: int) -> Kept:
        entries = conversation.session.add_entries(given)
        with conversation.lock:
            if not entries[0].seq:  # a privacy policy withholds it: the turn is over, so no context shows it either
                return conversation.unstored(entries, raw, bound)
            return conversation.added(entries, raw, given, bound)

    def _make_room(self, conversation_id: str, conversation: Conversation) -> None:
        """Remove the oldest turns if they cost too much. Failures are logged, never raised: the new turn is stored.

        `Closed` is not even logged: the next process that opens the store makes room instead.
        """
        try:
            with conversation.lock:
                due = self._is_due(conversation)
            if due:
                self._let_go(conversation_id, conversation)
        except Closed:
            return
        except Exception as fault:  # noqa: BLE001 (the boundary: the new turn is stored already)
            log_failure(self.redact, fault, "the oldest turns of a conversation could not be removed")

    def _is_due(self, conversation: Conversation) -> bool:
        """Return whether the oldest turns must leave now."""
        if self._summarizer is not None:
            return len(conversation.turns) > 1 and not conversation.paused and conversation.exceeds(self._limit)
        slack = self.max_tokens // SLACK if self.max_tokens >= SLACK_FROM else 0
        return len(conversation.turns) > 1 and conversation.exceeds(self.max_tokens + slack)

    def _let_go(self, conversation_id: str, conversation: Conversation) -> None:
        """Remove the oldest turns by a compaction. No lock is held while the summarizer runs."""
        summarizes = self._summarizer is not None
        kept = conversation.begin_leaving()

        def cost(entries: Sequence[Entry]) -> int:
            turn = kept.get(entries[0].seq) or kept_of(entries[0], entries[-1].text if len(entries) > 1 else "")
            return turn.cost(self.scale)

        target = self._limit // 2 if summarizes else self.max_tokens
        result: CompactionResult | None = None
        try:
            result = conversation.session.compact(Leaving(self._limit, target, cost, summarizes=summarizes))
            if self._mirror is not None and result.done:
                self._mirror.save_state(conversation_id, *conversation.state())
        finally:
            reason = None if result is None else result.reason
            failed = summarizes and reason in ("failed", "empty", "no_gain")
            conversation.end_leaving(failed=failed, done=result is not None and result.done)

    def _summary_text(self, conversation: Conversation, source: SummarySource) -> str | Awaitable[str]:
        """Return the summary of the turns in `source`, joined with the summaries that it replaces."""
        assert self._summarizer is not None, "only called for sessions with a summarizer"
        turns = [turn.turn(self.scale) for turn in conversation.turns_of(source.entries, self.max_tokens)]
        before = "\n\n".join(summary.text for summary in source.previous)
        if isinstance(self._summarizer, LLMSummarizer):
            return self._summarizer.fold(turns, before)
        written = self._summarizer(turns)
        return self._joined_later(written, before) if isawaitable(written) else self._joined(written, before)

    async def _joined_later(self, written: Awaitable[str], before: str) -> str:
        return self._joined(await written, before)

    def _joined(self, written: str, before: str) -> str:
        if not isinstance(written, str):
            raise ConfigError("summarizer", type(written).__name__, "a function that returns text")
        written = written.strip()
        return joined(before, written, self.max_tokens, self.scale.counter.count) if written else ""

    # --- reading

    def turns(self, conversation: Conversation) -> list[Kept]:
        """Refresh a conversation, whose lock the caller holds, and return its kept turns, oldest first."""
        conversation.refresh()
        return conversation.turns if self._summarizer is not None else conversation.newest(self.max_tokens)

    def kept(self, conversation_id: str) -> tuple[list[Kept], str | None]:
        """Return the kept turns, oldest first, and the summary of those that left (None: there is none)."""
        conversation = self.conversation(conversation_id)
        with conversation.lock:
            return list(self.turns(conversation)), conversation.summary

    # --- conversations

    def new(self) -> str:
        """Return the id of a new conversation, which is listed from now on and stored with its first turn."""
        conversation_id = uuid4().hex
        self._new_ids[conversation_id] = None
        return conversation_id

    def ids(self) -> list[str]:
        """Return the ids of all stored conversations, then those of new ones without a turn."""
        memory = self.memory
        if self._mirror is not None:
            stored = self._mirror.conversation_ids()
        else:
            stored = [info.session for info in memory.sessions()]
        known = set(stored)
        return [*stored, *(id for id in list(self._new_ids) if id not in known)]

    def clear(self, conversation_id: str) -> None:
        """Delete a conversation, with its archive and its summary."""
        memory = self.memory
        _check_id(conversation_id)
        self._new_ids.pop(conversation_id, None)
        with nullcontext() if self._mirror is None else self._mirror.lock:
            if self._mirror is not None:
                self._mirror.clear(conversation_id)
            memory.delete_session(conversation_id)
        if (cached := self._conversations.get(conversation_id)) is not None:
            with cached.lock:
                cached.forget()

    def take_in(self, data: Mapping[str, Any], conversation_id: str | None, *, replaces: bool) -> str:
        """Store an exported conversation and return its id.

        If a conversation of this id exists it is replaced where `replaces` says so, else Conflict is raised.
        """
        given = Given(data)
        target_id = given.conversation_id or self.new() if conversation_id is None else conversation_id
        _check_id(target_id)
        exported = given.natively(
            self.memory.session(target_id).id, self.scale, time_ns() // 1000, named=self.memory.redact is not None
        )
        if given.turns or given.summary:
            with nullcontext() if self._mirror is None else self._mirror.lock:
                if self._mirror is not None:
                    self._mirror.replace(target_id, given, replaces=replaces)
                self.memory.import_session(exported, on_conflict="replace" if replaces else "error")
        else:
            if replaces:
                self.clear(target_id)
            self._new_ids[target_id] = None
        self._forget(target_id)
        return target_id


def _check_id(conversation_id: object) -> None:
    if not isinstance(conversation_id, str) or not is_id(conversation_id):
        raise ConfigError("conversation_id", conversation_id, ID_RULE)
