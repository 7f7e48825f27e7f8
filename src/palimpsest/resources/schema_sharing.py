"""A schema with what stands in it more than once written once: what editors read is small, and says the same. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from palimpsest.log.late import dumps
from palimpsest.resources.schema_parts import Schema, ref

SMALL = 64
"""Characters of JSON up to which a part is as well written again."""

WITHIN = ("properties", "$defs")
"""Keys whose values are parts by name: these are no part themselves."""


def shared(schema: Schema) -> Schema:
    """Return the same schema with each part that stands in it more than once under `$defs`, and references to it."""
    counts, names = Counter[str](), dict[str, str]()
    for name, part in _parts(schema, ""):
        said = dumps(part, sort_keys=True)
        counts[said] += 1
        names.setdefault(said, name)
    often = [said for said, count in counts.items() if count > 1 and len(said) > SMALL]
    defs, taken = dict[str, Schema](), set(schema["$defs"])
    places = dict[str, str]()
    for said in often:
        places[said] = _free(re.sub(r"\W", "_", names[said]) or "part", taken)
    made = _replaced(schema, places, top=True)
    for _, part in _parts(schema, ""):
        said = dumps(part, sort_keys=True)
        if said in places and places[said] not in defs:
            defs[places[said]] = _replaced(part, places, top=True)
    return {**made, "$defs": {**made["$defs"], **_used(made, defs)}}


def _parts(part: Any, name: str) -> Iterator[tuple[str, Schema]]:
    """Every part of a schema, with the key that it stands under."""
    if isinstance(part, list):
        for one in part:
            if isinstance(one, dict):
                yield name, one
            yield from _parts(one, name)
    elif isinstance(part, dict):
        for key, inner in part.items():
            if key in WITHIN:
                for inside, one in inner.items():
                    if key == "properties" and isinstance(one, dict):
                        yield inside, one
                    yield from _parts(one, inside)
            elif key not in ("default", "examples", "const", "enum"):
                if key in ("then", "else", "items") and isinstance(inner, dict):
                    yield name or key, inner
                yield from _parts(inner, name)


def _replaced(part: Any, places: dict[str, str], *, top: bool = False) -> Any:
    """A part with references in the place of what stands elsewhere; at the `top` it stays itself."""
    if isinstance(part, list):
        return [_replaced(one, places) for one in part]
    if not isinstance(part, dict):
        return part
    if not top and (place := places.get(dumps(part, sort_keys=True))) is not None:
        return ref(place)
    made: Schema = {}
    for key, inner in part.items():
        if key in WITHIN:
            made[key] = {name: _replaced(one, places, top=key == "$defs") for name, one in inner.items()}
        elif key in ("default", "examples", "const", "enum"):
            made[key] = inner
        else:
            made[key] = _replaced(inner, places, top=key not in ("then", "else", "items"))
    return made


def _used(made: Schema, defs: dict[str, Schema]) -> dict[str, Schema]:
    """Those definitions that something refers to: what stands inside of another one may be named there alone."""
    found, open_ = dict[str, Schema](), [made]
    while open_:
        for name in _named(open_.pop()):
            if name in defs and name not in found:
                found[name] = defs[name]
                open_.append(defs[name])
    return {name: one for name, one in defs.items() if name in found}


def _named(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"].removeprefix("#/$defs/")
        for one in part.values():
            yield from _named(one)
    elif isinstance(part, list):
        for one in part:
            yield from _named(one)


def _free(name: str, taken: set[str]) -> str:
    free = next(one for one in (name, *(f"{name}_{i}" for i in range(2, 10_000))) if one not in taken)
    taken.add(free)
    return free
