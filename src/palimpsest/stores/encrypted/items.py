"""Items of an encrypted store: the key is a token below, the value a ciphertext of key and value."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from palimpsest.stores import Item
from palimpsest.stores.encrypted.forms import to_bytes
from palimpsest.stores.encrypted.mark import Markings
from palimpsest.stores.encrypted.sealing import Box, Sealer, Unsealed, sealed_under, token
from palimpsest.stores.rewriting import Rewritable

Change = Callable[[str, Item], Item]
"""From namespace and item to what comes in its place."""

_replace = msgspec.structs.replace


class Items:
    """Seals and opens the items of the store at `url`."""

    def __init__(self, url: str, sealer: Sealer, markings: Markings) -> None:
        self._url, self._sealer, self._markings = url, sealer, markings

    def box(self, tenant: str) -> Box:
        """What seals and opens the items of a tenant."""
        return self._sealer.box(("items", tenant), self._markings.writing)

    def name(self, tenant: str, namespace: str, key: str) -> str:
        """What stands for a key in the store below."""
        return token(self._markings.secret, tenant, namespace, key)

    def sealed(self, box: Box, namespace: str, name: str, item: Item) -> bytes:
        """The stored value of an item, which has the version that it will have."""
        given = to_bytes(item.key)
        content = b"%d:%b%b" % (len(given), given, item.value)
        return box.seal(_place(namespace, name, item), content).encode("ascii")

    def opened(self, tenant: str, namespace: str, stored: Item) -> Item:
        """The item that was stored. Raises StoreCorrupt where it was changed, WrongKey."""
        try:
            content = self.box(tenant).open(
                _place(namespace, stored.key, stored), stored.value.decode("ascii", "replace")
            )
        except Unsealed as fault:
            raise fault.told(self._url, f"the item {stored.key} of namespace {namespace!r}") from None
        size, _, rest = content.partition(b":")
        end = int(size)
        return _replace(stored, key=rest[:end].decode("utf-8", "surrogatepass"), value=rest[end:])

    async def rewrite(self, below: Rewritable, tenant: str, how: Change) -> int:
        """Rewrite the tenant's items, opened, in the store below; return how many were rewritten."""
        box = self.box(tenant)

        def change(namespace: str, stored: Item) -> Item:
            item = self.opened(tenant, namespace, stored)
            new = how(namespace, item)
            if new is item:
                return stored
            return _replace(stored, value=self.sealed(box, namespace, stored.key, _replace(item, value=new.value)))

        return await below.rewrite_items(tenant, change)

    async def seal_anew(self, below: Rewritable, tenant: str) -> int:
        """Bring the tenant's items under the key that is written with; return how many were under another."""
        box, changed = self.box(tenant), 0

        def anew(namespace: str, stored: Item) -> Item:
            if sealed_under(stored.value.decode("ascii", "replace")) == box.key_id:
                return stored
            item = self.opened(tenant, namespace, stored)
            return _replace(stored, value=self.sealed(box, namespace, stored.key, item))

        while more := await below.rewrite_items(tenant, anew):  # what others put meanwhile is looked at once more
            changed += more
        return changed


def _place(namespace: str, name: str, item: Item) -> str:
    return f"item {name} {item.version} {item.expires} {namespace}"
