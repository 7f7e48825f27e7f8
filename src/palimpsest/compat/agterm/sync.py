"""`MemoryManager`: the documented methods over the sessions of a memory."""

# Written by `python tools/make_sync.py`. Not to be edited: edit `palimpsest.compat.agterm.manager`, and run that again.

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from palimpsest import Memory, Session
from palimpsest.compat.agterm.config import MemoryConfig, config_of, opened, strategy_of
from palimpsest.compat.agterm.handlers import CONFIG_CHANGED, ended, joined, shaped, watched
from palimpsest.compat.agterm.records import (
    Cleared,
    CompressionResult,
    ContextParts,
    MemoryEntry,
    MemoryStats,
    MemorySummary,
    SessionState,
)
from palimpsest.compat.agterm.state import exported_natively
from palimpsest.compat.agterm.views import Originals, compression_of, parts_of, state_of, stats_of, summary_of
from palimpsest.errors import Conflict
from palimpsest.runtime.hushing import hushed
from palimpsest.strategies import CallableSummarizer

if TYPE_CHECKING:
    from typing import Unpack

    from palimpsest.compat.agterm.config import ConfigChanges
    from palimpsest.types import Status, Summary

KEPT = 1024
"""How many sessions are kept open at once. Reopening one reads nothing, but loses the state of its triggers."""

TRIES = 8
"""How often an export reads a session that other writers keep changing before it raises Conflict."""


@hushed(lambda self: self.memory.redact)
class MemoryManager:
    """Conversations that are compressed automatically, for programs written for AGTerm's memory manager.

    A session begins with the first entry that is added. Everything is kept in memory unless `store` says where.
    """

    def __init__(
        self,
        config: MemoryConfig | Mapping[str, Any] | None = None,
        *,
        store: str | Path | Memory = "memory://",
        model: str | None = None,
        counter: Callable[[str], int] | str | None = None,
        prompt: str | None = None,
    ) -> None:
        """Raises ConfigError, naming the option, for what is not accepted: `model` and `counter` on their first use.

        Args:
            config: a MemoryConfig, or a mapping of changes to the defaults, in either spelling; None: the defaults.
            store: where sessions are kept: the address of a store, a path, or an open memory, which is not closed here.
            model: the model that contexts are for, whose tokenizer counts. None: not known.
            counter: what counts tokens: a function from text to a number, or an encoding's name; None: the model's.
            prompt: the prompt of the summarize callback, in which `{content}` stands for the conversation; None: one
                that asks for topics, decisions, tools, errors, what is needed to go on, and a length.
        """
        self._config, self._prompt = config_of(config), prompt
        self._strategy = strategy_of(self._config, prompt)
        self._model, self._counter = model, counter
        self._summarizer: CallableSummarizer | None = None
        self._memory, self._owns = opened(store, Memory)
        self._open: dict[str, Session] = {}
        self._originals: dict[tuple[str, str, int], Originals] = {}
        self._handlers: list[Callable[..., Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def config(self) -> MemoryConfig:
        """The current configuration."""
        return self._config

    @property
    def memory(self) -> Memory:
        """The memory underneath: for all that Palimpsest offers besides these methods."""
        return self._memory

    def _session(self, session_id: str) -> Session:
        open_sessions = self._open  # the same dict throughout: a change of the configuration replaces it
        session = open_sessions.get(session_id) if isinstance(session_id, str) else None
        if session is None:
            if len(open_sessions) >= KEPT:
                open_sessions.clear()
            session = open_sessions[session_id] = self._memory.session(
                session_id,
                format="text",
                max_tokens=self._config.max_tokens,
                model=self._model,
                counter=self._counter,
                summarizer=self._summarizer,
                long_term=self._strategy if self._config.auto_compress else None,
            )
        return session

    # --- adding

    def add_user_message(self, session_id: str, content: str, metadata: dict[str, Any] | None = None) -> MemoryEntry:
        """Append what the user said, and return its entry. Raises InvalidEntry for what says nothing.

        Args:
            session_id: the session's id, 1 to 256 characters.
            content: the text.
            metadata: values of JSON for the program's own use.
        """
        session = self._session(session_id)
        return MemoryEntry(session.add_user_message(content, metadata=metadata), session.cost)

    def add_assistant_message(
        self, session_id: str, content: str, metadata: dict[str, Any] | None = None
    ) -> MemoryEntry:
        """Append what the model said, and return its entry.

        Args:
            session_id: the session's id.
            content: the text.
            metadata: values of JSON for the program's own use.
        """
        session = self._session(session_id)
        return MemoryEntry(session.add_assistant_message(content, metadata=metadata), session.cost)

    def add_tool_call(self, session_id: str, tool: str, args: Any, call_id: str | None = None) -> MemoryEntry:
        """Append the model's call of a tool, and return its entry, whose `call_id` its result may name.

        Args:
            session_id: the session's id.
            tool: the tool's name.
            args: its arguments, any JSON value.
            call_id: the call's id; None: a generated one.
        """
        session = self._session(session_id)
        return MemoryEntry(session.add_tool_call(tool, args, call_id=call_id), session.cost)

    def add_tool_result(
        self, session_id: str, tool: str, output: Any, status: Status = "unknown", call_id: str | None = None
    ) -> MemoryEntry:
        """Append a tool's result, and return its entry.

        Args:
            session_id: the session's id.
            tool: the tool's name.
            output: text, or any JSON value.
            status: how the call ended: "success", "error", "unknown" (default), "pending" or "denied".
            call_id: the call that it answers; None: the oldest unanswered one of the tool.
        """
        session = self._session(session_id)
        return MemoryEntry(session.add_tool_result(tool, output, status=status, call_id=call_id), session.cost)

    def add_context(self, session_id: str, content: str, source: str) -> MemoryEntry:
        """Append background data such as a file, and return its entry.

        The same text from the same source adds nothing. A new text replaces the older one in the context.

        Args:
            session_id: the session's id.
            content: the text.
            source: where the text is from, such as a path.
        """
        session = self._session(session_id)
        return MemoryEntry(session.add_context(content, name=source), session.cost)

    # --- compression

    def set_summarize_callback(self, callback: Callable[[str], Any] | None) -> None:
        """Have summaries written by a function from the prompt to the text, from the next compression on.

        Any text shorter than the entries that it stands for is accepted. Raises ConfigError for an object that is not
        callable.

        Args:
            callback: a function, or a coroutine function; None: summaries are made without a model again.
        """
        self._summarizer = None if callback is None else CallableSummarizer(callback, checked=False)
        self._open = {}

    def update_config(self, changes: Mapping[str, Any] | None = None, /, **more: Unpack[ConfigChanges]) -> MemoryConfig:
        """Change the configuration of all sessions, from the next check on, and return it. This compresses nothing.

        Raises ConfigError, and changes nothing, for an unknown key or an invalid value.

        Args:
            changes: a mapping of changes, in either spelling; None: only those in `more`.
            more: changes by name, such as `max_tokens=100_000`.
        """
        config = self._config.changed({} if changes is None else changes, more)
        self._strategy = strategy_of(config, self._prompt)
        self._config = config
        self._open = {}
        for handler in tuple(self._handlers):
            with watched(self._memory.redact):
                ended(handler("", config))
        return config

    def compress(self, session_id: str) -> CompressionResult:
        """Compress now, whatever the thresholds are, and return the result. Its `reason` says why nothing was done.

        Args:
            session_id: the session's id.
        """
        session = self._session(session_id)
        result = session.compact(self._strategy)
        summary = None if result.summary is None else self._summary(session, result.summary)
        return compression_of(result, summary.original_entry_ids if summary is not None and result.covered else ())

    # --- reading

    def get_context_for_llm(self, session_id: str) -> str:
        """Return summaries and recent entries as one text within `max_tokens`; "" for a session without entries.

        Raises BudgetImpossible if what must not be left out does not fit.

        Args:
            session_id: the session's id.
        """
        return (self._session(session_id).context()).text

    def context(self, session_id: str, *, max_tokens: int | None = None) -> ContextParts:
        """Return the context in parts, for a program that puts them into a larger one.

        Raises BudgetImpossible if what must not be left out does not fit.

        Args:
            session_id: the session's id.
            max_tokens: the most tokens of the whole context; None: that of the configuration.
        """
        session = self._session(session_id)
        context = session.context(max_tokens=max_tokens)
        summaries = [self._summary(session, summary) for summary in context.summaries]
        return parts_of(context, summaries, session)

    def get_active_entries(self, session_id: str) -> list[MemoryEntry]:
        """Return the entries that are not compressed, oldest first, without summaries; [] for an unknown session.

        Args:
            session_id: the session's id.
        """
        session = self._session(session_id)
        return [MemoryEntry(entry, session.cost) for entry in session.active_entries()]

    def get_summaries(self, session_id: str) -> list[MemorySummary]:
        """Return the summaries that are in the context now, oldest first.

        Args:
            session_id: the session's id.
        """
        session = self._session(session_id)
        return [self._summary(session, summary) for summary in session.summaries()]

    def get_stats(self, session_id: str) -> MemoryStats:
        """Return six figures of the session; zeros for an unknown one.

        Args:
            session_id: the session's id.
        """
        return stats_of(self._session(session_id).stats())

    def _summary(self, session: Session, summary: Summary) -> MemorySummary:
        """Return a summary as a record. Its entries are read once; two sessions may have summaries of the same id."""
        cache_key = session.id, summary.id, summary.at
        if (originals := self._originals.get(cache_key)) is None:
            if len(self._originals) >= KEPT:
                self._originals.clear()
            originals = self._originals[cache_key] = Originals(session.expand(summary), session.cost)
        return summary_of(summary, originals, session)

    # --- a session as a whole

    def export_session(self, session_id: str) -> SessionState:
        """Return the state of a session, which `to_dict` turns into values of JSON. An unknown session has no entries.

        Raises Conflict if other writers change the session faster than it can be read.

        Args:
            session_id: the session's id.
        """
        session = self._session(session_id)
        for _ in range(TRIES):
            stats = session.stats()
            entries, active = session.entries(), session.active_entries()
            summaries = [self._summary(session, summary) for summary in session.summaries()]
            if (session.stats()).revision == stats.revision:
                return state_of(session, entries, active, summaries, stats, self._config)
        raise Conflict(f"session {session_id!r}", "changes faster than it can be read; try again later")

    def import_session(self, state: SessionState | Mapping[str, Any]) -> str:
        """Store the state of a session in place of the session of this id, and return the id.

        Every reference is checked, and all totals are computed again. The manager keeps its own configuration. Raises
        ImportFailed, and imports nothing, for a state that is not consistent.

        Args:
            state: what `export_session` returned, or a mapping with `sessionId`, `entries`, `summaries` and
                `totalTokens`.
        """
        session = self._session("import")
        native = exported_natively(state, session.options.counter.count, session.cost)
        session_id = self._memory.import_session(native, on_conflict="replace")
        self._open.pop(session_id, None)
        self._originals.clear()
        return session_id

    def clear_session(self, session_id: str) -> Cleared:
        """Delete all entries and summaries of a session, and return how many there were.

        Args:
            session_id: the session's id.
        """
        session = self._session(session_id)
        summaries = session.summaries()
        return Cleared(entries=session.clear(), summaries=len(summaries))

    # --- events

    def on(self, event: str, handler: Callable[..., Any]) -> Callable[[], None]:
        """Call `handler` after each `event`, and return a function that stops it. A handler that raises does no harm.

        "entry:added" passes the session's id and the entry, "compressed" the id and a CompressionResult,
        "session:cleared" the id, "config:changed" an empty id and the configuration. Every other event of a memory
        passes the id and the facts of the event. Raises ConfigError for an unknown event.

        Args:
            event: the event's name.
            handler: a function or coroutine function; for "config:changed" a function alone.
        """
        if event != CONFIG_CHANGED:
            return self._memory.on(event, shaped(event, handler, lambda id, entry: self._session(id).cost(entry)))  # type: ignore[arg-type]
        return joined(self._handlers, handler)

    def close(self) -> None:
        """Close the memory if this manager opened it. Closing again does nothing."""
        if self._owns:
            self._memory.close()
