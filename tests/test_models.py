"""The table of models: facts with a source, found by rules for names and never by resemblance."""

from __future__ import annotations

import json
import pkgutil
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.tokens.counter import ENCODINGS
from palimpsest.tokens.models import (
    Area,
    Levels,
    Model,
    Patches,
    Tiles,
    default_encoding,
    find_model,
    model_names,
    table_source,
)


def known(name: str) -> Model:
    """Return the model of this name, which must be known."""
    model = find_model(name)
    assert model is not None, name
    return model


def test_a_model_has_its_facts() -> None:
    """A model has its window, output limit, encoding and prices per million tokens."""
    model = known("gpt-4o")

    assert (model.name, model.provider, model.window, model.max_output) == ("gpt-4o", "openai", 128_000, 16_384)
    assert (model.encoding, model.exact, model.margin) == ("o200k_base", True, 1.0)
    assert (model.input_price, model.cached_input_price, model.output_price) == (2.5, 1.25, 10.0)
    assert model.image == Tiles(base=85, tile=170)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("gpt-4o", "gpt-4o"),
        (" GPT-4o ", "gpt-4o"),
        ("openai/gpt-4o", "gpt-4o"),
        ("openai:gpt-4o", "gpt-4o"),
        ("azure/gpt-4o", "gpt-4o"),
        ("openrouter/anthropic/claude-opus-4-5", "claude-opus-4-5"),
        ("google-gla:gemini-2.5-pro", "gemini-2.5-pro"),
        ("models/gemini-2.5-pro", "gemini-2.5-pro"),
        ("groq/openai/gpt-oss-120b", "gpt-oss-120b"),
        ("gpt-4o-2024-08-06", "gpt-4o-2024-08-06"),
        ("gpt-4o-2031-12-24", "gpt-4o"),
        ("gpt-4-0314", "gpt-4"),
        ("claude-opus-4-5@20251101", "claude-opus-4-5-20251101"),
        ("claude-opus-4-5-20301101", "claude-opus-4-5"),
        ("vertex_ai/claude-opus-4-5@default", "claude-opus-4-5"),
        ("claude-opus-4-5-latest", "claude-opus-4-5"),
        ("ft:gpt-4o:our-org:name:id", "gpt-4o"),
        ("openai:ft:gpt-4o-2024-08-06:our-org::id", "ft:gpt-4o-2024-08-06"),
    ],
)
def test_rules_find_a_model_by_its_name(name: str, found: str) -> None:
    """A provider before a name, a date after it, and a fine-tune lead to the model; an entry of its own comes first."""
    assert known(name).name == found


@pytest.mark.parametrize(
    "name",
    [
        *("", "gpt", "gpt-4o-foo", "gpt-4o-", "my-gpt-4o", "gpt-4o-20", "gpt-4o-2024-13-40", "gpt-4o-0806"),
        *("someone/gpt-4o", "openai/", "ft:", "ft:nothing:org", "claude", "/", ":", "openai:openai"),
    ],
)
def test_a_name_that_only_resembles_a_model_is_unknown(name: str) -> None:
    """A name that only resembles a known one is unknown."""
    assert find_model(name) is None


@given(st.text(max_size=60))
def test_any_text_may_be_looked_up(name: str) -> None:
    """Any text may be looked up; the result is a model or None."""
    assert find_model(name) is None or find_model(name)


def test_a_fine_tune_has_no_prices_of_its_base() -> None:
    """A fine-tune without an entry of its own has the window of its base but not its prices."""
    model = known("ft:gpt-4o:our-org::id")

    assert model.window == 128_000
    assert (model.input_price, model.cached_input_price, model.output_price) == (None, None, None)


@pytest.mark.parametrize("name", model_names())
def test_every_model_of_the_table_is_sound(name: str) -> None:
    """Every model has a countable encoding, a margin that fits its exactness, and possible figures."""
    model = known(name)

    assert model.encoding in ENCODINGS
    assert model.reason
    assert (model.margin == 1.0) if model.exact else (1.0 < model.margin <= 2.0)
    assert all(tokens is None or tokens > 0 for tokens in (model.window, model.max_output))
    assert all(price is None or 0 <= price < 1000 for price in (model.input_price, model.output_price))
    if isinstance(model.image, Patches):
        assert "auto" in model.image.limits
    if isinstance(model.image, Levels):
        assert "auto" in model.image.tokens


def test_the_table_covers_the_main_providers() -> None:
    """The table has hundreds of chat models, of every provider it is meant to cover."""
    providers = {known(name).provider for name in model_names()}

    assert {"openai", "anthropic", "google", "xai", "deepseek", "mistral", "groq", "meta"} <= providers
    assert 100 <= len(model_names()) <= 450


def test_only_published_tokenizers_are_exact() -> None:
    """Counts for models without a published tokenizer, Anthropic's and Google's, carry a margin."""
    assert known("gpt-4").encoding == "cl100k_base"
    assert not known("claude-opus-4-5").exact
    assert not known("gemini-2.5-pro").exact
    assert isinstance(known("claude-opus-4-5").image, Area)


def test_the_default_encoding_exists() -> None:
    """The encoding for unknown models is one that can be counted."""
    assert default_encoding in ENCODINGS


def test_the_table_names_its_source() -> None:
    """The table names its source with checksum and date."""
    assert re.search(r"litellm [\d.]+ \(MIT\).*sha256 [0-9a-f]{64}.*\d{4}-\d\d-\d\d", table_source())


def test_the_table_is_a_small_file_with_a_line_per_model() -> None:
    """The table's file is smaller than 60 KB and has a line per model, so that differences are readable."""
    data = pkgutil.get_data("palimpsest.tokens", "data/models.json") or b""
    lines = data.decode().splitlines()

    assert len(data) < 60_000
    assert all(sum(f'"{name}": [' in line for line in lines) == 1 for name in json.loads(data)["models"])
