"""Checks of what may be stored: what entries, names, JSON and descriptions of sessions may be. Pure.

Whatever is refused here is refused before it reaches a store, so every store refuses the same.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from errno import EMFILE, ENFILE
from functools import partial
from typing import Any

from palimpsest.errors import ConfigError, InvalidEntry, StoreUnavailable, shorten
from palimpsest.log.codec import decoded, encoded
from palimpsest.log.entry import KINDS, LAST_MOMENT, ROLES, STATUSES, Entry, Native, Part
from palimpsest.log.ids import ID_RULE, is_id
from palimpsest.log.values import MICROSECONDS, MOST, has_date, is_number, is_whole, microseconds


def unfit(text: str) -> str | None:
    """Return why a text cannot be a name in a store (an id, a name, a key), or None if it can.

    A lone surrogate has no UTF-8, so not every store can keep it or find it again. Texts that are not looked up by,
    such as an entry's content, may hold some.
    """
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as fault:
        code = f"U+{ord(text[fault.start]):04X} at character {fault.start + 1}"
        return f"{shorten(text)} has a lone surrogate ({code}), which no store can keep in a name; take it out"
    return None


def check_names(entry: Entry, where: str) -> None:
    """Raise InvalidEntry for an id, a name or a key of an entry's metadata that a store cannot keep."""
    name, call_id = entry.name, entry.call_id
    if (name is None or name.isascii()) and (call_id is None or call_id.isascii()) and not (entry.metadata or entry.id):
        return  # the common case, cheap since every append checks here
    if entry.id and not is_id(entry.id) and unfit(entry.id) is None:
        raise InvalidEntry(f"{where}.id", f"{shorten(entry.id)} is no id: give {ID_RULE}, or none")
    for field, text in (("id", entry.id), ("name", name), ("call_id", call_id)):
        if text and not text.isascii() and (reason := unfit(text)) is not None:
            raise InvalidEntry(f"{where}.{field}", reason)
    if entry.metadata:
        check_keys(entry.metadata, f"{where}.metadata")


def check_keys(value: object, where: str) -> None:
    """Raise InvalidEntry for a key within plain JSON that a store cannot keep as a name."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if (reason := unfit(key)) is not None:
                raise InvalidEntry(where, f"the key {reason}")
            check_keys(inner, f"{where}.{key}")
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            check_keys(inner, f"{where}[{i}]")


def check(entry: Entry, where: str) -> None:
    """Raise InvalidEntry if a field of an entry made by a program has an invalid value.

    `check_names` checks the rest, also for entries that decoders make.
    """
    if entry.kind not in KINDS:
        raise InvalidEntry(f"{where}.kind", f"{shorten(entry.kind)} is none of {', '.join(KINDS)}")
    if entry.role not in ROLES:
        raise InvalidEntry(f"{where}.role", f"{shorten(entry.role)} is none of {', '.join(ROLES)}")
    if entry.status is not None and not (isinstance(entry.status, str) and entry.status in STATUSES):
        raise InvalidEntry(f"{where}.status", f"{shorten(entry.status)} is none of {', '.join(STATUSES)}")
    content = entry.content
    if not isinstance(content, str):
        if not isinstance(content, tuple) or not all(isinstance(part, Part) for part in content):
            raise InvalidEntry(f"{where}.content", f"{shorten(content)} is neither text nor a list of parts")
        for i, part in enumerate(content):
            _check_part(part, f"{where}.content[{i}]")
    if not _has_defaults(entry):
        for field, wrong, fits in _FIELDS:
            if not fits(value := getattr(entry, field)):
                raise InvalidEntry(f"{where}.{field}", f"{shorten(value)} is {wrong}")
    if entry.native is not None:
        _check_native(entry.native, f"{where}.native")
    if entry.expires_at is not None and entry.expires_at.utcoffset() is None:
        raise InvalidEntry(f"{where}.expires_at", "a datetime without a time zone; give one with tzinfo, such as UTC")
    if entry.expires_at is not None and not has_date(entry.expires_at):
        raise InvalidEntry(f"{where}.expires_at", f"{entry.expires_at} is outside of the years 1 to 9999 in UTC")
    if entry.metadata is not None:
        check_json(entry.metadata, f"{where}.metadata")


_is_moment = partial(is_whole, least=0, most=LAST_MOMENT)
_is_place = partial(is_whole, least=0, most=MOST)


def _is_switch(value: object) -> bool:
    return isinstance(value, bool)


def is_share(value: object) -> bool:
    """Whether a value is a number from 0 to 1."""
    return is_number(value) and 0 <= value <= 1


def _is_text_or_none(value: object) -> bool:
    return value is None or isinstance(value, str)


_FIELDS: tuple[tuple[str, str, Callable[[object], bool]], ...] = (
    ("id", "not text", lambda value: isinstance(value, str)),
    ("name", "not text", _is_text_or_none),
    ("call_id", "not text", _is_text_or_none),
    ("importance", "not a number between 0 and 1", lambda value: value is None or is_share(value)),
    ("expires_at", "not a datetime", lambda value: value is None or isinstance(value, datetime)),
    ("metadata", "not a mapping", lambda value: value is None or isinstance(value, dict)),
    ("damaged", "not False; only a store sets it", lambda value: value is False),
    ("at", f"not {MICROSECONDS}", _is_moment),
    ("tokens", "neither a number of tokens nor None", lambda value: value is None or is_whole(value, 0, MOST)),
    *((field, "no place in a log", _is_place) for field in ("seq", "turn", "group", "answers", "revision")),
    *(
        (field, "neither True nor False", _is_switch)
        for field in ("pinned", "continues", "pauses", "erased", "flushed", "lone", "late")
    ),
)
"""Fields of an entry: the name, what an error says of an invalid value, and the check of a valid one."""

_NO_ID, _NO_TIME, _NO_PLACE = "", 0, 0


def _has_defaults(entry: Entry) -> bool:
    """Whether these fields have their defaults, as for most messages. Every append checks; nothing in C is as fast."""
    return (
        entry.id is _NO_ID
        and entry.name is None
        and entry.call_id is None
        and entry.importance is None
        and entry.expires_at is None
        and entry.metadata is None
        and entry.damaged is False
        and entry.at is _NO_TIME
        and entry.pinned is False
        and entry.continues is False
        and entry.pauses is False
        and entry.erased is False
        and entry.flushed is False
        and entry.lone is False
        and entry.tokens is None
        and entry.seq is _NO_PLACE
        and entry.turn is _NO_PLACE
        and entry.group is _NO_PLACE
        and entry.answers is _NO_PLACE
        and entry.revision is _NO_PLACE
        and entry.late is False
    )


def _check_part(part: Part, where: str) -> None:
    """Raise InvalidEntry if a field of a part has a value of another type."""
    for name in part.__struct_fields__:
        value = getattr(part, name)
        if name in ("extra", "item"):
            if value is not None and not isinstance(value, dict):
                raise InvalidEntry(f"{where}.{name}", f"{shorten(value)} is not a mapping")
            check_json(value, f"{where}.{name}")
        elif not isinstance(value, str) and (value is not None or name not in _OPTIONAL):
            raise InvalidEntry(f"{where}.{name}", f"{shorten(value)} is not text")


def _check_native(native: object, where: str) -> None:
    """Raise InvalidEntry if what is kept of a provider's item does not have the types of `Native`."""
    if not isinstance(native, Native) or not isinstance(native.format, str):
        raise InvalidEntry(where, f"{shorten(native)} is not a Native with the name of its format")
    if not isinstance(native.absent, tuple) or not all(isinstance(name, str) for name in native.absent):
        raise InvalidEntry(f"{where}.absent", f"{shorten(native.absent)} is not a tuple of names")
    for field, value in (("keep", native.keep), ("call", native.call)):
        if value is not None and not isinstance(value, dict):
            raise InvalidEntry(f"{where}.{field}", f"{shorten(value)} is not a mapping")
        check_json(value, f"{where}.{field}")


_OPTIONAL = frozenset({"detail", "file_id", "data", "filename"})
"""Text fields of parts that may be None."""


def check_depth(value: object, where: str) -> None:
    """Raise ConfigError, naming the place, for mappings and lists nested deeper than `check_json` accepts.

    Deeper nesting overflows whatever writes it as JSON, also at the provider.
    """
    level = [value]
    for _ in range(DEEPEST + 2):
        level = [inner for container in level for inner in _children(container)]
        if not level:
            return
    raise ConfigError(where, f"a {type(value).__name__}", f"at most {DEEPEST} levels")


def _children(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


DEEPEST = 100
"""How deep mappings and lists may be nested."""


def check_json(value: object, where: str, depth: int = 0) -> None:
    """Raise InvalidEntry, naming the place, unless `value` is plain JSON that comes back equal.

    Refused are other types, keys that are not text, numbers that JSON cannot express (NaN, infinities, integers of more
    than 64 bits), and more than 100 levels.
    """
    if value is None or isinstance(value, str | bool):
        return
    if isinstance(value, int):
        if -(2**63) <= value < 2**64:
            return
        raise InvalidEntry(where, "an integer of more than 64 bits; store it as text")
    if isinstance(value, float):
        if value - value == 0:  # neither NaN nor an infinity
            return
        raise InvalidEntry(where, f"{value!r} has no JSON form; store it as text or None")
    if depth > DEEPEST:
        raise InvalidEntry(where, f"more than {DEEPEST} levels deep")
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise InvalidEntry(where, f"the key {shorten(key)} is not text")
            check_json(inner, f"{where}.{key}", depth + 1)
        return
    if isinstance(value, list):
        for i, inner in enumerate(value):
            check_json(inner, f"{where}[{i}]", depth + 1)
        return
    raise InvalidEntry(where, f"{shorten(value)} ({type(value).__name__}) is not plain JSON; convert it first")


def check_descriptors(fault: OSError) -> None:
    """Raise StoreUnavailable if the process is out of file descriptors. Importing a module late needs one, too."""
    if fault.errno in (EMFILE, ENFILE):
        why = "it has too many open files; close some, or raise the limit (ulimit -n)"
        raise StoreUnavailable("this process", why) from fault


# --- what a session's `about` may hold

TITLE = 1000
"""Most characters of a title."""

METADATA = 16 * 1024
"""Most bytes of metadata as JSON: listings of sessions read all of it."""


def checked_about(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given ones of user, title, metadata and lifetime, checked, as a copy that the caller cannot change.

    Raises ConfigError, naming the one that is not accepted.
    """
    about = dict(given)
    user, title = about.get("user"), about.get("title")
    if user is not None and (not isinstance(user, str) or not is_id(user)):
        raise ConfigError("user", user, f"{ID_RULE}, or None")
    if title is not None and (not isinstance(title, str) or not 0 < len(title) <= TITLE or unfit(title)):
        raise ConfigError("title", title, f"text of 1 to {TITLE:,} characters without lone surrogates, or None")
    if "metadata" in about:
        about["metadata"] = _plain_metadata(about["metadata"])
    if about.get("lifetime") is not None:
        about["lifetime"] = microseconds("lifetime", about["lifetime"]) / 1_000_000
    return about


def _plain_metadata(metadata: object) -> dict[str, Any]:
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise ConfigError("metadata", metadata, "a dict of JSON values, or None")
    try:
        check_json(metadata, "metadata")
        check_keys(metadata, "metadata")
    except InvalidEntry as fault:
        raise ConfigError("metadata", metadata, f"a dict of JSON values ({fault})") from None
    body = encoded(metadata)
    if len(body) > METADATA:
        allowed = f"a dict of JSON values of at most {METADATA:,} bytes together, not {len(body):,}"
        raise ConfigError("metadata", "its JSON", allowed)
    return decoded(body, dict[str, Any])
