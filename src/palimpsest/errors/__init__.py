"""Every error that Palimpsest raises on purpose: one root, a shallow tree.

PalimpsestError
├── ConfigError            (ValueError)      an option, a resource or a condition is wrong
│   └── InvalidResource                      declared memories have mistakes; none was loaded
├── InvalidEntry           (ValueError)      an entry or a provider message is malformed; nothing was stored
├── InvalidContext         (ValueError)      a rendered context breaks a rule of its provider (our own fault)
├── ImportFailed           (ValueError)      an export is inconsistent; nothing was imported
├── EntryNotFound          (LookupError)     no such entry in this session
├── SessionNotFound        (LookupError)     no such session in this store
├── WrongUser              (PermissionError) the session belongs to another user, or to nobody
├── PastUnknown            (LookupError)     the context given at a revision cannot be rebuilt
├── BudgetImpossible       (ValueError)      what must be sent does not fit
├── Conflict                                 another writer was first, or an id came back with other content
├── LockTimeout            (TimeoutError)    somebody else held a lock for too long
├── Closed                                   used after `close`
├── ForkedProcess                            used in a forked child, but opened in its parent
├── SummarizerFailed       (RuntimeError)    a summarizer gave no answer
├── EmbedderFailed         (RuntimeError)    an embedder gave no vectors; what needs none goes on
├── PrivacyRefused         (RuntimeError)    input could not be checked for private text; nothing was stored
├── ErasureFailed          (RuntimeError)    something derived from entries could not be removed; nothing was erased
├── MissingExtra           (ImportError)     a library that an option needs is not installed
├── ConditionFailed        (ValueError)      a condition cannot be evaluated
└── StoreError                               the store could not do it
    ├── StoreUnavailable   (ConnectionError) unreachable, locked for too long, full or read-only
    ├── StoreCorrupt                         stored data is damaged, or not a store of ours
    ├── StoreTooNew                          written by a newer version of Palimpsest
    └── WrongKey                             the store is encrypted, and the given keys do not fit

Each class builds its message from typed facts, keeps these as attributes, and says what to do next.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from palimpsest.errors.secret import hidden, shown, without_login
from palimpsest.errors.wording import LONGEST_REASON, bounded, missing, taken_apart
from palimpsest.errors.wording import nearest as nearest
from palimpsest.errors.wording import quoting as quoting
from palimpsest.errors.wording import shorten as shorten

if TYPE_CHECKING:
    from palimpsest.errors.mistakes import Mistake


class PalimpsestError(Exception):
    """The root of every error that Palimpsest raises on purpose. It can be pickled, with its attributes."""

    answer: object = None
    """A model's answer, as its client or framework gave it, if an adapter of these could not store that."""

    __reduce__ = taken_apart


class ConfigError(PalimpsestError, ValueError):
    """An option has a value that is not allowed.

    `where` names the option (or file, line and key), `found` is the given value, `allowed` says what is accepted,
    `nearest` is the valid name closest to an unknown one. Bytes, whatever looks like a key, and user and password of an
    address are not kept: they may be secrets that were put in the wrong place.
    """

    def __init__(self, where: str, found: object, allowed: str, *, nearest: str | None = None) -> None:
        self.where, self.found, self.allowed, self.nearest = hidden(where), shown(found), allowed, nearest
        hint = f"; did you mean {nearest!r}?" if nearest else ""
        super().__init__(f"{bounded(self.where)}: {shorten(self.found)} is not accepted; allowed: {allowed}{hint}")


class InvalidResource(ConfigError):
    """Declared memories have mistakes, and none of them was loaded. `mistakes` lists all mistakes."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        first = self.mistakes[0]
        super().__init__(first.key, first.found, first.allowed, nearest=first.nearest)
        from palimpsest.errors.mistakes import told_together  # late: only declared memories need it

        self.args = (told_together(self.mistakes),)


class InvalidEntry(PalimpsestError, ValueError):
    """The input of `add` is not a message or entry. Nothing was stored.

    `where` is the place in the input (`messages[3].tool_calls[0].id`), `reason` says what is wrong and what to do.
    `too_large` says that the input is over a limit of size.
    """

    def __init__(self, where: str, reason: str, *, too_large: bool = False) -> None:
        self.where, self.reason, self.too_large = bounded(where), bounded(reason, LONGEST_REASON), too_large
        super().__init__(f"{self.where}: {self.reason}")


class InvalidContext(PalimpsestError, ValueError):
    """A rendered context breaks rules of its provider. `problems` lists them; please report it as a bug."""

    def __init__(self, problems: Iterable[object]) -> None:
        self.problems = tuple(problems)
        told = "; ".join(map(str, self.problems))
        super().__init__(f"the context breaks rules of its provider: {told}; Palimpsest is at fault, please report it")


class ImportFailed(PalimpsestError, ValueError):
    """An export is inconsistent. Nothing was imported. `where` is the place in it, `reason` what is wrong."""

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = bounded(where), bounded(reason, LONGEST_REASON)
        super().__init__(f"import refused at {self.where}: {self.reason}")


class EntryNotFound(PalimpsestError, LookupError):
    """The `session` has no such thing of this `kind`: no "entry" of this id or `seq` (`entry`), no "open call", no
    "summary", or no "active entry", one that was not rewound."""

    def __init__(self, session: str, entry: object, kind: str = "entry") -> None:
        self.session, self.entry, self.kind = session, entry, kind
        super().__init__(f"session {session!r} has no {missing(kind, entry)}")


class SessionNotFound(PalimpsestError, LookupError):
    """The store has no `session` of this id."""

    def __init__(self, session: str) -> None:
        self.session = session
        super().__init__(f"there is no session {shorten(session, 300)}; `sessions` lists those that exist")


class WrongUser(PalimpsestError, PermissionError):
    """The `session` is not this `user`'s, but the `owner`'s, or nobody's (None). Nothing was read or written.

    The message does not name the owner, since it may be shown to the user.
    """

    def __init__(self, session: str, user: str, owner: str | None) -> None:
        self.session, self.user, self.owner = session, user, owner
        whose = "no user yet" if owner is None else "another user"
        message = f"session {session!r} belongs to {whose}, not to user {user!r}"
        super().__init__(f"{message}. To give it to a user, open it without `user`, and call `describe(user=…)`")


class PastUnknown(PalimpsestError, LookupError):
    """The context at a `revision` of a `session` cannot be rebuilt. `reason` says why, and what is possible."""

    def __init__(self, session: str, revision: int, reason: str) -> None:
        self.session, self.revision, self.reason = session, revision, reason
        super().__init__(f"the context given at revision {revision} of session {session!r} cannot be rebuilt: {reason}")


class BudgetImpossible(PalimpsestError, ValueError):
    """What must be sent does not fit into the budget, even after everything was reduced that may be.

    All figures are in tokens, or as `unit` says in messages: `needed` for what may not be left out, `available` for it,
    and `parts`, what each part needs. Nothing was sent and nothing was stored.
    """

    def __init__(self, needed: int, available: int, parts: dict[str, int], unit: str = "tokens") -> None:
        self.needed, self.available, self.parts, self.unit = needed, available, parts, unit
        detail = ", ".join(f"{name} {size}" for name, size in parts.items() if size)
        advice = "raise max_tokens, lower the reserve, or shorten the system prompt, the tools or the pinned entries"
        if unit == "messages":
            advice = "raise max_messages, or unpin entries"
        message = f"the context needs at least {needed} {unit} where {available} are available ({detail})"
        super().__init__(f"{message}; {advice}")


class Conflict(PalimpsestError):
    """Another writer was first, or a known id came back with different content. Nothing was written.

    `what` is what could not be written, `reason` says why.
    """

    def __init__(self, what: str, reason: str) -> None:
        self.what, self.reason = what, reason
        super().__init__(f"{what}: {reason}")


class LockTimeout(PalimpsestError, TimeoutError):
    """Somebody else held `what` during all of the `seconds` of the wait. Nothing was done."""

    def __init__(self, what: str, seconds: float) -> None:
        self.what, self.seconds = what, seconds
        message = f"{what} is held by another task or process, which did not release it within {seconds:g} seconds"
        super().__init__(f"{message}; try again, or wait longer")


class Closed(PalimpsestError):
    """Something (`what`) was used after `close`, or a streamed answer after its block. `then` says what to do."""

    def __init__(self, what: str, then: str = "open it again with Memory.open(...)") -> None:
        self.what, self.then = what, then
        super().__init__(f"{what} is closed; {then}")


class ForkedProcess(PalimpsestError):
    """A memory was opened before a fork, and is not safe to use in the forked child.

    `opened_in` and `used_in` are process ids. `path` is None for an inherited memory. Otherwise it is a file that this
    process may not open, since its parent was using it at the moment of the fork.
    """

    def __init__(self, opened_in: int, used_in: int, path: str | None = None) -> None:
        self.opened_in, self.used_in, self.path = opened_in, used_in, path
        if path is None:
            why = f"this memory was opened in process {opened_in} and is used in process {used_in}; "
            advice = "open a new one after the fork"
        else:
            why = f"process {used_in} cannot open {path}: process {opened_in}, which forked it, was using that then; "
            advice = "fork while the parent is not using it, or start processes with multiprocessing's method 'spawn'"
        super().__init__(why + advice)


class SummarizerFailed(PalimpsestError, RuntimeError):
    """A summarizer gave no answer. The log and the contexts are unchanged.

    `summarizer` names it, `kind` is timeout, refused, rate_limited, unavailable, raised, answer (an unusable one) or
    paused (it failed too often and is not called for a while), `why` explains it. The cause is the original error.
    """

    def __init__(self, summarizer: str, kind: str, why: str) -> None:
        self.summarizer, self.kind, self.why = summarizer, kind, why
        super().__init__(f"the summarizer {summarizer} gave no answer ({kind}): {why}")


class EmbedderFailed(PalimpsestError, RuntimeError):
    """An embedder gave no vectors. Searches still find entries by their words.

    `embedder` names it, `kind` is timeout, raised, answer (not a vector for each text), files (not those of the model),
    replaced (the index was made with another one) or paused (it failed too often), `why` explains it.
    """

    def __init__(self, embedder: str, kind: str, why: str) -> None:
        self.embedder, self.kind, self.why = embedder, kind, why
        super().__init__(f"the embedder {embedder} gave no vectors ({kind}): {why}")


class PrivacyRefused(PalimpsestError, RuntimeError):
    """Input could not be checked for private text. Nothing was stored, logged or sent on.

    `rule` names what failed (`redact_patterns[2]`), `kind` is timeout, error, unstable (its own result matches again
    and again) or paused (it failed too often, and everything is refused for a while), `why` explains it. None of these
    has any of the text, and no cause is kept, because its message might have some.
    """

    def __init__(self, rule: str, kind: str, why: str) -> None:
        self.rule, self.kind, self.why = rule, kind, why
        super().__init__(f"privacy: {rule} could not be applied ({kind}): {why}; nothing was stored")


class ErasureFailed(PalimpsestError, RuntimeError):
    """Something derived from entries could not be removed, so the entries were not erased. Fix that, and erase again.

    `derived` names what failed, `kind` the class of its error, which is the cause. Raised by `derive`, the entries are
    gone already, and the note of what remains to be removed is kept. `then` says in the message which it is.
    """

    def __init__(self, derived: str, kind: str, then: str = "so nothing was erased; fix that, and erase again") -> None:
        self.derived, self.kind = derived, kind
        super().__init__(f"{derived} did not remove what it had made from entries ({kind}), {then}")


class MissingExtra(PalimpsestError, ImportError):
    """`what` needs a library that is not installed. `extra` is the extra that installs it."""

    def __init__(self, what: str, extra: str) -> None:
        self.what, self.extra = what, extra
        super().__init__(f"{what} needs the extra {extra!r}: pip install 'palimpsest-memory[{extra}]'")


class StoreError(PalimpsestError):
    """The store could not do its work. `store` names it, `reason` says why; the cause is the driver's error."""

    def __init__(self, store: str, reason: str) -> None:
        self.store, self.reason = without_login(store), reason
        super().__init__(f"{self.store}: {reason}")


class StoreUnavailable(StoreError, ConnectionError):
    """The store cannot be reached or written now: locked, full, read-only, or away.

    `written` says whether the data of a write was stored: None if that is not known, because the answer was lost.
    `busy` says that other writers were in the way for as long as this one may wait.
    """

    def __init__(self, store: str, reason: str, *, written: bool | None = False, busy: bool = False) -> None:
        self.written, self.busy = written, busy
        super().__init__(store, reason)


class StoreCorrupt(StoreError):
    """Stored data is damaged, or does not belong to a Palimpsest store."""


class StoreTooNew(StoreError):
    """The store was written by a newer Palimpsest. `found` and `known` are schema versions."""

    def __init__(self, store: str, found: int, known: int) -> None:
        self.found, self.known = found, known
        reason = f"its schema version {found} is newer than {known}, the newest that this version of Palimpsest knows"
        super().__init__(store, f"{reason}; upgrade palimpsest-memory")


class WrongKey(StoreError):
    """The store is encrypted, and the key `key_id` is not given or does not fit. `outcome` says what was done then."""

    def __init__(self, store: str, key_id: str, reason: str, outcome: str = "Nothing was changed") -> None:
        self.key_id = key_id
        super().__init__(store, f"the key {key_id!r}: {reason}. {outcome}")


class ConditionFailed(PalimpsestError, ValueError):
    """A condition cannot be evaluated, as `None < 3`. `text` is the condition, `cause` the error."""

    def __init__(self, text: str, cause: Exception) -> None:
        self.text, self.cause = text, cause
        super().__init__(f"condition {shorten(text)} failed: {cause!r}; ask first whether a value `is not None`")


class PalimpsestWarning(UserWarning):
    """A warning: something works, but perhaps not as it was meant."""


__all__ = [  # noqa: PLE0604 (every class of this module)
    *sorted(name for name, kind in vars().items() if getattr(kind, "__module__", "") == __name__),
]
