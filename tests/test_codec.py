"""How values are stored as JSON, whatever text they hold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.log.codec import decoded, encoded
from palimpsest.log.entry import Entry, pack, set_aside, unpack
from palimpsest.stores.engine.large import put_back, take_out

LONE = "a\ud800b"

texts = st.text(st.characters(exclude_categories=()), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """A value with fields."""

    text: str
    number: int = 0
    more: dict[str, Any] | None = None


@given(value=values)
def test_any_plain_value_survives_encoding_and_decoding(value: Any) -> None:
    """Any plain value, with lone surrogates at any place or without."""
    assert decoded(encoded({"value": value}), dict) == {"value": value}


@given(text=texts, more=st.dictionaries(texts, values, max_size=3))
def test_a_value_has_one_encoding(text: str, more: dict[str, Any]) -> None:
    """A value has one encoding, without spaces and defaults, whichever encoder is used."""
    note = Note(text=text, more=more)

    body = encoded(note)

    assert decoded(body, Note) == note
    assert list(json.loads(body)) == ["text", "more"]
    assert body.startswith(b'{"text":"')


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"text":1}', b'{"text":"\\ud800","number":"x"}', b"\xff"])
def test_damaged_data_raises_value_error(body: bytes) -> None:
    """Damaged data raises ValueError, whichever decoder is used."""
    with pytest.raises(ValueError):  # noqa: PT011
        decoded(body, Note)


@pytest.mark.parametrize("text", ["plain", LONE])
def test_an_entry_has_one_encoding(text: str) -> None:
    """A search for a field in the stored form finds it where the text holds lone surrogates as well."""
    body = pack(Entry(kind="tool_result", role="tool", content=text, answers=3))

    assert b'"kind":"tool_result"' in body
    assert b'"answers":3' in body
    assert (b'"lone":true' in body) == (text == LONE)


@pytest.mark.parametrize("text", ["plain", LONE])
def test_kind_and_call_of_a_damaged_result_are_read(text: str) -> None:
    """The kind of a damaged result and its call are read from the remaining bytes."""
    call = Entry(seq=3, kind="tool_call", role="assistant", turn=1, group=3)
    body = pack(Entry(kind="tool_result", role="tool", content=text, call_id="c", answers=3, turn=1, group=3))

    found = set_aside("id", 4, b"x" + body[1:], [call], [])

    assert (found.kind, found.answers, found.group) == ("tool_result", 3, 3)


@given(text=texts, metadata=st.dictionaries(texts, values, max_size=3), limit=st.integers(0, 60))
def test_an_entry_is_equal_after_its_large_strings_are_put_back(
    text: str, metadata: dict[str, Any], limit: int
) -> None:
    """An entry is the same after its large strings were taken out and put back, at whatever limit."""
    entry = Entry(content=text, metadata=metadata)

    slim, large = take_out(pack(entry), limit)

    again = unpack(put_back(slim, large))
    assert (again.content, again.metadata) == (text, metadata)


def _run(script: str, *arguments: str) -> str:
    command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


@pytest.mark.wide
def test_stored_types_are_inspected_when_their_module_is_imported() -> None:
    """`msgspec` inspects every stored type at import, since two threads doing it at once could crash the process."""
    told = json.loads(_run("msgspec_types_process.py"))

    assert len(told["read"]) > 15
    assert told["late"] == []
    assert told["unknown"] == []


@pytest.mark.sampled
@pytest.mark.parametrize("number", range(40))
def test_many_threads_may_decode_first_at_once(number: int, tmp_path: Path) -> None:
    """A new process whose threads change turns at every step."""
    url = f"sqlite:///{tmp_path}/log.db"
    _run("first_readers_process.py", url)

    assert _run("first_readers_process.py", url) == "read\n"
