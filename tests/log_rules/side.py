"""The contract of stores: items, leases, expiry and closing."""

from __future__ import annotations

from datetime import UTC, datetime

from log_rules.contract import FOREIGN, KEY, OTHER, Contract, OpenedStore, refused, rule, said, texts
from palimpsest.errors import Closed, Conflict
from palimpsest.log.change import Change
from palimpsest.stores import Item, Put

TENANT = KEY.tenant


class SideConformance(Contract):
    """Items, leases, expiry and closing."""

    # --- items

    @rule
    async def test_each_put_raises_the_version_of_an_item(self, on: OpenedStore) -> None:
        """A put stores the whole value and returns it with a version that counts from 1 for each key."""
        value = bytes(range(256))
        assert await on.store.get_item(TENANT, "n", "k") is None
        first = await on.store.put_item(TENANT, "n", "k", b"old")
        second = await on.store.put_item(TENANT, "n", "k", value)

        assert (first.version, second.version) == (1, 2)
        assert await on.store.get_item(TENANT, "n", "k") == Item(key="k", value=value, version=2)

    @rule
    async def test_an_expected_version_guards_a_put(self, on: OpenedStore) -> None:
        """`expect` is the present version, 0 for none; any other raises Conflict and keeps the value."""
        await refused(Conflict, on.store.put_item(TENANT, "n", "k", b"x", expect=1))
        await on.store.put_item(TENANT, "n", "k", b"a", expect=0)
        await refused(Conflict, on.store.put_item(TENANT, "n", "k", b"x", expect=0))
        await on.store.put_item(TENANT, "n", "k", b"b", expect=1)

        assert await on.store.get_item(TENANT, "n", "k") == Item(key="k", value=b"b", version=2)

    @rule
    async def test_items_are_of_one_tenant_and_namespace(self, on: OpenedStore) -> None:
        """The same key in another namespace or tenant is another item."""
        for tenant, namespace in ((TENANT, "n"), (TENANT, "m"), ("t", "n"), ("", "")):
            await on.store.put_item(tenant, namespace, "k", f"{tenant}/{namespace}".encode())

        assert await on.store.delete_item(TENANT, "m", "k") is True

        assert await on.store.list_items(TENANT, "m") == []
        assert [item.value for item in await on.store.list_items("t", "n")] == [b"t/n"]
        assert [item.value for item in await on.store.list_items(TENANT, "n")] == [f"{TENANT}/n".encode()]

    @rule
    async def test_items_are_listed_in_order_of_creation(self, on: OpenedStore) -> None:
        """Items are listed in order of creation; replacing keeps the place, deleting and putting gives a new one."""
        for key in ("b", "a", "c"):
            await on.store.put_item(TENANT, "n", key, b"")
        await on.store.put_item(TENANT, "n", "b", b"new")
        assert [item.key for item in await on.store.list_items(TENANT, "n")] == ["b", "a", "c"]

        await on.store.delete_item(TENANT, "n", "b")
        again = await on.store.put_item(TENANT, "n", "b", b"")

        assert [item.key for item in await on.store.list_items(TENANT, "n")] == ["a", "c", "b"]
        assert again.version == 1

    @rule
    async def test_the_order_of_items_does_not_depend_on_clocks(self, on: OpenedStore) -> None:
        """The order of items does not depend on clocks, even if they stand still or go back; a clear starts again."""
        on.clock.advance(10)
        await on.store.put_item(TENANT, "n", "b", b"")
        on.clock.advance(-5)
        for key in ("a", "c"):
            await on.store.put_item(TENANT, "n", key, b"")
        assert [item.key for item in await on.store.list_items(TENANT, "n")] == ["b", "a", "c"]

        assert await on.store.clear_items(TENANT) == {"n": 3}
        for key in ("z", "y"):
            await on.store.put_item(TENANT, "n", key, b"")

        assert [item.key for item in await on.store.list_items(TENANT, "n")] == ["z", "y"]

    @rule
    async def test_an_expired_item_is_in_no_answer(self, on: OpenedStore) -> None:
        """An expired item is in no answer, and a put of its key makes a new item at the end."""
        end = on.clock.now + 1_000_000
        await on.store.put_item(TENANT, "n", "k", b"a", expires=end)
        await on.store.put_item(TENANT, "n", "stays", b"b")
        on.clock.advance(0.999999)
        assert await on.store.get_item(TENANT, "n", "k") == Item(key="k", value=b"a", version=1, expires=end)
        on.clock.advance(0.000001)

        assert await on.store.get_item(TENANT, "n", "k") is None
        assert [item.key for item in await on.store.list_items(TENANT, "n")] == ["stays"]
        assert await on.store.delete_item(TENANT, "n", "k") is False
        await refused(Conflict, on.store.put_item(TENANT, "n", "k", b"c", expect=1))
        assert (await on.store.put_item(TENANT, "n", "k", b"c", expect=0)).version == 1
        assert [item.key for item in await on.store.list_items(TENANT, "n")] == ["stays", "k"]

    @rule
    async def test_deleting_an_item_says_whether_there_was_one(self, on: OpenedStore) -> None:
        """The first delete of an item returns True, the next False."""
        await on.store.put_item(TENANT, "n", "k", b"a")

        assert await on.store.delete_item(TENANT, "n", "k") is True
        assert await on.store.delete_item(TENANT, "n", "k") is False
        assert await on.store.get_item(TENANT, "n", "k") is None

    @rule
    async def test_several_items_are_stored_in_one_step(self, on: OpenedStore) -> None:
        """Several puts are stored in order, or none if one has an unexpected version."""
        await on.store.put_item(TENANT, "n", "b", b"0")
        stored = await on.store.put_items(
            TENANT, "n", [Put("c", b"1", expect=0), Put("b", b"2", expect=1), Put("a", b"")]
        )
        assert [(item.key, item.version) for item in stored] == [("c", 1), ("b", 2), ("a", 1)]

        await refused(Conflict, on.store.put_items(TENANT, "n", [Put("d", b"x"), Put("c", b"x", expect=2)]))

        assert [(item.key, item.value) for item in await on.store.list_items(TENANT, "n")] == [
            ("b", b"2"),
            ("c", b"1"),
            ("a", b""),
        ]
        assert await on.store.put_items(TENANT, "n", []) == []

    @rule
    async def test_items_are_listed_by_key_prefix(self, on: OpenedStore) -> None:
        """Items are listed by a prefix of their keys, in order of creation, whole or in pages."""
        keys = [f"{kind}/{number}" for number in range(7) for kind in ("b", "a")]
        await on.store.put_items(TENANT, "n", [Put(key, key.encode()) for key in keys])
        listed = await on.store.list_items(TENANT, "n", prefix="a/")
        assert [item.key for item in listed] == [key for key in keys if key[0] == "a"]

        for prefix in ("", "a/", "a/3", "c"):
            found, after = list[str](), ""
            while True:
                page, next_after = await on.store.page_items(TENANT, "n", prefix=prefix, after=after, limit=3)
                found += [item.key for item in page]
                assert len(page) <= 3
                if next_after is None:
                    break
                after = next_after
            assert sorted(found) == sorted(key for key in keys if key.startswith(prefix))

    @rule
    async def test_only_namespaces_with_items_are_listed(self, on: OpenedStore) -> None:
        """Non-empty namespaces of a tenant are listed by code points and prefix."""
        for namespace in ("user/b", "user/a", "session/1", "empty", "old"):
            await on.store.put_item(TENANT, namespace, "k", b"")
        await on.store.put_item("t", "user/c", "k", b"")
        await on.store.delete_item(TENANT, "empty", "k")
        await on.store.put_item(TENANT, "old", "k", b"", expires=on.clock() - 1)

        assert await on.store.namespaces(TENANT) == ["session/1", "user/a", "user/b"]
        assert await on.store.namespaces(TENANT, prefix="user/") == ["user/a", "user/b"]

    @rule
    async def test_a_namespace_is_cleared_alone(self, on: OpenedStore) -> None:
        """Clearing a namespace removes its items, expired ones included, and no others."""
        await on.store.put_items(TENANT, "n", [Put(f"{number}", b"") for number in range(300)])
        await on.store.put_item(TENANT, "n", "old", b"", expires=on.clock() - 1)
        await on.store.put_item(TENANT, "m", "k", b"")

        assert await on.store.clear_items(TENANT, "n", dry_run=True) == {"n": 301}
        assert await on.store.clear_items(TENANT, "n") == {"n": 301}

        assert await on.store.list_items(TENANT, "n") == []
        assert await on.store.namespaces(TENANT) == ["m"]

    @rule
    async def test_an_expected_version_guards_a_deletion(self, on: OpenedStore) -> None:
        """A delete with an unexpected version raises Conflict and keeps the item."""
        await on.store.put_item(TENANT, "n", "k", b"1")
        await on.store.put_item(TENANT, "n", "k", b"2")

        await refused(Conflict, on.store.delete_item(TENANT, "n", "k", expect=1))
        assert await on.store.delete_item(TENANT, "n", "k", expect=2) is True
        await refused(Conflict, on.store.delete_item(TENANT, "n", "k", expect=2))

    # --- leases

    @rule
    async def test_one_holder_has_a_lease(self, on: OpenedStore) -> None:
        """While a lease is held, others get None; leases of other names and tenants are free."""
        fence = await on.store.lease(TENANT, "l", "one", 10)

        assert fence is not None
        assert await on.store.lease(TENANT, "l", "two", 10) is None
        assert await on.store.lease(TENANT, "m", "two", 10) is not None
        assert await on.store.lease("t", "l", "two", 10) is not None

    @rule
    async def test_a_lease_ends_by_itself_and_the_next_fence_is_greater(self, on: OpenedStore) -> None:
        """After a lease has ended another may take it, with a fence greater than any given before."""
        first = await on.store.lease(TENANT, "l", "one", 10)
        other = await on.store.lease(TENANT, "m", "one", 100)
        on.clock.advance(9.999999)
        assert await on.store.lease(TENANT, "l", "two", 10) is None
        on.clock.advance(0.000001)
        second = await on.store.lease(TENANT, "l", "two", 10)

        assert first is not None
        assert other is not None
        assert second is not None
        assert second > max(first, other)

    @rule
    async def test_renewing_keeps_the_fence_and_counts_from_now(self, on: OpenedStore) -> None:
        """A holder with its fence renews its lease from now on, even an ended one that nobody took; others get None."""
        fence = await on.store.lease(TENANT, "l", "one", 10)
        assert fence is not None
        on.clock.advance(9)
        assert await on.store.lease(TENANT, "l", "one", 10, fence=fence) == fence
        assert await on.store.lease(TENANT, "l", "two", 10, fence=fence) is None
        assert await on.store.lease(TENANT, "l", "one", 10, fence=fence + 1) is None
        on.clock.advance(9)
        assert await on.store.lease(TENANT, "l", "two", 10) is None
        on.clock.advance(1)

        assert await on.store.lease(TENANT, "l", "two", 10, fence=fence) is None
        assert await on.store.lease(TENANT, "l", "one", 10, fence=fence) == fence
        on.clock.advance(10)
        assert await on.store.lease(TENANT, "l", "two", 10) is not None
        assert await on.store.lease(TENANT, "l", "one", 10, fence=fence) is None
        assert await on.store.lease(TENANT, "l", "two", 0) is not None
        assert await on.store.lease(TENANT, "l", "one", 10, fence=fence) is None

    @rule
    async def test_a_holder_that_takes_its_own_lease_renews_it(self, on: OpenedStore) -> None:
        """A holder that takes its own lease renews it with the same fence, and may give it back without the fence."""
        fence = await on.store.lease(TENANT, "l", "one", 10)
        on.clock.advance(9)
        assert await on.store.lease(TENANT, "l", "one", 10) == fence
        on.clock.advance(9)
        assert await on.store.lease(TENANT, "l", "two", 0) is None
        assert await on.store.lease(TENANT, "l", "two", 10) is None
        await on.store.lease(TENANT, "l", "one", 0)

        assert (await on.store.lease(TENANT, "l", "two", 10) or 0) > (fence or 0)

    @rule
    async def test_giving_a_lease_back_frees_it_at_once(self, on: OpenedStore) -> None:
        """Renewing a lease for 0 seconds ends it, so that the next holder need not wait."""
        fence = await on.store.lease(TENANT, "l", "one", 10)
        assert fence is not None
        await on.store.lease(TENANT, "l", "one", 0, fence=fence)

        assert (await on.store.lease(TENANT, "l", "two", 10) or 0) > fence

    # --- expiry

    @rule
    async def test_sweep_erases_what_has_expired(self, on: OpenedStore) -> None:
        """A sweep turns a tenant's expired entries into tombstones, removes its expired items, and counts both."""
        now = on.clock.now
        soon, later = (datetime.fromtimestamp(now / 1_000_000 + seconds, UTC) for seconds in (10, 20))
        await on.store.append(KEY, [*said("a", expires_at=soon), *said("b", expires_at=later), *said("c")])
        await on.store.append(FOREIGN, said("d", expires_at=soon))
        await on.store.append(OTHER, said("e"))
        await on.store.put_item(TENANT, "n", "k", b"", expires=now + 10_000_000)
        await on.store.put_item(TENANT, "n", "m", b"", expires=now + 20_000_000)

        assert await on.store.sweep(TENANT, now + 9_999_999) == 0
        assert await on.store.sweep(TENANT, now + 10_000_000) == 2
        assert await on.store.sweep(TENANT, now + 10_000_000) == 0
        assert texts(await on.store.read(FOREIGN)) == ["d"]
        assert await on.store.sweep(FOREIGN.tenant, now + 10_000_000) == 1

        assert texts(await on.store.read(KEY)) == ["", "b", "c"]
        assert [entry.erased for entry in await on.store.read(FOREIGN)] == [True]
        assert [item.key for item in await on.store.list_items(TENANT, "n")] == ["m"]
        assert [(r.kind, r.reason, r.seqs) for r in await on.store.records(KEY)] == [("erase", "expiry", (1,))]
        head = await on.store.head(KEY)
        assert head is not None
        assert (head.epoch, head.erased) == (1, 1)
        assert await on.store.records(OTHER) == []

    @rule
    async def test_a_swept_lease_or_erased_entry_is_not_swept_again(self, on: OpenedStore) -> None:
        """A sweep counts nothing that was erased or swept before."""
        soon = datetime.fromtimestamp(on.clock.now / 1_000_000 + 10, UTC)
        await on.store.append(KEY, said("a", expires_at=soon))
        await on.store.commit(KEY, Change(kind="erase", reason="r", seqs=(1,)))

        assert await on.store.sweep(TENANT, on.clock.now + 60_000_000) == 0

    # --- closing

    @rule
    async def test_a_closed_store_raises_closed(self, on: OpenedStore) -> None:
        """After `close` every verb raises Closed; closing twice is allowed."""
        await on.store.close()
        await on.store.close()

        store = on.store
        await refused(Closed, store.head(KEY))
        await refused(Closed, store.append(KEY, said("a")))
        await refused(Closed, store.read(KEY))
        await refused(Closed, store.fetch(KEY, [1]))
        await refused(Closed, store.commit(KEY, Change(kind="clear", reason="r")))
        await refused(Closed, store.records(KEY))
        await refused(Closed, store.count(KEY, "words", {1: 1}))
        await refused(Closed, store.delete(KEY))
        await refused(Closed, store.sessions(TENANT))
        await refused(Closed, store.get_item(TENANT, "n", "k"))
        await refused(Closed, store.put_item(TENANT, "n", "k", b""))
        await refused(Closed, store.delete_item(TENANT, "n", "k"))
        await refused(Closed, store.list_items(TENANT, "n"))
        await refused(Closed, store.lease(TENANT, "l", "h", 1))
        await refused(Closed, store.sweep(TENANT, 0))
