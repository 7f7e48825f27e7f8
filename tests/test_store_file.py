"""The file store: what its logs and folders look like, how ids become names, opening, and read-only stores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import commands
from commands import CHAT, write_lines
from filestore import KEY, OTHER, add, everything, files, log_of, opened, texts
from palimpsest import ConfigError, Conflict, Entry, Memory, StoreUnavailable
from palimpsest.errors import StoreCorrupt, StoreTooNew
from palimpsest.log.change import Change
from palimpsest.log.head import SessionKey
from palimpsest.runtime.runner import drive
from palimpsest.stores import Store
from palimpsest.stores.file import folder as folders
from palimpsest.testing import FakeClock
from processes import filled
from writer import SESSION, turn


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of the test's store."""
    return tmp_path / "logs"


@pytest.fixture
def store(folder: Path, clock: FakeClock) -> Iterator[Store]:
    """Yield an empty store in that folder, with a clock that stands still."""
    store = opened(folder, clock=clock)
    yield store
    drive(store.close())


# --- what a person sees


def test_a_log_is_readable_json_lines(store: Store, folder: Path) -> None:
    """Each line of a log is a JSON object that says what it does, with texts and reasons in plain words."""
    add(store, "Grüße aus Köln", "how are you?")
    drive(store.commit(KEY, Change(kind="pin", reason="kept", seqs=(1,))))
    add(store, "fine")

    first, *lines = [json.loads(line) for line in log_of(folder).read_text().splitlines()]

    assert (first["kind"], first["tenant"], first["home"]) == ("home", "tenant", "one")
    entries = [value for line in lines for value in line["values"] if "content" in value]
    assert [(entry["seq"], entry["content"]) for entry in entries] == [
        (1, "Grüße aus Köln"),
        (2, "how are you?"),
        (3, "fine"),
    ]
    assert [step["space"] for step in lines[1]["steps"]] == ["session", "log"]
    (record,) = [value for value in lines[1]["values"] if "reason" in value]
    assert (record["revision"], record["kind"], record["reason"]) == (2, "pin", "kept")
    assert [value for line in lines for value in line["values"] if "head" in value][-1]["head"]["pinned"] == [1]
    assert all(list(line)[-1] == "sum" for line in (first, *lines))
    assert "Grüße aus Köln" in log_of(folder).read_text()


def test_file_names_begin_with_the_ids_they_stand_for(store: Store, folder: Path) -> None:
    """Names of folders and logs begin with the tenant's, session's or namespace's id, so that a person finds them."""
    add(store, "a", key=SessionKey("Acme Corp.", "Support #7/2026"))
    drive(store.put_item("Acme Corp.", "Facts", "name", b"Ada"))

    (tenant,) = [entry for entry in folder.iterdir() if entry.is_dir()]
    items, log = sorted(tenant.glob("*.jsonl"))

    assert tenant.name.startswith("acme-corp-")
    assert log.name.startswith("support-7-2026-")
    assert items.name.startswith("facts-")
    first, line = map(json.loads, items.read_text().splitlines())
    assert first["home"] == "Facts"
    assert [(step["space"], step.get("name")) for step in line["steps"]] == [("item/Facts", "name"), ("order", None)]
    assert "Ada" in str(line["values"])


def test_a_commit_is_one_line(store: Store, folder: Path) -> None:
    """What is appended together is one line, whatever its texts hold."""
    add(store, "a\nb\r\n\u2028\x85", "c\ud800\n", "\x00")

    assert log_of(folder).read_bytes().count(b"\n") == 2
    assert texts(store) == ["a\nb\r\n\u2028\x85", "c\ud800\n", "\x00"]


# --- names

AWKWARD = ["../x", "..", ".", "a/b", "a\\b", "/etc/passwd", "a", "A", "ä", "a\u0308", "ß", "SS", "con", "x" * 256,
           "X" * 256, "content", "☂", "\U0001f600", "\ud800", " ", "a ", "a.", "-", "%2e%2e", "a:b", "*"]  # fmt: skip
IDS = st.text(min_size=1, max_size=256) | st.sampled_from(AWKWARD)


def as_a_lenient_file_system(path: str) -> str:
    """Return the path as a file system sees it that ignores case and accents."""
    return unicodedata.normalize("NFKC", path).casefold()


@given(one=st.tuples(IDS, IDS), other=st.tuples(IDS, IDS))
@example(one=("a", "bc"), other=("ab", "c"))
@example(one=("1:a", "b"), other=("1", ":ab"))
def test_no_two_ids_share_a_file(one: tuple[str, str], other: tuple[str, str]) -> None:
    """Different tenants or sessions have different files inside the store, even if case and accents do not count."""
    paths = [folders.log_of("/store", *key) for key in (one, other)]

    for path in paths:
        assert os.path.normpath(path) == path
        assert path.startswith("/store/")
        assert path.count("/") == 3
        assert all(len(part) < 128 for part in path.split("/"))
    assert (as_a_lenient_file_system(paths[0]) == as_a_lenient_file_system(paths[1])) == (one == other)


def test_awkward_ids_keep_their_own_texts(store: Store, folder: Path) -> None:
    """Sessions, tenants and namespaces with any characters have their own texts, all inside the folder."""
    ids = [id for id in AWKWARD if id != "\ud800"]
    for id in ids:
        add(store, id, key=SessionKey("t", id))
        add(store, id, key=SessionKey(id, "s"))
        drive(store.put_item("t", id, "k", id.encode()))

    assert [one.session for one in drive(store.sessions("t"))] == sorted(ids)
    for id in ids:
        assert texts(store, SessionKey("t", id)) == texts(store, SessionKey(id, "s")) == [id]
        assert drive(store.get_item("t", id, "k")).value == id.encode()
    assert [entry.name for entry in folder.parent.iterdir()] == ["logs"]


def test_a_log_copied_to_another_name_is_refused(store: Store, folder: Path) -> None:
    """A log under another session's name raises StoreCorrupt that says whose it is; its own session is unharmed."""
    add(store, "a")
    add(store, "b", key=OTHER)
    log_of(folder, OTHER).write_bytes(log_of(folder).read_bytes())

    for attempt in (lambda: drive(store.head(OTHER)), lambda: add(store, "x", key=OTHER)):
        with pytest.raises(StoreCorrupt, match=r"log of 'one' of tenant 'tenant'.*own name"):
            attempt()

    assert texts(store) == ["a"]


# --- opening


def test_addresses_are_relative_or_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`file:folder` is relative to the current folder at opening, and `file:

    /folder` is absolute.
    """
    monkeypatch.chdir(tmp_path)
    with Memory.open("file:some/logs") as memory:
        monkeypatch.chdir("/")
        memory.session("s").add_user_message("hello")

    with Memory.open(f"file://{tmp_path}/some/logs") as memory:
        assert [entry.text for entry in memory.session("s").entries()] == ["hello"]
    assert (tmp_path / "some" / "logs" / "palimpsest.json").exists()


@pytest.mark.parametrize("address", ["file:", "file://", "file://host/logs"])
def test_an_address_without_a_folder_is_refused(address: str) -> None:
    """An address that is neither a relative nor an absolute folder is refused with both forms."""
    with pytest.raises(ConfigError, match="file:relative/folder or file:///absolute/folder"):
        Memory.open(address)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"syncronous": "FULL"}, "did you mean 'synchronous'"),
        ({"synchronous": "OFF"}, "FULL or NORMAL"),
        ({"busy_seconds": -1}, "0 or more"),
        ({"readonly": 1}, "True or False"),
        ({"large_bytes": 1}, "at least 64"),
    ],
)
def test_invalid_options_create_no_folder(folder: Path, options: dict, says: str) -> None:
    """An invalid option raises ConfigError, and no folder is created."""
    with pytest.raises(ConfigError, match=says):
        Memory.open(f"file://{folder}", **options)

    assert not folder.exists()


def test_a_system_without_file_locks_is_advised_to_use_sqlite(folder: Path) -> None:
    """Without `fcntl`, as on Windows, opening raises ConfigError that names the SQLite store."""
    code = (
        "import sys; sys.modules['fcntl'] = None\n"
        "from palimpsest import ConfigError, Memory\n"
        f"try: Memory.open('file://{folder}')\n"
        "except ConfigError as error: print(error)"
    )
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout

    assert "sqlite:///agent.db" in output
    assert not folder.exists()


def photos(folder: Path) -> None:
    """Make a folder with a photo in it."""
    folder.mkdir()
    (folder / "photo.jpg").write_bytes(b"x")


def other_mark(folder: Path) -> None:
    """Make a folder with the mark of another program."""
    folder.mkdir()
    (folder / "palimpsest.json").write_text('{"kind":"something else","version":1}')


def broken_mark(folder: Path) -> None:
    """Make a folder with a mark that is cut off."""
    folder.mkdir()
    (folder / "palimpsest.json").write_text('{"kind":"palimps')


def a_file(folder: Path) -> None:
    """Make a file in the folder's place."""
    folder.write_text("Dear diary")


@pytest.mark.parametrize("make", [photos, other_mark, broken_mark, a_file])
@pytest.mark.parametrize("readonly", [False, True])
def test_a_foreign_folder_is_refused_untouched(folder: Path, make: Callable[[Path], None], readonly: bool) -> None:
    """A folder that is no store of ours raises StoreCorrupt that names it, and nothing in it changes."""
    make(folder)
    before = sorted(folder.rglob("*")), everything(folder)

    with pytest.raises(StoreCorrupt, match="logs"):
        Memory.open(f"file://{folder}", readonly=readonly)

    assert (sorted(folder.rglob("*")), everything(folder)) == before


def test_a_store_of_a_newer_version_is_refused(folder: Path) -> None:
    """A store of a newer version raises StoreTooNew with both versions."""
    folder.mkdir()
    (folder / "palimpsest.json").write_text('{"kind":"palimpsest/files","version":7}')

    with pytest.raises(StoreTooNew, match=r"7.*upgrade") as caught:
        Memory.open(f"file://{folder}")

    assert (caught.value.found, caught.value.known) == (7, 3)


def test_an_empty_folder_becomes_a_store(folder: Path) -> None:
    """A folder that is empty, or has only a mark that was never finished, becomes a store."""
    folder.mkdir()
    (folder / "palimpsest.json.new").write_text("{")

    with Memory.open(f"file://{folder}") as memory:
        memory.session("s").add_user_message("hello")

    assert [entry.name for entry in folder.iterdir() if entry.is_file()] == ["palimpsest.json"]


def test_a_read_only_store_changes_nothing(folder: Path) -> None:
    """With `readonly=True` everything can be read, every write raises StoreUnavailable, and no file changes."""
    texts_before = filled(f"file://{folder}")
    before = sorted(folder.rglob("*")), everything(folder)

    with Memory.open(f"file://{folder}", readonly=True) as memory:
        session = memory.session(SESSION, counter=len, max_tokens=100)
        session.context()
        for write in (
            lambda: session.add_user_message("no"),
            lambda: session.erase([1]),
            session.clear,
            session.fork,
            lambda: memory.delete_session(SESSION),
            memory.sweep,
            lambda: memory.import_session(session.export(), session_id="copy"),
            lambda: drive(memory.store.put_item("t", "n", "k", b"")),
            lambda: drive(memory.store.lease("t", "l", "h", 1)),
        ):
            with pytest.raises(StoreUnavailable, match="readonly=True"):
                write()
        assert [entry.text for entry in session.entries()] == texts_before

    assert (sorted(folder.rglob("*")), everything(folder)) == before


def test_read_only_creates_no_store(folder: Path) -> None:
    """With `readonly=True` a missing or empty folder raises StoreUnavailable, and nothing is created."""
    for _ in ("missing", "empty"):
        with pytest.raises(StoreUnavailable, match="there is no store"):
            Memory.open(f"file://{folder}", readonly=True)
        folder.mkdir(exist_ok=True)

    assert list(folder.iterdir()) == []


def test_a_refused_append_leaves_no_log(store: Store, folder: Path) -> None:
    """An append to a new session that raises, or is empty, creates no file."""
    with pytest.raises(Conflict):
        drive(store.append(KEY, [Entry(id="x", content="a"), Entry(id="x", content="b")], check_ids=True))
    drive(store.append(KEY, []))

    assert files(folder, "*.jsonl") == []


# --- used as users do


def test_a_turn_comes_back_from_the_folder(folder: Path) -> None:
    """A whole turn added through Memory comes back from the folder as it was."""
    with Memory.open(f"file://{folder}") as memory:
        memory.session(SESSION).add(turn("one"))

    with Memory.open(f"file://{folder}") as memory:
        assert memory.session(SESSION).context().messages == turn("one")


def test_reading_commands_create_no_folder(here: Path) -> None:
    """A command that reads refuses a missing folder and does not create it; `import` creates it."""
    write_lines(here / "chat.jsonl", CHAT)
    assert commands.run("sessions", "--store", "file:logs").exit_code != 0
    assert not (here / "logs").exists()

    assert commands.run("import", "chat.jsonl", "--session", "chat", "--store", "file:logs").exit_code == 0

    assert "chat" in commands.run("sessions", "--store", f"file://{here}/logs").output
