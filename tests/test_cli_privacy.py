"""`--privacy` and its variables: where a command takes its policy from, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import run, texts

MAIL = json.dumps({"role": "user", "content": "I am jo@example.com"})


@pytest.fixture(autouse=True)
def folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with policies, and no variables."""
    for name in ("PALIMPSEST_PRIVACY", "PALIMPSEST_PSEUDONYM_KEY"):
        monkeypatch.delenv(name, raising=False)
    (here / "policy.json").write_text('{"recognisers": {"email": "[MAIL]"}}', "utf-8")
    (here / "numbers.json").write_text('{"recognisers": {"email": "pseudonym"}}', "utf-8")
    return here


def taken(*options: str) -> list[str]:
    """What is stored of a message with an address; options before the command stand before "import"."""
    result = run(*options, "import", "-", "--session", "s", given=MAIL)
    assert result.exit_code == 0, result.output
    return texts("s")


def test_without_a_policy_everything_is_kept() -> None:
    """Nothing is taken out unless it is asked for."""
    assert taken() == ["I am jo@example.com"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [("default", "I am [REDACTED]"), ("secrets", "I am jo@example.com"), ("policy.json", "I am [MAIL]")],
)
def test_a_preset_or_a_file_names_the_policy(given: str, kept: str) -> None:
    """Before the command as well as behind it."""
    assert taken("--privacy", given) == [kept]
    result = run("import", "-", "--session", "behind", "--privacy", given, given=MAIL)
    assert result.exit_code == 0
    assert texts("behind") == [kept]


def test_the_variable_holds_for_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option wins over it, a command's own option over the root's."""
    monkeypatch.setenv("PALIMPSEST_PRIVACY", "policy.json")

    assert taken() == ["I am [MAIL]"]
    run("--privacy", "secrets", "import", "-", "--session", "two", "--privacy", "default", given=MAIL)
    assert texts("two") == ["I am [REDACTED]"]


def test_pseudonyms_need_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is text of 16 bytes at least, and never shown."""
    for key in ("", "secret-of-15-by"):
        monkeypatch.setenv("PALIMPSEST_PSEUDONYM_KEY", key)
        result = run("import", "-", "--session", "s", "--privacy", "numbers.json", given=MAIL)
        assert result.exit_code == 2
        assert "PALIMPSEST_PSEUDONYM_KEY" in result.stderr
        assert "secret-of" not in result.stderr
    monkeypatch.setenv("PALIMPSEST_PSEUDONYM_KEY", "secret-of-16-byt")

    assert taken("--privacy", "numbers.json") == ["I am [EMAIL_1]"]


@pytest.mark.parametrize(
    ("given", "content", "told"),
    [
        ("defualt", None, "did you mean 'default'"),
        ("", None, "--privacy: '' is not accepted"),
        ("bad.json", "{", "bad.json:1:2"),
        ("bad.json", "[]", "bad.json: 'list' is not accepted"),
        ("bad.json", '{"redact_pattern": []}', "did you mean 'redact_patterns'"),
        ("bad.json", '{"redact_patterns": ["x", "(a+)+"]}', "bad.json.redact_patterns[1]"),
        ("bad.json", '{"recognisers": "emails"}', "did you mean 'email'"),
    ],
)
def test_what_is_no_policy_is_refused(folder: Path, given: str, content: str | None, told: str) -> None:
    """Before anything is done: the exit status is that of bad usage, and nothing is stored."""
    if content is not None:
        (folder / given).write_text(content, "utf-8")
    result = run("import", "-", "--session", "s", "--privacy", given, given=MAIL)

    assert result.exit_code == 2
    assert told in result.stderr
    assert not (folder / "chats.db").exists()


def test_an_empty_variable_is_no_policy_by_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is set, but to nothing, is refused: whoever set it meant something."""
    monkeypatch.setenv("PALIMPSEST_PRIVACY", "")

    assert run("sessions").exit_code == 2
