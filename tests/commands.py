"""Helpers that run the command line in tests, and a conversation for it to import."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from palimpsest.cli.app import palimpsest

Message = dict[str, Any]
START = [sys.executable, "-m", "palimpsest.cli"]

CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"order": 7}'}}
CHAT: list[Message] = [
    {"role": "user", "content": "Where is order 7?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "On its way."},
    {"role": "assistant", "content": "It is on its way."},
]


def run(*arguments: str, given: bytes | str | None = None) -> Result:
    """Run a command in this process; `given` is its standard input."""
    return CliRunner().invoke(palimpsest, arguments, input=given)


def start(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in a new process."""
    return subprocess.run([*START, *arguments], capture_output=True, text=True, check=False, timeout=300, **options)


def give_up_root() -> None:
    """Take from this process what lets root write to every file; called in a new process before its program starts."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        for capability in (1, 2):  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
            libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


def read(*arguments: str) -> Any:
    """Run a command with --json, check that it succeeds, and return the parsed output."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def write_lines(path: Path, messages: Sequence[Message | str]) -> Path:
    """Write messages as JSON lines; a string is written as it is, so that a test can write a broken line."""
    lines = [line if isinstance(line, str) else json.dumps(line) for line in messages]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def texts(session: str) -> list[str]:
    """Return the texts of a session's log, oldest first, as the command line shows them."""
    return [entry["content"] for entry in read("show", session, "--all")]
