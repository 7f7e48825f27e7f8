"""A log that cannot be read, or that is none, keeps nobody from the others of its tenant, and is told by name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from commands import run
from palimpsest import Keys, Memory
from palimpsest.errors import StoreCorrupt, StoreError, StoreUnavailable
from palimpsest.log.entry import now_us
from palimpsest.runtime.runner import drive
from palimpsest.stores.copying import copy_store
from palimpsest.stores.encrypted.rotation import rotate_keys
from palimpsest.stores.file import backend, disk, listing, scrubbing

KEYS = Keys({"one": bytes(range(32))})


def opened(folder: Path, **options: Any) -> Memory:
    """The memory over the store in this folder."""
    return Memory.open(f"file://{folder}", synchronous="NORMAL", **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where there are three sessions, and a fact."""
    folder = tmp_path / "logs"
    with opened(folder) as memory:
        for name in "abc":
            memory.session(name, user="ann").add_user_message(f"the heron of {name}")
        memory.working("w").set("bird", "heron")
    return folder


def log_of(folder: Path, name: str = "a") -> Path:
    """The log of a home."""
    (log,) = folder.rglob(f"{name}-*.jsonl")
    return log


def copied(log: Path) -> Path:
    """A copy beside it, as a file manager makes one."""
    return Path(shutil.copy(log, log.with_name("a copy.jsonl")))


def renamed(log: Path) -> Path:
    """Another name for it."""
    return log.rename(log.with_name("a.jsonl"))


def another(log: Path) -> Path:
    """Another session's log in its place."""
    (other,) = log.parent.glob("b-*.jsonl")
    return Path(shutil.copy(other, log))


def no_log(log: Path) -> Path:
    """A text of somebody's beside it."""
    (stray := log.with_name("notes.jsonl")).write_text("a text\n")
    return stray


def spoilt(log: Path) -> Path:
    """Another text in its place."""
    log.write_text("a text\n")
    return log


def a_folder(log: Path) -> Path:
    """A folder beside it that is called like a log."""
    (stray := log.with_name("old.jsonl")).mkdir()
    return stray


def a_loop(log: Path) -> Path:
    """A link to itself beside it, which the system refuses to open."""
    (stray := log.with_name("link.jsonl")).symlink_to("link.jsonl")
    return stray


STRAYS = (copied, renamed, another, no_log, spoilt, a_folder, a_loop)


@pytest.mark.parametrize("stray", STRAYS, ids=lambda one: one.__name__)
def test_one_bad_file_keeps_nobody_from_the_others(
    folder: Path, stray: Callable[[Path], Path], caplog: pytest.LogCaptureFixture
) -> None:
    """They are listed, searched, read, written and branched; a warning names the file, once."""
    path = stray(log_of(folder))
    there = [name for name in "abc" if not (name == "a" and stray in (renamed, another, spoilt))]

    with opened(folder) as memory:
        assert [one.session for one in memory.sessions()] == there
        assert sorted(one.session for one in memory.sessions(order="latest")) == there
        assert [one.session for one in memory.sessions(user="ann")] == there
        assert sorted(one.session for one in memory.recall("heron", neighbours=0).passages) == there
        assert memory.scopes() == ["w"]
        assert memory.session("b").add_user_message("more").seq == 2
        assert len(memory.session("b").fork("branch").entries()) == 2
        assert drive(memory.store.tenants())[-1] == memory.tenant

    told = [one.getMessage() for one in caplog.records if "is in no list" in one.getMessage()]
    assert len(told) == 1
    assert str(path) in told[0]


@pytest.mark.parametrize("stray", STRAYS, ids=lambda one: one.__name__)
def test_an_erasure_says_what_it_did_not_reach(folder: Path, stray: Callable[[Path], Path]) -> None:
    """`forget` does all the rest and names the file in `remains`, also before it does; the file is as it was."""
    path = stray(log_of(folder))
    held = path.read_bytes() if path.is_file() else b""

    with opened(folder) as memory:
        assert str(path) in str(memory.scan("default").remains)
        for subject in ({"matches": "heron"}, {"user": "ann"}, {"tenant": memory.tenant}):
            for dry_run in (True, False):
                done = memory.forget(**subject, dry_run=dry_run)
                assert [told for told in done.remains if str(path) in told], subject
        assert memory.sessions() == []
        assert str(path) in str(memory.vacuum().remains)

    left = [one for one in folder.rglob("*.jsonl") if one.is_file() and b"heron" in one.read_bytes()]
    assert left == [path] * (b"heron" in held)
    assert not path.is_file() or path.read_bytes() == held


def test_an_erasure_of_a_session_tells_of_its_copy_and_of_no_other(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is named where it cannot be read is not gone: `forget` returns that, `delete_session` warns of it."""
    path = copied(log_of(folder))

    with opened(folder) as memory:
        assert memory.forget(session="b").remains == ()
        assert memory.delete_session("c")
        assert "was deleted" not in caplog.text
        (told,) = memory.forget(session="a").remains
        assert str(path) in told
        memory.session("a").add_user_message("again")
        assert memory.delete_session("a")

    assert f"session 'a' was deleted, and is still in what cannot be read: {path}" in caplog.text


def test_a_sweep_does_all_else_and_names_the_file(folder: Path) -> None:
    """What has expired of other sessions is gone when it is told that a file could not be looked into."""
    with opened(folder) as memory:
        memory.session("short", lifetime="1s").add_user_message("sesame")
    path = copied(log_of(folder))

    with opened(folder, clock=lambda: now_us() + 60_000_000) as memory:
        with pytest.raises(StoreCorrupt, match="a copy"):
            memory.sweep()
        assert memory.forget(session="short").unknown

    assert b"sesame" not in b"".join(one.read_bytes() for one in folder.rglob("*.jsonl") if one != path)


def test_the_doctor_names_the_file(folder: Path) -> None:
    """It does not say that all is well."""
    path = copied(log_of(folder))

    result = run("doctor", "--store", f"file://{folder}", "--json")

    assert result.exit_code == 1
    assert str(path) in result.stdout.replace("\\n", "")
    assert "take it away" in result.stdout
    assert "then do what is said of it" in result.stdout


def test_a_copy_of_the_store_goes_on_and_names_the_file(folder: Path, tmp_path: Path) -> None:
    """All that can be read is in the new store when it is told what is not."""
    path = renamed(log_of(folder))

    for tenants in (None, ["default"]):
        with pytest.raises(StoreCorrupt, match=str(path)):
            copy_store(f"file://{folder}", f"sqlite:///{tmp_path}/new.db", tenants=tenants)

    with Memory.open(f"sqlite:///{tmp_path}/new.db") as memory:
        assert [one.session for one in memory.sessions()] == ["b", "c"]


def test_old_keys_are_kept_for_what_cannot_be_read(tmp_path: Path) -> None:
    """A change of keys brings the rest under the new one, and does not say that the old one is not needed."""
    folder, other = tmp_path / "sealed", Keys({"one": bytes(range(32)), "two": bytes(range(1, 33))}, current="two")
    with opened(folder, encryption=KEYS) as memory:
        for name in "ab":
            memory.session(name).add_user_message(name)
    log = log_of(folder)
    path = renamed(log)

    with opened(folder, encryption=other) as memory:
        with pytest.raises(StoreCorrupt, match=str(path)):
            rotate_keys(memory)
        path.rename(log)
        assert [entry.text for entry in memory.session("a").entries()] == ["a"]
        rotate_keys(memory)
    with opened(folder, encryption=Keys({"two": bytes(range(1, 33))})) as memory:
        assert [memory.session(name).entries()[0].text for name in "ab"] == ["a", "b"]


@pytest.fixture
def denied(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """The files that the system does not let this process open."""
    paths = set[Path]()

    class Denying(FileIO):
        def __init__(self, file: Any, *given: Any, **named: Any) -> None:
            if Path(file) in paths:
                raise PermissionError(13, "Permission denied", str(file))
            super().__init__(file, *given, **named)

    for module in (backend, disk):
        monkeypatch.setattr(module, "FileIO", Denying)
    return paths


def test_a_log_that_may_not_be_read_is_of_its_session_alone(folder: Path, denied: set[Path]) -> None:
    """Its session raises StoreUnavailable, which names it; the others go on, and an erasure says that it is left."""
    denied.add(log_of(folder))

    with opened(folder) as memory:
        assert [one.session for one in memory.sessions()] == ["b", "c"]
        assert sorted(one.session for one in memory.recall("heron", neighbours=0).passages) == ["b", "c"]
        for verb in (lambda: memory.session("a").entries(), lambda: memory.forget(session="a")):
            with pytest.raises(StoreUnavailable, match="a-"):
                verb()
        (told,) = memory.forget(matches="heron").remains
        assert str(log_of(folder)) in told
        denied.clear()
        assert [one.session for one in memory.sessions()] == ["a", "b", "c"]
        assert memory.forget(matches="heron").remains == ()


def test_where_no_log_may_be_read_a_listing_is_not_empty_but_an_error(folder: Path, denied: set[Path]) -> None:
    """A folder that was restored as another user does not look like one in which nothing is."""
    denied.update(folder.rglob("*.jsonl"))

    with opened(folder, readonly=True) as memory:
        for verb in (memory.sessions, memory.scopes, lambda: drive(memory.store.tenants())):
            with pytest.raises(StoreError, match="Permission denied"):
                verb()


def test_a_tenant_whose_folder_may_not_be_read_keeps_nobody_from_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other tenants are listed, a warning names the folder, and so does what goes through all of the store."""
    with opened(folder, tenant="other") as memory:
        memory.session("s").add_user_message("heron")
    (closed,) = folder.glob("other-*")
    names = disk.names

    def denying(where: str) -> list[str]:
        if Path(where) == closed:
            raise PermissionError(13, "Permission denied", where)
        return names(where)

    for module in (listing, scrubbing):
        monkeypatch.setattr(module, "names", denying)

    with opened(folder) as memory:
        assert "default" in drive(memory.store.tenants())
        assert [one for one in drive(memory.store.unread()) if str(closed) in one]
        assert str(closed) in str(memory.vacuum().remains)
    assert str(closed) in caplog.text


def test_facts_that_are_asked_for_by_name_are_not_passed_by(folder: Path, denied: set[Path]) -> None:
    """Whose log cannot be read is not taken for one that has nothing."""
    denied.add(log_of(folder, "working-w"))

    with opened(folder) as memory:
        with pytest.raises(StoreUnavailable, match="working-w"):
            memory.working("w").to_dict()
        assert str(log_of(folder, "working-w")) in str(memory.forget(matches="heron").remains)
        assert memory.sessions()[0].entries == 0
