"""Hostile files of declared memories are refused with little time and memory; odd values do no harm."""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.errors import ConfigError, InvalidResource, PalimpsestError
from palimpsest.resources import Resources
from palimpsest.strategies import Triggers
from test_conditions import ATTACKS as CONDITIONS
from test_resources import BARE_NEURALYZER, BARE_SHORT, BARE_SUMMARIZER, MINIMAL, PROFILE, loaded, written
from test_resources_pages import FILES

SHORT, LONG = "short_term_memory_strategy", "long_term_memory_strategy"
SECONDS, MEGABYTES = 60, 400
"""Limits of the process that loads all attacks, of which it needs a tenth."""

BOMB = "a: &a [x, x]\n" + "".join(f"b{n}: &b{n} [{', '.join([f'*b{n - 1}' if n else '*a'] * 9)}]\n" for n in range(12))
MANY = 20_000


def yaml(keys: str) -> str:
    """Return a valid resource in YAML with these lines added."""
    return f"{MINIMAL}{keys}"


def many(key: str, line: str) -> str:
    """Return a resource with as many lines under a key as a file may have."""
    lines, room = f"{key}:\n", 180_000
    pieces = [line.replace("#", str(number)) + "\n" for number in range(MANY)]
    while pieces and room > 0:
        piece = pieces.pop()
        lines, room = lines + piece, room - len(piece)
    return yaml(lines)


STRUCTURES = {
    "aliases": BOMB,
    "an alias of itself": "a: &a [*a]\n",
    "merges": yaml("flushing: &f {type: lru}\nlocking:\n  <<: *f\n"),
    "a merge alone": yaml("<<: {type: buffer}\n"),
    "tags": yaml("description: !!python/object/apply:os.system ['true']\n"),
    "a tag of a key": yaml("!!str description: x\n"),
    "binary": yaml("description: !!binary aGVsbG8=\n"),
    "a date": yaml("description: !!timestamp 2026-01-01\n"),
    "an own tag": "%TAG ! tag:x,2026:\n---\n" + MINIMAL,
    "documents": MINIMAL + "---\n" + MINIMAL,
    "brackets": "a: " + "[" * 100_000,
    "braces": "a: " + "{a: " * 40_000,
    "dashes": "- " * 90_000 + "x",
    "questions": "? " * 90_000 + "x",
    "quotes": 'a: "' + '\\"' * 90_000,
    "spaces": "a:" + " " * 190_000 + "- b\n c",
    "lines": "\n" * 190_000 + "a",
    "folded": "a: >\n" + " x\n" * 60_000,
    "too long": "# " + "x" * 300_000,
    "keys": "".join(f"k{number}: 1\n" for number in range(18_000)),
    "unknown flushing": many("flushing", "  k#: 1"),
    "unknown locking": many("locking", "  k#: 1s"),
    "conditions": many(SHORT, "  - {memory_strategy_id: max_tokens, conditions: [message.x#]}"),
    "strategies": many(LONG, "  - {long_term_memory_id: neuralyzer, interaction_threshold_qty: #}"),
    "bad patterns": many("privacy_policy:\n  redact_patterns", "  - '(a+)+#'"),
    "types": many("flushing", "  type: [#]"),
    "a number": yaml("description: x\nlow_water: " + "9" * 100_000 + "\n"),
    "an exponent": yaml("low_water: 1e999999999\n"),
}
JSON = {
    "brackets": "[" * 190_000,
    "objects": '{"a":' * 30_000,
    "keys twice": "{" + ",".join(f'"k{number}":1' for number in range(15_000)) + ',"k1":1}',
    "a number": '{"a": ' + "9" * 100_000 + "}",
    "escapes": '{"a": "' + "\\u0000" * 30_000 + '"}',
    "quotes": '"' + '\\"' * 90_000,
    "quotes and half a sign": '"' + '\\"' * 90_000 + "\\",
}
TEMPLATES = [
    *("{{.a.__class__.__init__}}x{{end}}", "{{range .a}}x{{end}}", "{{call .a}}", "{{.a | printf}}", "{a!r}", "{a[0]}"),
    *("{0.__class__}", "{a.__class__.__mro__[1]}", "{a:>99999999}", "{{" * 499, "{" * 999, "{{.a" + ".b" * 400 + "}}"),
    *("{{.a | default " + '"x" ' * 200 + "}}", "${HOME}{", "%(a)s{a", "{{.a}}}}", "x" * 1_001),
]
PATTERNS = [
    *("(a+)+", "(a*)*", "(a|a)*", "(.+)+", "(x+x+)+y", "(.*a){10,}", "[invalid(", "((a+)+)+b"),
    *("(?:a+)+$", "(a{1,99}){1,99}{1,99}", "(" * 2_000, "a{99999999}", "(?P<n>a)(?P=n)+" * 50 + "("),
]
PLACES: list[dict[str, Any]] = [
    {"id": "../memory"},
    {"id": "a/b"},
    {"project": "../other"},
    {"project": {"id": "a\x00b"}},
    {"persistence": {"type": "sqlite", "path": "a\x00b"}},
    {"persistence": {"type": "file", "path": "x" * 5_000}},
    {"persistence": {"type": "sqlite", "path": "a.db?mode=memory"}},
    {"persistence": {"type": "sqlite", "path": "https://example.com/a.db"}},
    {"persistence": {"type": "sqlite", "url": "sqlite:///${HOME}/a.db"}},
    {"persistence": {"type": "sqlite", "url": "file:///etc"}},
    {"persistence": {"type": "redis", "url": "http://127.0.0.1", "ttl": "1h"}},
    {"persistence": {"type": "postgres", "url": "${A B}"}},
    {"persistence": {"type": "sqlite", "path": "${HOME}"}},
    {"persistence": None, "store": "${DATABASE_URL}"},
    {"encryption": {"keys_env": "A;B"}},
    {LONG: [{"long_term_memory_id": "summarizer", "knowledge_base": {"collection_id": "{session_id.__class__}"}}]},
    {LONG: [{"long_term_memory_id": "summarizer", "prompt_template": "{content.__class__}"}]},
]


def attacks() -> Iterator[tuple[str, str, str]]:
    """Yield each attack: its name, the text of a file, and the file's suffix."""
    for name, text in STRUCTURES.items():
        yield name, text, ".yaml"
    for name, text in JSON.items():
        yield f"JSON, {name}", text, ".json"
    base = loaded(MINIMAL)
    conditions = [text for texts in CONDITIONS.values() for text in texts]
    values = [
        *({SHORT: [{"memory_strategy_id": "max_tokens", "conditions": [text]}]} for text in conditions),
        *({LONG: [{"long_term_memory_id": "summarizer", "interaction_conditions": [text]}]} for text in conditions),
        *({"conditions": [text]} for text in conditions),
        *({"default_key_template": text} for text in TEMPLATES),
        *({"privacy_policy": {"redact_patterns": [text]}} for text in PATTERNS),
        *PLACES,
    ]
    for number, keys in enumerate(values):
        yield f"{number}: {str(keys)[:80]}", json.dumps({**base, **keys}), ".json"


@pytest.mark.wide
def test_every_attack_is_refused_in_bounded_time_and_memory(tmp_path: Path) -> None:
    """All attacks are refused in one process with limited processor time and memory."""
    names = {}
    for number, (name, text, suffix) in enumerate(attacks()):
        path = tmp_path / f"{number:04d}{suffix}"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        names[path.name] = name
    script = Path(__file__).with_name("declared_files_process.py")

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (MEGABYTES << 20, MEGABYTES << 20))

    ran = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, preexec_fn=bound, check=False
    )

    assert ran.returncode == 0, ran.stderr[-2_000:]
    outcomes = json.loads(ran.stdout)
    assert {names[name]: said for name, said in outcomes.items() if said != "refused"} == {}
    assert len(outcomes) == len(names) > 300


def test_a_folder_with_large_files_is_searched_quickly(tmp_path: Path) -> None:
    """Searching a folder reads no more of a file than a declaration may have.

    A declaration that is too long is reported.
    """
    written(tmp_path, MINIMAL)
    written(tmp_path, "\n" * 5_000_000, "lines.yaml")
    written(tmp_path, "[" + '"resource" ' * 400_000, "words.json")
    with (tmp_path / "sparse.json").open("wb") as file:
        file.truncate(10 << 30)
    assert list(Resources.load(tmp_path)) == ["user_conversation"]
    written(tmp_path, MINIMAL + "#" * 5_000_000, "long.yaml")
    with pytest.raises(InvalidResource, match=r"long\.yaml.*at most 200,000 characters"):
        Resources.load(tmp_path)


def test_other_files_may_contain_the_same_words(tmp_path: Path) -> None:
    """A file that says `resource: memory` anywhere but at its top declares nothing.

    A file that says it at its top and cannot be read is reported.
    """
    written(tmp_path, MINIMAL)
    written(tmp_path, "metrics:\n  - resource: memory\n    limit: 5\n", "metrics.yaml")
    written(tmp_path, '[{"resource": "memory"}]', "list.json")
    written(tmp_path, 'a: "{resource: memory}"\n', "text.yaml")
    assert list(Resources.load(tmp_path)) == ["user_conversation"]
    written(tmp_path, "resource: memory\nid: [\n", "broken.yaml")
    with pytest.raises(InvalidResource, match=r"broken\.yaml"):
        Resources.load(tmp_path)


# --- files that were right, and were changed


SHOWN = [(block.body, Path(block.title).suffix) for block in (found.values[0] for found in FILES)]
ALQUIMIA = [(text, ".json") for text in (BARE_SHORT, BARE_SUMMARIZER, BARE_NEURALYZER, PROFILE)]
RIGHT = [(MINIMAL, ".yaml"), *ALQUIMIA, *SHOWN]
OPEN = ("user_defined", "tag_shares", "settings", "project")
"""Keys whose mappings may have any names."""


def keys_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every key that must be a known one."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        if isinstance(value, dict):
            yield (*path, key)
        if key not in OPEN:
            yield from keys_in(inner, (*path, key))


def said(text: str, suffix: str) -> Any:
    """Return what a file says."""
    return json.loads(text) if suffix == ".json" else loaded(text)


def load_text(folder: Path, text: str, suffix: str) -> Resources:
    """Load a file with this text."""
    path = folder / f"a{suffix}"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return Resources.load(path)


def test_files_of_the_documentation_are_valid(tmp_path: Path) -> None:
    """The files that the tests below change are valid before."""
    assert len(RIGHT) > 15
    for text, suffix in RIGHT:
        assert len(load_text(tmp_path, text, suffix)) == 1


def test_a_misspelt_key_is_refused_wherever_it_stands(tmp_path: Path) -> None:
    """Each key of every valid file, misspelt in turn, is refused."""
    tried = 0
    for text, suffix in RIGHT:
        whole = said(text, suffix)
        for path in keys_in(whole):
            changed = json.loads(json.dumps(whole))
            place = changed
            for part in path[:-1]:
                place = place[part]
            place[f"{path[-1]}x"] = place.pop(path[-1])
            with pytest.raises(InvalidResource) as caught:
                load_text(tmp_path, json.dumps(changed), ".json")
            assert any(path[-1] in str(mistake) for mistake in caught.value.mistakes)
            tried += 1
    assert tried > 150


def changed_text(text: str, dice: random.Random) -> str:
    """Return the text after up to four random changes of characters and lines."""
    for _ in range(dice.randint(1, 4)):
        lines = text.split("\n")
        at, line, end = dice.randrange(len(text) + 1), dice.randrange(len(lines)), dice.randrange(len(text) + 1)
        change = dice.randrange(7)
        if change == 0:
            text = text[:at] + text[at + dice.randint(1, 5) :]
        elif change == 1:
            text = text[:at] + dice.choice("{}[]:,&*!|>-?#%@`\"'\\\t\n\x00 é\ud8000e~.") + text[at:]
        elif change == 2:
            text = "\n".join([*lines[:line], lines[line], *lines[line:]])
        elif change == 3:
            text = "\n".join([*lines[:line], *lines[line + 1 :]])
        elif change == 4:
            text = "\n".join([*lines[:line], "  " + lines[line], *lines[line + 1 :]])
        elif change == 5:
            text = text[: min(at, end)] + text[max(at, end) :]
        else:
            other = dice.choice(RIGHT)[0]
            text = text[:at] + other[dice.randrange(len(other)) :][: dice.randint(1, 80)] + text[at:]
    return text


@pytest.mark.wide
@pytest.mark.filterwarnings("ignore::palimpsest.errors.PalimpsestWarning")  # of a model that is in no table
@settings(max_examples=1_000, deadline=None)
@given(st.integers(0, 2**64), st.sampled_from(RIGHT))
def test_a_thousand_changed_files_load_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, seed: int, right: tuple[str, str]
) -> None:
    """A file with random changes raises InvalidResource or loads with all settings resolved."""
    text = changed_text(right[0], random.Random(seed))
    try:
        resources = load_text(tmp_path_factory.getbasetemp(), text, right[1])
    except InvalidResource:
        return
    for id in resources:
        assert resources[id].effective()


ODD = [
    *(
        None,
        True,
        0,
        -1,
        1,
        10**6,
        2**53,
        2**53 + 1,
        10**400,
        -(10**400),
        1.5,
        1e308,
        5e-324,
        float("nan"),
        float("inf"),
    ),
    *("", " ", "x", "0", "-1", "1s", "0s", "-5m", "1e9d", "9" * 30 + "d", "{}", "{{x}}", "${HOME}", "../../x", "a\0b"),
    *("\ud800", "\u00e9" * 300, "(a+)+$", "message.x", "[", "1 1 * * *"),
    *([], [None], [[]], ["x", "x"], [1, 2], {}, {"type": "x"}, {"type": "buffer"}, {"": 1}, {"x": {}}),
]
"""Values that hardly any key accepts."""

ELSEWHERE = ("redis", "postgres", "mongo", "/")
"""Words of files whose memory is on a server, or in a file outside this test's folder."""


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of everything that it says."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places_in(inner, (*path, key))


@pytest.mark.wide
@pytest.mark.filterwarnings("ignore::palimpsest.errors.PalimpsestWarning")
@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(more, marks=pytest.mark.slow) for more in range(3, 40))])
def test_a_memory_that_loads_with_an_odd_value_can_be_used(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An odd value at any place is refused, or the memory can be used without any error but ours."""
    monkeypatch.chdir(tmp_path)
    dice, used = random.Random(seed), 0
    for number in range(120):
        whole = json.loads(json.dumps(said(*dice.choice(RIGHT))))
        place, path = whole, dice.choice(list(places_in(whole)))
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = dice.choice(ODD)
        with suppress(PalimpsestError), load_text(tmp_path, json.dumps(whole), ".json") as resources:
            for id in resources:
                assert resources[id].effective()
                if not any(word in json.dumps(whole) for word in ELSEWHERE):
                    keyed = resources.keyed(id)
                    keyed.append(f"key-{number}", [{"role": "user", "content": "hello " * 20}, "and more"])
                    used += keyed.read(f"key-{number}").total > 0
                    keyed.flush(f"key-{number}")
    assert used > 0


@pytest.mark.parametrize("number", [2**53 + 1, 10**400, -(10**400)])
def test_a_number_too_large_is_refused(tmp_path: Path, number: int) -> None:
    """A number beyond 2**53 is refused in a file and in the program, before any arithmetic with it."""
    for strategy in ("summarizer", "neuralyzer"):
        clause = {"long_term_memory_id": strategy, "interaction_threshold_qty": number}
        file = {"resource": "memory", "id": "m", "max_tokens": 500, LONG: [clause]}
        with pytest.raises(InvalidResource, match="interaction_threshold_qty"):
            load_text(tmp_path, json.dumps(file), ".json")
    with pytest.raises(ConfigError, match="interaction_threshold_qty"):
        Triggers(interaction_threshold_qty=number)


def test_a_ttl_of_zero_is_no_lifetime(tmp_path: Path) -> None:
    """A `ttl` of zero, in any spelling, means that sessions do not expire."""
    for ttl in (0, "0", "0s", "0 minutes", " 0 ", 0.0):
        file = {"resource": "memory", "id": "m", "max_tokens": 500, "persistence": {"type": "in_memory", "ttl": ttl}}
        with load_text(tmp_path, json.dumps(file), ".json") as resources:
            assert resources.keyed("m").append("k", "said") == 1


def test_half_characters_in_a_policy_and_a_payload_are_stored() -> None:
    """Lone surrogates in a policy and in a payload are stored with the rest."""
    declared: dict[str, Any] = {"resource": "memory", "id": "notes", "max_tokens": 500}
    declared |= {"privacy_policy": {"redact_patterns": ["ORD-[0-9]+"], "default_redaction_string": "\ud800"}}
    with Resources.load(declared) as resources:
        resources.keyed("notes").append("a", {"content": [{"type": "text", "text": "\ud83d ORD-7"}]})

        (info,) = resources.memory("notes").definitions()
        (entry,) = resources.keyed("notes").session("a").entries()
        assert info.settings is not None
        assert entry.text == "\ud83d \ud800"
