"""What is known of models: window, longest answer, encoding, prices, how images count. `counter` counts tokens.

The table is package data, made by `tools/make_models.py`, and read at the first look-up. It names its source and date.
A model is found by rules (its name, a provider before it, a date after it, a fine-tune of it), never by similarity. A
name that no rule resolves has no model.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

import msgspec

from palimpsest.log.codec import ready

default_encoding: Final = "o200k_base"
"""The encoding for models that are not in the table."""


class Tiles(msgspec.Struct, frozen=True, tag_field="by", tag="tile"):
    """An image costs `base` tokens, and `tile` for each square of 512 pixels; at low detail only `base`."""

    base: int
    tile: int


class Patches(msgspec.Struct, frozen=True, tag_field="by", tag="patch"):
    """An image costs `multiplier` tokens for each square of 32 pixels.

    `limits` maps a detail level (`low`, `high`, `original`, `auto`) to the longest side in pixels and the largest
    number of squares; larger images are scaled down to both first. `auto` is always present.
    """

    multiplier: float
    limits: Mapping[str, tuple[int, int]]


class Area(msgspec.Struct, frozen=True, tag_field="by", tag="area"):
    """An image costs one token for each `pixels` pixels, at most `cap`: larger images are scaled down."""

    pixels: int
    cap: int


class Levels(msgspec.Struct, frozen=True, tag_field="by", tag="level"):
    """An image of any size costs what `tokens` gives for the requested resolution. `auto` is always present."""

    tokens: Mapping[str, int]


class Crops(msgspec.Struct, frozen=True, tag_field="by", tag="crop"):
    """An image costs `crop` tokens for each of its squares, at most `most`.

    An image whose sides are at most `whole` pixels is one square. For larger ones the side of a square is two thirds of
    the shorter side, from 256 to 768 pixels.
    """

    crop: int
    whole: int
    most: int


ImageRule = Tiles | Patches | Area | Levels | Crops


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """One model. None means that the source does not say.

    `window` is the most input tokens that the provider accepts, `max_output` the most that it answers with. `exact`
    says that the provider publishes `encoding` as this model's own; otherwise counts in it have to be multiplied by
    `margin`, for the `reason` given. Prices are in US dollars per million tokens. `audio` says that the model accepts
    sound.
    """

    name: str
    provider: str
    window: int | None
    max_output: int | None
    encoding: str
    exact: bool
    margin: float
    reason: str
    input_price: float | None = None
    cached_input_price: float | None = None
    output_price: float | None = None
    image: ImageRule | None = None
    audio: bool = False


def find_model(name: str) -> Model | None:
    """Return the model of this name, or None if no rule resolves it. Letter case does not matter.

    The rules: the name itself; without a provider (`openai/…`, `azure:…`); a fine-tune as its base
    (`ft:gpt-4o:org::id`; its prices are those of its own entry, or None); without a date or `latest` at the end
    (`gpt-4o-2024-08-06`, `…-20250929`, `…@default`).
    """
    plain = name.strip().lower()
    models = _table()
    for candidate in _without_providers(plain):
        if model := _find_plain(candidate, models):
            return model
        if candidate.startswith("ft:"):
            return _find_fine_tune(candidate, models)
    return None


def model_names() -> tuple[str, ...]:
    """Return the names in the table, sorted."""
    return tuple(sorted(model.name for model in _table().values()))


def table_source() -> str:
    """Return the source of the table's facts, and their date."""
    return _read().source


_PROVIDERS: Final = frozenset(
    {
        *("anthropic", "azure", "azure_ai", "azure-openai", "deepseek", "gemini", "google", "google_genai"),
        *("google-gla", "google-vertex", "groq", "llama", "meta", "meta_llama", "meta-llama", "mistral"),
        *("mistralai", "models", "openai", "openai-chat", "openai-responses", "openrouter", "vertex_ai"),
        *("x-ai", "xai"),
    }
)
_PROVIDER: Final = re.compile(r"([a-z_-]+)[/:]")
_DATE: Final = re.compile(r"[-@](?:20\d\d-?(?:0[1-9]|1[0-2])-?(?:0[1-9]|[12]\d|3[01])|latest|default)")
# Only OpenAI's first chat models were dated by month and day alone.
_SHORT_DATE: Final = re.compile(r"(gpt-(?:3\.5-turbo|4)(?:-\d\dk)?)-(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])")


def _without_providers(name: str) -> Iterator[str]:
    yield name
    while (match := _PROVIDER.match(name)) and match[1] in _PROVIDERS:
        name = name[match.end() :]
        yield name


def _find_plain(name: str, models: Mapping[str, Model]) -> Model | None:
    if model := models.get(name) or models.get(name.replace("@", "-")):
        return model
    stem = _without_date(name)
    return models.get(stem) if stem else None


def _find_fine_tune(name: str, models: Mapping[str, Model]) -> Model | None:
    """Return the entry of a fine-tune of this base, or the base without its prices."""
    base = name.split(":")[1]
    if fine_tune := models.get(f"ft:{base}"):
        return fine_tune
    base_model = _find_plain(base, models)
    if base_model is None:
        return None
    return msgspec.structs.replace(base_model, input_price=None, cached_input_price=None, output_price=None)


def _without_date(name: str) -> str | None:
    if (dated := _DATE.search(name)) and dated.end() == len(name):
        return name[: dated.start()]
    short = _SHORT_DATE.fullmatch(name)
    return short[1] if short else None


class _Tokenizer(msgspec.Struct, frozen=True):
    encoding: str
    exact: bool
    margin: float
    reason: str


class _Row(msgspec.Struct, frozen=True, array_like=True):
    provider: str
    window: int | None
    max_output: int | None
    tokenizer: str
    input_price: float | None
    cached_input_price: float | None
    output_price: float | None
    image: str | None
    audio: bool


class _File(msgspec.Struct, frozen=True):
    source: str
    tokenizers: dict[str, _Tokenizer]
    images: dict[str, ImageRule]
    models: dict[str, _Row]


ready(_File)


@cache
def _read() -> _File:
    return msgspec.json.decode(pkgutil.get_data("palimpsest.tokens", "data/models.json") or b"", type=_File)


@cache
def _table() -> Mapping[str, Model]:
    file = _read()
    return {name.lower(): _model(name, row, file) for name, row in file.models.items()}


def _model(name: str, row: _Row, file: _File) -> Model:
    tokenizer = file.tokenizers[row.tokenizer]
    return Model(
        name=name,
        provider=row.provider,
        window=row.window,
        max_output=row.max_output,
        encoding=tokenizer.encoding,
        exact=tokenizer.exact,
        margin=tokenizer.margin,
        reason=tokenizer.reason,
        input_price=row.input_price,
        cached_input_price=row.cached_input_price,
        output_price=row.output_price,
        image=file.images[row.image] if row.image else None,
        audio=row.audio,
    )
