"""The repr of an object identifies it and leaves out defaults."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

import palimpsest
import palimpsest.strategies
import palimpsest.types
from palimpsest import AsyncMemory, Memory
from palimpsest.integrations.tools import MemoryTools, ToolResult


@pytest.mark.parametrize("module", [palimpsest, palimpsest.strategies, palimpsest.types])
def test_a_record_shows_only_fields_that_differ_from_defaults(module: ModuleType) -> None:
    """No public record prints fields with default values."""
    found = [getattr(module, name) for name in module.__all__]
    structs = [one for one in found if inspect.isclass(one) and issubclass(one, msgspec.Struct)]

    assert structs
    assert [one.__name__ for one in structs if not one.__struct_config__.repr_omit_defaults] == []
    assert ToolResult.__struct_config__.repr_omit_defaults


def test_entries_and_options_print_only_given_fields() -> None:
    """An entry prints id, seq and text first, and options print only what was given."""
    with Memory.open("memory://") as memory:
        chat = memory.session("s", max_tokens=500)
        entry = chat.add_user_message("Hello")

        assert repr(entry).startswith(f"Entry(id='{entry.id}', seq=1, content='Hello', at=")
        assert "None" not in repr(entry)
        assert repr(chat.options) == "Options(max_tokens=500)"


def test_a_memory_is_shown_by_its_address_and_tenant(tmp_path: Path) -> None:
    """A memory prints its address and tenant; a path is printed as given."""
    path = tmp_path / "agent.db"
    with Memory.open(path) as memory:
        assert repr(memory) == f"<Memory {str(path)!r} of tenant 'default'>"
        assert repr(memory.for_tenant("acme")) == f"<Memory {str(path)!r} of tenant 'acme'>"
        assert repr(memory.fork("agent/a")) == f"<Memory {str(path)!r} of tenant 'default'>"
    assert repr(AsyncMemory.open("memory://")) == "<AsyncMemory 'memory://' of tenant 'default'>"


def test_no_password_of_an_address_is_shown() -> None:
    """A memory's repr shows neither a password nor options that may be secrets."""
    memory = AsyncMemory.open("postgresql://ann:sesame@localhost:1/chats?sslpassword=sesame")  # opens nothing yet

    assert "sesame" not in repr(memory)
    assert "localhost:1/chats" in repr(memory)


def test_parts_of_a_memory_are_shown_by_name() -> None:
    """A working memory prints its scope, a knowledge base its id, tools what they offer."""
    with Memory.open("memory://") as memory:
        memory.session("s").add_user_message("Hello")

        assert repr(memory.working("user/ann")) == "<WorkingMemory 'user/ann'>"
        assert repr(memory.working("user/ann").readonly()) == "<WorkingMemory 'user/ann' (read-only)>"
        assert repr(memory.knowledge("handbook")) == "<Knowledge 'handbook'>"
        assert repr(MemoryTools(memory, session="s")) == "<MemoryTools search_memory, read_entries>"
