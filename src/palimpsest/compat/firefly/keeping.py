"""Keeping conversations: each a session of the native log, known in this process, let go of when it is too large."""

from __future__ import annotations

from _thread import allocate_lock
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
from palimpsest.strategies import SourceSummarizer, SummarySource
from palimpsest.types import CompactionResult

TurnSummarizer = Callable[[list[ConversationTurn]], str | Awaitable[str]]
"""What makes a text of the turns that leave."""

KEPT = 1024
"""Conversations that are known at once: of others everything is read again when they are used."""

SLACK_FROM, SLACK = 1000, 8
"""From so many tokens on, turns are archived when they are over the budget by an eighth of it, not one by one."""

SUMMARY_SECONDS = 300.0
"""How long a summarizer may take."""

VIEW = "firefly"


def checked_store(store: object) -> object:
    """The store, if conversations can be kept there. Raises ConfigError."""
    return store if store is None or isinstance(store, Memory) else checked(store)


class Keeper:
    """Keeps conversations in a memory, or in a store of a program's own, which is mirrored in one."""

    def __init__(
        self, store: object, scale: Scale, max_tokens: int, limit: int, summarizer: TurnSummarizer | None
    ) -> None:
        self.scale, self.max_tokens = scale, max_tokens
        self._limit, self._summarizer = limit, summarizer
        self._store, self._memory = checked_store(store), store if isinstance(store, Memory) else None
        self._mirror: Mirror | None = None
        self._close: finalize[[], Keeper] | None = None
        self._open: dict[str, Conversation] = {}
        self._begun: dict[str, None] = {}
        self._opening = allocate_lock()

    @property
    def memory(self) -> Memory:
        """Where conversations are sessions, opened when it is first needed."""
        if self._memory is None:
            with self._opening:
                self._memory = self._memory or self._opened(self._store)
        return self._memory

    @property
    def redact(self) -> Callable[[str], str] | None:
        """What takes out of a text what the memory's policy finds; None without a policy, and before one is open."""
        return self._memory.redact if self._memory is not None else None

    def _opened(self, store: object) -> Memory:
        if isinstance(store, EntryStore):
            return store.conversations()
        if store is not None:
            self._mirror = Mirror.of(store)
            return self._mirror.memory
        own = Memory.open("memory://")
        self._close = finalize(self, own.close)  # few programs close what was never opened
        return own

    def close(self) -> None:
        """Close what was opened here."""
        if self._close is not None:
            self._close()

    def conversation(self, conversation_id: str) -> Conversation:
        """A conversation, as this process knows it."""
        found = self._open.get(conversation_id) if isinstance(conversation_id, str) else None
        if found is None:
            _check_id(conversation_id)
            memory = self.memory
            if self._mirror is not None:
                self._mirror.prepare(conversation_id, self.scale)
            with self._opening:
                if (found := self._open.get(conversation_id)) is None:
                    found = self._open[conversation_id] = self._begin(memory, conversation_id)
        return found

    def _forget(self, conversation_id: str) -> None:
        """Know nothing of a conversation that is another one now."""
        with self._opening:
            self._open.pop(conversation_id, None)

    def _begin(self, memory: Memory, conversation_id: str) -> Conversation:
        if len(self._open) >= KEPT:  # those with objects that no store has are known here alone
            self._open = {id: one for id, one in self._open.items() if one.has_objects}
        conversation = Conversation(self.scale)
        author = None
        if self._summarizer is not None:
            author = SourceSummarizer(partial(self._written, conversation), name=VIEW, timeout=SUMMARY_SECONDS)
        conversation.session = memory.session(conversation_id, counter=self.scale.counter, view=VIEW, summarizer=author)
        return conversation

    # --- adding

    def add(self, conversation_id: str, user: str, response: str, raw: Raw, metadata: Any) -> Kept:
        """Keep a turn; where they then cost too much, the oldest leave."""
        given = entries_of(user, response, raw, metadata)
        bound = self.scale.bound(user, response, raw.messages if raw.form != "plain" else ())
        conversation = self.conversation(conversation_id)
        if self._mirror is None:
            turn = self._append(conversation, given, raw, bound)
        else:
            with self._mirror.turn:
                conversation = self.conversation(conversation_id)
                turn = self._append(conversation, given, raw, bound)
                try:
                    self._mirror.save(conversation_id, turn)
                except BaseException:
                    self._mirror.undo(conversation_id)
                    self._forget(conversation_id)
                    raise
        if self._begun:
            self._begun.pop(conversation_id, None)
        self._make_room(conversation_id, conversation)
        return turn

    def _append(self, conversation: Conversation, given: list[Entry], raw: Raw, bound: int) -> Kept:
        entries = conversation.session.add_entries(given)
        with conversation.lock:
            return conversation.added(entries, raw, given[0], bound)

    def _make_room(self, conversation_id: str, conversation: Conversation) -> None:
        """Have the oldest turns leave, where they cost too much. Whatever goes wrong reaches nobody who added a turn.
        What a close leaves undone has not gone wrong: whoever opens the store again does it."""
        try:
            with conversation.lock:
                due = self._is_due(conversation)
            if due:
                self._let_go(conversation_id, conversation)
        except Closed:
            return
        except Exception as fault:  # noqa: BLE001 (the boundary: the turn is stored, whatever becomes of older ones)
            log_failure(None, fault, "the oldest turns of a conversation could not be let go")

    def _is_due(self, conversation: Conversation) -> bool:
        """Whether the oldest turns are to leave."""
        if self._summarizer is not None:
            return len(conversation.turns) > 1 and not conversation.paused and conversation.exceeds(self._limit)
        slack = self.max_tokens // SLACK if self.max_tokens >= SLACK_FROM else 0
        return len(conversation.turns) > 1 and conversation.exceeds(self.max_tokens + slack)

    def _let_go(self, conversation_id: str, conversation: Conversation) -> None:
        """Have the oldest turns leave. Nothing is held meanwhile."""
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

    def _written(self, conversation: Conversation, source: SummarySource) -> str | Awaitable[str]:
        """The text that stands for turns that leave, and for what an earlier one stands for."""
        assert self._summarizer is not None, "who has none writes none"
        turns = [one.turn(self.scale) for one in conversation.known_of(source.entries, self.max_tokens)]
        before = "\n\n".join(summary.text for summary in source.previous)
        if isinstance(self._summarizer, LLMSummarizer):
            return self._summarizer.fold(turns, before)
        made = self._summarizer(turns)
        return self._later(made, before) if isawaitable(made) else self._joined(made, before)

    async def _later(self, made: Awaitable[str], before: str) -> str:
        return self._joined(await made, before)

    def _joined(self, made: str, before: str) -> str:
        if not isinstance(made, str):
            raise ConfigError("summarizer", type(made).__name__, "a function that returns text")
        made = made.strip()
        return joined(before, made, self.max_tokens, self.scale.counter.count) if made else ""

    # --- reading

    def turns(self, conversation: Conversation) -> list[Kept]:
        """The turns that are kept, as of now, of a conversation whose lock is held."""
        conversation.refresh()
        return conversation.turns if self._summarizer is not None else conversation.newest(self.max_tokens)

    def kept(self, conversation_id: str) -> tuple[list[Kept], str | None]:
        """The kept turns, and the summary of the others."""
        conversation = self.conversation(conversation_id)
        with conversation.lock:
            return list(self.turns(conversation)), conversation.summary

    # --- conversations

    def new(self) -> str:
        """The id of a new conversation."""
        conversation_id = uuid4().hex
        self._begun[conversation_id] = None
        return conversation_id

    def ids(self) -> list[str]:
        """The ids of all conversations."""
        memory = self.memory
        if self._mirror is not None:
            stored = self._mirror.conversation_ids()
        else:
            stored = [info.session for info in memory.sessions()]
        there = set(stored)
        return [*stored, *(id for id in list(self._begun) if id not in there)]

    def clear(self, conversation_id: str) -> None:
        """Destroy a conversation."""
        memory = self.memory
        _check_id(conversation_id)
        self._begun.pop(conversation_id, None)
        with nullcontext() if self._mirror is None else self._mirror.turn:
            if self._mirror is not None:
                self._mirror.clear(conversation_id)
            memory.delete_session(conversation_id)
        if (known := self._open.get(conversation_id)) is not None:
            with known.lock:
                known.forget()

    def take_in(self, data: Mapping[str, Any], conversation_id: str | None, *, replaces: bool) -> str:
        """Keep a conversation that was exported, and return its id."""
        given = Given(data)
        found = given.conversation_id or self.new() if conversation_id is None else conversation_id
        _check_id(found)
        natively = given.natively(self.memory.session(found).id, self.scale, time_ns() // 1000)
        if given.turns or given.summary:
            with nullcontext() if self._mirror is None else self._mirror.turn:
                if self._mirror is not None:
                    self._mirror.replace(found, given, replaces=replaces)
                self.memory.import_session(natively, on_conflict="replace" if replaces else "error")
        else:
            if replaces:
                self.clear(found)
            self._begun[found] = None
        self._forget(found)
        return found


def _check_id(conversation_id: object) -> None:
    if not isinstance(conversation_id, str) or not is_id(conversation_id):
        raise ConfigError("conversation_id", conversation_id, ID_RULE)
