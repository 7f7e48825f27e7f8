"""What a session was asked to do, checked once when it is opened. No I/O."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

import msgspec

from palimpsest.context.budget import LOW_WATER, BudgetLimits, bounds_of
from palimpsest.context.terms import Terms
from palimpsest.errors import ConfigError, PalimpsestWarning, nearest, shorten
from palimpsest.formats import Format, find_format
from palimpsest.log import values
from palimpsest.log.checks import ID_RULE, is_id, unfit
from palimpsest.log.head import SessionKey
from palimpsest.privacy.gate import Gate
from palimpsest.tokens.counter import FunctionCounter, TokenCounter, encoding

if TYPE_CHECKING:
    from typing import TypedDict, Unpack

    from palimpsest.compaction import Strategy
    from palimpsest.context.cut import Oversize
    from palimpsest.context.short_term import MaxTokens
    from palimpsest.summaries.models import SummarizeCallable, Summarizer, Unbound
    from palimpsest.tokens.models import Model

    class SessionOptions(TypedDict, total=False):
        """The options of a session, for type checkers, as `GivenOptions` has them."""

        model: str | None
        max_tokens: int | None
        max_messages: int | None
        max_context_ratio: float | None
        reserve: int | None
        counter: TokenCounter | Callable[[str], int] | str | None
        format: str
        view: str
        short_term: Sequence[MaxTokens | Mapping[str, Any]] | MaxTokens | Mapping[str, Any] | None
        conditions: Sequence[str]
        oversize: Oversize
        mask: bool
        low_water: float
        cache_seconds: float | None
        readonly: bool
        long_term: Strategy | Mapping[str, Any] | str | Sequence[Strategy | Mapping[str, Any] | str] | None
        summarizer: Summarizer | Unbound | SummarizeCallable | str | None
        auto_compact: AutoCompact
        long_term_run: Literal["first", "all"]
        before_turn: bool
        persistence: str
        archive: bool


DEFAULT_ENCODING = "o200k_base"
FOR_EVER = 10**10
"""Seconds that nobody waits: three centuries."""
PERSISTENCE = ("incremental", "flush", "ephemeral")
AutoCompact: TypeAlias = Literal["inline", "background", "off"]
AUTO_COMPACT: tuple[AutoCompact, ...] = ("inline", "background", "off")

L = TypeVar("L", bound=str)


class GivenOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a session may be asked for: every option, what it means and its default. `SessionOptions` spells the same
    for type checkers (a test compares them).
    """

    model: str | None = None
    """Its window, tokenizer and prices are taken from the table."""
    max_tokens: int | None = None
    """Tokens of the whole request."""
    max_messages: int | None = None
    """Messages, as the format counts them."""
    max_context_ratio: float | None = None
    """The share of the model's window that the log may take; answer, system text and tools come beside it."""
    reserve: int | None = None
    """Tokens that are kept free for the answer."""
    counter: TokenCounter | Callable[[str], int] | str | None = None
    """A function from text to tokens, an object with `count` and `name`, or an encoding's name; None: the model's."""
    format: str = "openai"
    view: str = "main"
    short_term: Sequence[MaxTokens | Mapping[str, Any]] | MaxTokens | Mapping[str, Any] | None = None
    """Strategies of what is shown (`MaxTokens`); None: one, of `conditions` and `oversize`."""
    conditions: Sequence[str] = ()
    oversize: Oversize = "clamp"
    mask: bool = True
    """False: old tool results are never replaced by a note."""
    low_water: float = LOW_WATER
    """The share of the budget that a cut goes down to."""
    cache_seconds: float | None = None
    """How long the provider's cache holds what it was sent, since the last call; None: what its format says."""
    readonly: bool = False
    long_term: Strategy | Mapping[str, Any] | str | Sequence[Strategy | Mapping[str, Any] | str] | None = None
    """Strategies of compaction: an object, a name, a mapping, or a list of these."""
    summarizer: Summarizer | Unbound | SummarizeCallable | str | None = None
    """A function from prompt to text, a model string, an object; None: no model is asked."""
    auto_compact: AutoCompact = "inline"
    long_term_run: Literal["first", "all"] = "first"
    """Whether the first strategy that fires runs, or all that do."""
    before_turn: bool = False
    """Whether the triggers are looked at before each context, too."""
    persistence: str = "incremental"
    """One of `PERSISTENCE`."""
    archive: bool = True
    """False, with `flush`: what was compacted is destroyed at the turn's end."""

    def check(self) -> None:
        """Raise ConfigError, naming the option, for a switch or a share that cannot be."""
        for name in ("mask", "readonly", "before_turn", "archive"):
            values.switch(name, getattr(self, name))
        share = self.low_water
        if not values.is_number(share) or not 0 < share < 1:
            raise ConfigError("low_water", share, "a share of the budget over 0 and under 1")
        life = self.cache_seconds
        if life is not None and not (values.is_number(life) and life > 0):
            raise ConfigError("cache_seconds", life, "seconds, over 0 (math.inf: for ever), or None")


class Options:
    """A session's options, resolved: budget, model, counter, format, view, strategies.

    `exact` says that every context walks the log anew instead of keeping a window and cutting it deep.
    """

    def __init__(self, key: SessionKey, **options: Unpack[SessionOptions]) -> None:
        given = GivenOptions(**options)
        check_id(key.session, "session")
        check_id(given.view, "view")
        find_format(given.format)
        given.check()
        self.key, self.view, self.format, self.readonly = key, given.view, given.format, given.readonly
        self.mask, self.low_water, self.cache_seconds = given.mask, given.low_water, given.cache_seconds
        self.model_name, self.model = given.model, _model(given.model)
        self.counter = _counter(given.counter, self.model)
        self.limits = BudgetLimits(
            max_tokens=given.max_tokens,
            max_messages=given.max_messages,
            max_context_ratio=given.max_context_ratio,
            reserve=given.reserve,
        )
        self.limits.check()
        self.strategies: tuple[MaxTokens, ...] = ()
        self.oversize = given.oversize
        self.exact = False
        self._terms: Terms | None = None
        self._strategies(given.short_term, given.conditions, given.oversize)
        self.summarizer, self.before_turn, self.archive = given.summarizer, given.before_turn, given.archive
        self.auto_compact = _selection("auto_compact", given.auto_compact, AUTO_COMPACT)
        self.runs_all = _selection("long_term_run", given.long_term_run, ("first", "all")) == "all"
        self.persistence = _selection("persistence", given.persistence, PERSISTENCE)
        self.long_term: tuple[Strategy, ...] = ()
        if given.long_term:
            self._long_term(given.long_term)
        if given.max_context_ratio is not None and (self.model is None or self.model.window is None):
            raise ConfigError(
                "max_context_ratio", given.max_context_ratio, f"a model of known window, not {given.model!r}"
            )

    def _strategies(self, short_term: Any, conditions: Sequence[str], oversize: str) -> None:
        if not short_term and not (short_term is None or isinstance(short_term, Sequence | Mapping)):
            raise ConfigError("short_term", short_term, "a strategy, a mapping, or a list of these")
        if not short_term and not conditions and oversize == "clamp":
            return
        from palimpsest.context.short_term import MaxTokens, load  # with conditions, four milliseconds

        if short_term and conditions:
            raise ConfigError("conditions", conditions, "conditions inside short_term, where that is given")
        if not short_term:
            native = {"memory_strategy_id": "max_tokens", "memory_max_tokens": None, "cut": "low_water"}
            blocks: list[Any] = [{**native, "conditions": conditions, "oversize": oversize}]
            where = ""
        else:
            blocks = [short_term] if isinstance(short_term, MaxTokens | Mapping | str) else short_term
            if not isinstance(blocks, Sequence):
                raise ConfigError("short_term", short_term, "a strategy, a mapping, or a list of these")
            where = "short_term"
        loaded = [load(block, f"{where}[{i}]" if where else "session") for i, block in enumerate(blocks)]
        self.strategies = tuple(strategy for strategy, _ in loaded)
        for text in (text for _, found in loaded for text in found):
            warnings.warn(text, PalimpsestWarning, stacklevel=5)
        cuts = {strategy.cut for strategy in self.strategies}
        if len(cuts) > 1:
            raise ConfigError("short_term", sorted(cuts), "one kind of cut for all strategies")
        self.exact = cuts == {"exact"}

    def _long_term(self, given: Any) -> None:
        self.long_term, told = _loaded(given, "long_term")
        for text in told:
            warnings.warn(text, PalimpsestWarning, stacklevel=5)

    def chosen(self, strategy: Any) -> Strategy:
        """The strategy that a call names: an object, a mapping or a name; None: the session's first, or the ladder."""
        if strategy is None and self.long_term:
            return self.long_term[0]
        loaded, _ = _loaded("ladder" if strategy is None else strategy, "strategy")
        if not loaded:
            raise ConfigError("strategy", strategy, "a strategy, its name, or a mapping")
        return loaded[0]

    def of(self, session_id: str) -> Options:
        """The same options for another session of the same tenant."""
        check_id(session_id, "session")
        other = object.__new__(type(self))  # as `copy` does, which costs a cold start a millisecond
        other.__dict__.update(self.__dict__)
        other.key, other._terms = SessionKey(self.key.tenant, session_id), None
        return other

    @property
    def terms(self) -> Terms:
        """By what contexts of the session are computed whose call says nothing else."""
        if self._terms is None:
            self._terms = self._made_terms()
        return self._terms

    def _made_terms(self) -> Terms:
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
            format=find_format(self.format),
            limits=limits,
            bounds=bounds_of(limits, self.model, self.model_name),
            margin=self.default_factor(),
            low_water=self.low_water,
            cache_life=self.cache_life(find_format(self.format)),
            masks=self.mask,
            exact=self.exact,
            strategies=rules,
            conditions=self.condition_texts,
            failures=failures,
        )

    def cache_life(self, format: Format) -> int | None:
        """For how many microseconds after a call the provider's cache holds what it was sent; None: for ever."""
        seconds = format.cache_seconds if self.cache_seconds is None else self.cache_seconds
        return round(seconds * 1_000_000) if seconds < FOR_EVER else None

    def _most_tokens(self) -> int | None:
        """The smallest of the budgets that the session and its low-water strategies set; None: no limit."""
        bounds = [] if self.exact else [one.memory_max_tokens for one in self.strategies]
        given = [bound for bound in (self.limits.max_tokens, *bounds) if bound is not None]
        return max(min(given), 0) if given else None

    @property
    def condition_texts(self) -> tuple[str, ...]:
        """Every condition of the low-water strategies, as a cut records them."""
        return () if self.exact else tuple(text for strategy in self.strategies for text in strategy.conditions)

    def default_factor(self) -> float:
        """The provider's tokens for one counted token before any usage was reported."""
        return 1.0 if self.model is None or self.model.exact or not self.counter.overhead else self.model.margin


def admitted_options(key: SessionKey, gate: Gate, given: SessionOptions) -> Options:
    """Return a session's options, resolved. Raises ConfigError for one that is unknown, or would store what is private.

    What is stored of them is what cuts, compactions and counts are known by later.
    """
    values.known("session option", given, GivenOptions.__struct_fields__)
    made = Options(key, **given)
    if gate.redactor is not None:
        tagged = " with every cut; tag entries, and ask for the tag"
        gate.refuse(made.condition_texts, "conditions", tagged)
        gate.refuse([strategy.name for strategy in made.long_term], "long_term.name")
        gate.refuse([made.view] if "view" in given else (), "view")
        gate.refuse([made.counter.name] if given.get("counter") else (), "counter.name")
    return made


def _loaded(given: Any, where: str) -> tuple[tuple[Strategy, ...], Sequence[str]]:
    from palimpsest.compaction.loading import load  # four milliseconds, for who has strategies

    return load(given, where)


def _selection(name: str, value: object, allowed: tuple[L, ...]) -> L:
    """The value in lower case. Raises ConfigError unless it is one of those allowed, in any letter case."""
    plain = value.lower() if isinstance(value, str) else ""
    for one in allowed:
        if one == plain:
            return one
    raise ConfigError(name, value, ", ".join(allowed), nearest=nearest(plain, allowed))


def check_id(text: object, where: str) -> None:
    """Raise ConfigError unless `text` is 1 to 256 characters without control characters or lone surrogates."""
    if not isinstance(text, str) or not is_id(text):
        raise ConfigError(where, text, ID_RULE)


def _model(name: str | None) -> Model | None:
    if name is None:
        return None
    if not isinstance(name, str) or unfit(name) is not None:
        raise ConfigError("model", name, "the name of a model, such as 'gpt-4o'")
    from palimpsest.tokens.models import find_model, model_names  # a millisecond, for who names a model

    model = find_model(name)
    if model is None:
        near = nearest(name, model_names())
        hint = f"; did you mean {near!r}?" if near else "."
        text = f"the model {shorten(name)} is not in the table{hint} Its tokens are counted with {DEFAULT_ENCODING}"
        warnings.warn(text, PalimpsestWarning, stacklevel=6)
    return model


def _counter(counter: TokenCounter | Callable[[str], int] | str | None, model: Model | None) -> TokenCounter:
    if counter is None:
        return encoding(model.encoding if model is not None else DEFAULT_ENCODING)
    if isinstance(counter, str):
        return encoding(counter)
    if hasattr(counter, "count") and hasattr(counter, "name"):
        check_id(counter.name, "counter.name")  # counts are kept under it
        return cast("TokenCounter", counter)
    if callable(counter):
        return FunctionCounter(counter)
    raise ConfigError("counter", counter, "a function from text to a number of tokens, an encoding's name, or None")
