"""The file store's side data: items, a file a namespace, and leases, one file for all. Replaced whole under a lock."""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from palimpsest.errors import Conflict, StoreCorrupt
from palimpsest.log.codec import decoded, encoded
from palimpsest.stores import Item
from palimpsest.stores.file.base import FileBase
from palimpsest.stores.file.disk import NEW, names, remove
from palimpsest.stores.file.folder import safe_name, tenant_folder
from palimpsest.stores.file.lines import is_sound, seal

T = TypeVar("T")


class _Value(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An item as it is stored: its value as text where it is UTF-8, so that a person can read it."""

    key: str
    version: int
    expires: int | None = None
    text: str | None = None
    base64: str | None = None


class _Items(msgspec.Struct, kw_only=True):
    tenant: str
    namespace: str
    items: list[_Value]


class _Lease(msgspec.Struct):
    tenant: str
    name: str
    holder: str
    until: int
    fence: int


class _Leases(msgspec.Struct, kw_only=True):
    """The leases that are held, and the greatest fence that was ever given out."""

    fence: int = 0
    leases: list[_Lease] = []


class SideFiles(FileBase):
    """The part of the file store that has nothing to do with logs."""

    # --- sealed files

    def _load_sealed(self, path: str, kind: type[T]) -> T | None:
        try:
            with open(path, "rb") as file:
                raw = file.read()
        except FileNotFoundError:
            return None
        if not is_sound(raw):
            raise StoreCorrupt(self.url, f"{path} is not as it was written; nothing was changed")
        try:
            return decoded(raw, kind)
        except ValueError as cause:
            raise StoreCorrupt(self.url, f"{path} cannot be read ({cause})") from cause

    def _save_sealed(self, path: str, value: msgspec.Struct) -> None:
        with self._disk.replacing(path) as file:
            file.write(seal(encoded(value)[:-1]))

    # --- items

    def _items_folder(self, tenant: str) -> str:
        return f"{tenant_folder(self.path, tenant)}/items"

    def _items_file(self, tenant: str, namespace: str) -> str:
        return f"{self._items_folder(tenant)}/{safe_name(namespace, within=tenant)}.json"

    def _load_items(self, tenant: str, namespace: str) -> dict[str, Item]:
        path = self._items_file(tenant, namespace)
        stored = self._load_sealed(path, _Items)
        if stored is None:
            return {}
        if (stored.tenant, stored.namespace) != (tenant, namespace):
            raise StoreCorrupt(self.url, f"{path} holds the items of another namespace, copied or renamed")
        return {value.key: _item(value) for value in stored.items}

    def _stored_items(self, path: str) -> tuple[str, str, list[Item]] | None:
        """What a file of items holds: its namespace, its tenant, the items, those that have expired, too."""
        stored = self._load_sealed(path, _Items)
        return (stored.namespace, stored.tenant, [_item(value) for value in stored.items]) if stored else None

    def _save_items(self, tenant: str, namespace: str, items: Iterable[Item]) -> None:
        path = self._items_file(tenant, namespace)
        values = [_value(item) for item in items]
        if values:
            self._save_sealed(path, _Items(tenant=tenant, namespace=namespace, items=values))
        elif remove(path):
            self._disk.sync_folder(self._items_folder(tenant))

    def _get_item(self, tenant: str, namespace: str, key: str) -> Item | None:
        with self._holding():
            item = self._load_items(tenant, namespace).get(key)
            return item if item is not None and _lives(item, self._clock()) else None

    def _put_item(
        self, tenant: str, namespace: str, key: str, value: bytes, expires: int | None, expect: int | None
    ) -> Item:
        with self._holding(write=True):
            folder = self._items_folder(tenant)
            self._disk.make_folder(folder)
            with self._disk.locked(folder):
                items = self._load_items(tenant, namespace)
                before = items.get(key)
                if before is not None and not _lives(before, self._clock()):
                    del items[key]  # its key comes anew, at the end
                    before = None
                version = before.version if before else 0
                if expect is not None and expect != version:
                    raise Conflict(f"item {namespace}/{key}", f"has version {version}, not {expect}: read it again")
                item = items[key] = Item(key=key, value=value, version=version + 1, expires=expires)
                self._save_items(tenant, namespace, items.values())
                return item

    def _delete_item(self, tenant: str, namespace: str, key: str) -> bool:
        with self._holding(write=True):
            if not names(self._items_folder(tenant)):
                return False
            with self._disk.locked(self._items_folder(tenant)):
                items = self._load_items(tenant, namespace)
                item = items.get(key)
                if item is None or not _lives(item, self._clock()):
                    return False
                del items[key]
                self._save_items(tenant, namespace, items.values())
                return True

    def _list_items(self, tenant: str, namespace: str) -> list[Item]:
        with self._holding():
            now = self._clock()
            return [item for item in self._load_items(tenant, namespace).values() if _lives(item, now)]

    def _clear_items(self, tenant: str, dry_run: bool) -> dict[str, int]:
        """As the seam says. What killed writers have left of the tenant's items goes, too."""
        folder, there = self._items_folder(tenant), dict[str, int]()
        with self._holding(write=not dry_run):
            if names(folder):
                with self._disk.locked(folder):
                    for path in (f"{folder}/{name}" for name in names(folder)):
                        stored = None if path.endswith(NEW) else self._load_sealed(path, _Items)
                        if stored is not None:
                            there[stored.namespace] = len(stored.items)
                        if not dry_run:
                            remove(path)
                    self._disk.sync_folder(folder)
            if not dry_run and os.path.exists(f"{self.path}/leases.json"):
                with self._disk.locked(self.path):
                    self._end_leases(tenant)
        return dict(sorted(there.items()))

    def _end_leases(self, tenant: str) -> None:
        path = f"{self.path}/leases.json"
        stored = self._load_sealed(path, _Leases) or _Leases()
        self._save_sealed(
            path, _Leases(fence=stored.fence, leases=[one for one in stored.leases if one.tenant != tenant])
        )

    def _sweep_items(self, folder: str, now: int) -> int:
        """Remove what has expired from all namespaces of a tenant, and what killed writers have left."""
        swept = 0
        folder += "/items"
        if names(folder):
            with self._disk.locked(folder):
                for name in names(folder):
                    if name.endswith(NEW):
                        remove(f"{folder}/{name}")
                        continue
                    stored = self._load_sealed(f"{folder}/{name}", _Items)
                    items = [_item(value) for value in stored.items] if stored else []
                    left = [item for item in items if _lives(item, now)]
                    if stored is not None and len(left) < len(items):
                        self._save_items(stored.tenant, stored.namespace, left)
                        swept += len(items) - len(left)
        return swept

    # --- leases

    def _lease(self, tenant: str, name: str, holder: str, seconds: float, fence: int | None) -> int | None:
        path = f"{self.path}/leases.json"
        with self._holding(write=True), self._disk.locked(self.path):
            now = self._clock()
            stored = self._load_sealed(path, _Leases) or _Leases()
            held = {(lease.tenant, lease.name): lease for lease in stored.leases if lease.until > now}
            lease = held.get((tenant, name))
            if fence is not None:
                if lease is None or lease.holder != holder or lease.fence != fence:
                    return None
            elif lease is not None:
                if lease.holder != holder:
                    return None
                fence = lease.fence
            else:
                fence = stored.fence = stored.fence + 1
            held[tenant, name] = _Lease(tenant, name, holder, now + int(seconds * 1_000_000), fence)
            self._save_sealed(path, _Leases(fence=stored.fence, leases=list(held.values())))
            return fence


def _lives(item: Item, now: int) -> bool:
    return item.expires is None or item.expires > now


def _value(item: Item) -> _Value:
    try:
        text, base64 = item.value.decode(), None
    except UnicodeDecodeError:
        text, base64 = None, b64encode(item.value).decode()
    return _Value(key=item.key, version=item.version, expires=item.expires, text=text, base64=base64)


def _item(value: _Value) -> Item:
    content = value.text.encode() if value.text is not None else b64decode(value.base64 or "")
    return Item(key=value.key, value=content, version=value.version, expires=value.expires)
