"""What a provider is sent of groups, and what of it is made once and given often. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from palimpsest.context.groups import CostedEntry, Group, by_pause
from palimpsest.formats import Adapted, Format, Message
from palimpsest.formats.common import unsaid
from palimpsest.formats.fences import guarded
from palimpsest.formats.wording import sendable


def rendered(group: Group, fmt: Format, adapted: list[Adapted] | None = None) -> list[Message]:
    """The group's provider messages, without text that no provider takes and without tags that look like ours.

    Nothing of them is a part of an entry that can change: whoever is given them may change them.
    """
    items = group.items
    if len(items) == 1 and adapted is None:
        entry = items[0].entry
        bare = entry.name is entry.call_id is None and entry.native is None and not entry.lone
        if bare and type(entry.content) is str and "<" not in entry.content:  # as most are
            return fmt.render(items)
    if adapted is not None:
        adapted.extend(note for item in items if item.text is None for note in unsaid(item.entry, fmt.name))
    pauses = lone = lends = False
    shown: list[CostedEntry] = []
    for item in items:
        entry = item.entry
        new = guarded(entry)
        if new is not entry:
            item = msgspec.structs.replace(item, entry=new)  # noqa: PLW2901 (it stands in its place)
        pauses, lone = pauses or entry.pauses, lone or entry.lone
        lends = lends or entry.native is not None or type(entry.content) is not str
        shown.append(item)
    if pauses and len(items) > 1:
        by_entry = {id(item.entry): item for item in shown}
        runs = [[by_entry[id(entry)] for entry in run] for run in by_pause([item.entry for item in shown])]
        messages = [message for run in runs for message in fmt.render(run, adapted)]
    else:
        messages = fmt.render(shown, adapted)
    if lone:
        return [_scrubbed(message) for message in messages]
    return [copied(message) for message in messages] if lends else messages


def copied(message: Message) -> Message:
    """The same message, of which nothing is a part of this one that can change: it holds what JSON does."""
    same: Message = msgspec.to_builtins(message)
    return same


def _scrubbed(value: Any) -> Any:
    if isinstance(value, str):
        return sendable(value)
    if isinstance(value, dict):
        return {sendable(key): _scrubbed(inner) for key, inner in value.items()}
    return [_scrubbed(inner) for inner in value] if isinstance(value, list) else value


_HOLDING = frozenset((dict, list))


class Ready(msgspec.Struct, frozen=True):
    """The messages of the first groups of a window, which nobody is given but as copies; `deep` are the places of those
    that hold more than texts."""

    groups: int = 0
    messages: list[Message] = []
    deep: list[int] = []

    def extended(self, groups: Sequence[Group], fmt: Format) -> Ready:
        """The messages of so many groups, of which these are the first ones."""
        if len(groups) == self.groups:
            return self
        more = [message for group in groups[self.groups :] for message in rendered(group, fmt)]
        deep = [i for i, message in enumerate(more, len(self.messages)) if _is_deep(message)]
        return Ready(len(groups), [*self.messages, *more], [*self.deep, *deep])

    def copies(self) -> list[Message]:
        """The messages, for somebody who may change them."""
        found = [message.copy() for message in self.messages]
        for place in self.deep:
            found[place] = copied(found[place])
        return found


def _is_deep(message: Message) -> bool:
    return not _HOLDING.isdisjoint(map(type, message.values()))
