"""`Query`: which entries an erasure is about."""

from __future__ import annotations

from datetime import datetime

import msgspec

from palimpsest.context.conditions import parse
from palimpsest.errors import ConfigError


class Query(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """Which entries to erase: those that meet every field that is given. Entries hidden by a rewind count, too.

    Raises ConfigError if no field is given, or a value is not accepted. Values of a query are never stored, logged or
    quoted.

    Args:
        text: a text that the entry contains, wherever it can hold one (content, name, call id, arguments, metadata,
            its provider's own item), in any letter case and Unicode normal form. It is no pattern.
        where: a condition, as short-term strategies take them, that is true of the entry, its interaction or its
            session.
        user: the id of a user. Meant are messages with that `name`, or with that `user_id` in their metadata, and the
            whole interactions that such a message began.
        before: a datetime with a time zone. Meant are entries written earlier.
        after: a datetime with a time zone. Meant are entries written then or later.
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
                raise ConfigError(name, _described(value), "text that is not blank")
        for name in ("before", "after"):
            when: object = getattr(self, name)
            if when is not None and (not isinstance(when, datetime) or when.utcoffset() is None):
                raise ConfigError(name, _described(when), "a datetime with a time zone, such as UTC")
        if not self.given:
            raise ConfigError("query", "nothing", "at least one of text, where, user, before and after")
        if self.where is not None:
            _check_condition(self.where)

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the fields that are given."""
        return tuple(name for name in self.__struct_fields__ if getattr(self, name) is not None)

    def __repr__(self) -> str:
        """Name the fields that are given, without their values: these must not get into logs and errors."""
        return f"Query({', '.join(f'{name}=…' for name in self.given)})"


def _described(value: object) -> str:
    """Describe a value that is not accepted, without quoting it."""
    if isinstance(value, str):
        return "a text" if value.strip() else "blank text"
    return type(value).__name__


def _check_condition(text: str) -> None:
    """Raise ConfigError, without quoting the text, if it is no condition."""
    fault: ConfigError | None = None
    try:
        parse(text, "where")
    except ConfigError as error:
        fault = error
    if fault is not None:  # raised outside of `except`: else the error that quotes the condition would be chained to it
        place = fault.where.partition(", at ")[0]
        raise ConfigError(place, "the condition", fault.allowed, nearest=fault.nearest)
