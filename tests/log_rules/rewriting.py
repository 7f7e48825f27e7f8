"""The contract of stores that rewrite what they hold: `palimpsest.stores.Store.rewrite`."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from log_rules.contract import KEY, OTHER, Contract, OpenedStore, refused, rule, said, texts
from palimpsest.log.change import Change, Record
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from stored_counts import summed

LARGE = "large " * 20_000
ALL = range(1, 100)


class Saying:
    """A rewrite that replaces a word by another in entries and in details of records."""

    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new

    def head(self, head: Head) -> Head:
        """Return a later head."""
        return replace(head, revision=head.revision + 1)

    def branch(self, _: SessionKey, head: Head, __: Collection[int]) -> Head:
        """Return a later head for a branch."""
        return replace(head, revision=head.revision + 1)

    def entry(self, entry: Entry) -> Entry:
        """Return the entry with the word replaced."""
        if self._old not in entry.text:
            return entry
        return replace(entry, content=entry.text.replace(self._old, self._new))

    def record(self, record: Record) -> Record:
        """Return the record with the word replaced."""
        detail = {name: self._new if value == self._old else value for name, value in record.detail.items()}
        return record if detail == record.detail else replace(record, detail=detail)


class Nothing(Saying):
    """A rewrite that leaves everything as it is, head included."""

    def __init__(self) -> None:
        super().__init__("there is no such word", "")

    def head(self, head: Head) -> Head:
        """Return the head unchanged."""
        return head


class Objecting(Saying):
    """A rewrite that fails at the head of a branch."""

    def __init__(self) -> None:
        super().__init__("old", "new")

    def branch(self, key: SessionKey, head: Head, seqs: Collection[int]) -> Head:
        """Refuse the branch."""
        raise KeyError(key.session)


class Failing(Saying):
    """A rewrite that fails at one entry."""

    def __init__(self, seq: int) -> None:
        super().__init__("old", "new")
        self._seq = seq

    def entry(self, entry: Entry) -> Entry:
        """Return the entry with the word replaced, or fail at the chosen entry."""
        if entry.seq == self._seq:
            raise KeyError(entry.seq)
        return super().entry(entry)


class RewritingConformance(Contract):
    """Everything that the docstrings of `Store.rewrite` and `Rewrite` promise, one rule a test.

    For stores that implement it, beside `LogConformance`, with the same fixture.
    """

    @rule
    async def test_a_rewrite_replaces_texts_in_their_places(self, on: OpenedStore) -> None:
        """A rewrite replaces entries, records and head; ids, seqs, links, times and other entries stay."""
        done = await on.store.append(KEY, said("old one", "keep", "the old"))
        await on.store.commit(KEY, Change(kind="pin", reason="r", seqs=(1,), detail={"why": "old"}))
        await on.store.append(OTHER, said("old"))
        head = await on.store.head(KEY) or Head()

        assert await on.store.rewrite(KEY, Saying("old", "new"), ALL) == 3

        one, two, three = done.entries
        wanted = [replace(one, content="new one"), two, replace(three, content="the new")]
        assert await on.store.read(KEY) == wanted
        assert await on.store.fetch(KEY, ids=[three.id]) == wanted[2:]
        assert [record.detail for record in await on.store.records(KEY)] == [{"why": "new"}]
        assert await on.store.head(KEY) == replace(head, revision=head.revision + 1)
        assert texts(await on.store.read(OTHER)) == ["old"]
        assert texts(list((await on.store.append(KEY, said("more"))).entries)) == ["more"]

    @rule
    async def test_rewritten_entries_lose_their_counts(self, on: OpenedStore) -> None:
        """Rewritten entries lose their counts, by any counter; other entries keep theirs."""
        await on.store.append(KEY, said("keep", "old"))
        for counter in ("words", "letters"):
            await on.store.count(KEY, counter, {1: 2})
            await on.store.count(KEY, counter, {2: 1})

        await on.store.rewrite(KEY, Saying("old", "new"), ALL)

        for counter in ("words", "letters"):
            assert [entry.tokens for entry in await on.store.read(KEY, counter=counter)] == [2, None]
            assert await summed(on.store, KEY, counter) == (1, 2)
        await on.store.count(KEY, "words", {2: 5})
        assert await summed(on.store, KEY, "words") == (2, 7)

    @rule
    async def test_a_rewrite_that_changes_nothing_writes_nothing(self, on: OpenedStore) -> None:
        """A rewrite that changes nothing writes nothing, moves no head and creates no session."""
        await on.store.append(KEY, said("a"))
        before = await on.store.head(KEY)

        assert await on.store.rewrite(KEY, Nothing(), ALL) == 0
        assert await on.store.head(KEY) == before
        assert await on.store.rewrite(OTHER, Saying("a", "b"), ALL) == 0
        assert await on.store.head(OTHER) is None

    @rule
    async def test_entries_named_by_seq_are_rewritten_in_one_step(self, on: OpenedStore) -> None:
        """Entries named by seq are rewritten in one step with head and records, however many they are."""
        await on.store.append(KEY, said(*(f"old {number}" for number in range(600))))
        await on.store.commit(KEY, Change(kind="pin", reason="r", seqs=(1,), detail={"why": "old"}))
        before = await on.store.head(KEY) or Head()

        done = await on.store.rewrite(KEY, Saying("old", "new"), range(1, 601))

        assert done == 601
        assert texts(await on.store.read(KEY)) == [f"new {number}" for number in range(600)]
        assert [record.detail for record in await on.store.records(KEY)] == [{"why": "new"}]
        assert await on.store.head(KEY) == replace(before, revision=before.revision + 1)
        assert (await on.store.scrub()).remains == (*self.keeps, *self.refuses)

    @rule
    async def test_an_error_in_a_rewrite_undoes_the_step(self, on: OpenedStore) -> None:
        """If a rewrite raises, earlier entries, records, head and counts are unchanged."""
        await on.store.append(KEY, said("old", "old"))
        await on.store.commit(KEY, Change(kind="pin", reason="r", seqs=(1,), detail={"why": "old"}))
        before = [await on.store.head(KEY), await on.store.records(KEY), await on.store.read(KEY)]

        await refused(KeyError, on.store.rewrite(KEY, Failing(2), ALL))

        assert [await on.store.head(KEY), await on.store.records(KEY), await on.store.read(KEY)] == before

    @rule
    async def test_large_content_is_rewritten(self, on: OpenedStore) -> None:
        """Large content may be replaced by other or small content and back; entries that share the old one keep it."""
        await on.store.append(KEY, said(LARGE, "small"))
        await on.store.append(OTHER, said(LARGE))
        for old, new in ((LARGE, "none"), ("none", LARGE + "!"), (LARGE, "gone"), ("small", LARGE)):
            await on.store.rewrite(KEY, Saying(old, new), ALL)
            await on.store.sweep(KEY.tenant, 0)

        assert texts(await on.store.read(KEY)) == ["gone!", LARGE]
        assert texts(await on.store.read(OTHER)) == [LARGE]

    @rule
    async def test_a_rewrite_of_shared_entries_reaches_all_their_branches(self, on: OpenedStore) -> None:
        """Shared entries are rewritten in every branch; a branch's own entries are not."""
        await on.store.append(KEY, said("old"))
        await on.store.count(KEY, "words", {1: 1})
        head = await on.store.head(KEY) or Head()
        await on.store.fork(KEY, OTHER.session, head, expect_epoch=head.epoch)
        await on.store.append(OTHER, said("old, too", LARGE))

        await on.store.rewrite(KEY, Saying("old", "new"), ALL)

        assert texts(await on.store.read(KEY)) == ["new"]
        assert texts(await on.store.read(OTHER)) == ["new", "old, too", LARGE]
        for key in (OTHER, KEY):
            assert await summed(on.store, key, "words") == (0, 0)
        await on.store.rewrite(OTHER, Saying("old", "new"), ALL)
        assert texts(await on.store.read(OTHER)) == ["new", "new, too", LARGE]
        await on.store.commit(KEY, Change(kind="erase", reason="r", seqs=(1,)))
        assert [entry.erased for entry in await on.store.read(OTHER)] == [True, False, False]

    @rule
    async def test_the_head_of_a_branch_moves_with_its_rewritten_entries(self, on: OpenedStore) -> None:
        """A branch's head moves in the step that rewrites what it shares, and in no other."""
        await on.store.append(KEY, said("old", "keep"))
        head = await on.store.head(KEY) or Head()
        for name in ("early", "late"):
            point = replace(head, next_seq=3 if name == "late" else 1)
            await on.store.fork(KEY, name, point, expect_epoch=head.epoch)
            await on.store.append(KEY._replace(session=name), said("old, too"))

        await on.store.rewrite(KEY, Saying("old", "new"), ALL)

        for name, first, moved in (("early", "old, too", 0), ("late", "new", 1)):
            branch = KEY._replace(session=name)
            branch_texts, branch_head = texts(await on.store.read(branch)), await on.store.head(branch) or Head()
            assert (branch_texts[0], branch_texts[-1]) == (first, "old, too")
            assert branch_head.revision == head.revision + 1 + moved

    @rule
    async def test_an_error_for_a_branch_undoes_its_rewrite(self, on: OpenedStore) -> None:
        """An error for the head of a branch leaves the session and that branch unchanged."""
        await on.store.append(KEY, said("old"))
        head = await on.store.head(KEY) or Head()
        await on.store.fork(KEY, OTHER.session, head, expect_epoch=head.epoch)

        await refused(KeyError, on.store.rewrite(KEY, Objecting(), ALL))

        for key in (KEY, OTHER):
            assert texts(await on.store.read(key)) == ["old"]
        assert await on.store.head(KEY) == head
