"""The contract of stores: branches that share entries, rewinds, and large content."""

from __future__ import annotations

from msgspec.structs import replace

from log_rules.contract import FOREIGN, KEY, OTHER, Contract, OpenedStore, refused, rule, said, texts
from palimpsest.errors import Conflict
from palimpsest.log.change import Change
from palimpsest.log.entry import Entry, Image, Text, moment
from palimpsest.log.head import Cut, Head, SessionKey
from palimpsest.stores import Dump, Store
from stored_counts import summed

BRANCH = OTHER


async def fork(store: Store, key: SessionKey, into: SessionKey, next_seq: int | None = None) -> Head:
    """Make a branch at `next_seq`, or at the end, and return its head."""
    head = await store.head(key) or Head()
    point = head if next_seq is None else replace(head, next_seq=next_seq, erased=0, calls=(), group=0)
    branch = replace(point, forked_from=(key.session, head.revision))
    await store.fork(key, into.session, branch, expect_epoch=head.epoch)
    return branch


class BranchConformance(Contract):
    """Branches that share entries, rewinds, and large content."""

    # --- forking

    @rule
    async def test_a_branch_has_the_entries_before_its_point(self, on: OpenedStore) -> None:
        """A branch has the entries before its point with ids, links and counts, and the head that was given."""
        done = await on.store.append(KEY, said("a", "b", "c"))
        await on.store.count(KEY, "words", {1: 10, 2: 20, 3: 30})
        head = await fork(on.store, KEY, BRANCH, next_seq=3)

        assert await on.store.head(BRANCH) == head
        assert await on.store.read(BRANCH) == list(done.entries[:2])
        assert await on.store.fetch(BRANCH, [1, 3], [done.entries[1].id, done.entries[2].id]) == list(done.entries[:2])
        assert [entry.tokens for entry in await on.store.read(BRANCH, counter="words")] == [10, 20]
        assert await summed(on.store, BRANCH, "words") == (2, 30)
        assert [info.session for info in await on.store.sessions(KEY.tenant)] == sorted({KEY.session, BRANCH.session})

    @rule
    async def test_a_fork_with_a_head_of_a_deleted_session_is_refused(self, on: OpenedStore) -> None:
        """A fork with a head from before the session was deleted and made again is refused: the new log may be
        shorter."""
        await on.store.append(KEY, said("a", "b", "c"))
        head = await on.store.head(KEY) or Head()
        await on.store.delete(KEY)
        await on.store.append(KEY, said("d"))

        await refused(Conflict, on.store.fork(KEY, BRANCH.session, head, expect_epoch=head.epoch))

        assert await on.store.head(BRANCH) is None
        assert texts(await on.store.read(KEY)) == ["d"]

    @rule
    async def test_a_branch_has_the_records_up_to_its_revision(self, on: OpenedStore) -> None:
        """A branch has the records up to the revision of its head, and no later ones."""
        await on.store.append(KEY, said("a"))
        for i in range(3):
            await on.store.commit(KEY, Change(kind="cut", reason=str(i), view="main", cut=Cut(start=1)))
        head = await on.store.head(KEY) or Head()

        await on.store.fork(KEY, BRANCH.session, replace(head, revision=3), expect_epoch=head.epoch)

        assert [record.reason for record in await on.store.records(BRANCH)] == ["0", "1"]
        await on.store.commit(BRANCH, Change(kind="pin", reason="mine", seqs=()))
        assert [record.reason for record in await on.store.records(BRANCH)] == ["0", "1", "mine"]
        assert [record.reason for record in await on.store.records(KEY)] == ["0", "1", "2"]

    @rule
    async def test_an_entry_added_to_one_branch_is_in_no_other(self, on: OpenedStore) -> None:
        """An entry added to one branch is in no other, by seq or id; seqs continue from the point in each."""
        await on.store.append(KEY, said("a", "b"))
        await fork(on.store, KEY, BRANCH)
        mine = await on.store.append(BRANCH, said("mine", "too"))
        theirs = await on.store.append(KEY, said("theirs"))

        assert texts(await on.store.read(KEY)) == ["a", "b", "theirs"]
        assert texts(await on.store.read(BRANCH)) == ["a", "b", "mine", "too"]
        assert [entry.seq for entry in (*mine.entries, *theirs.entries)] == [3, 4, 3]
        assert await on.store.fetch(KEY, ids=[mine.entries[0].id]) == []
        assert await on.store.fetch(BRANCH, ids=[theirs.entries[0].id]) == []
        assert texts(await on.store.read(BRANCH, after=1, before=4)) == ["b", "mine"]
        assert texts(await on.store.read(BRANCH, limit=3, newest_first=True)) == ["too", "mine", "b"]
        assert texts(await on.store.read(BRANCH, before=3, limit=1, newest_first=True)) == ["b"]
        assert texts(await on.store.read(BRANCH, after=1, limit=2)) == ["b", "mine"]
        await on.store.count(BRANCH, "words", {2: 5, 3: 7})
        assert await summed(on.store, BRANCH, "words", after=1) == (2, 12)
        assert await summed(on.store, BRANCH, "words", after=1, before=3) == (1, 5)
        assert texts((await on.store.uncounted(BRANCH, "words"))[1]) == ["a", "too"]

    @rule
    async def test_a_branch_of_a_branch_has_all_entries_before_it(self, on: OpenedStore) -> None:
        """A branch of a branch has all entries before it, through all its ancestors."""
        third, fourth = (KEY._replace(session=name) for name in ("third", "fourth"))
        await on.store.append(KEY, said("a", "b", "c"))
        await fork(on.store, KEY, BRANCH, next_seq=3)
        await on.store.append(BRANCH, said("d", "e"))
        await fork(on.store, BRANCH, third, next_seq=4)
        await on.store.append(third, said("f"))
        await fork(on.store, third, fourth, next_seq=2)
        await on.store.append(fourth, said("g"))

        assert texts(await on.store.read(third)) == ["a", "b", "d", "f"]
        assert texts(await on.store.read(third, newest_first=True)) == ["f", "d", "b", "a"]
        assert texts(await on.store.read(fourth)) == ["a", "g"]
        assert texts(await on.store.fetch(third, [1, 3, 4, 5])) == ["a", "d", "f"]

    @rule
    async def test_a_fork_to_a_taken_id_or_an_outdated_epoch_is_refused(self, on: OpenedStore) -> None:
        """A fork to a taken id, or with an outdated epoch, raises Conflict and changes nothing."""
        await on.store.append(KEY, said("a"))
        await on.store.append(BRANCH, said("b"))
        head = await on.store.head(KEY) or Head()

        await refused(Conflict, on.store.fork(KEY, BRANCH.session, head, expect_epoch=0))
        await refused(Conflict, on.store.fork(KEY, KEY.session, head, expect_epoch=0))
        await refused(Conflict, on.store.fork(KEY, "new", head, expect_epoch=1))

        assert texts(await on.store.read(BRANCH)) == ["b"]
        assert await on.store.head(KEY._replace(session="new")) is None
        await on.store.append(KEY, said("meanwhile"))
        await on.store.fork(KEY, "new", head, expect_epoch=0)
        assert texts(await on.store.read(KEY._replace(session="new"))) == ["a"]

    @rule
    async def test_a_fork_of_a_session_deleted_since_conflicts(self, on: OpenedStore) -> None:
        """A fork of a session that was deleted since, replaced or not, raises Conflict and makes nothing."""
        await on.store.append(KEY, said("a", "b"))
        head = await on.store.head(KEY) or Head()
        await on.store.delete(KEY)

        await refused(Conflict, on.store.fork(KEY, BRANCH.session, head, expect_epoch=0, created=head.created))
        on.clock.advance(1)
        await on.store.append(KEY, said("another"))
        await refused(Conflict, on.store.fork(KEY, BRANCH.session, head, expect_epoch=0, created=head.created))

        assert await on.store.head(BRANCH) is None
        assert texts(await on.store.read(KEY)) == ["another"]

    @rule
    async def test_ids_that_branches_share_are_known_in_each(self, on: OpenedStore) -> None:
        """Repeating a batch from before the point adds nothing to a branch; one from after it does."""
        before, after = said("a"), said("b")
        await on.store.append(KEY, before, check_ids=True)
        await fork(on.store, KEY, BRANCH)
        await on.store.append(KEY, after, check_ids=True)

        assert (await on.store.append(BRANCH, before, check_ids=True)).added == 0
        assert (await on.store.append(BRANCH, after, check_ids=True)).added == 1
        await refused(Conflict, on.store.append(BRANCH, [replace(before[0], content="z")], check_ids=True))

    # --- changes of a session with branches

    @rule
    async def test_erasing_reaches_every_branch(self, on: OpenedStore) -> None:
        """A shared entry is erased in all branches, each with an epoch and a record; other entries stay."""
        last = KEY._replace(session="last")
        await on.store.append(KEY, said("a", "b"))
        await fork(on.store, KEY, BRANCH)
        await fork(on.store, KEY, last, next_seq=2)
        await on.store.append(KEY, said("theirs"))
        await on.store.append(BRANCH, said("mine"))

        await on.store.commit(BRANCH, Change(kind="erase", reason="r", seqs=(2, 3)))

        assert [(e.erased, e.text) for e in await on.store.read(KEY)] == [(False, "a"), (True, ""), (False, "theirs")]
        assert [(e.erased, e.text) for e in await on.store.read(BRANCH)] == [(False, "a"), (True, ""), (True, "")]
        assert texts(await on.store.read(last)) == ["a"]
        for key, seqs, moved in ((KEY, (2,), 1), (BRANCH, (2, 3), 1), (last, (), 0)):
            head = await on.store.head(key) or Head()
            assert (head.epoch, head.erased) == (moved, len(seqs))
            assert [(r.kind, r.seqs) for r in await on.store.records(key)] == [("erase", seqs)][:moved]

    @rule
    async def test_an_entry_that_expires_is_swept_in_every_branch(self, on: OpenedStore) -> None:
        """A sweep makes tombstones of expired entries in every branch that has them."""
        (due,) = said("due " * 20_000, expires_at=moment(on.clock.now + 5_000_000))
        await on.store.append(KEY, [due, *said("b")])
        await fork(on.store, KEY, BRANCH)
        on.clock.advance(10)

        assert await on.store.sweep(KEY.tenant, on.clock.now) >= 1

        for key in (KEY, BRANCH):
            assert [entry.erased for entry in await on.store.read(key)] == [True, False]
            assert (await on.store.head(key) or Head()).erased == 1
        assert await on.store.sweep(KEY.tenant, on.clock.now) == 0

    @rule
    async def test_clearing_or_deleting_one_leaves_the_others_whole(self, on: OpenedStore) -> None:
        """Clearing or deleting a session or branch leaves the others whole; a new session of the id begins empty."""
        last = KEY._replace(session="last")
        await on.store.append(KEY, said("a", "b"))
        await fork(on.store, KEY, BRANCH)
        await fork(on.store, BRANCH, last, next_seq=2)
        await on.store.append(BRANCH, said("c"))

        await on.store.delete(KEY)
        assert texts(await on.store.read(BRANCH)) == ["a", "b", "c"]
        assert await on.store.read(KEY) == []
        await on.store.append(KEY, said("new"))
        assert texts(await on.store.read(KEY)) == ["new"]
        await on.store.commit(BRANCH, Change(kind="clear", reason="r"))
        assert await on.store.read(BRANCH) == []
        assert texts(await on.store.read(last)) == ["a"]
        await on.store.append(BRANCH, said("d"))
        assert texts(await on.store.read(BRANCH)) == ["d"]
        await on.store.commit(last, Change(kind="erase", reason="r", seqs=(1,)))
        assert [entry.erased for entry in await on.store.read(last)] == [True]
        assert texts(await on.store.read(KEY)) == ["new"]
        assert await on.store.delete(last) is True
        assert texts(await on.store.read(BRANCH)) == ["d"]

    @rule
    async def test_cleared_entries_are_read_by_branches_alone(self, on: OpenedStore) -> None:
        """A cleared session finds none of the entries that its branches keep, and is not reached by their erasures.

        An id that a branch keeps is new to the session.
        """
        await on.store.append(KEY, said("a", "b"))
        ids = [entry.id for entry in await on.store.read(KEY)]
        await on.store.count(KEY, "words", {1: 1, 2: 1})
        await fork(on.store, KEY, BRANCH)
        await on.store.commit(KEY, Change(kind="clear", reason="r"))

        assert await on.store.read(KEY) == []
        assert await on.store.fetch(KEY, [1, 2], ids) == []
        assert texts(await on.store.fetch(BRANCH, [1], ids)) == ["a", "b"]
        await on.store.commit(BRANCH, Change(kind="erase", reason="r", seqs=(1,)))
        assert (await on.store.head(KEY) or Head()).erased == 0
        again = await on.store.append(KEY, [replace(said("c")[0], id=ids[1])], check_ids=True)
        assert (again.added, texts(await on.store.read(KEY))) == (1, ["c"])
        assert texts(await on.store.fetch(KEY, ids=ids)) == ["c"]
        assert texts(await on.store.read(BRANCH)) == ["", "b"]

    @rule
    async def test_a_cleared_session_finds_no_entry_that_its_branches_keep(self, on: OpenedStore) -> None:
        """A session finds and counts nothing of what it has cleared, by seq or id; its branch does."""
        given = (await on.store.append(KEY, said("a", "b"))).entries
        await fork(on.store, KEY, BRANCH)
        await on.store.commit(KEY, Change(kind="clear", reason="r"))
        await on.store.append(KEY, said("new"))
        await on.store.count(KEY, "c", {1: 5, 3: 7})

        assert texts(await on.store.read(KEY)) == ["new"]
        assert await on.store.fetch(KEY, [1], [given[1].id]) == []
        assert await summed(on.store, KEY, "c") == (1, 7)
        assert texts(await on.store.read(BRANCH)) == ["a", "b"]
        assert await summed(on.store, BRANCH, "c") == (0, 0)

    @rule
    async def test_replacing_one_leaves_the_others_whole(self, on: OpenedStore) -> None:
        """Replacing a session by an import does not affect its branches."""
        await on.store.append(KEY, said("a"))
        await fork(on.store, KEY, BRANCH)
        await on.store.append(FOREIGN, said("x", "y"))
        head, entries = await on.store.head(FOREIGN) or Head(), tuple(await on.store.read(FOREIGN))

        await on.store.load(KEY, Dump(head=head, entries=entries, records=()), replace=True)

        assert texts(await on.store.read(KEY)) == ["x", "y"]
        assert texts(await on.store.read(BRANCH)) == ["a"]
        await on.store.commit(KEY, Change(kind="erase", reason="r", seqs=(1,)))
        assert texts(await on.store.read(BRANCH)) == ["a"]

    # --- rewinding

    @rule
    async def test_a_rewind_is_stored_in_head_and_record(self, on: OpenedStore) -> None:
        """Rewound entries can still be read; the log goes on with the calls that were open at the point."""
        first = await on.store.append(KEY, [*said("a"), Entry(kind="tool_call", role="assistant", name="f")])
        await on.store.append(KEY, [*said("b", "c")])
        back = replace(first.head, next_seq=5, rewound=((3, 4),), hidden=2)

        head = await on.store.commit(KEY, Change(kind="rewind", reason="r", back=back))
        after = await on.store.append(KEY, [Entry(kind="tool_result", role="tool", name="f", content="x")])

        assert (head.rewound, head.hidden, head.epoch, head.entries) == (((3, 4),), 2, 1, 2)
        assert (after.entries[0].seq, after.entries[0].answers, after.entries[0].late) == (5, 2, False)
        assert [entry.seq for entry in await on.store.read(KEY)] == [1, 2, 3, 4, 5]
        assert [(r.kind, r.rewound) for r in await on.store.records(KEY)] == [("rewind", ((3, 4),))]

    # --- large content

    @rule
    async def test_a_rewind_also_hides_entries_added_before_its_commit(self, on: OpenedStore) -> None:
        """A rewind also hides and counts entries added between its planning and its commit."""
        first = await on.store.append(KEY, said("a"))
        await on.store.append(KEY, said("b"))
        back = replace(first.head, next_seq=3, rewound=((2, 2),), hidden=1)
        await on.store.append(KEY, said("c", "d"))

        change = Change(kind="rewind", reason="r", back=back, detail={"entries": 1})
        head = await on.store.commit(KEY, change)

        assert (head.rewound, head.hidden, head.next_seq, head.entries) == (((2, 4),), 3, 5, 1)
        record = (await on.store.records(KEY))[-1]
        assert (record.rewound, record.detail) == (((2, 4),), {"entries": 3})

    @rule
    async def test_large_content_comes_back_equal(self, on: OpenedStore) -> None:
        """Texts, arguments and media of any size are read back equal, by every verb and in every branch."""
        picture = "data:image/png;base64," + "QUJD" * 20_000
        batch = [
            Entry(id="1", content=(Text(text="look"), Image(source=picture), Image(source=picture))),
            Entry(id="2", kind="tool_call", role="assistant", name="f", content='{"a": "' + "ü" * 40_000 + '"}'),
            Entry(id="3", kind="tool_result", role="tool", content="x\ud800" * 30_000, metadata={"k": "y" * 70_000}),
            Entry(id="4", content='{"held":[["content","' + "0" * 40_000 + '"]]}'),
        ]
        done = await on.store.append(KEY, batch, check_ids=True)
        await fork(on.store, KEY, BRANCH)

        for key in (KEY, BRANCH):
            for found in (
                await on.store.read(key),
                (await on.store.read(key, newest_first=True))[::-1],
                await on.store.fetch(key, [1, 2], ["3", "4"]),
            ):
                assert [replace(entry, lone=False) for entry in found] == list(done.entries)
        assert (await on.store.append(KEY, batch, check_ids=True)).added == 0

    @rule
    async def test_large_content_outlives_one_of_two_entries(self, on: OpenedStore) -> None:
        """Erasing an entry keeps content that another entry shares."""
        big = "all the same " * 5_000
        await on.store.append(KEY, said(big, big))
        await on.store.append(FOREIGN, said(big))

        await on.store.commit(KEY, Change(kind="erase", reason="r", seqs=(1,)))

        assert texts(await on.store.read(KEY)) == ["", big]
        await on.store.delete(KEY)
        assert texts(await on.store.read(FOREIGN)) == [big]

    @rule
    async def test_deleting_a_branch_keeps_large_content_of_a_recreated_origin(self, on: OpenedStore) -> None:
        """Deleting a branch keeps the content of a session that was made again under the id of the branch's origin."""
        big = "all the same " * 5_000
        await on.store.append(KEY, said(big))
        await fork(on.store, KEY, BRANCH)
        await on.store.delete(KEY)
        await on.store.append(KEY, said(big, "and " + big))

        await on.store.delete(BRANCH)

        assert texts(await on.store.read(KEY)) == [big, "and " + big]
