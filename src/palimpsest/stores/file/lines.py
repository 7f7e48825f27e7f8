r"""The lines of a home's log: how batches are written, checked and read. Pure.

    {"kind":"home","tenant":…,"home":…,"sum":"…"}
    {"at":…,"steps":[{"space":"session","name":"one","hot":[…],"cold":[…]},
        {"space":"log","drop":[["held",1,1]],"put":{"entry":[[1,{"role":"user",…},"1a2b3c4d"]]}}],"frame":"…","sum":"…"}

A row is `[key, value, tail, id, expires]`, without what is empty behind its value. A value that is JSON stands there as
it is, with what follows it as its tail; text is a string; other bytes are a string in base64, with `true` as their
tail. `sum` is BLAKE2b, 64 bits, of all bytes before it. `frame` is a CRC-32 of all that is said beside JSON with a tail
of eight characters or more, which is the checksum of whoever gave it, and beside base64, in which whoever seals, or
knows a digest, has one, too: where nothing else was changed the line is read, and he finds out.
`spoiled` says that the log holds what was replaced or dropped (1), or what was destroyed (2), in this line or before.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from zlib import crc32

import msgspec

from palimpsest.stores.backend import Cells

_SUM = b',"sum":"'
TAIL = len(_SUM) + 16 + len(b'"}\n')
"""Bytes at the end of each line that no other line has."""

_SPOILED = b',"spoiled":'
CHECKSUM, LONGEST_TAIL = 8, 64
"""How long what follows JSON is at least to be taken for its checksum, and at most to be its tail at all."""


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


# --- values and rows


class _Value(msgspec.Struct, frozen=True, array_like=True):
    value: msgspec.Raw
    tail: str | bool | None = None


class _Row(msgspec.Struct, frozen=True, array_like=True):
    key: int
    value: msgspec.Raw
    tail: str | bool | None = None
    id: str = ""
    expires: int | None = None


_encode = msgspec.json.encode
_read_row = msgspec.json.Decoder(_Row).decode
_read_rows = msgspec.json.Decoder(list[_Row]).decode
_read_value = msgspec.json.Decoder(_Value).decode
_read_json = msgspec.json.Decoder(msgspec.Raw).decode
_read_text = msgspec.json.Decoder(str).decode


def row_text(row: Cells) -> bytes:
    """A row as it stands in a line."""
    key, value, id, expires = row
    body, tail = _shown(value)
    text = b"[%d,%b" % (key, body)
    if tail or id or expires is not None:
        text += b"," + (tail or b"null")
        if id or expires is not None:
            text += b"," + _encode(id)
            if expires is not None:
                text += b",%d" % expires
    return text + b"]"


def value_text(value: bytes) -> bytes:
    """The value of a head as it stands in a line."""
    body, tail = _shown(value)
    return b"[%b,%b]" % (body, tail) if tail else b"[%b]" % body


def _shown(value: bytes) -> tuple[bytes, bytes]:
    """A value as a person reads it, and what its tail is; b"" for none."""
    if value[:1] in (b"{", b"["):
        end = max(value.rfind(b"}"), value.rfind(b"]")) + 1
        body, tail = value[:end], value[end:]
        if (not tail or tail.isalnum()) and len(tail) <= LONGEST_TAIL and _is_json(body):
            return body, b'"%b"' % tail
    try:
        return _encode(value.decode()), b""
    except UnicodeDecodeError:
        return _encode(b64encode(value).decode()), b"true"


def _is_json(body: bytes) -> bool:
    """Whether these bytes can stand in a line as they are."""
    try:
        body.decode()
        _read_json(body)
    except (UnicodeDecodeError, msgspec.DecodeError):
        return False
    return b"\n" not in body


def read_rows(texts: Iterable[bytes]) -> list[Cells]:
    """The rows that `row_text` has written. Raises ValueError where they are none of ours."""
    rows = _read_rows(b"[%b]" % b",".join(texts))
    return [(row.key, _bytes(row.value, row.tail), row.id, row.expires) for row in rows]


def placed(text: bytes) -> tuple[int, str, int | None]:
    """The key of a row, its id, and when it expires."""
    row = _read_row(text)
    return row.key, row.id, row.expires


def read_value(text: bytes) -> bytes:
    """The value that `value_text` has written."""
    found = _read_value(text)
    return _bytes(found.value, found.tail)


def _bytes(value: msgspec.Raw, tail: str | bool | None) -> bytes:
    if isinstance(tail, str):
        return bytes(value) + tail.encode()
    text = _read_text(value)
    return b64decode(text, validate=True) if tail else text.encode()


# --- lines


class HomeLine(msgspec.Struct, frozen=True, tag_field="kind", tag="home"):
    """A log's first line: whose it is."""

    tenant: str
    home: str

    def line(self) -> bytes:
        """The line that it is."""
        return seal(_encode(self)[:-1])


NONE = msgspec.Raw()
"""No value."""


class StepLine(msgspec.Struct, omit_defaults=True):
    """What a batch does to one place. The head stays as it is unless it has a `hot` value, or is `gone`.

    `at` is when the head was written, where that is not when the line was. One of which `doubt` is said was in a line
    that was damaged.
    """

    space: str
    name: str = ""
    hot: msgspec.Raw = NONE
    cold: msgspec.Raw = NONE
    expires: int | None = None
    gone: bool = False
    at: int | None = None
    doubt: bool = False
    drop: Sequence[tuple[str, int, int]] = ()
    put: dict[str, list[msgspec.Raw]] = {}


class BatchLine(msgspec.Struct, omit_defaults=True):
    """A batch: when it was written, and its steps."""

    at: int
    steps: list[StepLine]
    frame: str = ""
    spoiled: int = 0
    sum: str = ""


_read_home = msgspec.json.Decoder(HomeLine).decode
_read_batch = msgspec.json.Decoder(BatchLine).decode


def batch_line(at: int, steps: list[StepLine], spoiled: int) -> bytes:
    """The line of a batch."""
    line = BatchLine(at, steps)
    body = _encode(line)[:-1]
    line.spoiled = spoiled
    body += b',"frame":"%08x"' % _frame(line)
    return seal(body + b"%b%d" % (_SPOILED, spoiled) if spoiled else body)


def spoiled_in(end: bytes) -> int | None:
    """What the end of a log's last line says of it; None where it has no such end."""
    if end[-TAIL : -TAIL + len(_SUM)] != _SUM or not end.endswith(b'"}\n'):
        return None
    before = end[:-TAIL]
    return int(before[-1:]) if before[:-1].endswith(_SPOILED) else 0


def read_home(raw: bytes) -> HomeLine | None:
    """What a log's first line says; None where it is not as it was written."""
    try:
        return _read_home(raw) if is_sound(raw) else None
    except msgspec.DecodeError:
        return None


def read_batch(raw: bytes, sound: bool) -> BatchLine | None:
    """What a line says; None where it cannot be read, or more than JSON with a checksum was changed."""
    try:
        batch = _read_batch(raw)
        return batch if sound or batch.frame == f"{_frame(batch):08x}" else None
    except (ValueError, msgspec.DecodeError):
        return None


def _frame(batch: BatchLine) -> int:
    """A checksum of all that a batch says, but of JSON with a tail only that it is there."""
    said = [
        (s.space, s.name, _firm(s.hot), _firm(s.cold), s.expires, s.gone, s.at, s.doubt, list(s.drop), _rows(s.put))
        for s in batch.steps
    ]
    return crc32(_encode((batch.at, batch.spoiled, said)))


def _firm(value: msgspec.Raw) -> str | None:
    return _unchecked(_read_value(value)) if value else None


def _rows(put: dict[str, list[msgspec.Raw]]) -> list[tuple[str, list[object]]]:
    found: list[tuple[str, list[object]]] = []
    for table, texts in put.items():
        rows = map(_read_row, texts)
        found.append((table, [(r.key, r.id, r.expires, _unchecked(r)) for r in rows]))
    return found


def _unchecked(given: _Row | _Value) -> str:
    """The text of a value that has no checksum of its own."""
    checked = given.tail is True or (isinstance(given.tail, str) and len(given.tail) >= CHECKSUM)
    return "" if checked else f"{bytes(given.value).decode()}{given.tail}"
