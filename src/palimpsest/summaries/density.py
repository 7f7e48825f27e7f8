"""Summaries by a model: a plain one, or passes that make it denser. Pure: who drives the generator asks the model."""

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
"""Of the target: between these a denser pass has to be, unless the pass before was shorter or longer already."""

_NO_FORM = "it is not JSON of the form that was asked for."

_T = TypeVar("_T")
_Asking = Generator[Prompt, Reply, _T]


def summarise(source: SummarySource, recipe: Recipe, count: Count) -> Passes:
    """Yield prompts, take the replies, and return the draft: what `SummarySource` says, as `Recipe` wants it.

    With `recipe.loops` 0, or with a template, one plain summary is asked for. Else it is Chain of Density (Adams et al.
    2023, "From Sparse to Dense: GPT-4 Summarization with Chain of Density Prompting"): a first pass in sections, then
    passes that name what is missing and work it in at the same length. Each must pass the guards and is tried twice;
    then the last good one stands. A source longer than the summarizer reads is folded part by part. No text aims at
    more than the summarizer answers with at once.

    SummarizerFailed may be thrown in: at a later pass it ends the chain, at a first one it comes out. Raises Rejected
    where nothing acceptable came of it.
    """
    recipe = prompts.attainable(recipe, structured=_is_structured(recipe))
    parts = parts_of(source, recipe, count)
    notes: tuple[str, ...] = (f"the source was folded in {len(parts)} parts",) if len(parts) > 1 else ()
    before: tuple[Summary, ...] = ()
    for part in parts[:-1]:
        seed = msgspec.structs.replace(recipe, loops=min(recipe.loops, 1))
        some = msgspec.structs.replace(part, previous=(*before, *part.previous))
        draft = yield from _Run(msgspec.structs.replace(some, pinned=_known(some)), seed, count).passes()
        before = (Summary(id="", text=draft.text, covers=(), items=draft.items),)
        notes += draft.notes
    last = msgspec.structs.replace(parts[-1], previous=(*before, *parts[-1].previous))
    draft = yield from _Run(last, recipe, count).passes()
    return msgspec.structs.replace(draft, notes=notes + draft.notes)


def _is_structured(recipe: Recipe) -> bool:
    """Whether answers are to be JSON."""
    return recipe.loops > 0 and recipe.template is None


def _known(source: SummarySource) -> tuple[str, ...]:
    """What is pinned and occurs in this part: the rest comes with a later one."""
    text = _text_of(source)
    return tuple(identifier for identifier in source.pinned if contains(text, identifier))


def _text_of(source: SummarySource) -> str:
    return "\n".join((*(made.text for made in source.previous), *map(prompts.written, source.entries)))


class _Made(msgspec.Struct, frozen=True):
    """A summary on its way: its items, where it has any, its text, and what that takes."""

    text: str
    tokens: int
    items: tuple[SummaryItem, ...] = ()


class _Run:
    """The passes over one source. Every method that yields asks the summarizer."""

    def __init__(self, source: SummarySource, recipe: Recipe, count: Count) -> None:
        self.recipe, self.count = recipe, count
        self.structured = _is_structured(recipe)
        self.ask = prompts.ask(source, recipe, structured=self.structured)
        self.mark = prompts.mark_of(source, recipe)
        self.most = min(recipe.most, recipe.source_tokens - 1)
        self.text = _text_of(source)
        pinned = pinned_of(source)
        self.wording = prompts.wording(recipe, self.mark, structured=self.structured)
        # What a user asks for may be in other words than the source, and may name what he names.
        wishes = (recipe.instructions or "", recipe.template or "")
        self.support = Support("\n".join((self.text, *pinned, *wishes)), words=not any(wishes))
        before = "\n".join(summary.text for summary in source.previous)
        items = [item for summary in source.previous for item in summary.items]
        self.protected = Protected()
        if recipe.checked:
            self.protected = protected(before, items, pinned, recipe.target, count)
        self.places = {entry.seq for entry in source.entries}.union(*(item.sources for item in items))
        self.notes: list[str] = []

    def passes(self) -> Passes:
        """Return the best draft of all passes."""
        if not self.structured:
            return self.draft((yield from self.plain()), "plain")
        made, is_read = yield from self.seed()
        number = 1
        while is_read and number < self.recipe.loops:
            denser = yield from self.denser(made)
            if denser is None:
                break
            made, number = denser, number + 1
        return self.draft(made, "density", number) if is_read else self.draft(made, "plain")

    def draft(self, made: _Made, method: Method, passes: int = 0) -> Draft:
        pinned = (SummaryItem(kind="fact", text=text, pinned=True) for text in self.protected.pinned)
        return Draft(
            text=made.text,
            method=method,
            items=(*made.items, *pinned),
            passes=passes,
            prompt=prompts.PROMPT_VERSION,
            notes=tuple(self.notes),
        )

    # --- first passes

    def plain(self) -> _Asking[_Made]:
        """Ask for a plain summary."""
        task = prompts.plain(self.recipe)
        reply = yield self.ask.prompt(task)
        return (yield from self.settled(self.told(reply), task, self.told))

    def seed(self) -> _Asking[tuple[_Made, bool]]:
        """Ask for the first pass; whether it could be read as one, or is plain text."""
        task = prompts.seed(self.recipe)
        reply = yield self.ask.prompt(task)
        made = self.read(reply)
        if made is None and not replies.plain(reply):
            raise Rejected("empty", "the summarizer answered nothing")
        if made is not None and not made.text:
            raise Rejected("failed", "nothing of what the summarizer answered is in the source")
        if made is None:
            second = yield from self.again(task, _NO_FORM, reply.text, "repair")
            made = self.read(second) if second is not None else None
            if made is None or not made.text:
                self.notes.append("no answer had the form asked for; its text was taken as it is")
                self.ask = msgspec.structs.replace(self.ask, structured=False)
                said, task = self.told(reply, second), prompts.plain(self.recipe)
                return (yield from self.settled(said, task, self.told, repaired=second is not None)), False
        return (yield from self.settled(made, task, self.read)), True

    def again(self, task: str, why: str, answer: str, purpose: Purpose) -> _Asking[Reply | None]:
        """Ask once more, saying what was wrong; None where there is no answer to be had."""
        try:
            return (yield self.ask.prompt(prompts.again(task, why, answer), purpose))
        except SummarizerFailed as failed:
            self.notes.append(f"asked once more ({purpose}), the summarizer gave no answer: {failed.kind}")
            return None

    def read(self, reply: Reply) -> _Made | None:
        """The pass that a reply is, empty where its source supports nothing of it; None where it is none."""
        step = replies.parse(reply)
        if step is None or not (step.items or step.text):
            return None
        items = tuple(map(self.placed, filter(self.is_supported, step.items)))
        if left := len(step.items) - len(items):
            self.notes.append(f"items that the source does not support were left out: {left}")
        text = rendered(items) if step.items else step.text
        return _Made(text, self.count(text), items)

    def told(self, reply: Reply, second: Reply | None = None) -> _Made:
        """A reply as plain text; of two the one that is no broken JSON."""
        texts = [text for text in map(replies.plain, filter(None, (reply, second))) if text]
        text = next((text for text in texts if text[0] not in "{["), texts[0] if texts else "")
        return _Made(text, self.count(text))

    def is_supported(self, item: SummaryItem) -> bool:
        return self.support.holds(item.text)

    def placed(self, item: SummaryItem) -> SummaryItem:
        """The item without places that the source does not have."""
        sources = tuple(dict.fromkeys(seq for seq in item.sources if seq in self.places))
        return msgspec.structs.replace(item, sources=sources)

    # --- what every text must meet

    def settled(
        self, made: _Made, task: str, read: Callable[[Reply], _Made | None], *, repaired: bool = False
    ) -> _Asking[_Made]:
        """Have a first text shortened or completed where it needs to be, once, and return it as it can stand.

        One that is no summary of its source is asked for once more, unless it is `repaired`. Raises Rejected where no
        text can stand.
        """
        if not made.text:
            raise Rejected("empty", "the summarizer answered nothing")
        if unfit := self.unfit(made):
            reply = None if repaired else (yield from self.again(task, unfit, "", "repair"))
            other = read(reply) if reply is not None else None
            if other is None or self.unfit(other):
                raise Rejected("failed", f"the answer is no summary of its source: {unfit}")
            made = other
        made = self.within(made)
        limit = min(int(SLACK * self.recipe.target), self.most)
        is_long, lost = made.tokens > limit, self.lost(made.text, self.protected)
        if is_long or lost:
            why = prompts.too_long(made.tokens, self.recipe) if is_long else ""
            why = f"{why} {prompts.lacking(lost)}".lstrip() if lost else why
            reply = yield from self.again(task, why, made.text, "shorten" if is_long else "repair")
            other = read(reply) if reply is not None else None
            if other is not None and self.is_better(other, made, limit):
                made = other
        return self.fitted(made)

    def is_better(self, other: _Made, made: _Made, limit: int) -> bool:
        """Whether the second answer is nearer to what was asked for: short enough first, then with less lost."""
        if not other.text or self.unfit(other):
            return False
        other = self.within(other)
        if made.tokens > limit:
            return other.tokens <= max(limit, made.tokens)
        return other.tokens <= limit and len(self.protected.lost(other.text)) < len(self.protected.lost(made.text))

    def unfit(self, made: _Made) -> str:
        """Why a text is no summary of its source, whatever its length; nothing where it may be one."""
        if not self.recipe.checked:
            return ""
        if self.echoes(made.text):
            return "it repeats what was asked, or the marks around the source."
        if not self.support.tells(self.within(made).text):
            return "it says nothing of what is in the source."
        return ""

    def echoes(self, text: str) -> bool:
        """Whether a text repeats the prompt."""
        return echoes(text, self.mark, self.wording, self.text)

    def within(self, made: _Made) -> _Made:
        """A text without the sentences that name what the source does not; of items such have been left out."""
        text = made.text if made.items or not self.recipe.checked else self.support.within(made.text)
        return made if text == made.text else _Made(text, self.count(text))

    def lost(self, text: str, wanted: Protected) -> list[str]:
        """What a text has lost and a model can give back, because it is in what the model reads."""
        return [identifier for identifier in wanted.lost(text) if contains(self.text, identifier)]

    def fitted(self, made: _Made) -> _Made:
        """The text with every pinned identifier and within its bound; Rejected where it would save nothing."""
        if made.tokens >= self.recipe.source_tokens:
            raise Rejected("no_gain", f"{made.tokens} tokens for a source of {self.recipe.source_tokens}")
        text = completed(made.text, self.protected, self.most, self.count)
        if text == made.text:
            return made
        if not text:
            raise Rejected("no_gain", f"nothing of it can be told in {max(self.most, 0)} tokens")
        kept = tuple(item for item in made.items if item.text in text)
        if made.tokens > self.most or len(kept) < len(made.items):
            self.notes.append(f"it was cut: {made.tokens} tokens where {self.most} may be taken")
        line = text.rpartition("\n")[2]
        if line.startswith(mention(())) and line not in made.text:
            self.notes.append("identifiers that it had lost were added")
            kept = (*kept, SummaryItem(kind="fact", text=line)) if kept else ()
        return _Made(text, self.count(text), kept)

    # --- denser passes

    def denser(self, made: _Made) -> _Asking[_Made | None]:
        """Ask for a denser version; None where there is none that is better than `made`."""
        task = prompts.densify(self.recipe, made.items, made.text)
        prompt = self.ask.prompt(task, "densify")
        for attempt in ("first", "second"):
            try:
                reply = yield prompt
            except SummarizerFailed as failed:
                self.notes.append(f"a denser pass had no answer: {failed.kind}")
                return None
            step = replies.parse(reply)
            denser = self.version(step) if step is not None else None
            if step is not None and self.is_done(step, denser, made):
                return None
            fault = self.fault(step, denser, made) if step is not None and denser is not None else _NO_FORM
            if denser is not None and not fault:
                return denser
            if attempt == "first":
                purpose: Purpose = "densify" if denser is not None else "repair"
                prompt = self.ask.prompt(prompts.again(task, fault, replies.plain(reply)), purpose)
        self.notes.append(f"a denser pass was not accepted: {fault}")
        return None

    def version(self, step: replies.Pass) -> _Made | None:
        items = tuple(map(self.placed, step.items))
        text = rendered(items) if items else step.text
        return _Made(text, self.count(text), items) if text else None

    def is_done(self, step: replies.Pass, denser: _Made | None, made: _Made) -> bool:
        """Whether nothing is missing any more, or nothing has changed."""
        if step.missing is not None and all(name.casefold() in made.text.casefold() for name in step.missing):
            return True
        return denser is not None and denser.text == made.text

    def fault(self, step: replies.Pass, denser: _Made, made: _Made) -> str:
        """What is wrong with a denser version of `made`; nothing where it can be accepted."""
        if self.echoes(denser.text):
            return "it repeats what was asked, or the marks around the source."
        known = {item.text for item in made.items}
        new = [item.text for item in denser.items if item.text not in known]
        if alien := [text for text in (*(step.missing or ()), *new) if not self.support.holds(text)]:
            return f"this is not in the source: {'; '.join(alien[:3])}."
        earlier = protected(made.text, made.items, self.protected.pinned, self.recipe.target, self.count)
        if lost := [*self.protected.lost(denser.text), *earlier.lost(denser.text)]:
            return prompts.lacking(list(dict.fromkeys(lost)))
        target = self.recipe.target
        if denser.tokens > min(max(LONGEST * target, made.tokens), self.most):
            return prompts.too_long(denser.tokens, self.recipe)
        if denser.tokens < SHORTEST * min(target, made.tokens):
            return f"it takes {denser.tokens} tokens where the one before took {made.tokens}: too much was left out."
        return ""
