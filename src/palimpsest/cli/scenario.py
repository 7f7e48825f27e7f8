"""The demo's conversation: one customer and the support agent of an invented tool shop, over eighteen months.

The texts were written by hand and are package data (`data/scenario.json`). This module draws the numbers in them and
generates the answers of the shop's tools. It uses no store and no memory. Every run returns the same bytes.

The tables in the file, and how an arc of three to five turns is written:

    products    key -> [sku, name, category, price in pounds, weight in kilograms, months of warranty, description]
    addresses   label -> [name, street, town, postcode]
    errors      code -> [message, hint]
    tools       name -> [description, required parameters, optional parameters]
    queries     category -> what is searched for in it; all other tables: words of orders, parcels and stock
    arcs        topic, day, items (the order's products), then optionally quantities, status, ships_to, reason (of a
                return), order_of (the topic whose order is meant), and turns: [question, calls, answer]

`calls` names the tools in the order they are used: `,` is one after the other, `+` in parallel, `:key/key` names what
is asked for (by default the arc's first item), `!code` makes the tool fail. `!empty` returns the empty text.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from importlib.resources import files
from itertools import count
from typing import Any

Message = dict[str, Any]
Result = tuple[dict[str, Any], dict[str, Any]]  # the arguments of a call, and what the tool gives for them

EARLY_FACT_TURN = 3
"""The human turn, counted from 1, in which the customer states what the last turn asks for."""

EARLY_FACT_TEXT = (
    "glazing panels must be 4 mm because my frame, a Halden 12, takes no thicker ones, "
    "and the gate code for deliveries is 4417-B"
)

EARLY_FACT_TERMS = ("4 mm", "Halden 12", "4417-B")
"""The terms of the early fact that an answer must repeat to the letter."""

SYSTEM = """You are the support agent of Thornbury & Lathe, a shop for garden and workshop tools with a central \
warehouse in Norrick and shops in Aldersford, Pellbridge and Castle Mere.

How you work:
1. Answer in plain, friendly sentences, five at most. No lists unless the customer asks for one.
2. Look up before you state a fact about an order, a parcel, an invoice or the stock. Never guess a number or a date. \
If a tool fails, try it once more, then say openly what you do not know.
3. Speak only about orders of the customer you are talking to.
4. Unused goods may be returned for sixty days. Faults of material are covered for as long as the article's warranty \
says; ask for a photograph, and do not have heavy goods sent back for the sake of form.
5. You may exchange goods, open returns, correct invoices within the quarter and book deliveries without asking \
anyone. A reduction of more than a third of the price needs a colleague.
6. Honour what the customer told you earlier, above all measurements, preferences and instructions for the driver. \
Check them before you recommend something or book a delivery.
7. Advise against a purchase that would not help. A customer who is told the truth comes back.
8. Safety comes first: no climbing above the third tread, no extension leads over wet grass, gloves at the shredder.
9. Prices are in pounds and include tax. Dates are written as day and month.
10. Do not repeat addresses, card numbers or gate codes unless the customer asks for them."""

_SEED = 4417


def conversation() -> list[list[Message]]:
    """Return the turns in order. Each is a list of chat-completions messages that begins with the customer's.

    An answer with tool calls is followed by one tool message per call, in the order of the calls; the last message
    of a turn is the assistant's closing answer. The system prompt is not part of it. Every call builds new lists.
    """
    tables, rng, call_ids = _tables(), random.Random(_SEED), (f"call_{number:04}" for number in count(1))
    scenes: dict[str, _Scene] = {}
    for arc in tables["arcs"]:
        scenes[arc["topic"]] = _Scene(tables, arc, rng, scenes.get(arc.get("order_of", "")))
    return [list(_turn(scene, turn, call_ids)) for scene in scenes.values() for turn in scene.arc["turns"]]


def tools() -> list[Message]:
    """Return the shop's tools in the shape of chat completions."""
    return [_tool(name, *described) for name, described in _tables()["tools"].items()]


def _tables() -> Any:
    return json.loads((files("palimpsest.cli") / "data" / "scenario.json").read_text("utf-8"))


def _tool(name: str, description: str, required: dict[str, str], optional: dict[str, str]) -> Message:
    properties = {
        key: {"type": "integer" if key == "limit" else "string", "description": text}
        for key, text in (required | optional).items()
    }
    schema = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


@dataclass
class _Scene:
    """One arc with its numbers drawn, so that the placeholders in its texts and the answers of its tools agree."""

    tables: dict[str, Any]
    arc: dict[str, Any]
    rng: random.Random = field(repr=False)
    earlier: _Scene | None = None  # whose order this arc is about

    def __post_init__(self) -> None:
        self.today = date.fromisoformat(self.arc["day"])
        self.status: str = self.arc.get("status", "delivered")
        self.due = self.today + timedelta(days=self.rng.randint(3, 6))
        self.slot = self.rng.choice(self.tables["slots"])
        self.stock = self.rng.randint(14, 90)
        self.rma = f"R-{self.rng.randint(20000, 99999)}"
        self.parcel = f"NC{self.rng.randint(10**9, 10**10 - 1)}GB"
        age = {"processing": 1, "ready": 3, "dispatched": 4, "lost": 7, "cancelled": 0}.get(self.status)
        self.placed = self.today - timedelta(days=self.rng.randint(12, 34) if age is None else age)
        self.order = f"T{self.rng.randint(310000, 599999)}"
        self.invoice = f"INV-{self.placed.year}-{self.rng.randint(10000, 89999)}"
        if self.earlier:
            self.order, self.placed, self.invoice = self.earlier.order, self.earlier.placed, self.earlier.invoice

    @property
    def lines(self) -> list[tuple[int, str, str, float]]:
        """The order's lines: pieces, sku, name and price of one."""
        products = [self.tables["products"][key] for key in self.arc["items"]]
        pieces = self.arc.get("quantities", [1] * len(products))
        return [(number, sku, name, price) for number, (sku, name, _, price, *_) in zip(pieces, products, strict=True)]

    @property
    def total(self) -> float:
        """What the order costs, in pounds with tax."""
        return round(sum(number * price for number, _, _, price in self.lines), 2)

    @property
    def weight(self) -> float:
        """What the order weighs, in kilograms."""
        return round(sum(number * float(_product(self, sku)[4]) for number, sku, _, _ in self.lines), 2)

    def address(self, label: str) -> dict[str, str]:
        """The stored address of this label."""
        return dict(zip(("name", "street", "town", "postcode"), self.tables["addresses"][label], strict=True))

    def words(self, text: str) -> str:
        """Fill in the placeholders of a question or an answer."""
        (_, _, item, price), (_, _, item2, price2) = self.lines[0], self.lines[-1]
        pounds = {"price": price, "price2": price2, "total": self.total}
        values = {key: f"£{amount:.2f}" for key, amount in pounds.items()} | {"item": item, "item2": item2}
        values |= {key: str(getattr(self, key)) for key in ("order", "parcel", "invoice", "rma", "slot", "stock")}
        return text.format(due=f"{self.due.day} {self.tables['months'][self.due.month - 1]}", **values)


def _turn(scene: _Scene, turn: list[str], call_ids: Iterator[str]) -> Iterator[Message]:
    question, calls, answer = turn
    yield {"role": "user", "content": scene.words(question)}
    for step in filter(None, calls.split(",")):
        made = [(next(call_ids), *_call(scene, call.strip())) for call in step.split("+")]
        yield {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
                for call_id, name, arguments, _ in made
            ],
        }
        for call_id, _, _, content in made:
            yield {"role": "tool", "tool_call_id": call_id, "content": content}
    yield {"role": "assistant", "content": scene.words(answer)}


def _call(scene: _Scene, written: str) -> tuple[str, dict[str, Any], str]:
    """Carry out one call as it is written in an arc: the tool's name, its arguments and the text it returns."""
    written, _, error = written.partition("!")
    name, _, key = written.partition(":")
    arguments, result = _TOOLS[name](scene, key)
    if error == "empty":
        return name, arguments, ""
    if error:
        message, hint = scene.tables["errors"][error]
        reference = f"{scene.rng.getrandbits(48):012x}"
        result = {"error": {"code": error, "tool": name, "message": message, "hint": hint, "reference": reference}}
    return name, arguments, json.dumps(result, ensure_ascii=False)


def _lookup_order(scene: _Scene, _key: str) -> Result:
    last = {"processing": 3, "ready": 5, "dispatched": 6, "lost": 6, "cancelled": 2}.get(scene.status, 7)
    steps = [*scene.tables["steps"].items()][:last] + [("cancelled", "customer")] * (scene.status == "cancelled")
    history = [
        {"at": _stamp(scene, scene.placed + timedelta(days=number // 2)), "step": step, "by": clerk}
        for number, (step, clerk) in enumerate(steps)
    ]
    lines = [
        {"line": number, "sku": sku, "name": name, "pieces": pieces, "unit_price": price, "warranty_until": until}
        for number, (pieces, sku, name, price) in enumerate(scene.lines, 1)
        for until in [_warranty_end(scene, sku)]
    ]
    return {"order_number": scene.order}, {
        "order": {
            "number": scene.order,
            "status": scene.status,
            "placed_on": scene.placed.isoformat(),
            "expected_on": None if last == 7 or scene.status in {"cancelled", "lost"} else scene.due.isoformat(),
            "invoice": scene.invoice,
            "parcels": [scene.parcel] if last >= 6 else [],
            "ship_to": scene.address(scene.arc.get("ships_to", "home")),
            "bill_to": scene.address("home"),
            "weight_kg": scene.weight,
        },
        "lines": lines,
        "payment": {"method": "card", "ending": "2291", "currency": "GBP", "total": scene.total, **_tax(scene.total)},
        "history": history,
        "flags": {"gift": scene.arc.get("ships_to") == "parents", "note_for_driver": True, "signature": False},
    }


def _search_catalogue(scene: _Scene, key: str) -> Result:
    category, *first = key.split("/")
    products = scene.tables["products"]
    wanted = [name for name in [*first, *scene.arc["items"]] if products[name][2] == category]
    others = [name for name in products if products[name][2] == category and name not in wanted]
    found = [*wanted, *scene.rng.sample(others, len(others))][:6]
    articles = []
    for sku, name, _, price, weight, months, description in (products[name] for name in found):
        rating, reviews = round(scene.rng.uniform(3.9, 4.9), 1), scene.rng.randint(8, 460)
        article = {"sku": sku, "name": name, "category": category, "price": price, "currency": "GBP"}
        article |= {"weight_kg": weight, "warranty_months": months, "rating": rating, "reviews": reviews}
        articles.append({**article, "available": scene.rng.random() < 0.9, "description": description})
    query = scene.tables["queries"][category]
    answer = {"query": query, "found": len(wanted) + len(others), "shown": len(articles), "articles": articles}
    return {"query": query, "category": category, "limit": 6}, answer


def _check_stock(scene: _Scene, key: str) -> Result:
    sku, name, category, price, *_ = scene.tables["products"][key or scene.arc["items"][0]]
    places = []
    for place in scene.tables["places"]:
        central = place.startswith("Central")
        free, reserved = scene.stock if central else scene.rng.randint(1, 7), scene.rng.randint(0, 6)
        day = scene.today + timedelta(days=scene.rng.randint(4, 40))
        incoming = {"pieces": scene.rng.randint(4, 60), "expected_on": day.isoformat(), "from": "maker"}
        shelf = f"{scene.rng.choice('ABCDEFGH')}{scene.rng.randint(1, 40):02}-{scene.rng.randint(1, 6)}"
        places.append(
            {"place": place, "on_hand": free + reserved, "reserved": reserved, "available": free, "shelf": shelf}
            | {"incoming": incoming, "counted_on": (scene.today - timedelta(days=reserved)).isoformat()}
        )
    article = {"sku": sku, "name": name, "category": category, "price": price}
    return {"sku": sku}, {"article": article, "as_of": _stamp(scene, scene.today), "places": places}


def _create_return(scene: _Scene, key: str) -> Result:
    sku, name, _, price, *_ = scene.tables["products"][key or scene.arc["items"][0]]
    arguments = {"order_number": scene.order, "sku": sku, "reason": scene.arc["reason"]}
    return arguments, {
        "case": {"number": scene.rma, "opened_at": _stamp(scene, scene.today), "kind": "fault or return"},
        "article": {"sku": sku, "name": name, "pieces": 1, "value": price, "warranty_until": _warranty_end(scene, sku)},
        "reason": scene.arc["reason"],
        "steps": scene.tables["return_steps"],
        "costs": {"customer": 0.0, "currency": "GBP", "refund_if_not_exchanged": price},
        "collection": {"possible_from": scene.due.isoformat(), "address": scene.address("home")},
    }


def _track_parcel(scene: _Scene, _key: str) -> Result:
    scans = scene.tables["scans"][: {"processing": 1, "dispatched": 6, "lost": 7}.get(scene.status, 8)]
    hubs, start = scene.tables["hubs"], scene.placed + timedelta(days=1)
    events = [
        {
            "at": _stamp(scene, min(start + timedelta(days=number // 3), scene.today)),
            "place": hubs[min(number // 2, len(hubs) - 2)],
            "event": scan,
            "scanner": f"NC-{scene.rng.randint(100, 999)}",
        }
        for number, scan in enumerate(scans)
    ]
    expected = {"day": scene.due.isoformat(), "between": scene.slot, "certainty": "likely"}
    return {"parcel": scene.parcel}, {
        "parcel": {"number": scene.parcel, "carrier": "Norrick Carriers", "weight_kg": scene.weight},
        "expected": expected,
        "events": events,
        "rules": scene.tables["carrier_rules"],
    }


def _update_address(scene: _Scene, key: str) -> Result:
    address = scene.address(key)
    return {"label": key, **address, "order_number": scene.order}, {
        "saved": True,
        "label": key,
        "address": address,
        "used_for": ["this order"] if key == "parents" else ["small parcels", "invoices of the studio"],
        "checked": {"postcode": "found", "lorry": key == "home", "route": scene.rng.randint(11, 48)},
        "others_kept": [name for name in scene.tables["addresses"] if name != key],
        "changed_at": _stamp(scene, scene.today),
    }


def _schedule_delivery(scene: _Scene, _key: str) -> Result:
    arguments = {"order_number": scene.order, "date": scene.due.isoformat(), "between": scene.slot}
    others = [(scene.due + timedelta(days=days)).isoformat() for days in (1, 2, 4)]
    return arguments, {
        "booking": {**arguments, "state": "held"},
        "vehicle": {"tour": scene.rng.randint(100, 480), "tail_lift": True, "length_m": 11, "crew": 1},
        "place": scene.address("home") | {"note_for_driver": "on file, shown on the tour sheet"},
        "alternatives": [{"date": day, "between": scene.rng.choice(scene.tables["slots"])} for day in others],
        "terms": {"change_until": "20:00 on the day before", "fee_after": 9.5, "call_ahead_minutes": 30},
    }


def _get_invoice(scene: _Scene, _key: str) -> Result:
    lines = [
        {"sku": sku, "name": name, "pieces": pieces, "unit_price": price, "amount": round(pieces * price, 2)}
        | _tax(round(pieces * price, 2))
        for pieces, sku, name, price in scene.lines
    ]
    issued = scene.placed.isoformat()
    return {"invoice_number": scene.invoice}, {
        "invoice": {"number": scene.invoice, "order": scene.order, "issued_on": issued, "currency": "GBP"},
        "seller": scene.tables["seller"],
        "buyer": scene.address(scene.arc.get("ships_to", "home")),
        "lines": lines,
        "sums": {"goods": scene.total, "delivery": 0.0, "total": scene.total, **_tax(scene.total)},
        "payments": [{"on": issued, "method": "card", "ending": "2291", "amount": scene.total, "state": "settled"}],
        "documents": [{"kind": "invoice", "file": f"{scene.invoice}.pdf", "pages": 1}],
    }


_TOOLS: dict[str, Callable[[_Scene, str], Result]] = {
    tool.__name__.removeprefix("_"): tool
    for tool in (
        *(_lookup_order, _search_catalogue, _check_stock, _create_return),
        *(_track_parcel, _update_address, _schedule_delivery, _get_invoice),
    )
}


def _product(scene: _Scene, sku: str) -> Any:
    return next(product for product in scene.tables["products"].values() if product[0] == sku)


def _warranty_end(scene: _Scene, sku: str) -> str:
    years, months = divmod(scene.placed.month - 1 + _product(scene, sku)[5], 12)
    return f"{scene.placed.year + years}-{months + 1:02}"


def _tax(amount: float) -> dict[str, float]:
    """Return the tax that an amount contains, at a fifth of the net price."""
    return {"tax_rate": 0.2, "tax": round(amount / 6, 2), "net": round(amount - round(amount / 6, 2), 2)}


def _stamp(scene: _Scene, day: date) -> str:
    return f"{day.isoformat()}T{scene.rng.randint(7, 17):02}:{scene.rng.randint(0, 59):02}:00Z"
