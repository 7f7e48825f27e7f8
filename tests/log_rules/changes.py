"""The contract of stores: changes of a session, their records, and whole sessions."""

from __future__ import annotations

from msgspec.structs import replace

from log_rules.contract import FOREIGN, KEY, OTHER, Contract, OpenedStore, refused, rule, said, texts
from palimpsest.errors import Conflict
from palimpsest.log.change import Change
from palimpsest.log.entry import Entry
from palimpsest.log.head import Cut, Head, PromptSize, Usage
from palimpsest.stores import Dump
from stored_counts import rows_kept, summed


class ChangeConformance(Contract):
    """Changes of a session, their records, and whole sessions."""

    # --- changes

    @rule
    async def test_a_cut_begins_an_epoch_and_is_recorded(self, on: OpenedStore) -> None:
        """The head keeps the newest cut of each view, with its epoch and revision."""
        await on.store.append(KEY, said("a", "b"))
        on.clock.advance(3)
        change = Change(kind="cut", reason="high water", view="main", cut=Cut(start=2), detail={"n": 1})
        head = await on.store.commit(KEY, change)
        await on.store.commit(KEY, replace(change, view="small", cut=Cut(start=1)))

        assert (head.revision, head.epoch, head.updated) == (2, 1, on.clock.now)
        cut = Cut(start=2, epoch=1, revision=2)
        assert head.views == {"main": cut}
        found = await on.store.head(KEY)
        assert found is not None
        assert (found.views["main"], found.views["small"].epoch) == (cut, 2)
        first, second = await on.store.records(KEY)
        assert (first.kind, first.reason, first.view, first.cut) == ("cut", "high water", "main", cut)
        assert (first.revision, first.at, first.detail, second.revision) == (2, on.clock.now, {"n": 1}, 3)

    @rule
    async def test_erasing_leaves_tombstones(self, on: OpenedStore) -> None:
        """A tombstone has no content, name, metadata or count, but the seq, id, kind and links."""
        entry = Entry(id="x", content="secret", name="n", metadata={"a": 1}, status="error", call_id="c")
        before = (await on.store.append(KEY, [*said("a"), entry])).entries[1]
        for counts in ({1: 1}, {2: 5}):
            await on.store.count(KEY, "words", counts)
        head = await on.store.commit(KEY, Change(kind="erase", reason="asked", seqs=(2,)))

        (_, tombstone) = await on.store.read(KEY, counter="words")
        assert (tombstone.erased, tombstone.content, tombstone.name, tombstone.metadata, tombstone.tokens) == (
            True,
            "",
            None,
            None,
            None,
        )
        assert (tombstone.id, tombstone.seq, tombstone.turn, tombstone.at) == ("x", 2, before.turn, before.at)
        assert (head.epoch, head.erased, head.entries) == (1, 1, 1)
        assert await summed(on.store, KEY, "words") == (1, 1)
        assert [(r.kind, r.reason, r.seqs) for r in await on.store.records(KEY)] == [("erase", "asked", (2,))]

    @rule
    async def test_a_tombstone_reveals_nothing_of_its_text(self, on: OpenedStore) -> None:
        """A tombstone does not even tell whether its text held lone surrogates."""
        await on.store.append(KEY, said("broken \ud800", "kept \ud800"))
        await on.store.commit(KEY, Change(kind="erase", reason="r", seqs=(1,)))

        assert [entry.lone for entry in await on.store.read(KEY)] == [False, True]

    @rule
    async def test_an_erased_id_may_be_added_again_without_effect(self, on: OpenedStore) -> None:
        """Repeating a batch after its erasure neither conflicts nor brings it back."""
        batch = said("a")
        await on.store.append(KEY, batch, check_ids=True)
        await on.store.commit(KEY, Change(kind="erase", reason="r", seqs=(1,)))

        assert (await on.store.append(KEY, batch, check_ids=True)).added == 0
        assert texts(await on.store.read(KEY)) == [""]

    @rule
    async def test_clearing_removes_everything_and_goes_on_counting(self, on: OpenedStore) -> None:
        """A cleared session is empty; its seqs and revisions continue, and its ids are free again."""
        batch = said("a", "b")
        await on.store.append(KEY, batch)
        await on.store.count(KEY, "words", {1: 1})
        assert await rows_kept(on.store, KEY, "words") == 1
        await on.store.commit(KEY, Change(kind="cut", reason="r", view="main", cut=Cut()))
        head = await on.store.commit(KEY, Change(kind="clear", reason="cleared"))

        assert await on.store.read(KEY) == []
        assert await rows_kept(on.store, KEY, "words") == 0
        assert [record.kind for record in await on.store.records(KEY)] == ["clear"]
        assert (head.entries, head.views, head.revision, head.epoch) == (0, {}, 3, 2)
        again = await on.store.append(KEY, batch, check_ids=True)
        assert [entry.seq for entry in again.entries] == [3, 4]

    @rule
    async def test_pins_and_usage_keep_the_epoch(self, on: OpenedStore) -> None:
        """Pins move the revision and leave a record, usage leaves none; neither begins an epoch."""
        await on.store.append(KEY, said("a", "b", "c"))
        await on.store.commit(KEY, Change(kind="pin", reason="pinned", seqs=(3, 1)))
        await on.store.commit(KEY, Change(kind="pin", reason="unpinned", seqs=(3,), unpin=True))
        head = await on.store.commit(KEY, Change(kind="usage", reason="usage", usage=Usage(input_tokens=7)))

        assert (head.pinned, head.epoch, head.revision) == ((1,), 0, 4)
        assert head.usage == Usage(input_tokens=7)
        assert [record.reason for record in await on.store.records(KEY)] == ["pinned", "unpinned"]

    @rule
    async def test_the_count_of_the_last_context_is_kept_until_texts_change(self, on: OpenedStore) -> None:
        """The count of the newest context is stored without a record, until a change of texts removes it."""
        await on.store.append(KEY, said("a", "b", "c"))
        for revision, tokens in ((1, 7), (2, 9), (1, 8)):
            prompt = PromptSize(tokens=tokens, revision=revision)
            head = await on.store.commit(KEY, Change(kind="prompt", reason="prompt", prompt=prompt))

        assert (head.prompt, head.epoch, head.revision) == (PromptSize(tokens=9, revision=2), 0, 4)
        assert await on.store.head(KEY) == head
        assert await on.store.records(KEY) == []
        for change in (Change(kind="erase", reason="r", seqs=(1,)), Change(kind="clear", reason="r")):
            await on.store.commit(KEY, Change(kind="prompt", reason="prompt", prompt=PromptSize(tokens=1, revision=99)))
            assert (await on.store.commit(KEY, change)).prompt is None

    @rule
    async def test_a_change_happens_only_where_it_is_expected(self, on: OpenedStore) -> None:
        """A change with an outdated revision or epoch raises Conflict and changes nothing."""
        await on.store.append(KEY, said("a"))
        cut = Change(kind="cut", reason="r", view="main", cut=Cut())
        await refused(Conflict, on.store.commit(KEY, cut, expect_revision=0))
        await refused(Conflict, on.store.commit(KEY, cut, expect_epoch=1))
        await on.store.commit(KEY, cut, expect_revision=1, expect_epoch=0)
        await on.store.append(KEY, said("b"))
        before = await on.store.head(KEY)
        await refused(Conflict, on.store.commit(KEY, Change(kind="clear", reason="r"), expect_epoch=0))
        await refused(Conflict, on.store.commit(KEY, Change(kind="erase", reason="r", seqs=(1,)), expect_revision=2))

        assert await on.store.head(KEY) == before
        assert texts(await on.store.read(KEY)) == ["a", "b"]
        assert len(await on.store.records(KEY)) == 1

    @rule
    async def test_a_cut_of_another_log_is_refused(self, on: OpenedStore) -> None:
        """A cut behind the end of the log, or of an unknown compaction, raises Conflict."""
        await on.store.append(KEY, said("a"))
        before = await on.store.head(KEY)

        for cut in (Cut(start=9), Cut(compaction=9)):
            await refused(Conflict, on.store.commit(KEY, Change(kind="cut", reason="r", view="main", cut=cut)))

        assert await on.store.head(KEY) == before

    @rule
    async def test_records_come_by_revision(self, on: OpenedStore) -> None:
        """Records come oldest first; `after` and `before` are exclusive revisions."""
        await on.store.append(KEY, said("a"))
        for i in range(3):
            await on.store.commit(KEY, Change(kind="pin", reason=str(i), seqs=()))

        assert [record.reason for record in await on.store.records(KEY)] == ["0", "1", "2"]
        assert [record.revision for record in await on.store.records(KEY, after=2, before=4)] == [3]

    # --- whole sessions

    @rule
    async def test_load_writes_a_whole_session(self, on: OpenedStore) -> None:
        """A loaded dump is read back equal; an existing session is refused or replaced."""
        await on.store.append(KEY, said("a", "b"))
        await on.store.commit(KEY, Change(kind="cut", reason="r", view="main", cut=Cut(start=2)))
        head = await on.store.head(KEY) or Head()
        entries, records = tuple(await on.store.read(KEY)), tuple(await on.store.records(KEY))
        await on.store.append(OTHER, said("gone"))
        await on.store.count(OTHER, "words", {1: 9})

        dump = Dump(head=head, entries=entries, records=records)
        await refused(Conflict, on.store.load(OTHER, dump))
        assert texts(await on.store.read(OTHER)) == ["gone"]
        await on.store.load(OTHER, dump, replace=True)
        await on.store.load(FOREIGN, dump)

        assert await on.store.head(FOREIGN) == head
        replaced = await on.store.head(OTHER) or Head()
        assert replaced.revision > 1  # so a change that was planned for the earlier log is outdated
        assert replaced.epoch > 0
        for key in (OTHER, FOREIGN):
            assert tuple(await on.store.read(key)) == entries
            assert tuple(await on.store.records(key)) == records
            assert await summed(on.store, key, "words") == (0, 0)
            assert (await on.store.append(key, said("c"))).entries[0].seq == 3

    @rule
    async def test_delete_leaves_nothing_of_the_session(self, on: OpenedStore) -> None:
        """A deleted session is unknown, others are unchanged, and its id starts again."""
        for key in (KEY, OTHER):
            await on.store.append(key, said("a"))
            await on.store.count(key, "words", {1: 1})
            await on.store.commit(key, Change(kind="pin", reason="r", seqs=(1,)))

        assert await on.store.delete(KEY) is True
        assert await on.store.delete(KEY) is False

        assert await on.store.head(KEY) is None
        assert (await on.store.read(KEY), await on.store.records(KEY)) == ([], [])
        assert texts(await on.store.read(OTHER)) == ["a"]
        again = await on.store.append(KEY, said("b"))
        assert (again.head.revision, again.entries[0].seq) == (1, 1)
        assert await summed(on.store, KEY, "words") == (0, 0)

    @rule
    async def test_sessions_are_listed_by_id_for_their_tenant_alone(self, on: OpenedStore) -> None:
        """A tenant's sessions are listed by code point of their ids; `after` and `limit` page through them."""
        names = ["a", "B", "ä", "\U0001f600", "\uffee", "b" * 256, "a b", "%", "_"]
        for name in names:
            await on.store.append(KEY._replace(session=name), said("x"))
        await on.store.append(FOREIGN, said("y"))

        found = await on.store.sessions(KEY.tenant)

        assert [one.session for one in found] == sorted(names)
        pages = await on.store.sessions(KEY.tenant, limit=4)
        pages += await on.store.sessions(KEY.tenant, after=pages[-1].session, limit=100)
        assert pages == found
        assert [one.session for one in await on.store.sessions(FOREIGN.tenant)] == [FOREIGN.session]
        assert await on.store.sessions("nobody") == []

    @rule
    async def test_a_listing_has_the_figures_of_the_head(self, on: OpenedStore) -> None:
        """A listing has the number of entries without tombstones, revision, epoch, and the times of creation and
        change."""
        await on.store.append(KEY, said("a", "b", "c"))
        begun = on.clock.now
        on.clock.advance(1)
        await on.store.commit(KEY, Change(kind="erase", reason="r", seqs=(2,)))

        (info,) = await on.store.sessions(KEY.tenant)

        assert (info.entries, info.revision, info.epoch) == (2, 2, 1)
        assert (info.created, info.updated) == (begun, on.clock.now)
