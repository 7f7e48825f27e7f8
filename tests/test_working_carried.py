"""A session's working memory is exported, imported and branched with it."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from palimpsest import ImportFailed, Memory
from palimpsest.testing.clock import FakeClock


def filled(memory: Memory) -> None:
    """Make a session with facts, a scope beneath, and a scope of somebody else."""
    memory.session("a").add_user_message("hello")
    facts = memory.working("session/a")
    facts.set("when", datetime(2026, 1, 2, tzinfo=UTC), importance=0.9)
    facts.set("k", {1: (b"x",)})
    facts.set("k", "now", ttl="1d")
    memory.working("session/a/notes").set("n", 1)
    memory.session("a/b").add_user_message("hello")
    memory.working("session/a/b").set("other", 1)


def all_facts(memory: Memory, session: str) -> dict[str, Any]:
    """Return the facts in a session's scopes."""
    own = f"session/{session}"
    return {scope.removeprefix(own): memory.working(scope).facts() for scope in memory.scopes(own)}


@pytest.mark.parametrize("where", ["sqlite:///{}/a.db", "file://{}/a"])
def test_a_branch_begins_with_the_facts_of_its_session(where: str, tmp_path: Path) -> None:
    """Copies of them: neither sees what becomes of the other's."""
    with Memory.open(where.format(tmp_path)) as memory:
        filled(memory)
        before = all_facts(memory, "a")
        memory.session("a").fork("branch")

        own = all_facts(memory, "branch")
        assert own == {"": before[""], "/notes": before["/notes"]}
        memory.working("session/branch").set("k", "mine")
        assert all_facts(memory, "a") == before


@pytest.mark.parametrize("written", [False, True])
def test_facts_come_back_out_of_an_export(written: bool) -> None:
    """Values with their types, versions, histories, times and expiry, under another id, too; others' are not in it."""
    clock = FakeClock()
    with Memory.open("memory://", clock=clock) as memory, Memory.open("memory://", clock=clock) as other:
        filled(memory)
        out = io.BytesIO()
        memory.session("a").export_to(out)
        data = json.loads(out.getvalue()) if written else memory.session("a").export()
        other.import_session(data, session_id="x")

        before = all_facts(memory, "a")
        assert all_facts(other, "x") == {"": before[""], "/notes": before["/notes"]}
        again = other.session("x").export()
        assert again["facts"] == data["facts"]


def test_an_import_replaces_or_merges_facts() -> None:
    """An import with "replace" replaces facts; with "merge" it adds missing ones."""
    with Memory.open("memory://") as memory:
        filled(memory)
        data = memory.session("a").export()
        facts = memory.working("session/a")
        facts.set("when", "changed")
        facts.set("new", 1)
        facts.delete("k")
        memory.import_session(data, on_conflict="merge")
        assert facts.to_dict() == {"when": "changed", "new": 1, "k": "now"}

        memory.import_session(data, on_conflict="replace")
        assert facts.to_dict() == {"when": datetime(2026, 1, 2, tzinfo=UTC), "k": "now"}
        assert memory.working("session/a/b").get("other") == 1


PAST = {"value": 1, "version": 9, "since": "2025-01-01T00:00:00Z", "superseded_at": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"key": ""}, r"facts\[0\]"),
        ({"key": 7}, r"facts\[0\]"),
        ({"more": 1}, "more"),
        ({"importance": 2}, "importance"),
        ({"version": 0}, "version"),
        ({"created_at": "2026-01-01T00:00:00"}, "time zone"),
        ({"scope": "a//b"}, "scope"),
        ({"value": {"$set": 1}}, "value"),
        ({"history": [PAST]}, "version"),
    ],
)
def test_what_is_no_fact_is_refused_by_place(change: dict[str, Any], told: str) -> None:
    """An invalid fact in an export is refused by its place, and nothing is stored."""
    with Memory.open("memory://") as memory, Memory.open("memory://") as other:
        filled(memory)
        data = memory.session("a").export()
        data["facts"][0] |= change

        with pytest.raises(ImportFailed, match=told):
            other.import_session(data)
        assert (other.sessions(), other.scopes()) == ([], [])


def test_a_fact_that_comes_twice_is_refused() -> None:
    """The second would take the place of the first."""
    with Memory.open("memory://") as memory:
        filled(memory)
        data = memory.session("a").export()
        data["facts"].append(data["facts"][0])

        with pytest.raises(ImportFailed, match=r"facts\[3\]"):
            memory.import_session(data, session_id="x")


def test_nothing_private_leaves_or_comes_in_a_fact() -> None:
    """A privacy policy redacts facts in exports and imports."""
    marker = "ann@example.org"
    with Memory.open("memory://") as memory, Memory.open("memory://", privacy="default") as strict:
        memory.session("a").add_user_message("hello")
        memory.working("session/a").set("k", [marker])
        memory.working("session/a").set("k", {"x": marker})
        data = memory.session("a").export()
        strict.import_session(data)

        assert marker not in repr(strict.working("session/a").facts())
        data["facts"][0]["key"] = marker
        with pytest.raises(ImportFailed) as caught:
            strict.import_session(data, session_id="b")
        assert marker not in str(caught.value)
