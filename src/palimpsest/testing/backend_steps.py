"""The contract of backends, first part: heads are compared, rows have keys and ids, batches are atomic."""

from __future__ import annotations

from itertools import product

from palimpsest.stores.backend import (
    LAST_KEY,
    Ask,
    Backend,
    Batch,
    Cells,
    Look,
    Named,
    PlaceHead,
    Range,
    Refusal,
    Row,
    Seen,
    Step,
)
from palimpsest.testing.backend_contract import (
    AWAY,
    BESIDE,
    FOREIGN,
    NOW,
    ONE,
    PARTS,
    TWO,
    BackendContract,
    all_of,
    filled,
    head,
    keys,
    rows,
    rule,
    written,
)


class StepConformance(BackendContract):
    """The rules about heads, rows and batches."""

    # --- heads

    @rule
    async def test_a_head_comes_back_as_written(self, backend: Backend) -> None:
        """Both values come back unchanged, whatever bytes they have. A cold value that is not given stays."""
        all_bytes = bytes(range(256))
        assert await head(backend, ONE) is None

        assert await written(backend, Step(ONE, None, all_bytes, b"cold")) is None
        assert await head(backend, ONE) == PlaceHead(all_bytes, b"cold")
        assert await written(backend, Step(ONE, all_bytes, b"")) is None
        assert await head(backend, ONE) == PlaceHead(b"", b"cold")
        assert await written(backend, Step(ONE, b"", b"hot", all_bytes)) is None
        assert await head(backend, ONE) == PlaceHead(b"hot", all_bytes)
        assert await written(backend, Step(ONE, b"hot", b"hot", b"")) is None
        assert await head(backend, ONE) == PlaceHead(b"hot", b"")
        assert await head(backend, TWO) is None

    @rule
    async def test_dropping_a_head_drops_both_values(self, backend: Backend) -> None:
        """A step without a hot value drops the head. The next head begins with an empty cold value. Rows stay."""
        await written(backend, Step(ONE, None, b"a", b"cold", put=[("t", [Row(1, b"row")])]))

        assert await written(backend, Step(ONE, b"a")) is None

        assert await head(backend, ONE) is None
        assert await rows(backend, ONE, all_of()) == [Row(1, b"row")]
        assert await written(backend, Step(ONE, None, b"b")) is None
        assert await head(backend, ONE) == PlaceHead(b"b", b"")

    @rule
    async def test_an_unexpected_head_refuses_the_whole_batch(self, backend: Backend) -> None:
        """One unexpected or missing head in any step refuses the whole batch. The refusal has all heads."""
        await written(backend, Step(ONE, None, b"1", b"cold"))
        put = [("t", [Row(1, b"new")])]
        for first, second in ((b"0", None), (None, None), (b"1", b"2")):
            refusal = await written(
                backend,
                Step(ONE, first, b"x", b"y", drop=[("t", 0, 9)], put=put),
                Step(TWO, second, b"x", put=put),
                Step(BESIDE, rows_only=True, put=put),
            )

            assert refusal == (PlaceHead(b"1", b"cold"), None, None)
        assert await head(backend, ONE) == PlaceHead(b"1", b"cold")
        assert await head(backend, TWO) is None
        for place in (ONE, TWO, BESIDE):
            assert await rows(backend, place, all_of()) == []

    @rule
    async def test_a_head_can_be_compared_alone(self, backend: Backend) -> None:
        """A step may only compare a head, or its absence. Then both values stay as they are."""
        await written(backend, Step(ONE, None, b"1", b"cold"))

        assert await written(backend, Step(ONE, b"1", b"1"), Step(TWO), filled(BESIDE, [1])) is None
        assert await written(backend, Step(ONE, b"1", b"1"), Step(TWO, b"1", b"1")) is not None
        assert await written(backend, Step(ONE)) == (PlaceHead(b"1", b"cold"),)

        assert await head(backend, ONE) == PlaceHead(b"1", b"cold")
        assert await head(backend, TWO) is None

    @rule
    async def test_batches_of_one_call_are_written_in_order(self, backend: Backend) -> None:
        """Each sees what those before it did. A refused one is skipped, and the outcome of each is returned."""
        batches: list[Batch] = [
            [Step(ONE, None, b"1")],
            [Step(ONE, None, b"never"), filled(TWO, [9])],
            [Step(ONE, b"1", b"2"), filled(TWO, [1])],
            [Step(AWAY, None, b"elsewhere")],
        ]

        assert await backend.write(batches, NOW) == [None, (PlaceHead(b"1"), None), None, None]

        assert [await head(backend, place) for place in (ONE, AWAY)] == [PlaceHead(b"2"), PlaceHead(b"elsewhere")]
        assert await keys(backend, TWO, all_of()) == [1]
        assert await backend.write([], NOW) == []

    @rule
    async def test_a_write_that_need_not_last_is_visible_at_once(self, backend: Backend) -> None:
        """A write that need not last is there at once, if no other writer is in the way."""
        assert await backend.write([[filled(ONE, [1])]], NOW, lasting=False) == [None]
        assert await keys(backend, ONE, all_of()) == [1]

    # --- rows

    @rule
    async def test_rows_come_in_the_order_of_their_keys(self, backend: Backend) -> None:
        """Rows are ordered by key, in whatever order they were put. A row replaces the one with its key."""
        put = [Row(key, b"%d" % key, "id" if key % 2 else "", NOW + 1 if key % 3 else None) for key in PARTS]
        await written(backend, Step(ONE, rows_only=True, put=[("t", put[::-1])]))
        await written(backend, Step(ONE, rows_only=True, put=[("t", [Row(1, b"other")]), ("u", [])]))

        found = await rows(backend, ONE, all_of())

        assert found == [put[0], Row(1, b"other"), *put[2:]]
        assert await rows(backend, ONE, all_of(newest_first=True)) == found[::-1]
        assert await rows(backend, ONE, all_of("u")) == []

    @rule
    async def test_a_range_returns_the_rows_of_its_spans(self, backend: Backend) -> None:
        """It has span after span, as given, both ends included, up to the limit; or all of that in reverse."""
        await written(backend, filled(ONE, PARTS))
        bounds = sorted({key + shift for key, shift in product(PARTS, (-1, 0, 1)) if 0 <= key + shift <= LAST_KEY})
        for low, high in product(bounds, bounds):
            if low <= high:
                wanted = [key for key in PARTS if low <= key <= high]
                assert await keys(backend, ONE, Range("t", [(low, high)])) == wanted
        spans = [(7 << 32, LAST_KEY), (1, 2**32)]
        wanted = [7 << 32, 7 << 32 | 1, LAST_KEY, 1, 2**32 - 1, 2**32]
        for limit in range(8):
            assert await keys(backend, ONE, Range("t", spans, limit)) == wanted[:limit]
            assert await keys(backend, ONE, Range("t", spans, limit, newest_first=True)) == wanted[::-1][:limit]
        assert await keys(backend, ONE, Range("t", [])) == []

    @rule
    async def test_rows_are_found_by_their_ids(self, backend: Backend) -> None:
        """All rows with one of the ids are found, in order of their keys; none by an id that it had before."""
        far = 9 << 32
        put = [Row(3, b"c", "x"), Row(1, b"a", "x"), Row(2, b"b", "y"), Row(4, b"d"), Row(far, b"e", "x")]
        await written(backend, Step(ONE, rows_only=True, put=[("t", put), ("u", [Row(7, b"", "x")])]))
        await written(backend, Step(TWO, rows_only=True, put=[("t", [Row(8, b"", "x")])]))

        assert await keys(backend, ONE, Named("t", ["x"])) == [1, 3, far]
        assert await keys(backend, ONE, Named("t", ["y", "x", "none"])) == [1, 2, 3, far]
        assert await keys(backend, ONE, Named("t", [])) == []
        assert await keys(backend, ONE, Named("t", ["none"])) == []
        await written(backend, Step(ONE, rows_only=True, drop=[("t", 3, 3)], put=[("t", [Row(1, b"a", "z")])]))
        assert await keys(backend, ONE, Named("t", ["x"])) == [far]
        assert await keys(backend, ONE, Named("t", ["z"])) == [1]

    @rule
    async def test_rows_with_distant_keys_are_found_by_ids(self, backend: Backend) -> None:
        """Rows are found by ids also if the keys of a table are far apart."""
        put = [Row(number << 32 | number, b"", str(number % 3)) for number in range(50)]
        await written(backend, Step(ONE, rows_only=True, put=[("t", put)]))

        wanted = [row.key for row in put if row.id in {"1", "2"}]
        assert await keys(backend, ONE, Named("t", ["2", "1"])) == wanted

    @rule
    async def test_dropped_rows_are_gone(self, backend: Backend) -> None:
        """`drop` takes the rows of a span from a table, or from all that match `prefix*`, before `put` adds rows."""
        for table in ("t", "tokens/a", "tokens/b", "token"):
            await written(backend, filled(ONE, PARTS, table))
        await written(backend, filled(TWO, PARTS))
        low, high = 2**32 - 1, 7 << 32

        drop = [("t", low, high), ("tokens/*", 0, 1), ("none", 0, LAST_KEY), ("none*", 0, LAST_KEY)]
        await written(backend, Step(ONE, rows_only=True, drop=drop, put=[("t", [Row(2**32, b"new")])], destroys=True))

        remaining = [key for key in PARTS if key not in {2**32 - 1, 7 << 32}]
        assert await keys(backend, ONE, all_of()) == remaining
        assert (await rows(backend, ONE, Range("t", [(2**32, 2**32)]))) == [Row(2**32, b"new")]
        for table, expected in (("tokens/a", PARTS[2:]), ("tokens/b", PARTS[2:]), ("token", PARTS)):
            assert await keys(backend, ONE, all_of(table)) == list(expected)
        await written(backend, Step(ONE, rows_only=True, drop=[("*", 0, LAST_KEY)]))
        for table in ("t", "tokens/a", "tokens/b", "token"):
            assert await rows(backend, ONE, all_of(table)) == []
        assert await keys(backend, TWO, all_of()) == list(PARTS)

    @rule
    async def test_again_gets_the_stored_heads(self, backend: Backend) -> None:
        """`again` gets the stored heads, and may look at heads and rows. A store may also refuse without asking."""
        stored, beside = PlaceHead(b"there", b"cold"), Step(BESIDE, None, b"beside")
        put = [Row(1, b"a"), Row(2, b"b", "x")]
        await written(backend, Step(ONE, None, stored.hot, stored.cold, put=[("t", put)]), beside)
        asked: list[tuple[int, Refusal, list[Seen]]] = []

        def again(number: int, _: Batch, heads: Refusal, look: Look) -> Batch:
            asked.append((number, heads, look([Ask(ONE, [all_of(), Named("t", ["x"])]), Ask(BESIDE), Ask(TWO)])))
            return [Step(ONE, stored.hot, b"next")]

        (refusal,) = await backend.write([[Step(ONE, b"other", b"never")]], NOW, again=again)

        if not asked:
            assert refusal == (stored,)
            assert await head(backend, ONE) == stored
            return
        ((number, heads, (seen_one, seen_beside, seen_two)),) = asked
        assert (number, heads, seen_one.head) == (0, (stored,), stored)
        assert [[Row(*row) for row in found] for found in seen_one.rows] == [put, put[1:]]
        assert (seen_beside.head, seen_two.head) == (PlaceHead(b"beside"), None)
        assert refusal is None
        assert await head(backend, ONE) == PlaceHead(b"next", b"cold")

    @rule
    async def test_a_refused_replacement_batch_returns_the_heads_of_its_own_places(self, backend: Backend) -> None:
        """`again` may return a batch with other steps. If that is refused, too, the refusal is about its places."""
        stored, beside = PlaceHead(b"there", b"cold"), PlaceHead(b"beside")
        await written(backend, Step(ONE, None, stored.hot, stored.cold), Step(BESIDE, None, beside.hot))
        asked: list[object] = []

        def again(*given: object) -> Batch:
            asked.append(given)
            return [Step(BESIDE, b"other", b"never"), Step(ONE, stored.hot, b"next")]

        (refusal,) = await backend.write([[Step(ONE, b"other", b"never")]], NOW, again=again)

        assert refusal == ((beside, stored) if asked else (stored,))
        assert await head(backend, ONE) == stored
        assert await head(backend, BESIDE) == beside

    @rule
    async def test_a_replacement_batch_that_expects_a_wrong_head_is_refused(self, backend: Backend) -> None:
        """If the batch of `again` expects a wrong head, too, nothing is written. The refusal has the stored head."""
        stored = PlaceHead(b"there")
        await written(backend, Step(ONE, None, stored.hot))

        def put(key: int) -> Batch:
            return [Step(ONE, b"%d" % key, b"never"), Step(TWO, rows_only=True, put=[("t", [Row(key, b"a")])])]

        (refusal,) = await backend.write([put(1)], NOW, again=lambda *_: put(2))

        assert refusal == (stored, None)
        assert await head(backend, ONE) == stored
        assert await rows(backend, TWO, all_of("t")) == []

    @rule
    async def test_a_dropped_place_can_be_written_again(self, backend: Backend) -> None:
        """A place whose head and rows were dropped is like new when it is written to again."""
        for number in range(3):
            assert await written(backend, Step(ONE, None, b"%d" % number, put=[("t", [Row(number, b"")])])) is None
            assert await keys(backend, ONE, all_of()) == [number]
            assert await written(backend, Step(ONE, b"%d" % number, drop=[("*", 0, LAST_KEY)])) is None
            assert await rows(backend, ONE, all_of()) == []
            assert await head(backend, ONE) is None

    @rule
    async def test_one_look_sees_several_places(self, backend: Backend) -> None:
        """A look has heads and rows of each place, in the order of the asks, and keeps homes and tenants apart."""
        for number, place in enumerate((ONE, TWO, AWAY, FOREIGN)):
            await written(backend, Step(place, None, b"%d" % number, put=[("t", [Row(1, b"%d" % number)])]))

        asks = [Ask(place, [all_of(), Named("t", ["x"])]) for place in (FOREIGN, AWAY, TWO, ONE)]
        seen = await backend.look([*asks, Ask(TWO, head=False)])

        assert [answer.head and answer.head.hot for answer in seen] == [b"3", b"2", b"1", b"0", None]
        found: list[list[Cells]] = [list(answer.rows[0]) for answer in seen[:4]]
        assert found == [[Row(1, b"%d" % number)] for number in (3, 2, 1, 0)]
        assert await backend.look([]) == []
