"""`palimpsest config`: checking, showing and comparing declared memories."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from commands import read, run
from test_cli_naming import on_a_terminal

CHAT = """\
resource: memory
id: chat
type: token_based
max_tokens: 4000
flushing:
  type: simple_fifo
  summarize_threshold: 0.8
persistence:
  type: sqlite
  path: chat.db
"""
SHOP = CHAT.replace("id: chat", "id: shop").replace("sqlite\n  path: chat.db", "in_memory")
WRONG = """\
resource: memory
id: chat
type: token_based
max_token: 4000
persistence:
  type: sqlight
"""


@pytest.fixture(autouse=True)
def folder(here: Path) -> Path:
    """A folder in which `memory/` declares `chat` and `shop`, and `wrong.yaml` has three mistakes."""
    (here / "memory").mkdir()
    (here / "memory" / "chat.yaml").write_text(CHAT, "utf-8")
    (here / "memory" / "shop.yaml").write_text(SHOP, "utf-8")
    (here / "wrong.yaml").write_text(WRONG, "utf-8")
    return here


# --- check


def test_check_counts_valid_memories() -> None:
    """`config check` counts valid memories, exits with 0, prints warnings on standard error, and creates no store."""
    result = run("config", "check", "memory")

    assert (result.exit_code, result.stdout) == (0, "No mistakes in 2 memories: chat, shop.\n")
    assert (
        result.stderr == "Warning: memory 'shop': persistence.type: an in_memory store is lost when the process ends\n"
    )
    assert not Path("chat.db").exists()
    checked = read("config", "check", "memory")
    assert checked["memories"] == ["chat", "shop"]
    assert len(checked["warnings"]) == 1


def test_check_prints_a_line_for_each_mistake() -> None:
    """`config check` exits with 2 and prints each mistake with file, line, memory, key and the nearest allowed name."""
    result = run("config", "check", "wrong.yaml")

    assert (result.exit_code, result.stdout) == (2, "")
    heading, *lines = result.stderr.splitlines()
    assert heading == "Error: 3 mistakes in declared memories:"
    places = [line.strip().split(": ")[:3] for line in lines]
    assert places == [
        ["wrong.yaml:1:1", "memory 'chat'", "max_tokens"],
        ["wrong.yaml:4:1", "memory 'chat'", "max_token"],
        ["wrong.yaml:6:3", "memory 'chat'", "persistence.type"],
    ]
    assert "did you mean 'max_tokens'?" in result.stderr
    assert "did you mean 'sqlite'?" in result.stderr


def test_check_lists_every_mistake_as_json() -> None:
    """With `--json` every mistake is in a list in the one object on standard error."""
    result = run("config", "check", "wrong.yaml", "--json")

    error = json.loads(result.stderr)
    assert (result.exit_code, result.stdout, error["error"], error["status"]) == (2, "", "InvalidResource", 2)
    assert {(one["line"], one["key"], one["nearest"]) for one in error["mistakes"]} >= {
        (4, "max_token", "max_tokens"),
        (6, "persistence.type", "sqlite"),
    }


def test_a_mistake_stays_on_its_line(folder: Path) -> None:
    """A key with line breaks or control characters is printed on one line, escaped."""
    (folder / "odd.yaml").write_text('resource: memory\nid: x\n"a\\nb\\e[31m": 1\n', "utf-8")

    lines = run("config", "check", "odd.yaml").stderr.splitlines()

    assert len(lines) == 2
    assert "\x1b" not in lines[1]


@pytest.mark.parametrize(
    ("source", "status", "told"),
    [
        ("missing.yaml", 2, "an existing file or folder"),
        ("empty", 3, "empty declares no memory"),
        ("notes.txt", 2, ".yaml, .yml, .json"),
    ],
)
def test_a_source_without_declarations_fails_the_check(folder: Path, source: str, status: int, told: str) -> None:
    """A path that is missing, empty or of another kind does not pass the check."""
    (folder / "empty").mkdir()
    (folder / "notes.txt").write_text("resource: memory\n", "utf-8")

    result = run("config", "check", source)

    assert result.exit_code == status
    assert told in result.stderr


# --- show


def test_every_value_is_shown_with_its_origin() -> None:
    """`config show` prints each setting with its origin: a key, a default of the document, or our default."""
    (shown,) = read("config", "show", "memory", "chat")

    settings = {one["option"]: one for one in shown["settings"]}
    assert (shown["id"], shown["project"], shown["file"]) == ("chat", "default", "memory/chat.yaml")
    assert settings["max_log_tokens"] == {
        "option": "max_log_tokens",
        "value": 4000,
        "origin": "given",
        "key": "max_tokens",
    }
    assert settings["turn_lease"]["origin"] == "document default"
    assert (settings["oversize"]["value"], settings["oversize"]["origin"]) == ("clamp", "our default")
    text = run("config", "show", "memory")
    assert "memory chat of project default" in text.stdout
    assert "memory shop of project default" in text.stdout
    row = next(line for line in text.stdout.splitlines() if line.startswith("max_log_tokens"))
    assert row.split() == ["max_log_tokens", "4000", "given", "max_tokens"]


def test_a_password_is_not_shown(folder: Path) -> None:
    """`config show` and `config diff` print no password; `diff` says that credentials differ."""
    for name in ("one", "two"):
        store = f"store: postgresql://ann:secret-{name}@db.example/agents\n"
        (folder / f"{name}.yaml").write_text(f"resource: memory\nid: a\n{store}", "utf-8")

    shown = [run("config", *arguments).output for arguments in (("show", "one.yaml"), ("show", "one.yaml", "--json"))]
    changed = run("config", "diff", "one.yaml", "two.yaml")

    assert all("db.example/agents" in text for text in (*shown, changed.output))
    assert not any("secret" in text for text in (*shown, changed.output))
    assert "(other credentials)" in changed.stdout


def test_an_unknown_memory_exits_with_3_and_names_the_nearest() -> None:
    """An unknown memory exits with 3 and suggests the nearest name."""
    result = run("config", "show", "memory", "shob", "--json")

    error = json.loads(result.stderr)
    assert (result.exit_code, error["error"], error["suggestions"]) == (3, "Missing", ["shop"])
    assert "it declares chat, shop" in run("config", "show", "memory", "x").stderr


@pytest.mark.parametrize("columns", [40, 60])
def test_a_narrow_terminal_never_cuts_setting_names(columns: int) -> None:
    """On a narrow terminal names of settings are not cut, and no line is wider than the terminal."""
    shown = on_a_terminal(columns, "config", "show", "memory", "chat")

    assert any(line.split()[:2] == ["max_log_tokens", "4000"] for line in shown)
    assert any(line.split()[:1] == ["max_context_ratio"] for line in shown)
    assert max(map(len, shown)) <= columns


# --- diff


def test_diff_shows_changed_values(folder: Path) -> None:
    """`config diff` lists memories that are added or removed, and each value that differs."""
    (folder / "new").mkdir()
    changed = CHAT.replace("4000", "8000").replace("0.8", "0.9") + "default_key_template: 'user:{user_id}'\n"
    (folder / "new" / "chat.yaml").write_text(changed, "utf-8")
    (folder / "new" / "more.yaml").write_text(SHOP.replace("shop", "more"), "utf-8")

    compared = read("config", "diff", "memory", "new")

    assert (compared["added"], compared["removed"]) == (["more"], ["shop"])
    assert compared["changed"] == {
        "chat": [
            {"option": "default_key_template", "old": None, "new": "user:{user_id}"},
            {"option": "max_log_tokens", "old": 4000, "new": 8000},
            {"option": "long_term[0].threshold", "old": 0.8, "new": 0.9},
        ]
    }
    lines = [line.split() for line in run("config", "diff", "memory", "new").stdout.splitlines()]
    assert ["chat", "max_log_tokens", "4000", "8000"] in lines
    assert ["shop", "the", "memory", "declared", "-"] in lines


def test_two_spellings_of_one_definition_do_not_differ(folder: Path) -> None:
    """`config diff` compares meanings: a ratio of a window equals the same number of tokens."""
    same = CHAT.replace("max_tokens: 4000", "max_context_ratio: 0.5\ncontext_window: 8000").replace(
        "simple_fifo", "fifo"
    )
    (folder / "same.yaml").write_text(same, "utf-8")

    result = run("config", "diff", "memory/chat.yaml", "same.yaml")

    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "Nothing changes.\n")


# --- the group


@pytest.mark.parametrize(("given", "meant"), [("chek", "check"), ("sch", "schema"), ("Show", "show")])
def test_an_unknown_subcommand_suggests_the_nearest(given: str, meant: str) -> None:
    """An unknown subcommand of `config` suggests the nearest one, in JSON too."""
    assert f"did you mean '{meant}'?" in run("config", given).stderr
    told = json.loads(run("config", given, "--json").stderr)
    assert (told["error"], told["status"], told["suggestions"]) == ("UsageError", 2, [meant])


def test_config_needs_the_yaml_package_only_for_yaml() -> None:
    """Without a YAML package `config` prints help and the schema, and checks JSON."""
    Path("a.json").write_text('{"resource": "memory", "id": "a"}', "utf-8")
    program = (
        "import sys; sys.modules['yaml'] = None; from palimpsest.cli.app import palimpsest\n"
        "for words in (['check', '--help'], ['show', '--help'], ['diff', '--help'], ['schema'], ['check', 'a.json']):\n"
        "    palimpsest(['config', *words], standalone_mode=False)"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Examples:") == 3
    assert done.stdout.endswith("No mistakes in 1 memory: a.\n")


def test_the_schema_is_printed() -> None:
    """`config schema` prints a JSON schema, with and without `--json`."""
    assert read("config", "schema")["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert json.loads(run("config", "schema").stdout) == read("config", "schema")


# --- versions that stored sessions are under


def test_diff_compares_the_definitions_of_stored_sessions() -> None:
    """`config diff FILE` compares the file with the versions that stored sessions are under.

    It lists each version with its sessions and changes, writes nothing, and creates no store.
    """
    missing = run("config", "diff", "memory/chat.yaml")
    assert (missing.exit_code, Path("chat.db").exists()) == (5, False)
    file = Path("memory", "chat.yaml")
    file.write_text(CHAT + "version: 1.0.0\n", "utf-8")
    for key in ("user:ann", "user:bob"):
        run("memory", "append", "chat", key, "Hello.", "--config", "memory")
    nothing = run("config", "diff", "memory/chat.yaml")
    assert "Nothing changes for any session." in nothing.stderr
    assert "declared" in nothing.stdout

    file.write_text(CHAT.replace("4000", "2000") + "version: 1.1.0\n", "utf-8")
    run("memory", "append", "chat", "user:eve", "Hello.", "--config", "memory")
    before = Path("chat.db").read_bytes()
    old, new = sorted(read("config", "diff", "memory/chat.yaml")["chat"], key=lambda one: one["version"])
    shown = run("config", "diff", "memory/chat.yaml", "--store", "chat.db").stdout

    assert (old["version"], old["sessions"], old["declared"]) == ("1.0.0", 2, False)
    assert (new["version"], new["sessions"], new["declared"], new["changes"]) == ("1.1.0", 1, True, [])
    changed = {one["option"]: (one["old"], one["new"]) for one in old["changes"]}
    assert changed["max_log_tokens"] == (4000, 2000)
    assert changed["version"] == ("1.0.0", "1.1.0")
    assert "from before" in shown
    assert Path("chat.db").read_bytes() == before
    assert run("config", "diff", "a.yaml", "b.yaml", "--store", "x.db").exit_code == 2
