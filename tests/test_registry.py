"""Names of stores and formats: registered by a program, built in, or offered by an installed package."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from palimpsest import ConfigError, Memory
from palimpsest.formats import FORMATS, find_format
from palimpsest.formats.openai_chat import OpenAIChat
from palimpsest.log.entry import Entry
from palimpsest.runtime.registry import Registry
from palimpsest.stores import STORES
from palimpsest.stores.memory import MemoryBackend


def test_a_registered_store_opens_by_its_scheme() -> None:
    """A registered store is opened for addresses of its scheme, with their options."""
    opened: list[tuple[str, dict[str, Any]]] = []

    def open_mine(url: str, runner: Any, **options: Any) -> MemoryBackend:
        opened.append((url, options))
        return MemoryBackend(runner)

    STORES.register("mine", open_mine)
    with Memory.open("mine://there", colour="blue") as memory:
        memory.session("s").add_user_message("hello")

        assert [entry.text for entry in memory.session("s").entries()] == ["hello"]
    assert (opened[0][0], opened[0][1]["colour"]) == ("mine://there", "blue")


def test_a_registered_format_is_found() -> None:
    """A format registered under a name is what that name stands for."""

    class Mine(OpenAIChat):
        name = "mine"

    FORMATS.register("mine", Mine)

    assert isinstance(find_format("mine"), Mine)


def test_an_installed_package_offers_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point is found after registered and built-in names."""
    (tmp_path / "offering.py").write_text("target = 'found'\nbuilt_in = 'not this one'\n")
    described = tmp_path / "offering-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: offering\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[a.group]\nnew = offering:target\npath = offering:built_in\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "offering", raising=False)
    registry = Registry("thing", "a.group", {"path": "os:path"})

    assert registry.find("new") == "found"
    assert registry.find("path") is sys.modules["os"].path


def test_an_unknown_name_lists_what_there_is() -> None:
    """A name that nothing stands for is refused with all names, and the nearest one."""
    registry = Registry("thing", "no.such.group", {"alpha": "os:path", "beta": "os:sep"}, form="{}:…")

    with pytest.raises(ConfigError, match=r"thing: 'alpa://x' .* alpha:…, beta:….*did you mean 'alpha'"):
        registry.find("alpa", "alpa://x")


@pytest.mark.parametrize(("bills", "of", "costs"), [(True, "mine", 8), (False, "mine", 0), (False, "gone", 8)])
def test_native_keys_are_counted_if_the_registered_format_says_so(bills: bool, of: str, costs: int) -> None:
    """Kept keys are counted if their format says so, or if the format is unknown."""
    name, of = f"mine {bills} {of}", of.replace("mine", f"mine {bills} {of}")
    FORMATS.register(name, own_format(of, bills=bills))
    said = {"role": "user", "content": "hello"}

    assert cost_of({**said, "kept": "one two three four five six seven eight"}, name) - cost_of(said, name) == costs


def test_forgetting_ignores_item_keys_of_a_registered_format() -> None:
    """Forgetting a text ignores keys of a format's items and finds the values under them."""
    FORMATS.register("made of marks", own_format("made of marks", words={"trademark"}))
    said = [
        {"role": "user", "content": "hello", "trademark": "none"},
        {"role": "user", "content": "hello", "trademark": "a trademark of mine"},
        {"role": "user", "content": "hello", "landmark": "none"},
    ]

    with Memory.open("memory://") as memory:
        session = memory.session("s", format="made of marks")
        session.add(said)
        memory.forget(matches="mark")

        assert [entry.erased for entry in session.entries()] == [False, True, True]


def own_format(of: str, *, bills: bool = False, words: AbstractSet[str] = frozenset()) -> type[OpenAIChat]:
    """Return a format whose entries name the format `of`."""

    class Mine(OpenAIChat):
        def decode(self, messages: Sequence[Any], where: str = "messages") -> list[Entry]:
            entries = super().decode(messages, where)
            return [replace(entry, native=entry.native and replace(entry.native, format=of)) for entry in entries]

    Mine.bills_kept, Mine.words = bills, frozenset(words)
    return Mine


def cost_of(message: dict[str, Any], format: str) -> int:
    """Return the cost in words of a context that shows this one message."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", format=format, counter=lambda text: len(text.split()))
        session.add([message])
        return session.context().tokens
