"""Summaries by a model: a plain one, or passes that make it denser. Pure: the generator's driver asks the model."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

import msgspec

from palimpsest.errors import SummarizerFailed
from palimpsest.log.summary import Method, Summary, SummaryItem
from palimpsest.summaries import (
    Count,
    Draft,
    Passes,
    Prompt,
    Purpose,
    Recipe,
    Rejected,
    Reply,
    SummarySource,
    prompts,
    replies,
)
from palimpsest.summaries.guards import SLACK, Protected, Support, completed, echoes, mention, pinned_of, protected
from palimpsest.summaries.identifiers import contains
from palimpsest.summaries.parts import parts_of
from palimpsest.summaries.sections import rendered

SHORTEST, LONGEST = 0.8, 1.1
"""Bounds of a denser pass, as shares of the target, unless the previous pass was shorter or longer already."""

_NO_FORM = "it is not JSON of the form that was asked for."

_T = TypeVar("_T")
_Asking = Generator[Prompt, Reply, _T]


def summarise(source: SummarySource, recipe: Recipe, count: Count) -> Passes:
    """Yield prompts, receive replies, and return a draft of a summary of `source` as `recipe` wants it.

    If `recipe.loops` is 0, or there is a template, one plain summary is asked for. Otherwise it is Chain of Density
    (Adams et al. 2023, "From Sparse to Dense: GPT-4 Summarization with Chain of Density Prompting"): a first pass in
    sections, then passes that name what is missing and work it in at the same length. Each pass must meet the guards
    and is tried twice; if it fails, the last good one stands. A source longer than the summarizer reads is folded part
    by part. No text aims at more than the summarizer can answer at once.

    SummarizerFailed may be thrown into the generator: at a later pass it ends the chain, at the first one it
    propagates. Raises Rejected if nothing acceptable results.
    """
    recipe = prompts.attainable(recipe, structured=_is_structured(recipe))
    parts = parts_of(source, recipe, count)
    notes: tuple[str, ...] = (f"the source was folded in {len(parts)} parts",) if len(parts) > 1 else ()
    earlier: tuple[Summary, ...] = ()
    for part in parts[:-1]:
        part_recipe = msgspec.structs.replace(recipe, loops=min(recipe.loops, 1))
        part_source = msgspec.structs.replace(part, previous=(*earlier, *part.previous))
        part_source = msgspec.structs.replace(part_source, pinned=_pinned_within(part_source))
        draft = yield from _Run(part_source, part_recipe, count).passes()
        earlier = (Summary(id="", text=draft.text, covers=(), items=draft.items),)
        notes += draft.notes
    last = msgspec.structs.replace(parts[-1], previous=(*earlier, *parts[-1].previous))
    draft = yield from _Run(last, recipe, count).passes()
    return msgspec.structs.replace(draft, notes=notes + draft.notes)


def _is_structured(recipe: Recipe) -> bool:
    """Whether answers are JSON."""
    return recipe.loops > 0 and recipe.template is None


def _pinned_within(source: SummarySource) -> tuple[str, ...]:
    """Return the pinned identifiers that occur in this part; the others come with later parts."""
    text = _text_of(source)
    return tuple(identifier for identifier in source.pinned if contains(text, identifier))


def _text_of(source: SummarySource) -> str:
    return "\n".join((*(summary.text for summary in source.previous), *map(prompts.written, source.entries)))


class _Candidate(msgspec.Struct, frozen=True):
    """A text that may become the summary, its tokens, and its items if it has any."""

    text: str
    tokens: int
    items: tuple[SummaryItem, ...] = ()


class _Run:
    """The passes over one source. Methods that yield ask the summarizer."""

    def __init__(self, source: SummarySource, recipe: Recipe, count: Count) -> None:
        self.recipe, self.count = recipe, count
        self.structured = _is_structured(recipe)
        self.ask = prompts.ask(source, recipe, structured=self.structured)
        self.mark = prompts.mark_of(source, recipe)
        self.most = min(recipe.most, recipe.source_tokens - 1)
        self.text = _text_of(source)
        pinned = pinned_of(source)
        self.wording = prompts.wording(recipe, self.mark, structured=self.structured)
        # Instructions may use other words than the source, and names of their own.
        requests = (recipe.instructions or "", recipe.template or "")
        self.support = Support("\n".join((self.text, *pinned, *requests)), words=not any(requests))
        earlier_text = "\n".join(summary.text for summary in source.previous)
        items = [item for summary in source.previous for item in summary.items]
        self.protected = Protected()
        if recipe.checked:
            self.protected = protected(earlier_text, items, pinned, recipe.target, count)
        self.seqs = {entry.seq for entry in source.entries}.union(*(item.sources for item in items))
        self.notes: list[str] = []

    def passes(self) -> Passes:
        """Return the best draft of all passes."""
        if not self.structured:
            return self.draft((yield from self.plain()), "plain")
        candidate, is_read = yield from self.seed()
        number = 1
        while is_read and number < self.recipe.loops:
            denser = yield from self.denser(candidate)
            if denser is None:
                break
            candidate, number = denser, number + 1
        return self.draft(candidate, "density", number) if is_read else self.draft(candidate, "plain")

    def draft(self, candidate: _Candidate, method: Method, passes: int = 0) -> Draft:
        """Return the candidate as a draft, with the pinned identifiers as items."""
        pinned = (SummaryItem(kind="fact", text=text, pinned=True) for text in self.protected.pinned)
        return Draft(
            text=candidate.text,
            method=method,
            items=(*candidate.items, *pinned),
            passes=passes,
            prompt=prompts.PROMPT_VERSION,
            notes=tuple(self.notes),
        )

    # --- first passes

    def plain(self) -> _Asking[_Candidate]:
        """Ask for a plain summary."""
        task = prompts.plain(self.recipe)
        reply = yield self.ask.prompt(task)
        return (yield from self.settled(self.as_text(reply), task, self.as_text))

    def seed(self) -> _Asking[tuple[_Candidate, bool]]:
        """Ask for the first pass. Return it, and whether it has the form that was asked for (else it is plain text)."""
        task = prompts.seed(self.recipe)
        reply = yield self.ask.prompt(task)
        candidate = self.read(reply)
        if candidate is None and not replies.plain(reply):
            raise Rejected("empty", "the summarizer returned an empty answer")
        if candidate is not None and not candidate.text:
            raise Rejected("failed", "the source supports nothing of what the summarizer answered")
        if candidate is None:
            second_reply = yield from self.ask_again(task, _NO_FORM, reply.text, "repair")
            candidate = self.read(second_reply) if second_reply is not None else None
            if candidate is None or not candidate.text:
                self.notes.append("no answer had the form asked for; its text was taken as it is")
                self.ask = msgspec.structs.replace(self.ask, structured=False)
                plain_candidate, task = self.as_text(reply, second_reply), prompts.plain(self.recipe)
                return (
                    yield from self.settled(plain_candidate, task, self.as_text, repaired=second_reply is not None)
                ), False
        return (yield from self.settled(candidate, task, self.read)), True

    def ask_again(self, task: str, why: str, answer: str, purpose: Purpose) -> _Asking[Reply | None]:
        """Ask once more, saying what was wrong. None if the summarizer fails."""
        try:
            return (yield self.ask.prompt(prompts.again(task, why, answer), purpose))
        except SummarizerFailed as failed:
            self.notes.append(f"asked once more ({purpose}), the summarizer gave no answer: {failed.kind}")
            return None

    def read(self, reply: Reply) -> _Candidate | None:
        """Parse a reply as a pass; None if it is not one. The text is empty if the source supports none of it."""
        step = replies.parse(reply)
        if step is None or not (step.items or step.text):
            return None
        items = tuple(map(self.placed, filter(self.is_supported, step.items)))
        if left_out := len(step.items) - len(items):
            self.notes.append(f"items that the source does not support were left out: {left_out}")
        text = rendered(items) if step.items else step.text
        return _Candidate(text, self.count(text), items)

    def as_text(self, reply: Reply, second: Reply | None = None) -> _Candidate:
        """Return a reply as plain text. Of two replies, prefer the one that is not broken JSON."""
        texts = [text for text in map(replies.plain, filter(None, (reply, second))) if text]
        text = next((text for text in texts if text[0] not in "{["), texts[0] if texts else "")
        return _Candidate(text, self.count(text))

    def is_supported(self, item: SummaryItem) -> bool:
        return self.support.holds(item.text)

    def placed(self, item: SummaryItem) -> SummaryItem:
        """Return the item without sources that the source does not have."""
        sources = tuple(dict.fromkeys(seq for seq in item.sources if seq in self.seqs))
        return msgspec.structs.replace(item, sources=sources)

    # --- requirements of every text

    def settled(
        self, candidate: _Candidate, task: str, read: Callable[[Reply], _Candidate | None], *, repaired: bool = False
    ) -> _Asking[_Candidate]:
        """Have a first text shortened or completed once, if it needs to be, and return it in its final form.

        A text that is no summary of its source is asked for once more, unless it is `repaired` already. Raises Rejected
        if no text is acceptable.
        """
        if not candidate.text:
            raise Rejected("empty", "the summarizer returned an empty answer")
        if reason := self.why_unfit(candidate):
            reply = None if repaired else (yield from self.ask_again(task, reason, "", "repair"))
            second = read(reply) if reply is not None else None
            if second is None or self.why_unfit(second):
                raise Rejected("failed", f"the answer is not a summary of its source: {reason}")
            candidate = second
        candidate = self.supported_part(candidate)
        limit = min(int(SLACK * self.recipe.target), self.most)
        is_long, lost = candidate.tokens > limit, self.lost(candidate.text, self.protected)
        if is_long or lost:
            why = prompts.too_long(candidate.tokens, self.recipe) if is_long else ""
            why = f"{why} {prompts.lacking(lost)}".lstrip() if lost else why
            reply = yield from self.ask_again(task, why, candidate.text, "shorten" if is_long else "repair")
            second = read(reply) if reply is not None else None
            if second is not None and self.is_better(second, candidate, limit):
                candidate = second
        return self.fitted(candidate)

    def is_better(self, second: _Candidate, first: _Candidate, limit: int) -> bool:
        """Whether the second answer is better than the first: short enough, or with less lost."""
        if not second.text or self.why_unfit(second):
            return False
        second = self.supported_part(second)
        if first.tokens > limit:
            return second.tokens <= max(limit, first.tokens)
        return second.tokens <= limit and len(self.protected.lost(second.text)) < len(self.protected.lost(first.text))

    def why_unfit(self, candidate: _Candidate) -> str:
        """Return why a text is no summary of its source, whatever its length; "" if it may be one."""
        if not self.recipe.checked:
            return ""
        if self.echoes(candidate.text):
            return "it repeats what was asked, or the marks around the source."
        if not self.support.tells(self.supported_part(candidate).text):
            return "it says nothing of what is in the source."
        return ""

    def echoes(self, text: str) -> bool:
        """Whether a text repeats the prompt."""
        return echoes(text, self.mark, self.wording, self.text)

    def supported_part(self, candidate: _Candidate) -> _Candidate:
        """Return the text without sentences that name what the source does not. Items have been checked before."""
        text = candidate.text if candidate.items or not self.recipe.checked else self.support.within(candidate.text)
        return candidate if text == candidate.text else _Candidate(text, self.count(text))

    def lost(self, text: str, wanted: Protected) -> list[str]:
        """Return what a text has lost, restricted to what the model has read and can restore."""
        return [identifier for identifier in wanted.lost(text) if contains(self.text, identifier)]

    def fitted(self, candidate: _Candidate) -> _Candidate:
        """Return the text with every pinned identifier, within its bound. Raises Rejected if it would save nothing."""
        if candidate.tokens >= self.recipe.source_tokens:
            raise Rejected("no_gain", f"{candidate.tokens} tokens for a source of {self.recipe.source_tokens}")
        text = completed(candidate.text, self.protected, self.most, self.count)
        if text == candidate.text:
            return candidate
        if not text:
            raise Rejected("no_gain", f"nothing of it can be told in {max(self.most, 0)} tokens")
        kept = tuple(item for item in candidate.items if item.text in text)
        if candidate.tokens > self.most or len(kept) < len(candidate.items):
            self.notes.append(f"it was cut: {candidate.tokens} tokens where {self.most} may be taken")
        line = text.rpartition("\n")[2]
        if line.startswith(mention(())) and line not in candidate.text:
            self.notes.append("identifiers that it had lost were added")
            kept = (*kept, SummaryItem(kind="fact", text=line)) if kept else ()
        return _Candidate(text, self.count(text), kept)

    # --- denser passes

    def denser(self, candidate: _Candidate) -> _Asking[_Candidate | None]:
        """Ask for a denser version; None if there is none that is better than the candidate."""
        task = prompts.densify(self.recipe, candidate.items, candidate.text)
        prompt = self.ask.prompt(task, "densify")
        for attempt in ("first", "second"):
            try:
                reply = yield prompt
            except SummarizerFailed as failed:
                self.notes.append(f"a denser pass had no answer: {failed.kind}")
                return None
            step = replies.parse(reply)
            denser = self.version(step) if step is not None else None
            if step is not None and self.is_done(step, denser, candidate):
                return None
            fault = self.fault(step, denser, candidate) if step is not None and denser is not None else _NO_FORM
            if denser is not None and not fault:
                return denser
            if attempt == "first":
                purpose: Purpose = "densify" if denser is not None else "repair"
                prompt = self.ask.prompt(prompts.again(task, fault, replies.plain(reply)), purpose)
        self.notes.append(f"a denser pass was not accepted: {fault}")
        return None

    def version(self, step: replies.Pass) -> _Candidate | None:
        items = tuple(map(self.placed, step.items))
        text = rendered(items) if items else step.text
        return _Candidate(text, self.count(text), items) if text else None

    def is_done(self, step: replies.Pass, denser: _Candidate | None, previous: _Candidate) -> bool:
        """Whether nothing is missing any more, or nothing has changed."""
        if step.missing is not None and all(name.casefold() in previous.text.casefold() for name in step.missing):
            return True
        return denser is not None and denser.text == previous.text

    def fault(self, step: replies.Pass, denser: _Candidate, previous: _Candidate) -> str:
        """Return what is wrong with a denser version of the previous text; "" if it is acceptable."""
        if self.echoes(denser.text):
            return "it repeats what was asked, or the marks around the source."
        known_texts = {item.text for item in previous.items}
        new_texts = [item.text for item in denser.items if item.text not in known_texts]
        if unsupported := [text for text in (*(step.missing or ()), *new_texts) if not self.support.holds(text)]:
            return f"this is not in the source: {'; '.join(unsupported[:3])}."
        earlier = protected(previous.text, previous.items, self.protected.pinned, self.recipe.target, self.count)
        if lost := [*self.protected.lost(denser.text), *earlier.lost(denser.text)]:
            return prompts.lacking(list(dict.fromkeys(lost)))
        target = self.recipe.target
        if denser.tokens > min(max(LONGEST * target, previous.tokens), self.most):
            return prompts.too_long(denser.tokens, self.recipe)
        if denser.tokens < SHORTEST * min(target, previous.tokens):
            return (
                f"it takes {denser.tokens} tokens where the one before took {previous.tokens}: too much was left out."
            )
        return ""
