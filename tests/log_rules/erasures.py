"""The contract of stores: erasures across sessions, expiry, and silenced records."""

from __future__ import annotations

from msgspec.structs import replace

from log_rules.branches import fork
from log_rules.compactions import compact, covering, sound, state_of, summaries
from log_rules.contract import FOREIGN, KEY, OTHER, Contract, OpenedStore, refused, rule, said, texts
from palimpsest.errors import Conflict
from palimpsest.log.change import Change
from palimpsest.log.entry import moment
from palimpsest.log.head import Cut, Head

THIRD = KEY._replace(session="a third")


class ErasureConformance(Contract):
    """Branches that share entries, entries that are due, silenced records, and all items of a tenant."""

    @rule
    async def test_branches_are_those_that_share_entries(self, on: OpenedStore) -> None:
        """`branches` returns exactly the other sessions that share entries, tombstones included."""
        await on.store.append(KEY, said("a", "b"))
        await on.store.append(FOREIGN, said("a"))
        await fork(on.store, KEY, OTHER)
        await on.store.append(OTHER, said("mine"))
        await fork(on.store, OTHER, THIRD)
        await on.store.append(KEY, said("c"))

        names = sorted([KEY.session, OTHER.session, THIRD.session])
        for key in (KEY, OTHER, THIRD):
            assert await on.store.branches(key) == [name for name in names if name != key.session]
        await on.store.commit(KEY, Change(kind="erase", reason="r", seqs=(1, 2)))
        assert len(await on.store.branches(KEY)) == 2
        await on.store.commit(KEY, Change(kind="clear", reason="cleared"))
        await on.store.append(KEY, said("d"))
        assert await on.store.branches(KEY) == []
        assert await on.store.branches(OTHER) == [THIRD.session]
        await on.store.delete(OTHER)
        assert await on.store.branches(THIRD) == []
        assert await on.store.branches(OTHER) == []
        assert await on.store.branches(FOREIGN) == []

    @rule
    async def test_due_entries_are_those_that_a_sweep_would_erase(self, on: OpenedStore) -> None:
        """What is due is listed for each session that shares it; erased and swept entries are not due."""
        soon = moment(on.clock.now + 1_000_000)
        await on.store.append(KEY, [*said("a"), *said("b", "c", expires_at=soon)])
        await fork(on.store, KEY, OTHER)
        await on.store.commit(KEY, Change(kind="erase", reason="r", seqs=(3,)))

        assert await on.store.due(KEY.tenant, on.clock.now) == []
        later = on.clock.now + 1_000_000
        assert sorted(await on.store.due(KEY.tenant, later)) == sorted([(KEY, (2,)), (OTHER, (2,))])
        await on.store.sweep(KEY.tenant, later)
        assert await on.store.due(KEY.tenant, later) == []

    @rule
    async def test_an_erasure_skips_tombstones_and_unknown_entries_in_every_branch(self, on: OpenedStore) -> None:
        """An erasure skips tombstones, unknown seqs, other ids and, if asked, pins; the record names what went."""
        done = await on.store.append(KEY, said("a", "b", "c", "d"))
        await fork(on.store, KEY, OTHER)
        await on.store.commit(KEY, Change(kind="erase", reason="r", seqs=(1,)))
        await on.store.commit(KEY, Change(kind="pin", reason="r", seqs=(4,)))
        ids = (*(entry.id for entry in done.entries[:2]), "another", done.entries[3].id, "nowhere")

        change = Change(kind="erase", reason="r", seqs=(1, 2, 3, 4, 9), ids=ids, unpinned=True)
        head = await on.store.commit(KEY, change)

        assert [record.seqs for record in await on.store.records(KEY) if record.kind == "erase"] == [(1,), (2,)]
        assert (head.erased, head.entries, head.pinned) == (2, 2, (4,))
        for key in (KEY, OTHER):
            assert texts(await on.store.read(key)) == ["", "", "c", "d"]
        branch_head = await on.store.head(OTHER) or Head()
        assert branch_head.erased == 2

    @rule
    async def test_an_erasure_does_not_reach_entries_cleared_in_its_session(self, on: OpenedStore) -> None:
        """An erasure in a session does not reach entries that it has cleared and a branch keeps."""
        done = await on.store.append(KEY, said("a"))
        await fork(on.store, KEY, OTHER)
        await on.store.commit(KEY, Change(kind="clear", reason="cleared"))
        await on.store.append(KEY, said("b"))

        head = await on.store.commit(KEY, Change(kind="erase", reason="r", seqs=(1,), ids=(done.entries[0].id,)))

        assert (head.erased, head.entries) == (0, 1)
        assert texts(await on.store.read(OTHER)) == ["a"]

    @rule
    async def test_a_change_for_an_earlier_session_of_the_name_conflicts(self, on: OpenedStore) -> None:
        """A change that names when its session began raises Conflict for a session that began at another time or is
        gone."""
        done = await on.store.append(KEY, said("a"))
        erase = Change(kind="erase", reason="r", created=done.head.created, seqs=(1,))
        await on.store.delete(KEY)

        await refused(Conflict, on.store.commit(KEY, erase))
        assert await on.store.head(KEY) is None
        on.clock.advance(1)
        await on.store.append(KEY, said("b"))
        await refused(Conflict, on.store.commit(KEY, erase))
        assert texts(await on.store.read(KEY)) == ["b"]

    @rule
    async def test_a_clear_counts_all_entries_that_it_removed(self, on: OpenedStore) -> None:
        """A clear returns what its own step removed, including entries that came after it was requested."""
        await on.store.append(KEY, said("a"))
        change = Change(kind="clear", reason="cleared", detail={"entries": 1})
        await on.store.append(KEY, said("b"))

        await on.store.commit(KEY, change)

        (record,) = await on.store.records(KEY)
        assert record.detail == {"entries": 2}

    @rule
    async def test_a_delete_happens_only_where_it_is_expected(self, on: OpenedStore) -> None:
        """A delete with an expected revision leaves a session to which somebody has added meanwhile."""
        await on.store.append(KEY, said("a"))
        await on.store.append(KEY, said("b"))

        await refused(Conflict, on.store.delete(KEY, expect=1))
        await refused(Conflict, on.store.delete(OTHER, expect=1))

        assert texts(await on.store.read(KEY)) == ["a", "b"]
        assert await on.store.delete(KEY, expect=2) is True
        assert await on.store.head(KEY) is None

    @rule
    async def test_deleting_the_items_of_a_tenant_removes_all_namespaces(self, on: OpenedStore) -> None:
        """Deleting a tenant's items removes and counts all namespaces, expired items included, and ends its leases."""
        await on.store.put_item("t", "one", "a", b"1")
        await on.store.put_item("t", "one", "b", b"2", expires=on.clock.now + 1)
        await on.store.put_item("t", "two", "a", b"3")
        await on.store.put_item("other", "one", "a", b"4")
        on.clock.advance(1)
        assert await on.store.lease("t", "name", "me", 60) is not None

        assert await on.store.clear_items("t", dry_run=True) == {"one": 2, "two": 1}
        assert await on.store.clear_items("t") == {"one": 2, "two": 1}

        assert await on.store.clear_items("t") == {}
        assert await on.store.list_items("t", "one") == []
        assert [item.value for item in await on.store.list_items("other", "one")] == [b"4"]
        assert await on.store.lease("t", "name", "you", 60) is not None

    @rule
    async def test_silenced_records_lose_reason_details_and_conditions(self, on: OpenedStore) -> None:
        """Silenced records, and the head, lose reason, details and conditions; other records keep them."""
        await on.store.append(KEY, said("a", "b", "c"))
        cut = Cut(start=2, conditions=("a secret",))
        await on.store.commit(KEY, Change(kind="cut", reason="r", view="v", cut=cut, detail={"a": "secret"}))
        await on.store.commit(KEY, Change(kind="erase", reason="secret", seqs=(1,), detail={"a": 1}))
        await on.store.commit(KEY, Change(kind="pin", reason="pinned", seqs=(2,), detail={"kept": 1}))
        await fork(on.store, KEY, OTHER)

        head = await on.store.commit(KEY, Change(kind="erase", reason="again", silence=(2, 3)))

        first, second, third, last = await on.store.records(KEY)
        assert (first.detail, first.reason, first.cut) == ({}, "r", replace(cut, conditions=(), epoch=1, revision=2))
        assert (second.reason, second.detail, second.seqs) == ("", {}, (1,))
        assert (third.detail, last.reason, last.seqs) == ({"kept": 1}, "again", ())
        assert head.views["v"].conditions == ()
        assert ((await on.store.head(KEY)) or Head()).views["v"].conditions == ()
        assert texts(await on.store.read(KEY)) == ["", "b", "c"]
        assert [record.reason for record in await on.store.records(OTHER)] == ["r", "secret", "pinned"]
        assert ((await on.store.head(OTHER)) or Head()).views["v"].conditions == ("a secret",)

    @rule
    async def test_a_silenced_summary_covers_nothing(self, on: OpenedStore) -> None:
        """A silenced summary loses its text, and the entries that it covered are uncovered."""
        await on.store.append(KEY, said("a", "b", "c", "d"))
        first = await compact(on.store, KEY, covering(await state_of(on.store, KEY), "a secret", (1, 1)))
        other = await compact(on.store, KEY, covering(await state_of(on.store, KEY), "others", (3, 3)))
        state = await state_of(on.store, KEY)
        await compact(on.store, KEY, covering(state, "a secret, too", (2, 2), fold=[first]))

        await on.store.commit(KEY, Change(kind="erase", reason="r", silence=(first.revision,)))

        found = await summaries(on.store, KEY)
        assert found[first.revision].withdrawn
        assert found[first.revision].text == ""
        assert found[other.revision].text == "others"
        assert await sound(on.store, KEY)
        newest = max(found)
        await on.store.commit(KEY, Change(kind="erase", reason="r", silence=(newest,)))
        after = await state_of(on.store, KEY)
        assert (after.current, after.covered, after.evicted) == ((other.revision,), ((3, 3),), ((1, 2),))
        assert await sound(on.store, KEY)
        assert texts(await on.store.read(KEY)) == ["a", "b", "c", "d"]

    @rule
    async def test_scrubbing_completes_without_other_readers(self, on: OpenedStore) -> None:
        """Without other readers, scrubbing leaves nothing undone, however often it runs."""
        await on.store.append(KEY, said("a", "b"))
        await on.store.commit(KEY, Change(kind="erase", reason="r", seqs=(1,)))

        assert (await on.store.scrub(whole=False)).remains == self.keeps
        assert (await on.store.scrub()).remains == (*self.keeps, *self.refuses)
        assert texts(await on.store.read(KEY)) == ["", "b"]
