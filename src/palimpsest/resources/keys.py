"""Keys of a declared memory: what one may be, how a template becomes one, and which session it names. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from palimpsest.errors import ConfigError
from palimpsest.log.ids import MAX_ID
from palimpsest.log.late import sha256
from palimpsest.log.values import is_whole, plain_text

_KEY = re.compile(r"[A-Za-z0-9_:\-@.]{1,256}")
KEY_RULE = "1 to 256 of the characters A-Z a-z 0-9 _ : - @ . and neither __ at the beginning nor at the end"
_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")
ID_RULE = "1 to 100 letters, digits, _ and -"
LONGEST_TEMPLATE = 1_000
"""Characters of a template."""


def check_key(key: object, where: str = "key") -> str:
    """Return a key. Raises ConfigError, naming it, for what is none."""
    if not isinstance(key, str) or not _KEY.fullmatch(key) or key.startswith("__") or key.endswith("__"):
        raise ConfigError(where, key, KEY_RULE)
    return str.__str__(key)  # of a text of a class of its own, such as an enumeration's, what it says


def check_name(name: object, where: str) -> str:
    """Return the id of a memory, or of a project. Raises ConfigError, naming it, for what is none."""
    if not isinstance(name, str) or not _ID.fullmatch(name):
        raise ConfigError(where, name, ID_RULE)
    return str.__str__(name)


def session_of(project: str, memory: str, key: str) -> str:
    """The id of the session that a key of a memory of a project names: `project/memory/key`.

    None of the three has "/" in it, so no two name one session. Where all of it is longer than an id may be, the end
    of the key gives way to its hash behind "~", which no key has.
    """
    whole = f"{project}/{memory}/{key}"
    if len(whole) <= MAX_ID:
        return whole
    mark = "~" + sha256(key.encode()).hex()[:32]
    return whole[: MAX_ID - len(mark)] + mark


MAX_KEYS, MOST_KEYS = 1_000, 10_000
"""Keys that a pattern reaches, unless it is told otherwise, and at most."""
_PATTERN = re.compile(r"[A-Za-z0-9_:\-@.*]{1,256}")


def check_pattern(key: object, max_keys: object) -> int:
    """Check a key, or a pattern in which `*` stands for any characters; return how many keys it may reach.

    Raises ConfigError, naming it, for what is none.
    """
    if not is_whole(max_keys, 0, MOST_KEYS):
        raise ConfigError("max_keys", max_keys, f"a whole number from 0 to {MOST_KEYS:,}")
    if not isinstance(key, str) or "*" not in key:
        check_key(key)
    elif not _PATTERN.fullmatch(key):
        raise ConfigError("key", key, f"{KEY_RULE}; a pattern may have * in it, too")
    return max_keys or MAX_KEYS


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return what says whether a key is as a pattern, in steps that grow with both lengths alone."""
    first, *rest = pattern.split("*")

    def matches(key: str) -> bool:
        if not key.startswith(first):
            return False
        at = len(first)
        for piece in rest[:-1]:
            at = key.find(piece, at)
            if at < 0:
                return False
            at += len(piece)
        return key.endswith(rest[-1]) and len(key) - len(rest[-1]) >= at

    return matches


class _Variable(NamedTuple):
    path: tuple[str, ...]
    default: str | None
    filters: tuple[str, ...]


FILTERS: dict[str, Callable[[str], str]] = {"lower": str.lower, "upper": str.upper, "trim": str.strip}

_PLACE = re.compile(r"\{\{(?P<go>[^{}]*)\}\}|\{(?P<own>[^{}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*){0,15}")
_DEFAULT = re.compile(r'default\s+"([^"\\|]*)"')
_ALLOWED = (
    'places such as {{.workflow.input.user_id}}, {{.user | default "guest" | lower}} (also upper, trim), or {user_id}'
)


class Template:
    """A text with places for variables, from which a key is made: `user:{{.workflow.input.user_id}}`, `user:{user_id}`.

    It is no language: a place names one value, which is put there as it is. Raises ConfigError for anything else.

    Args:
        text: the template, at most 1,000 characters.
        where: what an error calls it.
    """

    def __init__(self, text: object, where: str = "default_key_template") -> None:
        if not isinstance(text, str) or not text.strip() or len(text) > LONGEST_TEMPLATE:
            raise ConfigError(where, text, f"a text of at most {LONGEST_TEMPLATE} characters with {_ALLOWED}")
        self.text, self._where = text, where
        self._parts: list[str | _Variable] = []
        end = 0
        for found in _PLACE.finditer(text):
            self._literal(text[end : found.start()])
            self._parts.append(self._place(found))
            end = found.end()
        self._literal(text[end:])
        self._check_literals()

    def _literal(self, text: str) -> None:
        if "{" in text or "}" in text:
            raise ConfigError(self._where, self.text, _ALLOWED)
        if text:
            self._parts.append(text)

    def _check_literals(self) -> None:
        """Raise ConfigError where what stands between the places is in no key, whatever the variables are."""
        literals = [part for part in self._parts if isinstance(part, str)]
        first, last = self._parts[0], self._parts[-1]
        ends = (isinstance(first, str) and first.startswith("__")) or (isinstance(last, str) and last.endswith("__"))
        if ends or len("".join(literals)) > MAX_ID or not all(map(_KEY.fullmatch, literals)):
            raise ConfigError(self._where, self.text, f"a template that makes a key of {KEY_RULE}")

    def _place(self, found: re.Match[str]) -> _Variable:
        if (own := found["own"]) is not None:
            if not _NAME.fullmatch(own):
                raise ConfigError(self._where, self.text, _ALLOWED)
            return _Variable(tuple(own.split(".")), None, ())
        name, *filters = (piece.strip() for piece in found["go"].split("|"))
        if not name.startswith(".") or not _NAME.fullmatch(name[1:]):
            raise ConfigError(self._where, self.text, _ALLOWED)
        default, chosen = None, list[str]()
        for one in filters:
            given = _DEFAULT.fullmatch(one)
            if given is not None and default is None:
                default = given[1]
            elif one in FILTERS:
                chosen.append(one)
            else:
                raise ConfigError(self._where, self.text, _ALLOWED)
        return _Variable(tuple(name[1:].split(".")), default, tuple(chosen))

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the variables, as they stand in it."""
        return tuple(".".join(part.path) for part in self._parts if isinstance(part, _Variable))

    def key(self, variables: Mapping[str, Any]) -> str:
        """Return the key that these variables make. Raises ConfigError, naming template and variable, where one is
        missing or says nothing, and for what would be no key.

        Args:
            variables: values by name; `a.b` is found under `a`, in which `b` is.
        """
        text = "".join(part if isinstance(part, str) else self._value(part, variables) for part in self._parts)
        if not text.strip():
            raise ConfigError(self._where, self.text, "a template that makes a key which says something")
        try:
            return check_key(text)
        except ConfigError as fault:
            raise ConfigError(
                f"{self._where} {self.text!r}", text, f"variables that make a key of {KEY_RULE}"
            ) from fault

    def _value(self, variable: _Variable, variables: Mapping[str, Any]) -> str:
        found: Any = variables
        for part in variable.path:
            found = found.get(part) if isinstance(found, Mapping) else None
        name = ".".join(variable.path)
        large = isinstance(found, int) and found.bit_length() > 8 * MAX_ID  # which Python may not write, nor a key hold
        if large or isinstance(found, bool) or not isinstance(found, str | int | float | None):
            raise ConfigError(f"variables.{name}", type(found).__name__, f"text or a number, for {self.text!r}")
        text = "" if found is None else str(plain_text(found))
        text = variable.default or "" if not text.strip() else text
        for one in variable.filters:
            text = FILTERS[one](text)
        if not text.strip():
            raise ConfigError(f"variables.{name}", found, f"a value, for the template {self.text!r}")
        return text
