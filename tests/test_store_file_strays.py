"""A file that cannot be read, or that is no log, costs no other session of its tenant, and is named."""

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
    """Open a memory over the store in this folder."""
    return Memory.open(f"file://{folder}", synchronous="NORMAL", **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with three sessions and a fact."""
    folder = tmp_path / "logs"
    with opened(folder) as memory:
        for name in "abc":
            memory.session(name, user="ann").add_user_message(f"the heron of {name}")
        memory.working("w").set("bird", "heron")
    return folder


def log_of(folder: Path, name: str = "a") -> Path:
    """Return the log of a home."""
    (log,) = folder.rglob(f"{name}-*.jsonl")
    return log


def copied(log: Path) -> Path:
    """Copy the log beside itself, as a file manager does."""
    return Path(shutil.copy(log, log.with_name("a copy.jsonl")))


def renamed(log: Path) -> Path:
    """Give the log another name."""
    return log.rename(log.with_name("a.jsonl"))


def another(log: Path) -> Path:
    """Put another session's log in its place."""
    (other,) = log.parent.glob("b-*.jsonl")
    return Path(shutil.copy(other, log))


def no_log(log: Path) -> Path:
    """Put a text that is no log beside it."""
    (stray := log.with_name("notes.jsonl")).write_text("a text\n")
    return stray


def spoilt(log: Path) -> Path:
    """Put a text that is no log in its place."""
    log.write_text("a text\n")
    return log


def a_folder(log: Path) -> Path:
    """Make a folder beside it with a log's name."""
    (stray := log.with_name("old.jsonl")).mkdir()
    return stray


def a_loop(log: Path) -> Path:
    """Make a link to itself beside it, which the system refuses to open."""
    (stray := log.with_name("link.jsonl")).symlink_to("link.jsonl")
    return stray


STRAYS = (copied, renamed, another, no_log, spoilt, a_folder, a_loop)


@pytest.mark.parametrize("stray", STRAYS, ids=lambda item: item.__name__)
def test_one_bad_file_costs_no_other(
    folder: Path, stray: Callable[[Path], Path], caplog: pytest.LogCaptureFixture
) -> None:
    """One bad file stops no list, search, read, write or fork of others, and a warning names it once."""
    path = stray(log_of(folder))
    readable = [name for name in "abc" if not (name == "a" and stray in (renamed, another, spoilt))]

    with opened(folder) as memory:
        assert [item.session for item in memory.sessions()] == readable
        assert sorted(item.session for item in memory.sessions(order="latest")) == readable
        assert [item.session for item in memory.sessions(user="ann")] == readable
        assert sorted(item.session for item in memory.recall("heron", neighbours=0).passages) == readable
        assert memory.scopes() == ["w"]
        assert memory.session("b").add_user_message("more").seq == 2
        assert len(memory.session("b").fork("branch").entries()) == 2
        assert drive(memory.store.tenants())[-1] == memory.tenant

    warnings = [item.getMessage() for item in caplog.records if "is not listed" in item.getMessage()]
    assert len(warnings) == 1
    assert str(path) in warnings[0]


@pytest.mark.parametrize("stray", STRAYS, ids=lambda log: log.__name__)
def test_an_erasure_names_the_files_it_cannot_reach(folder: Path, stray: Callable[[Path], Path]) -> None:
    """`forget` erases all the rest, names the bad file in `remains`, dry or not, and leaves it as it was."""
    path = stray(log_of(folder))
    held = path.read_bytes() if path.is_file() else b""

    with opened(folder) as memory:
        assert str(path) in str(memory.scan("default").remains)
        for subject in ({"matches": "heron"}, {"user": "ann"}, {"tenant": memory.tenant}):
            for dry_run in (True, False):
                report = memory.forget(**subject, dry_run=dry_run)
                assert [remainder for remainder in report.remains if str(path) in remainder], subject
        assert memory.sessions() == []
        assert str(path) in str(memory.vacuum().remains)

    remaining = [log for log in folder.rglob("*.jsonl") if log.is_file() and b"heron" in log.read_bytes()]
    assert remaining == [path] * (b"heron" in held)
    assert not path.is_file() or path.read_bytes() == held


def test_erasing_a_session_names_its_copy(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Erasing a session names a copy of its log, and no other: `forget` returns it, `delete_session` warns of it."""
    path = copied(log_of(folder))

    with opened(folder) as memory:
        assert memory.forget(session="b").remains == ()
        assert memory.delete_session("c")
        assert "was deleted" not in caplog.text
        (remainder,) = memory.forget(session="a").remains
        assert str(path) in remainder
        memory.session("a").add_user_message("again")
        assert memory.delete_session("a")

    assert f"session 'a' was deleted, but damaged data that cannot be read may still hold it: {path}" in caplog.text


def test_a_sweep_does_everything_else_and_names_the_file(folder: Path) -> None:
    """A sweep erases what has expired elsewhere before it raises that a file could not be read."""
    with opened(folder) as memory:
        memory.session("short", lifetime="1s").add_user_message("sesame")
    path = copied(log_of(folder))

    with opened(folder, clock=lambda: now_us() + 60_000_000) as memory:
        with pytest.raises(StoreCorrupt, match="a copy"):
            memory.sweep()
        assert memory.forget(session="short").unknown

    assert b"sesame" not in b"".join(log.read_bytes() for log in folder.rglob("*.jsonl") if log != path)


def test_the_doctor_names_the_file(folder: Path) -> None:
    """`palimpsest doctor` names the bad file and exits with 1."""
    path = copied(log_of(folder))

    result = run("doctor", "--store", f"file://{folder}", "--json")

    assert result.exit_code == 1
    assert str(path) in result.stdout.replace("\\n", "")
    assert "move it out of the folder" in result.stdout
    assert "then do what the message says" in result.stdout


def test_a_copy_of_a_store_copies_everything_else_and_names_the_file(folder: Path, tmp_path: Path) -> None:
    """`copy_store` copies all that can be read before it raises StoreCorrupt with the file's name."""
    path = renamed(log_of(folder))

    for tenants in (None, ["default"]):
        with pytest.raises(StoreCorrupt, match=str(path)):
            copy_store(f"file://{folder}", f"sqlite:///{tmp_path}/new.db", tenants=tenants)

    with Memory.open(f"sqlite:///{tmp_path}/new.db") as memory:
        assert [info.session for info in memory.sessions()] == ["b", "c"]


def test_a_change_of_keys_names_what_it_cannot_read(tmp_path: Path) -> None:
    """`rotate_keys` brings the rest under the new key, and raises with the file that needs the old one."""
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
    """Return the set of files that the system does not let this process open."""
    paths = set[Path]()

    class Denying(FileIO):
        def __init__(self, file: Any, *arguments: Any, **options: Any) -> None:
            if Path(file) in paths:
                raise PermissionError(13, "Permission denied", str(file))
            super().__init__(file, *arguments, **options)

    for module in (backend, disk):
        monkeypatch.setattr(module, "FileIO", Denying)
    return paths


def test_a_log_without_read_permission_costs_no_other_session(folder: Path, denied: set[Path]) -> None:
    """A log without read permission raises StoreUnavailable in its session alone.

    Others are read, and an erasure names what is left.
    """
    denied.add(log_of(folder))

    with opened(folder) as memory:
        assert [item.session for item in memory.sessions()] == ["b", "c"]
        assert sorted(item.session for item in memory.recall("heron", neighbours=0).passages) == ["b", "c"]
        for verb in (lambda: memory.session("a").entries(), lambda: memory.forget(session="a")):
            with pytest.raises(StoreUnavailable, match="a-"):
                verb()
        (remainder,) = memory.forget(matches="heron").remains
        assert str(log_of(folder)) in remainder
        denied.clear()
        assert [item.session for item in memory.sessions()] == ["a", "b", "c"]
        assert memory.forget(matches="heron").remains == ()


def test_a_listing_without_readable_logs_raises(folder: Path, denied: set[Path]) -> None:
    """A listing raises an error where no log may be read, instead of being empty."""
    denied.update(folder.rglob("*.jsonl"))

    with opened(folder, readonly=True) as memory:
        for verb in (memory.sessions, memory.scopes, lambda: drive(memory.store.tenants())):
            with pytest.raises(StoreError, match="Permission denied"):
                verb()


def test_a_tenant_without_read_permission_costs_no_other_tenant(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A tenant's folder without read permission is named in a warning, and other tenants are listed."""
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
        assert [path for path in drive(memory.store.unread()) if str(closed) in path]
        assert str(closed) in str(memory.vacuum().remains)
    assert str(closed) in caplog.text


def test_facts_read_by_name_raise_if_their_log_cannot_be_read(folder: Path, denied: set[Path]) -> None:
    """Reading facts whose log may not be read raises StoreUnavailable instead of returning none."""
    denied.add(log_of(folder, "working-w"))

    with opened(folder) as memory:
        with pytest.raises(StoreUnavailable, match="working-w"):
            memory.working("w").to_dict()
        assert str(log_of(folder, "working-w")) in str(memory.forget(matches="heron").remains)
        assert memory.sessions()[0].entries == 0
