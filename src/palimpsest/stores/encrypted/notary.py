"""What makes heads, records and tombstones of an encrypted store authentic, and looks whether they are.

Each has a keyed hash (BLAKE2b, 128 bits) of all that stands in it, with whose it is. A head's binds the log's own mark
(`Seal.log`), which is part of what every entry and record of the log is bound to, the newest record, and the ledger of
what was erased or written anew. A record's binds the record before it. So one head vouches for everything below it,
and none of it has to be read for that. Stores ask for it in the step that commits, see `palimpsest.stores.witness`.
"""

from __future__ import annotations

import contextlib
import hmac
import os
from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec

from palimpsest.log import spans
from palimpsest.log.change import Change, Record
from palimpsest.log.codec import decoded, encoded
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, Seal, SessionKey
from palimpsest.log.withdrawal import tombstone
from palimpsest.stores.encrypted import forms
from palimpsest.stores.encrypted.forms import Lineage
from palimpsest.stores.encrypted.ledger import Ledger, new_token
from palimpsest.stores.encrypted.mark import Markings
from palimpsest.stores.encrypted.sealing import Sealer, Unsealed, joined
from palimpsest.stores.witness import Witness

KEPT = 4096
"""Heads, and marks of logs to come, that are remembered at once."""

_set = msgspec.structs.force_setattr
_replace = msgspec.structs.replace


def new_log() -> str:
    """A mark that no log has had."""
    return os.urandom(12).hex()


class Notary(Witness):
    """Attests what a store commits, and checks what it gives. What it raises names what is not as it was."""

    def __init__(
        self, url: str, sealer: Sealer, markings: Markings, lineage: Callable[[SessionKey, Head], Lineage]
    ) -> None:
        self._url, self._sealer, self._markings, self._lineage = url, sealer, markings, lineage
        self._fresh: dict[SessionKey, str] = {}
        self._own: dict[SessionKey, Head] = {}
        self._aside: dict[tuple[str, int], Entry] = {}

    def begin(self, key: SessionKey) -> str:
        """The mark of a log that is about to come into being: the same until it has."""
        if len(self._fresh) >= KEPT:
            self._fresh.clear()
        return self._fresh.setdefault(key, new_log())

    def take_over(self, asked: Witness) -> None:
        """Come in the place of whoever the store has asked so far, and know the logs that begin with it."""
        if isinstance(asked, Notary):
            self._fresh = asked._fresh  # noqa: SLF001 (it is of this class)

    # --- what a store asks

    def head(self, key: SessionKey, before: Head | None, after: Head) -> Head:
        if after is before:
            return after
        if before is not None and not _is_none(before):
            self._vouch(key, before)
        if after.seal is None:
            _set(after, "seal", Seal(log=self._fresh.get(key, "") or new_log()))
        _set(after, "mac", "")  # nobody else has it yet: cheaper than two copies
        _set(after, "mac", self._head_mac(key, after, self._markings.writing))
        if len(self._own) >= KEPT:
            self._own.clear()
        self._own[key] = after
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
        seal, ledger, lineage = before.seal or Seal(log=self.begin(key)), Ledger(), Lineage()
        if not _is_none(before):
            self._vouch(key, before)
            ledger, lineage = Ledger.of(seal), self._lineage(key, before)
        for one in known:
            try:
                self.check_record(key, one, forms.log_of(lineage, seal.log, revision=one.revision), ledger)
            except Unsealed as fault:
                told = f"the record of revision {one.revision} of session {key.session!r}"
                raise fault.told(self._url, told) from None
        last = seal.last
        if change.kind == "clear":
            ledger, last, seal = Ledger(), 0, _replace(seal, log=new_log())  # nothing of before is of it any more
        elif change.kind == "erase":
            after = _counted(before, after, set(change.seqs) - ledger.graves)
            ledger.bury(change.seqs)
        records, token = [], new_token()
        for one in made:
            record = decoded(encoded(one), Record)  # as it will be read again
            if record.revision < after.revision:
                ledger.records[record.revision] = token
            else:
                record = _replace(record, before=last)
                last = record.revision
            log = forms.log_of(lineage, seal.log, revision=record.revision)
            records.append(self.sealed_record(key, record, log, ledger))
        return _replace(decoded(encoded(after), Head), seal=ledger.put_into(seal, last=last)), records

    def grave(self, entry: Entry) -> Entry:
        grave = tombstone(self._aside.get((entry.id, entry.seq), entry))
        _set(grave, "content", self._grave_mac(grave, self._markings.writing))
        return grave

    def is_grave(self, id: str, seq: int) -> bool:
        return (id, seq) not in self._aside

    @contextlib.contextmanager
    def burying(self, damaged: Sequence[Entry]) -> Iterator[None]:
        """While this lasts, these stand for what is stored under their ids: the erasure buries them in its place."""
        places = {(entry.id, entry.seq): entry for entry in damaged}
        self._aside.update(places)
        try:
            yield
        finally:
            for place in places:
                self._aside.pop(place, None)

    # --- heads

    def check_head(self, key: SessionKey, head: Head) -> Seal:
        """Return the seal of a stored head. Raises Unsealed where anything of it is not as it was committed."""
        if head.seal is None:
            raise Unsealed("is not authenticated, though its store is encrypted: it was not written with these keys")
        if head is not self._own.get(key):
            bare = _replace(head, mac="")
            self._same(head.mac, lambda key_id: self._head_mac(key, bare, key_id))
        if self._fresh and self._fresh.get(key) == head.seal.log:
            self._fresh.pop(key, None)  # not in the step that commits it: that may be undone, and done again
        return head.seal

    def _vouch(self, key: SessionKey, head: Head) -> None:
        try:
            self.check_head(key, head)
        except Unsealed as fault:
            raise fault.told(self._url, f"the head of session {key.session!r}") from None

    def _head_mac(self, key: SessionKey, bare: Head, key_id: str) -> str:
        return self._hash(key_id, ("head", *key), encoded(bare))

    # --- records

    def sealed_record(self, key: SessionKey, record: Record, log: str, ledger: Ledger) -> Record:
        """The record as it is stored in the log of this mark."""
        bare = _replace(record, mac="")
        return _replace(record, mac=self._record_mac(key, bare, log, ledger, self._markings.writing))

    def check_record(self, key: SessionKey, record: Record, log: str, ledger: Ledger) -> None:
        """Raise Unsealed unless a record is as it was stored last in the log of this mark."""
        bare = _replace(record, mac="")
        self._same(record.mac, lambda key_id: self._record_mac(key, bare, log, ledger, key_id))

    def _record_mac(self, key: SessionKey, bare: Record, log: str, ledger: Ledger, key_id: str) -> str:
        token = ledger.records.get(bare.revision, "")
        return self._hash(key_id, ("record", key.tenant, log, str(bare.revision), token), encoded(bare))

    # --- tombstones

    def check_grave(self, entry: Entry, *, erased: bool = True) -> None:
        """Raise Unsealed unless a tombstone is as an erasure has made it, of what the log has as `erased`."""
        if not entry.erased:
            raise Unsealed("was erased, and somebody has put it back")
        if not erased:
            raise Unsealed("is erased, and its session's head knows of no erasure")
        mac = entry.content if isinstance(entry.content, str) else ""
        self._same(mac, lambda key_id: self._grave_mac(tombstone(entry), key_id))

    def is_old(self, mac: object) -> bool:
        """Whether a hash is under another key than what is written."""
        return not (isinstance(mac, str) and mac.startswith(f"{self._markings.writing}:"))

    def _grave_mac(self, grave: Entry, key_id: str) -> str:
        return self._hash(key_id, ("grave", grave.id, str(grave.seq)), encoded(forms.clear_fields(grave)))

    # --- hashes

    def _hash(self, key_id: str, whose: tuple[str, ...], body: bytes) -> str:
        return f"{key_id}:{self._sealer.mac(key_id, joined(whose), body)}"

    def _same(self, mac: str, made: Callable[[str], str]) -> None:
        key_id, colon, _ = mac.partition(":")
        if not colon or not hmac.compare_digest(made(key_id).encode(), mac.encode("utf-8", "surrogatepass")):
            raise Unsealed("is not as it was committed: it was changed, or comes from another place or time")


def _is_none(head: Head) -> bool:
    """Whether a head stands for a session that is not there yet."""
    return not head.revision and head.seal is None


def _counted(before: Head, after: Head, new: Collection[int]) -> Head:
    """The head after an erasure that counts what is erased by it, and nothing that was, and somebody has put back."""
    erased = before.erased + len(new)
    if after.erased == erased:
        return after
    hidden = sum(spans.within(before.rewound, seq) for seq in new)
    return _replace(after, erased=erased, hidden=before.hidden - hidden)
