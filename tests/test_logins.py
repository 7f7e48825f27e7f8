"""The user and password of an address are in no error, wherever the address was passed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commands import run
from palimpsest import ConfigError, Memory, PalimpsestError
from palimpsest.resources import Resources
from palimpsest.resources.opening import session_options

LOGIN = "redis://agent:sesame@127.0.0.1:1/0"
PREFIX = "PALIMPSEST_MEMORY_"


def of_error(error: BaseException | None) -> Iterator[str]:
    """Return everything that an error and its causes could show."""
    while error is not None:
        yield from (str(error), repr(error), repr(error.args), repr(vars(error)))
        error = error.__cause__ or error.__context__


def variables(**given: str) -> Callable[[Path], object]:
    """Open a memory from these environment variables."""
    return lambda _: using(Memory.from_env({PREFIX + name: value for name, value in given.items()}))


def using(memory: Memory, message: object = "hello", **options: Any) -> None:
    """Return a session with these options and a message."""
    with memory:
        memory.session("s", **options).add({"role": "user", "content": message})


def declared(**given: object) -> Callable[[Path], object]:
    """Load a declared memory with these keys from a mapping."""
    return lambda _: Memory.from_resource({"resource": "memory", "id": "m", "type": "buffer", **given})


def in_file(**given: object) -> Callable[[Path], object]:
    """Load a declared memory with these keys from a file."""

    def load(folder: Path) -> object:
        file = folder / "memory.json"
        file.write_text(json.dumps({"resource": "memory", "id": "m", "type": "buffer", **given}))
        return Resources.load(file)

    return load


MISTAKES: dict[str, Callable[[Path], object]] = {
    "a misspelt variable": variables(REDIS_URI=LOGIN),
    "the backend": variables(BACKEND=LOGIN),
    "a number": variables(MAX_CONVERSATION_TOKENS=LOGIN),
    "a resource": variables(RESOURCE=LOGIN),
    "a path of SQLite": lambda _: using(Memory.open(f"sqlite:///{LOGIN}", readonly=True)),
    "a mapping for an address": declared(store={"url": LOGIN}),
    "a list for an address": declared(store=[LOGIN]),
    "an address in pieces": declared(store={"host": "127.0.0.1", "password": "sesame"}),
    "a type": declared(persistence={"type": LOGIN, "ttl": "1d"}),
    "a time": declared(persistence={"type": "redis", "ttl": LOGIN}),
    "an id": declared(id=LOGIN, max_tokens=-1),
    "a key": declared(**{LOGIN: 1}),
    "a limit": declared(max_tokens=LOGIN),
    "a mapping in a file": in_file(store={"url": LOGIN}),
    "a type in a file": in_file(persistence={"type": LOGIN, "ttl": "1d"}),
    "an id in a file": in_file(id=LOGIN, max_tokens=-1),
    "a key in a file": in_file(**{LOGIN: 1}),
    "an option": lambda _: Memory.open("memory://", view_bytes=LOGIN),  # type: ignore[arg-type]
    "a policy": lambda _: Memory.open("memory://", privacy=LOGIN),
    "a setting of a file": lambda _: Memory.open("sqlite:///a.db", synchronous=LOGIN),  # type: ignore[arg-type]
    "a source": lambda _: Memory.from_resource(LOGIN),
    "a format": lambda _: using(Memory.open("memory://"), format=LOGIN),
    "a message": lambda _: using(Memory.open("memory://"), {"url": LOGIN}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_errors_about_a_misplaced_address_show_no_login(mistake: str, here: Path) -> None:
    """An error about a misplaced address shows its password neither in text, attributes nor causes."""
    with pytest.raises(PalimpsestError) as caught:
        MISTAKES[mistake](here)

    assert [text for text in of_error(caught.value) if "sesame" in text] == []


@pytest.mark.parametrize(
    "command",
    [
        (LOGIN,),
        ("sessions", LOGIN),
        ("--json", "sessions", LOGIN),
        ("sessions", "--limit", LOGIN),
        (f"--stor={LOGIN}", "sessions"),
        ("import", LOGIN),
        ("config", "check", LOGIN),
        ("worker", "--config", LOGIN),
        ("sessions", "--privacy", LOGIN),
        ("show", LOGIN, "--store", "memory://"),
    ],
)
def test_the_command_line_shows_no_login(command: tuple[str, ...], here: Path) -> None:
    """No command shows a password of an address, whatever argument it was given as."""
    told = run(*command)

    assert told.exit_code != 0
    assert "sesame" not in told.output


GIVEN = {
    "resource": "memory",
    "id": "m",
    "type": "token_based",
    "max_tokens": 1000,
    "persistence": {"type": "sqlite", "url": "sqlite:///chats.db", "ttl": "1d"},
    "summarizer": {
        "model": "openai:gpt-4o",
        "base_url": "https://agent:sesame@proxy.example/v1?api_key=sesame",
        "settings": {"extra_headers": {"Authorization": "Bearer sesame"}, "temperature": 0.2},
    },
}


def test_a_summarizer_s_secrets_are_used_and_not_kept(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A summarizer's secrets are in no file of the store, no printed definition, and not in its repr."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    (here / "m.json").write_text(json.dumps(GIVEN))
    with Resources.load(GIVEN) as resources:
        session = resources.session({"id": "m", "key": "k"})
        session.add_user_message("hello")
        told = [resources["m"], resources["m"].effective(), resources.memory("m").definitions(), session.options]
        made = session_options(resources["m"])["summarizer"]

    asks = [made.base_url, made.settings["extra_headers"]["Authorization"], made.settings["temperature"]]
    assert asks == ["https://agent:sesame@proxy.example/v1?api_key=sesame", "Bearer sesame", 0.2]
    shown = [run("config", *words).output for words in (("show", "m.json"), ("show", "m.json", "--json"))]
    kept = b"".join(path.read_bytes() for path in here.glob("chats.db*"))
    assert all("gpt-4o" in text for text in shown)
    assert b"gpt-4o" in kept
    assert [text for text in (*shown, *map(repr, told), repr(kept)) if "sesame" in text] == []


def test_another_password_does_not_change_a_definitions_digest() -> None:
    """A digest says what a memory is, and nothing of its secrets."""
    changed = json.loads(json.dumps(GIVEN).replace("sesame", "barley"))
    one, two = (Resources.load(given)["m"].digest for given in (GIVEN, changed))

    assert one == two


def test_a_login_with_any_characters_is_not_shown() -> None:
    """Users and passwords have signs that end an address elsewhere, and may stand where a message is cut."""
    for seed in range(400):
        chance = random.Random(seed)
        signs = "abcdefgh0123456789:/@?#&=%'\"!$*+,;[]{}()~^|\\._-"
        password = "sesame" + "".join(chance.choices(signs, k=chance.randrange(60)))
        address = f"{chance.choice(('redis', 'postgresql', 'mongodb+srv', 'https'))}://u:{password}@h:1/0"
        found = chance.choice((address, {"a": [address]}, f"{'x ' * chance.randrange(60)}{address}", {address: 1}))

        fault = ConfigError(chance.choice(("option", address)), found, "something else")

        assert [text for text in of_error(fault) if "sesame" in text] == [], (seed, address)


def test_addresses_without_a_login_are_shown_as_they_were_given() -> None:
    """Errors show and keep addresses without a login unchanged."""
    for found in (
        "redis://host:6379/0",
        "https://example.com/users/@me?page=2",
        "https://example.com/a, or mail to ann@example.com",
        {"store": "sqlite:///agent.db", "max_tokens": "5", "monkey": "x"},
    ):
        fault = ConfigError("option", found, "something else")

        assert fault.found is found
