"""`palimpsest memory`: a declared memory by its keys, from a shell."""

from __future__ import annotations

import json
import re
import sqlite3
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from commands import read, run
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
    """A folder with one declared memory, which the environment names."""
    (tmp_path / "chat.yaml").write_text(DECLARED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PALIMPSEST_CONFIG", "chat.yaml")
    return tmp_path


def filled(key: str, count: int) -> None:
    """So many messages under a key."""
    Path("more.json").write_text(json.dumps([f"message {number}" for number in range(count)]))
    assert run("memory", "append", "chat", key, "--file", "more.json").exit_code == 0


def test_what_is_appended_is_read() -> None:
    """A text, a file, standard input; in order, by pages, without what the policy keeps out."""
    assert run("memory", "append", "chat", "user:ann", "My SSN is 123-45-6789").stdout == "Added 1 message.\n"
    said = json.dumps([{"role": "assistant", "content": "Noted."}, "Thanks."])
    piped = run("memory", "append", "chat", "user:ann", "--file", "-", "--json", given=said)
    assert json.loads(piped.stdout) == {"key": "user:ann", "added": 2}
    shown = run("memory", "read", "chat", "user:ann")
    assert shown.stdout == "user: My SSN is [REDACTED]\nassistant: Noted.\nuser: Thanks.\n"
    assert "3 of 3 messages" in shown.stderr
    page = read("memory", "read", "chat", "user:ann", "--offset", "1", "--limit", "1")
    assert ([one["content"] for one in page["messages"]], page["total"]) == (["Noted."], 3)
    assert (page["offset"], page["limit"], page["has_more"]) == (1, 1, True)
    assert read("memory", "read", "chat", "user:ann", "--offset", "1")["has_more"] is False
    assert read("memory", "read", "chat", "unknown")["total"] == 0
    assert read("memory", "read", "chat", "user:ann", "--tenant", "other")["total"] == 0


def test_read_as_json_prints_all_fields_of_an_entry() -> None:
    """`read --json` prints a call's tool and id, the id that a result answers, and each entry's time and metadata."""
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    asked = {"role": "assistant", "content": "", "tool_calls": [call]}
    Path("calls.json").write_text(json.dumps([asked, {"role": "tool", "tool_call_id": "c1", "content": "clear"}]))
    assert run("memory", "append", "chat", "k", "--file", "calls.json").exit_code == 0
    with Resources.load("chat.yaml") as resources:
        resources.keyed("chat").session("k").add_user_message("Thanks.", metadata={"mood": "glad"})
    called, answered, thanked = read("memory", "read", "chat", "k")["messages"][-3:]
    assert (called["kind"], called["name"], called["call_id"]) == ("tool_call", "weather", "c1")
    assert (answered["kind"], answered["call_id"], answered["content"]) == ("tool_result", "c1", "clear")
    assert (thanked["content"], thanked["metadata"]) == ("Thanks.", {"mood": "glad"})
    assert all(datetime.fromisoformat(one["created_at"]).tzinfo for one in (called, answered, thanked))


@pytest.mark.parametrize("verb", ["clear", "delete"])
def test_where_nobody_can_be_asked_the_advice_can_be_followed(verb: str) -> None:
    """It names options that the command has."""
    filled("k", 3)
    refused = run("memory", verb, "chat", "k")
    assert refused.exit_code == 2
    advised = re.findall(r"--[a-z-]+", refused.stderr.partition("nobody to be asked")[2])
    assert advised
    shown = run("memory", verb, "--help").stdout
    assert all(option in shown for option in advised)


def test_a_write_takes_the_place_of_what_was_there() -> None:
    """Which is in the archive."""
    filled("k", 3)
    assert run("memory", "write", "chat", "k", "anew").stdout == "1 message now under k.\n"
    stats = read("memory", "stats", "chat", "*")["k"]
    assert (stats["messages"], stats["archived"], stats["roles"]) == (1, 3, {"user": 1})
    assert "k" in run("memory", "stats", "chat", "k").stdout


def test_a_flush_tells_what_it_did() -> None:
    """Dry, by the limits, by force, of a pattern."""
    filled("a:1", 80)
    filled("a:2", 5)
    tried = read("memory", "flush", "chat", "a:*", "--dry-run")
    assert (tried["a:1"]["messages_after"], tried["a:1"]["dry_run"]) == (50, True)
    assert tried["a:1"]["tokens_saved"] == tried["a:1"]["tokens_before"] - tried["a:1"]["tokens_after"] > 0
    assert "not >=" in tried["a:2"]["why"]
    assert read("memory", "read", "chat", "a:1")["total"] == 80
    shown = run("memory", "flush", "chat", "a:*").stdout
    assert "80 → 50" in shown
    assert "below_threshold" in shown
    assert read("memory", "flush", "chat", "a:2", "--force", "--strategy", "lru")["a:2"]["strategy"] == "lru"
    assert run("memory", "flush", "chat", "nothing").exit_code == 3
    assert run("memory", "flush", "chat", "a:1", "--strategy", "magic").exit_code == 2
    assert run("memory", "flush", "chat", "a:1", "--max-keys", "10001").exit_code == 2


@pytest.mark.parametrize(
    ("reasons", "status", "told"),
    [
        ({"k": None, "m": "below_threshold"}, 0, ""),
        ({"k": "no_gain", "m": "nothing_to_compact"}, 0, ""),
        ({"k": None, "m": "pending"}, 4, "another flush is under way of m"),
        ({"k": "failed", "m": "pending"}, 1, "nothing was changed under k: a reason"),
        ({"k": "empty"}, 1, "nothing was changed under k"),
    ],
)
def test_flush_exits_with_the_worst_status_of_its_keys(
    reasons: dict[str, Any], status: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush exits with the worst status of its keys (0: nothing to do, 4: another flush is under way, 1: failed), and
    prints the result of each key."""
    found = {key: CompactionResult(strategy="lru", reason=reason, why="a reason") for key, reason in reasons.items()}
    monkeypatch.setattr(DeclaredMemory, "flush", lambda *given, **options: found)
    for more in ((), ("--json",)):
        flushed = run("memory", "flush", "chat", "*", *more)
        assert flushed.exit_code == status
        assert told in flushed.stderr
        assert all(key in flushed.stdout for key in reasons)


def test_what_destroys_asks_first() -> None:
    """Or is told not to; a copy can be kept."""
    filled("k", 3)
    assert run("memory", "clear", "chat", "k").exit_code == 2
    assert run("memory", "delete", "chat", "k").exit_code == 2
    cleared = read("memory", "clear", "chat", "k", "--backup", "--yes")
    assert cleared["entries"] == {"k": 3}
    assert list(cleared["backups"]) == ["k"]
    assert read("memory", "read", "chat", "k")["total"] == 0
    assert run("memory", "delete", "chat", "k", "--yes").stdout == "Deleted 1 key.\n"
    assert run("memory", "delete", "chat", "k:*", "--yes").stdout == "Deleted 0 keys.\n"
    assert run("memory", "delete", "chat", "k", "--yes").exit_code == 3
    assert run("memory", "clear", "chat", "k", "--yes").exit_code == 3
    for verb in ("clear", "delete"):
        refused = run("memory", verb, "chat", "k", "--yes", "--json")
        assert (refused.exit_code, json.loads(refused.stderr)["error"]) == (3, "Missing")
    assert run("memory", "stats", "chat", "k", "--json").exit_code == 3
    assert run("memory", "flush", "chat", "k", "--json").exit_code == 3


def test_health_works_and_names_what_is_near_its_limit() -> None:
    """Of all keys, or those of a pattern."""
    assert read("memory", "health", "chat", "*") == {
        "works": True,
        "error": None,
        "near_limit": [],
        "failed": {},
    }
    assert run("memory", "health", "chat", "*").stdout == "The store works.\n"
    run("memory", "append", "chat", "full", "word " * 900)
    assert read("memory", "health", "chat", "*")["near_limit"] == ["full"]
    assert "full is near its limit" in run("memory", "health", "chat", "f*").stderr


def test_verbs_over_a_pattern_exit_1_for_a_damaged_key_and_do_the_others() -> None:
    """A verb over a pattern does all other keys when one is damaged, and exits 1; `health` still says that the store
    works."""
    for key in ("a:1", "a:2", "a:3"):
        filled(key, 3)
    with sqlite3.connect("chat.db") as db:
        db.execute("UPDATE place SET hot = zeroblob(length(hot)) WHERE name LIKE '%a:2'")
    db.close()
    flushed = run("memory", "flush", "chat", "a:*", "--json")
    assert (flushed.exit_code, json.loads(flushed.stdout)["a:2"]["reason"]) == (1, "failed")
    health = run("memory", "health", "chat", "*", "--json")
    assert (health.exit_code, json.loads(health.stdout)["works"]) == (1, True)
    assert "a:2 cannot be read" in run("memory", "health", "chat", "*").stderr
    cleared = run("memory", "clear", "chat", "a:*", "--yes", "--json")
    assert (cleared.exit_code, json.loads(cleared.stdout)["entries"]) == (1, {"a:1": 3, "a:3": 3})
    assert list(json.loads(cleared.stdout)["failed"]) == ["a:2"]
    assert "a:2" in cleared.stderr


@pytest.mark.parametrize("key", ["a:2", "a:*"])
def test_delete_destroys_a_damaged_key_after_asking_about_it(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`delete` asks about a damaged key, named alone or by a pattern, and destroys exactly what it asked about."""
    for name in ("a:1", "a:2", "b"):
        filled(name, 3)
    with sqlite3.connect("chat.db") as db:
        db.execute("UPDATE place SET hot = zeroblob(length(hot)) WHERE name LIKE '%a:2'")
    db.close()
    monkeypatch.setattr("palimpsest.cli.app.on_terminal", lambda stream: True)
    kept = run("memory", "delete", "chat", key, given="n\n")
    assert kept.exit_code == 1
    assert "all that is under a:2, which cannot be read" in kept.stdout
    assert ("a:1" in kept.stdout) == (key == "a:*")
    assert read("memory", "read", "chat", "a:1")["total"] == 3
    gone = run("memory", "delete", "chat", key, given="y\n")
    assert (gone.exit_code, "Deleted" in gone.stdout) == (0, True)
    assert run("memory", "stats", "chat", "a:2").exit_code == 3
    assert read("memory", "read", "chat", "b")["total"] == 3


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (("append", "chat", "user name", "x"), 2, "A-Z a-z 0-9"),
        (("append", "chat", "k"), 2, "TEXT or --file"),
        (("append", "chat", "k", "x", "--file", "chat.yaml"), 2, "TEXT or --file"),
        (("append", "chat", "k", "--file", "chat.yaml"), 2, "no JSON"),
        (("append", "chat", "k", "--file", "deep.json"), 2, "deep.json is nested too deeply"),
        (("append", "chat", "k", "x" * 10_241), 1, "10,241 bytes"),
        (("append", "chta", "k", "x"), 3, "did you mean 'chat'"),
        (("read", "chat", "k", "--config", "no.yaml"), 2, "that is there"),
        (("raed", "chat", "k"), 2, "read"),
    ],
)
def test_what_cannot_be_meant_is_told(arguments: tuple[str, ...], status: int, told: str) -> None:
    """With the status of its kind."""
    Path("deep.json").write_text("[" * 100_000)
    result = run("memory", *arguments)
    assert told in result.stderr
    assert result.exit_code == status


def test_a_memory_that_is_not_declared_is_missing() -> None:
    """With the nearest name, as in `config show`."""
    for command in (("memory", "read", "chta", "k"), ("memory", "delete", "chta", "k", "--yes")):
        done = run(*command)
        assert done.exit_code == 3
        assert "declares no memory 'chta'; did you mean 'chat'?" in done.stderr


def test_a_tenant_before_the_command_is_meant() -> None:
    """What is cleared is that tenant's, and not what lies under the same key of another one."""
    filled("k", 2)
    assert run("--tenant", "other", "memory", "append", "chat", "k", "theirs").exit_code == 0
    assert run("--tenant", "other", "memory", "delete", "chat", "k", "--yes").exit_code == 0
    assert read("memory", "read", "chat", "k")["total"] == 2
    assert read("memory", "read", "chat", "k", "--tenant", "other")["total"] == 0


@pytest.mark.parametrize("command", [("memory", "read", "chat", "k"), ("config", "check", "chat.yaml"), ("demo",)])
@pytest.mark.parametrize("option", ["--store", "--privacy", "--tenant"])
def test_what_a_command_could_not_heed_is_refused(command: tuple[str, ...], option: str) -> None:
    """Instead of ignoring whose sessions, or what may not be kept, was said."""
    if (command[0], option) == ("memory", "--tenant"):
        pytest.skip("declared memories have tenants")
    refused = run(option, "default", *command)
    assert (refused.exit_code, f"{option} has no place before `{command[0]}`" in refused.stderr) == (2, True)
