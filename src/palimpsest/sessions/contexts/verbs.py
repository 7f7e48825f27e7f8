"""The verb `context`: it checks the call, adds facts and tails, has a builder make the context, and tells observers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import msgspec

from palimpsest.context.groups import NEWEST
from palimpsest.errors import ConfigError, Conflict, StoreUnavailable
from palimpsest.formats import Message
from palimpsest.formats.wording import sendable, sendable_value
from palimpsest.log import values
from palimpsest.log.change import Change
from palimpsest.log.codec import encode
from palimpsest.log.head import PromptSize
from palimpsest.runtime.logs import warn
from palimpsest.sessions.contexts.builder import ContextBuilder
from palimpsest.sessions.contexts.request import ContextRequest
from palimpsest.sessions.lazy_parts import Part, loaded
from palimpsest.sessions.options import AutoCompact, Options
from palimpsest.sessions.remembered import Sent
from palimpsest.sessions.scope import SessionScope

if TYPE_CHECKING:
    from palimpsest.context.result import Context
    from palimpsest.context.tail import Facts, TailPart, Text
    from palimpsest.sessions.compacting.auto import AutoCompaction
    from palimpsest.sessions.contexts.earlier import EarlierContext
    from palimpsest.sessions.contexts.facts import ScopedFacts
    from palimpsest.sessions.knowledge.linking import SessionKnowledge
    from palimpsest.sessions.recalling.verbs import Recalling
    from palimpsest.sessions.withheld import Withheld
    from palimpsest.stores import Store

LEFT_OUT = "the newest tool calls and results do not fit, so the model may repeat them for ever; raise max_tokens"

Mode: TypeAlias = AutoCompact | Literal["shown"]
"""How a context takes part in its session's compaction: "inline" has what it would evict summarised first, "background"
afterwards, "off" only stores its size for triggers, and "shown" (another view, a dry run) does not take part."""


class Contexts:
    """Makes the contexts of one session. What does not fit is summarised first if the session's options say so."""

    def __init__(self, scope: SessionScope, auto: Part[AutoCompaction], recalling: Part[Recalling]) -> None:
        self._scope, self._options, self._auto, self._recalling = scope, scope.options, auto, recalling
        self._others: dict[str, Options] = {}
        self._facts: list[ScopedFacts] | None = None

    async def next(
        self,
        system: str | None,
        tools: Sequence[Mapping[str, Any]],
        format: str | None,
        reserve: int | None,
        max_tokens: int | None,
        max_messages: int | None,
        view: str | None,
        model: str | None,
        at: int | None,
        tail: str | Mapping[str, str] | None,
        recall: str | None,
        *,
        dry_run: bool,
    ) -> Context:
        """Return what to send to the model next."""
        if system is not None and not isinstance(system, str):
            raise ConfigError("system", system, "text, or None")
        system = sendable(system) if system else None
        schemas = _schemas(tools)
        values.switch("dry_run", dry_run)
        if isinstance(view, str):
            self._scope.gate.refuse([view], "view")
        call = ContextRequest(system, schemas, format, reserve, max_tokens, max_messages, view, model, at, dry_run)
        if tail is not None:
            self._check_tail(tail, at)
        if recall is not None:
            self._check_room("recall", at)
        if at is not None:
            from palimpsest.sessions.contexts.earlier import EarlierContext  # a millisecond, rarely needed

            earlier = EarlierContext(self._scope.store, self._options_for(model), call, self._scope.clock())
            return await self._tell(earlier, await self._scope.store.together(earlier.context, reads=True))
        call = await self._with_facts_and_tail(call, tail, recall)
        mode = self._mode(call)
        if mode != "shown" and self._options.before_turn:
            await (await self._auto()).turn_ended()
        withheld, whole, revision = await self._with_withheld()
        if withheld is not None and whole is not None:
            context = await self._unstored_context(msgspec.structs.replace(call, warm=True), whole, revision)
            context.withheld = withheld.shown(context)
            self._scope.sent = Sent.of(context)  # only its numbers: it shows withheld text, which must not be kept
        else:
            context = await self._stored_context(call, mode)
        if not context.is_bounded and all(shown.memory_max_tokens is None for shown in self._options.strategies):
            self._scope.memory.warn_unbounded()
        if mode != "shown":
            await self._note_prompt(context)
        return context

    async def _with_facts_and_tail(
        self, call: ContextRequest, tail: str | Mapping[str, str] | None, recall: str | None
    ) -> ContextRequest:
        """Return the request with what varies from call to call: facts, texts of the call, and recalled passages."""
        leads = self._options.leads
        facts = await self._read_facts() if self._options.facts else []
        parts: list[TailPart] = [*(() if leads else (scoped for scoped in facts if scoped.facts)), *_texts(tail)]
        if self._options.knowledge:
            parts += await (await loaded(self._scope.runner, self._knowledge)).parts(keeps=not call.dry_run)
        if recall is not None:
            parts.append(await (await self._recalling()).recollection(recall))
        if not (parts or leads):
            return call
        return msgspec.structs.replace(call, lead=facts if leads else None, tail=parts)

    def _check_tail(self, tail: object, at: int | None) -> None:
        if not isinstance(tail, str | Mapping):
            raise ConfigError("tail", type(tail).__name__, "a text, or texts by name")
        for name, text in tail.items() if isinstance(tail, Mapping) else ():
            if not isinstance(name, str) or not name:
                raise ConfigError("tail", name, "names that are text, such as 'clock'")
            if not isinstance(text, str):
                raise ConfigError(f"tail[{name!r}]", type(text).__name__, "a text")
        self._check_room("tail", at)

    def _check_room(self, name: str, at: int | None) -> None:
        """Raise ConfigError if the session keeps no room for a tail, or the context is one of the past."""
        if at is not None:
            raise ConfigError(name, "with `at`", "none: the tail of an earlier revision is not kept")
        if not self._options.tail_share:
            found = "in a session without room for a tail"
            raise ConfigError(name, found, "a session opened with tail_share=0.1, a tenth of the log's room")

    def _knowledge(self) -> SessionKnowledge:
        from palimpsest.sessions.knowledge import knowledge_of  # not needed by most sessions

        return knowledge_of(self._scope)

    async def _read_facts(self) -> list[Facts]:
        """Return the present facts of the session's scopes."""
        if self._facts is None:
            self._facts = await loaded(self._scope.runner, self._scoped_facts)
        return [await scoped.read() for scoped in self._facts]

    def _scoped_facts(self) -> list[ScopedFacts]:
        from palimpsest.sessions.contexts.facts import ScopedFacts  # fifty milliseconds

        return [ScopedFacts(self._scope, name) for name in self._options.facts]

    def _options_for(self, model: str | None) -> Options:
        """Return the session's options for a call of this model (None: the session's own)."""
        if model is None or (isinstance(model, str) and model == self._options.model_name):
            return self._options
        options = self._others.get(model) if isinstance(model, str) else None
        if options is None:
            options = self._others[model] = self._options.of_model(model)
        return options

    def _mode(self, call: ContextRequest) -> Mode:
        """Return how this call takes part in the session's compaction."""
        takes_part = self._options.long_term and not (call.dry_run or self._options.readonly)
        return self._options.auto_compact if takes_part and self._is_own(call) else "shown"

    def _is_own(self, call: ContextRequest) -> bool:
        """Whether the call asks for the session's own view."""
        return call.view in (None, self._options.view)

    async def _stored_context(self, call: ContextRequest, mode: Mode) -> Context:
        """Return the context of the session as it is stored; have what its cut evicts summarised, as the mode says."""
        if mode == "background":  # a cut for a cold cache would begin a prefix that the later summary breaks again
            call = msgspec.structs.replace(call, warm=True)
        yields = mode == "inline" and any(strategy.summarizes for strategy in self._options.long_term)
        builder, context = await self._build(call, self._scope.store, yields=yields)
        if (over := builder.overflow) is not None:
            await (await self._auto()).overflowed(over.tokens, over.level, cold=over.cold)
            if over.cold:  # the log fits: if no summary was made, nothing is left out for a cold cache
                call = msgspec.structs.replace(call, warm=True)
            builder, context = await self._build(call, self._scope.store)
        self._scope.sent = await self._tell(builder, context)
        cut = builder.changed.detail if builder.changed is not None else {}
        if mode == "background" and cut.get("evicted") and context.budget:
            await (await self._auto()).overflowed(cut["tokens_before"], context.budget.room, cold=False)
        return context

    async def _unstored_context(self, call: ContextRequest, whole: Store, revision: int) -> Context:
        """Return the context of the session together with what is withheld of it. Nothing of it is stored."""
        builder, context = await self._build(call, whole)
        builder.changed = None
        context.unstored(revision, "it shows withheld private text, so nothing of it was stored")
        return await self._tell(builder, context)

    async def _build(
        self, call: ContextRequest, store: Store, *, yields: bool = False
    ) -> tuple[ContextBuilder, Context]:
        """Build a context and return it with its builder."""
        options = self._options_for(call.model)
        views = self._scope.memory.views if store is self._scope.memory.store else None
        definitions = self._scope.definitions
        builder = ContextBuilder(
            store, options, call, self._scope.clock(), yields=yields, views=views, definitions=definitions
        )
        context = await builder.context()
        if definitions is not None:
            await definitions.tell(builder.seen)
        has_own_budget = options is self._options and call.max_tokens is call.max_messages is call.reserve is None
        if has_own_budget and not call.dry_run and self._is_own(call):
            self._scope.reckoned = builder.reckoned
        return builder, context

    async def _with_withheld(self) -> tuple[Withheld | None, Store | None, int]:
        """Return what is withheld of the open interaction, a store with the session and that, and its revision.

        The store is None if nothing is withheld.
        """
        withheld = self._scope.withheld.get(self._scope.place)
        if withheld is None:
            return None, None, 0
        whole, revision = await self._scope.store.together(withheld.session, reads=True)
        if whole is None:
            self._scope.let_go()
        return withheld, whole, revision

    async def _tell(self, builder: ContextBuilder | EarlierContext, context: Context) -> Context:
        """Tell observers of the context and its cut, and return it."""
        observers, redact = self._scope.observers, self._scope.gate.redact
        for text, failure in builder.terms.failures.items():
            if observers.first_failure(self._scope.key.session, text):
                await self._scope.tell("condition:error", condition=redact(text), error=redact(failure))
        if builder.changed is not None and NEWEST in builder.changed.detail.get("rungs", ()):
            warn("session %s: %s", self._scope.key.session, LEFT_OUT)
        if builder.changed is not None and (observers.wants("cut") or observers.wants("evicted")):
            change = builder.changed
            facts = {"view": change.view, "reason": change.reason, "epoch": context.epoch, **change.detail}
            await self._scope.tell("cut", **facts)
            if change.detail.get("evicted"):
                await self._scope.tell("evicted", **facts)
        if context.problems:
            await self._scope.tell("context:over_budget", tokens=context.tokens)
        return context

    async def _note_prompt(self, context: Context) -> None:
        """Store the size of the context in the session's head if a trigger depends on it.

        The triggers may next be checked by another session object, or by another process.
        """
        heeds_calls = any(strategy.triggers.heeds_calls for strategy in self._options.long_term)
        if not (self._scope.store.writable and heeds_calls):
            return
        prompt = PromptSize(tokens=context.tokens, revision=context.revision)
        try:
            change = Change(kind="prompt", reason="prompt", prompt=prompt)
            (await self._auto()).knows(
                await self._scope.store.commit(self._scope.key, change, expect_epoch=context.epoch)
            )
        except Conflict:
            context.noted("its token count was not kept: another writer compacted or cut the session meanwhile")
        except StoreUnavailable as fault:  # the context can be sent even if the store cannot be written
            context.noted(f"its token count was not kept: {fault}")


def _texts(tail: str | Mapping[str, str] | None) -> Sequence[Text]:
    """Return the texts that a call wants to show after the newest entry."""
    if not tail:
        return ()
    from palimpsest.context.tail import Text  # not needed by most calls

    by_name = {"tail": tail} if isinstance(tail, str) else tail
    return [Text(name, text) for name, text in by_name.items() if text]


_NO_LISTS = (str, bytes, Mapping, range)
"""Sequences and mappings that cannot be a list of schemas."""


def _schemas(tools: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """Return the tools' schemas in a form that can be sent. Raises ConfigError if `tools` is not a list."""
    usual = type(tools) is tuple or type(tools) is list  # faster than isinstance
    if not usual and tools is not None and (isinstance(tools, _NO_LISTS) or not isinstance(tools, Sequence)):
        raise ConfigError("tools", tools, "a list of tools' schemas")
    schemas = cast("tuple[Message, ...]", tuple(tools or ()))
    try:
        encode(schemas)
    except UnicodeEncodeError:  # lone surrogates
        return tuple(map(sendable_value, schemas))
    except (TypeError, ValueError, RecursionError):
        return schemas  # not JSON: the error is raised where it is sent
    return schemas
