"""The real conversations of the evaluation data, and a recording of what a model was given at each call."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

Message = dict[str, Any]


def tau_bench() -> list[list[Message]]:
    """Return the tool-calling conversations of tau-bench; skip the test, with the reason, if the data is missing."""
    folder = os.environ.get("PALIMPSEST_DATA")
    if not folder:
        pytest.skip("PALIMPSEST_DATA does not name the data folder")
    path = Path(folder) / "tau-bench" / "gpt-4o-airline.json"
    if not path.exists():
        pytest.skip("tau-bench/gpt-4o-airline.json is not in the data folder")
    return [run["traj"] for run in json.loads(path.read_bytes())]


def joined(conversations: list[list[Message]]) -> list[Message]:
    """Return the conversations as one, without their system messages."""
    return [message for messages in conversations for message in messages if message["role"] != "system"]
