"""Copying a session's working memory: into a branch, into an export, and from an export into a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from palimpsest.errors import ConfigError, ImportFailed, StoreCorrupt
from palimpsest.log.checks import is_share
from palimpsest.log.codec import ready
from palimpsest.log.entry import microseconds_of, moment
from palimpsest.log.facts import Before, Stored
from palimpsest.log.ids import check_id, check_scope
from palimpsest.log.lazy_imports import dumps, loads
from palimpsest.log.typed import from_json, to_json
from palimpsest.log.values import has_date
from palimpsest.privacy.facts import cleaned_fact
from palimpsest.privacy.gate import Gate
from palimpsest.sessions.fact_scopes import WORKING, scopes_of
from palimpsest.stores import Put, Store

TOGETHER = 256
"""How many facts are stored in one step."""


class Past(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An earlier value of a fact, in an export."""

    value: Any
    version: int
    since: datetime
    superseded_at: datetime


class Carried(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A fact in an export. `scope` is the path below the session's own scope, `value` is encoded as by `log.typed`."""

    scope: str = ""
    key: str
    value: Any
    version: int
    importance: float
    created_at: datetime
    updated_at: datetime
    since: datetime
    expires_at: datetime | None = None
    history: list[Past] = []


ready(Carried)


async def copy_facts(store: Store, tenant: str, session: str, into: str) -> None:
    """Copy a session's present facts to another session."""
    own = f"session/{session}"
    for scope in await scopes_of(store, tenant, "session", session):
        items = await store.list_items(tenant, WORKING + scope)
        puts = [Put(item.key, item.value, item.expires) for item in items]
        await _put(store, tenant, f"session/{into}{scope.removeprefix(own)}", puts)


async def exported_facts(
    store: Store, tenant: str, session: str, gate: Gate, lost: list[str] | None = None
) -> list[dict[str, Any]]:
    """Return the session's facts as JSON values, after applying the privacy policy.

    Scopes that cannot be read are left out, and `lost` gets a sentence for each. Without `lost`, StoreCorrupt is
    raised.
    """
    exported, own_scope = list[dict[str, Any]](), f"session/{session}"
    for scope in await scopes_of(store, tenant, "session", session):
        try:
            items = await store.list_items(tenant, WORKING + scope)
        except StoreCorrupt as fault:
            if lost is None:
                raise
            lost.append(f"the facts of the scope {gate.text(scope)}: {fault.reason}")
            continue
        for item in items:
            stored = cleaned_fact(item.key, Stored.of(item.value), gate.value)
            fact = Carried(
                scope=scope.removeprefix(own_scope).removeprefix("/"),
                key=gate.text(item.key),
                value=loads(stored.value),
                version=stored.version,
                importance=stored.importance,
                created_at=moment(stored.created),
                updated_at=moment(stored.updated),
                since=moment(stored.since),
                expires_at=None if item.expires is None else moment(item.expires),
                history=[
                    Past(
                        value=loads(earlier.value),
                        version=earlier.version,
                        since=moment(earlier.since),
                        superseded_at=moment(earlier.until),
                    )
                    for earlier in stored.before
                ],
            )
            exported.append(msgspec.to_builtins(fact))
    return exported


def carried(data: Mapping[str, Any], gate: Gate, where: str = "data") -> list[tuple[str, Put]]:
    """Return the facts of an export to store, each with its `scope`, after applying the privacy policy.

    Raises ImportFailed, which names the place, for an invalid fact.
    """
    raw_facts = data.get("facts", [])
    if not isinstance(raw_facts, list):
        raise ImportFailed(f"{where}.facts", "is not a list")
    facts, seen = list[tuple[str, Put]](), set[tuple[str, str]]()
    for i, raw in enumerate(raw_facts):
        place = f"{where}.facts[{i}]"
        try:
            fact = msgspec.convert(raw, Carried)
            _check(fact)
            stored = cleaned_fact(fact.key, _stored(fact), gate.value)
            gate.refuse([fact.key, *filter(None, [fact.scope])], place)
        except (msgspec.ValidationError, ConfigError, ValueError) as fault:
            raise ImportFailed(place, f"is not a valid fact of a working memory ({fault})") from fault
        if (fact.scope, fact.key) in seen:
            raise ImportFailed(place, "has the same scope and key as an earlier fact of the list")
        seen.add((fact.scope, fact.key))
        expires = None if fact.expires_at is None else microseconds_of(fact.expires_at)
        facts.append((fact.scope, Put(fact.key, stored.to_bytes(), expires)))
    return facts


def _check(fact: Carried) -> None:
    """Raise ConfigError or ValueError for a fact that no working memory can hold."""
    check_id(fact.key, "key")
    if fact.scope:
        check_scope(fact.scope)
    if not is_share(fact.importance):
        raise ConfigError("importance", fact.importance, "a number from 0 to 1")
    times = [fact.created_at, fact.updated_at, fact.since]
    times += [time for past in fact.history for time in (past.since, past.superseded_at)]
    if not all(has_date(time) for time in [*times, fact.expires_at or fact.created_at]):
        raise ValueError("a time has no time zone, or is outside of the years 1 to 9999 in UTC")
    versions = [fact.version, *(past.version for past in fact.history)]
    if min(versions) < 1 or versions != sorted(set(versions), reverse=True):
        raise ValueError("its versions are not in descending order, newest first")
    for value in (fact.value, *(past.value for past in fact.history)):
        to_json(from_json(dumps(value)), "value")


def _stored(fact: Carried) -> Stored:
    before = tuple(
        Before(
            dumps(past.value, separators=(",", ":")),
            past.version,
            microseconds_of(past.superseded_at),
            microseconds_of(past.since),
        )
        for past in fact.history
    )
    value, created = dumps(fact.value, separators=(",", ":")), microseconds_of(fact.created_at)
    updated, since = microseconds_of(fact.updated_at), microseconds_of(fact.since)
    return Stored(value, fact.version, float(fact.importance), created, updated, since, before)


async def load_facts(
    store: Store, tenant: str, session: str, facts: Sequence[tuple[str, Put]], *, replace: bool, merge: bool
) -> None:
    """Store the facts of an import in the session's scopes.

    With `replace`, all existing facts are removed first; with `merge`, only facts with new keys are stored.
    """
    if replace:
        for scope in await scopes_of(store, tenant, "session", session):
            await store.clear_items(tenant, WORKING + scope)
    for path in dict.fromkeys(path for path, _ in facts):
        scope = f"session/{session}/{path}" if path else f"session/{session}"
        puts = [put for fact_path, put in facts if fact_path == path]
        if merge:
            existing = await store.get_items(tenant, WORKING + scope, [put.key for put in puts])
            puts = [put for put, item in zip(puts, existing, strict=True) if item is None]
        await _put(store, tenant, scope, puts)


async def _put(store: Store, tenant: str, scope: str, puts: Sequence[Put]) -> None:
    for i in range(0, len(puts), TOGETHER):
        await store.put_items(tenant, WORKING + scope, puts[i : i + TOGETHER])
