"""Forgetting and scanning facts of working memories, and items that programs have put into the store themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import msgspec

from palimpsest.errors import Conflict, PrivacyRefused, StoreCorrupt
from palimpsest.log.entry import moment
from palimpsest.log.facts import Stored
from palimpsest.privacy.facts import cleaned_fact, fact_mentions
from palimpsest.privacy.mentions import Mentions, finder
from palimpsest.privacy.redaction import Redactor
from palimpsest.privacy.retroactive import Findings, Unchecked
from palimpsest.sessions.erased import Erased
from palimpsest.sessions.erasing.damaged import UNREAD
from palimpsest.sessions.erasing.query import Query
from palimpsest.sessions.fact_scopes import WORKING, Owner, scopes_of
from palimpsest.sessions.scope import MemoryScope
from palimpsest.stores import Item, Put

KEY = "its key has private text, and a key cannot be changed: delete the fact"
FOREIGN = "it is an item of your program, which cannot be redacted: delete it with `memory.store.delete_item`"

UNREADABLE = "it cannot be read: it is damaged"


def stored_of(namespace: str, item: Item) -> Stored | None:
    """Return the stored fact of an item, or None if the item holds no readable fact."""
    if not namespace.startswith(WORKING):
        return None
    try:
        return Stored.of(item.value)
    except ValueError:
        return None


async def forget_facts(scope: MemoryScope, query: Query, *, dry_run: bool) -> Erased:
    """Destroy the facts and items that contain the text of a query.

    A query without a text, or with a condition, is about entries alone: nothing is destroyed. `before` and `after` are
    compared with a fact's last change. With `user` only facts in the user's scopes are looked at. A namespace that
    cannot be read does not stop the others; it is reported in `remains`.
    """
    report = Erased()
    if query.text is None or query.where is not None:
        return report
    mentions = finder(query.text)
    own_namespaces: set[str] | None = None
    if query.user is not None:
        own_namespaces = {WORKING + name for name in await scopes_of(scope.store, scope.tenant, "user", query.user)}
    for namespace in await scope.store.namespaces(scope.tenant):
        if own_namespaces is not None and namespace not in own_namespaces:
            continue
        count = 0
        try:
            for item in await scope.store.list_items(scope.tenant, namespace):
                count += await _forgotten(scope, namespace, item, query, mentions, dry_run=dry_run)
        except StoreCorrupt as fault:
            report += Erased(remains=(UNREAD.format(fault.reason),))
        report += Erased(items={namespace: count} if count else {})
    return report


async def _forgotten(
    scope: MemoryScope, namespace: str, item: Item | None, query: Query, mentions: Mentions, *, dry_run: bool
) -> bool:
    """Destroy an item if it meets the query, and return whether it was destroyed.

    If somebody changes it meanwhile, its new value is checked again.
    """
    while item is not None and _is_meant(namespace, item, query, mentions):
        if dry_run:
            return True
        try:
            return await scope.store.delete_item(scope.tenant, namespace, item.key, expect=item.version, destroys=True)
        except Conflict:
            item = await scope.store.get_item(scope.tenant, namespace, item.key)
    return False


def _is_meant(namespace: str, item: Item, query: Query, mentions: Mentions) -> bool:
    stored = stored_of(namespace, item)
    if stored is None:
        return mentions(item.key) or mentions(item.value.decode(errors="replace"))
    updated_at = moment(stored.updated)
    in_time = (query.after is None or updated_at >= query.after) and (query.before is None or updated_at < query.before)
    return in_time and fact_mentions(item.key, stored, mentions)


class FactScan:
    """Scans facts and items for what a policy would have redacted. With `apply` it redacts them in the store."""

    def __init__(self, scope: MemoryScope, redactor: Redactor, *, apply: bool) -> None:
        self._scope, self._redactor, self._applies = scope, redactor, apply
        self.facts = self.redacted = 0

    async def all(self, owner: Owner | None, id: str) -> AsyncIterator[Findings]:
        """Yield the findings of each fact and item of the tenant, or of one owner's facts.

        A namespace that cannot be read does not stop the others; it is reported as refused.
        """
        store, tenant = self._scope.store, self._scope.tenant
        scopes = await scopes_of(store, tenant, owner, id) if owner is not None else None
        for namespace in await store.namespaces(tenant) if scopes is None else [WORKING + name for name in scopes]:
            try:
                for item in await store.list_items(tenant, namespace):
                    yield await self.look(namespace, item)
            except StoreCorrupt:
                findings = Findings(namespace.removeprefix(WORKING), self._redactor, {})
                findings.refused.append(Unchecked(namespace.removeprefix(WORKING), "facts", UNREADABLE))
                yield findings

    async def look(self, namespace: str, item: Item | None) -> Findings:
        """Scan one item and return what was found. If somebody changes it meanwhile, its new value is scanned again."""
        while item is not None:
            findings = Findings(namespace.removeprefix(WORKING), self._redactor, {})
            cleaned = self._checked(namespace, item, findings)
            if cleaned is None:
                return findings
            self.facts += 1
            if not self._applies:
                return findings
            put = Put(item.key, cleaned.to_bytes(), item.expires, item.version, destroys=True)
            try:
                await self._scope.store.put_items(self._scope.tenant, namespace, [put])
            except Conflict:
                self.facts -= 1
                item = await self._scope.store.get_item(self._scope.tenant, namespace, item.key)
                continue
            self.redacted += 1
            return findings
        return Findings(namespace, self._redactor, {})

    def _checked(self, namespace: str, item: Item, findings: Findings) -> Stored | None:
        """Return the redacted fact, or None if nothing in it has to change or it cannot be redacted (see `refused`)."""
        clean = partial(findings.clean, item.key)
        stored = stored_of(namespace, item)
        where = f"fact {item.key}" if stored is not None else f"item {namespace}/{item.key}"
        try:
            if stored is None:
                self._foreign(namespace, item, findings)
                return None
            if clean(item.key, "key") != item.key:
                findings.refused.append(Unchecked(namespace.removeprefix(WORKING), "a fact", KEY))
                findings.samples.clear()
                return None
            value = partial(findings.value, item.key, place="fact", numbered=False)
            cleaned = cleaned_fact(item.key, stored, value)
        except PrivacyRefused as fault:
            findings.refuse(where, fault)
            return None
        if cleaned == stored:
            return None
        return msgspec.structs.replace(cleaned, since=self._scope.clock())  # so that contexts see a changed fact

    def _foreign(self, namespace: str, item: Item, findings: Findings) -> None:
        """Refuse an item that is no fact if it holds something private: its format is unknown, so it stays as it is."""
        for text in (item.key, item.value.decode(errors="replace")):
            if findings.clean(namespace, text, "item") != text:
                findings.refused.append(Unchecked(namespace, "an item", FOREIGN))
                findings.samples.clear()
                return
