"""Keys: how they are read, that nothing shows them, and what happens if a store is opened with others."""

from __future__ import annotations

import asyncio
import base64
import pickle
import shutil
import traceback
from pathlib import Path

import pytest

from palimpsest import AsyncMemory, ConfigError, Keys, Memory, StoreUnavailable, WrongKey
from palimpsest.errors import StoreCorrupt
from palimpsest.log.entry import now_us
from palimpsest.runtime.runner import drive
from palimpsest.stores import MARK, Store
from palimpsest.stores.backend import Place
from palimpsest.stores.encrypted.sealed_bytes import key_of
from palimpsest.stores.opening import unlocked
from sealed import BOTH, FIRST, KINDS, LAST, NEW, OLD, OTHER, address, session_of, stored
from vaults import Slot, Vault

AS_TEXT = base64.b64encode(OTHER).decode()


# --- keys


@pytest.mark.parametrize(
    "written",
    [OTHER, AS_TEXT, AS_TEXT.rstrip("="), base64.urlsafe_b64encode(OTHER).decode(), OTHER.hex(), OTHER.hex().upper()],
)
def test_a_key_is_bytes_base64_or_hexadecimal(written: str | bytes) -> None:
    """A key may be given as bytes, base64 or hexadecimal."""
    assert Keys({"k": written}).secret("k") == OTHER


def test_the_environment_names_keys_and_the_first_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment lists `ID:KEY` separated by commas; the first is current; white space does not matter."""
    monkeypatch.setenv("PALIMPSEST_KEY", f" new:{AS_TEXT},\nold:{OLD.hex()} ,")
    keys = Keys.from_env()

    assert (keys.ids, keys.current, keys.secret("old")) == (("new", "old"), "new", OLD)
    monkeypatch.setenv("MINE", f"k:{AS_TEXT}")
    assert Keys.from_env("MINE").ids == ("k",)


def test_current_may_name_any_of_the_keys() -> None:
    """`current` may name any of the keys."""
    assert Keys({"a": OLD, "b": NEW}, current="b").current == "b"
    with pytest.raises(ConfigError, match=r"encryption\.current: 'c' is not accepted; allowed: a, b"):
        Keys({"a": OLD, "b": NEW}, current="c")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "PALIMPSEST_KEY"),
        (AS_TEXT, "a key without an id"),
        (f"{AS_TEXT}:k", "an id of"),
        (f"k:{AS_TEXT[:-4]}", "encryption key k: '30 bytes'"),
        ("k:not a key!", "neither base64 nor hexadecimal"),
        (f"k:{AS_TEXT}x", "encryption key k"),
        (f"k:{AS_TEXT},k:{AS_TEXT}", "two keys of the id k"),
        (f"a b:{AS_TEXT}", "an id of 3 characters"),
    ],
)
def test_a_bad_key_is_refused_and_not_shown(text: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad key is refused with its id and the fault; neither error nor causes show it."""
    monkeypatch.setenv("PALIMPSEST_KEY", text)

    with pytest.raises(ConfigError, match=where) as caught:
        Keys.from_env()

    shown = "".join(traceback.format_exception(caught.value))
    assert AS_TEXT[:20] not in shown.replace(f'"{text}"', "")


@pytest.mark.parametrize("given", [{}, {"k": b"short"}, {"k": 7}, {7: OLD}, 7, ["k"], Keys])
def test_an_invalid_encryption_option_is_refused(given: object) -> None:
    """An invalid `encryption=` raises a ConfigError that says what it takes."""
    with pytest.raises(ConfigError, match="encryption"):
        Memory.open("memory://", encryption=given)


def test_repr_and_pickle_reveal_no_key() -> None:
    """Neither `repr` nor pickling reveals a key; each new key is different."""
    keys = Keys({"k": OTHER})

    assert repr(keys) == str(keys) == "Keys(ids=('k',), current='k')"
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(keys)
    assert not hasattr(keys, "__dict__")
    assert Keys.new() != Keys.new()
    assert len(base64.b64decode(Keys.new())) == 32


def test_keys_may_be_given_as_a_mapping_or_as_text() -> None:
    """`encryption` takes whatever `Keys` takes."""
    for given in ({"k": OLD}, f"k:{AS_TEXT}"):
        with Memory.open("memory://", encryption=given) as memory:
            session_of(memory).add_user_message("hello")
            assert [entry.text for entry in session_of(memory).entries()] == ["hello"]


# --- opening


def main_files(folder: Path) -> dict[Path, bytes]:
    """Return the files of stores in a folder, without SQLite's journals."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(("-wal", "-shm")))
    return {path: path.read_bytes() for path in files}


@pytest.fixture(params=KINDS)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a store with one message, encrypted with the old key."""
    where = address(request.param, tmp_path)
    with Memory.open(where, encryption=FIRST) as memory:
        session_of(memory).add_user_message("hello")
    return where


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (None, "is encrypted with it: open the store with encryption="),
        ({"old": OTHER}, "encrypted with another key of this id"),
        ({"other": OTHER}, "is not among the given keys"),
        ({"new": NEW, "other": OTHER}, "is not among the given keys"),
        ({"new": NEW, "old": OTHER}, "encrypted with another key of this id"),
    ],
)
def test_a_store_is_refused_without_its_key(
    where: str, tmp_path: Path, keys: dict[str, bytes] | None, told: str
) -> None:
    """Without its key a store is refused with the key's id, and nothing is read or changed."""
    before = main_files(tmp_path)

    with pytest.raises(WrongKey, match=told) as caught:
        Memory.open(where, encryption=keys)

    assert caught.value.key_id == "old"
    assert caught.value.__cause__ is None
    assert "hello" not in str(caught.value)
    assert main_files(tmp_path) == before
    with Memory.open(where, encryption=FIRST) as memory:
        assert [entry.text for entry in session_of(memory).entries()] == ["hello"]


def test_an_async_memory_is_refused_without_its_key(where: str) -> None:
    """An asynchronous memory is refused at `async with`."""

    async def look() -> list[str]:
        with pytest.raises(WrongKey):
            async with AsyncMemory.open(where):
                pass
        async with AsyncMemory.open(where, encryption=FIRST) as memory:
            return [entry.text for entry in await memory.session("one").entries()]

    assert asyncio.run(look()) == ["hello"]


def test_a_copy_needs_the_key_as_well(where: str, tmp_path: Path) -> None:
    """A copy of the store needs the key as well."""
    kind = where.partition(":")[0]
    folder = "logs" if kind == "file" else ""
    shutil.copytree(tmp_path / folder, tmp_path / "copy" / folder)

    with pytest.raises(WrongKey):
        Memory.open(address(kind, tmp_path / "copy"))
    with Memory.open(address(kind, tmp_path / "copy"), encryption=FIRST) as memory:
        assert [entry.text for entry in session_of(memory).entries()] == ["hello"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("holds", ["session", "item"])
def test_a_plain_store_is_refused_with_keys(kind: str, holds: str, tmp_path: Path) -> None:
    """Opening a store with plain content with keys is refused, and the store stays as it is."""
    where = address(kind, tmp_path)
    with Memory.open(where, tenant="somebody") as memory:
        if holds == "session":
            session_of(memory).add_user_message("hello")
        else:
            drive(memory.store.put_item("somebody", "notes", "k", b"v"))

    with pytest.raises(ConfigError, match="has data that is not encrypted"):
        Memory.open(where, encryption=FIRST)

    with Memory.open(where, tenant="somebody") as memory:
        assert len(memory.sessions()) == (holds == "session")


def test_an_empty_store_may_be_opened_with_keys(tmp_path: Path) -> None:
    """An empty store is encrypted from its first opening with keys on."""
    Memory.open(tmp_path / "a.db").close()
    Memory.open(tmp_path / "a.db", encryption=FIRST).close()

    with pytest.raises(WrongKey):
        Memory.open(tmp_path / "a.db")


@pytest.mark.parametrize("kind", ["memory", *KINDS])
def test_a_session_written_in_plain_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    """A session written in plain by a program that had the store open before is refused by name."""
    vault = Vault.of(kind, tmp_path)
    with vault.memory(None) as early:
        with vault.memory(FIRST) as memory:
            session_of(memory).add_user_message("sealed")
        session_of(early, "early").add_user_message("in clear")

    with vault.memory(FIRST) as memory:
        with pytest.raises(StoreCorrupt, match="the head of session 'early' is not encrypted"):
            session_of(memory, "early").entries()
        assert [entry.text for entry in session_of(memory).entries()] == ["sealed"]


def test_a_read_only_store_is_read_with_any_current_key(where: str) -> None:
    """A read-only store is read with any current key, and writing is refused."""
    with Memory.open(where, encryption=BOTH, readonly=True) as memory:
        assert [entry.text for entry in session_of(memory).entries()] == ["hello"]
        assert session_of(memory).context().messages == [{"role": "user", "content": "hello"}]
        with pytest.raises(StoreUnavailable):
            session_of(memory).add_user_message("no")


def test_entries_are_written_with_the_current_key(where: str) -> None:
    """New entries are encrypted with the current key; then both keys are needed."""
    with Memory.open(where, encryption=BOTH) as memory:
        session_of(memory).add_user_message("again")
        assert [key_of(value) for value in stored(memory.store)] == ["old", "new"]

    for keys, missing in ((LAST, "old"), (FIRST, "new")):
        with pytest.raises(WrongKey) as caught:
            Memory.open(where, encryption=keys)
        assert caught.value.key_id == missing


@pytest.mark.parametrize("kind", ["memory", *KINDS])
def test_an_encrypted_store_without_its_mark_is_refused(kind: str, tmp_path: Path) -> None:
    """If a store's mark of encryption is missing, opening says so and does not advise to drop the keys."""
    vault = Vault.of(kind, tmp_path)
    with vault.memory(FIRST) as memory:
        session_of(memory).add_user_message("hello")
    tenant, namespace, name = MARK
    vault.put({Slot(Place(tenant, namespace, f"item/{namespace}", name)): None})

    with pytest.raises(StoreCorrupt, match="its record of its encryption is missing") as told:
        vault.memory(FIRST)
    assert "unset" not in str(told.value)
    with vault.memory(None) as memory, pytest.raises(StoreCorrupt, match="the head of session 'one'"):
        session_of(memory).entries()


def test_plain_content_is_found_among_many_leases() -> None:
    """Plain content is found among any number of leases, so that keys are refused."""
    with Memory.open("memory://") as memory:
        for number in range(1_000):
            drive(memory.store.lease("default", str(number), "me", 10))
        drive(unlocked(Store(memory.store.backend), FIRST, now_us))

    with Memory.open("memory://") as memory:
        for number in range(1_000):
            drive(memory.store.lease("default", str(number), "me", 10))
        session_of(memory).add_user_message("hello")
        with pytest.raises(ConfigError, match="has data that is not encrypted"):
            drive(unlocked(Store(memory.store.backend), FIRST, now_us))
