"""Large content of a home, kept once however many entries hold it: what an entry's row refers to, and who still does.

Contents are rows of the place (home, "large", ""), by the first 63 bits of their SHA-256, each beside how many entries
have it (`uses`). Whoever changes that moves the head of this place, so that nobody counts over another. Which contents
an entry has is a row of the table `held` beside it.

Whatever string of an entry is larger than a limit (a text, arguments, the data of an image) leaves its place in the
JSON of `palimpsest.log.entry.pack`, and the stored form begins with a list of where which content belongs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from palimpsest.errors import Conflict, StoreCorrupt
from palimpsest.log.codec import decoded, encoded
from palimpsest.log.late import sha256
from palimpsest.stores.backend import LAST_KEY, Ask, Cells, Range, Row, Seen, Step
from palimpsest.stores.engine.forms import new_log, stamped
from palimpsest.stores.engine.known import Known
from palimpsest.stores.rules import Looks, expect_of

MARK = b'{"held":'
"""How the stored form of an entry begins that has something large. No other does, and no text can pretend to."""

Path = tuple[str | int, ...]
"""Where a string is in a stored form."""


def _key(digest: str) -> int:
    return int(digest[:16], 16) >> 1


class Large:
    """Large contents. `limit` is how many bytes a string may have before it is kept apart; None: none is."""

    def __init__(self, look: Looks, limit: int | None) -> None:
        self._look, self.limit = look, limit

    def within(self, look: Looks) -> Large:
        """The same, which looks at the store by this."""
        return Large(look, self.limit)

    def meant(self, rows: Sequence[Cells]) -> bool:
        """Whether there may be something large in these rows of entries."""
        limit = self.limit
        if limit is not None:
            for row in rows:
                if len(row[1]) > limit:
                    return True
        return False

    async def split(
        self, known: Known, rows: Sequence[Cells], gone: Sequence[tuple[int, int]] = ()
    ) -> tuple[list[tuple[str, Sequence[Cells]]], list[Step]]:
        """What is put in the place of rows of entries, without what is large in them, and the steps that keep that.

        The entries at the keys `gone` hold nothing any more: a content that no other entry holds goes with them.
        """
        limit = self.limit
        if limit is None or (not gone and not self.meant(rows)):
            return [("entry", rows)] if rows else [], []
        slim, held, contents = list[Cells](), list[Row](), dict[str, bytes]()
        uses: Counter[str] = Counter()
        if gone:
            (seen,) = await self._look([known.ask(Range("held", gone))])
            uses.subtract(digest for _, value, *_ in seen.rows[0] for digest in _digests(value))
        for row in rows:
            key, value, id, expires = row
            bare, large = take_out(value[:-8], limit)
            slim.append((key, stamped(bare, key), id, expires) if large else row)
            if large:
                contents |= large
                uses.update(large.keys())
                held.append(Row(key, msgspec.json.encode(list(large))))
        put: list[tuple[str, Sequence[Cells]]] = [
            (name, some) for name, some in (("entry", slim), ("held", held)) if some
        ]
        return put, [await _counted(known, uses, contents, self._look)] if uses else []

    async def let_go(self, known: Known, gone: Sequence[tuple[int, int]]) -> list[Step]:
        """The steps by which the entries at these keys hold nothing any more."""
        return (await self.split(known, (), gone))[1]

    async def load(self, known: Known, digests: Iterable[str]) -> dict[str, bytes]:
        """The contents of these digests that are there and as they were written."""
        wanted = sorted(set(digests))
        try:
            (seen,) = await self._look([asked(known, wanted)])
            return sound(seen, wanted)
        except StoreCorrupt:  # what is damaged keeps nobody from the others
            there: dict[str, bytes] = {}
            for digest in wanted:
                with suppress(StoreCorrupt):
                    (seen,) = await self._look([asked(known, [digest])])
                    there |= sound(seen, [digest])
            return there


async def _counted(known: Known, uses: Mapping[str, int], contents: Mapping[str, bytes], look: Looks) -> Step:
    """What counts that so many entries more, or less, have these contents."""
    place, keys = known.large, sorted((_key(digest), digest) for digest in uses)
    those = Range("uses", [(key, key) for key, _ in keys])
    others = Range("uses", [(0, LAST_KEY)], len(keys) + 1 if min(uses.values()) < 0 else 0)
    (seen,) = await look([Ask(place, [those, others])])
    there = {row[0]: Row(*row) for row in seen.rows[0]}
    put, new, gone = [], [], list[int]()
    for key, digest in keys:
        before = there.get(key)
        if before is not None and before.id != digest:
            raise Conflict(f"large content {digest}", "has the same key as another, which nobody has ever seen")
        number = (int(before.value) if before is not None else 0) + uses[digest]
        if number > 0:
            put.append(Row(key, b"%d" % number, digest))
            if before is None:
                new.append(Row(key, contents[digest], digest))
        else:
            gone.append(key)
    hot = expect_of(seen.head)
    number = int(hot) if hot is not None else new_log() << 16  # none comes again, of whatever place
    left = put or any(row[0] not in gone for row in seen.rows[1])
    drop = [(table, key, key) for key in gone for table in ("uses", "large")]
    after = b"%d" % (number + 1) if left else None
    some = [(table, rows) for table, rows in (("uses", put), ("large", new)) if rows]
    return Step(place, hot, after, drop=drop, put=some, destroys=bool(drop))


def asked(known: Known, digests: Iterable[str]) -> Ask:
    """What asks for these contents."""
    keys = sorted({_key(digest) for digest in digests})
    return Ask(known.large, [Range("large", [(key, key) for key in keys])], head=False)


def sound(seen: Seen, digests: Iterable[str]) -> dict[str, bytes]:
    """Of what was asked for, the contents that are there and as they were written."""
    there = {key: value for key, value, *_ in seen.rows[0]}
    keys = {digest: _key(digest) for digest in digests}
    return {one: there[key] for one, key in keys.items() if key in there and sha256(there[key]).hex() == one}


def _digests(value: bytes) -> list[str]:
    return msgspec.json.decode(value, type=list[str])


# --- the stored form of an entry: pure


def take_out(body: bytes, limit: int) -> tuple[bytes, dict[str, bytes]]:
    """Return the stored form without its strings of more than `limit` bytes, and those by their SHA-256."""
    if len(body) <= limit:
        return body, {}
    value = decoded(body, dict)
    large: dict[str, bytes] = {}
    held = []
    for place, text in list(_strings(value, ())):
        content = text.encode("utf-8", "surrogatepass") if 6 * len(text) > limit else b""
        if len(content) > limit:
            digest = sha256(content).hex()
            large[digest] = content
            held.append([*place, digest])
            _set(value, place, "")
    return (encoded({"held": held, **value}), large) if held else (body, {})


def held(body: bytes) -> list[str]:
    """Return the SHA-256 of every content that a stored form refers to."""
    return [place[-1] for place in decoded(body, dict)["held"]] if body.startswith(MARK) else []


def whole(body: bytes, contents: Mapping[str, bytes]) -> bytes:
    """The stored form as it was before `take_out`. Raises ValueError where a content is missing."""
    value = decoded(body, dict)
    for *place, digest in value.pop("held", ()):
        if digest not in contents:
            raise ValueError(f"its large content {digest} is missing or damaged")
        _set(value, tuple(place), contents[digest].decode("utf-8", "surrogatepass"))
    return encoded(value)


def _strings(value: Any, place: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _strings(inner, (*place, key))


def _set(value: Any, place: Path, text: str) -> None:
    for key in place[:-1]:
        value = value[key]
    value[place[-1]] = text
