"""`palimpsest memory`: the messages of a declared memory, by key."""

from __future__ import annotations

import json
import re
import sqlite3
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from commands import read, run
from palimpsest.errors import StoreUnavailable
from palimpsest.resources import DeclaredMemory, Resources
from palimpsest.types import CompactionResult

DECLARED = """\
resource: memory
id: chat
type: token_based
max_tokens: 1000
max_messages: 100
auto_compact: "off"
flushing: {type: simple_fifo}
privacy_policy:
  redact_patterns: ["[0-9]{3}-[0-9]{2}-[0-9]{4}"]
persistence: {type: sqlite, path: chat.db}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with one declared memory, which PALIMPSEST_CONFIG names."""
    (tmp_path / "chat.yaml").write_text(DECLARED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PALIMPSEST_CONFIG", "chat.yaml")
    return tmp_path


def filled(key: str, count: int) -> None:
    """Append `count` messages under the key."""
    Path("more.json").write_text(json.dumps([f"message {number}" for number in range(count)]))
    assert run("memory", "append", "chat", key, "--file", "more.json").exit_code == 0


def test_appended_messages_are_read_in_order() -> None:
    """`memory append` takes a text, a file or standard input; `read` prints them in order, by pages, redacted."""
    assert run("memory", "append", "chat", "user:ann", "My SSN is 123-45-6789").stdout == "Added 1 message.\n"
    messages = json.dumps([{"role": "assistant", "content": "Noted."}, "Thanks."])
    piped = run("memory", "append", "chat", "user:ann", "--file", "-", "--json", given=messages)
    assert json.loads(piped.stdout) == {"success": True, "key": "user:ann", "appended": 2, "total_count": 3}
    shown = run("memory", "read", "chat", "user:ann")
    assert shown.stdout == "user: My SSN is [REDACTED]\nassistant: Noted.\nuser: Thanks.\n"
    assert "3 of 3 messages" in shown.stderr
    page = read("memory", "read", "chat", "user:ann", "--offset", "1", "--limit", "1")
    assert ([one["content"] for one in page["messages"]], page["total_count"]) == (["Noted."], 3)
    assert (page["offset"], page["limit"], page["has_more"]) == (1, 1, True)
    assert read("memory", "read", "chat", "user:ann", "--offset", "1")["has_more"] is False
    assert read("memory", "read", "chat", "unknown")["total_count"] == 0
    assert read("memory", "read", "chat", "user:ann", "--tenant", "other")["total_count"] == 0


def test_json_has_all_fields_of_an_entry() -> None:
    """With JSON a call has its tool and id, a result its call's id, and each message its time and metadata."""
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    call_message = {"role": "assistant", "content": "", "tool_calls": [call]}
    Path("calls.json").write_text(
        json.dumps([call_message, {"role": "tool", "tool_call_id": "c1", "content": "clear"}])
    )
    assert run("memory", "append", "chat", "k", "--file", "calls.json").exit_code == 0
    with Resources.load("chat.yaml") as resources:
        resources.keyed("chat").session("k").add_user_message("Thanks.", metadata={"mood": "glad"})
    call_entry, result_entry, user_entry = read("memory", "read", "chat", "k")["messages"][-3:]
    assert (call_entry["kind"], call_entry["name"], call_entry["call_id"]) == ("tool_call", "weather", "c1")
    assert (result_entry["kind"], result_entry["call_id"], result_entry["content"]) == ("tool_result", "c1", "clear")
    assert (user_entry["content"], user_entry["metadata"]) == ("Thanks.", {"mood": "glad"})
    assert all(datetime.fromisoformat(one["created_at"]).tzinfo for one in (call_entry, result_entry, user_entry))


@pytest.mark.parametrize("verb", ["clear", "delete"])
def test_a_refusal_without_a_terminal_advises_options_that_exist(verb: str) -> None:
    """`clear` and `delete` exit with 2 where nobody can be asked, and name only options that they have."""
    filled("k", 3)
    refused = run("memory", verb, "chat", "k")
    assert refused.exit_code == 2
    advised = re.findall(r"--[a-z-]+", refused.stderr.partition("no terminal to ask for confirmation")[2])
    assert advised
    shown = run("memory", verb, "--help").stdout
    assert all(option in shown for option in advised)


def test_a_write_replaces_the_messages() -> None:
    """`memory write` replaces the messages under a key and archives the earlier ones."""
    filled("k", 3)
    assert run("memory", "write", "chat", "k", "anew").stdout == "1 message now under k.\n"
    (stats,) = read("memory", "stats", "chat", "*")["results"]
    assert (stats["message_count"], stats["archived_count"], stats["role_distribution"]) == (1, 3, {"user": 1})
    assert "k" in run("memory", "stats", "chat", "k").stdout


def test_flush_reports_what_it_did() -> None:
    """`memory flush` reports messages before and after, by limits, dry, forced, and for a pattern of keys."""
    filled("a:1", 80)
    filled("a:2", 5)
    tried = read("memory", "flush", "chat", "a:*", "--dry-run")
    first, second = tried["results"]
    assert (first["message_count"], first["would_flush"], first["flushed"]) == (50, True, False)
    assert first["tokens_saved"] > 0
    assert "not >=" in second["why"]
    assert (tried["success"], tried["max_keys_reached"]) == (True, False)
    assert read("memory", "flush", "chat", "a:*", "--dry-run", "--max-keys", "1")["max_keys_reached"] is True
    assert read("memory", "read", "chat", "a:1")["total_count"] == 80
    shown = run("memory", "flush", "chat", "a:*").stdout
    assert "80 → 50" in shown
    assert "below_threshold" in shown
    assert read("memory", "flush", "chat", "a:2", "--force", "--strategy", "lru")["actual_strategy"] == "lru"
    assert run("memory", "flush", "chat", "nothing").exit_code == 3
    assert run("memory", "flush", "chat", "a:1", "--strategy", "magic").exit_code == 2
    assert run("memory", "flush", "chat", "a:1", "--max-keys", "10001").exit_code == 2


@pytest.mark.parametrize(
    ("reasons", "status", "told"),
    [
        ({"k": None, "m": "below_threshold"}, 0, ""),
        ({"k": "no_gain", "m": "nothing_to_compact"}, 0, ""),
        ({"k": None, "m": "pending"}, 4, "another flush is under way under m"),
        ({"k": "failed", "m": "pending"}, 1, "nothing was changed under k: a reason"),
        ({"k": "empty"}, 1, "nothing was changed under k"),
    ],
)
def test_the_worst_key_decides_the_status_of_a_flush(
    reasons: dict[str, Any], status: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`memory flush` exits with the worst key's status, and prints what became of each key.

    Doing nothing is no failure; another flush under way is 4.
    """
    for key in reasons:
        filled(key, 1)
    found = {key: CompactionResult(strategy="lru", reason=reason, why="a reason") for key, reason in reasons.items()}

    def flush(_: DeclaredMemory, key: str, **options: Any) -> dict[str, CompactionResult]:
        return found if "*" in key else {name: done for name, done in found.items() if name == key}

    monkeypatch.setattr(DeclaredMemory, "flush", flush)
    for more in ((), ("--json",)):
        flushed = run("memory", "flush", "chat", "*", *more)
        assert flushed.exit_code == status
        assert told in flushed.stderr
        assert all(key in flushed.stdout for key in reasons)


def test_clear_and_delete_need_consent() -> None:
    """`clear` and `delete` exit with 2 without consent; `--yes` destroys, and `--backup` keeps a copy."""
    filled("k", 3)
    assert run("memory", "clear", "chat", "k").exit_code == 2
    assert run("memory", "delete", "chat", "k").exit_code == 2
    cleared = read("memory", "clear", "chat", "k", "--backup", "--yes")
    assert (cleared["messages_cleared"], cleared["backup_created"]) == (3, True)
    assert "/chat/~" in cleared["backup_id"]
    assert read("memory", "read", "chat", "k")["total_count"] == 0
    assert run("memory", "delete", "chat", "k", "--yes").stdout == "Deleted 1 key.\n"
    assert run("memory", "delete", "chat", "k:*", "--yes").stdout == "Deleted 0 keys.\n"
    assert run("memory", "delete", "chat", "k", "--yes").exit_code == 3
    assert run("memory", "clear", "chat", "k", "--yes").exit_code == 3
    for verb in ("clear", "delete"):
        refused = run("memory", verb, "chat", "k", "--yes", "--json")
        assert (refused.exit_code, json.loads(refused.stderr)["error"]) == (3, "Missing")
    assert run("memory", "stats", "chat", "k", "--json").exit_code == 3
    assert run("memory", "flush", "chat", "k", "--json").exit_code == 3


def test_health_names_keys_near_their_limit() -> None:
    """`memory health` says that the store works and names the keys near their limit, of all keys or of a pattern."""
    assert read("memory", "health", "chat", "*") == {
        "healthy": True,
        "key": "*",
        "checks": [{"name": "store", "healthy": True, "error": None}],
        "actual_strategy": "simple_fifo",
        "near_limit": [],
    }
    assert run("memory", "health", "chat", "*").stdout == "The store works.\n"
    run("memory", "append", "chat", "full", "word " * 900)
    assert read("memory", "health", "chat", "*")["near_limit"] == ["full"]
    assert "full is near its limit" in run("memory", "health", "chat", "f*").stderr


def test_a_damaged_key_costs_no_other_key_of_a_pattern() -> None:
    """A verb over a pattern does all keys but a damaged one, which it names, and exits with 1.

    `health` still says that the store works.
    """
    for key in ("a:1", "a:2", "a:3"):
        filled(key, 3)
    with sqlite3.connect("chat.db") as db:
        db.execute("UPDATE place SET hot = zeroblob(length(hot)) WHERE name LIKE '%a:2'")
    db.close()
    flushed = run("memory", "flush", "chat", "a:*", "--json")
    assert flushed.exit_code == 1
    assert json.loads(flushed.stdout)["results"][1]["error"]["code"] == "store_unavailable"
    stats = run("memory", "stats", "chat", "a:*", "--json")
    counts = [one.get("message_count") for one in json.loads(stats.stdout)["results"]]
    assert (stats.exit_code, counts, json.loads(stats.stderr.splitlines()[-1])["status"]) == (1, [3, None, 3], 1)
    shown = run("memory", "stats", "chat", "a:*")
    assert (shown.exit_code, "a:3" in shown.stdout, "cannot be read: a:2" in shown.stderr) == (1, True, True)
    health = run("memory", "health", "chat", "*", "--json")
    checks = {check["name"]: check["healthy"] for check in json.loads(health.stdout)["checks"]}
    assert (health.exit_code, checks) == (1, {"store": True, "a:2": False})
    assert "a:2 cannot be read" in run("memory", "health", "chat", "*").stderr
    cleared = run("memory", "clear", "chat", "a:*", "--yes", "--json")
    results = json.loads(cleared.stdout)["results"]
    assert cleared.exit_code == 1
    assert [(one["key"], one["success"], one.get("messages_cleared")) for one in results] == [
        ("a:1", True, 3),
        ("a:2", False, None),
        ("a:3", True, 3),
    ]
    assert "cannot be read" in results[1]["error"]["message"]
    assert results[1]["error"]["code"] == "store_unavailable"
    assert "a:2" in cleared.stderr


def test_a_store_that_fails_amid_a_pattern_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store fails amid the keys of a pattern, the error has what became of the keys before, as the service's."""
    for key in ("a", "b", "c"):
        filled(key, 1)
    delete = DeclaredMemory.delete

    def failing(self: DeclaredMemory, key: str, **options: Any) -> int:
        if key == "c":
            raise StoreUnavailable("redis://", "it went away", written=False)
        return delete(self, key, **options)

    monkeypatch.setattr(DeclaredMemory, "delete", failing)
    failed = run("memory", "delete", "chat", "*", "--yes", "--json")
    error = json.loads(failed.stderr)
    assert (failed.exit_code, error["error"], error["status"]) == (5, "StoreUnavailable", 5)
    assert [one["key"] for one in error["details"]["results"]] == ["a", "b"]


@pytest.mark.parametrize("key", ["a:2", "a:*"])
def test_delete_names_a_damaged_key_and_deletes_it(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`memory delete` names a damaged key in its question, alone and in a pattern, and deletes it after a yes."""
    for name in ("a:1", "a:2", "b"):
        filled(name, 3)
    with sqlite3.connect("chat.db") as db:
        db.execute("UPDATE place SET hot = zeroblob(length(hot)) WHERE name LIKE '%a:2'")
    db.close()
    monkeypatch.setattr("palimpsest.cli.app.on_terminal", lambda stream: True)
    kept = run("memory", "delete", "chat", key, given="n\n")
    assert kept.exit_code == 1
    assert "all that is under a:2, which cannot be read" in kept.stderr
    assert ("a:1" in kept.stdout) == (key == "a:*")
    assert read("memory", "read", "chat", "a:1")["total_count"] == 3
    gone = run("memory", "delete", "chat", key, given="y\n")
    assert (gone.exit_code, "Deleted" in gone.stdout) == (0, True)
    assert run("memory", "stats", "chat", "a:2").exit_code == 3
    assert read("memory", "read", "chat", "b")["total_count"] == 3


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (("append", "chat", "user name", "x"), 2, "A-Z a-z 0-9"),
        (("append", "chat", "k"), 2, "TEXT or --file"),
        (("append", "chat", "k", "x", "--file", "chat.yaml"), 2, "TEXT or --file"),
        (("append", "chat", "k", "--file", "chat.yaml"), 2, "is not valid JSON"),
        (("append", "chat", "k", "--file", "deep.json"), 2, "deep.json is nested too deeply"),
        (("append", "chat", "k", "x" * 10_241), 1, "10,241 bytes"),
        (("append", "chta", "k", "x"), 3, "did you mean 'chat'"),
        (("read", "chat", "k", "--config", "no.yaml"), 2, "an existing file or folder"),
        (("raed", "chat", "k"), 2, "read"),
    ],
)
def test_bad_arguments_of_memory_are_reported(arguments: tuple[str, ...], status: int, told: str) -> None:
    """Bad arguments exit with the status of their kind and an error that says what is wrong."""
    Path("deep.json").write_text("[" * 100_000)
    result = run("memory", *arguments)
    assert told in result.stderr
    assert result.exit_code == status


def test_an_undeclared_memory_exits_with_3() -> None:
    """A memory that is not declared exits with 3 and suggests the nearest name."""
    for command in (("memory", "read", "chta", "k"), ("memory", "delete", "chta", "k", "--yes")):
        done = run(*command)
        assert done.exit_code == 3
        assert "declares no memory 'chta'; did you mean 'chat'?" in done.stderr


def test_a_tenant_before_the_command_applies() -> None:
    """`--tenant` before the command selects the tenant whose keys are changed."""
    filled("k", 2)
    assert run("--tenant", "other", "memory", "append", "chat", "k", "theirs").exit_code == 0
    assert run("--tenant", "other", "memory", "delete", "chat", "k", "--yes").exit_code == 0
    assert read("memory", "read", "chat", "k")["total_count"] == 2
    assert read("memory", "read", "chat", "k", "--tenant", "other")["total_count"] == 0


@pytest.mark.parametrize("command", [("memory", "read", "chat", "k"), ("config", "check", "chat.yaml"), ("demo",)])
@pytest.mark.parametrize("option", ["--store", "--privacy", "--tenant"])
def test_global_options_without_effect_are_refused(command: tuple[str, ...], option: str) -> None:
    """A global option that a command cannot apply is refused, so that nobody believes it was applied."""
    if (command[0], option) == ("memory", "--tenant"):
        pytest.skip("declared memories have tenants")
    refused = run(option, "default", *command)
    assert (refused.exit_code, f"{option} cannot be given before `{command[0]}`" in refused.stderr) == (2, True)
