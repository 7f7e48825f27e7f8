r"""The lines of a home's log: how batches are written, checked and read. Pure.

    {"kind":"home","tenant":…,"home":…,"sum":"…"}
    {"at":…,"steps":[{"space":"session","name":"one","hot":98},{"space":"log","put":{"entry":[[1,87]]}}],
        "frame":"…","values":[[7,…],"9f2c41d0",{"role":"user",…},"1a2b3c4d"],"sum":"…"}

`at` is in seconds since 1970. `steps` say what the batch does, and how many bytes each value has that stands behind
them: first those of heads, then those of rows, which are `[key, bytes, id, expires]`. A value is JSON and what follows
it, eight characters, which is the checksum of whoever gave it. Other text is a string, and the eight characters are a
CRC-32 of ours: its bytes are counted below zero. Other bytes are a string in base64: who seals, or knows a digest, has
a checksum in them.

`sum` is BLAKE2b, 64 bits, of all bytes before it. `frame` is a CRC-32 of the steps and the heads: where that holds and
`sum` does not, only a row can be another, and who reads that finds out. A batch that is `fleeting` goes then.
One that `destroys` leaves no byte of what it replaced or dropped: the log is to be written anew.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple
from zlib import crc32

import msgspec

from palimpsest.stores.backend import Batch, Cells, Place, PlaceHead, Refusal, Step
from palimpsest.stores.rules import refused

_SUM = b',"sum":"'
TAIL = len(_SUM) + 16 + len(b'"}\n')
"""Bytes at the end of each line that no other line has."""

LONGEST, FARTHEST = (1 << 28) - 1, (1 << 35) - 1
"""Bytes that a row's value may have as it stands in a line, and a log: an index has no room for more."""

_FRAME, _VALUES = b',"frame":"', b'","values":['
_CHECK = len(b',"12345678"')
_FRAMES = re.compile(rb',"frame":"[0-9a-f]{8}","values":\[')

_encode = msgspec.json.encode
_read_json = msgspec.json.Decoder(msgspec.Raw).decode
_read_text = msgspec.json.Decoder(str).decode


def seal(body: bytes) -> bytes:
    """Make a line of a JSON object that still lacks its closing brace."""
    return b'%b%b%b"}\n' % (body, _SUM, _sum(body))


def is_sound(raw: bytes) -> bool:
    """Whether these bytes are a line as it was written."""
    return raw[-TAIL : -TAIL + len(_SUM)] == _SUM and raw[-3:] == b'"}\n' and raw[-19:-3] == _sum(raw[:-TAIL])


def is_torn(raw: bytes) -> bool:
    """Whether the last piece of a log is what an interrupted write leaves: no end, or blocks of zeros.

    Nothing else is: a line that has its end, and other bytes than it was written with, was damaged later.
    """
    if raw.endswith(b"\n"):
        return raw.startswith(b"\0") or b"\0\0" in raw
    return not is_sound(raw[:-1] + b"\n")


def _sum(body: bytes) -> bytes:
    return blake2b(body, digest_size=8).hexdigest().encode()


class TooLong(ValueError):
    """What is to be written has more bytes than an index has room for."""


# --- values


def shown(value: bytes) -> tuple[bytes, int]:
    """A value as it stands in a line, and how many bytes that are, below zero where its checksum is ours."""
    if value[:1] in (b"{", b"[") and value[-9:-8] in (b"}", b"]"):
        body, tail = value[:-8], value[-8:]
        if tail.isalnum() and _is_json(body):
            text = b'%b,"%b"' % (body, tail)
            return text, len(text)
    try:
        body = _encode(value.decode())
    except UnicodeDecodeError:
        text = b'"%b"' % b64encode(value)
        return text, len(text)
    text = b'%b,"%08x"' % (body, crc32(body))
    return text, -len(text)


def value_of(text: bytes, ours: bool) -> bytes:
    """The value that `shown` has written. Raises ValueError where our checksum tells that it is another."""
    body, tail = text[:-_CHECK], text[2 - _CHECK : -1]
    if ours:
        if int(tail, 16) != crc32(body):
            raise ValueError("its checksum is another")
        return _read_text(body).encode()
    if text[:1] != b'"':
        return body + tail
    try:
        return b64decode(text[1:-1])
    except ValueError:  # it was changed, which is for whoever gave it to find out
        return text


def _is_json(body: bytes) -> bool:
    """Whether these bytes can stand in a line as they are."""
    try:
        body.decode()
        _read_json(body)
    except (UnicodeDecodeError, msgspec.DecodeError):
        return False
    return b"\n" not in body


# --- lines


class HomeLine(msgspec.Struct, frozen=True, tag_field="kind", tag="home"):
    """A log's first line: whose it is."""

    tenant: str
    home: str

    def line(self) -> bytes:
        """The line that it is."""
        return seal(_encode(self)[:-1])


class RowLine(NamedTuple):
    """A row: its key, the bytes of its value, its id and when it expires."""

    key: int
    size: int
    id: str = ""
    expires: int | None = None


class StepLine(msgspec.Struct, omit_defaults=True):
    """What a batch does to one place. The head stays as it is unless it has a `hot` value, or is `gone`.

    `at` is when the head was written, where that is not when the line was.
    """

    space: str
    name: str = ""
    hot: int = 0
    cold: int = 0
    expires: int | None = None
    gone: bool = False
    at: int | None = None
    drop: Sequence[tuple[str, int, int]] = ()
    put: dict[str, list[RowLine]] = {}


class BatchLine(msgspec.Struct, omit_defaults=True):
    """A batch: when it was written, its steps, whether it may be lost, and whether no byte of what goes may stay."""

    at: int
    steps: list[StepLine]
    fleeting: bool = False
    destroys: bool = False


class Writing:
    """Batches as lines, which are made one after the other: a line has what was added since the one before."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.steps: list[StepLine] = []
        self._heads: list[bytes] = []
        self._rows: list[bytes] = []

    def head(self, step: StepLine, hot: bytes, cold: bytes | None) -> None:
        """Give a step these values of a head; without `cold` that one stays."""
        text, step.hot = shown(hot)
        self._heads.append(text)
        if cold is not None:
            text, step.cold = shown(cold)
            self._heads.append(text)

    def row(self, row: Cells) -> RowLine:
        """A row with the value that it has."""
        key, value, id, expires = row
        text, size = shown(value)
        if len(text) > LONGEST:
            raise TooLong(f"a value of {len(text):,} bytes, as it would stand there, is longer than {LONGEST:,}")
        return self.shown(RowLine(key, size, id, expires), text)

    def shown(self, row: RowLine, text: bytes) -> RowLine:
        """A row whose value stands in a line like this."""
        self._rows.append(text)
        if row.expires is None:
            return (row.key, row.size, row.id) if row.id else (row.key, row.size)  # type: ignore[return-value]
        return row

    def line(self, at: int, *, fleeting: bool = False, destroys: bool = False) -> bytes:
        """The line of what was added."""
        body = _encode(BatchLine(at, self.steps, fleeting, destroys))[:-1]
        frame = crc32(b",".join(self._heads), crc32(body))
        values = b",".join(self._heads + self._rows)
        self._begin()
        return seal(b"%b%b%08x%b%b]" % (body, _FRAME, frame, _VALUES, values))


_read_home = msgspec.json.Decoder(HomeLine).decode
_read_batch = msgspec.json.Decoder(BatchLine).decode


def read_home(raw: bytes) -> HomeLine | None:
    """What a log's first line says; None where it is not as it was written."""
    try:
        return _read_home(raw) if is_sound(raw) else None
    except msgspec.DecodeError:
        return None


def read_batch(raw: bytes, sound: bool) -> tuple[BatchLine, int] | None:
    """What a line says, and where its values begin; None where it cannot be read, or more than a row was changed."""
    cut = raw.find(_FRAME)
    if not sound and len(_FRAMES.findall(raw)) != 1:  # the break between two lines was changed
        return None
    begin = cut + len(_FRAME) + 8 + len(_VALUES)
    try:
        batch = _read_batch(raw[:cut] + b"}")
        if not sound:
            sizes = [abs(size) + 1 for step in batch.steps for size in (step.hot, step.cold) if size]
            heads = raw[begin : begin + max(sum(sizes) - 1, 0)]
            if int(raw[begin - len(_VALUES) - 8 : begin - len(_VALUES)], 16) != crc32(heads, crc32(raw[:cut])):
                return None
            _stretch(batch, raw, begin + sum(sizes))
    except (ValueError, msgspec.DecodeError):
        return None
    return batch, begin


def is_fleeting(raw: bytes) -> bool:
    """Whether what cannot be read is one line, of a batch that may be lost: it says so right before its only frame."""
    frames = [found.start() for found in _FRAMES.finditer(raw)]
    return len(frames) == 1 and raw[: frames[0]].endswith(b'],"fleeting":true')


def _stretch(batch: BatchLine, raw: bytes, at: int) -> None:
    """Give the row that became longer or shorter the bytes that it has now, so that those behind it are found."""
    several = [rows for step in batch.steps for rows in step.put.values()]
    end = raw.rfind(b"]" + _SUM)
    more = end + 1 - at - sum(abs(row.size) + 1 for rows in several for row in rows)
    for some, i in ((rows, i) for rows in several for i in range(len(rows)) if more and end > 0):
        size = abs(some[i].size)
        if raw[at + size - 1 : at + size + 1] not in (b'",', b'"]'):
            some[i] = some[i]._replace(size=max(size + more, 0) * (1 if some[i].size > 0 else -1))
            return
        at += size + 1


# --- what is written in one step


class Change:
    """What is written to one home in one step: which batches are done, and their lines.

    `head` gives the head that a place has before, by space and name.
    """

    def __init__(self, head: Callable[[str, str], PlaceHead | None], lasting: bool) -> None:
        self._head_before, self._lasting = head, lasting
        self.batches: list[Batch] = []
        self._heads: dict[Place, PlaceHead | None] = {}

    def take(self, batch: Batch) -> Refusal | None:
        """Take a batch whose heads are as expected; else return those that are there."""
        heads = [None if step.rows_only else self._head(step.place) for step in batch]
        if (refusal := refused(batch, heads)) is not None:
            return refusal
        if any(map(_does_something, batch)):
            self._heads.update(
                (step.place, step.after(head)) for step, head in zip(batch, heads, strict=True) if step.moves
            )
            self.batches.append(batch)
        return None

    @property
    def destroys(self) -> bool:
        """Whether no byte of what goes by it may stay."""
        return any(map(_destroys, self.batches))

    def _head(self, place: Place) -> PlaceHead | None:
        return self._heads[place] if place in self._heads else self._head_before(place.space, place.name)

    @property
    def lasts(self) -> bool:
        """Whether anything of it may not be lost when the machine is."""
        return self._lasting and not all(step.fleeting for batch in self.batches for step in batch)

    def lines(self, at: int, end: int) -> list[bytes]:
        """The lines of what was taken, for the end of a log, with the home's own where that is new. Raises TooLong."""
        address = self.batches[0][0].place
        lines = [] if end else [HomeLine(address.tenant, address.home).line()]
        writing, fleeting = Writing(), not self.lasts
        for batch in self.batches:
            writing.steps = [_line(step, writing) for step in batch if _does_something(step)]
            lines.append(writing.line(at, fleeting=fleeting, destroys=_destroys(batch)))
        if end + sum(map(len, lines)) > FARTHEST:
            raise TooLong(f"the log would be longer than {FARTHEST:,} bytes")
        return lines


def _destroys(batch: Batch) -> bool:
    return any(step.destroys for step in batch)


def _line(step: Step, writing: Writing) -> StepLine:
    """What a step says in the log."""
    put: dict[str, list[RowLine]] = {}
    for table, rows in step.put:
        put.setdefault(table, []).extend(map(writing.row, rows))
    line = StepLine(step.place.space, step.place.name, drop=step.drop, put=put)
    if step.moves:
        line.gone, line.expires = step.hot is None, step.expires
        if step.hot is not None:
            writing.head(line, step.hot, step.cold)
    return line


def _does_something(step: Step) -> bool:
    return bool(step.drop or step.put) or step.moves
