"""The next context of a session, and what is remembered of it: what the session's verbs for it do."""

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
from palimpsest.sessions.compacting.lazily import LazyAutoCompaction
from palimpsest.sessions.contexts.builder import ContextBuilder
from palimpsest.sessions.contexts.request import ContextRequest
from palimpsest.sessions.options import AutoCompact, Options
from palimpsest.sessions.parts import loaded
from palimpsest.sessions.remembered import Sent
from palimpsest.sessions.scope import SessionScope

if TYPE_CHECKING:
    from palimpsest.context.result import Context
    from palimpsest.context.tail import Facts, TailPart, Text
    from palimpsest.sessions.contexts.earlier import EarlierContext
    from palimpsest.sessions.contexts.facts import ScopedFacts
    from palimpsest.sessions.knowledge.linking import SessionKnowledge
    from palimpsest.sessions.recalling.verbs import Recalling
    from palimpsest.stores import Store

LEFT_OUT = "the newest calls have no room, nor their results: the model may call the same for ever; raise max_tokens"

Mode: TypeAlias = AutoCompact | Literal["shown"]
"""How a context takes part in its session's compaction: not at all (another view, a dry run), what it would evict is
summarised before, or afterwards; or it is only counted."""


class Contexts:
    """Contexts of one session. What does not fit is summarised first, where the session says so."""

    def __init__(self, scope: SessionScope, auto: LazyAutoCompaction) -> None:
        self._scope, self._options, self._auto = scope, scope.options, auto
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
            from palimpsest.sessions.contexts.earlier import EarlierContext  # a millisecond, for who looks back

            earlier = EarlierContext(self._scope.store, self._options_for(model), call, self._scope.clock())
            return await self._told(earlier, await self._scope.store.together(earlier.context, reads=True))
        call = await self._with_what_varies(call, tail, recall)
        mode = self._mode(call)
        if mode != "shown" and self._options.before_turn:
            await (await self._auto.loaded()).turn_ended()
        whole, revision = await self._with_withheld()
        if whole is not None:
            context = await self._unstored(msgspec.structs.replace(call, warm=True), whole, revision)
            self._scope.sent = Sent.of(context)  # no more than its figures may be kept
        else:
            context = await self._stored(call, mode)
        if not context.is_bounded and all(one.memory_max_tokens is None for one in self._options.strategies):
            self._scope.memory.tell_unbounded()
        if mode != "shown":
            await self._note_prompt(context)
        return context

    async def _with_what_varies(
        self, call: ContextRequest, tail: str | Mapping[str, str] | None, recall: str | None
    ) -> ContextRequest:
        """The request with facts, the call's own texts, and what knowledge bases and the log say about it."""
        leads = self._options.leads
        facts = await self._read_facts() if self._options.facts else []
        ending: list[TailPart] = [*(() if leads else (one for one in facts if one.facts)), *_texts(tail)]
        if self._options.knowledge:
            ending += await (await loaded(self._scope.runner, self._knowledge)).parts(keeps=not call.dry_run)
        if recall is not None:
            ending.append(await self._recollection(recall))
        if not (ending or leads):
            return call
        return msgspec.structs.replace(call, lead=facts if leads else None, tail=ending)

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
        if at is not None:
            raise ConfigError(name, "with `at`", "none: what was behind the log then is not known")
        if not self._options.tail_share:
            found = "a session that keeps no room for a tail"
            raise ConfigError(name, found, "one that is opened with tail_share=0.1, a tenth of the log's room")

    async def _recollection(self, query: str) -> TailPart:
        def make() -> Recalling:
            from palimpsest.sessions.recalling.verbs import Recalling  # twenty milliseconds, for who recalls

            return Recalling(self._scope.memory, self._scope)

        return await (await loaded(self._scope.runner, make)).recollection(query)

    def _knowledge(self) -> SessionKnowledge:
        from palimpsest.sessions.knowledge import knowledge_of  # only for who has one

        return knowledge_of(self._scope)

    async def _read_facts(self) -> list[Facts]:
        """The facts of the session's scopes, as they are."""
        if self._facts is None:
            self._facts = await loaded(self._scope.runner, self._scoped_facts)
        return [await one.read() for one in self._facts]

    def _scoped_facts(self) -> list[ScopedFacts]:
        from palimpsest.sessions.contexts.facts import ScopedFacts  # fifty milliseconds, for who has facts

        return [ScopedFacts(self._scope, name) for name in self._options.facts]

    def _options_for(self, model: str | None) -> Options:
        """The session's options, for a call of this model; None: of the session's own."""
        if model is None or (isinstance(model, str) and model == self._options.model_name):
            return self._options
        made = self._others.get(model) if isinstance(model, str) else None
        if made is None:
            made = self._others[model] = self._options.of_model(model)
        return made

    def _mode(self, call: ContextRequest) -> Mode:
        """How this call takes part in the session's compaction."""
        takes_part = self._options.long_term and not (call.dry_run or self._options.readonly)
        return self._options.auto_compact if takes_part and self._is_own(call) else "shown"

    def _is_own(self, call: ContextRequest) -> bool:
        """Whether it is the session's own view that is asked for."""
        return call.view in (None, self._options.view)

    async def _stored(self, call: ContextRequest, mode: Mode) -> Context:
        """The context of the session as it is stored, and what its cut evicts summarised, as the mode says."""
        if mode == "background":  # its summary would break the prefix that the cut has just begun
            call = msgspec.structs.replace(call, warm=True)
        yields = mode == "inline" and any(one.summarizes for one in self._options.long_term)
        builder, context = await self._built(call, self._scope.store, yields=yields)
        if (over := builder.overflow) is not None:
            await (await self._auto.loaded()).overflowed(over.tokens, over.level, cold=over.cold)
            if over.cold:  # what fits is not left out for want of a summary
                call = msgspec.structs.replace(call, warm=True)
            builder, context = await self._built(call, self._scope.store)
        self._scope.sent = await self._told(builder, context)
        cut = builder.changed.detail if builder.changed is not None else {}
        if mode == "background" and cut.get("evicted") and context.budget:
            await (await self._auto.loaded()).overflowed(cut["tokens_before"], context.budget.room, cold=False)
        return context

    async def _unstored(self, call: ContextRequest, whole: Store, revision: int) -> Context:
        """The context of the session with what is withheld: nothing of it is stored."""
        builder, context = await self._built(call, whole)
        builder.changed = None
        context.unstored(revision, "it shows what is withheld, so nothing of it was stored")
        return await self._told(builder, context)

    async def _built(
        self, call: ContextRequest, store: Store, *, yields: bool = False
    ) -> tuple[ContextBuilder, Context]:
        """Return a context and what has built it."""
        options = self._options_for(call.model)
        views = self._scope.memory.views if store is self._scope.memory.store else None
        known = self._scope.definitions
        builder = ContextBuilder(
            store, options, call, self._scope.clock(), yields=yields, views=views, definitions=known
        )
        context = await builder.context()
        if known is not None:
            await known.tell(builder.seen)
        plain = options is self._options and call.max_tokens is call.max_messages is call.reserve is None
        if plain and not call.dry_run and self._is_own(call):
            self._scope.reckoned = builder.reckoned
        return builder, context

    async def _with_withheld(self) -> tuple[Store | None, int]:
        """Where the session is with what is withheld of its open interaction (None: nothing is), and its revision."""
        held = self._scope.withheld.get(self._scope.place)
        if held is None:
            return None, 0
        head = await self._scope.head()
        whole = await self._scope.store.together(lambda: held.session(head), reads=True)
        if whole is None:
            self._scope.let_go()
        return whole, head.revision

    async def _told(self, builder: ContextBuilder | EarlierContext, context: Context) -> Context:
        """Tell observers of it, and return it."""
        observers, told = self._scope.observers, self._scope.gate.redact
        for text, failure in builder.terms.failures.items():
            if observers.first_failure(self._scope.key.session, text):
                await self._scope.tell("condition:error", condition=told(text), error=told(failure))
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
        """Keep with the session what a context came to, where a trigger asks for that: whoever looks next may be
        another object, or another process."""
        if not (self._scope.store.writable and any(one.triggers.heeds_calls for one in self._options.long_term)):
            return
        prompt = PromptSize(tokens=context.tokens, revision=context.revision)
        try:
            change = Change(kind="prompt", reason="prompt", prompt=prompt)
            (await self._auto.loaded()).knows(
                await self._scope.store.commit(self._scope.key, change, expect_epoch=context.epoch)
            )
        except Conflict:
            context.noted("its count was not kept: others began a new epoch meanwhile, of which it says nothing")
        except StoreUnavailable as fault:  # what can be read can be sent
            context.noted(f"its count was not kept: {fault}")


def _texts(tail: str | Mapping[str, str] | None) -> Sequence[Text]:
    """What a call was given to stand behind the newest entry."""
    if not tail:
        return ()
    from palimpsest.context.tail import Text  # only for who has a tail

    given = {"tail": tail} if isinstance(tail, str) else tail
    return [Text(name, text) for name, text in given.items() if text]


_NO_LISTS = (str, bytes, Mapping, range)
"""Sequences, and what has keys, that hold no schemas."""


def _schemas(tools: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """Tools' schemas, which are only read, as a provider takes them. Raises ConfigError for what is no list of them."""
    usual = type(tools) is tuple or type(tools) is list  # quicker to ask for
    if not usual and tools is not None and (isinstance(tools, _NO_LISTS) or not isinstance(tools, Sequence)):
        raise ConfigError("tools", tools, "a list of tools' schemas")
    found = cast("tuple[Message, ...]", tuple(tools or ()))
    try:
        encode(found)
    except UnicodeEncodeError:
        return tuple(map(sendable_value, found))
    except (TypeError, ValueError, RecursionError):
        return found  # no JSON: whoever sends it is told
    return found
