"""What a process of the chaos writes down: each operation before it begins, and once it is acknowledged.

A line is one `os.write` to a file of the process's own, so that a kill leaves it whole or not there. Everything that
is written into the store carries marks: texts that stand nowhere else, so that they can be looked for in every byte.
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
"""What the scans redact: the address that goes with a mark."""

SHARED, BRANCH, OWN = "s", "b", "o"
"""What ids of sessions begin with: those that everybody writes to, their branches, and those of one writer."""


class Op(msgspec.Struct):
    """One operation of one writer. `outcome` is "done" (acknowledged), "cut" (a signal's handler raised in it),
    "refused" (an error that may be), "raised" (one that may not), or "" for one that was never heard of again.
    Times are nanoseconds of the monotonic clock, which all processes have together and nobody sets back."""

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
    """What one writer writes down."""

    def __init__(self, folder: Path, writer: str) -> None:
        self.writer, self._number = writer, 0
        self._file = os.open(folder / f"{writer}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def begin(self, verb: str, **facts: Any) -> int:
        """Note what is about to be done and return its number."""
        self._number += 1
        self._write({"number": self._number, "verb": verb, "facts": facts})
        return self._number

    def end(self, number: int, outcome: str, **result: Any) -> None:
        """Note what became of it."""
        self._write({"number": number, "outcome": outcome, "result": result})

    def _write(self, line: dict[str, Any]) -> None:
        data = json.dumps({"at": time.monotonic_ns(), **line}).encode() + b"\n"
        assert os.write(self._file, data) == len(data)


def journals(folder: Path) -> dict[str, list[Op]]:
    """Return the operations of every writer in their order."""
    found: dict[str, list[Op]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        ops: dict[int, Op] = {}
        for line in path.read_bytes().split(b"\n")[:-1]:
            said = json.loads(line)
            if "verb" in said:
                ops[said["number"]] = Op(path.stem, said["number"], said["verb"], said["facts"], said["at"])
            else:
                op = ops[said["number"]]
                op.ended, op.outcome, op.result = said["at"], said["outcome"], said["result"]
        found[path.stem] = list(ops.values())
    return found


def mark(*place: object) -> str:
    """The mark of a place: of a writer, an operation, and a number in it."""
    return f"qz{_hex(place)}zq"


def private(marked: str) -> str:
    """The private address that goes with a mark."""
    return f"pii{_hex((marked,))}@example.com"


def _hex(place: tuple[object, ...]) -> str:
    return hashlib.blake2b("/".join(map(str, place)).encode(), digest_size=10).hexdigest()


def marks_in(text: str) -> list[str]:
    """The marks that stand in a text, in their order, each once."""
    return list(dict.fromkeys(MARK.findall(text)))
