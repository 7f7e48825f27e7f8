"""What a cut may leave out whatever room there is: what fails a condition, and what has a tag with a share. Pure.

This takes none of the room, so more of the log has to be read to fill it. Imported only where there are conditions or
shares.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from palimpsest.context.groups import Meter, by_group
from palimpsest.context.window import message_values, without
from palimpsest.errors import ConditionFailed
from palimpsest.log.entry import Entry

if TYPE_CHECKING:
    from palimpsest.context.short_term import AppliedCondition


def staying_in(
    entries: Sequence[Entry], rules: Iterable[AppliedCondition], tags: Collection[str], meter: Meter
) -> list[Entry]:
    """Return the entries that stay, whatever else is exempt: those that meet the rules and have none of the tags.

    The rules depend on one message alone. What cannot be shown without its group, or with half of it, does not stay.
    """
    rules, kept = list(rules), list[Entry]()
    for group in by_group(entries):
        members = group.entries
        if any(has_tag(entry, tag) for entry in members for tag in tags):
            continue
        failed = {entry.seq for i, entry in enumerate(members) if not _holds(members, i, rules, meter)}
        kept += without(members, failed, []) if failed else members
    return kept


def _holds(members: Sequence[Entry], i: int, rules: Sequence[AppliedCondition], meter: Meter) -> bool:
    """Whether a message meets the rules. One that cannot be evaluated does: if that is an error, the cut raises it."""
    entry = members[i]
    has_calls = entry.kind == "tool_call" or (i + 1 < len(members) and members[i + 1].continues)
    values = {"message": message_values(entry, meter, has_calls)} if rules else {}
    for rule in rules:
        try:
            if not rule.condition.holds(values):
                return False
        except ConditionFailed:
            continue
    return True


def has_tag(entry: Entry, tag: str) -> bool:
    """Whether the entry has this tag."""
    tags = (entry.metadata or {}).get("tags")
    return tag in tags if isinstance(tags, list) else tags == tag
