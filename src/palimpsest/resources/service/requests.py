"""What requests of each operation may say: their fields with bounds, and the reading of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from palimpsest.log.codec import ready
from palimpsest.resources.keys import MAX_KEYS, MOST_KEYS
from palimpsest.resources.refusals import Refusal

Key = Annotated[str, msgspec.Meta(description="A key of the memory.")]
Keys = Annotated[str, msgspec.Meta(description="A key of the memory, or a pattern in which * stands for any text.")]
MaxKeys = Annotated[
    int, msgspec.Meta(ge=0, le=MOST_KEYS, description=f"The most keys that a pattern may reach; 0: {MAX_KEYS:,}.")
]
Messages = Annotated[
    Any,
    msgspec.Meta(
        description="A text (a message of the user), a message with `content` and `role`, or a list of these.",
        extra_json_schema={"type": ["string", "object", "array"]},
    ),
]


class RequestFields(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The fields of a request. An unknown field is an error."""


class ReadRequest(RequestFields, frozen=True):
    """A page of the active messages of a key."""

    key: Key
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000, description="The most messages of the page.")] = 50
    offset: Annotated[int, msgspec.Meta(ge=0, le=2**53, description="How many of the oldest messages to skip.")] = 0


class WriteRequest(RequestFields, frozen=True):
    """Messages to add to a key, or to put in the place of its active ones."""

    key: Key
    messages: Messages


class DeleteRequest(RequestFields, frozen=True):
    """Keys to destroy."""

    key: Keys
    max_keys: MaxKeys = 0


class FlushRequest(RequestFields, frozen=True):
    """Keys whose old messages go to the archive, if their limits require that."""

    key: Keys
    force: Annotated[bool, msgspec.Meta(description="Whether to flush below the threshold, too.")] = False
    dry_run: Annotated[bool, msgspec.Meta(description="Whether to change nothing.")] = False
    strategy: Annotated[
        str | None,
        msgspec.Meta(description="simple_fifo (or fifo), lru, hybrid_summary or token_aware_lru; null: the declared."),
    ] = None
    threshold: Annotated[
        float | None,
        msgspec.Meta(description="The share of the limit, over 0 and up to 1, from which to flush; null: as declared."),
    ] = None
    max_keys: MaxKeys = 0


class ClearRequest(RequestFields, frozen=True):
    """Keys whose entries are destroyed. The sessions stay."""

    key: Keys
    confirm: Annotated[bool, msgspec.Meta(description="Must be true: what is cleared is destroyed.")] = False
    backup: Annotated[bool, msgspec.Meta(description="Whether to store a copy first.")] = False
    max_keys: MaxKeys = 0


class HealthRequest(RequestFields, frozen=True):
    """A check of a memory's store, and of keys."""

    key: Keys = "*"
    include_stats: Annotated[bool, msgspec.Meta(description="Whether to add the figures of a key.")] = True
    max_keys: MaxKeys = 0


class StatsRequest(RequestFields, frozen=True):
    """Figures of keys."""

    key: Keys
    max_keys: MaxKeys = 0


class NoRequest(RequestFields, frozen=True):
    """A request that takes no parameters."""


REQUESTS = (
    ReadRequest,
    WriteRequest,
    DeleteRequest,
    FlushRequest,
    ClearRequest,
    HealthRequest,
    StatsRequest,
    NoRequest,
)
ready(*REQUESTS)

R = TypeVar("R", bound=RequestFields)


def of_query(kind: type[R], parameters: Iterable[tuple[str, str]]) -> R:
    """Read the parameters of an address. Raises Refusal, naming it, for an invalid one, or one that is given twice."""
    values = dict[str, str]()
    for name, value in parameters:
        if name in values:
            raise Refusal(400, "invalid_request", f"{name} is given twice", field=name, rule="once at most")
        values[name] = value
    return _converted(kind, values, strict=False)


def of_body(kind: type[R], body: bytes) -> R:
    """Read a JSON body. Raises Refusal for what is no JSON object, and for an invalid field, which it names."""
    try:
        values = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        why = "it is nested too deeply" if isinstance(fault, RecursionError) else str(fault)
        raise Refusal(400, "invalid_request", f"the body is no JSON: {why}", field="body", rule="JSON") from None
    if not isinstance(values, dict):
        raise Refusal(400, "invalid_request", "the body is no JSON object", field="body", rule="a JSON object")
    return _converted(kind, values, strict=True)


def _converted(kind: type[R], values: Mapping[str, Any], *, strict: bool) -> R:
    try:
        return msgspec.convert(values, kind, strict=strict)
    except msgspec.ValidationError as fault:
        rule, _, place = str(fault).partition(" - at `$.")
        named = re.search(r"field `([^`]*)`", rule)
        field = place.rstrip("`") or (named[1] if named else "")
        known = ", ".join(kind.__struct_fields__) or "none"
        if "unknown field" in rule:
            rule = f"unknown; known here: {known}"
        elif "missing required field" in rule:
            rule = "required"
        raise Refusal(400, "invalid_request", f"{field}: {rule}", field=field, rule=rule) from None
