"""Key material is in no error, wherever it was passed by mistake, and in no object's printable form."""

from __future__ import annotations

import base64
import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from palimpsest import AsyncMemory, ConfigError, Keys, Memory, Redactor
from sealed import session_of

RAW = bytes.fromhex("ab12cd" * 10 + "ef34")
HEX = RAW.hex()
WRITTEN = (
    HEX,
    HEX.upper(),
    base64.b64encode(RAW).decode(),
    base64.b64encode(RAW).decode().rstrip("="),
    base64.urlsafe_b64encode(RAW).decode().rstrip("="),
)
GOOD = base64.b64encode(bytes(range(32))).decode()


def tells(text: str) -> bool:
    """Whether a text contains the key in any encoding."""
    return any(written in text for written in (*WRITTEN, repr(RAW)[2:-1], repr(bytearray(RAW))[12:-2]))


def of_error(error: BaseException | None) -> Iterator[str]:
    """Return everything that an error and its causes could show."""
    while error is not None:
        yield from (str(error), repr(error), repr(error.args), repr(vars(error)), repr(getattr(error, "__notes__", ())))
        error = error.__cause__ or error.__context__


def using(memory: Memory, **options: Any) -> None:
    """Return a session with these options."""
    with memory:
        memory.session("one", **options)


MISTAKES: dict[str, Callable[[str], object]] = {
    "keys and ids changed places": lambda key: Keys({key: "k1"}),
    "they did, with a good key for an id": lambda key: Keys({key: GOOD}),
    "a piece of a key for an id": lambda key: Keys({key[:40]: "k1"}),
    "KEY:ID": lambda key: Keys.parse(f"{key}:k1"),
    "two keys of one id": lambda key: Keys.parse(f"{key}:x,{key}:y"),
    "a key alone": Keys.parse,
    "ID=KEY": lambda key: Keys.parse(f"k1={key}"),
    "the current one by its key": lambda key: Keys({"k1": key}, current=key),
    "the current one by its bytes": lambda key: Keys({"k1": key}, current=RAW),
    "a key that is too long": lambda key: Keys({"k1": key + "ab"}),
    "keys without ids": lambda key: Keys([key]),
    "the name of a variable": Keys.from_env,
    "encryption=KEY": lambda key: Memory.open("memory://", encryption=key),
    "encryption=BYTES": lambda _: Memory.open("memory://", encryption=RAW),
    "encryption=(ID, KEY)": lambda key: Memory.open("memory://", encryption=("k1", key)),
    "keys for an address": lambda key: Memory.open({"k1": key}),
    "bytes for an address": lambda _: Memory.open({"k1": [RAW]}),
    "ID:KEY for an address": lambda key: Memory.open(f"k1:{key}"),
    "a key as a setting": lambda key: Memory.open("sqlite:///never.db", synchronous=key),
    "keys as a setting": lambda key: Memory.open("sqlite:///never.db", busy_seconds={"k1": key}),
    "a key as another option": lambda key: Memory.open("memory://", encryption={"k1": key}, secret=key),
    "a key for a privacy policy": lambda key: Memory.open("memory://", privacy=key),
    "bytes for a privacy policy": lambda _: Redactor(RAW),
    "a key for a preset": lambda key: Redactor({"recognisers": key}),
    "a key of pseudonyms as text": lambda key: Redactor({"recognisers": {"email": "pseudonym"}}, key=key),
    "a key as the format": lambda key: using(Memory.open("memory://"), format=key),
    "opened without a loop": lambda key: AsyncMemory.open("memory://", encryption={key: "k1"}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("key", WRITTEN, ids=["hex", "capitals", "base64", "unpadded", "urlsafe"])
def test_errors_about_a_misplaced_key_do_not_show_it(
    mistake: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error about a key passed in the wrong place shows the key neither in text, attributes nor causes."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError) as caught:
        MISTAKES[mistake](key)

    assert [text for text in of_error(caught.value) if tells(text)] == []


def test_an_error_shows_a_value_that_is_no_key() -> None:
    """An error shows and keeps a value that is no key, even one as long as a key."""
    for found in ("a" * 43, "/var/lib/agent/data/of/a/long/path/some.db", 999, {"a": ["b", 1.5]}, None):
        fault = ConfigError("option", found, "something else")

        assert fault.found is found


def held(thing: object, seen: set[int] | None = None) -> Iterator[object]:
    """Yield an object of the library and everything that its attributes and slots hold."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, type):
        return
    seen.add(id(thing))
    yield thing
    if isinstance(thing, dict):
        inner: list[object] = [*thing.keys(), *thing.values()]
    elif isinstance(thing, list | tuple | set | frozenset):
        inner = list(thing)
    elif type(thing).__module__.startswith("palimpsest"):
        slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
        inner = [*vars(thing).values()] if hasattr(thing, "__dict__") else []
        inner += [getattr(thing, name) for name in slots if hasattr(thing, name)]
    else:
        return
    for one in inner:
        yield from held(one, seen)


GIVEN: dict[str, Any] = {"text": f"k1:{HEX}", "mapping": {"k1": HEX}, "bytes": {"k1": RAW}, "keys": Keys({"k1": HEX})}


@pytest.mark.parametrize("given", GIVEN)
def test_no_object_keeps_or_shows_the_given_keys(given: str) -> None:
    """No object keeps what was given as `encryption=`, and no repr shows a key."""
    with Memory.open("memory://", encryption=GIVEN[given]) as memory:
        session_of(memory).add_user_message("hello")
        found = list(held(memory))

        assert len(found) > 50
        assert [thing for thing in found if thing == RAW or tells(repr(thing))] == []


def test_a_redactor_shows_no_key() -> None:
    """A redactor that gives out pseudonyms does not show its key, before or after it was used."""
    redactor = Redactor({"recognisers": {"email": "pseudonym"}}, key=RAW)
    assert redactor.text("a@example.com") == "[EMAIL]"
    found = list(held(redactor))

    assert len(found) > 20
    assert [thing for thing in found if thing == RAW or tells(repr(thing))] == []


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_keys_are_neither_pickled_nor_copied(copied: Callable[[object], object]) -> None:
    """Objects that hold keys refuse to be pickled or copied, without showing them."""
    redactor = Redactor({"recognisers": {"email": "pseudonym"}}, key=RAW)
    secrets = [thing for thing in held(redactor) if type(thing).__name__ == "Secret"]
    assert len(secrets) == 1
    for thing in (Keys({"k1": HEX}), *secrets):
        with pytest.raises(TypeError, match="pickled") as caught:
            copied(thing)

        assert [text for text in of_error(caught.value) if tells(text)] == []


def test_the_command_line_shows_no_key(tmp_path: Path) -> None:
    """No command prints any of PALIMPSEST_KEY, right or wrong."""
    where = f"sqlite:///{tmp_path}/a.db"
    with Memory.open(where, encryption={"k1": HEX}) as memory:
        session_of(memory).add_user_message("hello")
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from palimpsest.cli.app import palimpsest\n"
        "for given in sys.argv[2:]:\n"
        "    for command in (['doctor'], ['sessions'], ['rotate-keys'], ['--help']):\n"
        "        given_to = {'env': {'PALIMPSEST_KEY': given}}\n"
        "        ran = CliRunner().invoke(palimpsest, ['--store', sys.argv[1], *command], **given_to)\n"
        "        print(command, ran.output, ran.exception)\n"
    )
    given = (f"{HEX}:k1", f"k1:{HEX}x", HEX, f"k1:{HEX},k1:{HEX}", f"{WRITTEN[2]}:k1", f"{HEX}:{HEX}", f"k1:{HEX}")
    ran = subprocess.run(
        [sys.executable, "-c", code, where, *given], capture_output=True, text=True, check=True, env={**os.environ}
    )

    assert ran.stdout.count("['doctor']") == len(given)
    assert not tells(ran.stdout + ran.stderr)


def test_keys_are_handed_on_when_the_store_is_open() -> None:
    """A memory keeps its keys only until its store is open."""
    core = AsyncMemory.open("memory://", encryption={"k1": HEX})
    assert [thing.ids for thing in held(core) if isinstance(thing, Keys)] == [("k1",)]

    with Memory.open("memory://", encryption={"k1": HEX}) as memory:
        assert [name for name, value in vars(memory._core).items() if isinstance(value, Keys)] == []
