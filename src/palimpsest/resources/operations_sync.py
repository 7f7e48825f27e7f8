"""`DeclaredMemory`: a declared memory by its keys."""

# Written by `python tools/make_sync.py`. Not to be edited: edit `palimpsest.resources.operations`, and run that again.

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from palimpsest.compaction.loading import FLUSHES
from palimpsest.errors import (
    ConfigError,
    Conflict,
    ErasureFailed,
    LockTimeout,
    PalimpsestError,
    SessionNotFound,
    StoreCorrupt,
)
from palimpsest.log import values
from palimpsest.log.entry import moment
from palimpsest.log.values import plain_text
from palimpsest.resources.clearing import held_inline
from palimpsest.resources.definition import Resource
from palimpsest.resources.figures import NEAR, Health, KeyCleared, KeyPage, KeyStats, is_flush
from palimpsest.resources.keys import check_pattern, matcher
from palimpsest.resources.payloads import Limits
from palimpsest.runtime.hushing import hushed
from palimpsest.runtime.logs import warn
from palimpsest.sessions.compacting.result import CompactionResult
from palimpsest.sessions.sync import Memory, Session

COPIES = 10
"""Times that a backup is made of a session that others change meanwhile."""

OF_ONE_KEY = (Conflict, ErasureFailed, LockTimeout, SessionNotFound, StoreCorrupt)
"""What is wrong with a key, and not with those beside it."""


@hushed(lambda self: self._memory.redact)
class DeclaredMemory:
    """A declared memory by its keys. Made by `Resources.keyed`.

    A key is a literal. Where several are meant it may be a pattern, in which `*` stands for any characters. A pattern
    does not reach keys whose session has a name that was cut short. If it means more keys than `max_keys`, the log has
    a warning. So it has of a key of a pattern that fails, such as a damaged one: the others are done all the same.
    """

    def __init__(self, memory: Memory, resource: Resource, options: Mapping[str, Any], limits: Limits) -> None:
        self._memory, self._resource, self._options, self._limits = memory, resource, options, limits
        self._clear_seconds = values.microseconds("clear_ttl", resource.clear_lease) / 1_000_000

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._resource.id!r}>"

    def session(self, key: str) -> Session:
        """Return the session of a key. Raises ConfigError for what is none.

        Args:
            key: the key.
        """
        return self._memory.session(self._resource.session_id(key), **self._options)

    # --- one key

    def read(self, key: str, *, offset: int = 0, limit: int | None = None) -> KeyPage:
        """Return what is active under a key, in order; nothing of a key that is not there.

        Args:
            key: the key.
            offset: how many of the oldest are passed over.
            limit: the most entries; None: all.
        """
        values.whole("offset", offset)
        values.whole("limit", limit, none=True)
        entries = self.session(key).active_entries()
        end = None if limit is None else offset + limit
        return KeyPage(entries=tuple(entries[offset:end]), total=len(entries))

    def append(self, key: str, payload: object) -> int:
        """Add what is given under a key, all of it or nothing, and return how many messages that were.

        Raises InvalidEntry for what is too large, or no message.

        Args:
            key: the key.
            payload: a text (of the user), a mapping with `content` and `role`, or a list of these.
        """
        messages = self._limits.checked(payload)
        self.session(key).add(messages)
        return len(messages)

    def write(self, key: str, payload: object) -> int:
        """Let these messages be what is active under a key, in one step, and return how many they are. What they leave
        out goes to the archive.

        Args:
            key: the key.
            payload: as `append` takes it.
        """
        messages = self._limits.checked(payload)
        self.session(key).replace(messages)
        return len(messages)

    # --- one key, or those of a pattern

    def delete(self, key: str, *, max_keys: int = 0) -> int:
        """Destroy the sessions of a key or a pattern, and return how many there were.

        Raises LockTimeout where another clears or deletes the same key for longer than five seconds: those of a pattern
        are then gone but for this one.

        Args:
            key: a key, or a pattern.
            max_keys: the most keys of a pattern, up to 10,000; 0: 1,000.
        """
        gone, failed = 0, dict[str, PalimpsestError]()
        for one in self._keys(key, max_keys):
            with _apart(one, failed):
                gone += self._deleted(self._resource.session_id(one))
        for fault in failed.values():
            raise fault
        return gone

    def _deleted(self, session: str) -> int:
        with held_inline(self._memory, session, self._clear_seconds):
            return self._memory.delete_session(session)

    def clear(self, key: str, *, confirm: bool = False, backup: bool = False, max_keys: int = 0) -> KeyCleared:
        """Destroy all that was said under a key or a pattern; the sessions stay. Raises ConfigError unless `confirm`.

        Of a key it raises LockTimeout where another clears or deletes it for longer than five seconds, Conflict where
        others add faster than a backup can be made: then it is as it was. Of a pattern such keys are in `failed`.

        Args:
            key: a key, or a pattern.
            confirm: True, to say that it is meant.
            backup: whether what is there is first stored as a session of its own, which goes with its user in `forget`.
                All that is destroyed is in it: where others have added meanwhile, it is stored anew.
            max_keys: the most keys of a pattern, up to 10,000; 0: 1,000.
        """
        if confirm is not True:
            raise ConfigError("confirm", confirm, "True: what is cleared is destroyed")
        values.switch("backup", backup)
        entries, backups, failed = dict[str, int](), dict[str, str](), dict[str, PalimpsestError]()
        for one in self._keys(key, max_keys):
            with _apart(one, failed):
                copy, entries[one] = self._cleared(self.session(one), backup=backup)
                backups |= {one: copy} if copy else {}
        _expect_more_than(failed, key)
        return KeyCleared(entries=entries, backups=backups, failed=_told(failed))

    def _cleared(self, session: Session, *, backup: bool) -> tuple[str, int]:
        """Clear a session; return the id of its copy ("": there is none) and how many entries there were."""
        with held_inline(self._memory, session.id, self._clear_seconds):
            return self._cleared_into_a_copy(session) if backup else ("", session.clear())

    def _cleared_into_a_copy(self, session: Session) -> tuple[str, int]:
        """Store a copy of a session, and clear that; return the copy's id ("": there was nothing to copy) and how many
        entries there were. Where others change the session in between it is copied again."""
        tries = 0
        while True:
            copy, revision = self._copied(session)
            try:
                return copy, session.clear(seen=revision)
            except Conflict:
                if copy:
                    self._memory.delete_session(copy)
                tries += 1
                if tries == COPIES:
                    raise

    def _copied(self, session: Session) -> tuple[str, int]:
        """Store a copy of a session; return its id and of what revision it is: "" and 0 where there is nothing."""
        try:
            data = session.export()
        except SessionNotFound:
            return "", 0
        copy = f"{self._resource.project}/{self._resource.id}/~{os.urandom(8).hex()}"
        self._memory.import_session(data, session_id=copy)
        return copy, data["head"]["revision"]

    def flush(
        self,
        key: str,
        *,
        strategy: str | None = None,
        dry_run: bool = False,
        force: bool = False,
        threshold: float | None = None,
        max_keys: int = 0,
    ) -> dict[str, CompactionResult]:
        """Flush a key, or those of a pattern, where the limits say so; return what became of each. What leaves goes to
        the archive.

        Raises ConfigError, naming it, for a value that cannot be. A key of a pattern that cannot be flushed has the
        reason "failed".

        Args:
            key: a key, or a pattern.
            strategy: simple_fifo (or fifo), lru, hybrid_summary or token_aware_lru; None: the one that is declared.
            dry_run: whether nothing is changed.
            force: whether it is flushed below the threshold, too.
            threshold: the share of the limit from which it is flushed, over 0 and up to 1; None: what is declared.
            max_keys: the most keys of a pattern, up to 10,000; 0: 1,000.
        """
        chosen = self._strategy(strategy)
        values.switch("dry_run", dry_run)
        values.switch("force", force)
        values.share("threshold", threshold, none=True)
        share = None if force else threshold
        found, failed = dict[str, CompactionResult](), dict[str, PalimpsestError]()
        for one in self._keys(key, max_keys):
            with _apart(one, failed):
                found[one] = self.session(one).compact(chosen, dry_run=dry_run, force=force, threshold=share)
            if one in failed:
                name = str((chosen or {}).get("type", ""))
                found[one] = CompactionResult(strategy=name, reason="failed", why=str(failed[one]))
        _expect_more_than(failed, key)
        return found

    def _strategy(self, name: str | None) -> dict[str, Any] | None:
        blocks = [block for block in self._options.get("long_term") or () if "long_term_memory_id" not in block]
        declared = dict(blocks[-1]) if blocks else {}
        if name is None:
            return declared or None
        name = "simple_fifo" if name == "fifo" else name
        values.choice("strategy", name, FLUSHES)
        if name == "hybrid_summary" and declared.get("summary_tokens") is None:
            raise ConfigError("strategy", name, "a memory whose flushing says summary_tokens")
        only = () if name == "hybrid_summary" else ("summary_tokens", "summarize_oldest_percent")
        return {**{option: value for option, value in declared.items() if option not in only}, "type": name}

    def stats(self, key: str, *, max_keys: int = 0) -> dict[str, KeyStats]:
        """Return figures by key. A key that is not there has none, nor has one of a pattern that cannot be read.

        Args:
            key: a key, or a pattern.
            max_keys: the most keys of a pattern, up to 10,000; 0: 1,000.
        """
        found, failed = self._figures(key, max_keys)
        _expect_more_than(failed, key)
        return found

    def _figures(self, key: str, max_keys: int) -> tuple[dict[str, KeyStats], dict[str, PalimpsestError]]:
        """Figures by key, and by key what kept others from having any."""
        found, failed = dict[str, KeyStats](), dict[str, PalimpsestError]()
        for one in self._keys(key, max_keys):
            with _apart(one, failed):
                found[one] = self._stats(self.session(one))
        return found, failed

    def _stats(self, session: Session) -> KeyStats:
        stats, entries, records = session.stats(), session.active_entries(), session.history()
        limit, most = self._options.get("max_log_tokens"), self._options.get("max_messages")
        used = [stats.active_tokens / limit] if limit is not None else []
        used += [len(entries) / most] if most is not None else []
        flushed = [record.at for record in records if is_flush(record)]
        return KeyStats(
            messages=len(entries),
            tokens=stats.active_tokens,
            limit=limit,
            utilization=max(used, default=None),
            roles=dict(Counter(entry.role for entry in entries)),
            archived=stats.archived_entries,
            last_flush=moment(max(flushed)) if flushed else None,
        )

    def health(self, key: str = "*", *, max_keys: int = 0) -> Health:
        """Write, read and delete something in the store, and look for keys that are near their limit.

        Args:
            key: a key, or a pattern: which are looked at.
            max_keys: the most keys of a pattern, up to 10,000; 0: 1,000.
        """
        check_pattern(key, max_keys)
        facts, name = self._memory.working(f"health/{self._resource.id}"), os.urandom(8).hex()
        try:
            facts.set(name, name, ttl=60)
            works = facts.get(name) == name and facts.delete(name)
            near, failed = self._figures(key, max_keys)
        except PalimpsestError as fault:
            return Health(works=False, error=str(fault), near_limit=())
        full = tuple(one for one, found in near.items() if (found.utilization or 0) >= NEAR)
        error = None if works else "what was written was not read again"
        return Health(works=works, error=error, near_limit=full, failed=_told(failed))

    # --- keys

    def keys(self, key: str = "*", *, max_keys: int = 0) -> list[str]:
        """Return the keys that are there, in order, those that cannot be read among them.

        Args:
            key: a key, or a pattern: which are meant.
            max_keys: the most keys of a pattern, up to 10,000; 0: 1,000.
        """
        return self._keys(key, max_keys)

    def _keys(self, key: str, max_keys: int) -> list[str]:
        """The keys that are meant and there, in order."""
        most, key = check_pattern(key, max_keys), plain_text(key)
        if "*" not in key:
            return [key] if self._is_there(key) else []
        prefix = f"{self._resource.project}/{self._resource.id}/"
        matches = matcher(key)
        found, after = list[str](), ""
        while len(found) <= most:
            page = self._memory.sessions(prefix=prefix + key.partition("*")[0], after=after, limit=256)
            names = [info.session.removeprefix(prefix) for info in page]
            found += [name for name in names if "~" not in name and matches(name)]
            if page.next is None:
                break
            after = page.next
        if len(found) > most:
            warn("the pattern %s means more than %s keys: the first %s are done; give `max_keys`", key, most, most)
        return found[:most]

    def _is_there(self, key: str) -> bool:
        try:
            self.session(key).info()
        except SessionNotFound:
            return False
        except StoreCorrupt:  # it is there, and can be destroyed
            return True
        return True


@contextmanager
def _apart(key: str, failed: dict[str, PalimpsestError]) -> Iterator[None]:
    """Note what is wrong with a key, so that those beside it have their turn."""
    try:
        yield
    except OF_ONE_KEY as fault:
        failed[key] = fault


def _expect_more_than(failed: Mapping[str, PalimpsestError], key: str) -> None:
    """Raise what is wrong with the one key that was meant. Of the keys of a pattern the log says so."""
    for fault in () if "*" in key else failed.values():
        raise fault
    for one, fault in failed.items():
        warn("the key %s fails, and those beside it do not: %s", one, fault)


def _told(failed: Mapping[str, PalimpsestError]) -> dict[str, str]:
    return {key: str(fault) for key, fault in failed.items()}
