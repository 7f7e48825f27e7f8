"""Two tenants with the same sessions, keys and scopes: nothing that is done to one reaches the other, on any store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from on_servers import KINDS, SERVERS
from palimpsest import Memory
from palimpsest.runtime.runner import drive
from palimpsest.testing import FakeClock

ADDRESS = "ann@example.org"
HOUR = 3600


@pytest.fixture(params=["sqlite", "file", *SERVERS])
def memory(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Memory]:
    """An empty store."""
    disk = {"sqlite": f"sqlite:///{tmp_path}/a.db", "file": f"file://{tmp_path}/a"}
    where = disk.get(request.param) or KINDS[request.param].address_of("apart")
    with Memory.open(where, clock=clock) as memory:
        yield memory


def filled(memory: Memory, tenant: str) -> Memory:
    """The same for each tenant, but for whose it says it is."""
    one = memory.for_tenant(tenant)
    for name in ("a", "b"):
        session = one.session(name, user="ann", lifetime="1d" if name == "b" else None)
        session.add({"role": "user", "content": f"{tenant} writes to {ADDRESS}"}, key="first")
        session.add_tool_call("find", {"q": tenant}, call_id="c1")
        session.add_tool_result("c1", f"nothing for {tenant}")
    one.session("a").fork("branch")
    one.working("user/ann").set("mail", ADDRESS)
    one.working("session/a").set("k", tenant, ttl=HOUR)
    drive(one.store.put_item(tenant, "own", "k", ADDRESS.encode()))
    drive(one.store.lease(tenant, "lease", "holder", 10 * HOUR))
    return one


def all_of(memory: Memory) -> dict[str, Any]:
    """Everything that a tenant has, but for when it was asked."""
    found: dict[str, Any] = {}
    for info in memory.sessions():
        session = memory.session(info.session)
        found[info.session] = {**session.export(), "exported_at": None, "shown": session.context().messages}
    for scope in memory.scopes():
        found[f"scope {scope}"] = memory.working(scope).facts()
    found["own"] = drive(memory.store.list_items(memory.tenant, "own"))
    return found


VERBS: dict[str, Callable[[Memory, FakeClock], object]] = {
    "erase": lambda one, _: one.session("a").erase([1]),
    "clear": lambda one, _: one.session("a").clear(),
    "delete": lambda one, _: one.delete_session("a"),
    "forget a user": lambda one, _: one.forget(user="ann"),
    "forget a text": lambda one, _: one.forget(matches=ADDRESS),
    "forget a session": lambda one, _: one.forget(session="a"),
    "forget the tenant": lambda one, _: one.forget(tenant=one.tenant),
    "scan": lambda one, _: one.scan("default", apply=True),
    "pin": lambda one, _: one.session("a").pin(1),
    "describe": lambda one, _: one.session("a").describe(title="other words"),
    "rewind": lambda one, _: one.session("a").rewind(1),
    "the same key": lambda one, _: one.session("a").add({"role": "user", "content": "again"}, key="second"),
    "import": lambda one, _: one.import_session(one.session("b").export(), session_id="a", on_conflict="replace"),
    "facts": lambda one, _: (one.working("user/ann").clear(), one.working("session/a").set("k", "changed")),
    "vacuum": lambda one, _: one.vacuum(),
}


@pytest.mark.parametrize("verb", VERBS)
def test_what_one_tenant_does_the_other_does_not_see(memory: Memory, clock: FakeClock, verb: str) -> None:
    """Its sessions, facts, items and contexts are what they were, and a lease of the same name is still held."""
    one, other = filled(memory, "one"), filled(memory, "other")
    before, own = all_of(other), all_of(one)
    assert "other" not in repr(own)

    VERBS[verb](one, clock)

    assert all_of(other) == before
    assert verb == "vacuum" or all_of(one) != own
    assert drive(memory.store.lease("other", "lease", "somebody", 1)) is None


def test_a_sweep_is_of_one_tenant(memory: Memory, clock: FakeClock) -> None:
    """What has expired of the other is not seen, and is still stored until its own sweep."""
    one, other = filled(memory, "one"), filled(memory, "other")
    clock.advance(2 * 24 * HOUR)

    assert one.sweep() > 0
    assert one.sweep() == 0
    assert other.sweep() > 0
    assert [info.session for info in one.sessions()] == [info.session for info in other.sessions()] == ["a", "branch"]
