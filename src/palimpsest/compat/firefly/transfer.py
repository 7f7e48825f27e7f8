"""Exports of conversations in the documented form, and their way back into a memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from palimpsest import ConfigError, ImportFailed
from palimpsest.compat.firefly.entries import portable
from palimpsest.compat.firefly.raw import Raw, brought, spoken
from palimpsest.compat.firefly.turns import MARK, Kept, declared_of, entries_of
from palimpsest.compat.firefly.weighing import Scale
from palimpsest.errors import shorten
from palimpsest.log import spans, values
from palimpsest.log.entry import LAST_MOMENT, microseconds_of, moment
from palimpsest.log.ids import new_ids

EARLIER = "Turns that came before, of which the summary alone is here."
"""The text of an entry that takes the place of the turns behind an imported summary, which the export does not hold."""


def exported(conversation_id: str, turns: Sequence[Kept], summary: str | None, scale: Scale) -> dict[str, Any]:
    """Return the documented mapping, which consists of values of JSON."""
    exported_turns = [_exported_turn(turn, scale) for turn in turns]
    total = sum(turn["token_estimate"] for turn in exported_turns)
    return {"conversation_id": conversation_id, "turns": exported_turns, "summary": summary, "total_tokens": total}


def _exported_turn(turn: Kept, scale: Scale) -> dict[str, Any]:
    fields = {
        "turn_id": turn.turn_id,
        "user_prompt": turn.user,
        "assistant_response": turn.response,
        "token_estimate": turn.estimate(scale),
        "metadata": portable(turn.metadata, "metadata"),
        "timestamp": turn.entry.created_at.isoformat(),
    }
    if turn.raw.form == "plain":
        fields["raw_messages"] = spoken(turn.user, turn.response)
    elif turn.raw.stored is not None:
        fields["raw_messages"] = json.loads(json.dumps(turn.raw.stored))
    return fields


class Given:
    """A conversation that is imported: checked, and with a number for each turn."""

    def __init__(self, data: object) -> None:
        """Raises ImportFailed, which names the place, for data that cannot be imported."""
        fields = _mapping(data, "data")
        self.conversation_id = fields.get("conversation_id")
        self.summary = _text(fields, "summary", "data") or None
        turns = fields.get("turns") if fields else []  # {} is a new conversation; anything else says what it holds
        if isinstance(turns, str | Mapping) or not isinstance(turns, Sequence):
            reason = f"{shorten(turns)} is not a list" if "turns" in fields else "is missing; give an export, or {}"
            raise ImportFailed("data.turns", reason)
        self.turns = [GivenTurn(turn, f"data.turns[{i}]") for i, turn in enumerate(turns)]
        ids = [turn.turn_id for turn in self.turns]
        if any(not values.is_whole(id, 0, 2**31) for id in ids) or ids != sorted(set(ids)):
            for number, turn in enumerate(self.turns):
                turn.turn_id = number
        self.following = self.turns[-1].turn_id + 1 if self.turns else 0

    def natively(self, session: str, scale: Scale, now: int, gone: int = 0, *, named: bool = False) -> dict[str, Any]:
        """Return the conversation as `Memory.import_session` takes it.

        `named` is as in `entries_of`. `now` is in microseconds since 1970. The first `gone` turns are not kept any
        more: they are covered by the summary, or archived.
        """
        log, covered = self._log(now, gone, named=named)
        ids = new_ids(len(log) + 1, now // 1000)
        records = [self._record(covered, scale, log, ids[-1], now)] if covered else []
        entries = [
            {
                **{name: value for name, value in entry.items() if name != "at" and value is not None},
                "id": ids[i],
                "seq": i + 1,
                "created_at": _iso(entry["at"]),
                "links": {"revision": 1},
            }
            for i, entry in enumerate(log)
        ]
        offset = self.following - len(self.turns)
        about = {"about": {"metadata": {MARK: {"offset": offset}}}} if offset else {}
        return {
            "kind": "palimpsest/session",
            "schema_version": 2,
            "session_id": session,
            "entries": entries,
            "tombstones": [],
            "records": records,
            "head": {
                "revision": 1 + len(records),
                "epoch": len(records),
                "pinned": [],
                "first_seq": 1,
                "next_seq": len(log) + 1,
                "compaction": 2 if records else 0,
                **about,
            },
        }

    def _log(self, now: int, gone: int, *, named: bool) -> tuple[list[dict[str, Any]], list[int]]:
        """Return these turns as entries without ids and numbers, and the `seq`s of the entries that are not kept."""
        log: list[dict[str, Any]] = []
        if self.summary and not gone:  # the turns behind the summary are not in the data: one entry stands for them
            log.append({"kind": "context", "role": "user", "content": EARLIER, "name": "earlier", "at": now})
        leading = len(log)
        for turn in self.turns:
            at = turn.at or now
            log += (
                {"kind": "message", "role": e.role, "content": e.content, "metadata": e.metadata, "at": at}
                for e in turn.entries(named=named)
            )
        return log, list(range(1, min(leading + 2 * gone, len(log)) + 1))

    def _record(
        self, covered: Sequence[int], scale: Scale, log: Sequence[Mapping[str, Any]], id: str, now: int
    ) -> dict[str, Any]:
        """Return the record of the compaction by which the `covered` entries left."""
        ranges = [list(span) for span in spans.of(covered)]
        state: dict[str, Any] = {"current": [], "covered": [], "evicted": ranges}
        if self.summary:
            summary = {
                "id": id,
                "text": self.summary,
                "covers": ranges,
                "folded": ranges,
                "method": "plain",
                "tokens": scale.counter.count(self.summary),
                "counter": scale.counter.name,
                "source_tokens": sum(scale.text(log[seq - 1]["content"]) for seq in covered),
                "first_at": log[covered[0] - 1]["at"],
                "last_at": log[covered[-1] - 1]["at"],
                "at": now,
                "revision": 2,
            }
            state = {"summary": summary, "current": [2], "covered": ranges}
        return {"revision": 2, "kind": "compact", "reason": MARK, "at": now, "compaction": state}


class GivenTurn:
    """One turn of an import."""

    def __init__(self, data: object, where: str) -> None:
        fields = _mapping(data, where)
        self.user = _required_text(fields, "user_prompt", where)
        self.response = _required_text(fields, "assistant_response", where)
        self.tokens = declared_of(fields.get("token_estimate"))
        self.turn_id: Any = fields.get("turn_id")
        self.at = _moment(fields.get("timestamp"), f"{where}.timestamp")
        self.metadata = _metadata(fields.get("metadata") or {}, f"{where}.metadata")
        self.raw = _raw(fields.get("raw_messages"), self.user, self.response, f"{where}.raw_messages")

    def as_exported(self) -> dict[str, Any]:
        """Return the turn as an export has it."""
        fields = {
            "turn_id": self.turn_id,
            "user_prompt": self.user,
            "assistant_response": self.response,
            "token_estimate": self.tokens,
            "metadata": dict(self.metadata),
            "timestamp": _iso(self.at) if self.at else None,
        }
        if self.raw.form == "plain":
            fields["raw_messages"] = spoken(self.user, self.response)
        elif self.raw.stored is not None:
            fields["raw_messages"] = self.raw.stored
        return fields

    def entries(self, *, named: bool) -> list[Any]:
        """Return the entries of the turn, which keep its number. `named` is as in `entries_of`."""
        more = {"id": self.turn_id, **({"tokens": self.tokens} if self.tokens else {})}
        return entries_of(self.user, self.response, self.raw, self.metadata, tagged=True, named=named, **more)


def _raw(given: Any, user: str, response: str, where: str) -> Raw:
    """Return the raw messages of an export: values of JSON, which may be messages of Pydantic AI."""
    if isinstance(given, str | bytes):
        try:
            given = json.loads(given)
        except ValueError as fault:
            raise ImportFailed(where, "is a text that is not valid JSON") from fault
    if given is None:
        return Raw("texts", [])
    if not isinstance(given, list):
        raise ImportFailed(where, f"{shorten(given)} is not a list")
    try:
        return brought(given, user, response)
    except ValueError as fault:
        raise ImportFailed(where, str(fault)) from fault


def _metadata(given: object, where: str) -> dict[str, Any]:
    """Return metadata as values of JSON, tagged where they stand for other types."""
    if not isinstance(given, Mapping):
        raise ImportFailed(where, f"{shorten(given)} is not a mapping")
    try:
        metadata: dict[str, Any] = (
            json.loads(json.dumps(given)) if _is_json(given) else portable(dict(given), "metadata")
        )
        return metadata
    except (ConfigError, ValueError) as fault:
        raise ImportFailed(where, str(fault)) from fault


def _is_json(given: Mapping[str, Any]) -> bool:
    try:
        return bool(json.loads(json.dumps(given)) == given)
    except (TypeError, ValueError):
        return False


def _mapping(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ImportFailed(where, f"must be a mapping, not {type(value).__name__}")
    return dict(value)


def _required_text(fields: Mapping[str, Any], name: str, where: str) -> str:
    if fields.get(name) is None:
        raise ImportFailed(f"{where}.{name}", "is missing; a turn needs both texts")
    return _text(fields, name, where)


def _text(fields: Mapping[str, Any], name: str, where: str) -> str:
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ImportFailed(f"{where}.{name}", f"{shorten(value)} is not text")
    return value


def _moment(value: object, where: str) -> int:
    """Return a time in microseconds since 1970; 0 for None. A time without a time zone is UTC."""
    if value is None:
        return 0
    try:
        time = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError as fault:
        raise ImportFailed(where, f"{shorten(value)} is not a time in ISO 8601") from fault
    at = microseconds_of(time if time.tzinfo is not None else time.replace(tzinfo=UTC))
    if not 0 <= at <= LAST_MOMENT:
        raise ImportFailed(where, f"{shorten(value)} is not between 1970 and the end of 9999, UTC")
    return at


def _iso(at: int) -> str:
    return moment(at).isoformat()
