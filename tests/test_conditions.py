"""Conditions: their language, what is refused when they are loaded, and what each expression means."""

from __future__ import annotations

import contextlib
import copy
import pickle
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laws import examples
from palimpsest.context.conditions import FIELDS, parse
from palimpsest.errors import ConditionFailed, ConfigError, PalimpsestError
from processes import at_once

MESSAGE: dict[str, object] = {
    "role": "user",
    "name": None,
    "content": "Buy milk, todo: call Ann",
    "tokens": 7,
    "index": 3,
    "age": 1,
    "tool_name": None,
    "tags": ("red", "Blue"),
    "metadata": {"lang": "de", "_id": 9, "deep": {"er": 1, "list": [1, 2]}, "items": "key"},
    "pinned": False,
}
INTERACTION: dict[str, object] = {"age": 2, "tool_names": ["web_search", "calc"], "tool_errors": 0, "has_tools": True}
VALUES: dict[str, Mapping[str, object]] = {"message": MESSAGE, "interaction": INTERACTION, "session": {"id": "s1"}}


def holds(text: str, **message: object) -> bool:
    return parse(text).holds({**VALUES, "message": {**MESSAGE, **message}})


# The attacks of the hardening study. Stock simpleeval 1.0.8 runs, accepts or lets escape most of them.
ATTACKS = {
    "method call": [
        *("message.secret()", "message.content.center(999999999)", "message.content.replace('a', 'aaaa')"),
        *("message.content.ljust(999999999)", "message.content.encode()", "message.metadata.get('lang')"),
        *("message.metadata['lang'].upper()", "interaction.tool_names.sort()"),
    ],
    "mutation": ["message.pop('role')", "message.clear()", "message.update(role='x')", "message.metadata.clear()"],
    "shadowed key": ["message.items", "message.keys", "message['items']", "session.values"],
    "power": ["9**9**9", "3999999**3999999 > 0", "2**9 > 1"],
    "modulo": ["'%99999999d' % 5", "'%9d' % 1", "5 % 2"],
    "repetition and shift": ["'a'*10**9", "[0]*10**9", "'a' * 9", "1 << 10**9", "1 << 9999", "1 << 9", "8 >> 1"],
    "other arithmetic": ["4 / 2", "4 // 2", "1 | 2", "1 & 2", "1 ^ 2", "~1", "a @ b", "'a' + 'b'", "[1] + [2]", "-'a'"],
    "deep nesting": [
        "-" * 5_000 + "1",
        "not " * 5_000 + "1",
        "[" * 400,
        "[" * 400 + "]" * 400,
        "a" + ".b" * 400,
        "message.metadata" + ".b" * 400,
        "a" + "<a" * 450,
        "-" * 900 + "1",
        "not " * 240 + "1",
        "(" * 450 + "1" + ")" * 450,
        "{" * 199,
        "f(" * 199,
        "lambda:" * 140,
        "(a for a in " * 80,
    ],
    "dunder and frames": [
        "message.__class__",
        "message['__class__']",
        "message.metadata.__class__",
        "''.__class__.__mro__",
        "().__class__",
        "'{0.__class__}'.format(1)",
        "__import__('os')",
        "__builtins__",
        "len.__globals__",
        "(message.role).gi_frame",
    ],
    "statement and binding": [
        *("a = 5", "a += 5", "1; 2", "a; 1", "(a := 5)", "lambda: 1", "(lambda: 1)()", "yield", "(yield)", "await a"),
        *("(await a)", "import os", "del message", "1\n2"),
    ],
    "comprehension and f-string": [
        "[[x for x in c] for y in c]",
        "[x for x in (1,)]",
        "any_of(x for x in (1,))",
        "{x: 1 for x in (1,)}",
        "{x for x in (1,)}",
        "f'{9:>99999999}'",
        "f'{message.role}' == 'user'",
        '"a".join(c)',
    ],
    "other literals": ["{'a': 1}", "{1, 2}", "b'a' == 'a'", "1j", "...", "[*message.tags]", "message.tags[0:1]"],
    "calls": [
        *("len", "len == 1", "len()", "len(message.content, 1)", "len(x=message.content)", "len(*message.tags)"),
        *("len(**message.metadata)", "contains(message.content, part='x')", "startswith(str, message.content, 'x')"),
        *("any_of(message.role)", "eval('1')", "open('f')", "rand()", "int('1')", "len(len)(1)", "(len)(len)"),
    ],
    "odd text": [
        "\0",
        "1 == \0",
        "9" * 5_000,
        "9" * 5_000 + " > 1",
        "",
        "   ",
        "a if",
        "'",
        "\ud800",
        "# x",
        "1 +",
        "é(",
        "\\",
    ],
    "names": [
        "message",
        "message == 1",
        "mesage.role == 'x'",
        "_message.role",
        "message.metadata._id",
        "role == 'x'",
        "x",
    ],
    "fields": ["message.rolle == 'x'", "message.content.lower", "message.role['a']", "interaction.role", "session[0]"],
    "keys": [
        "message[message.role]",
        "message.metadata[message.role]",
        "message.metadata[None]",
        "message.metadata[1.5]",
    ],
    "identity": ["message.role is 'user'", "1 is message.tokens", "message.pinned is not False"],
}


@pytest.mark.parametrize("text", [text for texts in ATTACKS.values() for text in texts])
def test_an_attack_is_refused_at_load(text: str) -> None:
    """Whatever the language does not have is a ConfigError at load."""
    with pytest.raises(ConfigError) as caught:
        parse(text)

    assert caught.value.found == text.strip() or len(text) > 1_000


@pytest.mark.parametrize(
    "text",
    [
        "message.role in ['user', 'ai']",
        "len(message.content) < 200 and interaction.age <= 3",
        "contains(message.content, 'todo')",
        "message.metadata['lang'] == 'de'",
        "message.tokens > 3 and message.role in ['user', 'tool']",
        "message.name is None",
        "not (message.name is not None) or message.pinned",
        "(message.tokens if message.pinned else 5) + 1 - 2 == 4",
        "0 < interaction.age <= 2 != message.age",
        "-1 < +1 and True",
        "  message['role'] == 'user'\n",
        "(message.role == 'user'\n and message.age == 1)",
    ],
)
def test_every_part_of_the_language_is_accepted(text: str) -> None:
    """Comparison, `in`, `is None`, and/or/not, the conditional, + and -, constants, lists and paths are accepted."""
    assert parse(text).holds(VALUES) is True


def test_every_documented_field_is_known() -> None:
    """Each documented field may be named, and is None if a value lacks it."""
    for root, fields in FIELDS.items():
        for name in fields:
            assert parse(f"{root}.{name} is None").holds({root: {}})


def test_an_error_quotes_the_expression_the_column_and_the_nearest_name() -> None:
    """A config error says where the fault is and what may stand there."""
    with pytest.raises(ConfigError) as caught:
        parse("'ä' == 'b' or message.rolle == 'x'", where="memory.yaml:3, conditions[0]")

    assert caught.value.nearest == "role"
    text = str(caught.value)
    assert text.startswith("memory.yaml:3, conditions[0], column 15, at 'message.rolle'")
    assert "'ä' == 'b' or message.rolle == 'x'" in text
    assert "tool_status" in text


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("mesage.role", "message"),
        ("startwith(message.role, 'a')", "startswith"),
        ("message.content.lower()", "lower"),
        ("interaction.tokns", "tokens"),
        ("qqq.role", None),
    ],
)
def test_a_near_name_is_suggested(text: str, near: str | None) -> None:
    """An unknown name, function or field is refused with the closest existing one."""
    with pytest.raises(ConfigError) as caught:
        parse(text)

    assert caught.value.nearest == near


def test_an_error_in_a_later_line_names_the_line() -> None:
    """An error in an expression of several lines gives line and column."""
    with pytest.raises(ConfigError, match=r"line 2, column 6, at 'message\.x'"):
        parse("(True\n and message.x)")


def test_a_condition_that_is_no_text_is_refused() -> None:
    """A configuration that gives something else than text is refused like any other bad condition."""
    values: list[Any] = [True, 5, None, ["message.role"]]

    for value in values:
        with pytest.raises(ConfigError, match="as text"):
            parse(value)


def test_a_condition_has_at_most_1000_characters() -> None:
    """1,000 characters are accepted, 1,001 are not."""
    parse("message.name == '" + "x" * 982 + "'")

    with pytest.raises(ConfigError, match="1,000 characters"):
        parse("message.name == '" + "x" * 983 + "'")


def test_a_condition_has_at_most_100_nodes() -> None:
    """100 nodes are accepted, 101 are not: a list is one, and so is each thing in it."""
    parse("message.tokens in [" + "1," * 96 + "]")

    with pytest.raises(ConfigError, match="100 nodes"):
        parse("message.tokens in [" + "1," * 97 + "]")


def test_a_condition_nests_at_most_20_deep() -> None:
    """Expressions nest 20 deep and not 21."""
    parse("not " * 19 + "True")

    with pytest.raises(ConfigError, match="20 deep"):
        parse("not " * 20 + "True")


@pytest.mark.parametrize(
    ("text", "names", "per_message", "dynamic"),
    [
        ("message.role == 'user'", {"message"}, True, False),
        ("message['age'] < 3", {"message"}, True, True),
        ("message.index > 3", {"message"}, True, True),
        ("message.metadata.age == 3", {"message"}, True, False),
        ("interaction.has_tools", {"interaction"}, False, True),
        ("session.tokens > 9 or interaction.age > 1", {"session", "interaction"}, False, True),
        ("message.pinned or session.id == 'a'", {"message", "session"}, True, True),
        ("True", set(), False, False),
    ],
)
def test_a_condition_knows_which_names_it_uses(text: str, names: set[str], per_message: bool, dynamic: bool) -> None:
    """A condition knows which names it uses, whether it judges messages, and whether its answer can change."""
    condition = parse(text)

    assert (set(condition.names), condition.per_message, condition.dynamic) == (names, per_message, dynamic)


@pytest.mark.parametrize(
    ("alias", "role"), [("human", "user"), ("ai", "assistant"), ("function", "tool"), ("developer", "system")]
)
def test_a_role_alias_is_read_as_the_canonical_role(alias: str, role: str) -> None:
    """A role alias compared with `message.role` means the canonical role."""
    for text in (
        f"message.role == '{alias}'",
        f"'{alias}' == message['role']",
        f"not message.role != '{alias}'",
        f"message.role in ['x', '{alias}']",
        f"message.role in ('{alias}',)",
        f"not (message.role not in ['{alias}'])",
        f"any_of(message.role, 'x', '{alias}')",
        f"any_of(message.role, ['{alias}'])",
        f"contains(['{alias}'], message.role)",
    ):
        assert holds(text, role=role), text
        assert not holds(text, role="other"), text


def test_an_alias_beside_another_field_is_only_text() -> None:
    """A role alias compared with anything else is plain text."""
    assert holds("message.name == 'ai' and message.metadata.role == 'human'", name="ai", metadata={"role": "human"})


@pytest.mark.parametrize(
    "text",
    [
        "message.metadata.nothing is None",
        "message.metadata['nothing'] is None",
        "message.metadata.deep.nothing.more is None",
        "message.timestamp is None",
        "interaction.metadata.lang is None",
        "message.metadata.items == 'key'",
        "message.metadata['_id'] == 9",
        "message.metadata.deep['list'][-1] == 2",
        "message.metadata['deep'].er == 1",
        "message.tags[0] == 'red' and message.tags == ['red', 'Blue'] and message.tags == ('red', 'Blue')",
    ],
)
def test_keys_are_looked_up_in_mappings(text: str) -> None:
    """A path reads keys of metadata at any depth; a missing key is None."""
    assert holds(text)


@pytest.mark.parametrize(
    "text",
    [
        "len(message.content) == 24 and len(message.tags) == 2 and len(message.name) == 0",
        "len(message.metadata) == 4",
        "contains(lower(message.content), 'buy milk')",
        "contains(lower(message.tags), 'blue') and lower(message.name) is None",
        "contains(message.tags, 'red') and not contains(message.tags, 're')",
        "contains(message.metadata, 'lang') and not contains(message.name, 'x')",
        "not contains(message.content, message.name)",
        "startswith(message.content, 'Buy') and not startswith(message.content, 'buy')",
        "startswith(message.content, ['x', 'Buy']) and endswith(message.content, ('x', 'Ann'))",
        "startswith(interaction.tool_names, 'web_') and endswith(interaction.tool_names, 'lc')",
        "not startswith(message.name, 'x') and not endswith(message.content, message.name)",
        "any_of(message.content, 'fixme', 'todo') and not any_of(message.content, 'fixme', 5)",
        "any_of(message.tags, ['blue', 'red']) and not any_of(message.tags, 're')",
        "any_of(message.tokens, 5, 7) and not any_of(message.tokens, 5)",
        "not any_of(message.name, 'x', None) and not any_of(message.tags, [])",
        "any_of(message.metadata, 'x', 'lang')",
    ],
)
def test_the_six_functions_accept_every_documented_type(text: str) -> None:
    """The six functions take text, lists, mappings and None as the module documents."""
    assert holds(text)


@pytest.mark.parametrize(
    "text",
    [
        "message.name < 3",
        "message.name + 1 > 0",
        "message.content + message.content == 'x'",
        "message.tags + message.tags == []",
        "-message.content == 1",
        "'x' in message.name",
        "len(message.tokens) > 1",
        "lower(message.tokens) == 'a'",
        "contains(message.content, 5)",
        "contains(message.tokens, 5)",
        "startswith(message.content, 5)",
        "message.tags[5] == 'x'",
        "message.metadata.lang.more == 'x'",
        "[1] in message.metadata",
        "message.tokens + 1e308 + 1e308 - 1e308 < 1 or message.tags[9]",
    ],
)
def test_any_evaluation_error_raises_condition_failed(text: str) -> None:
    """Any error while evaluating is a ConditionFailed with the text and the cause."""
    with pytest.raises(ConditionFailed) as caught:
        holds(text)

    assert caught.value.text == text
    assert caught.value.__cause__ is caught.value.cause
    assert set(ConditionFailed.__bases__) == {PalimpsestError, ValueError}


def test_a_missing_mapping_is_a_failure() -> None:
    """A condition about interactions cannot be asked of values that have none."""
    with pytest.raises(ConditionFailed, match="interaction"):
        parse("interaction.age < 3").holds({"message": MESSAGE})


def test_the_parts_looked_for_are_bounded() -> None:
    """A list of parts that comes from the values has at most 100: the work stays bounded."""
    with pytest.raises(ConditionFailed, match="at most 100 parts"):
        holds("any_of(message.content, message.metadata.words)", metadata={"words": ["x"] * 101})


def test_boolean_operators_short_circuit() -> None:
    """`and`, `or` and the conditional compute no more than they need, so a None can be asked about first."""
    assert not holds("message.name is not None and message.name < 3")
    assert holds("message.name is None or message.name < 3")
    assert holds("True if message.name is None else message.name < 3")


def test_values_are_never_changed_nor_called() -> None:
    """Evaluation reads plain data: nothing is called, nothing is changed."""
    called: list[str] = []
    values = copy.deepcopy(VALUES) | {"session": {"id": lambda: called.append("id")}}
    before = copy.deepcopy(values["message"])

    parse("session.id and any_of(lower(message.tags), 'red') and message.metadata.items == 'key'").holds(values)

    assert not called
    assert values["message"] == before


def test_conditions_are_hashable_immutable_values() -> None:
    """Conditions of the same text are equal, can be keys, cannot be changed, and survive copying and pickling."""
    condition = parse(" message.role == 'ai' ")

    assert condition == parse("message.role == 'ai'")
    assert len({condition, parse("message.role == 'ai'")}) == 1
    with pytest.raises(AttributeError):
        condition.text = "True"  # type: ignore[misc]
    for twin in (copy.deepcopy(condition), pickle.loads(pickle.dumps(condition))):  # noqa: S301
        assert twin == condition
        assert twin.holds({"message": {"role": "assistant"}})


def test_threads_evaluate_one_condition_independently() -> None:
    """Threads that evaluate one condition at once get the answers for their own values."""
    condition = parse("message.tokens == interaction.tokens and message.tokens - interaction.tokens == 0")
    wrong: list[int] = []

    def ask(number: int) -> None:
        same = {"message": {"tokens": number}, "interaction": {"tokens": number}}
        other = {"message": {"tokens": number}, "interaction": {"tokens": number + 1}}
        wrong.extend(number for _ in range(500) if not condition.holds(same) or condition.holds(other))

    at_once(ask, 8)

    assert not wrong


def test_a_mapping_may_evaluate_a_condition_while_it_is_read() -> None:
    """A mapping that itself asks a condition while it is read disturbs nothing."""
    inner, outer = parse("message.tokens == 1"), parse("message.tokens == 2 and message.age == 3")

    class Asking(Mapping[str, object]):
        def __getitem__(self, key: str) -> object:
            assert inner.holds({"message": {"tokens": 1}})
            return {"tokens": 2, "age": 3}[key]

        def __iter__(self) -> Any:
            return iter(("tokens", "age"))

        def __len__(self) -> int:
            return 2

    assert outer.holds({"message": Asking()})


def test_simpleeval_is_loaded_by_the_first_condition() -> None:
    """Importing the module loads no third-party package; parsing does, so a missing one shows at load."""
    script = (
        "import sys; from palimpsest.context.conditions import parse; assert 'simpleeval' not in sys.modules;"
        "parse('True'); assert 'simpleeval' in sys.modules"
    )

    subprocess.run([sys.executable, "-c", script], check=True)


WORDS = st.sampled_from(
    [
        *("message", "interaction", "role", "rolle", "metadata", "tags", "content", ".", ".", "[", "]", "(", ")"),
        *(",", "'a'", "1", "-1", "==", "!=", "<", "in", "not", "and", "or", "is", "None", "if", "else", "+", "-"),
        *("*", "**", "len", "contains", "any_of", "lower", "lambda", ":", ":=", "=", ";", "{", "}", "f'{x}'", "for"),
        *("x", "_a", "__class__", "\\", "#", "\n", " "),
    ]
)


@settings(max_examples=examples(300), deadline=None)
@given(st.text(max_size=60) | st.lists(WORDS, max_size=25).map(" ".join) | st.lists(WORDS, max_size=25).map("".join))
@pytest.mark.filterwarnings("ignore")
def test_any_text_gives_a_condition_or_a_config_error(text: str) -> None:
    """`parse` raises nothing but ConfigError for any text, and `holds` nothing but ConditionFailed."""
    try:
        condition = parse(text)
    except ConfigError:
        return

    with contextlib.suppress(ConditionFailed):
        assert condition.holds(VALUES) in (True, False)
