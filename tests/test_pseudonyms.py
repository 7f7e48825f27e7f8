"""A session gives each private value one pseudonym, however many there are, and an append writes no more for it."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from palimpsest import Entry, ImportFailed, Memory, Redactor
from palimpsest.errors import WrongUser
from palimpsest.privacy.pseudonyms import NUMBERED, Pseudonyms
from worlds import STORES

KEY = b"sixteen bytes and more"
POLICY = {"recognisers": {"default": True, "email": "pseudonym"}}
GUARDS: dict[str, dict[str, Any]] = {"plain": {}, "encryption": {"encryption": {"k": "11" * 32}}}
LONG = re.compile(r"\[EMAIL_[1-9][0-9]{19}\]")


def said(numbers: range) -> str:
    """Return a text with so many addresses."""
    return " ".join(f"a{number}@example.com" for number in numbers)


def opened(kind: str, folder: Path, **options: Any) -> Memory:
    where = {"memory": "memory://", "sqlite": f"sqlite:///{folder}/log.db", "file": f"file://{folder}/logs"}[kind]
    return Memory.open(where, privacy=Redactor(POLICY, key=KEY), **options)


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("guard", GUARDS)
def test_every_value_keeps_its_pseudonym_through_branches_and_imports(kind: str, guard: str, tmp_path: Path) -> None:
    """The first are numbered in order, the others have names of their own; branches, imports and rewinds agree."""
    many = range(NUMBERED + 100)
    with opened(kind, tmp_path, **GUARDS[guard]) as memory:
        session = memory.session("s")

        first = session.add_user_message(said(many))
        names = first.text.split()
        branch = session.fork("branch")
        memory.import_session(session.export(), session_id="copy")
        session.add_user_message(said(many))
        session.rewind(first)

        assert names[:NUMBERED] == [f"[EMAIL_{number + 1}]" for number in range(NUMBERED)]
        assert all(map(LONG.fullmatch, names[NUMBERED:]))
        assert len(set(names)) == len(names)
        for other in (session, branch, memory.session("copy")):
            assert other.add_user_message(said(many)).text.split() == names


def test_a_session_with_only_pseudonyms_belongs_to_its_user(tmp_path: Path) -> None:
    """A session of which only pseudonyms are stored still belongs to its user, and other users get nothing of it."""
    with opened("sqlite", tmp_path) as memory:
        ann = memory.session("s", user="ann", title="Trip", lifetime="1h")
        with suppress(RuntimeError), ann.turn(atomic=True):
            ann.add_user_message(said(range(1)))
            raise RuntimeError
        bob = memory.session("s", user="bob")

        assert (memory.info("s").user, memory.info("s").title) == ("ann", "Trip")
        assert memory.info("s").expires is not None
        revision = memory.info("s").revision
        with pytest.raises(WrongUser):
            bob.add_user_message(said(range(1, 2)))
        with pytest.raises(WrongUser):
            bob.add_context(said(range(2, 3)), name="notes")
        assert memory.info("s").revision == revision
        assert ann.add_user_message(said(range(3, 4))).text == "[EMAIL_2]"
        assert memory.info("s").user == "ann"


@pytest.mark.parametrize(
    ("kind", "same", "other"),
    [
        ("email", ["jane@example.com", "JANE@Example.com", "mailto:jane%40example.com"], "jane@example.org"),
        ("phone", ["+49 30 1234567", "+49-30-1234567", "0049 30 1234567", "+49 (0)30 1234567"], "030 1234567"),
        ("card", ["4111 1111 1111 1111", "4111-1111-1111-1111", "4111111111111111"], "5500 0000 0000 0004"),
        ("iban", ["DE89 3704 0044 0532 0130 00", "de89370400440532013000"], "GB82 WEST 1234 5698 7654 32"),
        ("ip", ["2001:db8::1", "2001:0DB8:0:0:0:0:0:1"], "2001:db8::2"),
        ("ip", ["10.1.2.3"], "10.1.2.4"),
    ],
)
def test_a_value_has_one_pseudonym_in_every_spelling(kind: str, same: list[str], other: str) -> None:
    """Case, what groups digits, the prefix of a foreign telephone, escapes of a link: the name is that of the value."""
    redactor = Redactor({"recognisers": {"default": True, kind: "pseudonym"}}, key=KEY)
    with Memory.open("memory://", privacy=redactor) as memory:
        session = memory.session("s")

        names = [session.add_user_message(f"it is {value} indeed").text.split()[2] for value in (*same, other)]

    assert [name.removeprefix("mailto:") for name in names] == [f"[{kind.upper()}_1]"] * len(same) + [
        f"[{kind.upper()}_2]"
    ]


@pytest.mark.parametrize("guard", GUARDS)
def test_an_append_writes_no_more_after_many_pseudonyms(guard: str, tmp_path: Path) -> None:
    """A line of a log holds the whole head: it is no longer for a thousand addresses than for those numbered."""
    with opened("file", tmp_path, **GUARDS[guard]) as memory:
        session = memory.session("s")
        sizes = []
        for upto in (NUMBERED, 1000):
            session.add_user_message(said(range(upto)))
            before = size(tmp_path)
            session.add_assistant_message("hi")
            sizes.append(size(tmp_path) - before)

        assert abs(sizes[1] - sizes[0]) < 16  # numbers of places have more digits
        assert sizes[1] < 100 * NUMBERED


@pytest.mark.parametrize("guard", GUARDS)
def test_long_names_do_not_lengthen_the_head(guard: str, tmp_path: Path) -> None:
    """A head remembers the newest open calls and contexts, bounded by number and length."""
    with opened("file", tmp_path, **GUARDS[guard]) as memory:
        session = memory.session("s")
        for number in range(40):
            session.add_tool_call("f" * 3000, {}, call_id=f"{number}" + "c" * 3000)
            session.add_context("text", name=f"{number}" + "n" * 5000)
        before = size(tmp_path)

        session.add_user_message("hi")

        assert size(tmp_path) - before < 300_000
        assert session.add_tool_result(None, "done", call_id="39" + "c" * 3000).answers == 79
        assert session.add_context("text", name="39" + "n" * 5000).seq == 80  # the long name is stored


def size(folder: Path) -> int:
    return sum(os.path.getsize(file) for file in folder.rglob("*") if file.is_file())


def test_keyed_pseudonyms_are_recognised_and_similar_text_is_not() -> None:
    """Keyed pseudonyms are recognised when redacting again; other twenty digits are plain text."""
    redactor = Redactor({**POLICY, "redact_patterns": [r"\d{4}"]}, key=KEY)
    full = Pseudonyms({f"EMAIL:{number:032x}": number for number in range(1, NUMBERED + 1)})

    once = redactor.entry(Entry(content=said(range(50))), full)
    assert once.entry is not None
    twice = redactor.entry(once.entry, once.pseudonyms)
    forged = redactor.entry(Entry(content="[EMAIL_12345678901234567890]"), full)

    assert once.pseudonyms == full
    assert len(LONG.findall(once.entry.text)) == 50
    assert twice.entry is once.entry
    assert forged.entry is not None
    assert "1234" not in forged.entry.text


def test_another_key_gives_other_pseudonyms() -> None:
    """Another key gives other pseudonyms, so that nobody can guess the value without it."""
    full = Pseudonyms({f"EMAIL:{number:032x}": number for number in range(1, NUMBERED + 1)})
    entry = Entry(content="jane@example.com JANE@example.com")

    one, other = (Redactor(POLICY, key=key).entry(entry, full).entry for key in (KEY, KEY[::-1]))

    assert one is not None
    assert other is not None
    assert len(set(one.text.split())) == 1
    assert one.text != other.text


@pytest.mark.parametrize("numbers", [{f"EMAIL:{n:032x}": n for n in range(1, 5000)}, {f"EMAIL:{1:032x}": 2**62}])
def test_an_import_with_too_many_pseudonyms_is_refused(numbers: dict[str, int]) -> None:
    """An export that would make every later append large is refused."""
    with Memory.open("memory://") as memory:
        memory.session("s").add_user_message("hi")
        export = memory.session("s").export()
        export["head"]["pseudonyms"] = numbers

        with pytest.raises(ImportFailed, match=r"head\.pseudonyms"):
            memory.import_session(export, session_id="copy")
