"""Moving the repeated parts of a schema under `$defs`, so that the file for editors is small. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from palimpsest.log.lazy_imports import dumps
from palimpsest.resources.schema_parts import Schema, ref

SMALL = 64
"""Characters of JSON up to which a repeated part is left where it is."""

WITHIN = ("properties", "$defs")
"""Keys whose value maps names to parts, and is no part itself."""


def shared(schema: Schema) -> Schema:
    """Return an equal schema in which each repeated part is under `$defs`, with references to it."""
    counts, names = Counter[str](), dict[str, str]()
    for name, part in _parts(schema, ""):
        text = dumps(part, sort_keys=True)
        counts[text] += 1
        names.setdefault(text, name)
    repeated = [text for text, count in counts.items() if count > 1 and len(text) > SMALL]
    defs, taken = dict[str, Schema](), set(schema["$defs"])
    def_names = dict[str, str]()
    for text in repeated:
        def_names[text] = _free(re.sub(r"\W", "_", names[text]) or "part", taken)
    result = _replaced(schema, def_names, top=True)
    for _, part in _parts(schema, ""):
        text = dumps(part, sort_keys=True)
        if text in def_names and def_names[text] not in defs:
            defs[def_names[text]] = _replaced(part, def_names, top=True)
    return {**result, "$defs": {**result["$defs"], **_used(result, defs)}}


def _parts(part: Any, name: str) -> Iterator[tuple[str, Schema]]:
    """Yield every part of a schema that may be shared, with the key that it is under."""
    if isinstance(part, list):
        for item in part:
            if isinstance(item, dict):
                yield name, item
            yield from _parts(item, name)
    elif isinstance(part, dict):
        for key, inner in part.items():
            if key in WITHIN:
                for inner_name, named_part in inner.items():
                    if key == "properties" and isinstance(named_part, dict):
                        yield inner_name, named_part
                    yield from _parts(named_part, inner_name)
            elif key not in ("default", "examples", "const", "enum"):
                if key in ("then", "else", "items") and isinstance(inner, dict):
                    yield name or key, inner
                yield from _parts(inner, name)


def _replaced(part: Any, def_names: dict[str, str], *, top: bool = False) -> Any:
    """Return a part with its shared parts replaced by references. At the `top` the part itself is not replaced."""
    if isinstance(part, list):
        return [_replaced(item, def_names) for item in part]
    if not isinstance(part, dict):
        return part
    if not top and (def_name := def_names.get(dumps(part, sort_keys=True))) is not None:
        return ref(def_name)
    result: Schema = {}
    for key, inner in part.items():
        if key in WITHIN:
            result[key] = {name: _replaced(named, def_names, top=key == "$defs") for name, named in inner.items()}
        elif key in ("default", "examples", "const", "enum"):
            result[key] = inner
        else:
            result[key] = _replaced(inner, def_names, top=key not in ("then", "else", "items"))
    return result


def _used(schema: Schema, defs: dict[str, Schema]) -> dict[str, Schema]:
    """Return the definitions that the schema refers to, also those that only another definition refers to."""
    used, unread = dict[str, Schema](), [schema]
    while unread:
        for name in _referenced(unread.pop()):
            if name in defs and name not in used:
                used[name] = defs[name]
                unread.append(defs[name])
    return {name: definition for name, definition in defs.items() if name in used}


def _referenced(part: Any) -> Iterator[str]:
    """Yield the names of all definitions that a part refers to."""
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"].removeprefix("#/$defs/")
        for inner in part.values():
            yield from _referenced(inner)
    elif isinstance(part, list):
        for item in part:
            yield from _referenced(item)


def _free(name: str, taken: set[str]) -> str:
    """Return the name, or with the first number that makes it unused, and add it to `taken`."""
    free = next(unused for unused in (name, *(f"{name}_{i}" for i in range(2, 10_000))) if unused not in taken)
    taken.add(free)
    return free
