"""Facts of working memories go where their sessions, users and texts go, and nothing private is kept in one."""

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
    """An empty store's address, and what to open it with."""
    where = f"file://{tmp_path}/a" if request.param == "file" else f"sqlite:///{tmp_path}/a.db"
    return where, {"encryption": {"k": "a" * 64}} if request.param == "sealed" else {}


@pytest.fixture
def memory(opened: tuple[str, dict[str, Any]]) -> Iterator[Memory]:
    """An open memory."""
    where, options = opened
    with Memory.open(where, **options) as memory:
        yield memory


def filled(memory: Memory) -> None:
    """Sessions and scopes, those of others among them."""
    for session in ("a", "a/b", "ab"):
        memory.session(session, user="ann" if session == "a" else None).add_user_message("hello")
    for scope in ("session/a", "session/a/notes", "session/a/b", "session/ab", "user/ann", "user/ann/x", "user/anna"):
        memory.working(scope).set("k", scope)


def test_facts_of_a_session_go_with_it(memory: Memory) -> None:
    """However it is deleted; not those of another whose id begins so."""
    filled(memory)
    left = ["session/a/b", "session/ab", "user/ann", "user/ann/x", "user/anna"]

    told = memory.forget(session="a", dry_run=True)
    assert (told.items, told.dry_run) == ({"working/session/a": 1, "working/session/a/notes": 1}, True)
    assert memory.working("session/a").has("k")

    assert memory.forget(session="a").items == told.items
    assert memory.scopes() == left
    memory.session("a").add_user_message("hello")
    memory.working("session/a").set("k", 1)
    assert memory.delete_session("a")
    assert memory.scopes() == left


def test_an_import_leaves_no_byte_of_the_facts_that_it_replaces(memory: Memory, tmp_path: Path) -> None:
    """An import leaves no byte of the facts that it replaces, neither of values nor of histories, in any scope of the
    session."""
    session = memory.session("a")
    session.add_user_message("hello")
    data = session.export()
    for scope in ("session/a", "session/a/notes"):
        memory.working(scope).set("k", f"an older {MARKER}")
        memory.working(scope).set("k", MARKER)
    memory.delete_session("nobody")  # what was written by then is in the file itself

    memory.import_session(data, on_conflict="replace")

    assert memory.scopes() == []
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.name for path in files if MARKER.encode() in path.read_bytes()] == []


def test_facts_of_a_user_go_with_them(memory: Memory) -> None:
    """With those of the sessions that are theirs, and of nobody else."""
    filled(memory)

    told = memory.forget(user="ann", dry_run=True)
    done = memory.forget(user="ann")

    assert told.items == done.items
    assert done.sessions == ("a",)
    assert sorted(done.items) == [
        "working/session/a",
        "working/session/a/notes",
        "working/user/ann",
        "working/user/ann/x",
    ]
    assert memory.scopes() == ["session/a/b", "session/ab", "user/anna"]


def test_a_user_of_whom_there_are_only_facts_is_known(memory: Memory) -> None:
    """And one of whom there is nothing is told."""
    memory.working("user/eve").set("k", 1)

    assert memory.forget(user="eve").unknown == ""
    assert "eve" in memory.forget(user="eve").unknown


def test_facts_of_a_session_go_when_its_time_is_over(opened: tuple[str, dict[str, Any]]) -> None:
    """By itself, with a sweep, and with a sweep of what nobody has used for long."""
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
def test_what_mentions_a_text_is_forgotten(memory: Memory, where: str) -> None:
    """Wherever a fact can hold it, its history too; others stay."""
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


def test_how_a_value_is_written_mentions_nothing(memory: Memory) -> None:
    """A fact that holds a date or bytes is none that says "date", or a word of base64. What they say counts."""
    facts = memory.working("a")
    facts.set("k", {"on": date(2026, 1, 2), "raw": b"\xd7m\xf8\xe7\xae\xfc", 7: (Decimal("1.50"), {UUID(int=7)})})

    for word in ("date", "$", "tuple", "123456", "1234"):
        assert not memory.forget(matches=word, dry_run=True)
    for said in ("2026-01-02", "1.50", str(UUID(int=7)), "on", "7"):
        assert memory.forget(matches=said, dry_run=True).items == {"working/a": 1}


def test_no_byte_of_what_was_forgotten_is_left(opened: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    """In the files of the store."""
    where, options = opened
    with Memory.open(where, **options) as memory:
        facts = memory.working("a")
        facts.set("k", MARKER)
        facts.set("k", "now")
        memory.forget(matches=MARKER)
        memory.vacuum()
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or MARKER.encode() not in path.read_bytes()


@pytest.mark.parametrize("how", ["forget", "clear", "tenant", "one by one"])
def test_not_even_the_id_of_a_user_is_left(how: str, opened: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    """Where nothing of a user is left, no row and no file is called by the user either; what comes again is kept."""
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
def test_a_fact_that_comes_while_a_scope_is_cleared_is_listed(
    whole: bool, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the scope was cleared, and begun anew, in between: what is stored is always found."""
    scope, remove = memory.working("user/ann"), Items._remove_all
    scope.set("seat", "window")

    async def removed(self: Items, some: Any) -> None:
        await remove(self, some)
        monkeypatch.undo()
        await self.clear("default", "working/user/ann", dry_run=False)
        await self.put("default", "working/user/ann", [Put(key="meal", value=b"{}")])

    monkeypatch.setattr(Items, "_remove_all", removed)
    memory.forget(tenant="default") if whole else scope.clear()

    assert memory.scopes() == ["user/ann"]
    assert memory.working("user/ann").has("meal")


def test_a_query_means_facts_by_text_time_and_owner(memory: Memory) -> None:
    """One with a condition means entries alone."""
    for scope in ("user/ann", "user/bob"):
        memory.working(scope).set("k", MARKER)
    now = datetime.now(UTC)

    assert memory.forget(matches=Query(text=MARKER, where="True")).items == {}
    assert memory.forget(matches=Query(text=MARKER, before=now - timedelta(days=1))).items == {}
    assert memory.forget(matches=Query(text=MARKER, after=now + timedelta(days=1))).items == {}
    assert memory.forget(matches=Query(user="ann", text=MARKER)).items == {"working/user/ann": 1}
    assert memory.scopes() == ["user/bob"]


def test_items_of_a_program_are_forgotten_too(memory: Memory) -> None:
    """Which nobody else knows the form of."""
    drive(memory.store.put_item("default", "own", "k", f"<{MARKER}>".encode()))
    drive(memory.store.put_item("default", "own", "l", b"\xff"))

    assert memory.forget(matches=MARKER).items == {"own": 1}


# --- what may be kept


def test_nothing_private_is_kept_in_a_fact(opened: tuple[str, dict[str, Any]]) -> None:
    """Neither in a value at any depth, nor under the name of a secret; a key or scope that is private is refused."""
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
def test_a_secret_is_known_by_its_name_in_any_mapping(memory: Memory, value: Any) -> None:
    """Whatever other keys are beside it, and whatever type it has: where it is set, and where a scan finds it."""
    with Memory.open("memory://", privacy="default") as strict:
        strict.working().set("k", value)
        kept = repr(strict.working().fact("k"))
    memory.working().set("k", value)
    memory.working().set("k", 1)
    assert memory.scan("default", apply=True).redacted == 1
    scanned = repr(memory.working().fact("k"))

    for secret in ("hunter2", "12345.67", "4111111111111111"):
        assert secret not in kept
        assert secret not in scanned
    assert "[REDACTED]" in kept
    assert "[REDACTED]" in scanned
    assert memory.scan("default").facts == 0


@pytest.mark.parametrize(
    "value",
    [
        bytes.fromhex("d76df8e7aefc"),
        {"on": date(2026, 1, 2), "at": datetime(2026, 1, 2, tzinfo=UTC), 1: ({b"\xff"}, frozenset({Decimal("0.5")}))},
    ],
)
def test_a_policy_does_not_look_at_how_a_value_is_written(value: Any) -> None:
    """Its patterns see no base64 and no name of a type: what is clean comes back as it was."""
    patterns = [r"\d{6}", r"^\W?(date|datetime|bytes|set|tuple|dict)$"]
    with Memory.open("memory://", privacy={"redact_patterns": patterns}) as memory:
        facts = memory.working()
        facts.set("k", value)

        assert facts.get("k") == value


def test_what_is_private_goes_out_of_a_value_of_any_type() -> None:
    """A date, bytes or a part of a set that a policy does not keep is a text then; the rest stays what it is."""
    with Memory.open("memory://", privacy={"redact_patterns": ["2026-01-02"]}) as memory:
        facts = memory.working()
        facts.set("k", {1: date(2026, 1, 2), "2": (b"on 2026-01-02", b"on"), "3": {"2026-01-02", "x"}, "2026-01-02": 4})

        assert facts.get("k") == {
            1: "[REDACTED]",
            "2": ("on [REDACTED]", b"on"),
            "3": {"[REDACTED]", "x"},
            "[REDACTED]": 4,
        }


def test_a_scan_gives_nobody_another_s_name_in_facts(memory: Memory) -> None:
    """Facts are of no session, so pseudonyms in them have no numbers: one of two facts would be of two people."""
    policy = Redactor({"recognisers": {"email": "pseudonym"}}, key=b"k" * 32)
    for name in ("ann", "bob"):
        memory.working().set(name, f"{name}@example.org")

    memory.scan(policy, apply=True)

    assert memory.working().to_dict() == {"ann": "[EMAIL]", "bob": "[EMAIL]"}


def test_a_scan_finds_what_is_private_in_facts_and_redacts_it(opened: tuple[str, dict[str, Any]]) -> None:
    """Histories too; what cannot be changed is told."""
    where, options = opened
    with Memory.open(where, **options) as memory:
        facts = memory.working("a")
        facts.set("k", MARKER, ttl="1d")
        facts.set("k", [MARKER, 1])
        facts.set(MARKER, 1)
        facts.set("fine", "words")
        drive(memory.store.put_item("default", "own", "k", MARKER.encode()))

        found = memory.scan("default")
        assert (found.facts, found.redacted, len(found.refused)) == (1, 0, 2)
        assert found.findings["email", "fact"] == 2
        assert MARKER not in repr(found)
        assert facts.get("k") == [MARKER, 1]

        done = memory.scan("default", apply=True)
        assert (done.facts, done.redacted) == (1, 1)
        fact = facts.fact("k")
        assert fact is not None
        assert MARKER not in repr(fact)
        assert (fact.version, fact.value[1]) == (2, 1)
        assert memory.scan("default").facts == 0


def test_a_scan_of_a_session_looks_at_its_facts_alone(memory: Memory) -> None:
    """Not at those of others."""
    memory.session("a").add_user_message("hello")
    memory.working("session/a").set("k", MARKER)
    memory.working("other").set("k", MARKER)

    assert memory.scan("default", session="a").facts == 1
    assert memory.scan("default").facts == 2
