"""What an erasure has destroyed, and what it has made anew."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from palimpsest.log.entry import Audio, Entry, File, Image


class Erased(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """What an erasure has destroyed, and what it has made anew.

    `entries` is how many entries lost their content, each counted once however many sessions share it; `branches` are
    other sessions that shared some, `sessions` those that were deleted whole. `withdrawn` counts the summaries that
    contexts showed and that lost their words, `rebuilt` those of them that were made anew from what is left. `derived`
    counts, by name, what was removed of what is made from entries, `items` by namespace the items that went, `media`
    the images, sounds and documents among what was erased. `remains` says in plain sentences what could not be done at
    once, and how it comes about, and which damaged entries and sessions a query could not look into. `unknown` says
    that nothing here names the user who was to be forgotten, where that is so. With `dry_run` it is what would go, and
    nothing was changed.
    """

    entries: int = 0
    branches: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    withdrawn: int = 0
    rebuilt: int = 0
    derived: dict[str, int] = {}
    items: dict[str, int] = {}
    media: int = 0
    remains: tuple[str, ...] = ()
    unknown: str = ""
    dry_run: bool = False

    def __bool__(self) -> bool:
        """Whether anything went."""
        return bool(self.entries or self.sessions or self.withdrawn or self.items)

    def __add__(self, other: Erased) -> Erased:
        return Erased(
            entries=self.entries + other.entries,
            branches=_union(self.branches, other.branches),
            sessions=_union(self.sessions, other.sessions),
            withdrawn=self.withdrawn + other.withdrawn,
            rebuilt=self.rebuilt + other.rebuilt,
            derived=_sum(self.derived, other.derived),
            items=_sum(self.items, other.items),
            media=self.media + other.media,
            unknown=self.unknown or other.unknown,
            remains=tuple(dict.fromkeys((*self.remains, *other.remains))),
            dry_run=self.dry_run or other.dry_run,
        )


class Vacuumed(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """What came of writing a store anew: bytes that were `freed`, and in plain sentences what `remains`, and why."""

    freed: int = 0
    remains: tuple[str, ...] = ()


def _union(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({*one, *other}))


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in sorted({*one, *other})}


def media_in(entry: Entry) -> int:
    """How many images, sounds and documents an entry holds."""
    return (
        0 if isinstance(entry.content, str) else sum(isinstance(part, Audio | File | Image) for part in entry.content)
    )
