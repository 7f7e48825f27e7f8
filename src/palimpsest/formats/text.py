"""The format `text`: a context as one prompt, with a labelled line for each entry under two headings. Pure.

    === Previous Conversation Summaries ===
    [2024-01-01 - 2024-01-02]
    User discussed API design.

    === Recent Conversation ===
    User: How do I add auth?
    Assistant: You can use JWT.

Only headings, labels and dates stand at the beginning of a line: every line break inside a text is followed by
`INDENT`, and names have neither line breaks nor parentheses. So no text can forge a heading or label, and a prompt can
be decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

from palimpsest.errors import InvalidEntry, shorten
from palimpsest.formats import TEXT, Adapted, Format, Joined, Message, Problem, Shown
from palimpsest.formats.common import NAMELESS, own_native, replaced_by_text, said_beside
from palimpsest.formats.fences import GUARD_TOKENS, guard, guards
from palimpsest.formats.text_decode import (
    BREAK,
    CONVERSATION,
    INDENT,
    KINDS,
    LABEL,
    RANGE,
    SUMMARIES,
    THINKING,
    decoded,
)
from palimpsest.formats.wording import FENCE_TOKENS, stand_in
from palimpsest.log.entry import Entry, File, Reasoning, Text, moment

HEADING_TOKENS = 14
"""The tokens of both headings and the line breaks around them, in o200k_base and cl100k_base (a test counts it)."""

LABEL_TOKENS = 9
"""The tokens of a label without its name, with the line break before it: at most 7, and 2 because the text after it may
cost more there."""

RANGE_TOKENS = 9
"""The tokens of a summary's dates with their line breaks, beyond those of a label."""

PER_BREAK = 2
"""The most tokens that the indentation after a line break costs."""

PER_ODD_BREAK = 5
"""The same for rare kinds of line breaks: encodings merge runs of these into one token, which indentation splits."""

CLAMPED_TOKENS = 6
"""The tokens that indentation adds to a clamped text: around its marker, and in the fence of background data."""

LEAST_CLAMPED = 30
"""Texts of at most so many characters are never clamped, as the marker alone costs more."""

_SPEAKERS = {"user": "User", "assistant": "Assistant", "system": "System", "tool": "Assistant"}


class PlainText(Format):
    """The format `text`: one prompt that any model can read.

    `decode` takes prompts, as texts or as `{"text": ...}`. `encode` returns at most one `{"text": ...}`, which holds
    all entries. For its own output `encode(decode(...))` returns the same.
    """

    name, content = TEXT, ""
    prime = HEADING_TOKENS

    # --- in

    def decode(self, messages: Sequence[Any], where: str = "messages") -> list[Entry]:
        """Return the texts as entries, as well as possible: a line without a label continues the entry before it.

        Text before the first heading becomes a system message, and a text without headings one message of the user.
        Raises InvalidEntry unless `messages` is a list of texts.
        """
        if isinstance(messages, str | bytes | dict) or not isinstance(messages, Sequence):
            raise InvalidEntry(where, f"a list of texts is needed, not {type(messages).__name__}")
        entries: list[Entry] = []
        for i, message in enumerate(messages):
            text = message.get("text") if isinstance(message, dict) else message
            if not isinstance(text, str):
                raise InvalidEntry(f"{where}[{i}]", f"{shorten(message)} is neither text nor a mapping with a text")
            entries.extend(decoded(text))
        return entries

    # --- out

    def encode(self, entries: Sequence[Entry]) -> list[Message]:
        """Return the entries as one text; an empty list if there are none."""
        before: list[Message] = []
        pieces: list[Message] = []
        for entry in entries:
            native = own_native(entry, TEXT)
            place = (native.keep or {}).get("place") if native is not None else None
            if place == "before" or (place == "alone" and len(entries) == 1):
                before.append({"section": "system", "text": entry.text})
            else:
                pieces.extend(_pieces(Shown(entry), {}))
        text = _prompt([*before, *pieces])
        return [{"text": text}] if text else []

    def render(self, group: Sequence[Shown], adapted: list[Adapted] | None = None) -> list[Message]:
        """Return the group's entries as pieces, each with its section and its lines."""
        names = {shown.entry.seq: shown.entry.name for shown in group if shown.entry.kind == "tool_call"}
        return [piece for shown in group for piece in _pieces(shown, names, adapted, says=True)]

    def join(self, system: str | None, messages: list[Message]) -> Joined:
        """Return the caller's system text, then the summaries, then the conversation."""
        before = [{"section": "system", "text": system}] if system else []
        summaries = [piece for piece in messages if piece["section"] == "summaries"]
        return Joined([*before, *summaries, *(piece for piece in messages if piece["section"] != "summaries")])

    def overhead(self, entry: Entry) -> int:
        """Return the tokens of the label, the name in it and indentation, beside the entry's texts."""
        text, kind, name = entry.text, entry.kind, entry.name
        tokens = LABEL_TOKENS + _indentation(text)
        if len(text) > LEAST_CLAMPED and not (kind == "message" and entry.role != "assistant"):
            tokens += CLAMPED_TOKENS
        if kind in ("tool_result", "context") or (name and kind == "tool_call" and name != _plain(name)):
            tokens += len((name or NAMELESS).encode("utf-8", "surrogatepass")) + GUARD_TOKENS * guards(name or "")
        if kind == "tool_call":
            tokens += GUARD_TOKENS * guards(text)
        elif kind == "summary":
            tokens += RANGE_TOKENS
        elif kind == "message" and entry.role == "system":
            tokens += 2  # the empty line after the caller's
        for beside in said_beside(entry, TEXT):
            tokens += LABEL_TOKENS + FENCE_TOKENS + _indentation(beside)
        if type(entry.content) is not str:
            tokens += sum(_part_overhead(part) for part in entry.content)
        return tokens

    def request(self, joined: Joined, tools: Sequence[Message], *, cache_breakpoints: bool = False) -> dict[str, Any]:
        """Return `{"prompt": ...}` with the whole text. Tools are left out, as the format has no place for them."""
        return {"prompt": _prompt(joined.messages)}

    def validate(self, messages: Sequence[Any]) -> list[Problem]:
        """Return a problem for each piece without text: nothing else can be wrong with a piece."""
        bare = (i for i, piece in enumerate(messages) if not piece.get("text"))
        return [Problem(i, "a piece needs text", "own rule") for i in bare]


# --- writing


def _prompt(pieces: Sequence[Message]) -> str:
    """Return the whole text: the system texts, then each section that is not empty under its heading."""
    sections = [piece["text"] for piece in pieces if piece["section"] == "system"]
    for section, heading in (("summaries", SUMMARIES), ("conversation", CONVERSATION)):
        lines = [piece["text"] for piece in pieces if piece["section"] == section]
        if lines:
            sections.append("\n".join([heading, *lines]))
    return "\n\n".join(sections)


def _pieces(
    shown: Shown, names: dict[int, str | None], adapted: list[Adapted] | None = None, *, says: bool = False
) -> list[Message]:
    """Return the pieces of one entry: one, or one for each run of thoughts and of other text.

    `names` are the names of the group's calls by `seq`, for results without a name. With `says` the pieces are for a
    context: texts are guarded, and messages without text left out.
    """
    entry = shown.entry
    if adapted is not None and entry.kind == "message" and entry.name:
        adapted.append(Adapted(entry.seq, "the name left out"))
    if shown.text is not None:
        texts = [(False, shown.text)]
    elif isinstance(entry.content, str):
        texts = [(False, entry.content)]
    else:
        texts = _runs(entry, adapted)
    if shown.text is None and says:
        texts = _with_more(texts, said_beside(entry, TEXT))
    if says:  # thoughts and arguments, which `guarded` leaves as they are, stand beside other texts in this format
        called = entry.kind == "tool_call"
        texts = [(thought, guard(text) if thought or called else text) for thought, text in texts]
    if entry.kind == "summary":
        text = "\n".join(text for _, text in texts)
        return [{"section": "summaries", "text": _summary(entry, text)}] if text else []
    pieces = []
    for thought, text in texts:
        if text or not (says and entry.kind == "message"):
            label = THINKING if thought else _label(entry, names)
            label = guard(label) if says else label
            pieces.append({"section": "conversation", "text": f"{label}: {_indented(text)}"})
    return pieces


def _runs(entry: Entry, adapted: list[Adapted] | None) -> list[tuple[bool, str]]:
    """Return the texts of an entry with parts, in order, merged into runs: whether it is a thought, and the text."""
    runs: list[tuple[bool, str]] = []
    for part in entry.content:
        assert not isinstance(part, str), "content is a tuple of parts here"
        thought = isinstance(part, Reasoning)
        text = part.text if isinstance(part, Reasoning) else replaced_by_text(entry, part, adapted)
        if not text and not isinstance(part, Text):
            continue
        if runs and runs[-1][0] == thought:
            runs[-1] = (thought, f"{runs[-1][1]}\n{text}")
        else:
            runs.append((thought, text))
    return runs or ([(False, "")] if entry.kind in ("tool_call", "tool_result", "context") else [])


def _with_more(runs: list[tuple[bool, str]], said: list[str]) -> list[tuple[bool, str]]:
    """Return the runs with further texts, which are added to the last run unless that is a thought."""
    if not said:
        return runs
    last = [runs[-1][1]] if runs and not runs[-1][0] else []
    return [*runs[: len(runs) - len(last)], (False, "\n".join(filter(None, [*last, *said])))]


def _label(entry: Entry, names: dict[int, str | None]) -> str:
    if entry.kind == "message":
        return _SPEAKERS[entry.role]
    name = _plain(entry.name or names.get(entry.answers) or NAMELESS)
    return f"{next(label for label, fields in KINDS.items() if fields['kind'] == entry.kind)} ({name})"


def _plain(name: str) -> str:
    """Return a name as a label may contain it: on one line, without parentheses."""
    return " ".join(name.split()).replace("(", "[").replace(")", "]") or NAMELESS


def _indented(text: str) -> str:
    """Return the text with every line after the first indented."""
    return BREAK.sub(lambda found: found[0] + INDENT, text)


def _summary(entry: Entry, text: str) -> str:
    """Return a summary's dates and text. A first line that looks like a label, a heading or dates is indented, too."""
    metadata = entry.metadata or {}
    period = metadata.get("time_range")
    start, end = (_day(period.get(key) if isinstance(period, dict) else None, entry.at) for key in ("start", "end"))
    ambiguous = text[:1].isspace() or LABEL.match(text) or RANGE.match(text) or text.startswith("===")
    return f"[{start} - {end}]\n{INDENT if ambiguous else ''}{_indented(text)}"


def _day(value: object, at: int) -> date:
    """Return the day, in UTC, of an ISO text or of microseconds since 1970; the day of `at` if it is neither."""
    try:
        if isinstance(value, str):
            time = datetime.fromisoformat(value)
            return (time if time.tzinfo is None else time.astimezone(UTC)).date()
        if isinstance(value, int):
            return moment(value).date()
    except (ValueError, OverflowError, OSError):
        pass
    return moment(at).date()


# --- what it costs


def _indentation(text: str) -> int:
    """Return the most tokens that indentation adds to the text."""
    breaks, plain = len(f"{text}.".splitlines()) - 1, text.count("\n")
    return PER_BREAK * plain + PER_ODD_BREAK * (breaks - plain)


def _part_overhead(part: Any) -> int:
    """Return what a part costs beside its text: its stand-in, or a label of its own."""
    if isinstance(part, Text):
        return PER_BREAK
    if isinstance(part, File):
        return FENCE_TOKENS + len(stand_in(part).encode("utf-8", "surrogatepass"))
    return FENCE_TOKENS + 2 * PER_BREAK
