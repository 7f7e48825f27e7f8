"""A killed process leaves nothing private behind, wherever it was."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from commands import START
from openai_server import OpenAIServer, says
from palimpsest import Memory
from sealed import bytes_of
from watched_memory import PATTERN, found_in

SCRIPT = Path(__file__).with_name("private_process.py")
PATIENCE = 300.0
POINTS = [
    *(("append", f"{when} append {number}") for when in ("before", "after") for number in (1, 3)),
    *(("compact", f"in summarizer {number}") for number in (1, 4)),
    *(("compact", f"{when} commit {number}") for when in ("before", "after") for number in (1, 4)),
    *(("take", f"{when} load {number}") for when in ("before", "after") for number in (1, 2)),
    *(("take", f"{when} append {number}") for when in ("before", "after") for number in (1, 3)),
    ("give", "in file 1"),
]

pytestmark = [pytest.mark.wide, pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the store and all other files."""
    place = tmp_path / "store"
    place.mkdir()
    return place


@pytest.mark.sampled
@pytest.mark.parametrize(("mode", "point"), POINTS, ids=[f"{mode} {point}" for mode, point in POINTS])
def test_a_killed_process_leaves_nothing_private(tmp_path: Path, folder: Path, mode: str, point: str) -> None:
    """Killed before or after a commit, in the summarizer or in an export; also when the store is opened again."""
    where = f"file://{folder}/logs" if POINTS.index((mode, point)) % 2 else f"sqlite:///{folder}/log.db"
    told = tmp_path / "told"
    with told.open("wb") as out:
        done = subprocess.run(
            [sys.executable, str(SCRIPT), mode, where, point],
            env={**os.environ, "INPUTS": str(tmp_path), "OUTPUTS": str(folder)},
            stdout=out,
            stderr=out,
            check=False,
            timeout=PATIENCE,
        )

    assert done.returncode == -signal.SIGKILL, told.read_text()
    left = bytes_of(folder)
    if point not in ("before append 1", "before load 1", "before compact 1", "in summarizer 1"):
        assert PATTERN.stand_in.encode() in left
    assert found_in(left, PATTERN.marker) == []
    assert found_in(told.read_bytes(), PATTERN.marker) == []
    with Memory.open(where, privacy=PATTERN.policy) as memory:
        for one in memory.sessions():
            memory.session(one.session).context()
    assert found_in(bytes_of(folder), PATTERN.marker) == []


@pytest.fixture
def environment(tmp_path: Path, folder: Path) -> dict[str, str]:
    """An environment that names the store and a policy."""
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps(PATTERN.policy), encoding="utf-8")
    return {**os.environ, "PALIMPSEST_STORE": f"sqlite:///{folder}/log.db", "PALIMPSEST_PRIVACY": str(policy)}


def test_a_killed_import_leaves_nothing_private(folder: Path, environment: dict[str, str]) -> None:
    """`palimpsest import -` has stored batches of what came in so far, and waits for more, when it is killed."""
    said = f'{{"role": "user", "content": "{PATTERN.marker} {"and so on " * 200}"}}\n'.encode()
    command = [*START, "import", "-", "--session", "s"]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        writer = threading.Thread(target=_fed, args=(child, said * 1_500), daemon=True)
        writer.start()
        until = time.monotonic() + PATIENCE
        while not _is_in_store(folder):
            assert child.poll() is None
            assert time.monotonic() < until
        child.send_signal(signal.SIGKILL)
        writer.join(PATIENCE)
        assert child.stdout is not None
        assert child.stderr is not None
        told = child.stdout.read() + child.stderr.read()

    assert child.returncode == -signal.SIGKILL
    assert found_in(bytes_of(folder) + told, PATTERN.marker) == []


def _is_in_store(folder: Path) -> bool:
    """Whether something was stored, as far as that is visible beside another writer."""
    with contextlib.suppress(FileNotFoundError):
        return any(PATTERN.stand_in.encode() in path.read_bytes() for path in folder.glob("log.db*"))
    return False


def _fed(child: subprocess.Popen[bytes], data: bytes) -> None:
    """Feed a process lines without end until it is gone."""
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(data)
        child.stdin.flush()


def test_a_killed_chat_leaves_nothing_private(folder: Path, environment: dict[str, str]) -> None:
    """`palimpsest chat` has answered, has the next message, and is killed before the model has said all."""
    with OpenAIServer(says(f"You are {PATTERN.marker}."), says("Never.", when=_never())) as server:
        command = [*START, "chat", "s", "--model", "my-model", "--base-url", server.url, "--json"]
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as child:
            assert child.stdin is not None
            child.stdin.write(f"I am {PATTERN.marker}\nWho is {PATTERN.marker}?\n".encode())
            child.stdin.flush()
            assert server.arrived.acquire(timeout=PATIENCE)
            assert server.arrived.acquire(timeout=PATIENCE)
            child.send_signal(signal.SIGKILL)
            _, errors = child.communicate(timeout=PATIENCE)

    left = bytes_of(folder)
    assert PATTERN.stand_in.encode() in left
    assert found_in(left + errors, PATTERN.marker) == []
    assert [one for one in server.asked if found_in(json.dumps(one.body).encode(), PATTERN.marker)] == []


def _never() -> threading.Event:
    """An event that nobody sets."""
    return threading.Event()
