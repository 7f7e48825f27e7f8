"""The command line when it is ended from outside, or has no room, no memory, no folder: nothing is left half done."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from commands import START, give_up_root, run, start, texts, write_lines
from palimpsest import Memory
from palimpsest.errors import StoreUnavailable

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals, terminals and limits of POSIX")

ENDING = [signal.SIGTERM, signal.SIGHUP]

HEEDING = [
    sys.executable,
    "-c",
    "import runpy, signal\n"
    "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
    "runpy.run_module('palimpsest.cli', run_name='__main__')",
]
"""How to start a command that heeds SIGHUP, though tests that run under `nohup` ignore it."""
HIDE, SHOW = b"\x1b[?25l", b"\x1b[?25h"


# --- signals that end a program


@contextmanager
def on_a_terminal(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a command on a terminal; yield the process and the descriptor of the terminal's other end."""
    ours, theirs = os.openpty()
    started = subprocess.Popen([*HEEDING, *arguments], stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        yield started, ours
    finally:
        started.kill()
        started.wait()
        os.close(ours)


def read_until(descriptor: int, wanted: bytes | None) -> bytes:
    """Read from a terminal until it has shown `wanted`, or with None until nobody writes to it any more."""
    shown = b""
    while wanted is None or wanted not in shown:
        try:
            piece = os.read(descriptor, 65_536)
        except OSError:  # how Linux says that the other end was closed
            piece = b""
        if not piece:
            assert wanted is None, shown
            break
        shown += piece
    return shown


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_to_end_gives_the_terminal_back(here: Path, number: signal.Signals) -> None:
    """A progress bar hides the cursor: whoever ends the command gets it back. The process dies of the signal."""
    write_lines(here / "long.jsonl", [{"role": "user", "content": "word " * 200}] * 20_000)
    with on_a_terminal("import", "long.jsonl", "--session", "long") as (importing, terminal):
        read_until(terminal, HIDE)
        importing.send_signal(number)
        shown = read_until(terminal, None)

        assert SHOW in shown
        assert b"Traceback" not in shown
        assert importing.wait(60) == -number
    assert run("verify").exit_code == 0


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_to_end_leaves_no_files(here: Path, number: signal.Signals) -> None:
    """The files that a command made for itself go with it."""
    folder = here / "temporary"
    folder.mkdir()
    running = subprocess.Popen(
        [*HEEDING, "demo", "--all"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    assert running.stdout is not None
    running.stdout.readline()
    assert list(folder.iterdir())
    running.send_signal(number)
    errors = running.communicate(timeout=60)[1]

    assert (running.returncode, errors) == (-number, b"")
    assert list(folder.iterdir()) == []


def test_a_signal_to_end_ends_a_chat_that_waits(here: Path) -> None:
    """Ctrl-C only cancels an answer, but a signal to end is not taken for it."""
    chat = ("chat", "typed", "--model", "m", "--base-url", "http://127.0.0.1:1/v1")
    with on_a_terminal(*chat) as (waiting, terminal):
        read_until(terminal, b"> ")
        waiting.send_signal(signal.SIGTERM)

        assert b"Traceback" not in read_until(terminal, None)
        assert waiting.wait(60) == -signal.SIGTERM


def test_a_hangup_that_is_ignored_stays_ignored(here: Path) -> None:
    """`nohup` starts a program that ignores the end of its terminal: it goes on."""
    write_lines(here / "chat.jsonl", [{"role": "user", "content": "hello"}])
    importing = subprocess.Popen(
        ["/bin/sh", "-c", f"trap '' HUP; exec {shlex.join(START)} import - --session s"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert importing.stdin is not None
    for _ in range(600):  # until it waits for its input: the store is open
        if (here / "chats.db").exists():
            break
        time.sleep(0.05)
    assert (here / "chats.db").exists()
    importing.send_signal(signal.SIGHUP)
    importing.communicate((here / "chat.jsonl").read_bytes(), timeout=60)

    assert importing.returncode == 0
    assert texts("s") == ["hello"]


# --- messages that nobody reads


@pytest.mark.parametrize("nobody", ["a pipe without a reader", pytest.param("a full disk", marks=pytest.mark.wide)])
@pytest.mark.parametrize(
    ("command", "status"),
    [
        (("show", "nobody"), 3),
        (("show", "nobody", "--json"), 3),
        (("sessions", "--limit", "x"), 2),
        (("sessions", "--store", "none.db"), 5),
        (("vacuum",), 0),
        (("import", "bad.jsonl", "good.jsonl"), 1),
        (("import", "bad.jsonl", "good.jsonl", "--json"), 1),
    ],
)
def test_messages_that_nobody_reads_change_nothing(
    chat: str, here: Path, command: tuple[str, ...], status: int, nobody: str
) -> None:
    """What is said on standard error is no data: the command does its work, and its exit status tells how it ended."""
    (here / "bad.jsonl").write_text("no message\n")
    write_lines(here / "good.jsonl", [{"role": "user", "content": "hello"}])
    if nobody == "a full disk":
        if not Path("/dev/full").is_char_device():
            pytest.skip("this system has no device that is full")
        unread = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, unread = os.pipe()
        os.close(reader)
    try:
        done = subprocess.run([*START, *command], stdout=subprocess.PIPE, stderr=unread, check=False, timeout=300)
    finally:
        os.close(unread)

    assert done.returncode == status
    if command[0] == "import":
        assert texts("good") == ["hello"]
        assert b"good" in done.stdout


# --- no room, no memory


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("context", "chat", "--html", "page.html"), "page.html"),
        (("demo", "--svg", "picture.svg"), "picture.svg"),
        (("export", "chat", "--output", "chat.json"), "chat.json"),
    ],
)
def test_a_file_that_does_not_fit_leaves_the_old_one(
    chat: str, small_disk: Path, command: tuple[str, ...], name: str
) -> None:
    """A file is written whole or not at all: what was there before stays as it was, and nothing is left beside it."""
    (small_disk / name).write_text("as before")
    with suppress(OSError), open(small_disk / "rest", "wb", buffering=0) as rest:
        while rest.write(bytes(4096)):
            pass

    done = start(*(str(small_disk / name) if word == name else word for word in command))
    (small_disk / "rest").unlink()

    assert done.returncode == 1
    assert done.stderr == f"Error: {small_disk / name}: No space left on device\n"
    assert {path.name: path.read_text() for path in small_disk.iterdir()} == {name: "as before"}


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of Linux")
def test_a_lack_of_memory_is_said_in_one_line(here: Path) -> None:
    """A command that gets no more memory says so, as JSON too, and what was stored before is whole."""
    write_lines(here / "large.jsonl", [{"role": "user", "content": "word " * 6_000_000}])
    command = f"ulimit -v 130000; exec {shlex.join(START)} import large.jsonl"

    plain, as_json = (
        subprocess.run(["/bin/sh", "-c", command + more], capture_output=True, text=True, check=False, timeout=300)
        for more in ("", " --json")
    )

    assert (plain.returncode, as_json.returncode) == (1, 1)
    assert plain.stderr == "Error: there is not enough memory for this\n"
    assert json.loads(as_json.stderr)["message"] == "there is not enough memory for this"


# --- places


@pytest.mark.parametrize(
    "command", [("sessions",), ("verify",), ("search", "order"), ("vacuum",), ("import", "chat.jsonl")]
)
def test_every_command_means_the_same_file_by_a_tilde(
    chat: str, here: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell leaves the tilde in `--store=~/chats.db` as it is: all commands look into the home folder."""
    home = here / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    assert run("import", "chat.jsonl", "--session", "chat", "--store", "~/mine.db").exit_code == 0

    done = run(*command, "--store", "~/mine.db")
    copied = run("copy", "~/mine.db", "~/other.db")

    assert (done.exit_code, copied.exit_code) == (0, 0), done.output + copied.output
    assert {"mine.db", "other.db"} <= {path.name for path in home.iterdir()}


@pytest.mark.parametrize("store", ["theirs/chats.db", "file:theirs/logs"])
def test_a_store_behind_a_closed_folder_is_not_called_missing(here: Path, store: str) -> None:
    """A folder that may not be entered is named as the reason, not that there is no store."""
    closed = here / "theirs"
    closed.mkdir()
    closed.chmod(0)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        os.chown(closed, 65_534, 65_534)
    try:
        done = start("sessions", "--store", store, preexec_fn=give_up_root)
    finally:
        closed.chmod(0o700)

    assert done.returncode == 5
    assert "Permission denied" in done.stderr
    assert "there is no store" not in done.stderr


@pytest.mark.parametrize("store", ["chats.db", "sqlite:///chats.db", "file:logs"])
def test_a_relative_path_in_a_folder_that_is_gone_is_named_as_the_reason(here: Path, store: str) -> None:
    """Where the working folder was removed, a relative path leads nowhere, and the store cannot be reached."""
    write_lines(here / "chat.jsonl", [{"role": "user", "content": "hello"}])
    gone = here / "gone"
    gone.mkdir()
    script = f"cd gone && rmdir ../gone && exec {shlex.join(START)} import {here / 'chat.jsonl'} --store {store}"

    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=False, timeout=300)

    assert done.returncode == 5
    assert "the working directory does not exist any more" in done.stderr


def test_the_library_names_the_folder_that_is_gone(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library raises its own error there, too."""
    (here / "gone").mkdir()
    os.chdir(here / "gone")
    (here / "gone").rmdir()
    try:
        with pytest.raises(StoreUnavailable, match="the working directory does not exist any more"):
            Memory.open("chats.db")
    finally:
        os.chdir(here)


def test_the_chat_explains_its_commands_without_docstrings(here: Path) -> None:
    """`python -OO` drops docstrings: /help lists the commands all the same."""
    environment = {**os.environ, "PYTHONOPTIMIZE": "2"}
    chat = ("chat", "typed", "--model", "m", "--base-url", "http://127.0.0.1:1/v1")
    done = subprocess.run(
        [*START, *chat], input="/help\n", capture_output=True, text=True, check=False, env=environment
    )

    assert done.returncode == 0, done.stderr
    assert "/stats" in done.stdout
