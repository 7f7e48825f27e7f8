"""The page that `palimpsest context --html` writes: a session's model calls, reconstructed from its log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from palimpsest.cli.drawing import Bar
from palimpsest.cli.markup import page, tag
from palimpsest.cli.opening import all_entries
from palimpsest.cli.output import counted, moment
from palimpsest.cli.seen import Seen, cut_text, price_of, repeated, sections
from palimpsest.errors import BudgetImpossible, PastUnknown
from palimpsest.log.entry import now_us
from palimpsest.tokens.models import find_model

if TYPE_CHECKING:
    from palimpsest import Context, Session

NEWEST = 300
"""How many calls, the newest ones, a page shows."""


def context_page(chat: Session, context: Context, caller_parts: Mapping[str, Any], view: str, model: str | None) -> str:
    """Return a page about a session; `context` is that of its next call.

    The log does not record calls: each answer of the assistant counts as one. Its context is computed from the log as
    it was at that revision, with today's budget and the system text and tools in `caller_parts`.
    """
    words, calls, entries, newest = dict[int, str](), list[int](), 0, 0
    for entry in all_entries(chat):
        entries, newest = entries + 1, entry.seq
        words[entry.seq] = "(erased)" if entry.erased else entry.text
        if entry.role == "assistant" and entry.revision > 1 and entry.revision - 1 not in calls[-1:]:
            calls.append(entry.revision - 1)
    seen = list(_seen(chat, calls[-NEWEST:], len(calls), context, caller_parts, view))
    known_model = find_model(model) if model is not None else None
    lost = min(len(calls), NEWEST) + 1 - len(seen)
    notes = []
    if len(calls) > NEWEST:
        notes.append(f"The newest {NEWEST} of {len(calls):,} calls are shown.")
    if lost:
        notes.append(f"What the model was given in {counted(lost, 'call')} cannot be found out any more.")
    notes.append(
        "A call is a request to the model. Each answer in the log stands for one call, and answers that were added in "
        "one batch for one together; the last call is the one to come. "
        "Each is computed from the log as it was then, with the present budget and system text."
    )
    head = (
        tag("h1", f"What the model sees of {chat.id}"),
        tag(
            "p",
            f"{counted(entries, 'entry')}, revision {context.revision:,}, as of {moment(now_us())} UTC.",
            class_="quiet",
        ),
        tag("p", " ".join(notes)),
    )
    return page(f"{chat.id} - Palimpsest", *head, sections(seen, price_of(known_model), words, newest))


def _seen(
    chat: Session, revisions: Sequence[int], calls: int, newest: Context, caller_parts: Mapping[str, Any], view: str
) -> Iterator[Seen]:
    """Yield the calls at these revisions, and the next one; contexts that cannot be computed any more are skipped."""
    cuts = {record.revision: record for record in chat.history() if record.kind == "cut" and record.view in ("", view)}
    before: Context | None = None
    reached = 0
    first = calls - len(revisions) + 1
    for number, revision in enumerate([*revisions, None], first):
        try:
            context = newest if revision is None else chat.context(**caller_parts, at=revision, dry_run=True)
        except (PastUnknown, BudgetImpossible):
            continue
        at = context.revision
        new_cuts = [cut for cut in cuts.values() if reached < cut.revision <= at]
        cut_description = cut_text(new_cuts[-1].reason, new_cuts[-1].detail) if new_cuts else ""
        if not cut_description and context.report.new_cut:
            cut_description = cut_text(context.report.epoch_reason or "a cut is due", {})
        yield Seen(number, f"revision {at:,}", context, _bar(before, context), cut_description)
        before, reached = context, at


def _bar(before: Context | None, context: Context) -> Bar:
    """Return the tokens that a call sends and those that repeat the call before.

    The latter are estimated from the length of the messages at the start that are equal.
    """
    if before is None:
        return Bar(context.tokens, 0)
    parts = context.parts
    fixed = parts.system + parts.tools + parts.overhead
    sizes = [len(json.dumps(message)) for message in context.messages]
    same = sum(sizes[: repeated(before.messages, context.messages)]) / max(sum(sizes), 1)
    return Bar(context.tokens, min(round(fixed + same * (context.tokens - fixed)), context.tokens))
