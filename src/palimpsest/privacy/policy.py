"""`Policy`: what a program or a resource wants redacted and withheld. It is checked once, when it is loaded. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from palimpsest.errors import ConfigError, nearest, shorten
from palimpsest.log import values
from palimpsest.privacy import Recogniser
from palimpsest.privacy.patterns import compiled
from palimpsest.privacy.recognisers.built_in import BUILT_IN, PRESETS

REDACTION = "[REDACTED]"
PSEUDONYM = "pseudonym"


class Pattern(msgspec.Struct, frozen=True):
    """A regular expression, and what replaces each whole match (None: the policy's string)."""

    pattern: str
    redaction_string: str | None = None


class Use(msgspec.Struct, frozen=True):
    """A recogniser in use: a built-in one, by its name, or a callable.

    What it finds is replaced by `redaction_string` (None: the policy's), or by a pseudonym.
    """

    name: str
    redaction_string: str | None = None
    pseudonym: bool = False
    find: Recogniser | None = None


class Policy(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """What may not be kept. Everything is off unless it is asked for.

    Args:
        redact_patterns: regular expressions, run in order; each whole match becomes `default_redaction_string`, or the
            pattern's own string: `(pattern, string)` or `{"pattern": …, "redaction_string": …}`.
        non_persistable_message_types: messages to withhold: those whose role, kind, `metadata.type` or tag is one of
            these, whatever the case.
        default_redaction_string: what a match becomes, "[REDACTED]" by default.
        recognisers: a name ("default" for all, "secrets", or one such as "email"), a list of names and callables, or a
            mapping from names to False (off), True, a string of its own, "pseudonym" (`[EMAIL_1]`), a callable, or a
            pair of a callable and one of those. In a mapping, names override presets that stand before them.
    """

    redact_patterns: Sequence[str | Pattern | tuple[str, str] | Mapping[str, str]] = ()
    non_persistable_message_types: Sequence[str] = ()
    default_redaction_string: str = REDACTION
    recognisers: str | Sequence[str | Recogniser | Use] | Mapping[str, Any] = ()


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that was checked, in one form. `types` are in lower case."""

    patterns: tuple[Pattern, ...]
    types: frozenset[str]
    redaction_string: str
    uses: tuple[Use, ...]

    @property
    def redacts(self) -> bool:
        """Whether anything is looked for in texts."""
        return bool(self.patterns or self.uses)


def load(given: Policy | Mapping[str, Any] | str | None, where: str = "privacy_policy") -> Policy:
    """Return the policy for `given`: an object, a mapping, or a preset's name; None gives a policy that keeps
    everything.

    Raises ConfigError that names the key and the index of what is not accepted: an unknown key or recogniser (with the
    nearest known one), a pattern that is invalid or could backtrack exponentially, a redaction string that a pattern
    matches.
    """
    if given is None:
        return Policy()
    if isinstance(given, Mapping):
        values.known(where, given, Policy.__struct_fields__, inside=True)
        policy = Policy(**given)
    elif isinstance(given, str):
        policy = Policy(recognisers=given)
    elif isinstance(given, Policy):
        policy = given
    else:
        raise ConfigError(where, given, "a Policy, a mapping with its fields, or a preset's name such as 'default'")
    rules_of(policy, where)
    return policy


def rules_of(policy: Policy, where: str = "privacy_policy") -> Rules:
    """Return the policy in one form. Raises ConfigError like `load`."""
    default = _string(policy.default_redaction_string, f"{where}.default_redaction_string")
    patterns = tuple(
        _pattern(given, f"{where}.redact_patterns[{i}]")
        for i, given in enumerate(_list(policy.redact_patterns, f"{where}.redact_patterns", "regular expressions"))
    )
    types_where = f"{where}.non_persistable_message_types"
    types = _list(policy.non_persistable_message_types, types_where, "roles, kinds, types or tags")
    for i, given in enumerate(types):
        if not isinstance(given, str) or not given:
            raise ConfigError(f"{types_where}[{i}]", given, "a role, kind, type or tag as text")
    uses = tuple(_uses(policy.recognisers, f"{where}.recognisers").values())
    rules = Rules(patterns=patterns, types=frozenset(map(str.casefold, types)), redaction_string=default, uses=uses)
    _check_strings(rules, where)
    return rules


def _list(given: Any, where: str, of: str) -> Sequence[Any]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence):
        raise ConfigError(where, given, f"a list of {of}")
    return given


def _string(given: object, where: str) -> str:
    if not isinstance(given, str) or not given.strip():
        raise ConfigError(where, given, "a text that is not blank, which replaces what is redacted")
    return given


def _pattern(given: Any, where: str) -> Pattern:
    pattern: object
    string: object = None
    if isinstance(given, Pattern):
        pattern, string = given.pattern, given.redaction_string
    elif isinstance(given, Mapping):
        values.known(where, given, Pattern.__struct_fields__, inside=True)
        pattern, string = given.get("pattern"), given.get("redaction_string")
    elif isinstance(given, Sequence) and not isinstance(given, str | bytes):
        if len(given) != 2:
            raise ConfigError(where, given, "a pattern, or a pattern and its redaction string")
        pattern, string = given
    else:
        pattern = given
    compiled(pattern, where)
    assert isinstance(pattern, str), "it was compiled"
    return Pattern(pattern, None if string is None else _string(string, f"{where}.redaction_string"))


# --- recognisers


def _uses(given: Any, where: str) -> dict[str, Use]:
    """Return the recognisers in use, by name, in order."""
    uses: dict[str, Use] = {}
    if isinstance(given, Mapping):
        for name, how in given.items():
            _apply(uses, name, how, f"{where}.{name}")
        return _ordered(uses)
    if not isinstance(given, str) and not isinstance(given, Sequence):
        raise ConfigError(where, given, "names of recognisers, callables, or a mapping of names to what each one does")
    for i, item in enumerate([given] if isinstance(given, str) else given):
        place = where if isinstance(given, str) else f"{where}[{i}]"
        if isinstance(item, Use):
            uses[item.name] = item
        elif callable(item):
            _apply(uses, getattr(item, "__name__", type(item).__name__), item, place)
        else:
            _apply(uses, item, True, place)
    return _ordered(uses)


def _apply(uses: dict[str, Use], name: object, how: Any, where: str) -> None:
    """Add the recognisers that a name stands for to `uses`, or remove them from it."""
    find: Recogniser | None = None
    if callable(how):
        find, how = how, True
    elif isinstance(how, Sequence) and not isinstance(how, str) and len(how) == 2 and callable(how[0]):
        find, how = how
    if not isinstance(name, str) or (find is None and name not in BUILT_IN and name not in PRESETS):
        known = (*PRESETS, *BUILT_IN)
        raise ConfigError(where, name, f"{', '.join(known)}, or a callable", nearest=nearest(name, known))
    if find is not None and (name in BUILT_IN or name in PRESETS):
        raise ConfigError(where, name, "a name for the callable that no built-in recogniser has")
    if not isinstance(how, bool | str):
        raise ConfigError(where, how, f"False, True, a redaction string, {PSEUDONYM!r}, or a callable")
    for member in PRESETS.get(name, (name,)):
        if how is False:
            uses.pop(member, None)
        else:
            string = how if isinstance(how, str) and how != PSEUDONYM else None
            uses[member] = Use(member, None if string is None else _string(string, where), how == PSEUDONYM, find)


def _ordered(uses: dict[str, Use]) -> dict[str, Use]:
    """Return the recognisers in order: built-in ones first, in their own order, then the others as given."""
    return {name: uses[name] for name in sorted(uses, key=lambda name: _place(name, uses))}


def _place(name: str, uses: Mapping[str, Use]) -> tuple[int, int]:
    return (0, list(BUILT_IN).index(name)) if name in BUILT_IN else (1, list(uses).index(name))


def _check_strings(rules: Rules, where: str) -> None:
    """Raise ConfigError if a pattern matches a redaction string, which would then be redacted again without end."""
    strings = {rules.redaction_string: f"{where}.default_redaction_string"}
    for i, pattern in enumerate(rules.patterns):
        if pattern.redaction_string is not None:
            strings.setdefault(pattern.redaction_string, f"{where}.redact_patterns[{i}].redaction_string")
    for use in rules.uses:
        if use.redaction_string is not None:
            strings.setdefault(use.redaction_string, f"{where}.recognisers.{use.name}")
    for i, pattern in enumerate(rules.patterns):
        find: Callable[[str, float], list[tuple[int, int]]] = compiled(pattern.pattern, where).find
        for string, place in strings.items():
            if find(string, 1.0):
                allowed = f"a string that redact_patterns[{i}] ({shorten(pattern.pattern, 40)}) does not match"
                raise ConfigError(place, string, allowed)
