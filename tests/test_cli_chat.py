"""`palimpsest chat`: what it stores and prints, its slash commands, failures, and Ctrl-C."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from commands import START, read, run, texts
from openai_server import OpenAIServer, Play, breaks_off, fails, says, sends, stalls
from palimpsest import Memory

PATIENCE = 300.0
KEY = "sk-very-secret-0123456789"


@pytest.fixture(autouse=True)
def no_environment(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test an empty folder, and an environment without API keys and proxies."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def talk(server: OpenAIServer, *lines: str, options: tuple[str, ...] = ()) -> Result:
    """Run a chat with these lines as standard input."""
    at = ("--model", "my-model", "--base-url", server.url)
    return run("chat", "trip", *at, *options, given="".join(f"{line}\n" for line in lines))


def test_a_chat_remembers() -> None:
    """A chat stores messages and answers, sends them with the next request, and a later chat continues from there."""
    with OpenAIServer(says("Hello there."), says("You said hi.")) as server:
        first = talk(server, "Hi", "", "What did I say?")
        again = talk(server, "And before?")

    assert (first.exit_code, first.stdout) == (0, "Hello there.\nYou said hi.\n")
    assert again.stdout == "An answer.\n"
    assert texts("trip")[:4] == ["Hi", "Hello there.", "What did I say?", "You said hi."]
    sent = [message["content"] for message in server.asked[2].body["messages"]]
    assert sent == ["Hi", "Hello there.", "What did I say?", "You said hi.", "And before?"]


def test_the_status_line_shows_budget_and_cache() -> None:
    """The status line shows the tokens of the budget and the share of input from the cache; usage is stored."""
    with OpenAIServer(says("Hello.", input_tokens=40, cached_tokens=30)) as server:
        result = talk(server, "Hi", options=("--max-tokens", "500", "--reserve", "100"))

    assert result.stderr == "[8 of 400 tokens (2%), 75% of the input from the cache]\n"
    assert server.asked[0].body["max_tokens"] == 100
    assert read("stats", "trip")["usage"]["cached_tokens"] == 30


def test_usage_that_a_provider_does_not_report_is_not_stored() -> None:
    """If a provider reports no usage, none is stored: counts made here never pass for the provider's."""
    with OpenAIServer(says("Hello.", usage=False)) as server:
        talk(server, "Hi")

    assert read("stats", "trip")["usage"] == "never recorded"


def test_the_budget_bounds_every_request() -> None:
    """Each request to the model fits the budget, however long the conversation gets."""
    long = "word " * 60
    with OpenAIServer(*[says(long)] * 12) as server:
        result = talk(server, *[long] * 12, options=("--max-tokens", "400", "--no-compact"))

    assert result.exit_code == 0
    assert len(server.asked) == 12
    assert max(len(asked.body["messages"]) for asked in server.asked) < 8
    assert len(texts("trip")) == 24


def test_a_system_prompt_is_sent_and_not_stored(here: Path) -> None:
    """`--system` sends a text, or a file with `@`, and does not store it."""
    (here / "prompt.txt").write_text("Be brief.")
    with OpenAIServer() as server:
        talk(server, "Hi", options=("--system", "@prompt.txt"))

    assert server.asked[0].body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert texts("trip") == ["Hi", "An answer."]


def test_the_api_key_comes_from_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--api-key-env` sends the variable's value and never prints it; an unset variable is a usage error."""
    monkeypatch.setenv("MY_KEY", KEY)
    with OpenAIServer(fails(401, f"wrong key {KEY}")) as server:
        refused = talk(server, "Hi", options=("--api-key-env", "MY_KEY"))
        unset = talk(server, "Hi", options=("--api-key-env", "OTHER_KEY"))

    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in refused.output
    assert (unset.exit_code, len(server.asked)) == (2, 1)
    assert "OTHER_KEY is not set" in unset.stderr


@pytest.mark.parametrize("play", [fails(401), breaks_off("It has")])
def test_a_failed_request_keeps_the_message_and_the_chat(play: Play) -> None:
    """A failed request prints one line, keeps the message but no part of the answer, and the chat goes on."""
    with OpenAIServer(play, says("Here I am.")) as server:
        result = talk(server, "Hi", "Still there?")

    assert result.exit_code == 1
    assert [line for line in result.stderr.splitlines() if line.startswith("Error: ")] == [
        result.stderr.splitlines()[0]
    ]
    assert texts("trip") == ["Hi", "Still there?", "Here I am."]


def test_a_message_over_the_budget_is_reported() -> None:
    """A message that does not fit the budget is reported and not sent."""
    with OpenAIServer() as server:
        result = talk(server, "word " * 500, options=("--max-tokens", "100"))

    assert "the context needs at least" in result.stderr
    assert (result.exit_code, server.asked) == (1, [])


def test_hostile_text_cannot_steer_the_terminal() -> None:
    """Control characters of answers and errors are shown as escapes."""
    with OpenAIServer(says("a\x1b[2Jb"), fails(400, "c\x1b]0;title\x07d")) as server:
        result = talk(server, "Hi", "More")

    assert "a\\x1b[2Jb" in result.stdout
    assert "\x1b" not in result.output


CARD, ADDRESS = "4111 1111 1111 1111", "jane@example.com"
PRIVATE = f"your card {CARD} and \x1b[31m{ADDRESS}"


@pytest.mark.sampled
@pytest.mark.parametrize("json_option", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize(
    "play",
    [
        says(PRIVATE),
        breaks_off(f"{PRIVATE} is"),
        fails(400, PRIVATE),
        fails(503, PRIVATE, retry_after="60"),
        sends(json.dumps({"error": PRIVATE})),
        sends(PRIVATE, "text/event-stream"),
        sends(f'data: {{"choices": "{ADDRESS}"}}\n\n', "text/event-stream"),
    ],
    ids=["answer", "cut", "refusal", "outage", "odd body", "no stream", "odd chunk"],
)
def test_answers_are_redacted_before_they_are_printed(play: Play, json_option: tuple[str, ...]) -> None:
    """Answers, partial answers and errors show nothing that the policy redacts, and no control character."""
    with OpenAIServer(play) as server:
        result = talk(server, "Hi", options=("--privacy", "default", "--summarizer", "none", *json_option))

    assert result.output
    assert CARD[:9] not in result.output
    assert ADDRESS not in result.output
    assert "\x1b" not in result.output
    assert all(CARD not in text and ADDRESS not in text for text in texts("trip"))


def test_an_error_is_redacted_before_it_is_shortened() -> None:
    """A long error is redacted before it is shortened, so no half of a private number is shown at the end."""
    places = range(268, 288, 4)
    with OpenAIServer(*(fails(400, "x" * place + f" {CARD}") for place in places)) as server:
        result = talk(server, *["Hi"] * len(places), options=("--privacy", "default", "--summarizer", "none"))

    assert result.stderr.count("status 400") == len(places)
    assert "41" not in result.stderr


def test_json_prints_one_object_per_message() -> None:
    """With `--json` each answer or error is one JSON object on its line, in the order of the messages."""
    with OpenAIServer(says("Hello.", input_tokens=40), fails(400, "no")) as server:
        result = talk(server, "Hi", "More", options=("--json",))

    answer, error = map(json.loads, result.stdout.splitlines())
    assert (answer["answer"], answer["tokens"], answer["budget"]) == ("Hello.", 8, 8_000)
    assert (answer["input_tokens"], answer["summaries"]) == (40, 0)
    assert error["error"].startswith("the model ")
    assert "status 400: no" in error["error"]


def test_json_is_all_that_a_chat_prints() -> None:
    """With `--json` each line of the output is an object: what a command found, under its name, as the command line's
    own commands print it; and each line of standard error, also of what happens in the background."""
    asked = ["/help", "/context", *["word " * 80] * 6, "/compact", "/summaries", "/expand", "/stats", "/expand none"]
    options = ("--json", "--max-tokens", "500", "--summarizer", "none")
    with OpenAIServer(*[says("word " * 80)] * 6) as server:
        result = talk(server, *asked, options=options)

    printed = [json.loads(line) for line in result.stdout.splitlines()]
    results = {one["command"]: one["result"] for one in printed if "command" in one}
    told = [json.loads(line) for line in result.stderr.splitlines()]
    assert [one.get("command", next(iter(one))) for one in printed] == [
        *("help", "context"), *["answer"] * 6, *("compact", "summaries", "expand", "stats"), "error",
    ]  # fmt: skip
    assert "/compact" in results["help"]
    assert results["context"]["budget"]["limit"] == 500
    assert results["summaries"] == read("summaries", "trip")
    assert results["stats"] == read("stats", "trip")
    assert results["expand"][0]["content"].startswith("word")
    assert "tokens_saved" in results["compact"]
    assert any("a summary of" in one.get("note", "") for one in told)


# --- commands


def test_slash_commands_store_nothing() -> None:
    """`/help`, `/context`, `/stats` and `/summaries` ask no model and store nothing; `

    ` sends a slash; `/quit` ends.
    """
    with OpenAIServer() as server:
        result = talk(server, "/help", "/context", "/stats", "/summaries", "//etc is full", "/quit", "not said")

    assert texts("trip") == ["/etc is full", "An answer."]
    assert len(server.asked) == 1
    assert "/compact" in result.stdout
    assert "of 8,000 tokens" in result.stdout
    assert "total entries" in result.stdout


def test_an_unknown_slash_command_is_not_sent() -> None:
    """An unknown slash command is refused with a hint, and is not sent to the model."""
    with OpenAIServer() as server:
        result = talk(server, "/cpmpact", "/expand")

    assert "there is no command /cpmpact; /help lists" in result.stderr
    assert "has no summary" in result.stderr
    assert (result.exit_code, server.asked) == (1, [])


def test_slash_compact_summarizes() -> None:
    """`/compact` has the model summarize, `/summaries` shows the summary, and `/expand` the entries it covers."""
    long = "The blue train leaves platform seven at nine o'clock sharp. " * 12
    with Memory.open("sqlite:///chats.db") as memory:
        for number in range(6):
            memory.session("trip").add_user_message(f"Question {number}. {long}")
            memory.session("trip").add_assistant_message(f"Answer {number}. {long}")
    with OpenAIServer(*[says("The blue train leaves platform seven at nine.")] * 20) as server:
        result = talk(server, "/compact", "/summaries", "/expand", "Thanks")

    assert "The blue train leaves platform seven at nine." in result.stdout
    assert "Question 0." in result.stdout
    assert "1 summary" in result.stderr
    with Memory.open("sqlite:///chats.db") as memory:
        assert memory.session("trip").summaries()[0].model == "my-model"
        assert memory.session("trip").verify().ok
    assert len(server.asked[-1].body["messages"]) < 12


@pytest.mark.wide
def test_a_chat_compacts_near_its_budget() -> None:
    """Near the end of the budget, the model named by `--summarizer` summarizes the older part in the background."""
    long = "The blue train leaves platform seven at nine o'clock sharp. " * 8
    with OpenAIServer(*[says(long[:200])] * 60) as server:
        result = talk(server, *[long] * 22, options=("--max-tokens", "2400", "--summarizer", "small-model"))

    assert result.exit_code == 0, result.stderr
    assert {asked.body["model"] for asked in server.asked} == {"my-model", "small-model"}
    with Memory.open("sqlite:///chats.db") as memory:
        assert memory.session("trip").summaries()[0].model == "small-model"


def test_summarizing_can_be_turned_off() -> None:
    """`--no-compact` leaves out what does not fit, `--summarizer none` asks no model; both together are an error."""
    long = "The blue train leaves platform seven at nine o'clock sharp. " * 8
    with OpenAIServer(*[says(long[:200])] * 40) as server:
        for option in (("--no-compact",), ("--summarizer", "none")):
            talk(server, *[long] * 8, options=("--max-tokens", "1200", *option))
        both = talk(server, options=("--no-compact", "--summarizer", "none"))

    assert len(server.asked) == 16
    assert both.exit_code == 2


# --- bad options


def test_bad_options_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad model, a bad address or a missing package ends the command before it creates a store."""
    assert run("chat", "trip", given="Hi\n").exit_code == 2
    unknown = run("chat", "trip", "--model", "gpt-4o", given="Hi\n")
    assert (unknown.exit_code, "PROVIDER:MODEL" in unknown.stderr) == (2, True)
    assert run("chat", "trip", "--model", "m", "--base-url", "localhost", given="Hi\n").exit_code == 2
    monkeypatch.setitem(sys.modules, "pydantic_ai", None)
    missing = run("chat", "trip", "--model", "openai:gpt-4o", given="Hi\n")
    assert (missing.exit_code, "palimpsest-memory[llm]" in missing.stderr) == (1, True)
    assert not Path("chats.db").exists()


# --- Ctrl-C, and a terminal


class Screen:
    """The output of a process, read as it comes, so that a test can wait for words in it."""

    def __init__(self, file: int) -> None:
        self._file, self.text = file, ""

    def until(self, words: str, *, press: bytes = b"") -> str:
        """Read until `words` were written, and return the output before them.

        `press` is sent again until then: a key that arrives between a prompt and the wait for it is lost.
        """
        limit = time.monotonic() + PATIENCE
        while words not in self.text:
            assert time.monotonic() < limit, f"{words!r} never came; there was {self.text!r}"
            if press:
                os.write(self._file, press)
            if select.select([self._file], [], [], 0.5)[0]:
                self.text += os.read(self._file, 65536).decode("utf-8", "replace")
        before, _, self.text = self.text.partition(words)
        return before


@contextmanager
def ended(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Kill the process at the end if it still runs."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE)


def test_an_interrupt_cancels_only_the_answer() -> None:
    """Ctrl-C during an answer cancels the request and stores nothing of it; the message stays and the chat goes on."""
    with OpenAIServer(stalls("It has"), says("Here I am.")) as server:
        command = [*START, "chat", "trip", "--model", "my-model", "--base-url", server.url]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
        with ended(process):
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"Where is it?\n")
            Screen(process.stdout.fileno()).until("has")
            process.send_signal(signal.SIGINT)
            assert server.hung_up.wait(PATIENCE)
            out, err = process.communicate(b"And now?\n", timeout=PATIENCE)

    assert b"Cancelled: the answer is not stored." in err
    assert out == b"\nHere I am.\n"
    assert process.returncode == 0
    assert texts("trip") == ["Where is it?", "And now?", "Here I am."]


TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from palimpsest.cli import main
main()
"""


@pytest.mark.wide
@pytest.mark.skipif(sys.platform == "win32", reason="there is no pseudo-terminal")
def test_a_terminal_has_a_prompt_and_both_keys() -> None:
    """At a terminal Ctrl-C at the prompt does nothing, during an answer it cancels that, and Ctrl-D ends the chat."""
    import pty

    with OpenAIServer(stalls("It has"), says("Here I am.")) as server:
        outer, inner = pty.openpty()
        command = [sys.executable, "-c", TERMINAL, "chat", "trip", "--model", "my-model", "--base-url", server.url]
        process = subprocess.Popen(
            command, stdin=inner, stdout=inner, stderr=inner, start_new_session=True, env={**os.environ, "TERM": "dumb"}
        )
        os.close(inner)
        screen = Screen(outer)
        with ended(process):
            assert "trip: 0 entries." in screen.until("> ")
            screen.until("Ctrl-D ends.", press=b"\x03")
            screen.until("> ")
            os.write(outer, b"Where is it?\r")
            screen.until("It has")
            os.write(outer, b"\x03")
            screen.until("Cancelled")
            screen.until("> ")
            os.write(outer, b"And now?\r")
            screen.until("Here I am.")
            screen.until("tokens")
            screen.until("> ")
            os.write(outer, b"\x04")
            assert process.wait(PATIENCE) == 0
        os.close(outer)

    assert texts("trip") == ["Where is it?", "And now?", "Here I am."]
