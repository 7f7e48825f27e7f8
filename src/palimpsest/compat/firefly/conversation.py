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
"""The event of a newest turn that could not be shown, which is this object's own, too."""


@hushed(lambda self: self._keeper.redact)
class ConversationMemory:
    """Conversations of whole turns, within a budget of tokens, for programs that were written for Firefly's memory.

    It may be used from any thread, and its methods from a running event loop. The `async_` twins of the two that every
    run calls leave the loop free.
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
            max_tokens: the most tokens of a history, and without a summarizer of what is kept; 4,096 by default.
            summarize_threshold: with a summarizer, from how many tokens on the oldest turns are summarised, where that
                is less than `max_tokens`; 3,072 by default. 0 or None: only `max_tokens` counts.
            estimator: what counts: an object with `estimate(text)`, or a function; None: an encoding that fits most
                models.
            summarizer: a function, or a coroutine function, from the turns that leave to a text that stands for them;
                None: they leave without one.
            store: where conversations are kept: a store of this door, one of a program's own with the five methods, or
                a Memory of which all sessions are conversations. None: in memory.
            message_form: what messages are made as that nobody gave (the summary, a turn without raw messages): "dict",
                "pydantic_ai", or "auto": as those of the conversation.
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
        """The memory underneath, of which each conversation is a session: all that Palimpsest offers beside this."""
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
        """Keep a turn, behind all others, and return it. When it returns, the turn is stored.

        Where the turns then cost too much, the oldest leave: with a summarizer a text stands for them from then on,
        else they are in the archive. If the summarizer fails, all stay. Raises ConfigError for what is not accepted,
        and StoreError: then nothing is kept.

        Args:
            conversation_id: the conversation's id, 1 to 256 characters; one that is not there begins with this turn.
            user_prompt: what the user said.
            assistant_response: what the model answered.
            raw_messages: all messages of the run, any objects; they come back as they are. None: there are none.
            metadata: what else there is to say of it: values of JSON, or bytes, dates, sets and the like.
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
        """`add_turn` in a thread of its own: the event loop goes on, whatever a summarizer does.

        Args:
            conversation_id: the conversation's id.
            user_prompt: what the user said.
            assistant_response: what the model answered.
            raw_messages: all messages of the run; None: there are none.
            metadata: what else there is to say of it.
        """
        return await asyncio.to_thread(
            self.add_turn, conversation_id, user_prompt, assistant_response, raw_messages, metadata=metadata
        )

    # --- reading

    def get_message_history(self, conversation_id: str, *, include_summary: bool = True) -> list[Any]:
        """Return the messages of the newest whole turns that fit into `max_tokens`, oldest first.

        A summary of what is not kept any more leads, as one message, and counts. A newest turn that is too large is
        shortened: tools' results first, then the model's text. If that cannot be done it is left out, and handlers of
        "context:over_budget" are told. An unknown conversation has none.

        Args:
            conversation_id: the conversation's id.
            include_summary: whether a summary leads; True by default.
        """
        conversation = self._keeper.conversation(conversation_id)
        with conversation.lock:
            turns = self._keeper.turns(conversation)
            if not turns and not conversation.summaries:
                return []
            form = partial(form_of, [turn.raw for turn in reversed(turns)], self._form)
            background = conversation.background() if include_summary else None
            found = composed(turns, background, self._max_tokens, self._scale, form)
        for turn in found.left_out:
            self._tell(conversation_id, turn)
        return found.messages

    async def async_get_message_history(self, conversation_id: str, *, include_summary: bool = True) -> list[Any]:
        """`get_message_history` in a thread of its own.

        Args:
            conversation_id: the conversation's id.
            include_summary: whether a summary leads; True by default.
        """
        return await asyncio.to_thread(self.get_message_history, conversation_id, include_summary=include_summary)

    def get_turns(self, conversation_id: str) -> list[ConversationTurn]:
        """Return the turns that are kept, oldest first; none of an unknown conversation.

        Args:
            conversation_id: the conversation's id.
        """
        return [turn.turn(self._scale) for turn in self._keeper.kept(conversation_id)[0]]

    def get_summary(self, conversation_id: str) -> str | None:
        """Return the text that stands for the turns that are not kept any more; None where there is none.

        Args:
            conversation_id: the conversation's id.
        """
        return self._keeper.kept(conversation_id)[1]

    def get_total_tokens(self, conversation_id: str) -> int:
        """Return what the kept turns cost, in tokens; 0 for an unknown conversation.

        Args:
            conversation_id: the conversation's id.
        """
        return sum(turn.estimate(self._scale) for turn in self._keeper.kept(conversation_id)[0])

    # --- conversations

    def new_conversation(self) -> str:
        """Return the id of a new conversation, which nobody else has. It is stored with its first turn."""
        return self._keeper.new()

    @property
    def conversation_ids(self) -> list[str]:
        """The ids of all conversations: those that are stored, and new ones without a turn."""
        return self._keeper.ids()

    def clear(self, conversation_id: str) -> None:
        """Destroy a conversation: its turns, those in the archive included, and its summary. Of a fork it raises
        ConfigError: clear it where it began.

        Args:
            conversation_id: the conversation's id; an unknown one is no error.
        """
        self._may_destroy()
        self._keeper.clear(conversation_id)

    def clear_all(self) -> None:
        """Destroy all conversations. Of a fork it raises ConfigError."""
        self._may_destroy()
        for conversation_id in self.conversation_ids:
            self.clear(conversation_id)

    def _may_destroy(self) -> None:
        if self._is_fork:
            raise ConfigError("clear", "a fork", "the memory that it was forked from, whose conversations these are")

    # --- a conversation as data

    def export_conversation(self, conversation_id: str) -> dict[str, Any]:
        """Return a conversation as values of JSON: `conversation_id`, `turns`, `summary` and `total_tokens`.

        Raw messages are there where they have a form in JSON.

        Args:
            conversation_id: the conversation's id; an unknown one has no turns.
        """
        turns, summary = self._keeper.kept(conversation_id)
        return exported(conversation_id, turns, summary, self._scale)

    def import_conversation(self, data: Mapping[str, Any], *, conversation_id: str | None = None) -> str:
        """Keep a conversation in the place of what is there under its id, and return the id.

        What a turn costs is counted where the data do not say it. Raises ImportFailed, and changes nothing, for data
        that cannot be; of a fork Conflict, where there is one of this id.

        Args:
            data: what `export_conversation` gave: a mapping with the list `turns`, each with both texts; or `{}` for
                a new conversation without turns.
            conversation_id: the id to keep it under; None: that of the data, or a new one.
        """
        return self._keeper.take_in(data, conversation_id, replaces=not self._is_fork)

    # --- events, and the end

    def on(self, event: str, handler: Callable[[str, dict[str, Any]], object]) -> Callable[[], None]:
        """Call `handler(conversation_id, facts)` after each `event`, and return a function that stops it.

        Events are those of a memory, such as "compressed", "evicted" and "compaction:failed"; "context:over_budget"
        tells of a newest turn that could not be shown, too. A handler that raises breaks nothing. Raises ConfigError
        for a name that is no event.

        Args:
            event: the event's name.
            handler: a function; for events of the memory also a coroutine function.
        """
        leave = self.memory.on(event, handler)  # type: ignore[arg-type]
        if event != OVER_BUDGET:
            return leave
        self._handlers.append(handler)
        leave_here = left_once(self._handlers, handler)

        def gone() -> None:
            leave()
            leave_here()

        return gone

    def _tell(self, conversation_id: str, turn: Kept) -> None:
        facts = {"turn_id": turn.turn_id, "tokens": turn.cost(self._scale), "max_tokens": self._max_tokens}
        for handler in tuple(self._handlers):
            try:
                handler(conversation_id, {**facts, "reason": "it does not fit, and cannot be shortened"})
            except Exception as fault:  # noqa: BLE001 (the boundary: what observes must not break what it observes)
                log_failure(None, fault, "a handler of %s failed", OVER_BUDGET)

    def fork(self) -> ConversationMemory:
        """Return one with the same conversations, which destroys none of them."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._is_fork = True
        return other

    def close(self) -> None:
        """Close what this object has opened: nothing, where it was given a store."""
        if not self._is_fork:
            self._keeper.close()
