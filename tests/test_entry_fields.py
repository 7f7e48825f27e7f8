"""No field of an entry is forgotten: each is checked, and its text is cleaned, searched, shown, exported and erased."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from palimpsest import Entry, InvalidEntry, Memory, Text
from palimpsest.log.checks import check
from palimpsest.log.entry import Native
from palimpsest.log.entry_json import entry_json
from palimpsest.log.withdrawal import tombstone
from palimpsest.privacy.mentions import entry_mentions, finder

CARD = "4111 1111 1111 1111"
HOLDING: tuple[Any, ...] = (CARD, {"note": CARD}, (Text(text=CARD),), Native(format="openai", keep={"note": CARD}))
"""Values of the types that fields have, each with a text that is private."""

NEVER_SHOWN = ("native",)
"""What is no use to a reader of the log."""

FIELDS = Entry.__struct_fields__


def holding() -> list[tuple[str, Any]]:
    """Return each field with each private value that it takes; without `id`, which is the log's own."""
    found = []
    for field in FIELDS:
        if field == "id":
            continue
        for value in HOLDING:
            try:
                check(Entry(**{field: value}), "entry")
            except InvalidEntry:
                continue
            found.append((field, value))
    return found


TEXTS = [pytest.param(field, value, id=f"{field}-{type(value).__name__}") for field, value in holding()]


@pytest.mark.parametrize("field", FIELDS)
def test_a_value_of_another_type_is_refused(field: str) -> None:
    """No field takes a value that is of none of its types."""
    with pytest.raises(InvalidEntry, match=field):
        check(Entry(**{field: object()}), "entry")


@pytest.mark.parametrize(("field", "value"), [text for text in TEXTS if text.values[0] != "call_id"])
def test_a_text_is_cleaned_before_it_is_stored(field: str, value: Any) -> None:
    """Whatever field holds a private text, the log does not get it; ids of calls stay as providers made them."""
    with Memory.open("memory://", privacy="default") as memory:
        stored = memory.session("s").add_entries([Entry(**{"content": "hello", field: value})])

    assert CARD not in repr(stored)


@pytest.mark.parametrize(("field", "value"), TEXTS)
def test_a_text_is_found_where_it_is_mentioned(field: str, value: Any) -> None:
    """Whatever field holds a text, a search for who mentions it finds the entry."""
    assert entry_mentions(Entry(**{field: value}), finder(CARD))


@pytest.mark.parametrize(("field", "value"), TEXTS)
def test_a_text_is_gone_after_an_erasure(field: str, value: Any) -> None:
    """Whatever field holds a text, an erasure takes it."""
    assert CARD not in repr(tombstone(Entry(**{field: value})))


@pytest.mark.parametrize(("field", "value"), TEXTS)
def test_a_text_is_shown_and_exported(field: str, value: Any) -> None:
    """Whatever field holds a text, the command line and the service show it, and an export brings it elsewhere."""
    entry = Entry(**{"content": "hello", field: value})

    if field not in NEVER_SHOWN:
        assert CARD in str(entry_json(entry))

    with Memory.open("memory://") as memory:
        memory.session("s").add_entries([entry])
        memory.import_session(memory.session("s").export(), session_id="copy")
        copied = list(memory.session("copy").entries())

    assert msgspec.structs.asdict(copied[0])[field] == value
