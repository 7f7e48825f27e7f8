"""A session's small mutable record, and what it is made of: open calls, cuts, usage, attempts. Pure.

A store keeps entries, records and one head per session. One compare-and-set of the head is the commit of every
write; entries at or beyond `head.next_seq` do not exist yet.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from palimpsest.errors import ConfigError
from palimpsest.log import spans
from palimpsest.log.codec import ready
from palimpsest.log.spans import Span
from palimpsest.log.summary import Spent

OPEN_GROUP = 4096
"""Unanswered calls of the open group, all of which a head names: with more at once an append is refused."""

OPEN_CALLS = 256
"""Unanswered calls of closed groups that a head names, the newest. They bound the head, which is written with every
append: the result of an older one is an orphan."""

CONTEXT_NAMES = 256
"""Named contexts whose newest version a head remembers, so that adding the same text again adds nothing."""

NAMES = 64 * 1024
"""Characters of names and ids that a head remembers, of calls of closed groups and of contexts each: the newest. Names
are as long as those who give them like."""

GROUP_NAMES = 1024 * 1024
"""Characters of names and ids of the calls of the open group: with more at once an append is refused."""

RENDERER = 3
"""Version of how a cut and entries become a context. A cut of another version is made anew."""


class SessionKey(NamedTuple):
    """Who a log belongs to and which it is. Part of every call to a store."""

    tenant: str
    session: str


class OpenCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An unanswered call: its place, its id and tool as they came, and its group."""

    seq: int
    call_id: str | None
    name: str | None
    group: int


class Clamp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One oversized entry shown as its first `head` and last `tail` characters.

    `left_out` are the tokens not shown, `tokens` what the shortened text costs, marker included.
    """

    seq: int
    head: int
    tail: int
    left_out: int
    tokens: int


class ShownSummary(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The summary that the compaction of `revision` made, as a cut shows it: so many characters of it (-1: all).

    `tokens` is what that costs by the counter of this name.
    """

    revision: int
    characters: int
    tokens: int
    counter: str = ""


class FactsShown(msgspec.Struct, frozen=True):
    """Which facts a cut shows: those as of `at` (microseconds since 1970). `mark` says when each of them got its value,
    and what they cost together: facts whose mark is another are others. Nothing that a fact says is in it."""

    at: int
    mark: str


class Cut(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a view is rendered until the next cut: with the entries from `start` on it fixes every byte.

    `start` is the first `seq` shown in place. Tool results below `mask` are shown as a note. `pins` and
    `anchors` (human messages still open) lie before `start` and come first. `clamps` are shortened, `gone`
    are ranges (first and last `seq`) at or after `start`, or of pins, that are left out, `conditions` the expressions
    that entries must meet, `factor` the provider's tokens for one counted token where its tokenizer is not
    public. `compaction` is the revision of the compaction that it is made for (0: none), `skipped` what that has
    covered, evicted or hidden at or after `start`, `hidden` all that it leaves out because somebody said so,
    `summaries` what it shows before the window, `unshown` the revisions of those that had no room. `facts` says as of
    when facts stand before all of it, where they do.
    `epoch` and `revision` are those that the cut made.
    """

    epoch: int = 0
    revision: int = 0
    start: int = 1
    mask: int = 0
    pins: tuple[int, ...] = ()
    anchors: tuple[int, ...] = ()
    clamps: tuple[Clamp, ...] = ()
    gone: tuple[Span, ...] = ()
    compaction: int = 0
    skipped: tuple[Span, ...] = ()
    hidden: tuple[Span, ...] = ()
    summaries: tuple[ShownSummary, ...] = ()
    unshown: tuple[int, ...] = ()
    facts: FactsShown | None = None
    conditions: tuple[str, ...] = ()
    factor: float = 0.0
    renderer: int = RENDERER
    reason: str = ""

    def passed(self, seqs: Iterable[int]) -> set[int]:
        """Those of these places that it does not show where they stand: what is pinned there comes first."""
        return {seq for seq in seqs if seq < self.start or spans.within(self.skipped, seq)}

    def showing(self, summaries: tuple[ShownSummary, ...]) -> "Cut":
        """The same with these of its summaries: the others have no room."""
        left = {one.revision for one in self.summaries}.difference(one.revision for one in summaries)
        return msgspec.structs.replace(self, summaries=summaries, unshown=tuple(sorted({*self.unshown, *left})))

    def still_gone(self, start: int, pinned: Iterable[int]) -> list[Span]:
        """What of `gone` a cut from another `start` has to know: of what lies before that only the pins."""
        later = [span for span in self.gone if span[1] >= start]
        earlier = spans.union(span for span in self.gone if span[1] < start)
        return [*spans.common(earlier, spans.of(pinned)), *later]


class Usage(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True, omit_defaults=True):
    """What the provider reported for the last call, in tokens, and what was counted for the same call.

    `input_tokens` is all of the input, of which `cached_tokens` came from a cache, `output_tokens` the answer,
    `counted` what was counted of the input. `epoch` is the context's. `calls`, `total_input`, `total_output` and
    `total_cached` are sums of the session. `margin` is what one counted token was taken for before anything was
    reported (1 where the tokenizer is public; 0: not known). It is `stale` when the session was compacted since: then
    it says nothing of what the next call will be. `revision` is that of the context which it is about; of a later one
    it says nothing either. `response` is a fingerprint of the response that told it, of its id and input (empty: not
    known).
    """

    input_tokens: int
    output_tokens: int = 0
    cached_tokens: int = 0
    counted: int = 0
    margin: float = 0.0
    epoch: int = 0
    stale: bool = False
    revision: int = 0
    response: str = ""
    calls: int = 0
    total_input: int = 0
    total_output: int = 0
    total_cached: int = 0


class PromptSize(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the last context came to, in the provider's tokens, and the revision that it shows."""

    tokens: int
    revision: int


class Attempts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a session remembers of its compactions: how far each strategy had looked, how they went, what they cost.

    `cursors` are, by strategy, the `next_seq` of when it last ran. `failures` are those in a row; nothing runs by
    itself before `paused_until` (microseconds since 1970). `tried` is the `next_seq` of when the last one failed,
    `fingerprint` names what that was about.
    """

    cursors: dict[str, int] = {}
    failures: int = 0
    tried: int = 0
    paused_until: int = 0
    fingerprint: str = ""
    spent: Spent = Spent()


MOST_NAMED = 256
"""Characters of a memory's name, and of a version."""


class Definition(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True, omit_defaults=True):
    """Which definition a session is under: the `memory` that it declares ("project/id"), its `version`, and the
    `digest` of what it says, 32 hexadecimal digits. What that is, is kept once in a store."""

    memory: str
    digest: str
    version: str | None = None

    @property
    def is_sound(self) -> bool:
        """Whether each part can be what it is; what comes with an import may be anything."""
        named = self.memory.isprintable() and 0 < len(self.memory) <= MOST_NAMED
        versioned = self.version is None or (self.version.isprintable() and 0 < len(self.version) <= MOST_NAMED)
        return named and versioned and len(self.digest) == 32 and not self.digest.strip("0123456789abcdef")


class About(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is said of a session by whoever keeps it: whose it is, what it is called, and what else there is to say.

    `lifetime` is how many seconds it lasts when nothing is added to it any more; None: for ever. `definition` is what
    its contexts are made by, where it is declared.
    """

    user: str | None = None
    title: str | None = None
    metadata: dict[str, Any] = {}
    lifetime: float | None = None
    definition: Definition | None = None

    def checked(self) -> "About":
        """The same. Raises ConfigError for a definition that names none."""
        if self.definition is not None and not self.definition.is_sound:
            raise ConfigError(
                "definition", msgspec.to_builtins(self.definition), "the name of one, as an export has it"
            )
        return self


ABOUT = ("user", "title", "metadata", "lifetime")
"""What programs say of a session where it is made."""


class Head(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session's small mutable record.

    `revision` moves with every write, `epoch` with whatever changes how something is rendered, for
    `epoch_reason`. `first_seq` is where the log begins (later than 1 after a clear). `turn` is the open
    interaction's human message, `group` the open group (0: none), `tail` the group of the newest entry, which the
    model's next message joins after `reasoning` alone, or where one that `pauses` was the last,
    `calls` the unanswered calls, `pinned` the seqs that every context keeps, `contexts` the newest version of
    each named context, `turns` how many interactions there were. `rewound` are the ranges (first and last `seq`)
    that rewinds have hidden, oldest first, `hidden` how many entries lie there, tombstones not counted.
    `compaction` is the revision of the record that says what is covered and evicted (0: nothing is). `pseudonyms` are
    the numbers that stand for private values, by keyed hashes of these. `prompt` is kept where a trigger asks for it.
    `forked_from` is the session that this one branched off, and its revision then. `about` is what is said of it,
    `expires` when it is over (microseconds since 1970; None: never).
    """

    revision: int = 0
    epoch: int = 0
    epoch_reason: str = ""
    first_seq: int = 1
    next_seq: int = 1
    turn: int = 0
    group: int = 0
    tail: int = 0
    reasoning: bool = False
    pauses: bool = False
    calls: tuple[OpenCall, ...] = ()
    pinned: tuple[int, ...] = ()
    contexts: dict[str, tuple[int, str]] = {}
    erased: int = 0
    views: dict[str, Cut] = {}
    usage: Usage | None = None
    prompt: PromptSize | None = None
    turns: int = 0
    rewound: tuple[Span, ...] = ()
    hidden: int = 0
    compaction: int = 0
    attempts: Attempts | None = None
    pseudonyms: dict[str, int] = {}
    forked_from: tuple[str, int] | None = None
    about: About | None = None
    expires: int | None = None
    created: int = 0
    updated: int = 0

    @property
    def entries(self) -> int:
        """How many entries the log holds; tombstones and what was rewound are not counted."""
        return self.next_seq - self.first_seq - self.erased - self.hidden

    @property
    def interactions(self) -> int:
        """How many interactions there were."""
        return self.turns

    @property
    def user(self) -> str | None:
        """Whose session it is; None: nobody has said."""
        return None if self.about is None else self.about.user

    @property
    def title(self) -> str | None:
        """What the session is called; None: nobody has said."""
        return None if self.about is None else self.about.title

    @property
    def metadata(self) -> dict[str, Any]:
        """What else is said of the session."""
        return {} if self.about is None else self.about.metadata

    @property
    def definition(self) -> Definition | None:
        """The definition that its contexts are made by; None: it is not declared, or nobody has said."""
        return None if self.about is None else self.about.definition

    def cut_of(self, view: str) -> Cut:
        """The present cut of a view; of one that was never cut, all of the log."""
        cut = self.views.get(view) or Cut(start=self.first_seq)
        return cut if cut.start >= self.first_seq else msgspec.structs.replace(cut, start=self.first_seq)

    def has_newer(self, name: str | None, seq: int) -> bool:
        """Whether a newer version of the named context at `seq` was added, whatever became of that but erasure."""
        return bool(name) and self.contexts.get(name or "", (0,))[0] > seq

    def is_over(self, now: int) -> bool:
        """Whether its time is over: then there is no such session any more, whatever is still stored of it."""
        return self.expires is not None and self.expires <= now

    def renewed(self, now: int) -> "Head":
        """The head after somebody has added to it, or said how long it lasts.

        Its time begins anew where less than half of it is left, so that few appends have to say so.
        """
        seconds = None if self.about is None else self.about.lifetime
        if seconds is None:
            return self if self.expires is None else msgspec.structs.replace(self, expires=None)
        length = int(seconds * 1_000_000)
        if self.expires is not None and length <= 2 * (self.expires - now) <= 2 * length:
            return self
        return msgspec.structs.replace(self, expires=now + length)

    @property
    def open_calls(self) -> tuple[str, ...]:
        """Ids of the calls without a result, oldest first."""
        return tuple(call.call_id or str(call.seq) for call in self.calls)


ready(Head)
