"""What a scan has found, and done."""

from __future__ import annotations

from itertools import islice, zip_longest

import msgspec

from palimpsest.privacy.retroactive import Sample, Unchecked


class Scanned(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """What a scan has found, and done.

    `sessions` is how many were looked at, `entries`, `summaries` and `facts` (of working memories) in how many
    something was found. `findings` counts that by kind ("email", "redact_patterns[0]") and place ("content", "summary",
    "fact"), the most frequent first. `samples` show some of it as it would be, never as it is. `withheld` is how many
    entries are of types that the policy withholds. `redacted` is how many entries, records and facts were rewritten or
    erased: 0 unless that was asked for. `refused` is what could not be checked; it is as it was. `remains` says in
    plain sentences where the store may still hold copies of what was redacted, and how they go.
    """

    sessions: int = 0
    entries: int = 0
    summaries: int = 0
    facts: int = 0
    findings: dict[tuple[str, str], int] = {}
    samples: tuple[Sample, ...] = ()
    withheld: int = 0
    redacted: int = 0
    refused: tuple[Unchecked, ...] = ()
    remains: tuple[str, ...] = ()


def chosen(samples: dict[tuple[str, str], list[Sample]], number: int) -> tuple[Sample, ...]:
    """So many samples: one of each kind and place first."""
    mixed = (sample for row in zip_longest(*samples.values()) for sample in row if sample is not None)
    return tuple(islice(mixed, number))
