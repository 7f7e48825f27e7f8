r"""The lines of a session's log: how they are written, checked and read. Pure.

    {"kind":"session","tenant":…,"session":…,"family":…,"file":…,"sum":"…"}
    {"revision":1,"seq":1,"kind":"append","at":…,"entries":[…],"head":{…},"sum":"…"}
    {"revision":2,"seq":3,"kind":"cut","at":…,"record":{…},"head":{…},"sum":"…"}

`seq` is the first place that the line has, or that the next entry will have; it never falls from line to line, nor
does `revision`. `sum` is BLAKE2b, 64 bits, of all bytes before it. Lines that were copied may lack their `head`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Any

import msgspec

from palimpsest.log.change import Record
from palimpsest.log.codec import decoded, encoded, unescaped
from palimpsest.log.entry import Entry, unpack
from palimpsest.log.head import Head, SessionKey
from palimpsest.stores import large

_SUM = b',"sum":"'
_TAIL = len(_SUM) + 16 + len(b'"}\n')
_BEGINNING = re.compile(rb'\{"revision":(\d+),"seq":(\d+),"kind":"([a-z]+)"')

_NAMED = re.compile(rb'\{"id":"([0-9A-Za-z_.:-]{1,256})","seq":(\d{1,16})[,}]')


def seal(body: bytes) -> bytes:
    """Make a line of a JSON object that still lacks its closing brace."""
    return b'%b%b%b"}\n' % (body, _SUM, _sum(body))


def is_sound(raw: bytes) -> bool:
    """Whether these bytes are a line as it was written."""
    return raw[-_TAIL : -_TAIL + len(_SUM)] == _SUM and raw[-3:] == b'"}\n' and raw[-19:-3] == _sum(raw[:-_TAIL])


def is_torn(raw: bytes) -> bool:
    """Whether the last piece of a log is what an interrupted write leaves: no end, or blocks of zeros.

    Nothing else is: a line that has its end, and other bytes than it was written with, was damaged later.
    """
    if raw.endswith(b"\n"):
        return raw.startswith(b"\0") or b"\0\0" in raw
    return not is_sound(raw[:-1] + b"\n")


def _sum(body: bytes) -> bytes:
    return blake2b(body, digest_size=8).hexdigest().encode()


# --- lines


class Header(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="session"):
    """A log's first line: whose it is, the family of its branches, and a mark that every new file has anew."""

    tenant: str
    session: str
    family: str
    file: str

    @property
    def key(self) -> SessionKey:
        """Whose log it is."""
        return SessionKey(self.tenant, self.session)

    def line(self) -> bytes:
        """The line that it is."""
        return seal(encoded(self)[:-1])


def new_header(key: SessionKey, family: str | None = None) -> Header:
    """The first line of a new file of the session."""
    file = os.urandom(8).hex()
    return Header(tenant=key.tenant, session=key.session, family=family or file, file=file)


class Body(msgspec.Struct):
    """What a line holds, each part as JSON."""

    at: int = 0
    entries: list[msgspec.Raw] = []
    record: msgspec.Raw = msgspec.Raw()
    head: msgspec.Raw = msgspec.Raw()


class Line:
    """A line at its place in the file. One that is not sound has no `revision`, `seq` or `kind`."""

    __slots__ = ("kind", "offset", "raw", "revision", "seq", "sound")

    def __init__(self, offset: int, raw: bytes) -> None:
        self.offset, self.raw, self.sound = offset, raw, is_sound(raw)
        self.revision, self.seq, self.kind = 0, 0, ""
        if self.sound and (begins := _BEGINNING.match(raw)):
            self.revision, self.seq, self.kind = int(begins[1]), int(begins[2]), begins[3].decode()

    @property
    def end(self) -> int:
        """Where the next line begins."""
        return self.offset + len(self.raw)

    def body(self) -> Body:
        """What the line holds. Raises ValueError where it is none of ours."""
        try:
            return _decode_body(self.raw)
        except msgspec.DecodeError:
            parts = unescaped(self.raw, dict)
            entries = [_raw(entry) for entry in parts.get("entries", ())]
            rest = {name: _raw(parts[name]) for name in ("record", "head") if name in parts}
            return Body(parts["at"], entries, **rest)

    def without_head(self, body: Body) -> bytes | None:
        """The same line without its head, or None where it must be written anew for that."""
        head = b',"head":' + bytes(body.head)
        cut = len(self.raw) - _TAIL - len(head)
        return seal(self.raw[:cut]) if self.raw[cut:-_TAIL] == head else None

    def may_be_record(self) -> bool:
        """Whether a damaged line may hold a record: not one that still begins as an append."""
        begins = _BEGINNING.match(self.raw)
        return begins is None or begins[3] != b"append"

    def ids(self) -> dict[int, str]:
        """The ids of entries, by place, as far as a damaged line still says them."""
        return {int(seq): id.decode() for id, seq in _NAMED.findall(self.raw)}

    def holds(self) -> str:
        """What the line seems to hold, for an error about it."""
        begins = _BEGINNING.match(self.raw)
        if begins is None:
            return "what it holds cannot be told"
        return f"revision {begins[1].decode()}, {begins[3].decode()} at entry {begins[2].decode()}"


_decode_body = msgspec.json.Decoder(Body).decode


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(encoded(value))


def write_line(
    kind: str,
    revision: int,
    seq: int,
    at: int,
    *,
    entries: Iterable[bytes | msgspec.Raw] = (),
    record: Record | msgspec.Raw | None = None,
    head: Head | None = None,
) -> bytes:
    """Make a line."""
    parts = [b'{"revision":%d,"seq":%d,"kind":"%b","at":%d' % (revision, seq, kind.encode(), at)]
    if together := b",".join(map(bytes, entries)):
        parts += b',"entries":[', together, b"]"
    if record is not None:
        parts += b',"record":', encoded(record)
    if head is not None:
        parts += b',"head":', encoded(head)
    return seal(b"".join(parts))


# --- the entries of a line


class Spot(msgspec.Struct):
    """An entry without its content: its id and place, whether it is erased, when it expires, what is kept apart."""

    id: str
    seq: int
    erased: bool = False
    damaged: bool = False
    expires_at: datetime | None = None
    held: list[list[Any]] | None = None

    @property
    def contents(self) -> list[str]:
        """SHA-256 of the contents that are kept apart."""
        return [place[-1] for place in self.held or ()]


_decode_spot = msgspec.json.Decoder(Spot).decode


def spot(raw: msgspec.Raw) -> Spot:
    """Where an entry of a line is."""
    try:
        return _decode_spot(raw)
    except msgspec.DecodeError:
        return decoded(bytes(raw), Spot)


def with_place(id: str, seq: int, body: bytes) -> bytes:
    """An entry as it stands in a line: the stored form of `palimpsest.log.entry.pack` with its id and place."""
    return b'{"id":%b,"seq":%d%b%b' % (encoded(id), seq, b"," if len(body) > 2 else b"", body[1:])


def read_entry(raw: msgspec.Raw, at: Spot, tokens: int | None, load: Callable[[str], bytes]) -> Entry:
    """The entry of a line; `load` gives a content by its SHA-256. Raises ValueError where it is none of ours."""
    body = bytes(raw)
    if at.held is not None:
        body = large.filled(decoded(body, dict), load)
    return unpack(body, at.id, at.seq, tokens)


def spots(raws: Sequence[msgspec.Raw]) -> list[tuple[Spot, msgspec.Raw]]:
    """The entries of a line with their places."""
    return [(spot(raw), raw) for raw in raws]
