r"""The lines of a home's log: how batches are written, checked and read. Pure.

    {"kind":"home","tenant":…,"home":…,"sum":"…"}
    {"at":…,"steps":[{"space":"session","name":"one","hot":98},{"space":"log","put":{"entry":[[1,87]]}}],
        "frame":"…","values":[[7,…],"9f2c41d0",{"role":"user",…},"1a2b3c4d"],"sum":"…"}

`at` is in seconds since 1970. `steps` say what the batch does, and how many bytes each of the `values` has: first those
of heads, then those of rows, which are `[key, bytes, id, expires]`. A value in JSON that ends with its own checksum (as
the engine gives it) is written as that JSON and those eight characters. Other text is a string, with a CRC-32 of ours
as the eight characters; its number of bytes is negated. Other bytes are a base64 string without one: these are
ciphertexts, or have a digest that somebody knows, so whoever reads them notices a change.

`sum` is BLAKE2b, 64 bits, of all bytes before it. `frame` is a CRC-32 of the steps and the values of heads: if it fits
and `sum` does not, only a row can be damaged, which whoever reads that row will notice. A `fleeting` batch is ignored
then. A batch that `destroys` leaves no byte of what it replaced or dropped: the log has to be rewritten.
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
"""Bytes at the end of a line, with its checksum, that tell it from any other."""

LONGEST, FARTHEST = (1 << 28) - 1, (1 << 35) - 1
"""Most bytes of a row's value as written, and of a log: a spot in the index has no room for more."""

_FRAME, _VALUES = b',"frame":"', b'","values":['
_CHECK = len(b',"12345678"')
_FRAMES = re.compile(rb',"frame":"[0-9a-f]{8}","values":\[')

_encode = msgspec.json.encode
_read_json = msgspec.json.Decoder(msgspec.Raw).decode
_read_text = msgspec.json.Decoder(str).decode


def seal(body: bytes) -> bytes:
    """Make a line, with its checksum, from a JSON object that still lacks its closing brace."""
    return b'%b%b%b"}\n' % (body, _SUM, _sum(body))


def is_sound(raw: bytes) -> bool:
    """Return whether these bytes are an undamaged line."""
    return raw[-TAIL : -TAIL + len(_SUM)] == _SUM and raw[-3:] == b'"}\n' and raw[-19:-3] == _sum(raw[:-TAIL])


def is_torn(raw: bytes) -> bool:
    """Return whether the last piece of a log is what an interrupted write leaves: a line without an end, or zeros.

    A line that has its end, but other bytes than were written, was damaged later.
    """
    if raw.endswith(b"\n"):
        return raw.startswith(b"\0") or b"\0\0" in raw
    return not is_sound(raw[:-1] + b"\n")


def _sum(body: bytes) -> bytes:
    return blake2b(body, digest_size=8).hexdigest().encode()


class TooLong(ValueError):
    """A value or log would have more bytes than the index has room for."""


# --- values


def shown(value: bytes) -> tuple[bytes, int]:
    """Return a value as it is written in a line, and its number of bytes, negated if the checksum is ours."""
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
    """Return the value that `shown` has written as `text`. Raises ValueError if a checksum of ours does not fit."""
    body, tail = text[:-_CHECK], text[2 - _CHECK : -1]
    if ours:
        if int(tail, 16) != crc32(body):
            raise ValueError("its checksum does not match")
        return _read_text(body).encode()
    if text[:1] != b'"':
        return body + tail
    try:
        return b64decode(text[1:-1])
    except ValueError:  # it was changed: whoever gave the value will notice
        return text


def _is_json(body: bytes) -> bool:
    """Return whether these bytes can be in a line as they are."""
    try:
        body.decode()
        _read_json(body)
    except (UnicodeDecodeError, msgspec.DecodeError):
        return False
    return b"\n" not in body


# --- lines


class HomeLine(msgspec.Struct, frozen=True, tag_field="kind", tag="home"):
    """A log's first line: which home it belongs to."""

    tenant: str
    home: str

    def line(self) -> bytes:
        """Return it as a line."""
        return seal(_encode(self)[:-1])


class RowLine(NamedTuple):
    """A row in a line: its key, the bytes of its value (negated as by `shown`), its id, and when it expires."""

    key: int
    size: int
    id: str = ""
    expires: int | None = None


class StepLine(msgspec.Struct, omit_defaults=True):
    """What a batch does to one place. Its head is unchanged unless `hot`, the bytes of that value, is set, or `gone`.

    `at` is the mark of the head, if that is not the line's.
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
    """A batch: its mark, its steps, whether it may be lost, and whether it destroys what it replaces or drops."""

    at: int
    steps: list[StepLine]
    fleeting: bool = False
    destroys: bool = False


class Writing:
    """Makes lines one after the other: each has the steps and values that were added since the one before."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.steps: list[StepLine] = []
        self._heads: list[bytes] = []
        self._rows: list[bytes] = []

    def head(self, step: StepLine, hot: bytes, cold: bytes | None) -> None:
        """Add a head's values to a step. With None the stored `cold` value stays."""
        text, step.hot = shown(hot)
        self._heads.append(text)
        if cold is not None:
            text, step.cold = shown(cold)
            self._heads.append(text)

    def row(self, row: Cells) -> RowLine:
        """Add the value of a row; return the row as it is written. Raises TooLong."""
        key, value, id, expires = row
        text, size = shown(value)
        if len(text) > LONGEST:
            raise TooLong(f"a value of {len(text):,} bytes, as it is written there, is longer than {LONGEST:,}")
        return self.shown(RowLine(key, size, id, expires), text)

    def shown(self, row: RowLine, text: bytes) -> RowLine:
        """Add a value that is written as `text`; return its row in the shortest form."""
        self._rows.append(text)
        if row.expires is None:
            return (row.key, row.size, row.id) if row.id else (row.key, row.size)  # type: ignore[return-value]
        return row

    def line(self, at: int, *, fleeting: bool = False, destroys: bool = False) -> bytes:
        """Return the line of what was added, and begin the next."""
        body = _encode(BatchLine(at, self.steps, fleeting, destroys))[:-1]
        frame = crc32(b",".join(self._heads), crc32(body))
        values = b",".join(self._heads + self._rows)
        self._begin()
        return seal(b"%b%b%08x%b%b]" % (body, _FRAME, frame, _VALUES, values))


_read_home = msgspec.json.Decoder(HomeLine).decode
_read_batch = msgspec.json.Decoder(BatchLine).decode


def read_home(raw: bytes) -> HomeLine | None:
    """Read a log's first line; None if it is damaged."""
    try:
        return _read_home(raw) if is_sound(raw) else None
    except msgspec.DecodeError:
        return None


def read_batch(raw: bytes, sound: bool) -> tuple[BatchLine, int] | None:
    """Read a line, and where its values begin; None if it cannot be read, or something other than rows was changed.

    `sound` says that its checksum fits.
    """
    cut = raw.find(_FRAME)
    if not sound and len(_FRAMES.findall(raw)) != 1:  # two lines, with a damaged break between them
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
    """Return whether a damaged line is one batch that may be lost: it says so right before its only frame."""
    frames = [match.start() for match in _FRAMES.finditer(raw)]
    return len(frames) == 1 and raw[: frames[0]].endswith(b'],"fleeting":true')


def _stretch(batch: BatchLine, raw: bytes, at: int) -> None:
    """If a damaged row became longer or shorter, correct its size, so that the rows behind it are found."""
    lists = [rows for step in batch.steps for rows in step.put.values()]
    end = raw.rfind(b"]" + _SUM)
    surplus = end + 1 - at - sum(abs(row.size) + 1 for rows in lists for row in rows)
    for rows, i in ((list_, i) for list_ in lists for i in range(len(list_)) if surplus and end > 0):
        size = abs(rows[i].size)
        if raw[at + size - 1 : at + size + 1] not in (b'",', b'"]'):
            rows[i] = rows[i]._replace(size=max(size + surplus, 0) * (1 if rows[i].size > 0 else -1))
            return
        at += size + 1


# --- what is written in one step


class Change:
    """What one write does to one home: the batches that were taken, and their lines.

    `head` returns the head that a place has before the write, by space and name.
    """

    def __init__(self, head: Callable[[str, str], PlaceHead | None], lasting: bool) -> None:
        self._head_before, self._lasting = head, lasting
        self.batches: list[Batch] = []
        self._heads: dict[Place, PlaceHead | None] = {}

    def take(self, batch: Batch) -> Refusal | None:
        """Take a batch if its heads are as expected; else return the heads, with what was taken before."""
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
        """Whether one of the batches destroys what it replaces or drops."""
        return any(map(_destroys, self.batches))

    def _head(self, place: Place) -> PlaceHead | None:
        return self._heads[place] if place in self._heads else self._head_before(place.space, place.name)

    @property
    def lasts(self) -> bool:
        """Whether any of it has to survive a crash of the machine."""
        return self._lasting and not all(step.fleeting for batch in self.batches for step in batch)

    def lines(self, at: int, end: int) -> list[bytes]:
        """Return the lines to append at `end`, with the home's own first in a new log. Raises TooLong."""
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
    """Return a step as it is written, with its values added to `writing`."""
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
