"""How messages quote values, which valid names they suggest, and how errors are pickled with their attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any

from palimpsest.errors.secret import without_login

LONGEST_NAME = 256
"""The longest text, in characters, that is compared with known names."""

FAR = 2_048
"""Characters behind the shown part that are searched for the end of a login, which may begin in the shown part."""

LONGEST_PLACE, LONGEST_REASON = 400, 2_000
"""Most characters of the place of a mistake, which has names that users give, and of the reason in an error."""

MOST_WORDS = 300
"""Most characters that an error quotes of another library's message."""

LISTS = {
    "open call": "stats().open_calls",
    "summary": "summaries(history=True)",
    "active entry": "active_entries()",
}
"""For kinds of `EntryNotFound`: the verb that lists all of a session's, if that is not `entries()`."""


def nearest(name: object, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known name closest to `name`; None if none is close, or `name` is no text of a sensible length.

    `cutoff` is the least similarity, between 0 (anything) and 1 (equal).
    """
    if not isinstance(name, str) or len(name) > LONGEST_NAME:
        return None
    from difflib import get_close_matches  # late: costs a millisecond

    matches = get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return matches[0] if matches else None


quoting: ContextVar[Callable[[str], str] | None] = ContextVar("quoting", default=None)
"""Redacts the values that messages quote, before they are shortened; None: they are quoted unchanged."""


def shorten(value: object, limit: int = 80) -> str:
    """Return `repr(value)` for a message: redacted, shortened to `limit` characters, addresses without their logins."""
    clean = quoting.get()
    if clean is not None and isinstance(value, str):
        value = clean(value)  # before the escapes of `repr` hide anything
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # Python writes no whole number of more than 4,300 digits
        text = f"a {type(value).__name__} too large to show"
    except Exception:  # noqa: BLE001 (a user's `__repr__` may raise anything)
        text = f"a {type(value).__name__} that cannot be shown"
    text = clean(text) if clean is not None else text
    text = without_login(text[: limit + FAR])
    return text if len(text) <= limit else text[: limit - 1] + "…"


def bounded(text: str, limit: int = LONGEST_PLACE) -> str:
    """Return the text, or only both ends of one longer than `limit`: names that users give may be of any length."""
    return text if len(text) <= limit else f"{text[: limit * 2 // 3]}…{text[1 - limit // 3 :]}"


def words_of(fault: BaseException) -> str:
    """Return the class and the message of an error of other code, whose `__str__` may raise."""
    try:
        return f"{type(fault).__name__}: {fault}"
    except Exception:  # noqa: BLE001 (it may raise anything)
        return f"{type(fault).__name__}, whose message cannot be shown"


def briefly(text: str, most: int = MOST_WORDS) -> str:
    """Return the message of an error of other code, at most `most` characters. The caller has redacted it."""
    return text if len(text) <= most else text[: most - 1] + "…"


def missing(kind: str, entry: object) -> str:
    """Return the words of `EntryNotFound` about what is missing, and which verb lists what a session has.

    A whole number is the `seq` of an entry.
    """
    is_seq = kind.endswith("entry") and isinstance(entry, int) and not isinstance(entry, bool)
    named = f"with the `seq` {shorten(entry)}" if is_seq else shorten(entry)
    what = kind if entry is None and kind == "summary" else f"{kind} {named}"
    return f"{what}; `{LISTS.get(kind, 'entries()')}` lists those it has"


def taken_apart(fault: Exception) -> tuple[Any, ...]:
    """Implement `__reduce__` for errors: return how `pickle` and `copy` make one again.

    The default does not work: the constructors take facts, but `args` holds the message. A fact that cannot be pickled
    is replaced by the text that messages show. The `answer` of a model is left out.
    """
    facts = {name: _sent(value) for name, value in vars(fault).items() if name != "answer"}
    return _put_together, (type(fault), fault.args, facts)


def _put_together(kind: type[Exception], args: tuple[Any, ...], facts: dict[str, Any]) -> Exception:
    """Make an error from its class, its `args` and its attributes, without calling its constructor."""
    fault = kind.__new__(kind)
    built_in: Any = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    built_in.__init__(fault, *args)
    vars(fault).update(facts)
    return fault


def _sent(value: Any) -> Any:
    """Return the value if it survives pickling, else the text that messages show."""
    import pickle  # late: few errors are pickled

    try:
        pickle.loads(pickle.dumps(value))  # noqa: S301 (our own dump: many objects can be pickled, but not loaded again)
    except Exception:  # noqa: BLE001 (code of other classes, which may raise anything)
        return shorten(value)
    return value
