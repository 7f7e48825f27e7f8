"""The mark in which a store lists its keys: changing it without a key makes nobody write under another key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from palimpsest import Keys, WrongKey
from palimpsest.errors import StoreCorrupt
from palimpsest.runtime.runner import drive
from palimpsest.stores import MARK
from palimpsest.stores.backend import Backend
from palimpsest.stores.encrypted import Encryption
from palimpsest.stores.encrypted.rotation import rotate_keys
from palimpsest.stores.engine.crowds import Crowds
from palimpsest.stores.engine.items import Items
from palimpsest.stores.values import Put
from sealed import BOTH, FIRST, LAST, NEW, OLD, OTHER, RING, session_of
from vaults import Vault, key_ids_below

Forged = Callable[[dict[str, Any]], dict[str, Any]]
"""Turns the content of a mark into what is written in its place."""


def change(vault: Vault, how: Forged) -> None:
    """Change the stored mark."""

    def changed(backend: Backend) -> None:
        items = Items(backend, Crowds(backend), lambda: 1)
        tenant, namespace, key = MARK
        item = drive(items.get(*MARK))
        assert item is not None
        said = msgspec.json.encode(how(msgspec.json.decode(item.value)))
        drive(items.put(tenant, namespace, [Put(key, said)]))

    vault.below(changed)


def said(vault: Vault) -> dict[str, Any]:
    """Return the content of the mark."""
    found = list[dict[str, Any]]()

    def seen(mark: dict[str, Any]) -> dict[str, Any]:
        found.append(mark)
        return mark

    change(vault, seen)
    return found[0]


def talk(vault: Vault, keys: Encryption, text: str = "hello") -> list[str]:
    """Add to a session and to a new one; return the texts of the first."""
    with vault.memory(keys) as memory:
        session_of(memory).add_user_message(text)
        session_of(memory, text).add_user_message(text)
        return [entry.text for entry in session_of(memory).entries()]


@pytest.fixture(params=["memory", "sqlite", "file"])
def vault(request: pytest.FixtureRequest, tmp_path: Path) -> Vault:
    return Vault.of(request.param, tmp_path)


def changed(vault: Vault, keys: Keys) -> None:
    """Rotate everything to the current one of these keys."""
    with vault.memory(keys) as memory:
        rotate_keys(memory)


def test_a_key_is_retired_only_by_someone_who_has_it(vault: Vault) -> None:
    """Somebody who knows only the old key cannot make it current again."""
    talk(vault, FIRST)
    before = said(vault)
    changed(vault, BOTH)

    change(
        vault, lambda mark: {**mark, "current": "old", "retired": ["new"], "keys": {**mark["keys"], **before["keys"]}}
    )

    with pytest.raises(StoreCorrupt, match="the key 'new' is retired"):
        talk(vault, BOTH, "again")
    assert vault.below(key_ids_below) == {"new"}


def test_an_open_process_refuses_a_forged_mark(vault: Vault) -> None:
    """An open process that looks again refuses a forged mark."""
    with vault.memory(BOTH) as memory:
        session_of(memory).add_user_message("hello")
        markings = memory.store.backend.markings  # type: ignore[attr-defined]

        change(vault, lambda mark: {**mark, "current": "old", "retired": ["new"]})

        with pytest.raises(StoreCorrupt, match="the key 'new' is retired"):
            drive(markings.refresh())


FORGED: dict[str, Forged] = {
    "another current key": lambda mark: {**mark, "current": "old"},
    "the heir of a key that is not retired": lambda mark: {**mark, "heirs": {"new": ["old", "AAAA"]}},
    "a proof that is none": lambda mark: {**mark, "retired": ["new"], "heirs": {"new": ["old", "AAAA"]}},
    "an heir of itself": lambda mark: {**mark, "retired": ["new"], "heirs": {"new": ["new", mark["keys"]["new"]]}},
    "the secret for a proof": lambda mark: {**mark, "retired": ["new"], "heirs": {"new": ["old", mark["keys"]["new"]]}},
    "an unknown key": lambda mark: {**mark, "keys": {**mark["keys"], "more": "AAAA"}},
    "a name that no key has": lambda mark: {**mark, "keys": {**mark["keys"], "x" * 100_000: "AAAA"}},
    "a name with an escape": lambda mark: {**mark, "current": "\x1b[2J"},
    "no key": lambda mark: {**mark, "keys": {}},
    "a list": lambda mark: {**mark, "keys": []},
}


@pytest.mark.parametrize("how", FORGED.values(), ids=FORGED.keys())
def test_a_changed_mark_is_refused_or_changes_nothing(vault: Vault, how: Forged) -> None:
    """A changed mark is refused with a short error, or changes nothing."""
    talk(vault, BOTH)
    change(vault, how)

    told = ""
    try:
        assert talk(vault, BOTH, "again") == ["hello", "again"]
    except (StoreCorrupt, WrongKey) as refused:
        told = str(refused)

    assert len(told) < 1_000
    assert "\x1b" not in told
    assert vault.below(key_ids_below) == {"new"}


def test_a_mark_with_secrets_of_two_stores_is_refused(tmp_path: Path) -> None:
    """A mark with the secrets of two stores is refused, since items could not be found."""
    one, other = (Vault.of("memory", tmp_path) for _ in range(2))
    talk(one, FIRST)
    talk(other, LAST)
    theirs = said(other)["keys"]
    change(one, lambda mark: {**mark, "keys": {**mark["keys"], **theirs}})

    with pytest.raises(StoreCorrupt, match="of two stores"):
        talk(one, RING)


def test_a_process_with_the_oldest_key_first_writes_under_the_newest(vault: Vault) -> None:
    """After two rotations, a process whose first key is the oldest writes under the newest key."""
    last = Keys({"last": OTHER, "new": NEW})
    all_of = Keys({"old": OLD, "new": NEW, "last": OTHER})
    talk(vault, FIRST)
    changed(vault, BOTH)
    changed(vault, last)

    assert talk(vault, all_of, "again") == ["hello", "again"]

    assert vault.below(key_ids_below) == {"last"}


def test_another_key_of_the_id_of_a_retired_one_is_a_wrong_key(vault: Vault) -> None:
    """A process whose first key has the id of a retired key, but is another key, is told that, and not of damage."""
    talk(vault, FIRST)
    changed(vault, BOTH)

    with pytest.raises(WrongKey, match="another key of this id") as caught:
        talk(vault, Keys({"old": OTHER, "new": NEW}), "again")
    assert caught.value.key_id == "old"


def test_a_retired_key_can_become_current_again(vault: Vault) -> None:
    """A rotation back makes a retired key current again and retires the other."""
    talk(vault, FIRST)
    changed(vault, BOTH)
    changed(vault, RING)

    assert talk(vault, BOTH, "again") == ["hello", "again"]

    assert vault.below(key_ids_below) == {"old"}
