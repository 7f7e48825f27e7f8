"""Render groups to provider messages, and keep those that later contexts repeat. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from palimpsest.context.groups import CostedEntry, Group
from palimpsest.context.window import by_pause
from palimpsest.formats import Adapted, Format, Message
from palimpsest.formats.common import unsaid
from palimpsest.formats.fences import guarded
from palimpsest.formats.wording import sendable


def rendered(group: Group, fmt: Format, adapted: list[Adapted] | None = None) -> list[Message]:
    """Return the group's provider messages, without text that no provider takes and with our fence tags defused.

    The messages share no mutable part with the entries, so the caller may change them.
    """
    items = group.items
    if len(items) == 1 and adapted is None:
        entry = items[0].entry
        bare = entry.name is entry.call_id is None and entry.native is None and not entry.lone
        if bare and type(entry.content) is str and "<" not in entry.content:  # the common case needs no cleaning
            return fmt.render(items)
    if adapted is not None:
        adapted.extend(note for item in items if item.text is None for note in unsaid(item.entry, fmt.name))
    pauses = lone = lends = False
    shown: list[CostedEntry] = []
    for item in items:
        entry = item.entry
        clean = guarded(entry)
        if clean is not entry:
            item = msgspec.structs.replace(item, entry=clean)  # noqa: PLW2901 (it stands in its place)
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
    """Return a deep copy of a message, which holds only what JSON can."""
    copy: Message = msgspec.to_builtins(message)
    return copy


def _scrubbed(value: Any) -> Any:
    if isinstance(value, str):
        return sendable(value)
    if isinstance(value, dict):
        return {sendable(key): _scrubbed(inner) for key, inner in value.items()}
    return [_scrubbed(inner) for inner in value] if isinstance(value, list) else value


_HOLDING = frozenset((dict, list))


class Ready(msgspec.Struct, frozen=True):
    """The prepared messages of the first groups of a window. Callers get copies.

    `deep` are the indices of those messages that hold more than texts.
    """

    groups: int = 0
    messages: list[Message] = []
    deep: list[int] = []

    def extended(self, groups: Sequence[Group], fmt: Format) -> Ready:
        """Return the prepared messages of all these groups, of which the first ones are prepared already."""
        if len(groups) == self.groups:
            return self
        added = [message for group in groups[self.groups :] for message in rendered(group, fmt)]
        deep = [i for i, message in enumerate(added, len(self.messages)) if _is_deep(message)]
        return Ready(len(groups), [*self.messages, *added], [*self.deep, *deep])

    def copies(self) -> list[Message]:
        """Return copies of the messages, which the caller may change."""
        copies = [message.copy() for message in self.messages]
        for place in self.deep:
            copies[place] = copied(copies[place])
        return copies


def _is_deep(message: Message) -> bool:
    return not _HOLDING.isdisjoint(map(type, message.values()))
