"""Large contents of a home, kept once however many entries hold them.

Contents are rows of the place (home, "large", ""), keyed by the first 63 bits of their SHA-256; the table `uses` says
how many entries hold each. Every change of these counts also moves the head of the place, so that no two writers count
over each other. Which contents an entry holds is a row of the table `held` beside the entry.

Any string of an entry that is larger than a limit (a text, arguments, the data of an image) is taken out of the JSON of
`palimpsest.log.entry.pack`. The stored form then begins with a list that says where which content belongs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from palimpsest.errors import Conflict, StoreCorrupt
from palimpsest.log.codec import decoded, encoded
from palimpsest.log.lazy_imports import sha256
from palimpsest.stores.backend import LAST_KEY, Ask, Cells, Range, Row, Seen, Step
from palimpsest.stores.engine.forms import new_log, stamped
from palimpsest.stores.engine.known import Known
from palimpsest.stores.rules import AsyncLook, expect_of

MARK = b'{"held":'
"""How the stored form of an entry with large contents begins. No other stored form does, whatever its texts."""

Path = tuple[str | int, ...]
"""The way to a string within a stored form."""


def _key(digest: str) -> int:
    return int(digest[:16], 16) >> 1


class Large:
    """Takes large contents out of entries, and reads them.

    `limit` is how many bytes a string may have before it is kept apart; None keeps everything in place.
    """

    def __init__(self, look: AsyncLook, limit: int | None) -> None:
        self._look, self.limit = look, limit

    def within(self, look: AsyncLook) -> Large:
        """Return the same over another way to look at the store."""
        return Large(look, self.limit)

    def may_hold(self, rows: Sequence[Cells]) -> bool:
        """Return whether any of these rows of entries may hold something large."""
        limit = self.limit
        if limit is not None:
            for row in rows:
                if len(row[1]) > limit:
                    return True
        return False

    async def split(
        self, known: Known, rows: Sequence[Cells], gone: Sequence[tuple[int, int]] = ()
    ) -> tuple[list[tuple[str, Sequence[Cells]]], list[Step]]:
        """Return what to put for rows of entries, with large contents taken out, and the steps that keep those.

        The entries at the keys `gone` are dropped or replaced in the same batch: contents that only they hold are
        dropped.
        """
        limit = self.limit
        if limit is None or (not gone and not self.may_hold(rows)):
            return [("entry", rows)] if rows else [], []
        small_rows, held, contents = list[Cells](), list[Row](), dict[str, bytes]()
        use_changes: Counter[str] = Counter()
        if gone:
            (seen,) = await self._look([known.ask(Range("held", gone))])
            use_changes.subtract(digest for _, value, *_ in seen.rows[0] for digest in _digests(value))
        for row in rows:
            key, value, id, expires = row
            small, large = take_out(value[:-8], limit)
            small_rows.append((key, stamped(small, key), id, expires) if large else row)
            if large:
                contents |= large
                use_changes.update(large.keys())
                held.append(Row(key, msgspec.json.encode(list(large))))
        puts: list[tuple[str, Sequence[Cells]]] = [
            (name, table_rows) for name, table_rows in (("entry", small_rows), ("held", held)) if table_rows
        ]
        return puts, [await _count_uses(known, use_changes, contents, self._look)] if use_changes else []

    async def release_steps(self, known: Known, gone: Sequence[tuple[int, int]]) -> list[Step]:
        """Return the steps that drop the contents which only the entries at these keys hold."""
        return (await self.split(known, (), gone))[1]

    async def load(self, known: Known, digests: Iterable[str]) -> dict[str, bytes]:
        """Return those of these contents that are stored and sound, by digest."""
        wanted = sorted(set(digests))
        try:
            (seen,) = await self._look([ask_contents(known, wanted)])
            return sound_contents(seen, wanted)
        except StoreCorrupt:  # read one by one, so that a damaged content does not hide the others
            contents: dict[str, bytes] = {}
            for digest in wanted:
                with suppress(StoreCorrupt):
                    (seen,) = await self._look([ask_contents(known, [digest])])
                    contents |= sound_contents(seen, [digest])
            return contents


async def _count_uses(known: Known, changes: Mapping[str, int], contents: Mapping[str, bytes], look: AsyncLook) -> Step:
    """Return the step that changes how many entries hold these contents, and puts or drops contents accordingly."""
    place, keys = known.large, sorted((_key(digest), digest) for digest in changes)
    wanted = Range("uses", [(key, key) for key, _ in keys])
    any_others = Range("uses", [(0, LAST_KEY)], len(keys) + 1 if min(changes.values()) < 0 else 0)
    (seen,) = await look([Ask(place, [wanted, any_others])])
    stored = {row[0]: Row(*row) for row in seen.rows[0]}
    counted, added, dropped = [], [], list[int]()
    for key, digest in keys:
        before = stored.get(key)
        if before is not None and before.id != digest:
            raise Conflict(f"large content {digest}", "has the digest of other stored content; change it a little")
        number = (int(before.value) if before is not None else 0) + changes[digest]
        if number > 0:
            counted.append(Row(key, b"%d" % number, digest))
            if before is None:
                added.append(Row(key, contents[digest], digest))
        else:
            dropped.append(key)
    hot = expect_of(seen.head)
    number = int(hot) if hot is not None else new_log() << 16  # a number is never used by two places
    any_left = counted or any(row[0] not in dropped for row in seen.rows[1])
    drop = [(table, key, key) for key in dropped for table in ("uses", "large")]
    new_hot = b"%d" % (number + 1) if any_left else None
    puts = [(table, rows) for table, rows in (("uses", counted), ("large", added)) if rows]
    return Step(place, hot, new_hot, drop=drop, put=puts, destroys=bool(drop))


def ask_contents(known: Known, digests: Iterable[str]) -> Ask:
    """Ask for these contents."""
    keys = sorted({_key(digest) for digest in digests})
    return Ask(known.large, [Range("large", [(key, key) for key in keys])], head=False)


def sound_contents(seen: Seen, digests: Iterable[str]) -> dict[str, bytes]:
    """Return the contents that were found and match their digest, by digest."""
    values = {key: value for key, value, *_ in seen.rows[0]}
    keys = {digest: _key(digest) for digest in digests}
    found = ((digest, values[key]) for digest, key in keys.items() if key in values)
    return {digest: content for digest, content in found if sha256(content).hex() == digest}


def _digests(value: bytes) -> list[str]:
    return msgspec.json.decode(value, type=list[str])


# --- the stored form of an entry: pure


def take_out(body: bytes, limit: int) -> tuple[bytes, dict[str, bytes]]:
    """Return the stored form without its strings of more than `limit` bytes, and those strings by their SHA-256."""
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


def digests_in(body: bytes) -> list[str]:
    """Return the SHA-256 of every content that a stored form refers to."""
    return [place[-1] for place in decoded(body, dict)["held"]] if body.startswith(MARK) else []


def put_back(body: bytes, contents: Mapping[str, bytes]) -> bytes:
    """Return the stored form as it was before `take_out`. Raises ValueError if a content is missing."""
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
