"""The working memory of a session is copied, exported and imported with the session."""

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
    """Fill a session with facts, also in a scope beneath its own, and another session with a fact."""
    memory.session("a").add_user_message("hello")
    facts = memory.working("session/a")
    facts.set("when", datetime(2026, 1, 2, tzinfo=UTC), importance=0.9)
    facts.set("k", {1: (b"x",)})
    facts.set("k", "now", ttl="1d")
    memory.working("session/a/notes").set("n", 1)
    memory.session("a/b").add_user_message("hello")
    memory.working("session/a/b").set("other", 1)


def all_facts(memory: Memory, session: str) -> dict[str, Any]:
    """Return the facts in the scopes of a session."""
    own = f"session/{session}"
    return {scope.removeprefix(own): memory.working(scope).facts() for scope in memory.scopes(own)}


@pytest.mark.parametrize("where", ["sqlite:///{}/a.db", "file://{}/a"])
def test_a_branch_begins_with_the_facts_of_its_session(where: str, tmp_path: Path) -> None:
    """A branch begins with copies of its session's facts, and neither sees later changes of the other."""
    with Memory.open(where.format(tmp_path)) as memory:
        filled(memory)
        before = all_facts(memory, "a")
        memory.session("a").fork("branch")

        own = all_facts(memory, "branch")
        assert own == {"": before[""], "/notes": before["/notes"]}
        memory.working("session/branch").set("k", "mine")
        assert all_facts(memory, "a") == before


@pytest.mark.parametrize("written", [False, True])
def test_facts_are_exported_and_imported(written: bool) -> None:
    """Facts are imported with types, versions, histories, times and expiry, also under another id."""
    clock = FakeClock()
    with Memory.open("memory://", clock=clock) as memory, Memory.open("memory://", clock=clock) as other:
        filled(memory)
        out = io.BytesIO()
        memory.session("a").export_to(out)
        data = json.loads(out.getvalue()) if written else memory.session("a").export()
        other.import_session(data, session_id="x")

        before = all_facts(memory, "a")
        assert all_facts(other, "x") == {"": before[""], "/notes": before["/notes"]}
        second_export = other.session("x").export()
        assert second_export["facts"] == data["facts"]


def test_an_import_replaces_or_merges_facts() -> None:
    """An import with `replace` removes other facts; one with `merge` adds those that are missing."""
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
def test_a_malformed_fact_is_refused_by_place(change: dict[str, Any], told: str) -> None:
    """A malformed fact in an import raises ImportFailed with its place, and nothing is stored."""
    with Memory.open("memory://") as memory, Memory.open("memory://") as other:
        filled(memory)
        data = memory.session("a").export()
        data["facts"][0] |= change

        with pytest.raises(ImportFailed, match=told):
            other.import_session(data)
        assert (other.sessions(), other.scopes()) == ([], [])


def test_a_fact_that_comes_twice_is_refused() -> None:
    """A fact that occurs twice in an import is refused."""
    with Memory.open("memory://") as memory:
        filled(memory)
        data = memory.session("a").export()
        data["facts"].append(data["facts"][0])

        with pytest.raises(ImportFailed, match=r"facts\[3\]"):
            memory.import_session(data, session_id="x")


def test_facts_are_redacted_in_exports_and_imports() -> None:
    """Facts older than a policy are redacted in an export, and facts of an import are redacted in the store."""
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
