"""Which entries an erasure means."""

from __future__ import annotations

from datetime import datetime

import msgspec

from palimpsest.context.conditions import parse
from palimpsest.errors import ConfigError


class Query(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """Which entries are meant: those that meet everything that is given. What was rewound is reached, too.

    Raises ConfigError where nothing is given, or what is given is not accepted. No text of a query is ever stored,
    logged or quoted.

    Args:
        text: found wherever an entry can hold it (content, name, call id, arguments, metadata, what its provider said),
            in any letter case and Unicode normal form, as it stands.
        where: a condition, as short-term strategies take them, that is true of the entry, its interaction or its
            session.
        user: an id: what a message of that `name`, or with that `user_id` in its metadata, said, and the whole
            interaction that it began.
        before: a datetime with a time zone: written before it.
        after: a datetime with a time zone: written then or later.
    """

    text: str | None = None
    where: str | None = None
    user: str | None = None
    before: datetime | None = None
    after: datetime | None = None

    def __post_init__(self) -> None:
        for name in ("text", "where", "user"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise ConfigError(name, _told(value), "text that is not blank")
        for name in ("before", "after"):
            when: object = getattr(self, name)
            if when is not None and (not isinstance(when, datetime) or when.utcoffset() is None):
                raise ConfigError(name, _told(when), "a datetime with a time zone, such as UTC")
        if not self.given:
            raise ConfigError("query", "nothing", "at least one of text, where, user, before and after")
        if self.where is not None:
            _check_condition(self.where)

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the fields that are given."""
        return tuple(name for name in self.__struct_fields__ if getattr(self, name) is not None)

    def __repr__(self) -> str:
        """Names what is given; what that is stays out of logs and errors."""
        return f"Query({', '.join(f'{name}=…' for name in self.given)})"


def _told(value: object) -> str:
    if isinstance(value, str):
        return "a text" if value.strip() else "blank text"
    return type(value).__name__


def _check_condition(text: str) -> None:
    """Raise ConfigError, without quoting it, where this is no condition."""
    fault: ConfigError | None = None
    try:
        parse(text, "where")
    except ConfigError as found:
        fault = found
    if fault is not None:  # outside of `except`, so that the fault that quotes the condition does not come along
        place = fault.where.partition(", at ")[0]
        raise ConfigError(place, "the condition", fault.allowed, nearest=fault.nearest)
