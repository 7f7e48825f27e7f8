"""Records as mappings, and the two spellings of their keys: `token_count` and `tokenCount`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec


def camel_case(name: str) -> str:
    """Return a name in the documented spelling: `tokenCount` for `token_count`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def shown(value: Any, *, camel: bool) -> Any:
    """Return a value as JSON has it: records as mappings, times as ISO text."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [shown(item, camel=camel) for item in value]
    return value.to_dict(camel=camel) if hasattr(value, "to_dict") else value


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The base of all records but entries."""

    def to_dict(self, *, camel: bool = False) -> dict[str, Any]:
        """Return the record as JSON values.

        Args:
            camel: whether keys are spelled as in the documentation of AGTerm, `tokenCount`; False: `token_count`.
        """
        spelled = camel_case if camel else str
        return {spelled(name): shown(getattr(self, name), camel=camel) for name in self.__struct_fields__}


def snake_case(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping with its own keys in the spelling of attributes: `token_count` for `tokenCount`."""
    return {
        "".join(f"_{char.lower()}" if char.isupper() else char for char in str(name)): value
        for name, value in raw.items()
    }
