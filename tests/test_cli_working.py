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
    """A current folder whose `memory/` declares one memory with a store file."""
    (tmp_path / "memory").mkdir()
    declare(tmp_path / "memory", "chat", "sqlite, path: chat.db, ttl: 30d")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def declare(folder: Path, id: str, kind: str) -> None:
    """Write a file that declares a memory with this kind of persistence."""
    (folder / f"{id}.yaml").write_text(DECLARED.format(id=id, type=kind))


def filled(key: str, count: int = 30) -> None:
    """Append `count` messages under the key."""
    Path("more.json").write_text(json.dumps([f"message {number}, " + "words " * 10 for number in range(count)]))
    assert run("memory", "append", "chat", key, "--file", "more.json", "--config", "memory/").exit_code == 0


def test_the_worker_prints_a_line_per_session_and_a_total() -> None:
    """`worker --once` prints a line per compacted session and a total, as text or as JSON lines."""
    filled("user:ann")
    filled("user:bob", 2)

    done = run("worker", "--config", "memory/", "--once")
    assert "  default/chat/user:ann  simple_fifo: 570 → 95 tokens, 25 entries left the context\n" in done.stdout
    assert done.stdout.count("\n") == 1
    assert done.stderr == "Done in 1 round: 1 compaction, 0 swept, 0 failed.\n"
    assert done.exit_code == 0

    filled("user:bob")
    lines = [json.loads(line) for line in run("worker", "--config", "memory/", "--once", "--json").stdout.splitlines()]
    assert [line.get("session") for line in lines] == ["default/chat/user:bob", None]
    assert (lines[0]["duty"], lines[0]["reason"], lines[0]["memory"]) == ("compact", None, "chat")
    assert lines[-1]["done"]["compacted"] == 1


def test_without_a_config_the_worker_only_sweeps(here: Path) -> None:
    """Without `--config` the worker compacts nothing, says so, and sweeps the store of the address or environment."""
    filled("user:ann")
    done = run("worker", f"sqlite:///{here}/chat.db", "--once")
    assert done.exit_code == 0
    assert done.stderr.startswith(
        "Nothing is compacted: give --config with the memories whose sessions are to be compacted.\n"
    )
    assert run("--store", "chat.db", "worker", "--once").exit_code == 0
    assert run("worker", "--once").exit_code == 5


def test_a_url_replaces_the_declared_stores(here: Path) -> None:
    """A store's address given to `worker` replaces the declared stores.

    So a memory declared as `in_memory`, which no worker could reach, is worked on there.
    """
    filled("user:ann")
    declare(here / "memory", "chat", "in_memory")
    done = run("worker", "sqlite:///chat.db", "--config", "memory/", "--once")
    assert "1 compaction," in done.stderr
    refused = run("worker", "--config", "memory/", "--once")
    assert refused.exit_code == 2
    assert "which a worker cannot reach" in refused.stderr
    declare(here / "memory", "other", "sqlite, path: chat.db")
    warned = run("worker", "--config", "memory/", "--once")
    assert warned.exit_code == 0
    assert "Warning: memory chat is kept in the memory of the program" in warned.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (("nowhere.db", "--config", "memory/"), 5, "there is no store"),
        (("--config", "nowhere/"), 2, "nowhere/"),
        (
            ("--config", "memory/", "--tenant", "a", "--all-tenants"),
            2,
            "give either --tenant or --all-tenants, not both",
        ),
        (("--config", "memory/", "--duty", "compcat"), 2, "compact"),
        (("--config", "memory/", "--every", "soon"), 2, "every"),
        (("--config", "memory/", "--lease", "0s"), 2, "lease"),
        (("--config", "memory/", "--privacy", "default"), 2, "--privacy"),
    ],
)
def test_bad_arguments_of_worker_are_refused_first(arguments: tuple[str, ...], status: int, told: str) -> None:
    """Bad arguments exit with the status of their kind before anything is done."""
    done = run("worker", *arguments)
    assert (done.exit_code, told in done.stderr) == (status, True), done.output
    assert not Path("nowhere.db").exists()


def test_a_tenant_contradicts_all_tenants() -> None:
    """`--tenant` before the command contradicts `--all-tenants`."""
    done = run("--tenant", "acme", "worker", "--config", "memory/", "--all-tenants")
    assert (done.exit_code, "give either --tenant or --all-tenants, not both" in done.stderr) == (2, True), done.output


def test_the_worker_reports_mistakes_as_config_check_does(here: Path) -> None:
    """`worker` prints the same mistakes of a configuration folder as `config check`."""
    declare(here / "memory", "wrong", "sqlight")
    (here / "memory" / "wrong.yaml").write_text((here / "memory" / "wrong.yaml").read_text() + "max_token: 7\n")
    done, checked = run("worker", "--config", "memory/", "--once"), run("config", "check", "memory/")
    assert done.exit_code == checked.exit_code == 2
    assert done.stderr == checked.stderr
    Path("empty").mkdir()
    assert run("worker", "--config", "empty", "--once").exit_code == 3


@pytest.mark.wide
def test_a_failed_compaction_exits_with_1(here: Path) -> None:
    """With `--once`, a compaction whose summarizer cannot be reached is printed and counted, and exits with 1."""
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
def test_a_signal_ends_the_worker_cleanly(here: Path, number: signal.Signals) -> None:
    """SIGTERM or SIGINT ends the worker with 0, its figures and no traceback."""
    filled("user:ann")
    command = [*START, "worker", "--config", "memory/", "--every", "1h"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=here) as worker:
        assert worker.stdout is not None
        assert "default/chat/user:ann" in worker.stdout.readline()
        worker.send_signal(number)
        _, output = worker.communicate(timeout=60)
    assert worker.returncode == 0
    assert output.endswith("Done in 1 round: 1 compaction, 0 swept, 0 failed.\n")
    assert "Traceback" not in output


def test_a_worker_ends_when_the_reader_of_its_lines_went_away(here: Path) -> None:
    """A worker whose output is closed ends quietly with 0; with `--once` it first does all that is due."""
    filled("user:ann")
    working = [*START, "worker", "--config", "memory/", "--every", "200ms"]
    with subprocess.Popen(working, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert "user:ann" in worker.stdout.readline()
        worker.stdout.close()
        filled("user:bob")
        try:
            assert worker.wait(timeout=60) == 0
        finally:
            worker.kill()
        assert worker.stderr is not None
        assert len(worker.stderr.readlines()) == 1  # where it works

    for key in ("user:cy", "user:dan"):
        filled(key)
    ends, closed = os.pipe()
    os.close(ends)
    once = subprocess.run([*working, "--once"], stdout=closed, stderr=subprocess.PIPE, check=False, timeout=300)
    os.close(closed)
    assert (once.returncode, once.stderr) == (0, b"")
    assert "0 compactions" in run("worker", "--config", "memory/", "--once").stderr


def test_a_signal_ends_a_worker_that_waits_for_a_model(here: Path) -> None:
    """A signal ends `worker --once` after its `--grace` while a model is silent, and frees the session at once."""
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
                _, output = worker.communicate(timeout=60)

    assert (worker.returncode, "Traceback" in output) == (0, False), output
    assert "Done in 1 round: 0 compactions" in output
    (here / "memory" / "chat.yaml").write_text(declared)
    assert "1 compaction" in run("worker", "--config", "memory/", "--once").stderr
