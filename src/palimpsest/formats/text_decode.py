"""The headings and labels of the format `text`, and decoding of such a text. Pure."""

from __future__ import annotations

import re
from typing import Any

from palimpsest.formats import TEXT
from palimpsest.log.entry import Entry, Native, Reasoning

SUMMARIES = "=== Previous Conversation Summaries ==="
CONVERSATION = "=== Recent Conversation ==="
INDENT = "  "
"""Follows every line break inside a text."""

BREAK = re.compile("\r\n|[\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029]")
_INDENTED = re.compile(f"({BREAK.pattern}){INDENT}")
_LINE_END = re.compile(f"\n(?!{INDENT})")
RANGE = re.compile(r"\[(\d{4}-\d\d-\d\d) - (\d{4}-\d\d-\d\d)\]")
LABEL = re.compile(
    r"(User|Assistant(?: \(thinking\))?|System|(?:Tool call|Tool result|Context) \(([^()]*)\)): ?", re.DOTALL
)
_ROLES: dict[str, Any] = {"User": "user", "Assistant": "assistant", "System": "system"}
THINKING = "Assistant (thinking)"
KINDS: dict[str, dict[str, Any]] = {
    "Tool call": {"kind": "tool_call", "role": "assistant"},
    "Tool result": {"kind": "tool_result", "role": "tool"},
    "Context": {"kind": "context", "role": "user"},
}


def decoded(text: str) -> list[Entry]:
    """Return the entries of one text."""
    lines = _LINE_END.split(text)
    headings = [line for line in lines if line in (SUMMARIES, CONVERSATION)]
    if not headings:
        return [Entry(content=text, native=Native(format=TEXT, keep={"place": "alone"}))] if text else []
    first = lines.index(headings[0])
    before = "\n".join(lines[:first]).removesuffix("\n")  # an empty line separates it from the sections
    entries = []
    if before:
        entries.append(Entry(role="system", content=before, native=Native(format=TEXT, keep={"place": "before"})))
    section = ""
    drafts: list[_Draft] = []
    for line in lines[first:]:
        if line in (SUMMARIES, CONVERSATION):
            section = line
            if drafts and drafts[-1].lines[-1:] == [""]:
                drafts[-1].lines.pop()  # the empty line between the sections
            continue
        draft = _draft_at(line, section)
        if draft is not None:
            drafts.append(draft)
        elif drafts:
            drafts[-1].lines.append(line)
        elif line:
            drafts.append(_Draft({}, [line]))
    return [*entries, *(draft.entry() for draft in drafts)]


class _Draft:
    """An entry while it is read: its fields, and its lines so far."""

    def __init__(self, fields: dict[str, Any], lines: list[str]) -> None:
        self.fields, self.lines = fields, lines

    def entry(self) -> Entry:
        """Return the entry, with its lines unindented."""
        text = _INDENTED.sub(r"\1", "\n".join(self.lines))
        if self.fields.pop("thought", False):
            return Entry(role="assistant", content=(Reasoning(text=text),))
        return Entry(content=text, **self.fields)


def _draft_at(line: str, section: str) -> _Draft | None:
    """Return the draft of the entry that begins with this line, or None if the line continues the entry before it."""
    if section == SUMMARIES:
        dates = RANGE.match(line)
        if dates is None:
            return None
        rest = line[dates.end() :].removeprefix("\n" + INDENT)
        time_range = {"start": dates[1], "end": dates[2]}
        return _Draft({"kind": "summary", "metadata": {"time_range": time_range}}, [rest] if rest else [])
    label = LABEL.match(line)
    if label is None:
        return None
    speaker, name, text = label[1], label[2], line[label.end() :]
    if name is None:
        return _Draft({"thought": True} if speaker == THINKING else {"role": _ROLES[speaker]}, [text])
    return _Draft({**KINDS[speaker.partition(" (")[0]], "name": name}, [text])
