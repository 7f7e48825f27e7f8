"""The sections of a summary, and how items become text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from palimpsest.log.summary import ITEM_KINDS, ItemKind, SummaryItem

TITLES: Mapping[ItemKind, str] = {
    "goal": "Goal",
    "fact": "User facts and preferences",
    "decision": "Decisions",
    "done": "Done",
    "artifact": "Files and artifacts",
    "error": "Errors",
    "open": "Open items",
    "next": "Next step",
}
"""The title of each kind of item, in the order of the sections."""

_WORDS: Mapping[str, ItemKind] = {
    "goal": "goal",
    "goals": "goal",
    "topics": "goal",
    "fact": "fact",
    "facts": "fact",
    "userfacts": "fact",
    "preference": "fact",
    "preferences": "fact",
    "userfactsandpreferences": "fact",
    "factsandpreferences": "fact",
    "decision": "decision",
    "decisions": "decision",
    "done": "done",
    "completed": "done",
    "progress": "done",
    "artifact": "artifact",
    "artifacts": "artifact",
    "file": "artifact",
    "files": "artifact",
    "filesandartifacts": "artifact",
    "error": "error",
    "errors": "error",
    "open": "open",
    "openitem": "open",
    "openitems": "open",
    "openquestions": "open",
    "todo": "open",
    "next": "next",
    "nextstep": "next",
    "nextsteps": "next",
}


def kind_of(title: object) -> ItemKind | None:
    """Return the kind of item that a model means by a title or kind; None if it is not known."""
    return _WORDS.get("".join(filter(str.isalpha, title.lower()))) if isinstance(title, str) else None


def rendered(items: Iterable[SummaryItem]) -> str:
    """Return the sections that have items, with a line for each item."""
    lines_by_kind: dict[ItemKind, list[str]] = {kind: [] for kind in ITEM_KINDS}
    for item in items:
        lines_by_kind[item.kind].append(f"- {item.text} ({item.status})" if item.status else f"- {item.text}")
    return "\n".join("\n".join((f"{TITLES[kind]}:", *lines)) for kind, lines in lines_by_kind.items() if lines)
