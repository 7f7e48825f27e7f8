"""Sessions with marker words in every field that takes text, and stores for them, for tests of scanning."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from palimpsest import Entry, Image, Memory, Session, Text
from palimpsest.log.entry import Native
from palimpsest.runtime.runner import drive
from palimpsest.stores.encrypted import Encryption
from palimpsest.strategies import CallableSummarizer
from sealed import FIRST, address
from writer import quarters

PATTERN = r"zq\d{3}secret"
POLICY = {"redact_patterns": [PATTERN]}
PLACES = ("memory", "sqlite", "file", "sealed-memory", "sealed-sqlite", "sealed-file")

COMPACT = {"strategy": "summarizer", "interaction_keep": 1, "cod_max_loops": 0, "summary_floor": 10}
"""A compaction that leaves one interaction, in one pass of the summarizer."""


class Words:
    """Returns a new marker word at each call, and keeps those that it has returned in `used`."""

    def __init__(self) -> None:
        self.used: list[str] = []
        self._words: Iterator[str] = (f"zq{number:03d}secret" for number in itertools.count(100))

    def __call__(self) -> str:
        self.used.append(next(self._words))
        return self.used[-1]


def opened(place: str, folder: Path, **options: Any) -> Memory:
    """Open a memory over a store of this kind."""
    kind = place.removeprefix("sealed-")
    encryption: Encryption | None = FIRST if kind != place else None
    where = address(kind, folder)
    if kind != "memory":
        options.setdefault("synchronous", "NORMAL")
    return Memory.open(where, encryption=encryption, **options)


def session_of(memory: Memory, name: str = "one", **options: Any) -> Session:
    """Return a session that counts quarters."""
    return memory.session(name, **{"counter": quarters, "max_tokens": 100_000, **options})


def play(memory: Memory, word: Words) -> Session:
    """Put a marker into every field of a session that takes text, also in rewound and covered entries and a branch."""
    topics = [word() for _ in range(3)]

    def summarizer(_: str) -> str:
        about, fact, decision = topics
        return f"It was about {about}.\n\n## Facts\n- {fact} is open [1]\n\n## Decisions\n- take {decision} [2]\n"

    session = session_of(memory, summarizer=CallableSummarizer(summarizer, checked=False))
    for number in range(6):
        text = f"{number} " + "many words that are to be summarised " * 8
        session.add_user_message(f"{text} {word()}")
        session.add_assistant_message(text)
    session.compact(COMPACT)
    session.add_user_message(word(), metadata={word(): word()}, name=word())
    session.add_context(word(), name=word())
    native = Native(format="openai", keep={word(): word()})
    parts = (Text(text=word(), extra={word(): 1}), Image(source=f"data:,{word()}"))
    large = word() * 3_000
    session.add_entries([Entry(content=parts, native=native, name=word()), Entry(role="assistant", content=large)])
    session.add_tool_call("look_up", {word(): word()}, call_id="c1")
    session.add_tool_result(None, word(), call_id="c1")
    session.record_usage(input_tokens=100, context=session.context())
    session.erase([session.add_user_message("gone").id], reason=word())
    branch = session.fork("branch")
    last_kept = session.add_user_message("kept")
    session.add_user_message(word())
    session.rewind(last_kept)
    session.add_assistant_message(word())
    condition = f"not contains(message.content, '{word()}')"
    session_of(memory, view="small", conditions=[condition], max_tokens=1_000).context()
    branch.add_user_message(word())
    return session


def everything(memory: Memory) -> str:
    """All that can be read of a memory: exports, entries that were rewound, records, contexts and heads."""
    found: list[object] = []
    for one in memory.sessions():
        session = session_of(memory, one.session)
        key = session.options.key
        found += [session.export(), session.entries(rewound=True), session.history(), session.summaries(history=True)]
        found += [session.context(dry_run=True).messages, drive(memory.store.head(key)), session.interactions()]
    return repr(found)


def left_in(text: str) -> list[str]:
    """The markers that are in a text."""
    return sorted(set(re.findall(PATTERN, text)))
