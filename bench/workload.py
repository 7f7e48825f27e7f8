"""Invented conversations for the benchmarks: an assistant of a seed bank and its tools. The same on every run.

A turn is a list of chat-completions messages: the human's question (about 55 tokens), in 40 % of the turns one message
with 1 to 4 tool calls and their results (300 to 1,400 tokens each), and the assistant's answer (about 175 tokens). On
average these are 3.5 messages and 4.9 KB of JSON a turn.

    python bench/workload.py      describes the first 10,000 messages
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

Message = dict[str, Any]
Turn = list[Message]

TOOL_SHARE = 0.41
MOST_CALLS = 4
QUESTION_CHARS, ANSWER_CHARS = (245, 60), (830, 220)  # mean and deviation
RESULT_CHARS = (1_150, 5_300)

CROPS = [
    "barley",
    "oats",
    "rye",
    "spelt",
    "emmer",
    "flax",
    "lentil",
    "pea",
    "vetch",
    "clover",
    "chard",
    "leek",
    "kale",
    "turnip",
    "radish",
    "sorrel",
    "yarrow",
]
PLACES = [
    "north vault",
    "drying room",
    "second cold store",
    "glasshouse",
    "germination lab",
    "loading bay",
    "packing hall",
]
PEOPLE = ["Oduya", "Marchetti", "Lindqvist", "Tamaki", "Brennan", "Sokolov", "Abebe", "Castellan", "Whitlock"]
STATES = ["viable", "dormant", "damp", "overdue", "sealed", "quarantined", "exhausted", "mislabelled"]
TOOLS = ["find_lot", "read_sensor", "germination_log", "list_requests", "stock_take", "weather_station"]
SENTENCES = (
    "Lot {number} of {crop} came back from the {place} {state}, so {person} wants it weighed again before Thursday.",
    "The humidity in the {place} has stayed above {small} percent since the fan was replaced.",
    "Could you compare the {crop} sample with the one that {person} sent in last spring?",
    "A germination rate of {small} percent is fine for {crop}, but not for anything we intend to send abroad.",
    "Please keep the label as it is: the number {number} also stands in the printed register.",
    "{person} counted {number} packets in the {place}; the list says that there should be {small} more.",
    "We dry {crop} slowly, at no more than eighteen degrees, because the husk splits otherwise.",
    "If the bag is {state}, move it to the {place} and write down who opened it and when.",
    "The request from the growers' union asks for {small} grams of {crop}, and shipping is paid by them.",
    "According to the sensor the door of the {place} was open for {small} minutes during the night.",
    "That would leave us with too little {crop} for the duplicate, which is stored on the other site.",
    "I have not changed anything yet; tell me whether {person} agrees and I will update lot {number}.",
    "Half of the {crop} from that year is {state}, probably since the harvest was threshed in the rain.",
    "Two of the trays in the {place} were swapped, which explains why row {small} looks so uneven.",
    "As far as I can see nothing is missing: lot {number} was booked out twice and returned once.",
    "Remember that {person} is away until the month's end and that the {place} is locked over the weekend.",
)


def turns(seed: int = 0) -> Iterator[Turn]:
    """Yield turns without end. Each `seed` is another conversation."""
    rng = random.Random(seed)
    number = 0
    while True:
        number += 1
        question = {"role": "user", "content": f"[{number}] {_prose(rng, _length(rng, QUESTION_CHARS))}"}
        turn: Turn = [question]
        if rng.random() < TOOL_SHARE:
            turn += _calls(rng, f"call_{seed:03}_{number:07}")
        turn.append({"role": "assistant", "content": _prose(rng, _length(rng, ANSWER_CHARS))})
        yield turn


def history(messages: int, seed: int = 0) -> list[Turn]:
    """Return the first turns that together have at least `messages` messages."""
    turns_so_far: list[Turn] = []
    count = 0
    for turn in turns(seed):
        if count >= messages:
            break
        turns_so_far.append(turn)
        count += len(turn)
    return turns_so_far


def some(count: int, seed: int) -> list[Turn]:
    """Return the first `count` turns of the conversation `seed`."""
    return list(islice(turns(seed), count))


def size(messages: list[Message]) -> int:
    """Return the bytes of the messages as JSON: the payload that every store is given."""
    return sum(len(json.dumps(message, ensure_ascii=False).encode()) for message in messages)


def _calls(rng: random.Random, prefix: str) -> Iterator[Message]:
    names = rng.choices(TOOLS, k=rng.randint(1, MOST_CALLS))
    calls = [
        {
            "id": f"{prefix}_{i}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps({"lot": rng.randrange(9999), "of": rng.choice(CROPS)})},
        }
        for i, name in enumerate(names)
    ]
    yield {"role": "assistant", "content": "", "tool_calls": calls}
    for call in calls:
        yield {"role": "tool", "tool_call_id": call["id"], "content": _result(rng)}


def _result(rng: random.Random) -> str:
    chars = rng.randint(*RESULT_CHARS)
    if rng.random() < 0.5:
        return _prose(rng, chars)
    rows: list[Message] = []
    while sum(100 + len(row["note"]) for row in rows) < chars:
        lot = {"lot": rng.randrange(10**4), "crop": rng.choice(CROPS), "place": rng.choice(PLACES)}
        rows.append({**lot, "state": rng.choice(STATES), "note": _sentence(rng)})
    return json.dumps({"rows": rows, "next": None}, ensure_ascii=False)


def _length(rng: random.Random, about: tuple[int, int]) -> int:
    mean, deviation = about
    return max(int(rng.gauss(mean, deviation)), mean // 4)


def _prose(rng: random.Random, chars: int) -> str:
    text = _sentence(rng)
    while len(text) < chars:
        text += " " + _sentence(rng)
    return text[: text.rfind(" ", 0, chars + 1)]


def _sentence(rng: random.Random) -> str:
    return rng.choice(SENTENCES).format(
        number=rng.randrange(1000, 9999),
        small=rng.randrange(3, 99),
        crop=rng.choice(CROPS),
        place=rng.choice(PLACES),
        state=rng.choice(STATES),
        person=rng.choice(PEOPLE),
    )


def _describe() -> None:
    from palimpsest.tokens.counter import encoding

    count = encoding("o200k_base").count
    conversation = history(10_000)
    messages = [message for turn in conversation for message in turn]
    each = len(messages) / len(conversation), size(messages) / len(conversation)
    print(f"{len(conversation)} turns, {each[0]:.2f} messages and {each[1]:.0f} bytes each")
    for role in ("user", "assistant", "tool"):
        sizes = sorted(count(m["content"]) for m in messages if m["role"] == role and m["content"])
        low, middle, high = (sizes[len(sizes) * share // 100] for share in (5, 50, 95))
        print(f"{role:10} {len(sizes):5} messages, tokens: 5 % {low}, median {middle}, 95 % {high}")


if __name__ == "__main__":
    _describe()
