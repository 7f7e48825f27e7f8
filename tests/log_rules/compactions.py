"""The contract of stores: compactions, and what erasures do to their summaries."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from log_rules.contract import KEY, OTHER, Contract, OpenedStore, refused, rule, said
from palimpsest.errors import Conflict
from palimpsest.log import spans
from palimpsest.log.change import Change
from palimpsest.log.entry import moment
from palimpsest.log.head import Attempts, Cut, Head, SessionKey
from palimpsest.log.ids import new_ids
from palimpsest.log.spans import Span
from palimpsest.log.summary import Compaction, Spent, Summary, SummaryItem, faults
from palimpsest.stores import Dump, Store

BRANCH = OTHER
AWKWARD = 'quoted "\\", ☂, \x00, half a pair \ud800'


def covering(state: Compaction, text: str, *cover: Span, fold: Sequence[Summary] = ()) -> Compaction:
    """Return a compaction that covers these entries by a summary with this text, which replaces those in `fold`."""
    covers = spans.union(cover, *(summary.covers for summary in fold))
    parents = tuple(summary.revision for summary in fold)
    return Compaction(
        summary=Summary(id=new_ids(1, 0)[0], text=text, covers=covers, folded=cover, parents=parents),
        current=(*(number for number in state.current if number not in parents), 0),
        covered=spans.union(state.covered, cover),
        evicted=spans.minus(state.evicted, cover),
    )


async def state_of(store: Store, key: SessionKey) -> Compaction:
    """Return the state of compaction that the session's head names."""
    head = await store.head(key) or Head()
    found = await store.records(key, after=head.compaction - 1, before=head.compaction + 1)
    return (found[0].compaction if found else None) or Compaction()


async def summaries(store: Store, key: SessionKey) -> dict[int, Summary]:
    """Return the summaries in the session's records, by revision."""
    states = [record.compaction for record in await store.records(key)]
    return {
        state.summary.revision: state.summary for state in states if state is not None and state.summary is not None
    }


async def compact(store: Store, key: SessionKey, compaction: Compaction) -> Summary:
    """Commit a compaction and return its stored summary."""
    head = await store.head(key) or Head()
    change = Change(kind="compact", reason="compaction", compaction=compaction)
    after = await store.commit(key, change, expect_epoch=head.epoch)
    return (await summaries(store, key))[after.compaction]


async def sound(store: Store, key: SessionKey) -> bool:
    """Whether the session's compactions are consistent and no summary has text of an erased entry."""
    head = await store.head(key) or Head()
    states = {record.revision: record.compaction for record in await store.records(key) if record.compaction}
    tombstones = spans.of(entry.seq for entry in await store.read(key) if entry.erased)
    with_text = [summary for summary in (await summaries(store, key)).values() if summary.text or summary.items]
    return (
        not list(faults(states, head.first_seq, head.next_seq - 1, tombstones))
        and (not head.compaction or head.compaction in states)
        and not any(spans.common(summary.covers, tombstones) for summary in with_text)
    )


class CompactionConformance(Contract):
    """Compactions, their summaries, and what erasures do to them."""

    @rule
    async def test_a_compaction_is_one_record_with_its_summary(self, on: OpenedStore) -> None:
        """A compaction's summary and state are stored as given, with the revision that made them."""
        await on.store.append(KEY, said("a", "b", "c"))
        on.clock.advance(3)
        given = Summary(
            id="any id",
            text=AWKWARD,
            covers=((1, 2),),
            folded=((1, 2),),
            items=(SummaryItem(kind="fact", text=AWKWARD, sources=(1, 2), pinned=True),),
            method="density",
            spent=Spent(calls=3, cost=0.25),
            tokens=7,
        )
        state = Compaction(summary=given, current=(0,), covered=((1, 2),), evicted=((3, 3),), mask=2)
        attempts = Attempts(cursors={"buffer": 4}, spent=Spent(calls=3))
        change = Change(kind="compact", reason="why", compaction=state, attempts=attempts, detail={"n": 1})

        head = await on.store.commit(KEY, change, expect_epoch=0)

        assert (head.revision, head.compaction, head.attempts, head.next_seq) == (2, 2, attempts, 4)
        assert (head.epoch, head.epoch_reason, head.updated) == (1, "why", on.clock.now)
        assert await on.store.head(KEY) == head
        (record,) = await on.store.records(KEY)
        assert (record.revision, record.kind, record.reason, record.detail) == (2, "compact", "why", {"n": 1})
        stored = replace(given, revision=2, at=on.clock.now)
        assert record.compaction == replace(state, summary=stored, current=(2,))
        assert [entry.text for entry in await on.store.read(KEY)] == ["a", "b", "c"]

    @rule
    async def test_an_attempt_is_stored_without_a_record(self, on: OpenedStore) -> None:
        """An attempt replaces the earlier one and moves the revision; epoch, compaction and records stay."""
        await on.store.append(KEY, said("a"))
        made = await compact(on.store, KEY, covering(Compaction(), "short", (1, 1)))
        attempts = Attempts(failures=2, paused_until=9, fingerprint="f")

        head = await on.store.commit(KEY, Change(kind="attempt", reason="failed", attempts=attempts))

        assert (head.attempts, head.revision, head.epoch, head.compaction) == (attempts, 3, 1, made.revision)
        assert [record.kind for record in await on.store.records(KEY)] == ["compact"]
        head = await on.store.commit(KEY, Change(kind="attempt", reason="failed", attempts=Attempts(failures=3)))
        assert head.attempts == Attempts(failures=3)

    @rule
    async def test_only_another_epoch_refuses_a_compaction(self, on: OpenedStore) -> None:
        """Appends do not conflict with a compaction; after a cut or another compaction it is refused."""
        await on.store.append(KEY, said("a", "b"))
        change = Change(kind="compact", reason="compaction", compaction=covering(Compaction(), "short", (1, 1)))
        await on.store.append(KEY, said("meanwhile"))

        head = await on.store.commit(KEY, change, expect_epoch=0)

        assert (head.compaction, head.entries) == (3, 3)
        await refused(Conflict, on.store.commit(KEY, change, expect_epoch=0))
        await on.store.commit(KEY, Change(kind="cut", reason="r", view="main", cut=Cut()))
        await refused(Conflict, on.store.commit(KEY, change, expect_epoch=1))
        assert (await on.store.head(KEY) or Head()).compaction == 3
        assert [record.kind for record in await on.store.records(KEY)] == ["compact", "cut"]

    # --- erasing entries that summaries cover

    @rule
    async def test_erasing_removes_the_text_of_every_summary_version(self, on: OpenedStore) -> None:
        """Every version of a summary of an erased entry loses its text; other summaries keep theirs."""
        await on.store.append(KEY, said("a", "b", "c", "d", "e", "f"))
        first = await compact(on.store, KEY, covering(Compaction(), "first", (1, 2)))
        state = covering(await state_of(on.store, KEY), "second", (3, 4), fold=[first])
        second = await compact(on.store, KEY, replace(state, evicted=((6, 6),)))
        other = await compact(on.store, KEY, covering(await state_of(on.store, KEY), "other", (5, 5)))

        head = await on.store.commit(KEY, Change(kind="erase", reason="r", seqs=(1,)))

        assert head.compaction == head.revision
        erasure = (await on.store.records(KEY))[-1]
        wanted = Compaction(current=(other.revision,), covered=((5, 5),), evicted=((2, 4), (6, 6)))
        assert (erasure.kind, erasure.compaction) == ("erase", wanted)
        after = await summaries(on.store, KEY)
        assert [(after[one.revision].text, after[one.revision].withdrawn) for one in (first, second, other)] == [
            ("", True),
            ("", True),
            ("other", False),
        ]
        assert after[second.revision].covers == ((1, 4),)
        assert await sound(on.store, KEY)

    @rule
    async def test_erasing_an_uncovered_entry_changes_no_summary(self, on: OpenedStore) -> None:
        """Erasing an entry that no summary covers changes no summary; the entry leaves the archive."""
        await on.store.append(KEY, said("a", "b", "c", "d"))
        state = covering(Compaction(), "short", (1, 1))
        made = await compact(on.store, KEY, replace(state, evicted=((2, 3),)))

        await on.store.commit(KEY, Change(kind="erase", reason="r", seqs=(4,)))
        assert (await state_of(on.store, KEY)).evicted == ((2, 3),)
        head = await on.store.commit(KEY, Change(kind="erase", reason="r", seqs=(2,)))

        assert head.compaction == made.revision
        assert await summaries(on.store, KEY) == {made.revision: made}
        assert await state_of(on.store, KEY) == Compaction(
            summary=made, current=(made.revision,), covered=((1, 1),), evicted=((3, 3),)
        )
        assert await sound(on.store, KEY)

    @rule
    async def test_an_erasure_may_spare_the_current_summaries(self, on: OpenedStore) -> None:
        """With `spare` the current summaries of each branch keep their text; older versions lose it."""
        await on.store.append(KEY, said("a", "b", "c"))
        old = await compact(on.store, KEY, covering(Compaction(), "old", (1, 1)))
        head = await on.store.head(KEY) or Head()
        await on.store.fork(KEY, BRANCH.session, head, expect_epoch=head.epoch)
        new = await compact(on.store, KEY, covering(await state_of(on.store, KEY), "new", (2, 2), fold=[old]))

        head = await on.store.commit(KEY, Change(kind="erase", reason="r", seqs=(1,), spare=True))

        assert head.compaction == new.revision
        assert [summary.text for summary in (await summaries(on.store, KEY)).values()] == ["", "new"]
        state = await state_of(on.store, KEY)
        assert (state.current, state.covered, state.evicted) == ((new.revision,), ((2, 2),), ())
        assert [summary.text for summary in (await summaries(on.store, BRANCH)).values()] == ["old"]
        await on.store.commit(KEY, Change(kind="erase", reason="r", seqs=(2,)))
        assert [summary.text for summary in (await summaries(on.store, KEY)).values()] == ["", ""]

    @rule
    async def test_erasing_reaches_rewound_compactions(self, on: OpenedStore) -> None:
        """A rewound compaction loses its text, too, so that going forward to it finds a consistent state."""
        await on.store.append(KEY, said("a", "b", "c"))
        before = await on.store.head(KEY) or Head()
        made = await compact(on.store, KEY, covering(Compaction(), "short", (1, 2)))
        then = await on.store.head(KEY) or Head()
        head = await on.store.commit(KEY, Change(kind="rewind", reason="r", back=before))
        assert (head.compaction, await state_of(on.store, KEY)) == (0, Compaction())

        head = await on.store.commit(KEY, Change(kind="erase", reason="r", seqs=(1,)))
        assert head.compaction == 0
        head = await on.store.commit(KEY, Change(kind="rewind", reason="r", back=then))

        assert head.compaction == made.revision
        state = await state_of(on.store, KEY)
        assert (state.current, state.covered, state.evicted) == ((), (), ((2, 2),))
        assert (await summaries(on.store, KEY))[made.revision].text == ""
        assert await sound(on.store, KEY)

    @rule
    async def test_erasing_reaches_the_summaries_of_every_branch(self, on: OpenedStore) -> None:
        """The summaries of a shared erased entry lose their text in every branch."""
        await on.store.append(KEY, said("a", "b", "c"))
        await compact(on.store, KEY, covering(Compaction(), "shared", (1, 1)))
        head = await on.store.head(KEY) or Head()
        await on.store.fork(KEY, BRANCH.session, head, expect_epoch=head.epoch)
        assert await on.store.records(BRANCH) == await on.store.records(KEY)
        assert (await on.store.head(BRANCH) or Head()).compaction == head.compaction
        await on.store.append(BRANCH, said("mine"))
        mine = await compact(on.store, BRANCH, covering(await state_of(on.store, BRANCH), "mine", (2, 2)))
        own = await compact(on.store, BRANCH, covering(await state_of(on.store, BRANCH), "own", (3, 4)))
        attempts = Attempts(failures=1)

        await on.store.commit(KEY, Change(kind="erase", reason="r", seqs=(1, 2), attempts=attempts))

        after = await summaries(on.store, BRANCH)
        assert [summary.text for summary in after.values()] == ["", "", "own"]
        assert (await state_of(on.store, BRANCH)).current == (own.revision,)
        assert [summary.text for summary in (await summaries(on.store, KEY)).values()] == [""]
        assert (await on.store.head(BRANCH) or Head()).attempts is None
        assert mine.revision in after
        for key in (KEY, BRANCH):
            assert await sound(on.store, key)

    @rule
    async def test_a_sweep_of_an_entry_that_expires_removes_its_summaries(self, on: OpenedStore) -> None:
        """A sweep removes the text of summaries of expired entries, in every branch."""
        (due,) = said("due", expires_at=moment(on.clock.now + 5_000_000))
        await on.store.append(KEY, [due, *said("b", "c")])
        await compact(on.store, KEY, covering(Compaction(), "old", (1, 2)))
        kept = await compact(on.store, KEY, covering(await state_of(on.store, KEY), "kept", (3, 3)))
        head = await on.store.head(KEY) or Head()
        await on.store.fork(KEY, BRANCH.session, head, expect_epoch=head.epoch)
        on.clock.advance(10)

        assert await on.store.sweep(KEY.tenant, on.clock.now) >= 1

        for key in (KEY, BRANCH):
            assert [summary.text for summary in (await summaries(on.store, key)).values()] == ["", "kept"]
            state = await state_of(on.store, key)
            assert (state.current, state.evicted) == ((kept.revision,), ((2, 2),))
            assert await sound(on.store, key)

    # --- whole sessions

    @rule
    async def test_a_branch_has_the_compactions_of_its_time(self, on: OpenedStore) -> None:
        """A branch has the compactions up to its revision and continues from there."""
        await on.store.append(KEY, said("a", "b", "c"))
        first = await compact(on.store, KEY, covering(Compaction(), "first", (1, 1)))
        then = await on.store.head(KEY) or Head()
        await compact(on.store, KEY, covering(await state_of(on.store, KEY), "second", (2, 2), fold=[first]))
        epoch = (await on.store.head(KEY) or Head()).epoch

        await on.store.fork(KEY, BRANCH.session, then, expect_epoch=epoch)

        assert await summaries(on.store, BRANCH) == {first.revision: first}
        mine = await compact(on.store, BRANCH, covering(await state_of(on.store, BRANCH), "mine", (3, 3)))
        assert (await state_of(on.store, BRANCH)).current == (first.revision, mine.revision)
        assert [summary.text for summary in (await summaries(on.store, KEY)).values()] == ["first", "second"]

    @rule
    async def test_a_clear_leaves_no_summary(self, on: OpenedStore) -> None:
        """A clear removes the session's compactions and attempts; a branch keeps its own."""
        await on.store.append(KEY, said("a"))
        made = await compact(on.store, KEY, covering(Compaction(), "short", (1, 1)))
        head = await on.store.commit(KEY, Change(kind="attempt", reason="r", attempts=Attempts(failures=1)))
        await on.store.fork(KEY, BRANCH.session, head, expect_epoch=head.epoch)

        head = await on.store.commit(KEY, Change(kind="clear", reason="cleared"))

        assert (head.compaction, head.attempts) == (0, None)
        assert await summaries(on.store, KEY) == {}
        assert await summaries(on.store, BRANCH) == {made.revision: made}

    @rule
    async def test_a_dump_holds_compactions(self, on: OpenedStore) -> None:
        """Compactions are loaded with a dump, and later erasures reach them."""
        await on.store.append(KEY, said("a", "b"))
        await compact(on.store, KEY, covering(Compaction(), AWKWARD, (1, 1)))
        head, records = await on.store.head(KEY) or Head(), await on.store.records(KEY)
        dump = Dump(head=head, entries=tuple(await on.store.read(KEY)), records=tuple(records))

        await on.store.load(OTHER, dump)

        assert (await on.store.head(OTHER), await on.store.records(OTHER)) == (head, records)
        await on.store.commit(OTHER, Change(kind="erase", reason="r", seqs=(1,)))
        assert [summary.text for summary in (await summaries(on.store, OTHER)).values()] == [""]
        assert [summary.text for summary in (await summaries(on.store, KEY)).values()] == [AWKWARD]
        assert await sound(on.store, OTHER)
