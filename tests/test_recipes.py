"""Whatever is added under a name is documented and tested everywhere it has to be."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import test_compaction_laws
from laws import examples
from palimpsest import errors, strategies
from palimpsest.compaction.loading import STRATEGIES, load
from palimpsest.formats import FORMATS, find_format
from palimpsest.privacy.recognisers.built_in import BUILT_IN
from palimpsest.stores import STORES
from palimpsest.stores.options import StoreOptions
from palimpsest.transfer.sources import SOURCES
from privacy_corpus import POSITIVE
from providers import PROVIDERS, SPOKEN

DOCS = Path(__file__).resolve().parent.parent / "docs"

TOLD = {
    "formats.md": FORMATS.built_in,
    "compaction.md": STRATEGIES.built_in,
    "importing.md": SOURCES.built_in,
    "privacy.md": tuple(BUILT_IN),
}
"""Pages, and what each has a row of a table for."""


@pytest.mark.parametrize("page", TOLD)
def test_every_named_object_has_a_row_on_its_page(page: str) -> None:
    """Every format, strategy, source and recogniser has a row on its page."""
    rows = [line.split("|")[1] for line in (DOCS / page).read_text("utf-8").splitlines() if line.startswith("| ")]

    assert [name for name in TOLD[page] if not any(f"`{name}`" in row for row in rows)] == []


def test_the_pages_of_stores_name_every_store_and_option() -> None:
    """The pages of stores name every store and option."""
    pages = "".join((DOCS / page).read_text("utf-8") for page in ("stores.md", "postgres.md", "mongodb.md", "redis.md"))

    assert [name for name in STORES.built_in if f"{name}:" not in pages] == []
    assert [name for name in StoreOptions.__annotations__ if name not in pages] == []


def test_every_format_has_independent_checks() -> None:
    """The laws of contexts hold for each format that comes with Palimpsest: `providers` has what judges it."""
    assert sorted(PROVIDERS) == sorted(FORMATS.built_in)


@pytest.mark.parametrize("name", SPOKEN)
@settings(deadline=None, max_examples=examples(20))
@given(data=st.data())
def test_a_format_keeps_what_it_decoded_under_its_own_name(name: str, data: st.DataObject) -> None:
    """A class made out of another format's has that one's name no longer, neither for itself nor in entries."""
    batches = PROVIDERS[name].batches
    assert batches is not None
    entries = find_format(name).decode(data.draw(batches), "messages")

    assert find_format(name).name == name
    assert {entry.native.format for entry in entries if entry.native is not None} <= {name}


def test_every_strategy_is_a_public_class_that_the_laws_test() -> None:
    """Every named strategy is a public class that the laws of plans test."""
    classes = {type(load({"strategy": name, **NEEDED.get(name, {})})[0][0]).__name__ for name in STRATEGIES.built_in}

    assert classes <= set(strategies.__all__)
    assert classes <= set(vars(test_compaction_laws))


NEEDED = {"hybrid_summary": {"summary_tokens": 60}}
"""What a strategy cannot be made without."""


def test_every_recogniser_is_tried_on_values_that_it_finds() -> None:
    """`privacy_corpus.POSITIVE` makes values for every recogniser."""
    assert sorted(POSITIVE) == sorted(BUILT_IN)


@pytest.mark.parametrize(
    "told", [errors.__doc__ or "", (DOCS / "errors.md").read_text("utf-8")], ids=["module", "page"]
)
def test_the_documented_tree_of_errors_equals_the_classes(told: str) -> None:
    """The tree of errors in the docstring is that of the classes, with their built-in bases."""
    assert sorted(_drawn(told.splitlines())) == sorted(
        (name, *(base.__name__ for base in vars(errors)[name].__bases__))
        for name in errors.__all__
        if name not in ("PalimpsestError", "PalimpsestWarning")
    )


def _drawn(lines: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the errors of a drawn tree, each with its parent and the built-in in parentheses."""
    found, above = list[tuple[str, ...]](), {0: "PalimpsestError"}
    for line in lines:
        before, branch, rest = line.partition("── ")
        if branch:
            name, *builtin = rest.split()[:2]
            depth = len(before) // 4 + 1
            above[depth] = name
            builtins = [word.strip("()") for word in builtin if word.startswith("(") and word.endswith(")")]
            found.append((name, above[depth - 1], *builtins))
    return found


@pytest.mark.parametrize(
    ("module", "framework", "extra"),
    [("openai_agents", "agents", "openai-agents"), ("pydantic_ai", "pydantic_ai", "pydantic-ai")],
)
def test_an_adapter_without_its_framework_names_the_extra(module: str, framework: str, extra: str) -> None:
    """Importing an adapter without its framework raises MissingExtra with the command to install it."""
    program = f"import sys; sys.modules[{framework!r}] = None; import palimpsest.integrations.{module}"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert ended.returncode == 1
    assert "MissingExtra: an agent of " in ended.stderr
    assert ended.stderr.endswith(f"pip install 'palimpsest-memory[{extra}]'\n")
