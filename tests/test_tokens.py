"""Counting tokens: exact for public encodings, about linear in time, and without crashes for any text."""

from __future__ import annotations

import base64
import hashlib
import importlib
import pkgutil
import random
import string
import subprocess
import sys
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from documented_token_counts import JARGON, WEATHER_MESSAGES, weather
from laws import examples
from palimpsest import Memory
from palimpsest.errors import ConfigError
from palimpsest.tokens.counter import (
    ENCODINGS,
    MESSAGE_OVERHEAD,
    NAME_OVERHEAD,
    REPLY_OVERHEAD,
    ROLE_TOKENS,
    STRETCH_LIMIT,
    UNBROKEN_LIMIT,
    Count,
    Encoding,
    FunctionCounter,
    TokenCounter,
    encoding,
    slices,
    tool_schema_tokens,
)
from processes import at_once

ORIGINALS = {
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
}


def vocabulary(name: str) -> list[bytes]:
    """Return the tokens of a packed vocabulary in rank order, read here independently of the library."""
    packed = zlib.decompress(pkgutil.get_data("palimpsest.tokens", f"data/{name}.bin") or b"")
    tokens, place = [], 0
    while place < len(packed):
        length = packed[place]
        tokens.append(packed[place + 1 : place + 1 + length])
        place += 1 + length
    return tokens


@pytest.fixture(scope="module")
def references() -> dict[str, tiktoken.Encoding]:
    """Return tiktoken's own encodings over the same vocabularies."""
    return {
        name: tiktoken.Encoding(
            f"reference-{name}",
            pat_str=ENCODINGS[name],
            mergeable_ranks={token: rank for rank, token in enumerate(vocabulary(name))},
            special_tokens={},
        )
        for name in ORIGINALS
    }


class PanicException(BaseException):
    """Stands for the exception of the same name that tiktoken's native code raises."""


class FakeTokenizer:
    """A fake tokenizer with one token for each character.

    It panics over texts longer than `most`, and remembers what it was given.
    """

    def __init__(self, most: int = 10**9) -> None:
        self.most = most
        self.seen: list[str] = []

    def encode_ordinary(self, text: str, /) -> list[int]:
        if len(text) > self.most:
            raise PanicException("backtrack limit")
        self.seen.append(text)
        return [ord(character) for character in text]


def words(count: int) -> FunctionCounter:
    """Return a counter that counts the same number for any text."""
    return FunctionCounter(lambda text: count, name="fixed")


@pytest.mark.parametrize("name", ORIGINALS)
def test_vocabulary_is_the_original(name: str) -> None:
    """The packed vocabulary rebuilds the original file byte for byte."""
    lines = (base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(vocabulary(name)))

    assert hashlib.sha256(b"".join(lines)).hexdigest() == ORIGINALS[name]


def test_split_patterns_equal_tiktokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The patterns that split text into pieces are those of tiktoken's own definitions."""
    definitions = importlib.import_module("tiktoken_ext.openai_public")

    monkeypatch.setattr(definitions, "load_tiktoken_bpe", lambda *_, **__: {})

    for name, pattern in ENCODINGS.items():
        assert pattern == getattr(definitions, name)()["pat_str"]


def test_documented_texts_have_the_documented_tokens() -> None:
    """Examples of OpenAI's cookbook have the documented ids and counts."""
    assert encoding("cl100k_base").encode("tiktoken is great!") == [83, 1609, 5963, 374, 2294, 0]
    assert encoding("cl100k_base").count("antidisestablishmentarianism") == 6
    assert encoding("cl100k_base").count("お誕生日おめでとう") == 9


@pytest.mark.parametrize("name", ORIGINALS)
def test_special_tokens_are_counted_as_text(name: str) -> None:
    """The name of a special token in a text is counted as the text that it is."""
    assert encoding(name).count("<|endoftext|>") > 1


def test_empty_text_needs_no_vocabulary() -> None:
    """An empty text has no tokens, and counting it reads no vocabulary."""
    fresh = Encoding("o200k_base")

    assert fresh.measure("") == Count(0, True)
    assert not fresh.loaded


PIECES = st.one_of(
    st.text(max_size=40),
    st.text(alphabet=" \t\n\r\u00a0\u3000\x85\x1c", max_size=30),
    st.text(alphabet=string.ascii_letters + string.digits + "'.,/-_", max_size=60),
    st.text(alphabet="дщЖπאبกक्षम漢字かな한글ǅ\u0301", max_size=40),
    st.text(alphabet="😀👩\u200d🚀🇩🇪\ufe0f", max_size=12),
    st.text(alphabet=st.characters(max_codepoint=0x1F), max_size=12),
    st.sampled_from(["don't", "'LL", "12345678", "\r\n\r\n", "https://a.b/c?d=e", '{"a": [1, null]}', "<|endoftext|>"]),
)


@settings(max_examples=examples(200), deadline=None)
@given(pieces=st.lists(PIECES, max_size=60), name=st.sampled_from(sorted(ORIGINALS)))
def test_encoding_equals_tiktoken(pieces: list[str], name: str, references: dict[str, tiktoken.Encoding]) -> None:
    """Ids and counts equal those of tiktoken over the same vocabulary, and are said to be exact."""
    text = "".join(pieces)
    expected = references[name].encode_ordinary(text)

    assert encoding(name).encode(text) == expected
    assert encoding(name).measure(text) == Count(len(expected), True)
    assert len(expected) <= encoding(name).upper_bound(text)


SPACES = "\t\n\v\f\r \x1c\x1f\x85\u00a0\u1680\u2000\u2028\u2029\u202f\u205f\u3000"
HOSTILE = (
    *("'s", "'LL", "'\u017f", "'\u212a", "don't", "\u2019s", "I'VE", "'d'D", "''", "s'"),  # a long s, and a kelvin
    *(
        "A",
        "aB",
        "ABc",
        "\u01c5",
        "\u02b0",
        "\u5b57",
        "\u0928\u093f",
        "e\u0301",
        "\u0301",
        "\u0645",
        "\ufb01",
        "\u1e9e",
    ),
    *("1", "12", "123", "1234567", "\u0661\u0662", "\u00b2", "\u216b", "1a", "a1"),
    *(
        ".",
        "/",
        "//",
        "./\n",
        "!\r\n",
        "-\n/",
        '{"a": [',
        "}\n",
        "\u20ac",
        "\u200d",
        "\ufe0f",
        "\U0001f600",
        "\ud800",
        "\0",
        "\x7f",
    ),
)


@pytest.mark.parametrize("name", ORIGINALS)
def test_encoding_of_hostile_texts_equals_tiktoken(name: str, references: dict[str, tiktoken.Encoding]) -> None:
    """Texts of hostile pieces in any order, with any spaces between, have the ids of tiktoken."""
    for seed in range(20 * examples(100)):
        chance = random.Random(seed)
        some = [*chance.choices(HOSTILE, k=4), *chance.choices(SPACES, k=3), " " * chance.randrange(4)]
        text = "".join(chance.choices(some, k=chance.randrange(60)))

        assert encoding(name).encode(text) == references[name].encode_ordinary(text), (seed, text)


@pytest.mark.parametrize("name", ORIGINALS)
def test_long_ordinary_text_is_exact(name: str, references: dict[str, tiktoken.Encoding]) -> None:
    """A long text of ordinary words, lines and numbers is counted exactly."""
    text = "The 7 quick foxes\n\n    jump over 1,234 lazy dogs; привет, 世界!\n" * 4000

    assert encoding(name).measure(text) == Count(len(references[name].encode_ordinary(text)), True)


def test_upper_bound_is_bytes() -> None:
    """The upper bound of a count is the text's length in UTF-8, also with a lone surrogate."""
    assert encoding("o200k_base").upper_bound("abc") == 3
    assert encoding("o200k_base").upper_bound("ä€😀") == 9
    assert encoding("o200k_base").upper_bound("\ud800") == 3


def test_many_threads_load_one_vocabulary() -> None:
    """Threads that count at the same time load one vocabulary."""
    loads: list[FakeTokenizer] = []

    def load() -> FakeTokenizer:
        loads.append(FakeTokenizer())
        return loads[-1]

    counter = Encoding("shared", load=load)

    at_once(lambda _: counter.count("text"), 8)

    assert len(loads) == 1
    assert counter.loaded


def test_encoding_is_shared() -> None:
    """A name stands for one encoding in the whole process."""
    assert encoding("o200k_base") is encoding("o200k_base")


@pytest.mark.parametrize("make", [encoding, Encoding])
def test_an_unknown_encoding_is_refused(make: Callable[[str], Encoding]) -> None:
    """An unknown name raises ConfigError with the nearest known name."""
    with pytest.raises(ConfigError, match=r"did you mean 'o200k_base'"):
        make("o200k-base")


def test_importing_the_module_is_light() -> None:
    """Importing the module loads neither tiktoken nor what reads vocabularies."""
    script = (
        "import sys, msgspec; before = set(sys.modules); import palimpsest.tokens.counter; "
        "print(*sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()

    assert {name.partition(".")[0] for name in loaded} <= {"palimpsest", "contextvars", "_contextvars"}


def adversarial() -> dict[str, Callable[[int], str]]:
    """Return makers of adversarial texts of a given length."""
    chance = random.Random(7)

    def mixture(alphabet: str) -> Callable[[int], str]:
        return lambda length: "".join(chance.choices(alphabet, k=length))

    return {
        "one letter": lambda length: "a" * length,
        "letters": mixture(string.ascii_lowercase),
        "pairs": lambda length: "ab" * (length // 2),
        "spaces": lambda length: " " * length,
        "spaces and tabs": mixture(" \t"),
        "wide spaces": mixture("\u00a0\u3000\u2028"),
        "newlines": lambda length: "\n" * length,
        "control characters": mixture("".join(map(chr, range(1, 9)))),
        "digits": mixture(string.digits),
        "base64": mixture(string.ascii_letters + string.digits + "+/"),
        "punctuation": mixture("()[]{}=-+*/<>"),
        "accents": mixture("\u0301\u0302"),
        "surrogates": lambda length: "\ud800" * length,
        "surrogates apart": lambda length: "\udfff " * (length // 2),
        "spaces then a word": lambda length: " " * (length - 5) + "word.",
    }


def longest(text: str, belongs: Callable[[str, str], bool]) -> int:
    """Return the length of the longest run in which each character belongs with the one before it."""
    best = run = 0
    before = ""
    for character in text:
        run = run + 1 if before and belongs(before, character) else 1
        best, before = max(best, run), character
    return best


@pytest.mark.sampled
@pytest.mark.parametrize("kind", adversarial())
def test_no_stretch_exceeds_its_limit(kind: str) -> None:
    """No slice given to the tokenizer has a longer run of one character or of spaces than the limit; none is lost."""
    fake = FakeTokenizer()
    text = adversarial()[kind](130_000)

    Encoding("fake", load=lambda: fake).count(text)

    assert "".join(fake.seen) == text
    for piece in fake.seen:
        assert longest(piece, lambda a, b: a == b) <= STRETCH_LIMIT
        assert longest(piece, lambda a, b: a.isspace() and b.isspace()) <= STRETCH_LIMIT
        unbroken = longest(piece, lambda a, b: not any(c.isspace() or c.isdecimal() for c in (a, b)))
        assert unbroken <= UNBROKEN_LIMIT


@pytest.mark.sampled
@pytest.mark.parametrize("name", ORIGINALS)
@pytest.mark.parametrize("kind", adversarial())
def test_a_million_characters_are_counted(kind: str, name: str) -> None:
    """A million characters of any kind are counted, within the bound of their bytes."""
    text = adversarial()[kind](1_000_000)
    counter = encoding(name)

    assert 0 < counter.count(text) <= counter.upper_bound(text)


def test_a_long_stretch_is_inexact() -> None:
    """A stretch at the limit is counted exactly; a longer one is counted inexactly, but closely."""
    counter = encoding("o200k_base")

    assert counter.measure("x" + " " * STRETCH_LIMIT + "y").exact
    cut = counter.measure("x" + " " * 3 * STRETCH_LIMIT + "y")
    whole = counter.count("x" + " " * STRETCH_LIMIT)
    assert not cut.exact
    assert abs(cut.tokens - 3 * whole) <= 5


@settings(max_examples=examples(100), deadline=None)
@given(runs=st.lists(st.tuples(st.sampled_from([" ", "\t", "a", "bc", "1", "é"]), st.integers(1, 25_000)), max_size=6))
def test_slices_join_to_the_text(runs: list[tuple[str, int]]) -> None:
    """Joined slices are the text, and there are no more of them than its stretches need."""
    text = "".join(part * length for part, length in runs)
    pieces = list(slices(text))

    assert "".join(pieces) == text
    assert len(pieces) <= 1 + len(text) // STRETCH_LIMIT


def test_a_panic_of_the_tokenizer_is_survived() -> None:
    """If the tokenizer panics, the text is counted in halves, and the count is marked inexact."""
    counter = Encoding("fake", load=lambda: FakeTokenizer(most=100))

    assert counter.measure("a b c " * 150) == Count(900, False)
    assert counter.measure("a b c") == Count(5, True)


def test_interrupts_are_not_caught() -> None:
    """Only the tokenizer's panic is caught: KeyboardInterrupt is raised on."""

    class Interrupted:
        def encode_ordinary(self, text: str, /) -> list[int]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Encoding("fake", load=Interrupted).count("text")


def test_a_function_is_a_counter() -> None:
    """A function is a counter under its own name or a given one, without a provider's overhead."""

    def by_words(text: str) -> int:
        return len(text.split())

    counter: TokenCounter = FunctionCounter(by_words)

    assert counter.count("one two") == 2
    assert counter.name.startswith("custom:")
    assert counter.name.endswith("by_words")
    assert FunctionCounter(by_words, name="words").name == "words"
    assert not counter.overhead


def test_an_object_that_counts_is_a_counter() -> None:
    """An object with `count` and `name` is a counter, without a provider's overhead.

    Its answers are checked like a function's, and one without a method that counts is refused at once.
    """

    class Words:
        name = "words"

        def count(self, text: str) -> Any:
            return "many" if "!" in text else len(text.split())

    with Memory.open("memory://") as memory:
        chat = memory.session("s", counter=Words(), max_tokens=50)
        chat.add_user_message("one two three")
        assert chat.context(system="Be brief.").tokens == 5
        assert chat.options.counter.name == "words"

        chat.add_user_message("Oh!")
        with pytest.raises(ConfigError, match="token counter 'words'"):
            chat.context()

        Words.count = 3  # type: ignore[method-assign, assignment]
        with pytest.raises(ConfigError, match="counter"):
            memory.session("s", counter=Words())


@pytest.mark.parametrize("answer", [-1, 1.5, True, None, "3"])
def test_answers_of_a_function_are_checked(answer: Any) -> None:
    """An answer that is no number of tokens raises ConfigError with the counter's name."""
    with pytest.raises(ConfigError, match="token counter 'mine'"):
        FunctionCounter(lambda text: answer, name="mine").count("text")


def message_tokens(messages: list[dict[str, str]], counter: TokenCounter) -> int:
    """Return the tokens of these messages by the cookbook's formula."""
    tokens = REPLY_OVERHEAD
    for message in messages:
        tokens += MESSAGE_OVERHEAD + sum(map(counter.count, message.values())) + NAME_OVERHEAD * ("name" in message)
    return tokens


@pytest.mark.parametrize(("name", "total"), [("cl100k_base", 129), ("o200k_base", 124)])
def test_documented_messages_have_the_documented_tokens(name: str, total: int) -> None:
    """The cookbook's six messages have its documented tokens for gpt-4 and for gpt-4o."""
    assert message_tokens(JARGON, encoding(name)) == total


@pytest.mark.parametrize(("name", "gpt4o_family", "total"), [("cl100k_base", False, 105), ("o200k_base", True, 101)])
def test_documented_tools_have_the_documented_tokens(name: str, gpt4o_family: bool, total: int) -> None:
    """The cookbook's request with a tool has its documented tokens for gpt-4 and for gpt-4o."""
    tools = tool_schema_tokens([weather()], encoding(name), gpt4o_family=gpt4o_family)

    assert message_tokens(WEATHER_MESSAGES, encoding(name)) + tools == total


@pytest.mark.parametrize("name", ORIGINALS)
@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool", "function"])
def test_a_role_costs_the_same_whatever_it_is(role: str, name: str) -> None:
    """Every role costs the same few tokens."""
    assert encoding(name).count(role) == ROLE_TOKENS


def test_tools_of_the_responses_api_cost_the_same() -> None:
    """A tool in the form of the responses API costs the same as in that of chat completions."""
    counter = encoding("o200k_base")
    flat = {"type": "function", **weather()["function"]}

    assert tool_schema_tokens([flat], counter, gpt4o_family=True) == tool_schema_tokens(
        [weather()], counter, gpt4o_family=True
    )


@pytest.mark.parametrize(
    ("place", "extra"),
    [
        ((), {"strict": True}),
        (("parameters",), {"additionalProperties": False}),
        (("parameters",), {"$defs": {"Place": {"type": "object", "properties": {"name": {"type": "string"}}}}}),
        (("parameters", "properties", "location"), {"pattern": "^[A-Z].*", "maxLength": 80}),
        (("parameters", "properties"), {"days": {"type": "array", "items": {"type": "integer"}}}),
        (("parameters", "properties"), {"at": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Place"}]}}),
    ],
)
def test_no_part_of_a_schema_goes_uncounted(place: tuple[str, ...], extra: dict[str, Any]) -> None:
    """What the published formula does not cover costs at least a token for each of its words."""
    counter = encoding("o200k_base")
    tool = weather()
    target = tool["function"]
    for key in place:
        target = target[key]

    before = tool_schema_tokens([tool], counter, gpt4o_family=True)
    target.update(extra)

    assert tool_schema_tokens([tool], counter, gpt4o_family=True) >= before + len(str(extra).split())


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(["type", "name", "description", "parameters", "properties", "required", "enum", "strict"])


@settings(max_examples=examples(200), deadline=None)
@given(
    tool=ODD | st.dictionaries(KEYS, ODD),
    function=ODD | st.dictionaries(KEYS, ODD),
    parameters=ODD | st.dictionaries(KEYS, ODD | st.dictionaries(KEYS, st.dictionaries(KEYS, ODD) | ODD)),
)
def test_odd_schemas_are_counted(tool: Any, function: Any, parameters: Any) -> None:
    """Any value in the place of a schema is counted."""
    named = {"name": "f", "parameters": parameters}
    tools = [tool, {"type": "function", "function": function}, {"type": "function", "function": named}]

    assert tool_schema_tokens(tools, encoding("o200k_base"), gpt4o_family=True) > 0


def test_values_without_a_json_form_are_counted() -> None:
    """A schema with values that JSON cannot express is counted."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"default": {1, 2}}}}}}

    assert tool_schema_tokens([tool, {"name": "\ud800"}], words(1), gpt4o_family=False) > 0
