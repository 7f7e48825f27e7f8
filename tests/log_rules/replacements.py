"""The contract of stores: replacements, which add entries and archive others in one commit."""

from __future__ import annotations

from msgspec.structs import replace

from log_rules.compactions import AWKWARD, sound
from log_rules.contract import KEY, OTHER, Contract, OpenedStore, refused, rule, said, texts
from palimpsest.errors import Conflict
from palimpsest.log.change import Change
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head
from palimpsest.log.summary import Compaction


class ReplacementConformance(Contract):
    """Replacements: a replacement happens completely or not at all."""

    @rule
    async def test_a_replacement_adds_and_archives_in_one_commit(self, on: OpenedStore) -> None:
        """One revision has the record and the new entries, linked as if the archived ones had never been."""
        await on.store.append(KEY, [*said("a"), Entry(kind="tool_call", role="assistant", name="find", call_id="c")])
        await on.store.append(KEY, said("b", pinned=True))
        on.clock.advance(3)
        result = Entry(kind="tool_result", role="tool", name="find", call_id="c", content="nobody's")
        new = (Entry(role="assistant", content=AWKWARD), result, *said("☂" * 40_000))
        state = Compaction(evicted=((2, 3),))
        change = Change(kind="replace", reason="replace", turn=1, entries=new, compaction=state, detail={"archived": 2})

        head = await on.store.commit(KEY, change, expect_epoch=0)

        assert await on.store.head(KEY) == head
        assert (head.revision, head.epoch, head.compaction, head.next_seq) == (3, 1, 3, 7)
        assert (head.turn, head.calls, head.pinned, head.turns) == (6, (), (), 3)
        (record,) = await on.store.records(KEY)
        assert (record.revision, record.kind, record.seqs, record.at) == (3, "replace", (4, 5, 6), on.clock.now)
        assert (record.compaction, record.detail) == (state, {"archived": 2})
        found = await on.store.read(KEY, after=3)
        assert texts(found) == [AWKWARD, "nobody's", "☂" * 40_000]
        assert [(e.seq, e.turn, e.group, e.answers, e.revision) for e in found] == [
            (4, 1, 4, 0, 3),
            (5, 1, 5, 0, 3),
            (6, 6, 6, 0, 3),
        ]
        assert [e.seq for e in await on.store.fetch(KEY, ids=[e.id for e in found])] == [4, 5, 6]
        after = await on.store.append(KEY, [replace(result, content="again")])
        assert (after.entries[0].seq, after.entries[0].answers, after.head.revision) == (7, 0, 4)

    @rule
    async def test_a_replacement_with_an_outdated_epoch_changes_nothing(self, on: OpenedStore) -> None:
        """A replacement with an outdated epoch stores neither record nor entries; appends alone do not outdate it."""
        await on.store.append(KEY, said("a"))
        change = Change(kind="replace", reason="r", entries=tuple(said("b")), compaction=Compaction(evicted=((1, 1),)))
        await on.store.append(KEY, said("meanwhile"))
        before = await on.store.head(KEY)

        await refused(Conflict, on.store.commit(KEY, change, expect_revision=1))
        await refused(Conflict, on.store.commit(KEY, change, expect_epoch=7))

        assert await on.store.head(KEY) == before
        assert (texts(await on.store.read(KEY)), await on.store.records(KEY)) == (["a", "meanwhile"], [])
        head = await on.store.commit(KEY, change, expect_epoch=0)
        assert (texts(await on.store.read(KEY)), head.turn) == (["a", "meanwhile", "b"], 3)

    @rule
    async def test_entries_of_a_replacement_are_branched_and_erased_like_others(self, on: OpenedStore) -> None:
        """Entries of a replacement are branched and erased like others; its record stays."""
        await on.store.append(KEY, said("a"))
        then = await on.store.head(KEY) or Head()
        entries, left = tuple(said("b", "c")), Compaction(evicted=((1, 1),))
        now = await on.store.commit(KEY, Change(kind="replace", reason="r", entries=entries, compaction=left))
        early = KEY._replace(session="early")

        await on.store.fork(KEY, early.session, then, expect_epoch=now.epoch)
        await on.store.fork(KEY, OTHER.session, now, expect_epoch=now.epoch)

        assert [texts(await on.store.read(key)) for key in (early, OTHER)] == [["a"], ["a", "b", "c"]]
        assert [len(await on.store.records(key)) for key in (early, OTHER)] == [0, 1]
        await on.store.commit(KEY, Change(kind="erase", reason="why", seqs=(1, 2)))
        assert texts(await on.store.read(KEY)) == ["", "", "c"]
        assert [record.kind for record in await on.store.records(KEY)] == ["replace", "erase"]
        assert await sound(on.store, KEY)
