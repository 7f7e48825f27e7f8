"""`Scanned`: the report of a scan."""

from __future__ import annotations

from itertools import islice, zip_longest

import msgspec

from palimpsest.privacy.retroactive import Sample, Unchecked


class Scanned(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """What a scan has found, and done.

    `sessions` is the number of sessions scanned. `entries`, `summaries` and `facts` (of working memories) are the
    numbers of those in which something was found. `findings` counts what was found by kind ("email",
    "redact_patterns[0]") and place ("content", "summary", "fact"), the most frequent first. `samples` show some texts
    as they are after redaction, never as they are stored. `withheld` is the number of entries of types that the policy
    withholds. `redacted` is the number of entries, records and facts that were rewritten or erased: 0 without `apply`.
    `refused` lists what could not be checked and was left unchanged. `remains` says in plain sentences where the store
    may still hold copies of what was redacted, and how to remove them.
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
    """Return up to `number` samples. One of each kind and place comes first."""
    mixed = (sample for row in zip_longest(*samples.values()) for sample in row if sample is not None)
    return tuple(islice(mixed, number))
