"""The journal of a chaos writer: it notes each operation before it begins and after it was acknowledged.

A line is one `os.write` to a file that only this writer has, so a kill leaves the line complete or absent. Every text
that is written into the store carries marks: unique strings, so that each can be searched for in every byte.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import msgspec

MARK = re.compile(r"qz[0-9a-f]{20}zq")
PRIVATE = r"pii[0-9a-f]{20}@example\.com"
"""The pattern that scans redact: the private address of a mark."""

SHARED, BRANCH, OWN = "s", "b", "o"
"""The first letter of a session's id: a session that all writers share, a branch of one, or a writer's own."""


class Op(msgspec.Struct):
    """One operation of one writer.

    `outcome` is "done" (acknowledged), "cut" (a signal handler raised in it), "refused" (an allowed error), "raised"
    (any other error), or "" if the writer was killed before it ended. Times are nanoseconds of the monotonic clock,
    which all processes share and which never goes back.
    """

    writer: str
    number: int
    verb: str
    facts: dict[str, Any]
    begun: int
    ended: int = 0
    outcome: str = ""
    result: dict[str, Any] = {}

    @property
    def sure(self) -> bool:
        """Whether it was acknowledged."""
        return self.outcome == "done"

    def __str__(self) -> str:
        facts = json.dumps(self.facts)[:400]
        return f"{self.writer}#{self.number} {self.verb} {facts} -> {self.outcome or 'nothing'} {self.result}"


class Journal:
    """The journal file of one writer."""

    def __init__(self, folder: Path, writer: str) -> None:
        self.writer, self._number = writer, 0
        self._file = os.open(folder / f"{writer}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def begin(self, verb: str, **facts: Any) -> int:
        """Note an operation that is about to begin; return its number."""
        self._number += 1
        self._write({"number": self._number, "verb": verb, "facts": facts})
        return self._number

    def end(self, number: int, outcome: str, **result: Any) -> None:
        """Note the outcome of the operation with this number."""
        self._write({"number": number, "outcome": outcome, "result": result})

    def _write(self, line: dict[str, Any]) -> None:
        data = json.dumps({"at": time.monotonic_ns(), **line}).encode() + b"\n"
        assert os.write(self._file, data) == len(data)


def journals(folder: Path) -> dict[str, list[Op]]:
    """Return the operations of each writer, oldest first, by the writer's name."""
    by_writer: dict[str, list[Op]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        ops: dict[int, Op] = {}
        for line in path.read_bytes().split(b"\n")[:-1]:
            note = json.loads(line)
            if "verb" in note:
                ops[note["number"]] = Op(path.stem, note["number"], note["verb"], note["facts"], note["at"])
            else:
                op = ops[note["number"]]
                op.ended, op.outcome, op.result = note["at"], note["outcome"], note["result"]
        by_writer[path.stem] = list(ops.values())
    return by_writer


def mark(*place: object) -> str:
    """Return the mark of a place, which is any values that together are unique, such as run, writer and number."""
    return f"qz{_hex(place)}zq"


def private(marked: str) -> str:
    """Return the private address of a mark."""
    return f"pii{_hex((marked,))}@example.com"


def _hex(place: tuple[object, ...]) -> str:
    return hashlib.blake2b("/".join(map(str, place)).encode(), digest_size=10).hexdigest()


def marks_in(text: str) -> list[str]:
    """Return the marks in a text, in order of first occurrence, each once."""
    return list(dict.fromkeys(MARK.findall(text)))
