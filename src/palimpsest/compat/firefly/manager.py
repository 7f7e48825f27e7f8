"""`MemoryManager`: conversations and working memory behind one object."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

from palimpsest import ConfigError
from palimpsest.compat.firefly.conversation import ConversationMemory
from palimpsest.compat.firefly.in_memory import InMemoryStore
from palimpsest.compat.firefly.raw import MessageForm
from palimpsest.compat.firefly.settings import Settings, environment, store_of, summarizer_of, warn_of_threshold
from palimpsest.compat.firefly.store import EntryStore, MemoryStore
from palimpsest.compat.firefly.turns import ConversationTurn
from palimpsest.compat.firefly.working import WorkingMemory


class MemoryManager:
    """Conversations and working memory on one store, for programs that were written for Firefly's memory.

    It may be used from any thread, with and without an event loop. `with`, or `close`, closes the store where the
    manager has made it.
    """

    def __init__(
        self,
        *,
        store: MemoryStore | None = None,
        max_conversation_tokens: int = 128_000,
        summarize_threshold: int | None = 10,
        working_scope_id: str = "default",
        summarizer: Callable[[list[ConversationTurn]], str | Awaitable[str]] | None = None,
        estimator: Any = None,
        message_form: MessageForm = "auto",
    ) -> None:
        """Raises ConfigError, naming the option, for what is not accepted.

        Args:
            store: where all of it is kept, one of a program's own too; None: an `InMemoryStore`.
            max_conversation_tokens: the most tokens of a history; 128,000 by default.
            summarize_threshold: with a summarizer, from how many tokens on the oldest turns are summarised; 10 by
                default, which is nearly every turn, and is warned of. 0 or None: only `max_conversation_tokens` counts.
            working_scope_id: whose the working memory is.
            summarizer: a function, or a coroutine function, from turns that leave to a text; None: none.
            estimator: what counts tokens, as in `ConversationMemory`; None: an encoding that fits most models.
            message_form: what messages are made as that nobody gave, as in `ConversationMemory`.
        """
        self._owned: EntryStore | None = None
        if store is None:
            store = self._owned = InMemoryStore()
        self._store = store
        self._working = WorkingMemory(store=store, scope_id=working_scope_id)
        self._conversation = ConversationMemory(
            max_tokens=max_conversation_tokens,
            summarize_threshold=summarize_threshold,
            estimator=estimator,
            summarizer=summarizer,
            store=store,
            message_form=message_form,
        )
        warn_of_threshold(summarize_threshold, summarizer)
        self._is_fork = False
        self._above: tuple[str, ...] = ()

    @classmethod
    def from_config(
        cls,
        *,
        summarizer: Callable[[list[ConversationTurn]], str | Awaitable[str]] | None = None,
        estimator: Any = None,
        working_scope_id: str = "default",
        env_file: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Return the manager that the environment describes, by the variables that begin with FIREFLY_AGENTIC_MEMORY_.

        A store on a server is connected when this returns. Raises ConfigError, naming the variable, for a value that
        cannot be, or an address that is missing; StoreUnavailable; MissingExtra.

        Args:
            summarizer: a function from turns that leave to a text; None: FIREFLY_AGENTIC_MEMORY_SUMMARIZER_MODEL names
                a model, or there is none.
            estimator: what counts tokens; None: an encoding that fits most models.
            working_scope_id: whose the working memory is.
            env_file: a file of lines such as NAME=value, of which a variable counts that the environment does not have;
                None: no file is read.
        """
        settings = Settings.read(environment(env_file))
        found = summarizer_of(settings, summarizer)
        store = store_of(settings)
        assert isinstance(store, EntryStore), "every backend is a store of ours"
        try:
            if callable(connect := getattr(store, "initialize_sync", None)):
                connect()
            made = cls(
                store=store,
                max_conversation_tokens=settings.max_conversation_tokens,
                summarize_threshold=None if found is None else settings.summarize_threshold,
                working_scope_id=working_scope_id,
                summarizer=found,
                estimator=estimator,
            )
        except BaseException:
            store.close_sync()
            raise
        made._owned = store
        return made

    def __repr__(self) -> str:
        return f"<MemoryManager {type(self._store).__name__}, scope {self._working.scope_id!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # --- what it is made of

    @property
    def conversation(self) -> ConversationMemory:
        """The conversations."""
        return self._conversation

    @property
    def working(self) -> WorkingMemory:
        """The working memory."""
        return self._working

    @property
    def store(self) -> MemoryStore:
        """Where all of it is kept."""
        return self._store

    # --- conversations

    def new_conversation(self) -> str:
        """Return the id of a new conversation."""
        return self._conversation.new_conversation()

    def add_turn(
        self,
        conversation_id: str,
        user_prompt: str,
        assistant_response: str,
        raw_messages: Sequence[Any] | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
    ) -> ConversationTurn:
        """Keep a turn, and return it, as `ConversationMemory.add_turn` does.

        Args:
            conversation_id: the conversation's id.
            user_prompt: what the user said.
            assistant_response: what the model answered.
            raw_messages: all messages of the run; None: there are none.
            metadata: what else there is to say of it.
        """
        return self._conversation.add_turn(
            conversation_id, user_prompt, assistant_response, raw_messages, metadata=metadata
        )

    def get_message_history(self, conversation_id: str, *, include_summary: bool = True) -> list[Any]:
        """Return the messages for the next run, as `ConversationMemory.get_message_history` does.

        Args:
            conversation_id: the conversation's id.
            include_summary: whether a summary leads; True by default.
        """
        return self._conversation.get_message_history(conversation_id, include_summary=include_summary)

    async def async_add_turn(
        self,
        conversation_id: str,
        user_prompt: str,
        assistant_response: str,
        raw_messages: Sequence[Any] | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
    ) -> ConversationTurn:
        """`add_turn` in a thread of its own: the event loop goes on.

        Args:
            conversation_id: the conversation's id.
            user_prompt: what the user said.
            assistant_response: what the model answered.
            raw_messages: all messages of the run; None: there are none.
            metadata: what else there is to say of it.
        """
        return await self._conversation.async_add_turn(
            conversation_id, user_prompt, assistant_response, raw_messages, metadata=metadata
        )

    async def async_get_message_history(self, conversation_id: str, *, include_summary: bool = True) -> list[Any]:
        """`get_message_history` in a thread of its own.

        Args:
            conversation_id: the conversation's id.
            include_summary: whether a summary leads; True by default.
        """
        return await self._conversation.async_get_message_history(conversation_id, include_summary=include_summary)

    # --- working memory

    def set_fact(
        self, key: str, value: Any, *, importance: float = 0.5, ttl: timedelta | float | str | None = None
    ) -> None:
        """Keep a value under a key of the working memory.

        Args:
            key: its key.
            value: the value, as in `WorkingMemory.set`.
            importance: from 0 to 1, 0.5 by default.
            ttl: how long it is seen; None: for ever.
        """
        self._working.set(key, value, importance=importance, ttl=ttl)

    def get_fact(self, key: str, default: Any = None) -> Any:
        """Return the value under a key of the working memory, or `default`.

        Args:
            key: its key.
            default: what is returned where there is none.
        """
        return self._working.get(key, default)

    def get_working_context(self, max_tokens: int | None = None) -> str:
        """Return the working memory as a text for a prompt; "" where it is empty.

        Args:
            max_tokens: the most tokens of the text; None: no limit.
        """
        return self._working.to_context_string(max_tokens)

    # --- forgetting, and the end

    def clear_conversation(self, conversation_id: str) -> None:
        """Destroy a conversation. Of a fork it raises ConfigError: clear it where it began.

        Args:
            conversation_id: the conversation's id; an unknown one is no error.
        """
        self._conversation.clear(conversation_id)

    def clear_working(self) -> None:
        """Take all values of the working memory away."""
        self._working.clear()

    def clear_all(self) -> None:
        """Destroy all conversations and the values of the working memory; of a fork the latter alone."""
        if not self._is_fork:
            self._conversation.clear_all()
        self._working.clear()

    def fork(self, *, working_scope_id: str) -> MemoryManager:
        """Return a manager with the same conversations and a working memory of its own: for a sub-agent.

        It destroys none of the conversations, and closing it closes nothing. Raises ConfigError for the scope of this
        manager, or of one that this was forked from.

        Args:
            working_scope_id: whose its working memory is.
        """
        above = (*self._above, self._working.scope_id)
        if working_scope_id in above:
            raise ConfigError("working_scope_id", working_scope_id, "another scope than that of the manager it is of")
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._owned, other._is_fork, other._above = None, True, above
        other._working = WorkingMemory(store=self._store, scope_id=working_scope_id)
        other._conversation = self._conversation.fork()
        return other

    def close(self) -> None:
        """Close the store, where this manager has made it. Closing again does nothing."""
        if self._owned is not None:
            self._owned.close_sync()

    async def aclose(self) -> None:
        """`close` for programs with an event loop."""
        await asyncio.to_thread(self.close)
