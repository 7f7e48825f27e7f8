"""`Erased` and `Vacuumed`: the reports of erasures and of writing a store anew."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from palimpsest.log.entry import Audio, Entry, File, Image


class Erased(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """What an erasure has destroyed, and what it has made anew.

    `entries` is how many entries lost their content, each counted once however many sessions share it. `branches` are
    other sessions that shared some of them, `sessions` those that were deleted whole. `withdrawn` counts the summaries
    that contexts showed and that lost their words, `rebuilt` those of them that were made anew from the remaining
    entries. `derived` counts, by name, what was removed from data derived from entries (such as indexes), `items` the
    deleted items by namespace, `media` the erased images, sounds and documents. `remains` says in plain sentences what
    could not be done at once and how to get it done, and which damaged entries and sessions a query could not search.
    `unknown` is set if nothing here names the user or session that was to be forgotten. With `dry_run` the report
    says what would go, and nothing was changed.
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
        """Whether anything was destroyed."""
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
    """The result of writing a store anew: how many bytes were `freed`, and sentences on what `remains`, and why."""

    freed: int = 0
    remains: tuple[str, ...] = ()


def _union(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({*one, *other}))


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in sorted({*one, *other})}


def media_in(entry: Entry) -> int:
    """Return how many images, sounds and documents an entry holds."""
    return (
        0 if isinstance(entry.content, str) else sum(isinstance(part, Audio | File | Image) for part in entry.content)
    )
