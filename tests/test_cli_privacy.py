"""`--privacy` and its environment variables: where a command takes its policy from, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import run, texts

MAIL = json.dumps({"role": "user", "content": "I am jo@example.com"})


@pytest.fixture(autouse=True)
def folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two policies as files, and an environment without privacy variables."""
    for name in ("PALIMPSEST_PRIVACY", "PALIMPSEST_PSEUDONYM_KEY"):
        monkeypatch.delenv(name, raising=False)
    (here / "policy.json").write_text('{"recognisers": {"email": "[MAIL]"}}', "utf-8")
    (here / "numbers.json").write_text('{"recognisers": {"email": "pseudonym"}}', "utf-8")
    return here


def taken(*options: str) -> list[str]:
    """Import a message with an e-mail address and return what was stored.

    `options` stand before the command `import`.
    """
    result = run(*options, "import", "-", "--session", "s", given=MAIL)
    assert result.exit_code == 0, result.output
    return texts("s")


def test_without_a_policy_nothing_is_redacted() -> None:
    """Without a policy texts are stored as they are."""
    assert taken() == ["I am jo@example.com"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [("default", "I am [REDACTED]"), ("secrets", "I am jo@example.com"), ("policy.json", "I am [MAIL]")],
)
def test_privacy_names_a_preset_or_a_file(given: str, kept: str) -> None:
    """`--privacy` takes the name of a preset or a file, before the command or after it."""
    assert taken("--privacy", given) == [kept]
    result = run("import", "-", "--session", "behind", "--privacy", given, given=MAIL)
    assert result.exit_code == 0
    assert texts("behind") == [kept]


def test_the_variable_applies_to_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """PALIMPSEST_PRIVACY applies to every command; `--privacy` overrides it, and the command's own option wins."""
    monkeypatch.setenv("PALIMPSEST_PRIVACY", "policy.json")

    assert taken() == ["I am [MAIL]"]
    run("--privacy", "secrets", "import", "-", "--session", "two", "--privacy", "default", given=MAIL)
    assert texts("two") == ["I am [REDACTED]"]


def test_pseudonyms_need_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy with pseudonyms needs PALIMPSEST_PSEUDONYM_KEY of at least 16 bytes, which is never printed."""
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
def test_an_invalid_policy_is_refused(folder: Path, given: str, content: str | None, told: str) -> None:
    """An unknown preset or invalid policy exits with 2 and names the fault, and no store is created."""
    if content is not None:
        (folder / given).write_text(content, "utf-8")
    result = run("import", "-", "--session", "s", "--privacy", given, given=MAIL)

    assert result.exit_code == 2
    assert told in result.stderr
    assert not (folder / "chats.db").exists()


def test_an_empty_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty PALIMPSEST_PRIVACY is an error, because whoever set it meant a policy."""
    monkeypatch.setenv("PALIMPSEST_PRIVACY", "")

    assert run("sessions").exit_code == 2
