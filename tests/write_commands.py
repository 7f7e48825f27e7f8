"""Every command of the command line: with a driver if it writes or prints stored text, otherwise with a reason.

`write_paths` has the same lists for the library.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from click.testing import Result

from commands import run
from openai_server import OpenAIServer, fails, says
from palimpsest import Memory
from private_messages import files, malformed
from watched_memory import Case
from writer import quarters

WORDS = "words that are to be summarised " * 30


class Shell:
    """The command line with a policy over a store in a folder, and everything that it has printed.

    `inputs` is a folder beside it for files that may hold private text.
    """

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.folder, self.marker = case, folder, case.marker
        self.inputs = folder.parent / "inputs"
        self.inputs.mkdir()
        self.store = f"sqlite:///{folder}/chats.db"
        self.policy = self.inputs / "policy.json"
        self.policy.write_text(json.dumps(case.policy), encoding="utf-8")
        self.printed: list[str] = []

    def run(self, *arguments: str, given: str | None = None, status: int = 0, record_stdout: bool = True) -> Result:
        """Run a command with the policy, check its exit code, and record its output."""
        where = ("--store", self.store, "--privacy", str(self.policy))
        result = run(*arguments, *where, given=given)
        assert result.exit_code == status, (arguments, result.output, result.exception)
        self.printed += [result.stderr, result.stdout] if record_stdout else [result.stderr]
        return result

    def talked(self, session: str = "s") -> None:
        """Import a session with private text under the policy."""
        messages = [{"role": ("user", "assistant")[i % 2], "content": f"{i} {self.marker} {WORDS}"} for i in range(8)]
        path = self.inputs / "talk.jsonl"
        path.write_text("".join(f"{json.dumps(message)}\n" for message in messages), encoding="utf-8")
        self.run("import", str(path), "--session", session)

    def older(self) -> str:
        """Return the address of a store whose session was written before there was a policy."""
        where = f"sqlite:///{self.inputs}/older.db"
        with Memory.open(where) as memory:
            session = memory.session("s", counter=quarters)
            for number in range(4):
                session.add_user_message(
                    f"{number} {self.marker} {WORDS}", name=self.marker, metadata={"x": self.marker}
                )
                session.add_assistant_message(f"{number} {self.marker} {WORDS}")
            session.compact({"strategy": "summarizer", "interaction_keep": 1, "cod_max_loops": 0, "summary_floor": 10})
        return where


def _import(shell: Shell) -> None:
    for name, path in files(shell.marker, shell.inputs).items():
        refuses = int(name in ("claude", "openai-agents"))
        shell.run("import", str(path), status=refuses)
        shell.run("import", str(path), "--json", status=refuses)
    broken = shell.inputs / "broken.jsonl"
    broken.write_text("\n".join(malformed(shell.marker)), encoding="utf-8")
    shell.run("import", str(broken), "--session", "x", status=1)
    shell.run("import", str(broken), "--session", "x", "--strict", "--json", status=1)
    shell.run("import", "-", "--session", "piped", given=json.dumps({"role": "user", "content": shell.marker}))
    shell.run("import", str(broken), "--from", shell.marker, status=2)


def _chat(shell: Shell) -> None:
    marker = shell.marker
    plays = (says(f"You are {marker}."), fails(400, "no"), says(f"It was {marker}. {WORDS}"))
    lines = [
        f"I am {marker} {WORDS}",
        "again",
        f"and {marker}?",
        "/compact",
        "/summaries",
        "/expand",
        "/context",
        "/stats",
        "/nothing",
    ]
    with OpenAIServer(*plays) as server:
        at = ("--model", "my-model", "--base-url", server.url, "--max-tokens", "1500")
        # Standard output is not recorded: the command shows the model's answer unredacted to the user who asked.
        shell.run("chat", "s", *at, given="".join(f"{line}\n" for line in lines), status=1, record_stdout=False)
        shell.printed += [json.dumps(asked.body, ensure_ascii=False) for asked in server.asked]


def _compact(shell: Shell) -> None:
    shell.talked()
    shell.run("compact", "s", "--strategy", "summarizer", "--keep", "1", "--json")
    shell.run("compact", "s", "--strategy", "neuralyzer", "--keep", "1", "--yes")
    shell.run("compact", "s", "--strategy", shell.marker, status=2)


def _context(shell: Shell) -> None:
    shell.talked()
    shell.run("context", "s", "--max-tokens", "600", "--commit", "--messages")
    shell.run("context", "s", "--max-tokens", "5", status=1)


def _export(shell: Shell) -> None:
    shell.talked()
    store, shell.store = shell.store, shell.older()
    for format in ("palimpsest", "openai", "openai-responses", "anthropic", "gemini", "text"):
        shell.run("export", "s", "--format", format, "-o", str(shell.folder / f"s.{format}"))
        shell.run("export", "s", "--format", format)
    shell.store = store


def _fork(shell: Shell) -> None:
    shell.talked()
    shell.run("fork", "s", "branch")


def _rewind(shell: Shell) -> None:
    shell.talked()
    shell.run("rewind", "s", "--to", "1")


def _summaries(shell: Shell) -> None:
    shell.talked()
    shell.run("compact", "s", "--strategy", "summarizer", "--keep", "1")
    shell.run("summaries", "s", "--json")


def _delete(shell: Shell) -> None:
    shell.talked()
    shell.talked("stays")
    shell.run("delete", "s", "--dry-run")
    shell.run("delete", "s", "--yes", "--json")


def _erase(shell: Shell) -> None:
    shell.talked()
    shell.run("erase", "s", "2-3", "--reason", f"for {shell.marker}", "--yes")
    shell.run("erase", "s", shell.marker, "--yes", status=3)


def _pin(shell: Shell) -> None:
    shell.talked()
    shell.run("pin", "s", "2", "4-5")
    shell.run("pin", "s", shell.marker, "--json", status=3)


def _title(shell: Shell) -> None:
    shell.talked()
    shell.run("title", "s", f"about {shell.marker}")
    shell.run("title", "s")
    shell.run("sessions", "--title", shell.marker)


def _facts(shell: Shell) -> None:
    shell.talked()
    shell.run("facts", "user/ann", "k", f"about {shell.marker}")
    shell.run("facts", "user/ann", "k", json.dumps({"to": [shell.marker]}), "--json")
    shell.run("facts", "user/ann")
    shell.run("facts", f"user/{shell.marker}", "k", "1", status=2)
    shell.run("facts", "user/ann", shell.marker, "1", status=2)


def _unpin(shell: Shell) -> None:
    _pin(shell)
    shell.run("unpin", "s", "2", "--json")


def _forget(shell: Shell) -> None:
    shell.talked()
    shell.run("forget", "--matches", f"9 {shell.marker}", "--yes")
    shell.run("forget", "--matches", "-", "--yes", "--json", given=f"1 {shell.marker}")


def _scan(shell: Shell) -> None:
    shell.talked()
    shell.run("scan", "--policy", str(shell.policy), "--apply", "--yes")


def _search(shell: Shell) -> None:
    shell.talked()
    shell.run("search", "words")
    shell.run("search", shell.marker, record_stdout=False)  # the command prints stored text
    shell.run("search", f"{shell.marker} " * 2000, status=2)
    shell.run("search", "words", "--name", shell.marker)
    shell.run("index", "rebuild")


COMMANDS: Mapping[str, Callable[[Shell], None] | str] = {
    "chat": _chat,
    "compact": _compact,
    "context": _context,
    "delete": _delete,
    "erase": _erase,
    "export": _export,
    "forget": _forget,
    "fork": _fork,
    "import": _import,
    "pin": _pin,
    "rewind": _rewind,
    "scan": _scan,
    "search": _search,
    "summaries": _summaries,
    "facts": _facts,
    "title": _title,
    "unpin": _unpin,
    "config": "it reads files that declare memories, and opens no store",
    "memory": "it applies the policy that is declared with the memory",
    "demo": "it writes an invented conversation into a folder of its own",
    "derived": "it reads, or removes a name; its records hold numbers and ids",
    "diff": "it reads",
    "doctor": "it writes and deletes an entry that it makes itself",
    "history": "it reads",
    "index": "it stores terms of stored entries; the driver of `search` runs it",
    "repair": "it removes damaged data",
    "rotate-keys": "it encrypts stored data again",
    "serve": "it applies the policy that is declared with the memory",
    "sessions": "it reads",
    "show": "it reads",
    "stats": "it reads, and stores token counts",
    "copy": "it copies stored data unchanged",
    "sweep": "it erases, and prints how much",
    "vacuum": "it copies stored data, and prints sizes",
    "verify": "it reads",
    "worker": "it applies the policy that is declared with the memory",
}


def driven() -> dict[str, Callable[[Shell], None]]:
    """Return the commands that have a driver."""
    return {name: driver for name, driver in COMMANDS.items() if not isinstance(driver, str)}
