"""A session with unreadable parts can be exported, on request, without what is damaged."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from commands import START, run
from palimpsest import Memory, Session
from palimpsest.errors import StoreCorrupt
from palimpsest.stores.backend import PlaceHead, Row
from palimpsest.stores.encrypted import Encryption
from palimpsest.stores.engine.forms import LAST
from sealed import FIRST
from vaults import Vault
from writer import quarters

KINDS = ("memory", "sqlite", "file")
WORLDS = [(kind, keys) for kind in KINDS for keys in (None, FIRST)]
NAMES = [f"{'sealed ' if keys else ''}{kind}" for kind, keys in WORLDS]


class World:
    """A session in a vault with two compactions, a cut and a pin."""

    def __init__(self, kind: str, keys: Encryption | None, folder: Path) -> None:
        self.vault, self.keys = Vault.of(kind, folder), keys
        with self.memory() as memory:
            chat = self.session(memory)
            for part in range(2):
                for number in range(6):
                    chat.add_user_message(f"question {part} {number}: " + "why? " * 40)
                    chat.add_assistant_message("because " * 40)
                chat.compact()
            for number in range(6):
                chat.add_user_message(f"and {number}: " + "why? " * 40)
            assert memory.session("s", counter=quarters, auto_compact="off", max_tokens=500).context().epoch
            chat.pin(chat.entries()[-1].id)
            chat.erase(self.session(memory).add_user_message("gone").id)
            chat.working.set("to", "Oslo")
            memory.working("session/s/trip").set("from", "Rome")
            self.revisions = {one.kind: one.revision for one in chat.history()}
            self.first = min(one.revision for one in chat.history() if one.kind == "compact")

    def memory(self) -> Memory:
        return self.vault.memory(self.keys)

    @staticmethod
    def session(memory: Memory, name: str = "s") -> Session:
        return memory.session(name, counter=quarters, auto_compact="off", max_tokens=100_000)

    def damage(self, table: str, key: int, *, gone: bool = False) -> None:
        """Change or remove a stored row."""
        slot, there = next(
            (slot, one) for slot, one in self.vault.contents().items() if slot.table == table and slot.key & LAST == key
        )
        assert isinstance(there, Row)
        self.vault.put({slot: None if gone else there._replace(value=there.value[:-9] + bytes(9))})

    def texts(self) -> list[str]:
        with self.memory() as memory:
            return [entry.text for entry in self.session(memory).entries()]


@pytest.fixture(params=WORLDS, ids=NAMES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(*request.param, tmp_path)


def written(chat: Session, left_out: Callable[[str], object] | None, **options: Any) -> Any:
    """Return what `export_to` writes."""
    out = io.BytesIO()
    chat.export_to(out, left_out=left_out, **options)
    return json.loads(out.getvalue())


def test_left_out_changes_nothing_for_a_sound_session(world: World) -> None:
    """With `left_out`, a sound session is exported completely and nothing is reported."""
    with world.memory() as memory:
        chat, told = world.session(memory), list[str]()

        found, plain = chat.export(left_out=told.append), chat.export()

        assert told == []
        assert found | {"exported_at": ""} == plain | {"exported_at": ""}


@pytest.mark.parametrize("which", ["first", "compact", "cut", "pin"])
@pytest.mark.parametrize("gone", [False, True])
def test_a_damaged_record_and_its_dependents_are_left_out(world: World, which: str, *, gone: bool) -> None:
    """A damaged record refuses the export; with `left_out` everything else is exported and can be imported."""
    revision = world.first if which == "first" else world.revisions[which]
    before = world.texts()
    world.damage("record", revision, gone=gone)

    with world.memory() as memory:
        chat, told, again = world.session(memory), list[str](), list[str]()
        if not gone or world.keys:  # otherwise the store has no trace of the entry
            for refused in (chat.export, lambda: written(chat, None)):
                with pytest.raises(StoreCorrupt):
                    refused()
        found, same = chat.export(left_out=told.append), written(chat, again.append)
        messages = written(chat, again.append, format="openai")

    assert found | {"exported_at": ""} == same | {"exported_at": ""}
    assert bool(told) or (gone and not world.keys)
    assert revision not in [one["revision"] for one in found["records"]]
    assert messages
    with Memory.open("memory://") as other:
        other.import_session(found)
        copy = world.session(other)
        assert [entry.text for entry in copy.entries()] == before
        assert copy.verify().ok
        assert copy.context().messages
        assert copy.working.get("to") == "Oslo"


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("seqs", [(1,), (5, 6), (30,)])
def test_a_tombstone_replaces_a_missing_or_damaged_entry(world: World, seqs: tuple[int, ...], *, gone: bool) -> None:
    """A missing entry refuses the export, a damaged one is set aside; with `left_out` a tombstone replaces either."""
    before = world.texts()
    for seq in seqs:
        world.damage("entry", seq, gone=gone)

    with world.memory() as memory:
        chat, told = world.session(memory), list[str]()
        if gone:
            with pytest.raises(StoreCorrupt):
                chat.export()
        found = chat.export(left_out=told.append)

    assert len(told) == len(seqs)
    with Memory.open("memory://") as other:
        other.import_session(found)
        copy = world.session(other)
        texts = ["" if i in seqs else text for i, text in enumerate(before, 1)]
        assert [entry.text for entry in copy.entries()] == texts
        assert copy.verify().ok


def test_a_missing_call_is_exported_as_a_tombstone_with_its_result(tmp_path: Path) -> None:
    """A missing call is exported as a tombstone that its result answers, so that an import succeeds."""
    vault = Vault.of("sqlite", tmp_path)
    with vault.memory(None) as memory:
        chat = World.session(memory)
        for number in range(513):
            chat.add_user_message(f"question {number}")
        call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        chat.add({"role": "assistant", "content": None, "tool_calls": [call]})
        chat.add({"role": "tool", "tool_call_id": "c", "content": "found"})
        seqs = [entry.seq for entry in chat.entries() if entry.kind == "tool_call"]
    for seq in (512, *seqs):
        slot = next(slot for slot in vault.contents() if slot.table == "entry" and slot.key & LAST == seq)
        vault.put({slot: None})

    with vault.memory(None) as memory:
        told = list[str]()
        found = World.session(memory).export(left_out=told.append)

    assert told == ["entry 512 is missing", f"entry {seqs[0]} is missing"]
    with Memory.open("memory://") as other:
        other.import_session(found)
        assert other.session("s").entries()[-1].text == "found"


def test_a_damaged_fact_leaves_out_its_scope_alone(world: World) -> None:
    """The other scopes of the session come along."""
    slot, there = next(
        (slot, one)
        for slot, one in world.vault.contents().items()
        if slot.place.space == "item/working/session/s/trip" and isinstance(one, PlaceHead)
    )
    world.vault.put({slot: replace(there, cold=there.cold[:-9] + bytes(9))})

    with world.memory() as memory:
        chat, told = world.session(memory), list[str]()
        with pytest.raises(StoreCorrupt):
            chat.export()
        found = chat.export(left_out=told.append)

    assert [fact["key"] for fact in found["facts"]] == ["to"]
    assert len(told) == 1
    assert "session/s/trip" in told[0]


def test_a_policy_redacts_the_rest_of_a_damaged_session(world: World) -> None:
    """A policy holds for the rest of a session, too."""
    world.damage("record", world.revisions["pin"])

    with world.vault.memory(world.keys, privacy={"redact_patterns": ["because"]}) as memory:
        found = world.session(memory).export(left_out=lambda _: None)

    assert found["entries"]
    assert "because" not in json.dumps(found)


@pytest.mark.parametrize("format", ["palimpsest", "openai", "text"])
def test_the_export_command_names_damage_and_how_to_continue(tmp_path: Path, format: str) -> None:
    """`export` refuses damage; with --leave-out-damaged it writes the rest, names what is missing and exits with 1."""
    world = World("sqlite", None, tmp_path)
    world.damage("record", world.revisions["compact"])
    words = ["export", "s", "--store", world.vault.address, "--format", format]

    refused, done = run(*words), run(*words, "--leave-out-damaged")
    told, into = run(*words, "--leave-out-damaged", "--json"), run(*words, "--leave-out-damaged", "-o", f"{tmp_path}/s")

    revision = f"the record of revision {world.revisions['compact']} of session 's' cannot be read"
    assert [one.exit_code for one in (refused, done, told, into)] == [5, 1, 1, 1]
    assert refused.stdout == ""
    assert revision in refused.stderr
    assert "--leave-out-damaged" in refused.stderr
    assert "question 0 0" in done.stdout
    assert revision in done.stderr
    assert json.loads(told.stdout)
    assert any(revision in json.loads(line)["warning"] for line in told.stderr.splitlines())
    assert "question 0 0" in (tmp_path / "s").read_text()
    assert revision in into.stderr


def test_leave_out_damaged_changes_nothing_for_a_sound_session(tmp_path: Path) -> None:
    """The option alone changes nothing, nor the exit status."""
    world = World("sqlite", None, tmp_path)

    for format in ("palimpsest", "openai", "text"):
        words = ["export", "s", "--store", world.vault.address, "--format", format]
        done, same = run(*words, "--leave-out-damaged"), run(*words)
        assert (done.exit_code, done.stderr) == (0, "")
        assert len(done.stdout) == len(same.stdout)


def test_warnings_are_json_lines_with_the_json_option(tmp_path: Path) -> None:
    """With --json a warning of the library is a JSON line."""
    world = World("sqlite", None, tmp_path)
    world.damage("entry", 3)
    words = [*START, "show", "s", "--all", "--store", world.vault.address]

    done, plain = (
        subprocess.run([*words, *more], capture_output=True, text=True, check=False) for more in (["--json"], [])
    )

    assert (done.returncode, plain.returncode) == (0, 0)
    (line,) = done.stderr.splitlines()
    assert "entry 3 of session 's' cannot be read" in json.loads(line)["warning"]
    assert plain.stderr.startswith("Warning: ")


def test_an_empty_output_name_is_refused(tmp_path: Path) -> None:
    """A shell gives it for a variable that is not set: it was said to be a folder."""
    done = run("export", "s", "--store", World("sqlite", None, tmp_path).vault.address, "-o", "")

    assert done.exit_code == 2
    assert "--output is empty" in done.stderr
