"""The command line: what each command prints, what it leaves behind, and what its exit status says."""

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


def test_every_command_explains_itself_without_an_extra() -> None:
    """Whoever has installed nothing but the library can ask each command for its help, and bare `palimpsest`, too."""
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
    """`--help` says what a command does and shows it in use."""
    result = run(name, "--help")

    assert result.exit_code == 0
    assert "Examples:" in result.output
    assert f"palimpsest {name}" in result.output
    assert "--json" in result.output
    assert " RANGE" not in result.output  # the name of a type, which says nothing of what to give


@pytest.mark.parametrize("name", sorted(app.COMMANDS))
def test_every_command_is_documented(name: str) -> None:
    """An undocumented command fails: each has a heading in docs/cli.md, and each of its options is named there."""
    page = PAGE.read_text("utf-8")
    command = palimpsest.commands.get(name) or palimpsest.get_command(palimpsest.make_context("x", ["demo"]), name)
    assert command is not None
    section = re.search(rf"^## `palimpsest {name}.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)

    assert section is not None, f"docs/cli.md has no section on `palimpsest {name}`"
    options = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
    shared = {"--json", "--store", "--tenant", "--privacy"}
    assert [option for option in options if option not in shared and f"`{option}" not in section[0]] == []


def test_the_version_is_printed() -> None:
    """`--version` prints name and version."""
    assert re.fullmatch(r"palimpsest \d+\.\d+\.\d+\S*\n", run("--version").output)


def test_every_reading_command_prints_json(chat: str) -> None:
    """With `--json` standard output is one JSON value."""
    assert [info["session"] for info in read("sessions")] == ["chat"]
    assert [entry["kind"] for entry in read("show", chat)] == ["message", "tool_call", "tool_result", "message"]
    assert read("stats", chat)["total_entries"] == 4
    assert read("context", chat, "--max-tokens", "500")["tokens"] <= 500
    assert read("export", chat)["session_id"] == "chat"
    assert all(check["well"] for check in read("doctor"))


# --- exit statuses


def test_success_and_nothing_to_do_are_0(chat: str) -> None:
    """Importing what is there already is a success."""
    assert run("import", "chat.jsonl", "--session", "chat").exit_code == 0


def test_a_failed_operation_is_1(chat: str) -> None:
    """A budget that nothing fits into is an operation that failed, told in one line."""
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
def test_bad_usage_or_configuration_is_2(chat: str, arguments: tuple[str, ...]) -> None:
    """Whatever is wrong in how a command was called ends with 2, and says so on standard error."""
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
def test_an_unknown_session_is_3_and_the_nearest_is_named(chat: str, arguments: tuple[str, ...]) -> None:
    """What is not there ends with 3, also where there is nobody to ask whether it may be destroyed."""
    result = run(*arguments)

    assert result.exit_code == 3
    assert "did you mean 'chat'?" in result.stderr


def test_an_unknown_entry_is_3(chat: str) -> None:
    """An entry that the session has not ends with 3."""
    assert run("show", chat, "--entry", "99").exit_code == 3


def test_conflicts_are_4_and_stores_are_5() -> None:
    """The library's errors each have their exit status."""
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


def test_a_store_that_is_not_there_is_5_and_is_not_made(here: Path) -> None:
    """Looking makes no file."""
    assert run("sessions").exit_code == 5
    assert list(here.iterdir()) == []


def test_a_foreign_file_is_5_and_is_not_touched(here: Path) -> None:
    """A file that is no store is refused as it is."""
    (here / "chats.db").write_bytes(b"not a database at all, but long enough to be looked at" * 20)

    result = run("sessions")

    assert result.exit_code == 5
    assert "Traceback" not in result.stderr


# --- stores and tenants


def test_the_option_comes_before_the_environment(chat: str, here: Path) -> None:
    """`--store` names the store before or after the command; without it PALIMPSEST_STORE does."""
    write_lines(here / "one.jsonl", CHAT[:1])
    run("import", "one.jsonl", "--store", "sqlite:///other.db")

    assert [info["session"] for info in read("sessions")] == ["chat"]
    assert [info["session"] for info in read("sessions", "--store", "other.db")] == ["one"]
    assert [info["session"] for info in read("--store", "other.db", "sessions")] == ["one"]


def test_without_either_the_store_is_palimpsest_db(chat: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is a file in the current folder."""
    monkeypatch.delenv("PALIMPSEST_STORE")

    run("import", "chat.jsonl")

    assert (here / "palimpsest.db").exists()


def test_a_tenant_sees_its_own_sessions(chat: str) -> None:
    """Another tenant has no such session."""
    assert run("show", chat, "--tenant", "other").exit_code == 3
    assert read("sessions", "--tenant", "other") == []


# --- showing


def test_a_log_cannot_attack_the_terminal(here: Path) -> None:
    """Control characters, overrides of direction and lone surrogates are shown as escapes, in every command."""
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
    """Line breaks, tabs, accents, emoji and right-to-left scripts stay as they are."""
    harmless = "naïve\n\t記憶 🧠 שלום"

    assert clean(harmless) == harmless
    assert json.loads(to_json({"text": harmless + EVIL})) == {"text": harmless + EVIL}


def test_show_gives_the_newest_and_says_that_there_are_more(here: Path) -> None:
    """`--limit` counts from the end, also where entries were erased."""
    write_lines(here / "long.jsonl", [{"role": "user", "content": f"message {i}"} for i in range(30)])
    run("import", "long.jsonl")
    with Memory.open("sqlite:///chats.db") as memory:
        memory.session("long").erase([3, 4])

    newest = read("show", "long", "--limit", "2")

    assert [entry["seq"] for entry in newest] == [29, 30]
    assert "--all" in run("show", "long").stderr
    assert "(erased)" in run("show", "long", "--all").stdout


def test_show_at_a_revision_shows_the_log_of_then(chat: str, here: Path) -> None:
    """What came later is not there."""
    write_lines(here / "more.jsonl", CHAT[:1])
    run("import", "more.jsonl", "--session", chat, "--key", "later")

    assert len(read("show", chat)) == 5
    assert len(read("show", chat, "--at", "1")) == 4


# --- the context


def test_a_context_is_computed_and_not_stored(here: Path) -> None:
    """Without `--commit` a cut that is due is shown, and the session stays as it was."""
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
    """`@FILE` gives the system prompt, a JSON list the tools; both are counted, the messages are ready to be sent."""
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
        (("--tools", "latin.json"), "--tools: latin.json is no text in UTF-8 (invalid start byte at byte 0)"),
        (("--tools", "deep.json"), "--tools: deep.json is nested too deeply"),
        (("--system", "@missing.txt"), "--system: missing.txt: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_with_its_option(
    chat: str, here: Path, arguments: tuple[str, str], told: str
) -> None:
    """Each option names itself, and what is wrong with its file."""
    (here / "latin.json").write_bytes(b"\xff")
    (here / "deep.json").write_text("[" * 100_000)

    result = run("context", chat, *arguments)

    assert result.exit_code == 2
    assert result.stderr.endswith(f"Error: {told}\n")


# --- the doctor


def test_the_doctor_leaves_no_trace(chat: str) -> None:
    """The probe is gone afterwards, and every check says that all is well."""
    result = run("doctor")

    assert result.exit_code == 0
    assert [info["session"] for info in read("sessions")] == ["chat"]
    assert "4 entries of 1 session can be read" in result.stdout


def test_the_doctor_says_what_is_wrong(here: Path) -> None:
    """A damaged store fails its check with advice, and the exit status is 1."""
    (here / "chats.db").write_bytes(b"nothing of ours" * 100)

    result = run("doctor")

    assert result.exit_code == 1
    assert "FAIL" in result.stdout


def test_commands_that_look_for_damage_find_a_damaged_record(chat: str) -> None:
    """The doctor does not say that all can be read, nor `repair` that nothing is damaged, where `verify` cannot."""
    assert run("pin", chat, "1").exit_code == 0
    with contextlib.closing(sqlite3.connect("chats.db")) as db, db:
        where = "pos >> 32 = (SELECT number FROM part WHERE name = 'record')"
        ((pos, value),) = db.execute(f"SELECT pos, value FROM other WHERE {where}").fetchall()
        db.execute("UPDATE other SET value = ? WHERE pos = ?", (value.replace(b"pin", b"pni"), pos))

    found = [
        run(*words)
        for words in (["verify", chat], ["doctor"], ["repair", chat, "--yes"], ["repair", chat, "--dry-run"])
    ]

    assert [result.exit_code for result in found] == [1, 1, 5, 5]
    assert all(f"record of revision 2 of session '{chat}'" in result.output for result in found)


def test_the_doctor_knows_a_sound_store_that_it_may_not_read(chat: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose keys are missing, or who has an older Palimpsest, is not told to restore a backup."""
    monkeypatch.setenv("PALIMPSEST_KEY", f"a:{Keys.new()}")
    run("import", "chat.jsonl", "--store", "sealed.db")
    monkeypatch.setenv("PALIMPSEST_KEY", f"b:{Keys.new()}")
    sealed = run("doctor", "--store", "sealed.db").stdout
    monkeypatch.delenv("PALIMPSEST_KEY")
    with contextlib.closing(sqlite3.connect("chats.db")) as db:
        db.execute("PRAGMA user_version = 99")
    newer = run("doctor").stdout

    assert sealed.count("Give the keys of the store, as PALIMPSEST_KEY.") == 3
    assert newer.count("Install the Palimpsest that has written it") == 3
    assert "backup" not in sealed + newer


# --- as a process


def test_output_to_a_pipe_is_plain(chat: str) -> None:
    """No colour and no rules where nobody looks, and lines are not cut."""
    shown = start("show", chat)

    assert shown.returncode == 0
    assert "\x1b" not in shown.stdout
    assert "result of look_up" in shown.stdout


def test_a_broken_pipe_is_harmless(here: Path) -> None:
    """Whoever stops reading early gets no traceback, and the command no failure."""
    write_lines(here / "long.jsonl", [{"role": "user", "content": "word " * 300} for _ in range(400)])
    run("import", "long.jsonl")

    shown = subprocess.Popen([*START, "show", "long", "--all"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert shown.stdout is not None
    assert shown.stderr is not None
    shown.stdout.read(10)
    shown.stdout.close()
    told = shown.stderr.read()
    shown.stderr.close()

    assert (shown.wait(60), told) == (0, b"")


@pytest.mark.parametrize("arguments", ["--help", "--version", "show --help", "sessions", "export chat"])
def test_a_reader_that_is_gone_before_anything_is_written_is_harmless(chat: str, arguments: str) -> None:
    """So it is where the help is what nobody reads."""
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
def test_output_that_has_no_room_is_told_in_a_line(chat: str, arguments: tuple[str, ...]) -> None:
    """A full disk behind `> file` is 1, with its reason and without a traceback."""
    with open("/dev/full", "wb") as full:
        told = subprocess.run([*START, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert told.returncode == 1
    assert "the output could not be written: No space left on device" in told.stderr
    assert told.stderr.count("\n") == 1


def test_every_text_can_be_printed_in_every_encoding(chat: str, here: Path) -> None:
    """What the encoding of a pipe does not have is shown as escapes, which JSON reads as what they are."""
    said = {"role": "user", "content": "na\u00efve \U0001f9e0"}
    write_lines(here / "odd.jsonl", [said])
    run("import", "odd.jsonl", "--session", "odd")
    env = {**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}
    shown, told = (
        subprocess.run([*START, *arguments, "odd"], capture_output=True, check=False, env=env)
        for arguments in (("show",), ("context", "--messages"))
    )
    page = subprocess.run([*START, "context", "odd", "--html", "-"], capture_output=True, check=False, env=env)

    assert (shown.returncode, told.returncode, page.returncode) == (0, 0, 0)
    assert "na\u00efve \\ud83e\\udde0" in shown.stdout.decode("latin-1")
    assert json.loads(told.stdout.decode("latin-1")) == [said]
    assert said["content"] in page.stdout.decode()


def test_an_output_of_ascii_gets_escapes_and_no_other_encoding(chat: str, here: Path) -> None:
    """click would write UTF-8 to a stream that is called ASCII: what ASCII does not have is escaped there, too."""
    said = {"role": "user", "content": "na\u00efve \U0001f9e0"}
    write_lines(here / "odd.jsonl", [said])
    run("import", "odd.jsonl", "--session", "odd")
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    shown, told, missed = (
        subprocess.run([*START, *arguments], capture_output=True, check=False, env=env)
        for arguments in (("show", "odd"), ("context", "--messages", "odd"), ("show", "na\u00efve"))
    )

    assert "na\\u00efve \\ud83e\\udde0" in shown.stdout.decode("ascii")
    assert json.loads(told.stdout.decode("ascii")) == [said]
    assert "na\\u00efve" in missed.stderr.decode("ascii")


def test_what_only_reads_works_where_nothing_may_be_written(chat: str, here: Path) -> None:
    """A store that belongs to somebody else is shown, searched, and told in numbers."""
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


def test_input_that_is_no_text_is_refused_where_it_is_looked_for(chat: str) -> None:
    """A text to be forgotten that is read wrongly would be found nowhere, and pass for one that is not there."""
    env = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    command = [*START, "forget", "--matches", "-", "--yes"]
    done = subprocess.run(command, input=b"caf\xe9\n", capture_output=True, check=False, env=env)

    assert done.returncode == 2
    assert done.stderr.endswith(b"Error: --matches -: standard input is no text in utf-8\n")


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
def test_of_streams_that_are_closed_only_data_are_missed(chat: str, command: str, status: int) -> None:
    """Where nobody writes nothing is read, and what is said where nobody reads is dropped; data that have nowhere to
    go are a failure: no traceback."""
    ran = subprocess.run(
        ["/bin/sh", "-c", f"{shlex.join(START)} {command}"], capture_output=True, text=True, check=False
    )

    assert ran.returncode == status
    assert "Traceback" not in ran.stderr


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_an_interrupt_ends_quietly_with_130(here: Path) -> None:
    """Ctrl-C while it waits for more is no failure to explain; what had come until then is kept."""
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
    for _ in range(600):  # until a batch is stored: what it needs is loaded, and it reads on
        if (here / "chats.db").exists() and "typed" in run("sessions").stdout:
            break
        time.sleep(0.05)
    waiting.send_signal(signal.SIGINT)
    told = waiting.communicate(timeout=300)[1]

    assert waiting.returncode == 130
    assert b"Traceback" not in told
    assert read("stats", "typed")["total_entries"] >= 256


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_an_interrupted_question_is_no_answer(chat: str) -> None:
    """Ctrl-C there ends with 130, as anywhere else, and nothing is destroyed; without anybody to answer it is 1."""
    ours, terminal = os.openpty()
    asked = subprocess.Popen([*START, "delete", chat], stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.close(terminal)
    assert asked.stdout is not None
    question = b""
    while not question.endswith(b"[y/N]: "):
        told = asked.stdout.read(1)
        assert told, asked.communicate(timeout=300)
        question += told
    for _ in range(300):  # one that comes just before it begins to read is seen when that ends
        asked.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            asked.wait(1)
            break

    assert (asked.communicate(timeout=300)[1].strip(), asked.returncode) == (b"", 130)
    os.close(ours)
    assert chat in run("sessions").stdout


def test_the_installed_command_starts(here: Path) -> None:
    """The entry point of the package is the same command."""
    ran = start("--version")

    assert ran.returncode == 0
    assert ran.stdout.startswith("palimpsest ")


def test_a_context_is_printed_for_any_provider(chat: str) -> None:
    """`--format` chooses the provider's messages, `--request` prints all that is sent, and an unknown one is told."""
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
    """Each format is JSON that the import takes again, and `text` is text."""
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
"""The id of a session, as whoever made it may have chosen it."""

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
    "sweep": "tells numbers",
    "worker": "names sessions of declared memories, whose keys are printable",
}


def test_every_command_is_tried_with_such_names() -> None:
    """A new command is tried, or says why not."""
    assert sorted(PRINTING.keys() | SILENT.keys()) == sorted(app.COMMANDS)


@pytest.mark.sampled
@pytest.mark.parametrize("more", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize("command", PRINTING)
def test_no_name_reaches_the_terminal_as_it_is(here: Path, command: str, more: tuple[str, ...]) -> None:
    """Ids of sessions, names, reasons, models and files are shown with escapes, by every command, in errors, too."""
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
