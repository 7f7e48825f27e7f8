"""Words that a redaction of stored entries removed, and that no remaining entry says. Pure.

A summary may quote such a word without what gave it away: of `password: swordfish` it may list "swordfish" alone, and
of a long message it may quote half an address. No rule finds it there. So what is found in entries is removed from
their session's summaries word by word.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from palimpsest.log.entry import Entry
from palimpsest.log.summary import Summary
from palimpsest.privacy.records import recounted

_WORD = re.compile(r"\w{4,}")  # shorter words give nothing away, and occur in many texts


class Removed:
    """The words removed from a session's entries, and those that its entries still say.

    `shared` has the words removed from each entry, by its id, for branches that share entries with another session.
    `has_summaries` says whether this session has summaries: only then does it matter what its entries still say.
    """

    def __init__(self, shared: dict[str, frozenset[str]], *, has_summaries: bool) -> None:
        self._shared, self._has_summaries = shared, has_summaries
        self._gone, self._said = set[str](), set[str]()

    def look_at(self, before: Entry, after: Entry) -> None:
        """Take in what an entry said before, and what it says now."""
        if after is before and not self._has_summaries:
            return
        said = _words(after)
        if self._has_summaries:
            self._said |= said
        gone = self._shared.get(before.id, frozenset())
        if after is not before:
            gone |= _words(before) - said
        if gone:
            self._gone |= gone
            self._shared[before.id] = gone

    def clear(self) -> None:
        """Forget all words, which may be as many as the session has; `shared` stays."""
        self._gone.clear()
        self._said.clear()

    def out_of(self, summary: Summary, string: str) -> tuple[Summary, int]:
        """Return the summary with `string` in place of each removed word, and how many words that were."""
        count = 0

        def replacement(match: re.Match[str]) -> str:
            nonlocal count
            word = match[0].casefold()
            if word not in self._gone or word in self._said:
                return match[0]
            count += 1
            return string

        text = _WORD.sub(replacement, summary.text)
        items = [msgspec.structs.replace(item, text=_WORD.sub(replacement, item.text)) for item in summary.items]
        if not count:
            return summary, 0
        return recounted(summary, msgspec.structs.replace(summary, text=text, items=tuple(items))), count


def _words(entry: Entry) -> set[str]:
    content: Any = entry.content
    text = content if isinstance(content, str) else json.dumps(msgspec.to_builtins(content), ensure_ascii=False)
    return {word.casefold() for word in _WORD.findall(text)}
