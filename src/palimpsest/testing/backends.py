"""`StoreConformance`, the whole contract of backends: steps, listings, names, sizes, concurrency, durability."""

from __future__ import annotations

from itertools import pairwise

from palimpsest.stores.backend import Ask, Backend, Due, Listed, Named, Place, PlaceHead, Range, Row, Step
from palimpsest.testing.backend_contract import (
    BESIDE,
    FOREIGN,
    HOME,
    NOW,
    ONE,
    TWO,
    BackendFactory,
    all_of,
    filled,
    head,
    keys,
    rows,
    rule,
    written,
)
from palimpsest.testing.backend_steps import StepConformance


class StoreConformance(StepConformance):
    """Everything that the docstrings of `palimpsest.stores.backend` promise, one test for each rule.

    A subclass has a fixture `backend` that returns a function, which opens the backend: empty for each test. If it
    `lasts`, a second call opens the same one again. For a driver that needs an event loop, override `run` and `beside`.
    """

    # --- listings

    @rule
    async def test_places_are_listed_page_by_page(self, backend: Backend) -> None:
        """Places with a head are listed by space, name and home: of one space or all beneath, behind any place."""
        spaces, names = ("a", "a/", "a/b", "b"), ("", "\x01", "Z", "a", "é", "\U0001f600")
        all_places = [Place("tenant", home, space, name) for space in spaces for name in names for home in ("h", "i")]
        for place in reversed(all_places):
            await written(backend, Step(place, None, place.name.encode(), b"cold"))
        await written(backend, filled(Place("tenant", "h", "a", "no head"), [1]), at=NOW)
        await written(backend, Step(FOREIGN._replace(space="a"), None, b""))

        for space, beneath in (("a", False), ("a/", False), ("a/", True), ("", True), ("none", True)):
            wanted = [p for p in all_places if (p.space.startswith(space) if beneath else p.space == space)]
            found, page = [], await backend.places("tenant", space, beneath=beneath, limit=5)
            while page:
                found += page
                page = await backend.places("tenant", space, beneath=beneath, after=found[-1].place, limit=5)
            assert [row.place for row in found] == wanted
            assert all(row.head == PlaceHead(row.place.name.encode(), b"cold") for row in found)
        missing = Place("tenant", "h", "a", "b")
        assert [row.place.name for row in await backend.places("tenant", "a", after=missing)] == [
            "é",
            "é",
            *names[-1:] * 2,
        ]

    @rule
    async def test_places_are_listed_by_their_last_write(self, backend: Backend) -> None:
        """Asking again from the last mark that was returned lists every head that was written since."""
        places = [Place("tenant", HOME, "s", str(number)) for number in range(6)]
        heads: dict[Place, bytes] = {}

        async def move(number: int, at: int) -> None:
            place = places[number]
            heads[place], before = b"%d" % at, heads.get(place)
            assert await written(backend, Step(place, before, heads[place]), at=at) is None

        for number in range(6):
            await move(number, NOW + number)
        listed: dict[Place, bytes] = {}
        mark, clock = 0, NOW
        for step in range(40):
            page = await backend.recent("tenant", "s", since=mark, limit=4)
            while page:
                assert all(earlier.mark <= later.mark for earlier, later in pairwise(page))
                listed |= {row.place: row.head.hot for row in page}
                mark = page[-1].mark
                page = await backend.recent("tenant", "s", since=mark, after=page[-1].place, limit=4)
            assert listed == heads
            clock += (0, 1, 400_000, 3_000_000, -2_000_000)[step % 5]
            await move((step * step) % 6, clock)
            await move(step % 2, clock)
        assert await backend.recent("tenant", "other") == []
        assert await backend.recent("another tenant", "s") == []

    @rule
    async def test_the_newest_are_listed_first(self, backend: Backend) -> None:
        """`newest` lists by last write, page by page, from any mark back; places of one mark in their own order."""
        places = [Place("tenant", home, "s", str(number)) for number in range(4) for home in ("h", "i")]
        for i, place in enumerate([*places, *places[2:5], places[0]]):
            expect = None if i < len(places) else b"1"
            assert await written(backend, Step(place, expect, b"1" if expect is None else b"2"), at=NOW + i) is None
        await written(backend, Step(FOREIGN._replace(space="s"), None, b""), at=NOW)
        await written(backend, Step(Place("tenant", "h", "other", ""), None, b""), at=NOW)

        ascending, page = dict[Place, Listed](), await backend.recent("tenant", "s")
        while page:
            ascending |= {row.place: row for row in page}
            page = await backend.recent("tenant", "s", since=page[-1].mark, after=page[-1].place)
        wanted = sorted(ascending.values(), key=lambda row: (-row.mark, row.place.name, row.place.home))
        assert len(wanted) == len(places)
        for limit in (1, 3, 8, 100):
            found, page = list[Listed](), await backend.newest("tenant", "s", limit=limit)
            while page:
                found += page
                page = await backend.newest("tenant", "s", until=page[-1].mark, after=page[-1].place, limit=limit)
            assert found == wanted
        assert await backend.newest("tenant", "none") == []

    @rule
    async def test_expired_heads_and_rows_are_listed_page_by_page(self, backend: Backend) -> None:
        """Heads and rows of one tenant are listed, oldest first, until they are replaced or dropped."""
        await written(backend, Step(ONE, None, b"1", expires=NOW + 3), Step(TWO, None, b"1"))
        put = [Row(key, b"", "", NOW + 1 + key % 3) for key in range(10)]
        await written(backend, Step(TWO, rows_only=True, put=[("entry", put), ("other", [Row(5 << 32, b"", "", NOW)])]))
        await written(backend, Step(FOREIGN, None, b"1", expires=NOW))

        assert await backend.expired("tenant", NOW - 1) == []
        assert await backend.expired("tenant", NOW) == [Due(NOW, TWO, "other", 5 << 32)]
        for limit in (1, 2, 100):
            found: list[Due] = []
            while page := await backend.expired("tenant", NOW + 3, after=found[-1] if found else None, limit=limit):
                found += page
            assert [due.at for due in found] == sorted(due.at for due in found)
            assert len(found) == len(set(found)) == 12
            assert Due(NOW + 3, ONE) in found
            assert {type(number) for due in found for number in (due.at, due.key)} == {
                int
            }  # not a number type of the driver
        await written(backend, Step(ONE, b"1", b"2"), Step(TWO, b"1", b"1", drop=[("entry", 1, 9)]))
        await written(backend, Step(TWO, rows_only=True, put=[("other", [Row(5 << 32, b"")])]))
        assert await backend.expired("tenant", NOW + 3) == [Due(NOW + 1, TWO, "entry", 0)]

    @rule
    async def test_tenants_are_those_with_a_head(self, backend: Backend) -> None:
        """Tenants are listed page by page, in order, also one with an empty name."""
        for name in ("b", "", "é", "a"):
            await written(backend, Step(ONE._replace(tenant=name), None, b""))
        await written(backend, filled(ONE._replace(tenant="rows only"), [1]))

        assert await backend.tenants() == ["", "a", "b", "é"]
        assert await backend.tenants(limit=2) == ["", "a"]
        assert await backend.tenants(after="a") == ["b", "é"]
        await written(backend, Step(ONE._replace(tenant="b"), b""))
        assert await backend.tenants(after="") == ["a", "é"]

    # --- names and sizes

    @rule
    async def test_names_of_any_characters_are_told_apart(self, backend: Backend) -> None:
        """Names of any characters, up to 1,024 of them, are told apart, and come back unchanged."""
        names = ["", " ", "a", "A", "a ", "\x00", "a\x00b", "a\x00c", "'\"", "%", "_", "*", "/", "..", "é", "e\u0301"]
        names += ["\U0010ffff", "{x}", "\n", "a:b", "n" * 1023, "n" * 1024]
        places = [Place(name, name, f"s{name}", name) for name in names] + [
            Place("t", "h", "s", name) for name in names
        ]
        for number, place in enumerate(places):
            put = [(f"t{place.name}", [Row(number, b"", place.name)])]
            assert await written(backend, Step(place, None, b"%d" % number, put=put)) is None

        for number, place in enumerate(places):
            assert await head(backend, place) == PlaceHead(b"%d" % number)
            found = await rows(backend, place, Range(f"t{place.name}", [(number, number)]))
            assert found == [Row(number, b"", place.name)]
            if place.name:
                assert await keys(backend, place, Named(f"t{place.name}", [place.name])) == [number]
        assert [row.place.name for row in await backend.places("t", "s")] == sorted(names)

    @rule
    async def test_values_may_be_large(self, backend: Backend) -> None:
        """Large heads and rows, and many rows, come back complete."""
        big = bytes(range(256)) * 16_384
        many = [Row(number, b"%d" % number * 50) for number in range(3_000)]
        await written(backend, Step(ONE, None, big, big, put=[("t", [Row(1, big), Row(2, b"")]), ("u", many)]))

        assert await head(backend, ONE) == PlaceHead(big, big)
        assert await rows(backend, ONE, all_of()) == [Row(1, big), Row(2, b"")]
        assert await rows(backend, ONE, all_of("u")) == many

    # --- concurrency and durability

    @rule
    async def test_scrubbing_completes_without_other_readers(self, backend: Backend) -> None:
        """Scrubbing completes, but for what the store always says, and leaves live rows alone."""
        await written(backend, Step(ONE, None, b"1", put=[("t", [Row(1, b"a"), Row(2, b"b")])]))
        await written(backend, Step(ONE, b"1", b"1", drop=[("t", 1, 1)], destroys=True))

        partly = await backend.scrub(whole=False)
        assert (partly.remains, partly.left) == (self.keeps, 0)
        remains = set[str]()
        while (scrubbed := await backend.scrub()).left:
            remains |= {*scrubbed.remains}
        assert {*remains, *scrubbed.remains} == {*self.keeps, *self.refuses}

        assert await rows(backend, ONE, all_of()) == [Row(2, b"b")]

    def test_concurrent_writers_each_move_the_head_once(self, backend: BackendFactory) -> None:
        """Each refused writer goes on from the head in its refusal: every step is done once, and no row is lost."""
        opened = backend()

        async def add(number: int) -> None:
            stored: PlaceHead | None = None
            for turn in range(20):
                while True:
                    count = int(stored.hot) if stored is not None else 0
                    row = Row(count, b"%d.%d" % (number, turn))
                    expect = stored.hot if stored is not None else None
                    step = Step(ONE, expect, b"%d" % (count + 1), put=[("t", [row])])
                    refusal = await written(opened, step)
                    stored = PlaceHead(b"%d" % (count + 1)) if refusal is None else refusal[0]
                    if refusal is None:
                        break

        self.beside([lambda number=number: add(number) for number in range(4)])  # type: ignore[misc]

        async def look() -> None:
            found = await rows(opened, ONE, all_of())
            assert [row.key for row in found] == list(range(80))
            assert sorted(row.value for row in found) == sorted(b"%d.%d" % (n, t) for n in range(4) for t in range(20))
            await opened.close()

        self.run(look())

    def test_no_look_sees_half_a_batch(self, backend: BackendFactory) -> None:
        """While a writer changes two places in one batch, over and over, readers always see both of the same batch."""
        opened = backend()
        self.run(opened.write([[Step(ONE, None, b"0"), Step(TWO, None, b"0")]], NOW))

        async def write() -> None:
            for number in range(100):
                old, new = b"%d" % number, b"%d" % (number + 1)
                row = Step(BESIDE, rows_only=True, put=[("t", [Row(0, new)])])
                assert await written(opened, Step(ONE, old, new), Step(TWO, old, new), row) is None

        async def read() -> None:
            for _ in range(100):
                one, two, beside = await opened.look([Ask(ONE), Ask(TWO), Ask(BESIDE, [all_of()])])
                assert one.head == two.head
                assert one.head is not None
                assert [row[1] for row in beside.rows[0]] in ([one.head.hot], [])

        self.beside([write, read, read])
        self.run(opened.close())

    def test_acknowledged_writes_survive_reopening(self, backend: BackendFactory) -> None:
        """A backend that lasts, closed and opened again, has the same heads, rows, ids, times and marks."""
        if not self.lasts:
            return
        put = [Row(1, b"a", "x", NOW), Row(7 << 32, b"b")]
        opened = backend()
        self.run(written(opened, Step(ONE, None, b"hot", b"cold", NOW + 1, put=[("t", put)])))
        before = self.run(opened.recent("tenant", "space"))
        self.run(opened.close())

        again = backend()

        assert self.run(head(again, ONE)) == PlaceHead(b"hot", b"cold")
        assert self.run(rows(again, ONE, all_of())) == put
        assert self.run(keys(again, ONE, Named("t", ["x"]))) == [1]
        assert self.run(again.expired("tenant", NOW + 1)) == [Due(NOW, ONE, "t", 1), Due(NOW + 1, ONE)]
        assert self.run(again.recent("tenant", "space")) == before
        self.run(again.close())
