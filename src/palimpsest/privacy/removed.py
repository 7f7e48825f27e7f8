"""Words that redaction after the fact took out of entries, and that nothing else there says. Pure.

A summary may have picked such a word out of what gave it away: of `password: swordfish` it may list "swordfish" alone,
and of a long message it may quote half an address. No rule finds it there. So what is found in entries goes from the
summaries of their session word by word.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from palimpsest.log.entry import Entry
from palimpsest.log.summary import Summary
from palimpsest.privacy.records import recounted

_WORD = re.compile(r"\w{4,}")  # shorter ones tell nobody anything, and many texts have them


class Removed:
    """The words that went from a session's entries, and those that its entries still say.

    `shared` has what went from entries by their ids: those of branches were redacted with another session.
    `has_summaries` says whether this session has any, to which it matters what its entries still say.
    """

    def __init__(self, shared: dict[str, frozenset[str]], *, has_summaries: bool) -> None:
        self._shared, self._has_summaries = shared, has_summaries
        self._gone, self._said = set[str](), set[str]()

    def look_at(self, was: Entry, now: Entry) -> None:
        """Take in what an entry said, and what it says now."""
        if now is was and not self._has_summaries:
            return
        said = _words(now)
        if self._has_summaries:
            self._said |= said
        gone = self._shared.get(was.id, frozenset())
        if now is not was:
            gone |= _words(was) - said
        if gone:
            self._gone |= gone
            self._shared[was.id] = gone

    def clear(self) -> None:
        """Let go of all words, which may be as many as the session has; what is `shared` stays."""
        self._gone.clear()
        self._said.clear()

    def out_of(self, summary: Summary, string: str) -> tuple[Summary, int]:
        """Return the summary with `string` for each of these words, and how many those were."""
        count = 0

        def one(found: re.Match[str]) -> str:
            nonlocal count
            word = found[0].casefold()
            if word not in self._gone or word in self._said:
                return found[0]
            count += 1
            return string

        text = _WORD.sub(one, summary.text)
        items = [msgspec.structs.replace(item, text=_WORD.sub(one, item.text)) for item in summary.items]
        if not count:
            return summary, 0
        return recounted(summary, msgspec.structs.replace(summary, text=text, items=tuple(items))), count


def _words(entry: Entry) -> set[str]:
    content: Any = entry.content
    text = content if isinstance(content, str) else json.dumps(msgspec.to_builtins(content), ensure_ascii=False)
    return {word.casefold() for word in _WORD.findall(text)}
