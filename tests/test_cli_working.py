"""`palimpsest worker`: what it prints, what it refuses, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from commands import START, run, start

DECLARED = """\
resource: memory
id: {id}
type: token_based
max_tokens: 200
auto_compact: "off"
flushing: {{type: simple_fifo}}
persistence: {{type: {type}}}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one declared memory, whose store is a file there."""
    (tmp_path / "memory").mkdir()
    declare(tmp_path / "memory", "chat", "sqlite, path: chat.db, ttl: 30d")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def declare(folder: Path, id: str, kind: str) -> None:
    """A file that declares a memory."""
    (folder / f"{id}.yaml").write_text(DECLARED.format(id=id, type=kind))


def filled(key: str, count: int = 30) -> None:
    """So many messages under a key."""
    Path("more.json").write_text(json.dumps([f"message {number}, " + "words " * 10 for number in range(count)]))
    assert run("memory", "append", "chat", key, "--file", "more.json", "--config", "memory/").exit_code == 0


def test_a_line_tells_of_each_session_and_the_last_of_all() -> None:
    """As text, whose figures go to standard error; and as JSON lines."""
    filled("user:ann")
    filled("user:bob", 2)

    done = run("worker", "--config", "memory/", "--once")
    assert "  default/chat/user:ann  simple_fifo: 570 → 95 tokens, 25 entries out\n" in done.stdout
    assert done.stdout.count("\n") == 1
    assert done.stderr == "Done in 1 round: 1 compaction, 0 swept, 0 failed.\n"
    assert done.exit_code == 0

    filled("user:bob")
    lines = [json.loads(line) for line in run("worker", "--config", "memory/", "--once", "--json").stdout.splitlines()]
    assert [line.get("session") for line in lines] == ["default/chat/user:bob", None]
    assert (lines[0]["duty"], lines[0]["reason"], lines[0]["memory"]) == ("compact", None, "chat")
    assert lines[-1]["done"]["compacted"] == 1


def test_without_a_config_it_sweeps(here: Path) -> None:
    """It says so, and works in the store at the address, or in the one that the environment names."""
    filled("user:ann")
    done = run("worker", f"sqlite:///{here}/chat.db", "--once")
    assert done.exit_code == 0
    assert done.stderr.startswith("Nothing is compacted: without --config nothing says when that is due.\n")
    assert run("--store", "chat.db", "worker", "--once").exit_code == 0
    assert run("worker", "--once").exit_code == 5


def test_a_url_stands_in_the_place_of_the_stores_that_are_declared(here: Path) -> None:
    """Also for a memory that would be in the memory of its program."""
    filled("user:ann")
    declare(here / "memory", "chat", "in_memory")
    done = run("worker", "sqlite:///chat.db", "--config", "memory/", "--once")
    assert "1 compaction," in done.stderr
    refused = run("worker", "--config", "memory/", "--once")
    assert refused.exit_code == 2
    assert "where no worker reaches it" in refused.stderr
    declare(here / "memory", "other", "sqlite, path: chat.db")
    warned = run("worker", "--config", "memory/", "--once")
    assert warned.exit_code == 0
    assert "Warning: memory chat is kept in the memory of the program" in warned.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (("nowhere.db", "--config", "memory/"), 5, "there is no store"),
        (("--config", "nowhere/"), 2, "nowhere/"),
        (("--config", "memory/", "--tenant", "a", "--all-tenants"), 2, "one of the two"),
        (("--config", "memory/", "--duty", "compcat"), 2, "compact"),
        (("--config", "memory/", "--every", "soon"), 2, "every"),
        (("--config", "memory/", "--lease", "0s"), 2, "lease"),
        (("--config", "memory/", "--privacy", "default"), 2, "--privacy"),
    ],
)
def test_what_is_refused_is_named(arguments: tuple[str, ...], status: int, told: str) -> None:
    """Before anything is done."""
    done = run("worker", *arguments)
    assert (done.exit_code, told in done.stderr) == (status, True), done.output
    assert not Path("nowhere.db").exists()


def test_a_tenant_before_the_command_is_one_too() -> None:
    """It is not passed over where all are asked for."""
    done = run("--tenant", "acme", "worker", "--config", "memory/", "--all-tenants")
    assert (done.exit_code, "one of the two" in done.stderr) == (2, True), done.output


def test_every_mistake_of_a_folder_is_told(here: Path) -> None:
    """As `config check` tells it."""
    declare(here / "memory", "wrong", "sqlight")
    (here / "memory" / "wrong.yaml").write_text((here / "memory" / "wrong.yaml").read_text() + "max_token: 7\n")
    done, checked = run("worker", "--config", "memory/", "--once"), run("config", "check", "memory/")
    assert done.exit_code == checked.exit_code == 2
    assert done.stderr == checked.stderr
    Path("empty").mkdir()
    assert run("worker", "--config", "empty", "--once").exit_code == 3


@pytest.mark.wide
def test_a_compaction_that_failed_ends_once_with_1(here: Path) -> None:
    """A summarizer that nobody answers at: told, and counted."""
    text = (here / "memory" / "chat.yaml").read_text().replace("simple_fifo", "hybrid_summary, summary_tokens: 40")
    model = "summarizer: {model: 'openai:x', base_url: 'http://127.0.0.1:9/v1', retries: 0, api_key_env: KEY}\n"
    (here / "memory" / "chat.yaml").write_text(text + model)
    run_with_key: dict[str, Any] = {"env": {**os.environ, "KEY": "k"}, "cwd": here}
    Path("more.json").write_text(json.dumps([f"message {number}, " + "words " * 10 for number in range(30)]))
    start("memory", "append", "chat", "k", "--file", "more.json", "--config", "memory/", **run_with_key)
    done = start("worker", "--config", "memory/", "--once", **run_with_key)
    assert "default/chat/k  failed: " in done.stdout
    assert "1 failed, 1 session to be looked at again" in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(here: Path, number: signal.Signals) -> None:
    """It does what is due, waits for more, and ends with 0 and its figures."""
    filled("user:ann")
    command = [*START, "worker", "--config", "memory/", "--every", "1h"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=here) as worker:
        assert worker.stdout is not None
        assert "default/chat/user:ann" in worker.stdout.readline()
        worker.send_signal(number)
        _, told = worker.communicate(timeout=60)
    assert worker.returncode == 0
    assert told.endswith("Done in 1 round: 1 compaction, 0 swept, 0 failed.\n")
    assert "Traceback" not in told


def test_a_signal_ends_a_worker_that_works_once(here: Path) -> None:
    """It does not wait for a model longer than it is told to, and what it had in hand is free for others at once."""
    filled("user:ann")
    declared = (here / "memory" / "chat.yaml").read_text()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        model = f"{{model: 'openai:x', base_url: 'http://127.0.0.1:{silent.getsockname()[1]}/v1', api_key_env: KEY}}"
        text = declared.replace("simple_fifo", "hybrid_summary, summary_tokens: 40") + f"summarizer: {model}\n"
        (here / "memory" / "chat.yaml").write_text(text)
        command = [*START, "worker", "--config", "memory/", "--once", "--grace", "0s"]
        options: dict[str, Any] = {"env": {**os.environ, "KEY": "k"}, "cwd": here, "text": True}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as worker:
            silent.settimeout(60)
            asking, _ = silent.accept()
            with asking:
                worker.send_signal(signal.SIGTERM)
                _, told = worker.communicate(timeout=60)

    assert (worker.returncode, "Traceback" in told) == (0, False), told
    assert "Done in 1 round: 0 compactions" in told
    (here / "memory" / "chat.yaml").write_text(declared)
    assert "1 compaction" in run("worker", "--config", "memory/", "--once").stderr
