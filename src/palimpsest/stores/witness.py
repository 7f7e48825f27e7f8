"""Who is asked, in the very step that commits it, about each head, record and tombstone that a store makes.

A store by itself asks nobody, which is what `Witness` is. An encrypted store has the store below it ask for what only
somebody with the keys can make: see `palimpsest.stores.encrypted.notary`.
"""

from __future__ import annotations

from collections.abc import Sequence

from palimpsest.log.change import Change, Record
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.withdrawal import tombstone


class Witness:
    """Takes everything as it is."""

    def head(self, key: SessionKey, before: Head | None, after: Head) -> Head:
        """The head to be stored, for `after` in the place of `before` (None, or one of revision 0: there is none).

        May change `after` itself. Whatever it raises undoes the step.
        """
        return after

    def changed(
        self,
        key: SessionKey,
        before: Head,
        after: Head,
        change: Change,
        known: Sequence[Record],
        made: Sequence[Record],
    ) -> tuple[Head, list[Record]]:
        """The head, which still goes through `head`, and the records to be stored after a change.

        `known` are the stored records that were looked at, `made` those to be stored: the change's own, and others in
        the place of known ones.
        """
        return after, list(made)

    def grave(self, entry: Entry) -> Entry:
        """The tombstone of an entry, as it is stored."""
        return tombstone(entry)

    def is_grave(self, id: str, seq: int) -> bool:
        """Whether what is stored as the tombstone of this entry is one. Else an erasure makes it anew."""
        return True


NOBODY = Witness()
