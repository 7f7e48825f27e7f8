"""Facts go with their sessions, users and texts, and nothing private is stored in one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from palimpsest import ConfigError, Memory, Query, Redactor
from palimpsest.runtime.runner import drive
from palimpsest.stores.engine.items import Items
from palimpsest.stores.values import Put
from palimpsest.testing.clock import FakeClock

MARKER = "ann@example.org"


@pytest.fixture(params=["sqlite", "file", "sealed"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """Return the address of an empty store, and the options to open it with."""
    where = f"file://{tmp_path}/a" if request.param == "file" else f"sqlite:///{tmp_path}/a.db"
    return where, {"encryption": {"k": "a" * 64}} if request.param == "sealed" else {}


@pytest.fixture
def memory(opened: tuple[str, dict[str, Any]]) -> Iterator[Memory]:
    """Yield an open memory."""
    where, options = opened
    with Memory.open(where, **options) as memory:
        yield memory


def filled(memory: Memory) -> None:
    """Fill sessions and scopes, some of them with ids that begin alike."""
    for session in ("a", "a/b", "ab"):
        memory.session(session, user="ann" if session == "a" else None).add_user_message("hello")
    for scope in ("session/a", "session/a/notes", "session/a/b", "session/ab", "user/ann", "user/ann/x", "user/anna"):
        memory.working(scope).set("k", scope)


def test_deleting_a_session_deletes_its_facts(memory: Memory) -> None:
    """However a session is deleted, its facts go with it, and not those of another whose id begins alike."""
    filled(memory)
    remaining = ["session/a/b", "session/ab", "user/ann", "user/ann/x", "user/anna"]

    preview = memory.forget(session="a", dry_run=True)
    assert (preview.items, preview.dry_run) == ({"working/session/a": 1, "working/session/a/notes": 1}, True)
    assert memory.working("session/a").has("k")

    assert memory.forget(session="a").items == preview.items
    assert memory.scopes() == remaining
    memory.session("a").add_user_message("hello")
    memory.working("session/a").set("k", 1)
    assert memory.delete_session("a")
    assert memory.scopes() == remaining


def test_no_byte_of_facts_replaced_by_an_import_is_left(memory: Memory, tmp_path: Path) -> None:
    """No file has a byte of values or histories of facts, in any scope of a session, that an import replaced."""
    session = memory.session("a")
    session.add_user_message("hello")
    data = session.export()
    for scope in ("session/a", "session/a/notes"):
        memory.working(scope).set("k", f"an older {MARKER}")
        memory.working(scope).set("k", MARKER)
    memory.delete_session("nobody")  # this moves earlier writes from the journal into the file

    memory.import_session(data, on_conflict="replace")

    assert memory.scopes() == []
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.name for path in files if MARKER.encode() in path.read_bytes()] == []


@pytest.mark.parametrize("again", [False, True])
def test_a_sweep_leaves_no_byte_of_an_expired_fact(
    opened: tuple[str, dict[str, Any]], tmp_path: Path, again: bool
) -> None:
    """A sweep destroys expired facts to the last byte, also those under whose key somebody has set another since."""
    where, options = opened
    clock = FakeClock()
    with Memory.open(where, clock=clock, **options) as memory:
        facts = memory.working("user/ann")
        facts.set("seat", MARKER, ttl="1h")
        facts.set("other", MARKER, ttl="2h")
        clock.advance(3 * 3600)
        if again:
            facts.set("seat", "4A")

        assert memory.sweep() == (1 if again else 2)

        assert facts.keys() == (["seat"] if again else [])
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert [path.name for path in files if MARKER.encode() in path.read_bytes()] == []


def test_a_sweep_destroys_what_was_set_over_an_expired_fact(opened: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    """If every expired fact was replaced before the sweep, it still leaves no byte of them."""
    where, options = opened
    clock = FakeClock()
    with Memory.open(where, clock=clock, **options) as memory:
        facts = memory.working("user/ann")
        facts.set("seat", MARKER, ttl="1h")
        clock.advance(2 * 3600)
        facts.set("seat", "4A")

        assert memory.sweep() == 0

        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert [path.name for path in files if MARKER.encode() in path.read_bytes()] == []
        assert facts.get("seat") == "4A"


def test_erasing_a_user_erases_their_facts(memory: Memory) -> None:
    """Erasing a user erases the facts of the user and of the user's sessions, and nobody else's."""
    filled(memory)

    preview = memory.forget(user="ann", dry_run=True)
    report = memory.forget(user="ann")

    assert preview.items == report.items
    assert report.sessions == ("a",)
    assert sorted(report.items) == [
        "working/session/a",
        "working/session/a/notes",
        "working/user/ann",
        "working/user/ann/x",
    ]
    assert memory.scopes() == ["session/a/b", "session/ab", "user/anna"]


def test_erasing_a_user_with_facts_alone_succeeds(memory: Memory) -> None:
    """Erasing a user with facts alone succeeds, and erasing one with nothing says that the user is unknown."""
    memory.working("user/eve").set("k", 1)

    assert memory.forget(user="eve").unknown == ""
    assert "eve" in memory.forget(user="eve").unknown


def test_an_expired_session_loses_its_facts(opened: tuple[str, dict[str, Any]]) -> None:
    """Facts of a session go with it when its lifetime ends, and in a sweep of sessions that nobody uses."""
    where, options = opened
    clock = FakeClock()
    with Memory.open(where, clock=clock, **options) as memory:
        memory.session("short", lifetime="1h").add_user_message("hello")
        memory.session("idle").add_user_message("hello")
        for session in ("short", "idle"):
            memory.working(f"session/{session}").set("k", 1)
        clock.advance(2 * 3600)
        memory.sweep()
        assert memory.scopes() == ["session/idle"]
        memory.sweep(untouched_for="1h")
        assert memory.scopes() == []


@pytest.mark.parametrize("where", ["value", "key", "inside", "history", "bytes", "escaped"])
def test_facts_that_mention_a_text_are_erased(memory: Memory, where: str) -> None:
    """Erasing a text erases facts that hold it in a value, a key or a history, and no others."""
    facts = memory.working("a")
    facts.set("other", "nothing")
    key = MARKER.upper() if where == "key" else "k"
    value: Any = {"value": MARKER, "inside": ({"x": [f"to {MARKER}"]},), "bytes": MARKER.encode()}.get(where, 1)
    if where == "escaped":
        value = '{"to": "ann\\u0040example.org"}'
    facts.set(key, MARKER if where == "history" else value)
    if where == "history":
        facts.set(key, 1)

    assert memory.forget(matches=MARKER, dry_run=True).items == {"working/a": 1}
    assert memory.forget(matches=MARKER).items == {"working/a": 1}

    assert facts.to_dict() == {"other": "nothing"}
    assert not memory.forget(matches=MARKER)


def test_a_search_of_facts_ignores_the_stored_encoding(memory: Memory) -> None:
    """A search of facts sees what values say, and not how the store writes their types."""
    facts = memory.working("a")
    facts.set("k", {"on": date(2026, 1, 2), "raw": b"\xd7m\xf8\xe7\xae\xfc", 7: (Decimal("1.50"), {UUID(int=7)})})

    for word in ("date", "$", "tuple", "123456", "1234"):
        assert not memory.forget(matches=word, dry_run=True)
    for text in ("2026-01-02", "1.50", str(UUID(int=7)), "on", "7"):
        assert memory.forget(matches=text, dry_run=True).items == {"working/a": 1}


def test_no_byte_of_an_erased_fact_is_left(opened: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    """No file of the store has a byte of an erased fact's value after a vacuum."""
    where, options = opened
    with Memory.open(where, **options) as memory:
        facts = memory.working("a")
        facts.set("k", MARKER)
        facts.set("k", "now")
        memory.forget(matches=MARKER)
        memory.vacuum()
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or MARKER.encode() not in path.read_bytes()


@pytest.mark.parametrize("destroyed", ["sweep", "forget", "scan"])
def test_no_byte_of_an_expired_fact_is_left(opened: tuple[str, dict[str, Any]], tmp_path: Path, destroyed: str) -> None:
    """No file has a byte of an expired fact or its history after a sweep, nor after what searches for texts."""
    where, options = opened
    clock = FakeClock(1_700_000_000_000_000)
    with Memory.open(where, clock=clock, **options) as memory:
        facts = memory.working("user/ann")
        facts.set("former", f"an older {MARKER}", ttl="1h")
        facts.set("former", "another value", ttl="1h")
        facts.set("present", MARKER, ttl="1h")
        facts.set("kept", "what does not expire")
        clock.advance(3601)
        if destroyed == "sweep":
            assert memory.sweep() == 2
        elif destroyed == "scan":
            memory.scan("default", apply=True)
        else:
            memory.forget(matches=MARKER, dry_run=True)
            assert memory.forget(matches=MARKER).remains == ()
        assert facts.keys() == ["kept"]
        assert memory.sweep() == 0
        for path in tmp_path.rglob("*"):
            assert path.is_dir() or MARKER.encode() not in path.read_bytes()


@pytest.mark.parametrize("how", ["forget", "clear", "tenant", "one by one"])
def test_the_id_of_an_erased_user_is_left_nowhere(how: str, opened: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    """If nothing of a user is left, no row and no file has the user's id; new facts are stored again."""
    where, options = opened
    with Memory.open(where, **options) as memory:
        for scope in ("user/u-4711", "user/bob"):
            memory.working(scope).set("seat", "window")
            memory.working(scope).set("meal", "none")
        memory.session("trip", user="u-4711").add_user_message("hello")
        if how == "one by one":
            memory.working("user/u-4711").delete("seat")
            memory.working("user/u-4711").delete("meal")
        if how in ("forget", "one by one"):
            memory.forget(user="u-4711")
        elif how == "clear":
            memory.working("user/u-4711").clear()
            memory.delete_session("trip")
        else:
            memory.forget(tenant="default")

    for place in (tmp_path / "a", *tmp_path.rglob("*")):
        assert b"u-4711" not in str(place.relative_to(tmp_path)).encode()
        assert not place.is_file() or b"u-4711" not in place.read_bytes()
    with Memory.open(where, **options) as memory:
        memory.working("user/u-4711").set_many({"z": 1, "a": 2})
        assert memory.working("user/u-4711").keys() == ["z", "a"]
        assert memory.scopes() == (["user/u-4711"] if how == "tenant" else ["user/bob", "user/u-4711"])


@pytest.mark.parametrize("whole", [True, False])
def test_a_fact_set_while_its_scope_is_cleared_is_listed(
    whole: bool, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fact that is set while its scope is cleared is stored, and its scope is listed."""
    scope, remove = memory.working("user/ann"), Items._remove_all
    scope.set("seat", "window")

    async def removed(self: Items, names: Any) -> None:
        await remove(self, names)
        monkeypatch.undo()
        await self.clear("default", "working/user/ann", dry_run=False)
        await self.put("default", "working/user/ann", [Put(key="meal", value=b"{}")])

    monkeypatch.setattr(Items, "_remove_all", removed)
    memory.forget(tenant="default") if whole else scope.clear()

    assert memory.scopes() == ["user/ann"]
    assert memory.working("user/ann").has("meal")


def test_a_query_erases_facts_by_text_time_and_owner(memory: Memory) -> None:
    """A query erases facts by text, time and owner; one with a condition erases entries alone."""
    for scope in ("user/ann", "user/bob"):
        memory.working(scope).set("k", MARKER)
    now = datetime.now(UTC)

    assert memory.forget(matches=Query(text=MARKER, where="True")).items == {}
    assert memory.forget(matches=Query(text=MARKER, before=now - timedelta(days=1))).items == {}
    assert memory.forget(matches=Query(text=MARKER, after=now + timedelta(days=1))).items == {}
    assert memory.forget(matches=Query(user="ann", text=MARKER)).items == {"working/user/ann": 1}
    assert memory.scopes() == ["user/bob"]


def test_items_stored_by_a_program_are_erased(memory: Memory) -> None:
    """Erasing a text erases a program's own items that hold it, though their form is unknown."""
    drive(memory.store.put_item("default", "own", "k", f"<{MARKER}>".encode()))
    drive(memory.store.put_item("default", "own", "l", b"\xff"))

    assert memory.forget(matches=MARKER).items == {"own": 1}


# --- what may be kept


def test_private_values_are_redacted_and_private_names_refused(opened: tuple[str, dict[str, Any]]) -> None:
    """A policy redacts values of facts at any depth; a private key or scope is refused."""
    where, options = opened
    with Memory.open(where, privacy="default", **options) as memory:
        facts = memory.working()
        facts.set("k", {"to": [MARKER, (MARKER,)], "n": 7})
        facts.set("bytes", MARKER.encode())
        facts.set("password", "hunter2")
        facts.set("when", datetime(2026, 1, 2, tzinfo=UTC))

        assert MARKER not in repr(facts.facts())
        assert facts.get("k")["n"] == 7
        assert facts.get("password") != "hunter2"
        assert facts.get("when") == datetime(2026, 1, 2, tzinfo=UTC)
        with pytest.raises(ConfigError, match="key") as caught:
            facts.set(MARKER, 1)
        assert MARKER not in str(caught.value)
        with pytest.raises(ConfigError, match="scope"):
            memory.working(f"user/{MARKER}")


NAMED: dict[str, Any] = {
    "a whole number beside it": {"password": "hunter2", 1: 2},
    "a key like a tag beside it": {"password": "hunter2", "$id": "x"},
    "further inside": {"user": {"api_key": "hunter2", 7: ({"x": 1},)}},
    "in a tuple": {"password": ("hunter2", {"hunter2"})},
    "as bytes": {"password": b"hunter2"},
    "as a number of its own kind": {"password": Decimal("12345.67")},
    "a number as a key": {4111111111111111: "x"},
}


@pytest.mark.parametrize("value", NAMED.values(), ids=NAMED)
def test_a_value_under_a_secrets_name_is_redacted(memory: Memory, value: Any) -> None:
    """A value under a secret's name is redacted when it is set and in a scan, whatever its type."""
    with Memory.open("memory://", privacy="default") as strict:
        strict.working().set("k", value)
        stored = repr(strict.working().fact("k"))
    memory.working().set("k", value)
    memory.working().set("k", 1)
    assert memory.scan("default", apply=True).redacted == 1
    scanned = repr(memory.working().fact("k"))

    for secret in ("hunter2", "12345.67", "4111111111111111"):
        assert secret not in stored
        assert secret not in scanned
    assert "[REDACTED]" in stored
    assert "[REDACTED]" in scanned
    assert memory.scan("default").facts == 0


@pytest.mark.parametrize(
    "value",
    [
        bytes.fromhex("d76df8e7aefc"),
        {"on": date(2026, 1, 2), "at": datetime(2026, 1, 2, tzinfo=UTC), 1: ({b"\xff"}, frozenset({Decimal("0.5")}))},
    ],
)
def test_policy_patterns_ignore_the_stored_encoding(value: Any) -> None:
    """Patterns of a policy match what values say, and not how the store writes their types."""
    patterns = [r"\d{6}", r"^\W?(date|datetime|bytes|set|tuple|dict)$"]
    with Memory.open("memory://", privacy={"redact_patterns": patterns}) as memory:
        facts = memory.working()
        facts.set("k", value)

        assert facts.get("k") == value


def test_a_private_value_of_any_type_becomes_redacted_text() -> None:
    """A private date, bytes or part of a set becomes a redacted text, and the rest keeps its type."""
    with Memory.open("memory://", privacy={"redact_patterns": ["2026-01-02"]}) as memory:
        facts = memory.working()
        facts.set("k", {1: date(2026, 1, 2), "2": (b"on 2026-01-02", b"on"), "3": {"2026-01-02", "x"}, "2026-01-02": 4})

        assert facts.get("k") == {
            1: "[REDACTED]",
            "2": ("on [REDACTED]", b"on"),
            "3": {"[REDACTED]", "x"},
            "[REDACTED]": 4,
        }


def test_pseudonyms_in_facts_have_no_numbers(memory: Memory) -> None:
    """A scan gives pseudonyms in facts no numbers, since one number could stand for two people."""
    policy = Redactor({"recognisers": {"email": "pseudonym"}}, key=b"k" * 32)
    for name in ("ann", "bob"):
        memory.working().set(name, f"{name}@example.org")

    memory.scan(policy, apply=True)

    assert memory.working().to_dict() == {"ann": "[EMAIL]", "bob": "[EMAIL]"}


def test_a_scan_redacts_facts(opened: tuple[str, dict[str, Any]]) -> None:
    """A scan finds what is private in facts and histories, redacts it, and names what it cannot change."""
    where, options = opened
    with Memory.open(where, **options) as memory:
        facts = memory.working("a")
        facts.set("k", MARKER, ttl="1d")
        facts.set("k", [MARKER, 1])
        facts.set(MARKER, 1)
        facts.set("fine", "words")
        drive(memory.store.put_item("default", "own", "k", MARKER.encode()))

        preview = memory.scan("default")
        assert (preview.facts, preview.redacted, len(preview.refused)) == (1, 0, 2)
        assert preview.findings["email", "fact"] == 2
        assert MARKER not in repr(preview)
        assert facts.get("k") == [MARKER, 1]

        report = memory.scan("default", apply=True)
        assert (report.facts, report.redacted) == (1, 1)
        fact = facts.fact("k")
        assert fact is not None
        assert MARKER not in repr(fact)
        assert (fact.version, fact.value[1]) == (2, 1)
        assert memory.scan("default").facts == 0


def test_a_scan_of_a_session_reads_only_its_facts(memory: Memory) -> None:
    """A scan of one session reads no facts of other scopes."""
    memory.session("a").add_user_message("hello")
    memory.working("session/a").set("k", MARKER)
    memory.working("other").set("k", MARKER)

    assert memory.scan("default", session="a").facts == 1
    assert memory.scan("default").facts == 2
