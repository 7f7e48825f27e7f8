"""Turns with a tool's result of JSON that has many numbers and nothing private. The same on every run."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from typing import Any

from workload import CROPS, PEOPLE, PLACES, STATES

Row = dict[str, Any]


def orders(count: int) -> list[list[Row]]:
    """Return turns with replies of 3 to 7 KB, alternately of a weather service and a shop."""
    rng = random.Random(9)
    return [_turn(i, _orders(rng) if i % 2 else _forecast(rng)) for i in range(count)]


def dense(count: int) -> list[list[Row]]:
    """Return turns with a reply of 1 to 5 KB, half of it numbers of nine digits, prices and times: a worst case."""
    rng = random.Random(9)
    return [_turn(i, {"rows": [_row(rng) for _ in range(rng.randint(5, 25))]}) for i in range(count)]


def _turn(number: int, reply: Row) -> list[Row]:
    call = {"id": f"c{number}", "type": "function", "function": {"name": "rows", "arguments": "{}"}}
    return [
        {"role": "user", "content": f"What came in {number}?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": json.dumps(reply)},
        {"role": "assistant", "content": "These."},
    ]


def _orders(rng: random.Random) -> Row:
    orders: list[Row] = []
    for _ in range(rng.randint(7, 12)):
        lines = [
            {
                "sku": f"{rng.choice(CROPS).upper()}-{rng.randrange(10**4):04}",
                "quantity": rng.randint(1, 40),
                "unit_price": f"{rng.randrange(100, 9999) / 100:.2f}",
                "weight_kg": round(rng.random() * 20, 3),
            }
            for _ in range(rng.randint(1, 4))
        ]
        orders.append(
            {
                "id": str(uuid.UUID(int=rng.getrandbits(128), version=4)),
                "number": rng.randrange(10**5, 10**6),
                "created_at": f"{_day(rng)}T{_time(rng)}Z",
                "updated_ms": 1_767_225_600_000 + rng.randrange(3 * 10**10),
                "customer": {"id": rng.randrange(10**9), "name": rng.choice(PEOPLE)},
                "status": rng.choice(STATES),
                "ship_from": rng.choice(PLACES),
                "total": str(round(rng.random() * 2000, 2)),
                "lines": lines,
                "url": f"https://api.example.com/v2/orders/{rng.randrange(10**9)}?expand=lines",
            }
        )
    return {"object": "list", "count": len(orders), "has_more": True, "data": orders}


def _forecast(rng: random.Random) -> Row:
    day, hours = _day(rng), range(rng.randint(36, 60))
    times = [f"{day}T{hour % 24:02}:00" for hour in hours]
    columns: dict[str, list[float] | list[int]] = {
        "temperature_2m": [round(rng.uniform(-8, 31), 1) for _ in hours],
        "relative_humidity_2m": [rng.randint(20, 100) for _ in hours],
        "precipitation": [round(rng.random() * 3, 2) for _ in hours],
        "surface_pressure": [round(rng.uniform(980, 1035), 1) for _ in hours],
        "wind_speed_10m": [round(rng.random() * 60, 1) for _ in hours],
        "wind_direction_10m": [rng.randrange(360) for _ in hours],
        "radiation": [round(rng.random() * 900, 3) for _ in hours],
        "river_level": [round(rng.random() * 4, 5) for _ in hours],
    }
    stations = list(_stations(rng))
    return {
        "latitude": round(rng.uniform(-60, 70), 6),
        "longitude": round(rng.uniform(-180, 180), 6),
        "generationtime_ms": rng.random(),
        "utc_offset_seconds": 3600,
        "stations": stations,
        "hourly": {"time": times, **columns},
    }


def _stations(rng: random.Random) -> Iterator[Row]:
    for place in rng.sample(PLACES, 4):
        where = {"lat": round(rng.uniform(-60, 70), 6), "lon": round(rng.uniform(-180, 180), 6)}
        yield {"id": rng.randrange(10**6), "name": place, **where, "seen": f"{_day(rng)} {_time(rng)}+00:00"}


def _row(rng: random.Random) -> Row:
    return {
        "id": rng.randrange(10**9),
        "price": round(rng.random() * 1e4, 2),
        "rate": round(rng.random(), 4),
        "at": f"{_day(rng)}T{rng.randint(0, 23):02}:30:00Z",
        "place": rng.choice(("north vault", "drying room", "second cold store")),
        "note": "The label stays as it is, and the bag goes back to where it was.",
    }


def _day(rng: random.Random) -> str:
    return f"2026-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def _time(rng: random.Random) -> str:
    return f"{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}"


def _describe() -> None:
    for name, turns in (("orders", orders(400)), ("dense", dense(400))):
        texts = [turn[2]["content"] for turn in turns]
        digits = sum(map(str.isdecimal, "".join(texts))) / sum(map(len, texts))
        print(f"{name}: {min(map(len, texts))} to {max(map(len, texts))} bytes, {digits:.0%} digits")


if __name__ == "__main__":
    _describe()
