"""The pages on declared memories are true: their files load, and their tables are those of the code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from jsonschema import Draft7Validator

from palimpsest.resources import Resources
from palimpsest.resources.schema import schema
from palimpsest.resources.table import KEYS, OPTIONS, TABLE
from test_docs import Block, blocks

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = ("resources.md", "cli.md", "workers.md", "guides/gallery.md", "guides/alquimia.md", "guides/compozy.md")
FILES = [
    pytest.param(block, id=f"{page}:{block.title}")
    for page in PAGES
    for block in blocks((DOCS / page).read_text("utf-8"))
    if block.title and block.title != "wrong.yaml"
]
HERE = {"in_memory", "sqlite"}
"""Backends of the pages' files that need no server."""


def parsed(block: Block) -> object:
    """Return what a block of a page says."""
    import yaml

    return json.loads(block.body) if block.title.endswith(".json") else yaml.safe_load(block.body)


@pytest.mark.sampled
@pytest.mark.parametrize("block", FILES)
def test_a_file_of_a_page_is_valid_by_the_schema(block: Block) -> None:
    """The schema accepts each file shown on a page, and refuses it with an unknown key."""
    validator, declared = Draft7Validator(schema()), parsed(block)
    assert isinstance(declared, dict)

    assert [error.message for error in validator.iter_errors(declared)] == []
    assert not validator.is_valid({**declared, "unheard_of": 1})


@pytest.mark.sampled
@pytest.mark.parametrize("block", FILES)
def test_a_file_of_a_page_loads_and_acts(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file shown on a page loads, and a long conversation stays within its limits."""
    monkeypatch.chdir(tmp_path)
    path = Path(block.title).name
    Path(path).write_text(block.body, "utf-8")

    with Resources.load(path) as resources:
        (id,) = resources
        resource = resources[id]
        if resource.place.backend not in HERE:
            assert resource.place.variable == "DATABASE_URL"
            return
        if "summarizer" in resource.options:
            assert resource.options["summarizer"] == "openai:gpt-4o-mini"  # no model is asked here
            return
        chat = resources.session({"id": id, "key": "user:ann"})
        most_tokens, most = resource.options.get("max_log_tokens"), resource.options.get("max_messages")
        for number in range(60):
            chat.add_user_message(f"Question {number}: " + "how is the weather in Paris? " * 10)
            chat.add_assistant_message("It is sunny. " * 10)
        context = chat.context()
        assert context.messages
        assert most_tokens is None or context.parts.log + context.parts.summaries <= most_tokens
        assert most is None or len(context.messages) <= most


def test_the_page_lists_every_key() -> None:
    """The page's table of keys equals the code's, and the options listed after it are all the others."""
    page = (DOCS / "resources.md").read_text("utf-8").partition("## Every key")[2]

    rows = [
        tuple(cell.strip() for cell in line.split("|")[1:5]) for line in page.splitlines() if line.startswith("| `")
    ]
    assert rows == [(f"`{row.key}`", row.source, row.ours, row.says) for row in TABLE]
    named = re.findall(r"`(\w+)`", page.rpartition("| \n")[2].partition("These options")[2])
    assert tuple(named) == OPTIONS
    assert {*named, *(row[0].strip("`") for row in rows)} == set(KEYS)


def test_the_pages_defaults_are_true() -> None:
    """The defaults that the page gives for options with several meanings are those of the schema."""
    definitions = schema()["$defs"]

    assert definitions["strategy_ladder"]["properties"]["low_water"]["default"] == 0.6
    assert definitions["strategy_simple_fifo"]["properties"]["low_water"]["default"] == 0.5
    for name, kept in {"ladder": 2, "mask_results": 1, "lru": 0, "neuralyzer": 2, "hybrid_summary": 2}.items():
        assert definitions[f"strategy_{name}"]["properties"]["interaction_keep"]["default"] == kept
    assert definitions["strategy_ladder"]["properties"]["cod_max_loops"]["default"] == 3
    summarizer = definitions["long_term"]["then"]["then"]["properties"]
    assert (summarizer["cod_max_loops"]["default"], summarizer["interaction_keep"]["default"]) == (5, 0)
