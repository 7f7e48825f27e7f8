"""Keys of a declared memory: which are valid, how a template makes one, and which session each names. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from palimpsest.errors import ConfigError
from palimpsest.log.ids import MAX_ID
from palimpsest.log.lazy_imports import sha256
from palimpsest.log.values import is_whole, plain_text

_KEY = re.compile(r"[A-Za-z0-9_:\-@.]{1,256}")
KEY_RULE = "1 to 256 of the characters A-Z a-z 0-9 _ : - @ . without __ at the beginning or at the end"
_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")
ID_RULE = "1 to 100 letters, digits, _ and -"
LONGEST_TEMPLATE = 1_000
"""The most characters of a template."""


def check_key(key: object) -> str:
    """Return a key as a plain text. Raises ConfigError, naming it, for an invalid one."""
    if not isinstance(key, str) or not _KEY.fullmatch(key) or key.startswith("__") or key.endswith("__"):
        raise ConfigError("key", key, KEY_RULE)
    return str.__str__(key)  # a subclass of str, such as an enumeration's member, may show itself as another text


def check_name(name: object, where: str) -> str:
    """Return the id of a memory or a project as a plain text. Raises ConfigError, naming it, for an invalid one."""
    if not isinstance(name, str) or not _ID.fullmatch(name):
        raise ConfigError(where, name, ID_RULE)
    return str.__str__(name)


def session_of(project: str, memory: str, key: str) -> str:
    """Return the id of the session of a key: `project/memory/key`.

    None of the three contains "/", so different keys have different sessions. If the id would be too long, the end of
    the key is replaced by "~", which no key contains, and a hash of the key.
    """
    whole = f"{project}/{memory}/{key}"
    if len(whole) <= MAX_ID:
        return whole
    mark = "~" + sha256(key.encode()).hex()[:32]
    return whole[: MAX_ID - len(mark)] + mark


MAX_KEYS, MOST_KEYS = 1_000, 10_000
"""How many keys a pattern reaches by default, and at most."""
_PATTERN = re.compile(r"[A-Za-z0-9_:\-@.*]{1,256}")


def check_pattern(key: object, max_keys: object) -> int:
    """Check a key, or a pattern in which `*` stands for any characters; return how many keys it may reach.

    Raises ConfigError, naming it, for an invalid key, pattern or number.
    """
    if not is_whole(max_keys, 0, MOST_KEYS):
        raise ConfigError("max_keys", max_keys, f"a whole number from 0 to {MOST_KEYS:,}")
    if not isinstance(key, str) or "*" not in key:
        check_key(key)
    elif not _PATTERN.fullmatch(key):
        raise ConfigError("key", key, f"{KEY_RULE}; a pattern may also contain *")
    return max_keys or MAX_KEYS


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that says whether a key matches a pattern. It never backtracks, whatever the pattern."""
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
    """A text with placeholders that makes a key of variables: `user:{{.workflow.input.user_id}}`, `user:{user_id}`.

    It is no template language: a placeholder names one variable, whose value is put in its place. Raises ConfigError
    for anything else.

    Args:
        text: the template, at most 1,000 characters.
        where: the name of the template in errors.
    """

    def __init__(self, text: object, where: str = "default_key_template") -> None:
        if not isinstance(text, str) or not text.strip() or len(text) > LONGEST_TEMPLATE:
            raise ConfigError(where, text, f"a text of at most {LONGEST_TEMPLATE} characters with {_ALLOWED}")
        self.text, self._where = text, where
        self._parts: list[str | _Variable] = []
        end = 0
        for placeholder in _PLACE.finditer(text):
            self._literal(text[end : placeholder.start()])
            self._parts.append(self._variable(placeholder))
            end = placeholder.end()
        self._literal(text[end:])
        self._check_literals()

    def _literal(self, text: str) -> None:
        """Append a text between placeholders, which must have no braces."""
        if "{" in text or "}" in text:
            raise ConfigError(self._where, self.text, _ALLOWED)
        if text:
            self._parts.append(text)

    def _check_literals(self) -> None:
        """Raise ConfigError if the text between placeholders cannot be in a key, whatever the variables are."""
        literals = [part for part in self._parts if isinstance(part, str)]
        first, last = self._parts[0], self._parts[-1]
        ends = (isinstance(first, str) and first.startswith("__")) or (isinstance(last, str) and last.endswith("__"))
        if ends or len("".join(literals)) > MAX_ID or not all(map(_KEY.fullmatch, literals)):
            raise ConfigError(self._where, self.text, f"a template that makes a key of {KEY_RULE}")

    def _variable(self, placeholder: re.Match[str]) -> _Variable:
        """Read a placeholder: `{name}` (`own`), or `{{.name | filters}}` as in templates of Go (`go`)."""
        if (own := placeholder["own"]) is not None:
            if not _NAME.fullmatch(own):
                raise ConfigError(self._where, self.text, _ALLOWED)
            return _Variable(tuple(own.split(".")), None, ())
        name, *filters = (piece.strip() for piece in placeholder["go"].split("|"))
        if not name.startswith(".") or not _NAME.fullmatch(name[1:]):
            raise ConfigError(self._where, self.text, _ALLOWED)
        default, chosen = None, list[str]()
        for filter_ in filters:
            default_match = _DEFAULT.fullmatch(filter_)
            if default_match is not None and default is None:
                default = default_match[1]
            elif filter_ in FILTERS:
                chosen.append(filter_)
            else:
                raise ConfigError(self._where, self.text, _ALLOWED)
        return _Variable(tuple(name[1:].split(".")), default, tuple(chosen))

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the variables, in the order in which they stand in the template."""
        return tuple(".".join(part.path) for part in self._parts if isinstance(part, _Variable))

    def key(self, variables: Mapping[str, Any]) -> str:
        """Return the key that these variables make.

        Raises ConfigError, naming the template and the variable, if one is missing or empty, and for an invalid key.

        Args:
            variables: values by name; `a.b` is `b` in the mapping `a`.
        """
        text = "".join(part if isinstance(part, str) else self._value(part, variables) for part in self._parts)
        if not text.strip():
            raise ConfigError(
                self._where, self.text, "a template that makes a key with more than separators and defaults"
            )
        try:
            return check_key(text)
        except ConfigError as fault:
            raise ConfigError(
                f"{self._where} {self.text!r}", text, f"variables that make a key of {KEY_RULE}"
            ) from fault

    def _value(self, variable: _Variable, variables: Mapping[str, Any]) -> str:
        """Return the text of a variable, by its default and filters. Raises ConfigError, naming it."""
        value: Any = variables
        for part in variable.path:
            value = value.get(part) if isinstance(value, Mapping) else None
        name = ".".join(variable.path)
        # Python may refuse to convert so large a number to text, and no key could hold it.
        large = isinstance(value, int) and value.bit_length() > 8 * MAX_ID
        if large or isinstance(value, bool) or not isinstance(value, str | int | float | None):
            raise ConfigError(f"variables.{name}", type(value).__name__, f"text or a number, for {self.text!r}")
        text = "" if value is None else str(plain_text(value))
        text = variable.default or "" if not text.strip() else text
        for filter_ in variable.filters:
            text = FILTERS[filter_](text)
        if not text.strip():
            raise ConfigError(f"variables.{name}", value, f"a value, for the template {self.text!r}")
        return text
