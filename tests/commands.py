"""Running the command line in tests, and a conversation to give it."""

from __future__ import annotations

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
    """Run a command in this process."""
    return CliRunner().invoke(palimpsest, arguments, input=given)


def start(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    return subprocess.run([*START, *arguments], capture_output=True, text=True, check=False, timeout=300, **options)


def read(*arguments: str) -> Any:
    """Run a command that succeeds with --json and return what it printed."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def write_lines(path: Path, messages: Sequence[Message | str]) -> Path:
    """Write JSON lines: messages, or text as it is given."""
    lines = [line if isinstance(line, str) else json.dumps(line) for line in messages]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def texts(session: str) -> list[str]:
    """The texts of a session's log, oldest first."""
    return [entry["content"] for entry in read("show", session, "--all")]
