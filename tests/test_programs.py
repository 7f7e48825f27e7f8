"""The guides' programs run alone, with the real clients, against servers that play their vendors.

A program is the first example of its page. The server's address reaches it by the variable that its client reads.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from exports_chatgpt import Talk
from openai_server import Play, says
from palimpsest import Memory
from streams import StreamServer, answers
from test_docs import blocks

GUIDES = Path(__file__).resolve().parent.parent / "docs" / "guides"

LONGEST = {
    "openai.md": 17,
    "anthropic.md": 12,
    "google.md": 17,
    "summarizer.md": 14,
    "fastapi.md": 17,
    "chatgpt.md": 15,
    "frameworks.md": 10,
}
"""Pages, and how many lines their programs have at most, empty lines and comments apart."""


def programs(page: str) -> list[str]:
    """Return the examples of a page."""
    text = NOT_RUN_ANYWHERE.sub("", (GUIDES / page).read_text("utf-8"))
    return [block.body for block in blocks(text)]


def program(page: str) -> str:
    """Return the first example of a page."""
    return programs(page)[0]


NOT_RUN_ANYWHERE = re.compile(r"<!-- not run: [^\n]*-->\n")


def environment(server: StreamServer) -> dict[str, str]:
    """Return the variables that lead each client to the server, with a key."""
    return os.environ | {
        "OPENAI_BASE_URL": server.url,
        "OPENAI_API_KEY": "none",
        "ANTHROPIC_BASE_URL": server.root,
        "ANTHROPIC_API_KEY": "none",
        "GOOGLE_GEMINI_BASE_URL": server.root,
        "GEMINI_API_KEY": "none",
    }


def run(page: str, folder: Path, server: StreamServer, typed: str = "") -> str:
    """Run a page's program in a folder and return its output; it must close its memory."""
    file = folder / "program.py"
    file.write_text(program(page), "utf-8")
    with server:
        ran = subprocess.run(
            [sys.executable, "-W", "always:the memory over:ResourceWarning", str(file)],
            cwd=folder,
            env=environment(server),
            input=typed,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def said(folder: Path, name: str, session: str) -> list[tuple[str, str]]:
    """Return roles and texts of the log that a program has left."""
    with Memory.open(f"sqlite:///{folder / name}") as memory:
        return [(one.role, one.text) for one in memory.session(session).entries()]


@pytest.mark.parametrize("page", LONGEST)
def test_each_program_keeps_its_pages_line_limit(page: str) -> None:
    """No program is longer than its page's limit."""
    lines = [line for line in program(page).splitlines() if line.strip() and not line.strip().startswith("#")]

    assert len(lines) <= LONGEST[page]
    assert max(map(len, lines)) <= 120


def chat_answer(id: str, content: str | None, **message: Any) -> Play:
    """Return an answer of chat completions."""
    finish = "tool_calls" if message else "stop"
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content, **message}}
    usage = {"prompt_tokens": 40, "completion_tokens": 9, "total_tokens": 49}
    made = {"id": id, "object": "chat.completion", "created": 1, "model": "gpt-4o", "choices": [choice]}
    return answers({**made, "usage": usage})


@pytest.mark.wide
def test_the_terminal_chat_runs_tools_and_continues_when_restarted(tmp_path: Path) -> None:
    """Two questions, the first with a call; then the program again, which knows of both."""
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    plays = [
        chat_answer("1", None, tool_calls=[call]),
        chat_answer("2", "Clear."),
        chat_answer("3", "You are welcome."),
    ]

    printed = run("openai.md", tmp_path, server := StreamServer(*plays), "How is Oslo?\nThank you\n\n")
    again = run("openai.md", tmp_path, later := StreamServer(chat_answer("4", "Of Oslo.")), "Which city?\n\n")

    assert printed == "> Clear.\n> You are welcome.\n> "
    assert again == "> Of Oslo.\n> "
    assert [asked.path for asked in server.asked] == ["/v1/chat/completions"] * 3
    assert server.asked[1].body["messages"][-1]["content"] == "It is 21 °C and clear in Oslo."
    assert len(later.asked[0].body["messages"]) == 7
    assert later.asked[0].body["tools"] == server.asked[0].body["tools"]


@pytest.mark.wide
def test_an_agents_sdk_conversation_continues_in_the_next_run(tmp_path: Path) -> None:
    """The second run is given what the first one kept."""
    plays = [replied("1", "Noted."), replied("2", "On Friday.")]

    printed = [run("frameworks.md", tmp_path, server := StreamServer(play)) for play in plays]

    assert printed == ["Noted.\n", "On Friday.\n"]
    sent = [(item["role"], item["content"]) for item in server.asked[0].body["input"]]
    question = ("user", "I fly to Oslo on Friday.")
    assert sent[0] == sent[2] == question
    assert [role for role, _ in sent] == ["user", "assistant", "user"]
    assert said(tmp_path, "agent.db", "trip") == [
        question,
        ("assistant", "Noted."),
        question,
        ("assistant", "On Friday."),
    ]


def replied(id: str, text: str) -> Play:
    """Return an answer of the Responses API."""
    part = {"type": "output_text", "text": text, "annotations": []}
    output = [{"type": "message", "id": f"m{id}", "role": "assistant", "status": "completed", "content": [part]}]
    details = {
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    usage = {"input_tokens": 4, "output_tokens": 3, "total_tokens": 7, **details}
    made = {"id": id, "object": "response", "created_at": 1, "model": "gpt-4o", "status": "completed", "usage": usage}
    return answers({**made, "output": output, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []})


def message(id: str, *content: dict[str, Any], stop: str = "end_turn") -> Play:
    """Return an answer of Anthropic's API."""
    usage = {"input_tokens": 40, "output_tokens": 9}
    made = {"id": id, "type": "message", "role": "assistant", "model": "claude-sonnet-5", "stop_sequence": None}
    return answers({**made, "stop_reason": stop, "usage": usage, "content": list(content)})


@pytest.mark.wide
def test_the_agent_answers_parallel_calls_and_returns_signed_thinking(tmp_path: Path) -> None:
    """Parallel calls are answered together, and thinking goes back with its signature."""
    thought = {"type": "thinking", "thinking": "Two roots.", "signature": "c2lnbmVk"}
    calls = [{"type": "tool_use", "id": f"toolu_{of}", "name": "root", "input": {"of": of}} for of in (30, 20)]
    plays = [
        message("m1", thought, *calls, stop="tool_use"),
        message("m2", {"type": "text", "text": "About 1.005."}),
    ]

    printed = run("anthropic.md", tmp_path, server := StreamServer(*plays))

    assert printed == "About 1.005.\n"
    _, answer, results = server.asked[1].body["messages"]
    assert [block["type"] for block in answer["content"]] == ["thinking", "tool_use", "tool_use"]
    assert answer["content"][0] == thought
    assert [block["content"] for block in results["content"]] == [str(30**0.5), str(20**0.5)]
    assert server.asked[1].body["thinking"] == {"type": "adaptive"}
    assert len(said(tmp_path, "agent.db", "sums")) == 7


def contents(id: str, *parts: dict[str, Any]) -> Play:
    """Return an answer of Google's API."""
    candidate = {"index": 0, "content": {"role": "model", "parts": list(parts)}, "finishReason": "STOP"}
    usage = {"promptTokenCount": 40, "candidatesTokenCount": 9, "totalTokenCount": 49}
    return answers({"candidates": [candidate], "usageMetadata": usage, "responseId": id})


@pytest.mark.wide
def test_googles_client_calls_a_declared_function(tmp_path: Path) -> None:
    """A declared function of Google's client is called by the program and declared in each request."""
    call = {"functionCall": {"name": "weather", "args": {"city": "Oslo"}}, "thoughtSignature": "c2lnbmVk"}

    server = StreamServer(contents("r1", call), contents("r2", {"text": "Yes."}))

    printed = run("google.md", tmp_path, server)

    assert printed == "Yes.\n"
    assert [one["role"] for one in server.asked[1].body["contents"]] == ["user", "model", "user"]
    assert server.asked[1].body["contents"][1]["parts"][0]["thoughtSignature"] == "c2lnbmVk"
    assert server.asked[1].body["tools"] == server.asked[0].body["tools"]


class SummarizingServer(StreamServer):
    """Answers chat completions with a word, and responses with a summary."""

    def begin(self, exchange: Any) -> None:
        summary = {"type": "output_text", "text": "The ship has sailed on, page by page.", "annotations": []}
        item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [summary]}
        made = {"id": "r", "object": "response", "created_at": 1, "model": "gpt-4o-mini", "status": "completed"}
        whole = {**made, "output": [item], "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        self.plays.append(answers(whole) if exchange.asked.path.endswith("responses") else says("Sailed."))
        super().begin(exchange)


@pytest.mark.wide
def test_a_summary_is_written_by_the_program_s_own_model(tmp_path: Path) -> None:
    """What exceeds the budget is summarized by the program's own function."""
    printed = run("summarizer.md", tmp_path, server := SummarizingServer())

    assert printed == "The ship has sailed on, page by page.\n"
    paths = [asked.path for asked in server.asked]
    assert paths.count("/v1/chat/completions") == 12
    assert "/v1/responses" in paths
    assert len(said(tmp_path, "novel.db", "novel")) == 24


def test_an_imported_chatgpt_conversation_continues(tmp_path: Path) -> None:
    """A conversation is chosen by its title, and the model is sent all of it."""
    talk = Talk(title="A trip")
    talk.said("user", "I fly to Oslo on Friday.")
    talk.said("assistant", "Have a good flight.")
    with zipfile.ZipFile(tmp_path / "chatgpt.zip", "w") as archive:
        archive.writestr("conversations.json", json.dumps([talk.done()]))

    server = StreamServer(chat_answer("1", "On Friday."))

    printed = run("chatgpt.md", tmp_path, server, "0\nWhen do I fly?\n\n")

    assert printed == "0 A trip\nWhich one? > On Friday.\n> "
    assert [one["content"] for one in server.asked[0].body["messages"]] == [
        "I fly to Oslo on Friday.",
        "Have a good flight.",
        "When do I fly?",
    ]


@pytest.mark.wide
def test_ten_requests_at_once_keep_questions_and_answers_together(tmp_path: Path) -> None:
    """A server over real connections: each question stands beside its answer, and tenants do not see each other."""
    (tmp_path / "program.py").write_text("\n".join(programs("fastapi.md")), "utf-8")
    with StreamServer() as vendor, socket.create_server(("127.0.0.1", 0), backlog=32) as listening:
        vendor.plays.extend(says(f"answer {number}") for number in range(12))
        serving = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "program:app", "--fd", str(listening.fileno()), "--log-level", "error"],
            cwd=tmp_path,
            env=environment(vendor),
            pass_fds=[listening.fileno()],
        )
        try:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            with ThreadPoolExecutor(10) as pool:
                answered = list(pool.map(lambda number: post(f"{url}/acme/ann/chat", f"question {number}"), range(10)))
            other = post(f"{url}/globex/ann/chat", "question")
            streamed = post(f"{url}/globex/ann/stream", "question in pieces")
        finally:
            serving.send_signal(signal.SIGINT)
            serving.wait(60)

    assert streamed == "answer 11"
    assert sorted([*answered, other]) == sorted(f"answer {number}" for number in range(11))
    with Memory.open(f"sqlite:///{tmp_path / 'chat.db'}", tenant="acme") as memory:
        log = [(one.role, one.text) for one in memory.session("chat-ann").entries()]
    assert [role for role, _ in log] == ["user", "assistant"] * 10
    assert {text for _, text in log[::2]} == {f"question {number}" for number in range(10)}
    assert sorted(text for _, text in log[1::2]) == sorted(answered)
    asked = [len(request.body["messages"]) for request in vendor.asked]
    assert sorted(asked) == sorted([*range(1, 20, 2), 1, 3])


def post(url: str, text: str) -> str:
    """Send a text and return the answer, as JSON or as it is."""
    body = json.dumps(text).encode()
    with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=120) as response:  # noqa: S310
        answer: str = response.read().decode()
        return json.loads(answer) if response.headers["Content-Type"] == "application/json" else answer
