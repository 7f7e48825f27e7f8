"""What of a log was erased or written anew, in a few bytes of its head: so an old row is known in the place of its new.

An entry, or a record, that was never written anew needs no line here. One that was has a token of the step that did it:
the token is part of what its row is bound to, so that only the row of that step can be read.
"""

from __future__ import annotations

import binascii
import os
from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from palimpsest.log import spans
from palimpsest.log.head import Seal

TOKEN = 6
"""Bytes of a step's token: of few steps that write the same rows anew no two have the same."""

_NONE: Mapping[int, str] = {}


class Ledger:
    """The places of tombstones, and by place the tokens of entries and of records that were written anew."""

    __slots__ = ("entries", "graves", "records")

    def __init__(
        self, graves: Iterable[int] = (), entries: Mapping[int, str] = _NONE, records: Mapping[int, str] = _NONE
    ) -> None:
        self.graves, self.entries, self.records = set(graves), dict(entries), dict(records)

    @classmethod
    def of(cls, seal: Seal) -> Ledger:
        """What a seal says. Raises ValueError where it is none of ours."""
        return cls(_places(seal.graves), _by_place(seal.anew), _by_place(seal.told))

    def bury(self, seqs: Collection[int]) -> None:
        """Note tombstones."""
        self.graves.update(seqs)
        for seq in seqs:
            self.entries.pop(seq, None)

    def write_anew(self, token: str, entries: Iterable[int], records: Iterable[int]) -> None:
        """Note what a step writes anew."""
        self.entries.update(dict.fromkeys(entries, token))
        self.records.update(dict.fromkeys(records, token))

    def copy(self) -> Ledger:
        """One that says the same."""
        return Ledger(self.graves, self.entries, self.records)

    def up_to(self, next_seq: int, revision: int) -> Ledger:
        """The part that a branch takes over."""
        return Ledger(
            (seq for seq in self.graves if seq < next_seq),
            {seq: token for seq, token in self.entries.items() if seq < next_seq},
            {number: token for number, token in self.records.items() if number <= revision},
        )

    def put_into(self, seal: Seal, *, last: int | None = None) -> Seal:
        """The seal that says this; with `last` as the revision of the newest record."""
        return msgspec.structs.replace(
            seal,
            graves=_written(self.graves),
            anew=_by_token(self.entries),
            told=_by_token(self.records),
            last=seal.last if last is None else last,
        )


def new_token() -> str:
    """A token that no step before has had."""
    return binascii.b2a_base64(os.urandom(TOKEN), newline=False).decode()


def _by_token(tokens: Mapping[int, str]) -> dict[str, str]:
    places: dict[str, list[int]] = {}
    for place, token in tokens.items():
        places.setdefault(token, []).append(place)
    return {token: _written(places[token]) for token in sorted(places)}


def _by_place(places: Mapping[str, str]) -> dict[int, str]:
    return {place: token for token, written in places.items() for place in _places(written)}


def _written(places: Collection[int]) -> str:
    """Places as text: of each run the distance from the one before, and how much longer than one it is."""
    if not places:
        return ""
    out, end = bytearray(), 0
    for low, high in spans.of(places):
        _put(out, low - end)
        _put(out, high - low)
        end = high
    return binascii.b2a_base64(bytes(out), newline=False).decode()


def _places(written: str) -> Iterator[int]:
    numbers, end = _numbers(binascii.a2b_base64(written)), 0
    for gap, more in zip(numbers, numbers, strict=True):
        low, end = end + gap, end + gap + more
        yield from range(low, end + 1)


def _put(out: bytearray, number: int) -> None:
    """Seven bits a byte, the lowest first."""
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


def _numbers(raw: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in raw:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield number
            number = shift = 0
