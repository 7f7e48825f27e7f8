"""Records as mappings, and the two spellings of their keys."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec


def camel_case(name: str) -> str:
    """A name as the documented mappings spell it: `token_count` is `tokenCount`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def shown(value: Any, *, camel: bool) -> Any:
    """A value as JSON has it: records as mappings, times as ISO text."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [shown(one, camel=camel) for one in value]
    return value.to_dict(camel=camel) if hasattr(value, "to_dict") else value


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What all records but entries have in common."""

    def to_dict(self, *, camel: bool = False) -> dict[str, Any]:
        """Return the record as JSON values.

        Args:
            camel: whether the keys are spelled as the documented ones, `tokenCount`; False: `token_count`.
        """
        spelled = camel_case if camel else str
        return {spelled(name): shown(getattr(self, name), camel=camel) for name in self.__struct_fields__}


def snake_case(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping's own keys in the spelling of attributes: `tokenCount` is `token_count`."""
    return {
        "".join(f"_{one.lower()}" if one.isupper() else one for one in str(name)): value for name, value in raw.items()
    }
