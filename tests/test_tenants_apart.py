"""Two tenants with the same sessions, keys and scopes never affect each other, on any store."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from on_servers import KINDS, SERVERS
from palimpsest import Entry, Memory, Session, WorkingMemory
from palimpsest.runtime.runner import drive
from palimpsest.testing import FakeClock
from palimpsest.types import Knowledge
from test_erasing import Index
from writer import quarters

ADDRESS = "ann@example.org"
HOUR = 3600
BRIEF = {"strategy": "summarizer", "interaction_keep": 1, "cod_max_loops": 0, "summary_floor": 1}
"""How a session is summarised without a model."""
SMALL: dict[str, Any] = {"counter": quarters, "auto_compact": "off", "long_term": BRIEF}


STORES = ["sqlite", "file", *SERVERS]
PLACES = [
    pytest.param("file", marks=pytest.mark.wide),
    *(pytest.param(*one.values, marks=[*one.marks, pytest.mark.slow]) for one in SERVERS),
]
"""Where each verb is done beside a filled tenant: on servers that takes half a minute."""


@pytest.fixture(params=STORES)
def memory(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Memory]:
    """An empty store."""
    disk = {"sqlite": f"sqlite:///{tmp_path}/a.db", "file": f"file://{tmp_path}/a"}
    where = disk.get(request.param) or KINDS[request.param].address_of("apart")
    with Memory.open(where, clock=clock) as memory:
        yield memory


def filled(memory: Memory, tenant: str) -> Memory:
    """Fill a tenant with the same things, each of which names its tenant."""
    one = memory.for_tenant(tenant)
    for name in ("a", "b"):
        session = one.session(name, user="ann", lifetime="1d" if name == "b" else None, **SMALL)
        session.add({"role": "user", "content": f"{tenant} writes to {ADDRESS}"}, key="first")
        session.add_tool_call("find", {"q": tenant}, call_id="c1")
        session.add_tool_result("c1", f"nothing for {tenant}")
        session.add_assistant_message(f"{tenant} was answered")
    one.session("a").fork("branch")
    talked = one.session("talked", **SMALL)
    for number in range(3):
        talked.add_user_message(f"{number}: {tenant} asks where Quito is. " * 4)
        talked.add_assistant_message(f"{number}: {tenant} is told. " * 4)
    assert talked.compact().done
    talked.add_tool_call("wait", {"for": tenant}, call_id="open")
    one.working("user/ann").set("mail", ADDRESS)
    one.working("session/a").set("k", tenant, ttl=HOUR)
    one.knowledge("notes").add("visa", f"{tenant} needs a visa", title=tenant)
    drive(one.store.put_item(tenant, "own", "k", ADDRESS.encode()))
    drive(one.store.lease(tenant, "lease", "holder", 10 * HOUR))
    return one


def all_of(memory: Memory) -> dict[str, Any]:
    """Return everything that a tenant has, without times of reading."""
    found: dict[str, Any] = {}
    for info in memory.sessions():
        session = memory.session(info.session)
        found[info.session] = {**session.export(), "exported_at": None, "shown": session.context(dry_run=True).messages}
    for scope in memory.scopes():
        found[f"scope {scope}"] = memory.working(scope).facts()
    found["own"] = drive(memory.store.list_items(memory.tenant, "own"))
    found["base"] = [*memory.knowledge("notes").documents(), *memory.knowledge("notes").search("visa")]
    return found


Verb = Callable[[Memory], object]

CHANGES: dict[str, Verb] = {
    "memory.delete_session": lambda one: one.delete_session("a"),
    "memory.derive": lambda one: one.derive(Index()),
    "memory.forget, a user": lambda one: one.forget(user="ann"),
    "memory.forget, a text": lambda one: one.forget(matches=ADDRESS),
    "memory.forget, a session": lambda one: one.forget(session="a"),
    "memory.forget, the tenant": lambda one: one.forget(tenant=one.tenant),
    "memory.import_file": lambda one: one.import_file(
        io.BytesIO(b'[{"role": "user", "content": "x"}]'), session_id="a"
    ),
    "memory.import_session": lambda one: one.import_session(
        one.session("b").export(), session_id="a", on_conflict="replace"
    ),
    "memory.rebuild_index": lambda one: one.rebuild_index(),
    "memory.scan": lambda one: one.scan("default", apply=True),
    "memory.underive": lambda one: one.underive("palimpsest.knowledge"),
    "memory.vacuum": lambda one: one.vacuum(),
    "session.add": lambda one: one.session("a").add({"role": "user", "content": "again"}, key="second"),
    "session.add_assistant_message": lambda one: one.session("a").add_assistant_message("x"),
    "session.add_context": lambda one: one.session("a").add_context("x", name="notes"),
    "session.add_entries": lambda one: one.session("a").add_entries([Entry(content="x")], key="second"),
    "session.add_system_message": lambda one: one.session("a").add_system_message("x"),
    "session.add_tool_call": lambda one: one.session("a").add_tool_call("x", {}, call_id="c2"),
    "session.add_tool_result": lambda one: one.session("talked").add_tool_result(None, "x", call_id="open"),
    "session.add_user_message": lambda one: one.session("a").add_user_message("x"),
    "session.clear": lambda one: one.session("a").clear(),
    "session.compact": lambda one: compacted(one.session("talked", **SMALL)),
    "session.count": lambda one: one.session("a").count(),
    "session.describe": lambda one: one.session("a").describe(title="other words", user=None),
    "session.end_turn": lambda one: one.session("a").end_turn(),
    "session.erase": lambda one: one.session("a").erase([1]),
    "session.fork": lambda one: one.session("a").fork("branch of it"),
    "session.hide": lambda one: one.session("a").hide(1),
    "session.pin": lambda one: one.session("a").pin(1),
    "session.record_usage": lambda one: one.session("a").record_usage(input_tokens=10),
    "session.repair": lambda one: one.session("a").repair(),
    "session.replace": lambda one: one.session("a").replace([{"role": "user", "content": "x"}], key="second"),
    "session.resolve": lambda one: one.session("talked").resolve("open", output="x"),
    "session.restore": lambda one: one.session("talked", **SMALL).restore(),
    "session.rewind": lambda one: one.session("a").rewind(1),
    "session.show": lambda one: (one.session("a").hide(1), one.session("a").show(1)),
    "session.stream": lambda one: streamed(one.session("a")),
    "session.turn": lambda one: taken(one.session("a")),
    "session.unpin": lambda one: (one.session("a").pin(1), one.session("a").unpin(1)),
    "working.clear": lambda one: one.working("user/ann").clear(),
    "working.delete": lambda one: one.working("session/a").delete("k"),
    "working.set": lambda one: one.working("session/a").set("k", "changed"),
    "working.set_many": lambda one: one.working("session/a").set_many({"k": "changed", "more": 1}),
    "knowledge.add": lambda one: one.knowledge("notes").add("visa", "no visa is needed"),
    "knowledge.refresh": lambda one: one.knowledge("notes").refresh(),
    "knowledge.remove": lambda one: one.knowledge("notes").remove("visa"),
}
"""What writes, or removes, done to one tenant."""


def bound(memory: Memory) -> object:
    """Return what is seen where a session is bound."""
    with memory.bind("a") as one:
        return one.session("a").entries()


READS: dict[str, Verb] = {
    "memory.bind": bound,
    "memory.definitions": lambda one: one.definitions(),
    "memory.derivers": lambda one: one.derivers(),
    "memory.for_tenant": lambda one: one.for_tenant(one.tenant).sessions(),
    "memory.index_status": lambda one: one.index_status(),
    "memory.info": lambda one: one.info("a"),
    "memory.recall": lambda one: one.recall("writes to whom").passages,
    "memory.scopes": lambda one: one.scopes(),
    "memory.sessions": lambda one: [*one.sessions(order="latest"), *one.sessions(user="ann")],
    "session.active_entries": lambda one: one.session("a").active_entries(),
    "session.context": lambda one: (
        one.session("a", max_tokens=900, tail_share=0.3).context(recall="who writes").messages
    ),
    "session.cost": lambda one: one.session("a").cost(one.session("a").entry(1)),
    "session.entries": lambda one: one.session("a").entries(),
    "session.entry": lambda one: one.session("a").entry(1),
    "session.expand": lambda one: one.session("talked").expand(),
    "session.export": lambda one: one.session("a").export(),
    "session.export_to": lambda one: exported(one.session("a")),
    "session.history": lambda one: one.session("talked").history(),
    "session.info": lambda one: one.session("a").info(),
    "session.interactions": lambda one: one.session("a").interactions(),
    "session.messages": lambda one: one.session("a").messages(),
    "session.passages": lambda one: one.session("a").passages([1]),
    "session.recall": lambda one: one.session("a").recall("writes to whom"),
    "session.stats": lambda one: one.session("a").stats(),
    "session.summaries": lambda one: one.session("talked").summaries(history=True),
    "session.verify": lambda one: one.session("a").verify(),
    "working.fact": lambda one: one.working("session/a").fact("k"),
    "working.facts": lambda one: one.working("session/a").facts(),
    "working.get": lambda one: one.working("session/a").get("k"),
    "working.has": lambda one: one.working("session/a").has("k"),
    "working.items": lambda one: one.working("session/a").items(),
    "working.keys": lambda one: one.working("session/a").keys(),
    "working.page": lambda one: one.working("session/a").page(),
    "working.readonly": lambda one: one.working("session/a").readonly().facts(),
    "working.to_context_string": lambda one: one.working("session/a").to_context_string(),
    "working.to_dict": lambda one: one.working("session/a").to_dict(),
    "knowledge.documents": lambda one: one.knowledge("notes").documents(),
    "knowledge.search": lambda one: one.knowledge("notes").search("who needs a visa"),
}
"""What gives something of one tenant."""

OTHERWISE = {
    "memory": (
        "open",
        "connect",
        "close",
        "from_env",
        "from_resource",
        "store",
        "durability",
        "redact",
        "tenant",
        "on",
    ),
    "session": ("id", "options", "redact", "in_turn", "in_atomic_turn"),
    "working": ("is_readonly", "scope_id"),
}
"""What is of the whole store, or says what an object was made with."""
ELSEWHERE = (
    "memory.fork",
    "memory.session",
    "memory.working",
    "memory.knowledge",
    "session.working",
    "session.knowledge",
)
"""What gives the objects whose verbs these are; `memory.sweep` is below, and who is told in `test_tenants_shared`."""

UNCHANGED = {
    "memory.vacuum",
    "memory.rebuild_index",
    "memory.derive",
    "memory.underive",
    "session.repair",
    "session.count",
}
UNCHANGED |= {"session.record_usage", "session.end_turn", "knowledge.refresh"}
"""What leaves a tenant's own contents as they are."""


def streamed(session: Session) -> None:
    """Add a streamed answer."""
    with session.stream() as answer:
        answer.feed({"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "x"}}]})
        answer.feed(
            {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        )


def compacted(session: Session) -> None:
    """Summarize what has been added since."""
    session.add_tool_result(None, "x", call_id="open")
    for number in range(3):
        session.add_user_message(f"{number}: and where is Lima? " * 4)
    assert session.compact().done


def taken(session: Session) -> None:
    """Take a turn."""
    with session.turn(atomic=True):
        session.add_user_message("x")


def exported(session: Session) -> str:
    """Write an export."""
    into = io.BytesIO()
    session.export_to(into)
    return into.getvalue().decode()


def test_every_verb_is_in_a_list() -> None:
    """Every public verb is in one of the lists."""
    faces = {"memory": Memory, "session": Session, "working": WorkingMemory, "knowledge": Knowledge}
    verbs = {f"{kind}.{name}" for kind, face in faces.items() for name in dir(face) if not name.startswith("_")}
    listed = {name.partition(",")[0] for name in (*CHANGES, *READS, *ELSEWHERE, "memory.sweep")}
    listed |= {f"{kind}.{name}" for kind, names in OTHERWISE.items() for name in names}

    assert verbs ^ listed == set()


def test_reads_of_one_tenant_show_nothing_of_another(memory: Memory) -> None:
    """Every verb that gives something says nothing of another tenant with the same names."""
    one, _ = filled(memory, "one"), filled(memory, "other")

    given = {name: repr(verb(one)) for name, verb in READS.items()}

    assert [name for name, told in given.items() if "other" in told] == []
    assert "one writes" in given["memory.recall"]


@pytest.mark.sampled
@pytest.mark.parametrize("memory", ["sqlite"], indirect=True)
@pytest.mark.parametrize("verb", CHANGES)
def test_no_verb_of_one_tenant_changes_another(memory: Memory, verb: str) -> None:
    """No verb of one tenant changes the other's sessions, facts, documents, contexts or leases."""
    one, other = filled(memory, "one"), filled(memory, "other")
    own, before = all_of(one), all_of(other)
    assert "other" not in repr(own)

    CHANGES[verb](one)

    assert all_of(other) == before
    assert verb in UNCHANGED or all_of(one) != own
    assert drive(memory.store.lease("other", "lease", "somebody", 1)) is None


@pytest.mark.parametrize("memory", PLACES, indirect=True)
def test_verbs_of_many_tenants_leave_another_unchanged(memory: Memory) -> None:
    """All verbs, each of a tenant of its own, leave another tenant unchanged."""
    other = filled(memory, "other")
    before = all_of(other)

    for number, verb in enumerate(CHANGES):
        CHANGES[verb](filled(memory, f"one {number}"))
        assert all_of(other) == before, verb


def test_a_sweep_removes_expired_entries_of_its_own_tenant_only(memory: Memory, clock: FakeClock) -> None:
    """A sweep removes what has expired of its own tenant only."""
    one, other = filled(memory, "one"), filled(memory, "other")
    clock.advance(2 * 24 * HOUR)

    assert one.sweep() > 0
    assert one.sweep() == 0
    assert other.sweep() > 0
    assert (
        [info.session for info in one.sessions()]
        == [info.session for info in other.sessions()]
        == ["a", "branch", "talked"]
    )
