"""The options of a session: their defaults, their checks when a session is opened, and what they resolve to. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from palimpsest.context.budget import LOW_WATER, BudgetLimits, bounds_of, shares_of
from palimpsest.context.terms import MAIN, Terms
from palimpsest.errors import ConfigError
from palimpsest.formats import Format, FormatName, find_format
from palimpsest.log import values
from palimpsest.log.head import About, SessionKey
from palimpsest.log.ids import check_id, check_scope
from palimpsest.runtime.logs import warn_caller
from palimpsest.sessions.counting import counter_of, model_of
from palimpsest.tokens.counter import TokenCounter

if TYPE_CHECKING:
    from datetime import timedelta
    from typing import TypedDict, Unpack

    from palimpsest.compaction import Strategy
    from palimpsest.compaction.knowledge import Linked
    from palimpsest.compaction.loading import StrategyName
    from palimpsest.context.cut import Oversize
    from palimpsest.context.short_term import MaxTokens
    from palimpsest.sessions.declared import Declared
    from palimpsest.summaries.models import SummarizeCallable, Summarizer, Unbound

    class SessionOptions(TypedDict, total=False):
        """The options of a session, for type checkers, as `GivenOptions` has them."""

        model: str | None
        max_tokens: int | None
        max_messages: int | None
        max_context_ratio: float | None
        max_log_tokens: int | None
        reserve: int | None
        counter: TokenCounter | Callable[[str], int] | str | None
        format: FormatName
        view: str
        short_term: Sequence[MaxTokens | Mapping[str, Any]] | MaxTokens | Mapping[str, Any] | None
        conditions: Sequence[str]
        oversize: Oversize
        mask: bool
        low_water: float
        summary_share: float | None
        tag_shares: Mapping[str, float] | None
        cache_seconds: float | None
        readonly: bool
        long_term: (
            Strategy | Mapping[str, Any] | StrategyName | Sequence[Strategy | Mapping[str, Any] | StrategyName] | None
        )
        summarizer: Summarizer | Unbound | SummarizeCallable | str | None
        auto_compact: AutoCompact
        long_term_run: LongTermRun
        before_turn: bool
        persistence: Persistence
        archive: bool
        user: str | None
        title: str | None
        metadata: dict[str, Any] | None
        lifetime: timedelta | float | str | None
        facts: Sequence[str] | str
        facts_in: FactsIn
        tail_share: float | None
        definition: Declared | None


TAIL_SHARE, MOST_TAIL = 0.1, 0.5
"""The default share of the log's room that is reserved for facts, and the largest share that may be reserved."""
FOR_EVER = 10**10
"""A number of seconds that counts as for ever: three centuries."""
Persistence: TypeAlias = Literal["incremental", "flush", "ephemeral"]
"""When a session stores what is added: "incremental" at once; "flush" at once, too, but a turn's end may destroy what
was compacted; "ephemeral" never."""
PERSISTENCE: tuple[Persistence, ...] = ("incremental", "flush", "ephemeral")
FactsIn: TypeAlias = Literal["tail", "prefix"]
"""Where contexts show facts: after the newest entry, as they are now, or before the log, as of the last cut."""
FACTS_IN: tuple[FactsIn, ...] = ("tail", "prefix")
LongTermRun: TypeAlias = Literal["first", "all"]
"""Which strategies run if several triggers fire."""
LONG_TERM_RUN: tuple[LongTermRun, ...] = ("first", "all")
AutoCompact: TypeAlias = Literal["inline", "background", "off"]
"""Where a strategy whose trigger fires runs: before the verb returns, in the background, or only in workers."""
AUTO_COMPACT: tuple[AutoCompact, ...] = ("inline", "background", "off")


class GivenOptions(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """Every option of a session, with its meaning and default. `SessionOptions` lists the same for type checkers (a
    test compares them).
    """

    model: str | None = None
    """The model's name, by which its window, tokenizer and prices are looked up."""
    max_tokens: int | None = None
    """The most tokens of the whole request."""
    max_messages: int | None = None
    """The most messages, as the format counts them."""
    max_context_ratio: float | None = None
    """The share of the model's window that the log may take; answer, system text and tools are not part of it."""
    max_log_tokens: int | None = None
    """The most tokens of the log with its summaries; answer, system text and tools are not part of it."""
    reserve: int | None = None
    """Tokens that are kept free for the answer; None: 0 with `max_tokens`, otherwise the model's longest answer, but at
    most half of its window."""
    counter: TokenCounter | Callable[[str], int] | str | None = None
    """A function from text to tokens, an encoding's name, or a TokenCounter; None: the model's."""
    format: FormatName = "openai"
    view: str = MAIN
    short_term: Sequence[MaxTokens | Mapping[str, Any]] | MaxTokens | Mapping[str, Any] | None = None
    """Short-term strategies (`MaxTokens`), which say what is shown; None: one with `conditions` and `oversize`."""
    conditions: Sequence[str] = ()
    oversize: Oversize = "clamp"
    mask: bool = True
    """Whether cuts may replace old tool results by a note."""
    low_water: float = LOW_WATER
    """The share of the budget that a cut goes down to."""
    summary_share: float | None = None
    """The share of the budget that summaries may take; None: a quarter, and only if interactions need the room."""
    tag_shares: Mapping[str, float] | None = None
    """For each tag (`metadata["tags"]`), the share of the budget that entries with this tag may take."""
    cache_seconds: float | None = None
    """How long after a call the provider's cache still holds what was sent; None: the default of the format."""
    readonly: bool = False
    long_term: (
        Strategy | Mapping[str, Any] | StrategyName | Sequence[Strategy | Mapping[str, Any] | StrategyName] | None
    ) = None
    """Strategies of compaction: an object, a name, a mapping, or a list of these."""
    summarizer: Summarizer | Unbound | SummarizeCallable | str | None = None
    """A function from prompt to text, a model string, or an object; None: no model is called."""
    auto_compact: AutoCompact = "inline"
    long_term_run: LongTermRun = "first"
    """Whether only the first strategy whose trigger fires runs, or all of them."""
    before_turn: bool = False
    """Whether to check the triggers before each context, too."""
    persistence: Persistence = "incremental"
    """One of `PERSISTENCE`."""
    archive: bool = True
    """False, with `flush`: the end of a turn destroys what was compacted."""
    user: str | None = None
    """The user that the session belongs to: a session of another user is neither read nor changed."""
    title: str | None = None
    """The title of the session, if this object creates it."""
    metadata: dict[str, Any] | None = None
    """The user's JSON values about the session, if this object creates it."""
    lifetime: timedelta | float | str | None = None
    """How long the session lasts after the last addition, if this object creates it; None: for ever."""
    facts: Sequence[str] | str = ()
    """Scopes of working memory whose facts each context shows."""
    facts_in: FactsIn = "tail"
    """Where: in the `tail`, as they are at each call, or in the `prefix`, as they were at the last cut."""
    tail_share: float | None = None
    """The share of the log's room reserved for facts and tails; None: `TAIL_SHARE` with `facts`, otherwise 0."""
    definition: Declared | None = None
    """The declaration of the session, made by `palimpsest.resources`; the session stores its version and digest."""

    def check(self) -> None:
        """Raise ConfigError, which names the option, for a switch or a share that is not allowed."""
        for name in ("mask", "readonly", "before_turn", "archive"):
            values.switch(name, getattr(self, name))
        values.share("low_water", self.low_water, one=False)
        values.share("summary_share", self.summary_share, one=False, none=True)
        life = self.cache_seconds
        if life is not None and not (values.is_number(life) and life > 0):
            raise ConfigError("cache_seconds", life, "a number of seconds over 0 (math.inf: for ever), or None")
        tail = self.tail_share
        if tail is not None and not (values.is_number(tail) and 0 <= tail <= MOST_TAIL):
            raise ConfigError("tail_share", tail, f"a share of the log's room from 0 to {MOST_TAIL}, or None")


class Options:
    """The resolved options of a session: budget, model, counter, format, view, strategies.

    With `exact`, every context walks the log anew from its end, instead of keeping a window that is cut deep from time
    to time.
    """

    def __init__(self, key: SessionKey, **options: Unpack[SessionOptions]) -> None:
        given = GivenOptions(**options)
        check_id(key.session, "session")
        check_id(given.view, "view")
        find_format(given.format)
        given.check()
        self.key, self.view, self.format, self.readonly = key, given.view, given.format, given.readonly
        self.given, self.definition = given, given.definition
        self.model_name, self.model = given.model, model_of(given.model)
        self._given_counter, self.counter = given.counter, counter_of(given.counter, self.model)
        check_id(self.counter.name, "counter.name")  # counts are stored under this name
        self.about: About | None = None
        self.facts = _scopes(given.facts)
        self.leads = values.word("facts_in", given.facts_in, FACTS_IN) == "prefix"
        self._terms: Terms | None = None
        self.persistence = values.word("persistence", given.persistence, PERSISTENCE)
        for text in self.show(given):
            warn_caller(text)
        self.summarizer, self.before_turn, self.archive = given.summarizer, given.before_turn, given.archive
        self.flushes = self.persistence == "flush" and not given.archive
        self.auto_compact = values.word("auto_compact", given.auto_compact, AUTO_COMPACT)
        self.runs_all = values.word("long_term_run", given.long_term_run, LONG_TERM_RUN) == "all"

    def show(self, given: GivenOptions) -> Sequence[str]:
        """Set what these options say about the content of contexts and about compaction; return warnings.

        Raises ConfigError, which names the option, for a value that is not allowed.
        """
        self.mask, self.cache_seconds = given.mask, given.cache_seconds
        self.low_water, self.summary_share = given.low_water, given.summary_share
        self.tag_shares = shares_of(given.tag_shares)
        self.limits = BudgetLimits(**{name: getattr(given, name) for name in BudgetLimits.__struct_fields__})
        self.limits.check()
        self.strategies: tuple[MaxTokens, ...] = ()
        self.oversize, self.exact = given.oversize, False
        warnings = self._strategies(given.short_term, given.conditions, given.oversize)
        self.long_term: tuple[Strategy, ...] = ()
        self.knowledge: list[Linked] = []
        if given.long_term:
            self.long_term, long_term_warnings, self.knowledge = _loaded(given.long_term, "long_term", self.persistence)
            warnings = [*warnings, *long_term_warnings]
        needs_tail = bool(self.facts) or any(base.reads for base, _ in self.knowledge)
        self.tail_share = given.tail_share if given.tail_share is not None else TAIL_SHARE * needs_tail
        ratio, window = given.max_context_ratio, self.model.window if self.model is not None else None
        if ratio is not None and window is None:
            raise ConfigError("max_context_ratio", ratio, f"a model with known window, not {given.model!r}")
        return warnings

    def __repr__(self) -> str:
        return repr(self.given).replace("GivenOptions", "Options", 1)

    def _strategies(self, short_term: Any, conditions: Sequence[str], oversize: str) -> Sequence[str]:
        if not short_term and not (short_term is None or isinstance(short_term, Sequence | Mapping)):
            raise ConfigError("short_term", short_term, "a strategy, a mapping, or a list of these")
        if not short_term and not conditions and oversize == "clamp":
            return ()
        from palimpsest.context.short_term import chosen  # with conditions, four milliseconds

        self.strategies, warnings, self.exact = chosen(short_term, conditions, oversize)
        return warnings

    def chosen(self, strategy: Any) -> Strategy:
        """Return the strategy that a call asks for: an object, a mapping, a name; None: the session's first, or else
        the ladder."""
        if strategy is None and self.long_term:
            return self.long_term[0]
        loaded, _, _ = _loaded("ladder" if strategy is None else strategy, "strategy")
        if not loaded:
            raise ConfigError("strategy", strategy, "a strategy, its name, or a mapping")
        return loaded[0]

    def of(self, session_id: str) -> Options:
        """Return the same options for another session of the same tenant."""
        check_id(session_id, "session")
        other = object.__new__(type(self))  # importing `copy` would cost a cold start a millisecond
        other.__dict__.update(self.__dict__)
        other.key, other._terms = SessionKey(self.key.tenant, session_id), None
        return other

    def of_model(self, name: str) -> Options:
        """Return the same options for calls of another model."""
        other = self.of(self.key.session)
        other.model_name, other.model = name, model_of(name)
        other.counter = counter_of(self._given_counter, other.model)
        return other

    def showing(self, said: Mapping[str, Any]) -> Options:
        """Return the same options, except those in `said`. Raises ConfigError for a value that is not allowed."""
        other = self.of(self.key.session)
        other.show(msgspec.structs.replace(self.given, model=self.model_name, **said))
        return other

    @property
    def terms(self) -> Terms:
        """The terms of contexts of the session, for calls without arguments of their own."""
        if self._terms is None:
            self._terms = self._make_terms()
        return self._terms

    def _make_terms(self) -> Terms:
        failures, rules = dict[str, str](), []
        if self.strategies:
            from palimpsest.context.short_term import applied  # with conditions, four milliseconds

            rules = [(one, applied(one.conditions, failures, strict=one.strict)) for one in self.strategies]
        limits = msgspec.structs.replace(self.limits, max_tokens=self._most_tokens())
        return Terms(
            session=self.key.session,
            view=self.view,
            counter=self.counter,
            model=self.model,
            format=find_format(self.format).for_model(self.model_name),
            limits=limits,
            bounds=bounds_of(limits, self.model, self.model_name),
            margin=self.default_factor(),
            low_water=self.low_water,
            summary_share=self.summary_share,
            tag_shares=self.tag_shares,
            cache_life=self.cache_life(find_format(self.format)),
            masks=self.mask,
            tail_share=self.tail_share,
            exact=self.exact,
            strategies=rules,
            conditions=self.condition_texts,
            failures=failures,
        )

    def cache_life(self, format: Format) -> int | None:
        """Return for how many microseconds after a call the provider's cache holds what was sent; None: for ever."""
        seconds = format.cache_seconds if self.cache_seconds is None else self.cache_seconds
        return round(seconds * 1_000_000) if seconds < FOR_EVER else None

    def _most_tokens(self) -> int | None:
        """Return the smallest budget that the session and its low-water strategies set; None: no limit."""
        bounds = [] if self.exact else [strategy.memory_max_tokens for strategy in self.strategies]
        limits = [bound for bound in (self.limits.max_tokens, *bounds) if bound is not None]
        return max(min(limits), 0) if limits else None

    @property
    def condition_texts(self) -> tuple[str, ...]:
        """Every condition of the low-water strategies, as a cut records them."""
        return () if self.exact else tuple(text for strategy in self.strategies for text in strategy.conditions)

    def default_factor(self) -> float:
        """Return how many tokens of the provider to expect for a counted one, before any usage was reported."""
        return 1.0 if self.model is None or self.model.exact or not self.counter.overhead else self.model.margin


def _scopes(given: Sequence[str] | str) -> tuple[str, ...]:
    scopes = (given,) if isinstance(given, str) else given
    if not isinstance(scopes, Sequence):
        raise ConfigError("facts", type(given).__name__, "a scope of a working memory, or a list of these")
    for scope in scopes:
        check_scope(scope, "facts")
    return tuple(dict.fromkeys(scopes))


def _loaded(given: Any, where: str, persistence: str = "") -> tuple[tuple[Strategy, ...], Sequence[str], list[Linked]]:
    """Return the strategies of an option, warnings, and the knowledge bases that the strategies are linked to."""
    from palimpsest.compaction.loading import load_with_knowledge  # four milliseconds

    return load_with_knowledge(given, where, persistence)


HISTORY, VALUE_BYTES = 5, 64 * 1024
"""The defaults of a working memory: how many older values of a fact to keep, and the most bytes of JSON of a value."""
