"""The command line: what every command prints, what it leaves in the store, and its exit status."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commands import CHAT, START, read, run, start, write_lines
from palimpsest import Keys, Memory
from palimpsest.cli import app
from palimpsest.cli.app import palimpsest
from palimpsest.cli.failing import failure
from palimpsest.cli.output import clean, to_json
from writer import quarters

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"

EVIL = "\x1b[2Jgone\x1b]0;title\x07 \x9b31m \u202eolleh\u2066 \u200b\x7f\r end"


# --- every command


def test_every_help_works_without_optional_packages() -> None:
    """The help of every command works with no optional package installed."""
    without = "import sys; sys.modules.update(dict.fromkeys(['cryptography', 're2', 'pydantic_ai']))"
    helps = "; ".join(f"palimpsest(['{name}', '--help'], standalone_mode=False)" for name in app.COMMANDS)
    program = (
        f"{without}; from palimpsest.cli.app import palimpsest; palimpsest(['--help'], standalone_mode=False); {helps}"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage:") == len(app.COMMANDS) + 1


@pytest.mark.parametrize("name", sorted(app.COMMANDS))
def test_every_command_has_help_with_examples(name: str) -> None:
    """The `--help` of each command has examples and names `--json`."""
    result = run(name, "--help")

    assert result.exit_code == 0
    assert "Examples:" in result.output
    assert f"palimpsest {name}" in result.output
    assert "--json" in result.output
    assert " RANGE" not in result.output  # the name of a type, which says nothing of what to give


@pytest.mark.parametrize("name", sorted(app.COMMANDS))
def test_every_command_is_documented(name: str) -> None:
    """Each command has a heading in docs/cli.md, and its section names each of its options."""
    page = PAGE.read_text("utf-8")
    command = palimpsest.commands.get(name) or palimpsest.get_command(palimpsest.make_context("x", ["demo"]), name)
    assert command is not None
    section = re.search(rf"^## `palimpsest {name}.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)

    assert section is not None, f"docs/cli.md has no section on `palimpsest {name}`"
    options = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
    shared = {"--json", "--store", "--tenant", "--privacy"}
    assert [option for option in options if option not in shared and f"`{option}" not in section[0]] == []


def test_the_version_is_printed() -> None:
    """`--version` prints the program's name and version."""
    assert re.fullmatch(r"palimpsest \d+\.\d+\.\d+\S*\n", run("--version").output)


@pytest.mark.parametrize("module", ["palimpsest", "palimpsest.cli"])
def test_the_package_is_the_command(module: str) -> None:
    """`python -m palimpsest` is the command `palimpsest`, under its name, with its exit statuses."""
    told = subprocess.run([sys.executable, "-m", module, "shwo"], capture_output=True, text=True, check=False)
    helped = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=False)

    assert (told.returncode, "did you mean 'show'?" in told.stderr) == (2, True)
    assert helped.stdout.startswith("Usage: palimpsest [OPTIONS]")


def test_every_reading_command_prints_json(chat: str) -> None:
    """With `--json`, standard output of a command that reads is one JSON value."""
    assert [info["session"] for info in read("sessions")] == ["chat"]
    assert [entry["kind"] for entry in read("show", chat)] == ["message", "tool_call", "tool_result", "message"]
    assert read("stats", chat)["total_entries"] == 4
    assert read("context", chat, "--max-tokens", "500")["tokens"] <= 500
    assert read("export", chat)["session_id"] == "chat"
    assert all(check["well"] for check in read("doctor"))


# --- exit statuses


def test_success_and_nothing_to_do_exit_with_0(chat: str) -> None:
    """Importing a file again, when there is nothing new to add, exits with 0."""
    assert run("import", "chat.jsonl", "--session", "chat").exit_code == 0


def test_a_failed_operation_exits_with_1(chat: str) -> None:
    """An operation that fails, such as fitting too small a budget, exits with 1 and one line of error."""
    result = run("context", chat, "--max-tokens", "5")

    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("show",),
        ("show", "chat", "--limit", "many"),
        ("sessions", "--store", "sqlit:///x.db"),
        ("import", "missing.jsonl"),
        ("import", "-"),
        ("context", "chat", "--tools", "missing.json"),
        ("demo", "--model", "no-such-model"),
    ],
)
def test_bad_usage_or_configuration_exits_with_2(chat: str, arguments: tuple[str, ...]) -> None:
    """A wrong command, option or argument exits with 2 and an error on standard error."""
    result = run(*arguments, given=json.dumps(CHAT))

    assert result.exit_code == 2
    assert "Error: " in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "chta"),
        ("stats", "chta"),
        ("export", "chta"),
        ("context", "chta"),
        ("repair", "chta"),
        ("repair", "chta", "--json"),
        ("forget", "--session", "chta"),
        ("forget", "--session", "chta", "--json"),
        ("compact", "chta", "--strategy", "neuralyzer"),
        ("scan", "--session", "chta", "--apply", "--json"),
    ],
)
def test_an_unknown_session_exits_with_3_and_names_the_nearest(chat: str, arguments: tuple[str, ...]) -> None:
    """An unknown session exits with 3 and suggests the nearest id, before a command asks for consent."""
    result = run(*arguments)

    assert result.exit_code == 3
    assert "did you mean 'chat'?" in result.stderr


def test_an_unknown_entry_exits_with_3(chat: str) -> None:
    """An entry that the session does not have exits with 3."""
    assert run("show", chat, "--entry", "99").exit_code == 3


def test_conflicts_exit_with_4_and_store_errors_with_5() -> None:
    """Each error of the library has its exit status."""
    from palimpsest import BudgetImpossible, ConfigError, Conflict, EntryNotFound, StoreUnavailable
    from palimpsest.errors import StoreCorrupt

    errors = {
        BudgetImpossible(2, 1, {}): 1,
        ConfigError("x", 1, "2"): 2,
        EntryNotFound("s", 1): 3,
        Conflict("x", "is there"): 4,
        StoreUnavailable("x", "away"): 5,
        StoreCorrupt("x", "damaged"): 5,
    }

    assert [failure(error).exit_code for error in errors] == list(errors.values())


def test_reading_a_missing_store_exits_with_5_and_creates_no_file(here: Path) -> None:
    """A command that reads exits with 5 if the store does not exist, and creates no file."""
    assert run("sessions").exit_code == 5
    assert list(here.iterdir()) == []


def test_a_file_that_is_no_store_exits_with_5(here: Path) -> None:
    """A file that is not a Palimpsest store exits with 5, without a traceback."""
    (here / "chats.db").write_bytes(b"not a database at all, but long enough to be looked at" * 20)

    result = run("sessions")

    assert result.exit_code == 5
    assert "Traceback" not in result.stderr


# --- stores and tenants


def test_the_store_option_overrides_the_environment(chat: str, here: Path) -> None:
    """`--store`, before or after the command, overrides PALIMPSEST_STORE."""
    write_lines(here / "one.jsonl", CHAT[:1])
    run("import", "one.jsonl", "--store", "sqlite:///other.db")

    assert [info["session"] for info in read("sessions")] == ["chat"]
    assert [info["session"] for info in read("sessions", "--store", "other.db")] == ["one"]
    assert [info["session"] for info in read("--store", "other.db", "sessions")] == ["one"]


def test_the_default_store_is_palimpsest_db(chat: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `--store` and PALIMPSEST_STORE the store is `palimpsest.db` in the current folder."""
    monkeypatch.delenv("PALIMPSEST_STORE")

    run("import", "chat.jsonl")

    assert (here / "palimpsest.db").exists()


def test_a_tenant_sees_only_its_own_sessions(chat: str) -> None:
    """A session of one tenant does not exist for another tenant."""
    assert run("show", chat, "--tenant", "other").exit_code == 3
    assert read("sessions", "--tenant", "other") == []


# --- showing


def test_a_log_cannot_attack_the_terminal(here: Path) -> None:
    """Every command shows control characters, direction overrides and lone surrogates as escapes."""
    name = EVIL.encode("utf-8", "ignore").decode()  # which no surrogate may stand in
    write_lines(here / "evil.jsonl", [{"role": "user", "content": EVIL, "name": name}])
    run("import", "evil.jsonl")

    for result in (
        *(
            run("show", "evil"),
            run("show", "evil", "--json"),
            run("export", "evil"),
            run("show", "evil", "--entry", "1"),
        ),
        *(run("context", "evil", "--messages"), run("export", "evil", "--format", "openai"), run("show", EVIL)),
    ):
        assert (
            re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\ud800-\udfff]", result.output)
            is None
        )
    assert r"\x1b[2Jgone" in run("show", "evil").stdout
    assert read("show", "evil")[0]["content"] == EVIL


def test_neutralised_text_keeps_what_is_harmless() -> None:
    """Escaping leaves line breaks, tabs, accents, emoji and right-to-left scripts as they are."""
    harmless = "naïve\n\t記憶 🧠 שלום"

    assert clean(harmless) == harmless
    assert json.loads(to_json({"text": harmless + EVIL})) == {"text": harmless + EVIL}


def test_show_limits_to_the_newest_and_says_that_there_are_more(here: Path) -> None:
    """`show --limit` counts from the end, also if entries were erased, and names `--all` if there are more."""
    write_lines(here / "long.jsonl", [{"role": "user", "content": f"message {i}"} for i in range(30)])
    run("import", "long.jsonl")
    with Memory.open("sqlite:///chats.db") as memory:
        memory.session("long").erase([3, 4])

    newest = read("show", "long", "--limit", "2")

    assert [entry["seq"] for entry in newest] == [29, 30]
    assert "--all" in run("show", "long").stderr
    assert "(erased)" in run("show", "long", "--all").stdout


def test_show_at_a_revision_shows_the_log_of_that_time(chat: str, here: Path) -> None:
    """`show --at` shows the log as it was at that revision, without later entries."""
    write_lines(here / "more.jsonl", CHAT[:1])
    run("import", "more.jsonl", "--session", chat, "--key", "later")

    assert len(read("show", chat)) == 5
    assert len(read("show", chat, "--at", "1")) == 4


# --- the context


def test_a_context_is_stored_only_with_commit(here: Path) -> None:
    """`context` shows a cut that is due without storing it; `--commit` stores it."""
    write_lines(here / "long.jsonl", [{"role": "user", "content": "word " * 200} for _ in range(20)] + CHAT[3:])
    run("import", "long.jsonl")
    before = read("sessions")[0]["revision"]

    account = read("context", "long", "--max-tokens", "8000", "--system", "Be brief.")
    shown = run("context", "long", "--max-tokens", "2000").stdout

    assert account["tokens"] == sum(account["parts"].values())
    assert account["parts"]["system"] > 0
    assert "left out" in shown
    assert read("sessions")[0]["revision"] == before
    run("context", "long", "--max-tokens", "2000", "--commit")
    assert read("sessions")[0]["epoch"] == 1


def test_system_and_tools_come_from_files(chat: str, here: Path) -> None:
    """`--system @FILE` and `--tools FILE` read the system prompt and tools; both are counted and sent."""
    (here / "prompt.txt").write_text("You are helpful.")
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
    (here / "tools.json").write_text(json.dumps([tool]))

    account = read("context", chat, "--max-tokens", "500", "--system", "@prompt.txt", "--tools", "tools.json")
    sent = json.loads(run("context", chat, "--system", "@prompt.txt", "--messages").stdout)

    assert account["parts"]["tools"] > 0
    assert sent == [{"role": "system", "content": "You are helpful."}, *CHAT]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--tools", "missing.json"), "--tools: missing.json: No such file or directory"),
        (("--tools", "latin.json"), "--tools: latin.json is not text in UTF-8 (invalid start byte at byte 0)"),
        (("--tools", "deep.json"), "--tools: deep.json is nested too deeply"),
        (("--system", "@missing.txt"), "--system: missing.txt: No such file or directory"),
    ],
)
def test_an_unreadable_file_is_reported_with_its_option(
    chat: str, here: Path, arguments: tuple[str, str], told: str
) -> None:
    """An option whose file cannot be read exits with 2, naming the option and the fault of the file."""
    (here / "latin.json").write_bytes(b"\xff")
    (here / "deep.json").write_text("[" * 100_000)

    result = run("context", chat, *arguments)

    assert result.exit_code == 2
    assert result.stderr.endswith(f"Error: {told}\n")


# --- the doctor


def test_the_doctor_leaves_no_trace(chat: str) -> None:
    """The doctor removes what it wrote as a probe, and says that all entries can be read."""
    result = run("doctor")

    assert result.exit_code == 0
    assert [info["session"] for info in read("sessions")] == ["chat"]
    assert "4 entries of 1 session can be read" in result.stdout


def test_the_doctor_reports_a_damaged_store(here: Path) -> None:
    """A damaged store fails a check of the doctor, which exits with 1."""
    (here / "chats.db").write_bytes(b"nothing of ours" * 100)

    result = run("doctor")

    assert result.exit_code == 1
    assert "FAIL" in result.stdout


def test_commands_that_look_for_damage_find_a_damaged_record(chat: str) -> None:
    """`doctor` and `repair` report a damaged record that `verify` reports, and do not call the store sound."""
    assert run("pin", chat, "1").exit_code == 0
    with contextlib.closing(sqlite3.connect("chats.db")) as db, db:
        where = "pos >> 32 = (SELECT number FROM part WHERE name = 'record')"
        ((pos, value),) = db.execute(f"SELECT pos, value FROM other WHERE {where}").fetchall()
        db.execute("UPDATE other SET value = ? WHERE pos = ?", (value.replace(b"pin", b"pni"), pos))

    results = [
        run(*words)
        for words in (["verify", chat], ["doctor"], ["repair", chat, "--yes"], ["repair", chat, "--dry-run"])
    ]

    assert [result.exit_code for result in results] == [1, 1, 5, 5]
    assert all(f"record of revision 2 of session '{chat}'" in result.output for result in results)


def test_the_doctor_does_not_call_an_unreadable_store_damaged(chat: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store whose keys are missing, or of a newer Palimpsest, is not reported as damaged: no backup is advised."""
    monkeypatch.setenv("PALIMPSEST_KEY", f"a:{Keys.new()}")
    run("import", "chat.jsonl", "--store", "sealed.db")
    monkeypatch.setenv("PALIMPSEST_KEY", f"b:{Keys.new()}")
    sealed = run("doctor", "--store", "sealed.db").stdout
    monkeypatch.delenv("PALIMPSEST_KEY")
    with contextlib.closing(sqlite3.connect("chats.db")) as db:
        db.execute("PRAGMA user_version = 99")
    newer = run("doctor").stdout

    assert sealed.count("Set PALIMPSEST_KEY to the keys of the store.") == 3
    assert newer.count("Install the version of Palimpsest that wrote the store") == 3
    assert "backup" not in sealed + newer


# --- as a process


def test_output_to_a_pipe_is_plain(chat: str) -> None:
    """Output to a pipe has no colours, and lines are not cut."""
    shown = start("show", chat)

    assert shown.returncode == 0
    assert "\x1b" not in shown.stdout
    assert "result of look_up" in shown.stdout


def test_a_broken_pipe_is_harmless(here: Path) -> None:
    """A reader that closes the pipe early causes no traceback and no failure."""
    write_lines(here / "long.jsonl", [{"role": "user", "content": "word " * 300} for _ in range(400)])
    run("import", "long.jsonl")

    shown = subprocess.Popen([*START, "show", "long", "--all"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert shown.stdout is not None
    assert shown.stderr is not None
    shown.stdout.read(10)
    shown.stdout.close()
    errors = shown.stderr.read()
    shown.stderr.close()

    assert (shown.wait(60), errors) == (0, b"")


@pytest.mark.parametrize("arguments", ["--help", "--version", "show --help", "sessions", "export chat"])
def test_a_pipe_closed_before_the_first_byte_is_harmless(chat: str, arguments: str) -> None:
    """A pipe that is closed before anything is written causes no failure either, also for help."""
    there, here = os.pipe()
    os.close(there)
    try:
        ran = subprocess.run([*START, *arguments.split()], stdout=here, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(here)

    assert (ran.returncode, ran.stderr) == (0, b"")


@pytest.mark.sampled
@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="this system has no device that is full")
@pytest.mark.parametrize("arguments", [("show", "chat"), ("export", "chat"), ("sessions", "--json"), ("--help",)])
def test_output_to_a_full_disk_is_reported_in_one_line(chat: str, arguments: tuple[str, ...]) -> None:
    """Output that cannot be written to a full disk exits with 1 and one line that says why."""
    with open("/dev/full", "wb") as full:
        ran = subprocess.run([*START, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert ran.returncode == 1
    assert "the output could not be written: No space left on device" in ran.stderr
    assert ran.stderr.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no limits for files")
@pytest.mark.parametrize(
    "arguments", [("show", "chat", "--json"), ("export", "chat"), ("export", "chat", "--format", "text")]
)
def test_unbuffered_output_that_is_cut_off_is_reported(chat: str, here: Path, arguments: tuple[str, ...]) -> None:
    """Without Python's buffer, output of which the disk takes only the first bytes is a failure, too."""
    room = 4 * 1024 * 1024

    def limited() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    out = here / "out"
    with out.open("wb") as nearly_full:
        nearly_full.truncate(room - 20)
    with out.open("ab") as nearly_full:
        ran = subprocess.run(
            [*START, *arguments],
            stdout=nearly_full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            preexec_fn=limited,
        )

    assert ran.returncode == 1
    assert "the output could not be written: File too large" in ran.stderr


def test_output_escapes_what_its_encoding_lacks(chat: str, here: Path) -> None:
    """Characters that the output's encoding lacks are printed as escapes, which JSON reads back as the characters.

    An HTML page is written in UTF-8 whatever the encoding.
    """
    message = {"role": "user", "content": "na\u00efve \U0001f9e0"}
    write_lines(here / "odd.jsonl", [message])
    run("import", "odd.jsonl", "--session", "odd")
    env = {**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}
    shown, sent = (
        subprocess.run([*START, *arguments, "odd"], capture_output=True, check=False, env=env)
        for arguments in (("show",), ("context", "--messages"))
    )
    page = subprocess.run([*START, "context", "odd", "--html", "-"], capture_output=True, check=False, env=env)

    assert (shown.returncode, sent.returncode, page.returncode) == (0, 0, 0)
    assert "na\u00efve \\ud83e\\udde0" in shown.stdout.decode("latin-1")
    assert json.loads(sent.stdout.decode("latin-1")) == [message]
    assert message["content"] in page.stdout.decode()


def test_ascii_output_gets_escapes(chat: str, here: Path) -> None:
    """An ASCII output gets escapes for other characters.

    click would write UTF-8 to a stream that is called ASCII.
    """
    message = {"role": "user", "content": "na\u00efve \U0001f9e0"}
    write_lines(here / "odd.jsonl", [message])
    run("import", "odd.jsonl", "--session", "odd")
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    shown, sent, missed = (
        subprocess.run([*START, *arguments], capture_output=True, check=False, env=env)
        for arguments in (("show", "odd"), ("context", "--messages", "odd"), ("show", "na\u00efve"))
    )

    assert "na\\u00efve \\ud83e\\udde0" in shown.stdout.decode("ascii")
    assert json.loads(sent.stdout.decode("ascii")) == [message]
    assert "na\\u00efve" in missed.stderr.decode("ascii")


def test_reading_commands_work_on_a_read_only_store(chat: str, here: Path) -> None:
    """Commands that only read work on a store that may not be written."""
    place = here / "theirs"
    place.mkdir()
    with Memory.open(place / "agent.db") as memory:
        memory.session("s").add_user_message("Where is order 7?")
    for path in (*place.iterdir(), place):
        path.chmod(0o500)
    try:
        if os.access(place / "agent.db", os.W_OK):
            pytest.skip("whoever runs this may write to every file")
        for command in ("show", "search", "stats", "verify"):
            arguments = ("order", "--session", "s") if command == "search" else ("s",)
            done = run(command, *arguments, "--store", str(place / "agent.db"))
            assert done.exit_code == 0, done.output
    finally:
        place.chmod(0o700)


def test_standard_input_that_is_not_utf_8_is_refused(chat: str) -> None:
    """`forget --matches -` refuses input that is not valid text.

    Read wrongly, it would be found nowhere, and the text to be forgotten would seem not to exist.
    """
    env = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    command = [*START, "forget", "--matches", "-", "--yes"]
    done = subprocess.run(command, input=b"caf\xe9\n", capture_output=True, check=False, env=env)

    assert done.returncode == 2
    assert done.stderr.endswith(b"Error: --matches -: standard input is not valid utf-8\n")


@pytest.mark.sampled
@pytest.mark.skipif(os.name != "posix", reason="a shell of POSIX")
@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("show chat >&-", 1),
        ("export chat >&-", 1),
        ("sessions --json >&-", 1),
        ("--help >&-", 1),
        ("vacuum >&-", 0),
        ("export chat -o chat.json >&-", 0),
        ("show nobody 2>&-", 3),
        ("import - <&-", 1),
        ("sessions <&- >&- 2>&-", 1),
        ("export chat -o chat.json <&- >&- 2>&-", 0),
    ],
)
def test_closed_standard_streams_fail_only_if_data_are_lost(chat: str, command: str, status: int) -> None:
    """A closed standard stream is a failure only if data had to go through it, and never causes a traceback.

    A closed standard input reads as empty; messages to a closed stream are dropped.
    """
    ran = subprocess.run(
        ["/bin/sh", "-c", f"{shlex.join(START)} {command}"], capture_output=True, text=True, check=False
    )

    assert ran.returncode == status
    assert "Traceback" not in ran.stderr


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_an_interrupted_import_exits_with_130(here: Path) -> None:
    """Ctrl-C during an import exits with 130 without a traceback, and keeps the batches stored so far."""
    lines = [json.dumps({"role": "user", "content": "x" * 8_000}) + "\n" for _ in range(600)]
    waiting = subprocess.Popen(
        [*START, "import", "-", "--session", "typed"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert waiting.stdin is not None
    waiting.stdin.write("".join(lines).encode())
    waiting.stdin.flush()
    for _ in range(600):  # until a batch is stored: all modules are loaded, and it waits for more input
        if (here / "chats.db").exists() and "typed" in run("sessions").stdout:
            break
        time.sleep(0.05)
    waiting.send_signal(signal.SIGINT)
    errors = waiting.communicate(timeout=300)[1]

    assert waiting.returncode == 130
    assert b"Traceback" not in errors
    assert read("stats", "typed")["total_entries"] >= 256


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_an_interrupted_question_destroys_nothing(chat: str) -> None:
    """Ctrl-C at a question exits with 130, prints nothing, and destroys nothing."""
    ours, terminal = os.openpty()
    asked = subprocess.Popen([*START, "delete", chat], stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.close(terminal)
    assert asked.stderr is not None
    question = b""
    while not question.endswith(b"[y/N]: "):
        byte = asked.stderr.read(1)
        assert byte, asked.communicate(timeout=300)
        question += byte
    for _ in range(300):  # one that comes just before it begins to read is seen when that ends
        asked.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            asked.wait(1)
            break

    assert (asked.communicate(timeout=300)[1].strip(), asked.returncode) == (b"", 130)
    os.close(ours)
    assert chat in run("sessions").stdout


def test_the_installed_command_starts(here: Path) -> None:
    """The installed entry point starts the same command line."""
    ran = start("--version")

    assert ran.returncode == 0
    assert ran.stdout.startswith("palimpsest ")


def test_a_context_is_printed_for_any_provider(chat: str) -> None:
    """`context --format` prints a provider's messages, `--request` all that is sent; an unknown format is refused."""
    brought = ("context", chat, "--system", "be kind", "--format")

    asked = {name: read(*brought, name, "--request") for name in ("openai", "openai-responses", "anthropic", "gemini")}

    assert asked["openai"]["messages"][0] == {"role": "system", "content": "be kind"}
    assert asked["openai-responses"]["instructions"] == "be kind"
    marked = {"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}
    assert asked["anthropic"]["system"] == [marked]
    assert asked["gemini"]["config"]["system_instruction"] == "be kind"
    assert run(*brought, "text", "--request").stdout.count("=== Recent Conversation ===") == 1
    assert run(*brought, "antropic").exit_code == 2
    assert "did you mean 'anthropic'?" in run(*brought, "antropic").stderr


def test_exports_are_written_for_any_provider(chat: str, here: Path) -> None:
    """`export` writes each provider's format, which `import` takes again; `text` is plain text."""
    for name in ("openai", "openai-responses", "anthropic", "gemini"):
        assert run("export", chat, "--format", name, "-o", f"{name}.json").exit_code == 0
        assert run("import", f"{name}.json", "--session", name, "--format", name).exit_code == 0
        again, first = (run("export", one, "--format", "openai").stdout for one in (name, chat))
        assert again.replace(" ", "") == first.replace(" ", "")  # the spacing of arguments is no provider's
    assert "did you mean 'anthropic'?" in run("export", chat, "--format", "antropic", "-o", "no.json").stderr
    assert not list(here.glob("no.json*"))
    exported = run("export", chat, "--format", "text").stdout
    assert exported.startswith("=== Recent Conversation ===\nUser: ")
    assert exported.endswith("\n")
    assert "prompt" in read("export", chat, "--format", "text")


# --- names that would steer a terminal

STEERING = "s\u202eolleh"
"""A session id that reverses text on a terminal, as a hostile program may choose it."""

FILE = "\x1b]0;title\x07\u202e.jsonl"

PRINTING: dict[str, tuple[str, ...]] = {
    "sessions": (),
    "show": (STEERING,),
    "stats": (STEERING,),
    "context": (STEERING,),
    "config": ("check", FILE),
    "history": (STEERING,),
    "diff": (STEERING, "1", "2"),
    "compact": (STEERING, "--keep", "1"),
    "delete": (STEERING, "--dry-run"),
    "erase": (STEERING, "2", "--reason", STEERING, "--dry-run"),
    "pin": (STEERING, "2"),
    "title": (STEERING, STEERING),
    "facts": ("a", "k", STEERING),
    "unpin": (STEERING, "2"),
    "summaries": (STEERING, "--all", "--expand"),
    "verify": (STEERING,),
    "repair": (STEERING, "--dry-run"),
    "export": (STEERING,),
    "fork": (STEERING, STEERING + "2"),
    "rewind": (STEERING, "--to", "2"),
    "scan": ("--rule", "hello"),
    "import": (FILE, "--session", STEERING),
    "search": ("hello", "--session", STEERING, "--name", EVIL),
    "forget": ("--session", STEERING, "--yes"),
}
SILENT = {
    "chat": "asks a model",
    "demo": "has a conversation of its own",
    "vacuum": "names nobody",
    "derived": "names of programs, which are printable",
    "index": "tells numbers, and the store's own name",
    "doctor": "tells of the machine",
    "rotate-keys": "names keys alone",
    "copy": "tells numbers",
    "memory": "keys are printable, and texts are tried by its own tests",
    "serve": "keys are not printed, and ids of declared memories are printable",
    "sweep": "tells numbers",
    "worker": "names sessions of declared memories, whose keys are printable",
}


def test_every_command_is_tested_with_hostile_names() -> None:
    """Every command is in PRINTING, which a test tries with hostile names, or in SILENT with the reason why not."""
    assert sorted(PRINTING.keys() | SILENT.keys()) == sorted(app.COMMANDS)


@pytest.mark.sampled
@pytest.mark.parametrize("more", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize("command", PRINTING)
def test_no_name_reaches_the_terminal_unescaped(here: Path, command: str, more: tuple[str, ...]) -> None:
    """Every command prints ids, names, reasons, models and file names with escapes, in its errors too."""
    with Memory.open("sqlite:///chats.db") as memory:
        session = memory.session(STEERING, counter=quarters)
        for number in range(4):
            session.add_user_message(f"hello {number} " + "words " * 30, name=EVIL, metadata={FILE: "hello"})
            session.add_assistant_message("hello " + "words " * 30, name=EVIL)
        session.fork(STEERING + "branch")
        session.erase([1], reason=EVIL)
    Path(FILE).write_text('{"role": "user", "content": "hello"}\n{"role": "odd"}\n')

    done = run(command, *PRINTING[command], *more)
    absent = [f"{name}missing" if name in (STEERING, FILE) else name for name in PRINTING[command]]
    missing = run(command, *absent, *more)
    wrong = run(command, *PRINTING[command], EVIL, "--no-" + FILE)

    assert done.exception is None or isinstance(done.exception, SystemExit)
    for told in (done.output, missing.output, wrong.output):
        assert [sign for sign in ("\x1b", "\x07", "\u202e") if sign in told] == []
