"""The contract of stores: sessions, their entries and counts."""

from __future__ import annotations

from msgspec.structs import replace

from log_rules.contract import FOREIGN, KEY, OTHER, Contract, OpenedStore, refused, rule, said, texts
from palimpsest.errors import Conflict
from palimpsest.log.change import Change
from palimpsest.log.entry import Entry, Image, Native, Text
from palimpsest.sessions.options import Options
from palimpsest.sessions.verifying import verify
from stored_counts import summed


class AppendConformance(Contract):
    """Sessions, their entries and counts."""

    # --- sessions that do not exist

    @rule
    async def test_a_session_nobody_has_written_to_is_empty(self, on: OpenedStore) -> None:
        """Reading an unknown session returns nothing and creates nothing."""
        assert await on.store.head(KEY) is None
        assert await on.store.read(KEY) == []
        assert await on.store.fetch(KEY, [1], ["x"]) == []
        assert await on.store.records(KEY) == []
        assert await on.store.delete(KEY) is False
        await on.store.count(KEY, "words", {1: 1})
        assert await on.store.sessions(KEY.tenant) == []

    # --- append

    @rule
    async def test_append_assigns_seqs_and_links_in_order(self, on: OpenedStore) -> None:
        """An append gives seqs from 1 on, one revision a batch, and the links of `palimpsest.log.linking.link`."""
        one = await on.store.append(KEY, said("a", "b"))
        two = await on.store.append(KEY, [Entry(id="c", kind="tool_call", role="assistant", name="f", call_id="1")])
        three = await on.store.append(KEY, [Entry(id="d", kind="tool_result", role="tool", call_id="1", content="x")])

        assert [entry.seq for entry in one.entries] == [1, 2]
        assert [entry.revision for entry in one.entries] == [1, 1]
        assert (two.entries[0].turn, two.entries[0].group) == (2, 3)
        assert (three.entries[0].answers, three.entries[0].group, three.entries[0].name) == (3, 3, "f")
        assert (three.head.revision, three.head.next_seq, three.added) == (3, 5, 1)
        assert await on.store.head(KEY) == three.head
        assert await on.store.read(KEY) == [*one.entries, *two.entries, *three.entries]

    @rule
    async def test_append_stamps_the_time_of_the_clock(self, on: OpenedStore) -> None:
        """An entry without a time gets the store's; the head has the times of creation and change."""
        await on.store.append(KEY, said("a"))
        begun = on.clock.now
        on.clock.advance(5)
        done = await on.store.append(KEY, [*said("b"), *said("old", at=17)])

        assert [entry.at for entry in await on.store.read(KEY)] == [begun, on.clock.now, 17]
        assert (done.head.created, done.head.updated) == (begun, on.clock.now)

    @rule
    async def test_every_field_comes_back(self, on: OpenedStore) -> None:
        """An entry is read as it was appended, whatever its fields and characters."""
        native = Native(format="openai", keep={"x": [1, None]}, absent=("content",), call={"id": "1"})
        entry = Entry(
            id="any text: \u2028 ☂",
            role="assistant",
            content=(Text(text="a\x00b\ud800 ☂"), Image(source="data:,", detail="low")),
            name="n",
            status="error",
            importance=0.5,
            pinned=True,
            metadata={"a": {"b": [1.5, True, None]}},
            native=native,
        )
        (stored,) = (await on.store.append(KEY, [entry])).entries
        (found,) = await on.store.read(KEY)

        assert replace(found, lone=False) == replace(stored, lone=False)
        assert (found.content, found.metadata, found.native) == (entry.content, entry.metadata, native)

    @rule
    async def test_a_known_id_with_the_same_content_is_left_out(self, on: OpenedStore) -> None:
        """Repeating a batch adds nothing and returns the stored entries; a batch known in part adds the rest."""
        batch = said("a", "b")
        first = await on.store.append(KEY, batch, check_ids=True)
        on.clock.advance(1)
        again = await on.store.append(KEY, batch, check_ids=True)
        more = await on.store.append(KEY, [*batch, *said("c")], check_ids=True)

        assert (again.added, again.entries, again.head) == (0, first.entries, first.head)
        assert more.added == 1
        assert [entry.seq for entry in more.entries] == [1, 2, 3]
        assert texts(await on.store.read(KEY)) == ["a", "b", "c"]

    @rule
    async def test_a_known_id_with_other_content_is_a_conflict(self, on: OpenedStore) -> None:
        """A known id with other content raises Conflict, and nothing of its batch is stored."""
        (entry,) = said("a")
        await on.store.append(KEY, [entry], check_ids=True)
        before = await on.store.head(KEY)

        await refused(Conflict, on.store.append(KEY, [*said("b"), replace(entry, content="z")], check_ids=True))

        assert await on.store.head(KEY) == before
        assert texts(await on.store.read(KEY)) == ["a"]

    @rule
    async def test_an_id_of_another_session_is_unknown(self, on: OpenedStore) -> None:
        """Ids belong to one session: the same batch is new in another session or tenant."""
        batch = said("a")
        for key in (KEY, OTHER, FOREIGN):
            assert (await on.store.append(key, batch, check_ids=True)).added == 1

    @rule
    async def test_changing_given_or_returned_objects_changes_nothing_stored(self, on: OpenedStore) -> None:
        """Changing objects that were passed in or returned changes nothing that is stored."""
        metadata = {"tags": ["kept"]}
        given = said("a", metadata=metadata)
        done = await on.store.append(KEY, given)
        metadata["tags"].append("from outside")
        for entry in [*done.entries, *await on.store.read(KEY)]:
            assert entry.metadata is not None
            entry.metadata["tags"] = []

        assert [entry.metadata for entry in await on.store.read(KEY)] == [{"tags": ["kept"]}]

    # --- read and fetch

    @rule
    async def test_read_returns_entries_between_exclusive_bounds(self, on: OpenedStore) -> None:
        """`after` and `before` are exclusive; `limit` counts from the side where reading begins."""
        await on.store.append(KEY, said(*"abcdef"))

        assert texts(await on.store.read(KEY)) == list("abcdef")
        assert texts(await on.store.read(KEY, after=2, before=5)) == ["c", "d"]
        assert texts(await on.store.read(KEY, after=2, limit=2)) == ["c", "d"]
        assert texts(await on.store.read(KEY, limit=2, newest_first=True)) == ["f", "e"]
        assert texts(await on.store.read(KEY, before=4, newest_first=True)) == ["c", "b", "a"]
        assert await on.store.read(KEY, limit=0) == []
        assert await on.store.read(KEY, after=6) == []
        assert await on.store.read(KEY, before=1) == []

    @rule
    async def test_read_keeps_to_its_session(self, on: OpenedStore) -> None:
        """No range of seqs returns entries of another session or tenant."""
        for key in (OTHER, KEY, FOREIGN):
            await on.store.append(key, said(key.session + key.tenant))
        mine = await on.store.read(KEY)

        for after in (-1, -(2**33), 0):
            assert await on.store.read(KEY, after=after) == mine
        for bound in (2**32, 2**33 + 1, 2**40):
            assert await on.store.read(KEY, before=bound) == mine
            assert await on.store.read(KEY, after=bound) == []
        assert await on.store.fetch(KEY, [-1, 0, 2**32 + 1, 2**33 + 1, 1]) == mine
        assert await on.store.fetch(KEY, ids=[entry.id for entry in await on.store.read(FOREIGN)]) == []
        await on.store.count(KEY, "words", {1: 1, -1: 5, 2**32 + 1: 5, 2**33 + 1: 5})
        for key, tally in ((KEY, (1, 1)), (OTHER, (0, 0)), (FOREIGN, (0, 0))):
            assert await summed(on.store, key, "words", after=-1) == tally

    @rule
    async def test_fetch_finds_by_seq_and_id(self, on: OpenedStore) -> None:
        """`fetch` returns each named entry once, in log order, and leaves out unknown ones."""
        done = await on.store.append(KEY, said(*"abcd"))
        first, *_, last = done.entries

        assert texts(await on.store.fetch(KEY, [3, 1, 99], [last.id, first.id, "nobody"])) == ["a", "c", "d"]
        assert await on.store.fetch(KEY) == []

    @rule
    async def test_an_id_that_stands_twice_is_found_at_both_places(self, on: OpenedStore) -> None:
        """`fetch` and `verify` find all entries that have an id, also an id that names the place of one of them."""
        first = await on.store.append(KEY, [Entry(content="a"), Entry(id="k", content="b")])
        await on.store.append(KEY, [Entry(content="c"), Entry(id="k", content="d")])
        await on.store.append(KEY, [Entry(id=first.entries[0].id, content="e")])

        found = await on.store.fetch(KEY, ids=[first.entries[0].id, "k"])
        verified = await verify(on.store, Options(KEY, max_tokens=100), 0)

        assert texts(found) == ["a", "b", "d", "e"]
        assert [problem.partition(" have")[0] for problem in verified.problems] == [
            "entries 1 and 5",
            "entries 2 and 4",
        ]

    # --- counts

    @rule
    async def test_counts_come_with_the_entries_of_their_counter(self, on: OpenedStore) -> None:
        """`tokens` is the stored count of the given counter, or None; a new count replaces the old one."""
        await on.store.append(KEY, said(*"abc"))
        for counts in ({1: 10}, {2: 20}, {2: 21}):
            await on.store.count(KEY, "words", counts)
        await on.store.count(KEY, "letters", {3: 1})

        assert [e.tokens for e in await on.store.read(KEY, counter="words")] == [10, 21, None]
        assert [e.tokens for e in await on.store.fetch(KEY, [3, 1], counter="letters")] == [None, 1]
        assert [e.tokens for e in await on.store.read(KEY)] == [None, None, None]
        assert texts((await on.store.uncounted(KEY, "words"))[1]) == ["c"]
        assert texts((await on.store.uncounted(KEY, "letters", limit=1))[1]) == ["a"]
        assert await summed(on.store, KEY, "words") == (2, 31)
        assert await summed(on.store, KEY, "words", after=1) == (1, 21)
        assert await summed(on.store, KEY, "unknown") == (0, 0)

    @rule
    async def test_counts_of_what_does_not_exist_are_left_out(self, on: OpenedStore) -> None:
        """A count of an unknown or erased entry is not stored, neither too late nor too early."""
        await on.store.append(KEY, said(*"ab", metadata={"erased": True}))
        await on.store.commit(KEY, Change(kind="erase", reason="r", seqs=(1,)))

        await on.store.count(KEY, "words", {1: 5, 2: 6, 3: 7})

        await on.store.append(KEY, said("c"))
        assert [e.tokens for e in await on.store.read(KEY, counter="words")] == [None, 6, None]

    @rule
    async def test_storing_counts_moves_no_revision(self, on: OpenedStore) -> None:
        """Storing counts moves neither revision, epoch nor times."""
        await on.store.append(KEY, said("a"))
        before = await on.store.head(KEY)
        on.clock.advance(1)
        await on.store.count(KEY, "words", {1: 1})

        assert await on.store.head(KEY) == before
