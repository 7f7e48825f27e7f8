"""What a conversation costs when its provider caches prompt prefixes: Palimpsest beside two sliding windows.

    python bench/cache_bill.py conversations.json [--budget 8000] [--joined 40] [--low-water 0.35] [--json]

FILE is a list of conversations: lists of chat-completions messages, or objects with such a list under `traj`.
They are replayed one after the other in sessions of `--joined` conversations; only the first system prompt is
used, given to `context`. Before every assistant message the model is called with what each policy sends.

Counts are exact o200k tokens of everything that is sent (content, tool names, arguments, 4 a message). Cached is
the longest common token prefix with the call before, from 1,024 tokens on in steps of 128, billed at a tenth.

    by turn     the newest whole human turns that fit
    by message  the newest messages that fit, orphaned tool results included (a provider would refuse those)
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from palimpsest import BudgetImpossible, Memory
from palimpsest.tokens.counter import encoding

Message = dict[str, Any]
CACHE_FROM, CACHE_STEP, CACHED_PRICE = 1024, 128, 0.1
TARGETS = {8_000: (0.31, 0.18, 0.70, 0.75), 16_000: (0.27, 0.16, 0.70, 0.95)}


class Tokens:
    """Token ids of messages, each message encoded once."""

    def __init__(self) -> None:
        self._encode = encoding("o200k_base").encode
        self._known: dict[str, tuple[int, ...]] = {}

    def of(self, message: Message) -> tuple[int, ...]:
        """The message's ids: three marks and its role, then its texts."""
        key = json.dumps(message, sort_keys=True)
        if key not in self._known:
            ids = [-1, -2, -3, *self._encode(message["role"])[:1], *self._encode(message.get("content") or "")]
            for call in message.get("tool_calls") or ():
                ids += self._encode(call["function"]["name"]) + self._encode(call["function"]["arguments"])
            self._known[key] = tuple(ids)
        return self._known[key]


class Bill:
    """One policy's account over all calls."""

    def __init__(self, name: str, tokens: Tokens) -> None:
        self.name, self._tokens = name, tokens
        self.calls = self.sent = self.cached = self.dialogue = self.cuts = 0
        self._before: list[tuple[int, ...]] = []

    def call(self, messages: Sequence[Message]) -> None:
        """Account for one request."""
        now = [self._tokens.of(message) for message in messages]
        size, common = sum(map(len, now)), _common(self._before, now)
        hit = common - common % CACHE_STEP if common >= CACHE_FROM else 0
        if self._before and now[: len(self._before)] != self._before:
            self.cuts += 1
        self.calls, self.sent, self.cached = self.calls + 1, self.sent + size, self.cached + hit
        spoken = zip(messages, now, strict=True)
        self.dialogue += sum(len(ids) for message, ids in spoken if message["role"] not in ("tool", "system"))
        self._before = now

    def restart(self) -> None:
        """A new session: nothing of the one before is in the cache."""
        self._before = []

    @property
    def bill(self) -> float:
        """Tokens at full price."""
        return self.sent - self.cached + CACHED_PRICE * self.cached


def _common(one: Sequence[tuple[int, ...]], other: Sequence[tuple[int, ...]]) -> int:
    total = 0
    for left, right in zip(one, other, strict=False):
        if left == right:
            total += len(left)
            continue
        for a, b in zip(left, right, strict=False):
            if a != b:
                break
            total += 1
        break
    return total


def by_turn(system: Message, log: Sequence[Message], budget: int, tokens: Tokens) -> list[Message]:
    """The newest whole turns that fit; the newest always."""
    used, start, kept = len(tokens.of(system)) + 3, len(log), len(log)
    for i in range(len(log) - 1, -1, -1):
        used += len(tokens.of(log[i]))
        start = i
        if used > budget and kept < len(log):
            break
        if log[i]["role"] == "user":
            kept = i
    return [system, *log[kept if kept < len(log) else start :]]


def by_message(system: Message, log: Sequence[Message], budget: int, tokens: Tokens) -> list[Message]:
    """The newest messages that fit, whatever they are: half a tool call and its result, too."""
    used, start = len(tokens.of(system)) + 3, len(log)
    while start and used + len(tokens.of(log[start - 1])) <= budget:
        start -= 1
        used += len(tokens.of(log[start]))
    return [system, *log[start:]]


def sessions(path: Path, joined: int) -> Iterator[tuple[Message, list[Message]]]:
    """Yield (first system prompt, all other messages) for every `joined` conversations."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    conversations = [item["traj"] if isinstance(item, dict) else item for item in raw]
    for i in range(0, len(conversations), joined):
        run = conversations[i : i + joined]
        system = next(message for message in run[0] if message["role"] == "system")
        yield system, [message for talk in run for message in talk if message["role"] != "system"]


def replay(path: Path, budget: int, joined: int, options: dict[str, Any]) -> list[Bill]:
    """Replay every session through every policy."""
    tokens = Tokens()
    ours, turn, message = (Bill(name, tokens) for name in ("palimpsest", "by turn", "by message"))
    for number, (system, log) in enumerate(sessions(path, joined)):
        with Memory.open("memory://") as memory:
            chat = memory.session(f"joined-{number}", model="gpt-4o", max_tokens=budget, **options)
            for i, one in enumerate(log):
                if one["role"] == "assistant":
                    try:
                        ours.call(chat.context(system=system["content"]).messages)
                    except BudgetImpossible as impossible:
                        sys.exit(f"call {i} of session {number}: {impossible}")
                    turn.call(by_turn(system, log[:i], budget, tokens))
                    message.call(by_message(system, log[:i], budget, tokens))
                chat.add(one)
        for bill in (ours, turn, message):
            bill.restart()
    return [ours, turn, message]


def main(arguments: Iterable[str] | None = None) -> int:
    """Print the table; with --gate exit 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--budget", type=int, default=8_000)
    parser.add_argument("--joined", type=int, default=40)
    parser.add_argument("--low-water", type=float)
    parser.add_argument("--no-mask", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--gate", action="store_true")
    given = parser.parse_args(arguments)
    options: dict[str, Any] = {"mask": not given.no_mask}
    if given.low_water is not None:
        options["low_water"] = given.low_water
    began = time.perf_counter()
    ours, turn, message = bills = replay(given.file, given.budget, given.joined, options)
    ratios = (ours.bill / turn.bill, ours.bill / message.bill, ours.sent / turn.sent, ours.dialogue / turn.dialogue)
    targets = TARGETS.get(given.budget)
    met = targets is None or (
        ratios[0] <= targets[0] and ratios[1] <= targets[1] and ratios[2] >= targets[2] and ratios[3] >= targets[3]
    )
    if given.json:
        rows = {bill.name: {"calls": bill.calls, "sent": bill.sent, "cached": bill.cached} for bill in bills}
        print(json.dumps({"budget": given.budget, "policies": rows, "ratios": ratios, "targets": targets, "met": met}))
        return 0 if met or not given.gate else 1
    print(f"budget {given.budget}, {ours.calls} calls, {time.perf_counter() - began:.0f} s")
    print(f"{'policy':12}{'sent':>14}{'cached':>9}{'billed':>14}{'per call':>10}{'breaks':>8}")
    for bill in bills:
        share = bill.cached / bill.sent
        print(
            f"{bill.name:12}{bill.sent:14,}{share:9.1%}{bill.bill:14,.0f}{bill.bill / bill.calls:10,.0f}{bill.cuts:8}"
        )
    names = ("bill / by turn", "bill / by message", "tokens held / by turn", "dialogue held / by turn")
    for name, ratio, target in zip(names, ratios, targets or (None,) * 4, strict=True):
        sign = "" if target is None else f"   target {'<=' if 'bill' in name else '>='} {target:.2f}"
        print(f"{name:26}{ratio:6.3f}{sign}")
    print("targets met" if met else "a target is MISSED")
    return 0 if met or not given.gate else 1


if __name__ == "__main__":
    sys.exit(main())
