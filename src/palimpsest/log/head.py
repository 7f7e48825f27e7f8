"""The head, a session's small mutable record, and its parts: open calls, cuts, usage, attempts. Pure.

A store keeps entries, records and one head per session. Every write commits by one compare-and-set of the head; entries
at or beyond `head.next_seq` do not exist yet.
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
"""Most unanswered calls of the open group. The head names all of them; an append that would leave more is refused."""

OPEN_CALLS = 256
"""Most unanswered calls of closed groups that a head names: the newest. The result of an older call is an orphan."""

CONTEXT_NAMES = 256
"""Most named contexts whose newest version a head remembers, so that adding the same text again adds nothing."""

NAMES = 64 * 1024
"""Most characters of names and ids that a head remembers, for calls of closed groups and for contexts each; the newest
are kept. A single name may be of any length."""

GROUP_NAMES = 1024 * 1024
"""Most characters of names and ids of the open group's calls. An append that would leave more is refused."""

RENDERER = 4
"""Version of how a cut and entries become a context. A cut of another version is made anew."""


class SessionKey(NamedTuple):
    """The tenant that a log belongs to, and its session. Part of every call to a store."""

    tenant: str
    session: str


class OpenCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An unanswered call: its place, its id and tool as they were given, and its group."""

    seq: int
    call_id: str | None
    name: str | None
    group: int


class Clamp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An oversized entry, shown as its first `head` and last `tail` characters.

    `left_out` tokens are not shown. `tokens` is what the text with its marker costs by the counter of this name.
    """

    seq: int
    head: int
    tail: int
    left_out: int
    tokens: int
    counter: str = ""


class ShownSummary(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How a cut shows the summary made by the compaction of `revision`: its first `characters` (-1: all).

    `tokens` is what they cost by the counter of this name.
    """

    revision: int
    characters: int
    tokens: int
    counter: str = ""


class FactsShown(msgspec.Struct, frozen=True):
    """Which facts a cut shows: those as of `at` (microseconds since 1970).

    `mark` is a hash of when each of them got its value, of importance and of length. If the mark differs, the facts
    differ. It reveals nothing of their texts.
    """

    at: int
    mark: str


class Cut(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a view is rendered until the next cut: with the entries from `start` on it determines every byte.

    `start` is the first `seq` shown in place. Tool results below `mask` are shown as a note. `pins` and `anchors`
    (human messages still open) lie before `start` and are shown first. `clamps` are shortened entries. Reasoning of
    entries below `thoughts` was made behind other messages. `gone` are ranges (first and last `seq`) that are left out,
    at or after `start`, or among pins. `conditions` are the expressions that entries must meet. `factor` is the
    provider's tokens for one counted token, for models of this `margin`. `compaction` is the revision of the
    compaction that the cut follows (0: none), `skipped` what that one has covered, evicted or hidden at or after
    `start`, and `hidden` everything that was hidden by hand. `summaries` are shown before the window; `unshown` are the
    revisions of those without room. `facts` says which facts come first. `epoch` and `revision` are the cut's own.
    """

    epoch: int = 0
    revision: int = 0
    start: int = 1
    mask: int = 0
    thoughts: int = 0
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
    margin: float = 0.0
    renderer: int = 3  # the one of stored cuts that name none, since a default is not stored
    reason: str = ""

    def passed(self, seqs: Iterable[int]) -> set[int]:
        """Return those of `seqs` that the cut does not show in place. Pins among them are shown first."""
        return {seq for seq in seqs if seq < self.start or spans.within(self.skipped, seq)}

    def showing(self, summaries: tuple[ShownSummary, ...]) -> "Cut":
        """Return the cut with only these of its summaries; the others have no room."""
        omitted = {summary.revision for summary in self.summaries}.difference(summary.revision for summary in summaries)
        return msgspec.structs.replace(self, summaries=summaries, unshown=tuple(sorted({*self.unshown, *omitted})))

    def still_gone(self, start: int, pinned: Iterable[int]) -> tuple[Span, ...]:
        """Return the part of `gone` that a cut from another `start` still needs: before `start` only pinned entries."""
        earlier = spans.common(self.gone, spans.of(seq for seq in pinned if seq < start))
        return spans.union(earlier, spans.since(self.gone, start))


class Usage(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True, omit_defaults=True):
    """What the provider reported for the last call, in tokens, and what was counted for the same call.

    `input_tokens` is the whole input, `cached_tokens` the part of it that came from a cache, `output_tokens` the
    answer, and `counted` what was counted of the input. `epoch` and `revision` are those of the context that was sent;
    the usage says nothing about later ones. `calls`, `total_input`, `total_output` and `total_cached` are sums over the
    session. `margin` is the factor assumed for one counted token before anything was reported (1 if the tokenizer is
    public; 0: not known). `stale` is set when the session has been compacted since, so that the figures do not predict
    the next call. `response` is a fingerprint of the response that reported the usage, of its id and input (or "").
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
    """The size of the last context in the provider's tokens, and the revision that it shows."""

    tokens: int
    revision: int


class Attempts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a session remembers of its compactions: how far each strategy has looked, how they went, what they cost.

    `cursors` maps each strategy to the `next_seq` of its last run. `failures` counts those in a row; nothing runs by
    itself before `paused_until` (microseconds since 1970). `tried` is the `next_seq` at the last failure, `fingerprint`
    identifies what that attempt was about, and `spent` sums the costs.
    """

    cursors: dict[str, int] = {}
    failures: int = 0
    tried: int = 0
    paused_until: int = 0
    fingerprint: str = ""
    spent: Spent = Spent()


MOST_NAMED = 256
"""Most characters of a memory's name, and of a version."""


class Definition(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True, omit_defaults=True):
    """The definition that a session is under.

    `memory` is the declared memory ("project/id"), `version` its version, and `digest` a hash of its content, 32
    hexadecimal digits. A store keeps the content once.
    """

    memory: str
    digest: str
    version: str | None = None

    @property
    def is_sound(self) -> bool:
        """Whether each field has a valid value. An import may bring any."""
        named = self.memory.isprintable() and 0 < len(self.memory) <= MOST_NAMED
        versioned = self.version is None or (self.version.isprintable() and 0 < len(self.version) <= MOST_NAMED)
        return named and versioned and len(self.digest) == 32 and not self.digest.strip("0123456789abcdef")


class About(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the owner of a session says about it: user, title, metadata, lifetime and definition.

    `lifetime` is for how many seconds the session lasts after the last addition (None: for ever). `definition` is set
    if the session's contexts are made by a declared memory.
    """

    user: str | None = None
    title: str | None = None
    metadata: dict[str, Any] = {}
    lifetime: float | None = None
    definition: Definition | None = None

    def checked(self) -> "About":
        """Return this unchanged. Raises ConfigError for an invalid definition."""
        if self.definition is not None and not self.definition.is_sound:
            raise ConfigError(
                "definition", msgspec.to_builtins(self.definition), "a definition with its name, as an export has it"
            )
        return self


ABOUT = ("user", "title", "metadata", "lifetime")
"""What programs may say about a session when it is made."""


class Head(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session's small mutable record.

    `revision` moves with every write, `epoch` with every change of how something is rendered, and `epoch_reason` says
    why. `first_seq` is where the log begins (later than 1 after a clear). `turn` is the human message of the open
    interaction, `group` the open group (0: none). `tail` is the group that what the model says next may continue (0:
    none), as after mere `reasoning`, or a message that `pauses`. `calls` are the unanswered calls, `pinned` the seqs
    that every context keeps, `contexts` the newest version of each named context, and `turns` counts the interactions.
    `rewound` are the ranges (first and last `seq`) hidden by rewinds, oldest first, and `hidden` is how many entries
    they hold, without tombstones. `erased` counts tombstones; `graves` are their longest ranges. Entries below
    `thoughts` are older than the last erasure or rewriting. `views` holds the present cut of each view. `compaction` is
    the revision of the record that says what is covered and evicted (0: nothing is). `pseudonyms` maps keyed hashes of
    private values to numbers. `prompt` is kept if a trigger asks for it. `forked_from` is the session and revision that
    this one branched off. `about` is what its owner says. `expires` is when it ends (microseconds; None: never).
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
    graves: tuple[Span, ...] = ()
    views: dict[str, Cut] = {}
    usage: Usage | None = None
    prompt: PromptSize | None = None
    turns: int = 0
    rewound: tuple[Span, ...] = ()
    hidden: int = 0
    thoughts: int = 0
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
        """How many entries the log holds, without tombstones and rewound entries."""
        return self.next_seq - self.first_seq - self.erased - self.hidden

    @property
    def interactions(self) -> int:
        """How many interactions there were."""
        return self.turns

    @property
    def user(self) -> str | None:
        """The user whose session it is (None: not given)."""
        return None if self.about is None else self.about.user

    @property
    def title(self) -> str | None:
        """The session's title (None: not given)."""
        return None if self.about is None else self.about.title

    @property
    def metadata(self) -> dict[str, Any]:
        """The session's metadata."""
        return {} if self.about is None else self.about.metadata

    @property
    def definition(self) -> Definition | None:
        """The definition that its contexts are made by (None: the session is not declared, or not known to be)."""
        return None if self.about is None else self.about.definition

    def cut_of(self, view: str) -> Cut:
        """Return the present cut of a view; for a view without one, a cut that shows the whole log."""
        cut = self.views.get(view) or Cut(start=self.first_seq, renderer=RENDERER)
        if cut.start >= self.first_seq and cut.thoughts >= self.thoughts:
            return cut
        start, thoughts = max(cut.start, self.first_seq), max(cut.thoughts, self.thoughts)
        return msgspec.structs.replace(cut, start=start, thoughts=thoughts)

    def has_newer(self, name: str | None, seq: int) -> bool:
        """Whether a newer version of the named context at `seq` was added, and not erased."""
        return bool(name) and self.contexts.get(name or "", (0,))[0] > seq

    def is_over(self, now: int) -> bool:
        """Whether the session has ended. It does not exist any more then, even if data of it is still stored."""
        return self.expires is not None and self.expires <= now

    def renewed(self, now: int) -> "Head":
        """Return the head after an addition, or after its lifetime was set.

        The lifetime starts over only if less than half of it is left, so that few appends have to write it.
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
