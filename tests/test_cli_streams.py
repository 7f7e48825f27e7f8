"""The command line: where questions go, byte order marks, odd values and pairs of options, files without rights."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from commands import CHAT, give_up_root, read, run, start, texts, write_lines
from palimpsest.cli.app import COMMANDS, palimpsest
from palimpsest.errors import ConfigError
from palimpsest.stores.copying import copy_store

MARK = "\ufeff"
NOTES = """\
resource: memory
id: notes
type: token_based
max_tokens: 1000
persistence: {type: sqlite, path: notes.db}
"""


# --- questions


@pytest.mark.parametrize(
    "command",
    [
        ("delete", "chat"),
        ("erase", "chat", "1"),
        ("forget", "--session", "chat"),
        ("scan", "--apply", "--rule", "order"),
        ("memory", "delete", "notes", "user:ann", "--config", "notes.yaml"),
    ],
)
def test_a_question_is_asked_on_standard_error(
    chat: str, here: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question goes to standard error, so that it is seen, and not mixed with data, if the output goes to a file."""
    monkeypatch.setattr("palimpsest.cli.app.on_terminal", lambda stream=None: True)
    (here / "notes.yaml").write_text(NOTES)
    assert run("memory", "append", "notes", "user:ann", "Milk.", "--config", "notes.yaml").exit_code == 0

    asked = run(*command, given="n\n")

    assert "[y/N]" in asked.stderr
    assert "[y/N]" not in asked.stdout
    assert texts(chat)[0] == CHAT[0]["content"]


# --- numbers


def numbers() -> list[tuple[str, str]]:
    """Return each command that takes a SESSION, with each of its options for a whole number without an upper bound."""
    context, found = click.Context(palimpsest), list[tuple[str, str]]()
    for name in COMMANDS:
        command = palimpsest.get_command(context, name)
        assert command is not None
        if [param.name for param in command.params if param.required] == ["session"]:
            found += [
                (name, param.opts[-1])
                for param in command.params
                if isinstance(param.type, click.IntRange) and param.type.max is None
            ]
    return found


@pytest.mark.parametrize("number", [2**53, 2**63 - 1, 2**63, 10**30])
def test_huge_numbers_cause_no_traceback(chat: str, number: int) -> None:
    """A number beyond all measure is taken or refused, and ends no command with a traceback."""
    assert ("show", "--limit") in numbers()
    for command, option in numbers():
        done = run(command, chat, option, str(number))

        assert done.exception is None or isinstance(done.exception, SystemExit), (command, option, done.exception)
        assert done.exit_code == 0 or "Error: " in done.stderr, (command, option)
    assert len(read("show", chat, "--limit", str(sys.maxsize + 1))) == len(CHAT)


# --- byte order marks


def test_byte_order_marks_of_files_and_input_are_ignored(chat: str, here: Path) -> None:
    """Files and standard input that begin with a byte order mark, as some editors write it, read as without it."""
    (here / "prompt.txt").write_text(f"{MARK}Be kind.", encoding="utf-8")
    (here / "tools.json").write_text(f"{MARK}[]", encoding="utf-8")
    (here / "more.json").write_text(MARK + json.dumps([{"role": "user", "content": "Milk."}]), encoding="utf-8")
    (here / "notes.yaml").write_text(NOTES)

    sent = read("context", chat, "--system", "@prompt.txt", "--tools", "tools.json", "--messages")
    to_notes = ("notes", "user:ann", "--config", "notes.yaml")
    from_file = run("memory", "append", *to_notes, "--file", "more.json")
    from_input = run("memory", "append", *to_notes, "--file", "-", given=(here / "more.json").read_bytes())
    gone = run("forget", "--matches", "-", "--yes", "--json", given=f"{MARK}Where is order 7?\n".encode())

    assert sent[0] == {"role": "system", "content": "Be kind."}
    assert (from_file.exit_code, from_input.exit_code) == (0, 0)
    assert [said["content"] for said in read("memory", "read", *to_notes)["messages"]] == ["Milk.", "Milk."]
    assert json.loads(gone.stdout)["entries"] > 0


# --- options that cannot go together


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "chat", "--entry", "1", "--at", "0"),
        ("context", "chat", "--messages", "--request"),
        ("context", "chat", "--html", "page.html", "--request"),
        ("context", "chat", "--html", "page.html", "--messages"),
        ("context", "chat", "--html", "-", "--json"),
        ("demo", "--html", "-", "--json"),
        ("demo", "--svg", "-", "--json"),
    ],
)
def test_contradictory_options_are_refused(chat: str, here: Path, arguments: tuple[str, ...]) -> None:
    """Options of which only one could be obeyed are refused, and nothing is printed or written."""
    done = run(*arguments)

    assert (done.exit_code, done.stdout) == (2, "")
    assert "--" in done.stderr
    assert not (here / "page.html").exists()


def test_the_demo_writes_its_pages_beside_json(here: Path) -> None:
    """`demo --json` writes the page and the picture that it is asked for, and prints its figures."""
    figures = read("demo", "--html", "demo.html", "--svg", "demo.svg")

    assert figures
    assert (here / "demo.html").stat().st_size > 1000
    assert (here / "demo.svg").stat().st_size > 1000


# --- empty values


@pytest.mark.parametrize(
    "arguments",
    [
        ("compact", "chat", "--strategy", ""),
        ("chat", "chat", "--model", "my-model", "--base-url", "http://127.0.0.1:9/v1", "--summarizer", ""),
        ("chat", "chat", "--model", "openai:my-model", "--base-url", ""),
        ("context", "chat", "--html", ""),
        ("demo", "--svg", ""),
        ("export", "chat", "--output", ""),
        ("import", "chat.jsonl", "--session", ""),
        ("config", "diff", "notes.yaml", "--store", ""),
    ],
)
def test_empty_values_are_refused(chat: str, here: Path, arguments: tuple[str, ...]) -> None:
    """An empty value, as a shell passes it for a variable that is not set, is an error."""
    (here / "notes.yaml").write_text(NOTES)
    done = run(*arguments)

    assert (done.exit_code, done.stdout) == (2, "")


def test_an_empty_url_or_counter_is_refused(chat: str, here: Path) -> None:
    """An empty URL of a worker, or an empty counter, is an error, and nothing is done."""
    done = run("worker", "", "--once")
    copied = run("copy", "chats.db", "copy.db", "--counter", "")

    assert (done.exit_code, copied.exit_code) == (2, 2)
    assert "''" in done.stderr
    assert not (here / "copy.db").exists()


@pytest.mark.parametrize("name", ["", "\udcff", "a\nb", 7])
def test_an_invalid_counter_name_is_refused_before_copying(chat: str, here: Path, name: Any) -> None:
    """A name that no counter can have is refused before anything is copied."""
    with pytest.raises(ConfigError, match="counters"):
        copy_store("sqlite:///chats.db", "sqlite:///copy.db", counters=[name])
    assert not (here / "copy.db").exists()


# --- files without rights


@pytest.mark.skipif(sys.platform != "linux", reason="root gives up its rights as Linux knows them")
@pytest.mark.parametrize("folder", [pytest.param(0o700, marks=pytest.mark.wide), 0o500])
@pytest.mark.parametrize("command", [("show", "chat"), ("search", "order"), ("stats", "chat"), ("verify",)])
def test_reading_commands_need_no_write_permission(
    chat: str, here: Path, command: tuple[str, ...], folder: int
) -> None:
    """Commands that only read need no right to write, neither to the file nor to its folder."""
    (here / "theirs").mkdir()
    shutil.copy("chats.db", "theirs/agent.db")
    Path("theirs/agent.db").chmod(0o400)
    Path("theirs").chmod(folder)

    done = start(*command, "--store", "theirs/agent.db", preexec_fn=give_up_root)

    Path("theirs").chmod(0o700)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


# --- hints


def test_a_hint_can_be_pasted_into_a_shell(here: Path) -> None:
    """A command that a hint names has its session as one word, whatever it is called."""
    name = "a b; echo 'gone' $(id)"
    write_lines(here / "chat.jsonl", CHAT)
    assert run("import", "chat.jsonl", "--session", name).exit_code == 0

    done = run("rewind", name, "--to", "0")
    hint = re.search(r"`(palimpsest rewind .*)` restores them", done.stderr)

    assert hint is not None
    assert run(*shlex.split(hint[1])[1:]).exit_code == 0
    assert len(texts(name)) == len(CHAT)
