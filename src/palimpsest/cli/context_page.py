"""The page that `palimpsest context --html` writes: a session's calls, as they are told by its log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from palimpsest.cli.drawing import Bar
from palimpsest.cli.markup import page, tag
from palimpsest.cli.opening import all_entries
from palimpsest.cli.output import counted, moment
from palimpsest.cli.seen import Seen, price_of, repeated, sections, told_cut
from palimpsest.errors import BudgetImpossible, PastUnknown
from palimpsest.log.entry import now_us
from palimpsest.tokens.models import find_model

if TYPE_CHECKING:
    from palimpsest import Context, Session

NEWEST = 300
"""Calls that a page shows, the newest ones."""


def context_page(chat: Session, context: Context, brought: Mapping[str, Any], view: str, model: str | None) -> str:
    """Return a page about a session, whose newest context is given.

    A call is what came before an answer: what was given then is computed from the log of then, with the budget of now.
    """
    words, calls, entries, newest = dict[int, str](), list[int](), 0, 0
    for entry in all_entries(chat):
        entries, newest = entries + 1, entry.seq
        words[entry.seq] = "(erased)" if entry.erased else entry.text
        if entry.role == "assistant" and entry.revision > 1 and entry.revision - 1 not in calls[-1:]:
            calls.append(entry.revision - 1)
    seen = list(_seen(chat, calls[-NEWEST:], len(calls), context, brought, view))
    known = find_model(model) if model is not None else None
    lost = min(len(calls), NEWEST) + 1 - len(seen)
    notes = []
    if len(calls) > NEWEST:
        notes.append(f"The newest {NEWEST} of {len(calls):,} calls are shown.")
    if lost:
        notes.append(f"What {counted(lost, 'call')} was given cannot be known any more.")
    notes.append(
        "A call is what came before an answer; the last is still to come. What was added in one batch counts as one. "
        "Each is computed from the log of then, with the budget and system text of now."
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
    return page(f"{chat.id} - Palimpsest", *head, sections(seen, price_of(known), words, newest))


def _seen(
    chat: Session, revisions: Sequence[int], calls: int, newest: Context, brought: Mapping[str, Any], view: str
) -> Iterator[Seen]:
    cuts = {record.revision: record for record in chat.history() if record.kind == "cut" and record.view in ("", view)}
    before: Context | None = None
    reached = 0
    first = calls - len(revisions) + 1
    for number, revision in enumerate([*revisions, None], first):
        try:
            context = newest if revision is None else chat.context(**brought, at=revision, dry_run=True)
        except (PastUnknown, BudgetImpossible):
            continue
        at = context.revision
        made = [cut for cut in cuts.values() if reached < cut.revision <= at]
        told = told_cut(made[-1].reason, made[-1].detail) if made else ""
        if not told and context.report.new_cut:
            told = told_cut(context.report.epoch_reason or "a cut is due", {})
        yield Seen(number, f"revision {at:,}", context, _bar(before, context), told)
        before, reached = context, at


def _bar(before: Context | None, now: Context) -> Bar:
    """What a call sends, and what of that repeats the call before: by the length of the messages that are the same."""
    if before is None:
        return Bar(now.tokens, 0)
    parts = now.parts
    fixed = parts.system + parts.tools + parts.overhead
    sizes = [len(json.dumps(message)) for message in now.messages]
    same = sum(sizes[: repeated(before.messages, now.messages)]) / max(sum(sizes), 1)
    return Bar(now.tokens, min(round(fixed + same * (now.tokens - fixed)), now.tokens))
