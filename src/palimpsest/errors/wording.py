"""How messages quote what was given, what they suggest in its place, and how errors with their facts are sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any

from palimpsest.errors.secret import without_login

LONGEST_NAME = 256
"""Characters of what may have been meant for a known name."""

FAR = 2_048
"""Characters behind what is shown that are looked at, too: there a login may end that begins in what is shown."""

LONGEST_PLACE, LONGEST_REASON = 400, 2_000
"""Characters of the place of a mistake, which has the names of what was given, and of what an error says of it."""

MOST_WORDS = 300
"""Characters of somebody else's words in an error of ours."""

LISTS = {
    "open call": "stats().open_calls",
    "summary": "summaries(history=True)",
    "active entry": "active_entries()",
}
"""What lists those of a kind that a session has, where it is not `entries()`."""


def nearest(name: object, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known name closest to `name`, or None if none is close, or `name` is no text that could be one.

    `cutoff` is how close, between 0 (anything) and 1 (the same).
    """
    if not isinstance(name, str) or len(name) > LONGEST_NAME:
        return None
    from difflib import get_close_matches  # a millisecond, for a name that may be misspelt

    found = get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return found[0] if found else None


quoting: ContextVar[Callable[[str], str] | None] = ContextVar("quoting", default=None)
"""What cleans the values that messages quote, before they are cut; None: they are quoted as they are."""


def shorten(value: object, limit: int = 80) -> str:
    """Return `repr(value)` cut to `limit` characters, for messages: input may be long or private. Of an address it has
    neither user nor password.
    """
    clean = quoting.get()
    if clean is not None and isinstance(value, str):
        value = clean(value)  # before the escapes of `repr` hide anything
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # Python writes no whole number of more than 4,300 digits
        text = f"a {type(value).__name__} too large to show"
    except Exception:  # noqa: BLE001 (somebody else's `__repr__`, which may raise anything)
        text = f"a {type(value).__name__} that cannot be shown"
    text = clean(text) if clean is not None else text
    text = without_login(text[: limit + FAR])
    return text if len(text) <= limit else text[: limit - 1] + "…"


def bounded(text: str, limit: int = LONGEST_PLACE) -> str:
    """The text, of a longer one both ends: names of keys stand in messages, and these are as long as anybody likes."""
    return text if len(text) <= limit else f"{text[: limit * 2 // 3]}…{text[1 - limit // 3 :]}"


def words_of(fault: BaseException) -> str:
    """The class and the message of somebody else's error, which may have a message that cannot be had."""
    try:
        return f"{type(fault).__name__}: {fault}"
    except Exception:  # noqa: BLE001 (somebody else's `__str__`, which may raise anything)
        return f"{type(fault).__name__}, which cannot be shown"


def briefly(text: str, most: int = MOST_WORDS) -> str:
    """What somebody else's error says, no longer than anybody reads; what is private is taken out before."""
    return text if len(text) <= most else text[: most - 1] + "…"


def missing(kind: str, entry: object) -> str:
    """Return what a session has not, and what lists those of its kind: a whole number is the `seq` of an entry."""
    is_seq = kind.endswith("entry") and isinstance(entry, int) and not isinstance(entry, bool)
    named = f"with the `seq` {shorten(entry)}" if is_seq else shorten(entry)
    what = kind if entry is None and kind == "summary" else f"{kind} {named}"
    return f"{what}; `{LISTS.get(kind, 'entries()')}` lists those it has"


def taken_apart(fault: Exception) -> tuple[Any, ...]:
    """What `pickle` and `copy` make an error of again: its class takes facts, and what is kept in `args` is a message.

    A fact that cannot be sent goes as messages show it. What a model has answered is no fact, and stays.
    """
    facts = {name: _sent(value) for name, value in vars(fault).items() if name != "answer"}
    return _put_together, (type(fault), fault.args, facts)


def _put_together(kind: type[Exception], args: tuple[Any, ...], facts: dict[str, Any]) -> Exception:
    made = kind.__new__(kind)
    built_in: Any = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    built_in.__init__(made, *args)
    vars(made).update(facts)
    return made


def _sent(value: Any) -> Any:
    import pickle  # only for who sends an error

    try:
        pickle.loads(pickle.dumps(value))  # noqa: S301 (it is our own: many errors of others go, and never arrive)
    except Exception:  # noqa: BLE001 (somebody else's, which may raise anything)
        return shorten(value)
    return value
