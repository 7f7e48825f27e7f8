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

    It may be used from any thread, with and without an event loop. `with`, or `close`, closes the store if the manager
    created it.
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
            store: where everything is kept, which may be a program's own store; None: an `InMemoryStore`.
            max_conversation_tokens: the most tokens of a history; 128,000 by default.
            summarize_threshold: with a summarizer, how many tokens the turns may cost before the oldest are summarised;
                10 by default, which is nearly every turn, and causes a warning. 0 or None: only
                `max_conversation_tokens` counts.
            working_scope_id: the scope of the working memory.
            summarizer: a function, or a coroutine function, from turns that leave to a text; None: none.
            estimator: what counts tokens, as in `ConversationMemory`; None: an encoding that fits most models.
            message_form: the form of messages that the program did not supply, as in `ConversationMemory`.
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
        self._ancestor_scopes: tuple[str, ...] = ()

    @classmethod
    def from_config(
        cls,
        *,
        summarizer: Callable[[list[ConversationTurn]], str | Awaitable[str]] | None = None,
        estimator: Any = None,
        working_scope_id: str = "default",
        env_file: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Return the manager that the environment variables beginning with FIREFLY_AGENTIC_MEMORY_ describe.

        A store on a server is connected when this returns. Raises ConfigError, naming the variable, for an invalid
        value or a missing address; StoreUnavailable; MissingExtra.

        Args:
            summarizer: a function from turns that leave to a text; None: FIREFLY_AGENTIC_MEMORY_SUMMARIZER_MODEL names
                a model, or there is none.
            estimator: what counts tokens; None: an encoding that fits most models.
            working_scope_id: the scope of the working memory.
            env_file: a file of lines such as NAME=value, for variables that the environment does not set; None: no file
                is read.
        """
        settings = Settings.read(environment(env_file))
        chosen_summarizer = summarizer_of(settings, summarizer)
        store = store_of(settings)
        assert isinstance(store, EntryStore), "every backend is a store of this package"
        try:
            if callable(connect := getattr(store, "initialize_sync", None)):
                connect()
            manager = cls(
                store=store,
                max_conversation_tokens=settings.max_conversation_tokens,
                summarize_threshold=None if chosen_summarizer is None else settings.summarize_threshold,
                working_scope_id=working_scope_id,
                summarizer=chosen_summarizer,
                estimator=estimator,
            )
        except BaseException:
            store.close_sync()
            raise
        manager._owned = store
        return manager

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

    # --- parts

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
        """The store that everything is kept in."""
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
        """Store a turn, and return it, as `ConversationMemory.add_turn` does.

        Args:
            conversation_id: the conversation's id.
            user_prompt: what the user said.
            assistant_response: what the model answered.
            raw_messages: all messages of the run; None: there are none.
            metadata: what else to keep with the turn.
        """
        return self._conversation.add_turn(
            conversation_id, user_prompt, assistant_response, raw_messages, metadata=metadata
        )

    def get_message_history(self, conversation_id: str, *, include_summary: bool = True) -> list[Any]:
        """Return the messages for the next run, as `ConversationMemory.get_message_history` does.

        Args:
            conversation_id: the conversation's id.
            include_summary: whether to include the summary; True by default.
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
        """Call `add_turn` in a worker thread: the event loop is not blocked.

        Args:
            conversation_id: the conversation's id.
            user_prompt: what the user said.
            assistant_response: what the model answered.
            raw_messages: all messages of the run; None: there are none.
            metadata: what else to keep with the turn.
        """
        return await self._conversation.async_add_turn(
            conversation_id, user_prompt, assistant_response, raw_messages, metadata=metadata
        )

    async def async_get_message_history(self, conversation_id: str, *, include_summary: bool = True) -> list[Any]:
        """Call `get_message_history` in a worker thread.

        Args:
            conversation_id: the conversation's id.
            include_summary: whether to include the summary; True by default.
        """
        return await self._conversation.async_get_message_history(conversation_id, include_summary=include_summary)

    # --- working memory

    def set_fact(
        self, key: str, value: Any, *, importance: float = 0.5, ttl: timedelta | float | str | None = None
    ) -> None:
        """Store a value under a key of the working memory.

        Args:
            key: its key.
            value: the value, as in `WorkingMemory.set`.
            importance: from 0 to 1, 0.5 by default.
            ttl: how long the value lives; None: for ever.
        """
        self._working.set(key, value, importance=importance, ttl=ttl)

    def get_fact(self, key: str, default: Any = None) -> Any:
        """Return the value under a key of the working memory, or `default`.

        Args:
            key: its key.
            default: what to return if there is no value.
        """
        return self._working.get(key, default)

    def get_working_context(self, max_tokens: int | None = None) -> str:
        """Return the working memory as a text for a prompt; "" if it is empty.

        Args:
            max_tokens: the most tokens of the text; None: no limit.
        """
        return self._working.to_context_string(max_tokens)

    # --- deleting and closing

    def clear_conversation(self, conversation_id: str) -> None:
        """Delete a conversation. A fork raises ConfigError: clear the conversation where it began.

        Args:
            conversation_id: the conversation's id; an unknown one is no error.
        """
        self._conversation.clear(conversation_id)

    def clear_working(self) -> None:
        """Remove all values of the working memory."""
        self._working.clear()

    def clear_all(self) -> None:
        """Delete all conversations and the values of the working memory. A fork deletes only the latter."""
        if not self._is_fork:
            self._conversation.clear_all()
        self._working.clear()

    def fork(self, *, working_scope_id: str) -> MemoryManager:
        """Return a manager with the same conversations and a working memory of its own: for a sub-agent.

        It cannot delete the conversations, and closing it closes nothing. Raises ConfigError if the scope is that of
        this manager, or of one that this was forked from.

        Args:
            working_scope_id: the scope of its working memory.
        """
        ancestor_scopes = (*self._ancestor_scopes, self._working.scope_id)
        if working_scope_id in ancestor_scopes:
            raise ConfigError(
                "working_scope_id", working_scope_id, "another scope than that of the manager that was forked"
            )
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._owned, other._is_fork, other._ancestor_scopes = None, True, ancestor_scopes
        other._working = WorkingMemory(store=self._store, scope_id=working_scope_id)
        other._conversation = self._conversation.fork()
        return other

    def close(self) -> None:
        """Close the store if this manager created it. Closing again does nothing."""
        if self._owned is not None:
            self._owned.close_sync()

    async def aclose(self) -> None:
        """`close` for programs with an event loop."""
        await asyncio.to_thread(self.close)
