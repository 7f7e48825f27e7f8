"""Options of a session are declared once, and every other list of them agrees."""

from __future__ import annotations

import ast
import inspect
from contextlib import suppress
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from palimpsest import AsyncMemory, ConfigError, Memory, PalimpsestError, types
from palimpsest.compaction.loading import STRATEGIES
from palimpsest.formats import FORMATS
from palimpsest.runtime.events import EVENTS
from palimpsest.sessions import options
from palimpsest.sessions.options import GivenOptions
from palimpsest.stores.options import DiskOptions
from palimpsest.stores.postgres.address import PostgresOptions
from palimpsest.stores.redis.address import RedisOptions
from palimpsest.stores.servers import ServerOptions
from palimpsest.transfer.sources import SOURCES


def spelled(name: str) -> dict[str, str]:
    """Return the fields of a class in the module of options, with their types as written."""
    classes = (node for node in ast.walk(ast.parse(inspect.getsource(options))) if isinstance(node, ast.ClassDef))
    found = next(one for one in classes if one.name == name)
    fields = (node for node in found.body if isinstance(node, ast.AnnAssign))
    return {ast.unparse(field.target): ast.unparse(field.annotation) for field in fields}


def test_the_typed_options_of_a_session_equal_its_declaration() -> None:
    """The dictionary of options has the names and the types of the declaration, in its order."""
    declared = spelled("GivenOptions")

    assert list(spelled("SessionOptions").items()) == list(declared.items())
    assert tuple(declared) == GivenOptions.__struct_fields__


CLOSED: dict[object, object] = {
    types.FormatName: FORMATS.built_in,
    types.StrategyName: STRATEGIES.built_in,
    types.SourceName: ("auto", *SOURCES.built_in),
    types.EventName: EVENTS,
}
"""Types of names, and where what goes by these names is kept."""

ON_SERVERS = (ServerOptions, PostgresOptions, RedisOptions)


@pytest.mark.parametrize(("alias", "known"), CLOSED.items())
def test_each_type_of_names_lists_exactly_the_existing_ones(alias: object, known: object) -> None:
    """The types of names for type checkers list exactly the existing formats, strategies, sources and events."""
    assert get_args(alias) == known


def test_the_typed_options_of_open_equal_those_of_stores() -> None:
    """The typed options of `open` equal those that stores declare."""
    declared = get_type_hints(DiskOptions) | {
        name: hint for one in ON_SERVERS for name, hint in get_type_hints(one).items()
    }

    assert get_type_hints(types.StoreOptions) == {name: hint for name, hint in declared.items() if name[0] != "_"}


def test_the_documentation_of_session_names_each_option() -> None:
    """The documentation of `session` names each option."""
    told = AsyncMemory.session.__doc__ or ""

    assert [name for name in GivenOptions.__struct_fields__ if f" {name}: " not in told] == []


def test_the_documentation_of_on_names_each_event() -> None:
    """The documentation of `on` names each event."""
    told = [word.strip(".,") for word in (AsyncMemory.on.__doc__ or "").split()]

    assert [event for event in EVENTS if event not in told] == []


def test_the_page_of_sessions_names_each_event() -> None:
    """A reader finds each event on the page about sessions."""
    page = (Path(__file__).resolve().parent.parent / "docs" / "sessions.md").read_text("utf-8")

    assert [event for event in EVENTS if f"`{event}`" not in page] == []


@pytest.mark.filterwarnings("ignore::palimpsest.errors.PalimpsestWarning")
@pytest.mark.parametrize("name", GivenOptions.__struct_fields__)
@pytest.mark.parametrize(
    "value",
    [-1.5, 3, "x", b"x", (), {"x": 1}, object(), len, True],
    ids=["float", "int", "str", "bytes", "tuple", "dict", "object", "function", "bool"],
)
def test_any_value_of_an_option_is_accepted_or_refused_by_a_library_error(name: str, value: object) -> None:
    """No option raises an error other than the library's, whatever its value."""
    with Memory.open("memory://") as memory, suppress(PalimpsestError):
        memory.session("s", **{name: value})


def test_the_error_for_an_unknown_option_lists_all_options() -> None:
    """The error for an unknown option lists all options and suggests the nearest."""
    with Memory.open("memory://") as memory, pytest.raises(ConfigError) as caught:
        memory.session("s", max_token=5)  # type: ignore[call-arg]

    assert "'max_tokens'" in str(caught.value)
    assert ", ".join(GivenOptions.__struct_fields__) in str(caught.value)
