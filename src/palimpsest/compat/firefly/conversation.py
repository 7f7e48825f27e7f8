"""`ConversationMemory`: conversations of whole turns, within a budget of tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

from palimpsest import ConfigError, Memory
from palimpsest.compat.firefly.history import composed
from palimpsest.compat.firefly.keeping import Keeper
from palimpsest.compat.firefly.raw import MessageForm, form_of, taken
from palimpsest.compat.firefly.store import MemoryStore
from palimpsest.compat.firefly.transfer import exported
from palimpsest.compat.firefly.turns import ConversationTurn, Kept
from palimpsest.compat.firefly.weighing import Scale, counter_of
from palimpsest.log import values
from palimpsest.runtime.events import left_once
from palimpsest.runtime.hushing import hushed
from palimpsest.runtime.logs import log_failure

OVER_BUDGET = "context:over_budget"
"""The event of a newest turn that could not be shown. Besides a memory, this object emits it."""


@hushed(lambda self: self._keeper.redact)
class ConversationMemory:
    """Conversations of whole turns, within a budget of tokens, for programs that were written for Firefly's memory.

    It may be used from any thread, and also inside a running event loop. The two methods that every run calls have
    `async_` variants, which do not block the loop.
    """

    def __init__(
        self,
        *,
        max_tokens: int = 4096,
        summarize_threshold: int | None = 3072,
        estimator: Any = None,
        summarizer: Callable[[list[ConversationTurn]], str | Awaitable[str]] | None = None,
        store: MemoryStore | Memory | None = None,
        message_form: MessageForm = "auto",
    ) -> None:
        """Raises ConfigError, naming the option, for what is not accepted.

        Args:
            max_tokens: the most tokens of a history; without a summarizer also of the turns that are kept; 4,096 by
                default.
            summarize_threshold: with a summarizer, how many tokens the turns may cost before the oldest are summarised,
                if that is less than `max_tokens`; 3,072 by default. 0 or None: only `max_tokens` counts.
            estimator: what counts tokens: an object with `estimate(text)`, or a function; None: an encoding that fits
                most models.
            summarizer: a function, or a coroutine function, from the turns that leave to a text that stands for them;
                None: they leave without one.
            store: where conversations are kept: a store of this package, one of a program's own with the five methods,
                or a Memory whose sessions are all conversations. None: in memory.
            message_form: the form of messages that the program did not supply (the summary, a turn without raw
                messages): "dict", "pydantic_ai", or "auto": that of the conversation's other messages.
        """
        values.whole("max_tokens", max_tokens, 1)
        values.whole("summarize_threshold", summarize_threshold, none=True)
        values.choice("message_form", message_form, ("auto", "dict", "pydantic_ai"))
        if summarizer is not None and (not callable(summarizer) or isinstance(summarizer, type)):
            raise ConfigError("summarizer", summarizer, "a function from a list of turns to text, or None")
        limit = min(summarize_threshold or max_tokens, max_tokens) if summarizer is not None else max_tokens
        self._max_tokens, self._form = max_tokens, message_form
        self._scale = Scale(counter_of(estimator))
        self._keeper = Keeper(store, self._scale, max_tokens, limit, summarizer)
        self._handlers: list[Callable[[str, dict[str, Any]], object]] = []
        self._is_fork = False

    def __repr__(self) -> str:
        return f"<ConversationMemory max_tokens={self._max_tokens}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def max_tokens(self) -> int:
        """The most tokens of a history."""
        return self._max_tokens

    @property
    def memory(self) -> Memory:
        """The memory underneath, whose sessions are the conversations: for all that Palimpsest offers besides."""
        return self._keeper.memory

    # --- adding

    def add_turn(
        self,
        conversation_id: str,
        user_prompt: str,
        assistant_response: str,
        raw_messages: Sequence[Any] | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
    ) -> ConversationTurn:
        """Store a turn after all others, and return it. When it returns, the turn is stored.

        If the turns then cost too much, the oldest leave: with a summarizer a text stands for them from then on, else
        they are archived. If the summarizer fails, all stay. Raises ConfigError for what is not accepted, and
        StoreError: then nothing is stored.

        Args:
            conversation_id: the conversation's id, 1 to 256 characters; an unknown one begins a conversation.
            user_prompt: what the user said.
            assistant_response: what the model answered.
            raw_messages: all messages of the run, any objects; they come back as they are. None: there are none.
            metadata: what else to keep with the turn: values of JSON, or bytes, dates, sets and the like.
        """
        raw = taken(raw_messages, user_prompt, assistant_response)
        turn = self._keeper.add(conversation_id, user_prompt, assistant_response, raw, metadata)
        return turn.turn(self._scale)

    async def async_add_turn(
        self,
        conversation_id: str,
        user_prompt: str,
        assistant_response: str,
        raw_messages: Sequence[Any] | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
    ) -> ConversationTurn:
        """Call `add_turn` in a worker thread: the event loop is not blocked, whatever a summarizer does.

        Args:
            conversation_id: the conversation's id.
            user_prompt: what the user said.
            assistant_response: what the model answered.
            raw_messages: all messages of the run; None: there are none.
            metadata: what else to keep with the turn.
        """
        return await asyncio.to_thread(
            self.add_turn, conversation_id, user_prompt, assistant_response, raw_messages, metadata=metadata
        )

    # --- reading

    def get_message_history(self, conversation_id: str, *, include_summary: bool = True) -> list[Any]:
        """Return the messages of the newest whole turns that fit into `max_tokens`, oldest first.

        A summary of the turns that left comes first, as one message, and counts. A newest turn that is too large is
        shortened: tools' results first, then the model's text. If that is not enough it is left out, and handlers of
        "context:over_budget" are called. An unknown conversation gives an empty list.

        Args:
            conversation_id: the conversation's id.
            include_summary: whether to include the summary; True by default.
        """
        conversation = self._keeper.conversation(conversation_id)
        with conversation.lock:
            turns = self._keeper.turns(conversation)
            if not turns and not conversation.summaries:
                return []
            form = partial(form_of, [turn.raw for turn in reversed(turns)], self._form)
            background = conversation.background() if include_summary else None
            history = composed(turns, background, self._max_tokens, self._scale, form)
        for turn in history.left_out:
            self._tell(conversation_id, turn)
        return history.messages

    async def async_get_message_history(self, conversation_id: str, *, include_summary: bool = True) -> list[Any]:
        """Call `get_message_history` in a worker thread.

        Args:
            conversation_id: the conversation's id.
            include_summary: whether to include the summary; True by default.
        """
        return await asyncio.to_thread(self.get_message_history, conversation_id, include_summary=include_summary)

    def get_turns(self, conversation_id: str) -> list[ConversationTurn]:
        """Return the turns that are kept, oldest first; an empty list for an unknown conversation.

        Args:
            conversation_id: the conversation's id.
        """
        return [turn.turn(self._scale) for turn in self._keeper.kept(conversation_id)[0]]

    def get_summary(self, conversation_id: str) -> str | None:
        """Return the text that stands for the turns that are not kept any more; None if there is none.

        Args:
            conversation_id: the conversation's id.
        """
        return self._keeper.kept(conversation_id)[1]

    def get_total_tokens(self, conversation_id: str) -> int:
        """Return the cost of the kept turns, in tokens; 0 for an unknown conversation.

        Args:
            conversation_id: the conversation's id.
        """
        return sum(turn.estimate(self._scale) for turn in self._keeper.kept(conversation_id)[0])

    # --- conversations

    def new_conversation(self) -> str:
        """Return an unused id for a new conversation, which is stored with its first turn."""
        return self._keeper.new()

    @property
    def conversation_ids(self) -> list[str]:
        """The ids of all conversations: the stored ones, and new ones without a turn."""
        return self._keeper.ids()

    def clear(self, conversation_id: str) -> None:
        """Delete a conversation: its turns, archived ones included, and its summary.

        A fork raises ConfigError: clear the conversation where it began.

        Args:
            conversation_id: the conversation's id; an unknown one is no error.
        """
        self._may_destroy()
        self._keeper.clear(conversation_id)

    def clear_all(self) -> None:
        """Delete all conversations. A fork raises ConfigError."""
        self._may_destroy()
        for conversation_id in self.conversation_ids:
            self.clear(conversation_id)

    def _may_destroy(self) -> None:
        if self._is_fork:
            raise ConfigError("clear", "a fork", "the memory that it was forked from, which holds these conversations")

    # --- a conversation as data

    def export_conversation(self, conversation_id: str) -> dict[str, Any]:
        """Return a conversation as values of JSON: `conversation_id`, `turns`, `summary` and `total_tokens`.

        Raw messages are included if they have a form in JSON.

        Args:
            conversation_id: the conversation's id; an unknown one has no turns.
        """
        turns, summary = self._keeper.kept(conversation_id)
        return exported(conversation_id, turns, summary, self._scale)

    def import_conversation(self, data: Mapping[str, Any], *, conversation_id: str | None = None) -> str:
        """Store an exported conversation in place of the one of its id, if there is one, and return the id.

        The cost of a turn is counted if the data do not have it. Raises ImportFailed, and changes nothing, for data
        that cannot be imported. A fork raises Conflict if there is a conversation of this id.

        Args:
            data: what `export_conversation` returned: a mapping with the list `turns`, each with both texts; or `{}`
                for a new conversation without turns.
            conversation_id: the id to store it under; None: that of the data, or a new one.
        """
        return self._keeper.take_in(data, conversation_id, replaces=not self._is_fork)

    # --- events, and the end

    def on(self, event: str, handler: Callable[[str, dict[str, Any]], object]) -> Callable[[], None]:
        """Call `handler(conversation_id, facts)` after each `event`, and return a function that stops it.

        The events are those of a memory, such as "compressed", "evicted" and "compaction:failed". "context:over_budget"
        is also emitted for a newest turn that could not be shown. A handler that raises is logged, and does no harm.
        Raises ConfigError for an unknown event.

        Args:
            event: the event's name.
            handler: a function; for events of the memory also a coroutine function.
        """
        stop_memory = self.memory.on(event, handler)  # type: ignore[arg-type]
        if event != OVER_BUDGET:
            return stop_memory
        self._handlers.append(handler)
        stop_own = left_once(self._handlers, handler)

        def stop() -> None:
            stop_memory()
            stop_own()

        return stop

    def _tell(self, conversation_id: str, turn: Kept) -> None:
        """Call the handlers of `OVER_BUDGET` for a turn that could not be shown."""
        facts = {"turn_id": turn.turn_id, "tokens": turn.cost(self._scale), "max_tokens": self._max_tokens}
        for handler in tuple(self._handlers):
            try:
                handler(conversation_id, {**facts, "reason": "it does not fit, and cannot be shortened"})
            except Exception as fault:  # noqa: BLE001 (the boundary: what observes must not break what it observes)
                log_failure(self._keeper.redact, fault, "a handler of %s failed", OVER_BUDGET)

    def fork(self) -> ConversationMemory:
        """Return a ConversationMemory with the same conversations, which cannot delete them."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._is_fork = True
        return other

    def close(self) -> None:
        """Close the memory if this object opened it: not one that belongs to a given store."""
        if not self._is_fork:
            self._keeper.close()
