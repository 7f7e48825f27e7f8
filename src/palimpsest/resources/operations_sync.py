"""`DeclaredMemory`: a declared memory by its keys."""

# Written by `python tools/make_sync.py`. Not to be edited: edit `palimpsest.resources.operations`, and run that again.

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

from palimpsest.errors import ConfigError, Conflict, PalimpsestError, SessionNotFound, StoreCorrupt
from palimpsest.log import values
from palimpsest.log.entry import moment
from palimpsest.log.values import plain_text
from palimpsest.resources.clearing import held_inline
from palimpsest.resources.counting import Tallies, stored
from palimpsest.resources.definition import Resource
from palimpsest.resources.failing import noted, raise_or_warn, reasons
from palimpsest.resources.figures import NEAR, Health, KeyCleared, KeyList, KeyPage, KeyStats, is_flush
from palimpsest.resources.keys import check_pattern, matcher
from palimpsest.resources.payloads import Limits
from palimpsest.resources.strategies import flush_of
from palimpsest.runtime.hushing import hushed
from palimpsest.runtime.logs import warn
from palimpsest.sessions.compacting.result import CompactionResult
from palimpsest.sessions.sync import Memory, Session

COPIES = 10
"""How often a backup is tried of a session that others keep changing."""


@hushed(lambda self: self._memory.redact)
class DeclaredMemory:
    """A declared memory by its keys. Made by `Resources.keyed`.

    A key is a literal. Verbs that act on several keys also take a pattern, in which `*` stands for any characters. A
    pattern does not match keys so long that the id of their session holds a hash of them. If it matches more keys than
    `max_keys`, or one of its keys fails, such as a damaged one, a warning is logged; the other keys are done.
    """

    def __init__(self, memory: Memory, resource: Resource, options: Mapping[str, Any], limits: Limits) -> None:
        self._memory, self._resource, self._options, self._limits = memory, resource, options, limits
        self._tallies = Tallies()
        self._clear_seconds = values.microseconds("clear_ttl", resource.clear_lease) / 1_000_000

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._resource.id!r}>"

    def session(self, key: str) -> Session:
        """Return the session of a key. Raises ConfigError for an invalid key.

        Args:
            key: the key.
        """
        return self._memory.session(self._resource.session_id(key), **self._options)

    @property
    def strategy(self) -> str | None:
        """The name of the strategy by which the memory flushes; None: it declares none."""
        declared = self._strategy(None)
        return None if declared is None else str(declared["type"])

    @property
    def readonly(self) -> bool:
        """Whether the memory is declared `readonly`: then every verb that changes a key raises ConfigError."""
        return bool(self._options.get("readonly"))

    def _may_write(self) -> None:
        """Raise ConfigError if the memory is declared `readonly`. Its sessions refuse by themselves what they do."""
        if self.readonly:
            allowed = f"False: memory {self._resource.id!r} is declared `readonly`, so its keys are not changed"
            raise ConfigError("readonly", True, allowed)

    # --- one key

    def read(self, key: str, *, offset: int = 0, limit: int | None = None) -> KeyPage:
        """Return the active entries of a key, oldest first; none for a key that nothing was written to.

        Args:
            key: the key.
            offset: how many of the oldest entries are skipped.
            limit: the most entries; None: all; 0: none, which costs little in a key that was counted before.
        """
        values.whole("offset", offset)
        values.whole("limit", limit, none=True)
        session = self.session(key)
        if limit == 0:
            return KeyPage(entries=(), total=self._tallies.active_inline(self._memory, session))
        entries = session.active_entries()
        end = None if limit is None else offset + limit
        return KeyPage(entries=tuple(entries[offset:end]), total=len(entries))

    def append(self, key: str, payload: object, *, idempotency_key: str | None = None) -> int:
        """Add messages to a key, all of them or none, and return how many were stored, as `read` counts them: calls of
        tools are messages of their own, and messages that the privacy policy withholds are not counted.

        Raises InvalidEntry for a payload that is no message, or over a limit (`too_large`), and Conflict for an
        idempotency key that came with other messages before.

        Args:
            key: the key.
            payload: a text (of the user), a mapping with `content` and `role`, or a list of these.
            idempotency_key: a text that names this call: repeating the call with it adds nothing. None: every call
                adds.
        """
        messages = self._limits.checked(payload)
        return stored(self.session(key).add(messages, key=idempotency_key))

    def write(self, key: str, payload: object) -> int:
        """Replace the active entries of a key by messages, in one step; return how many were stored, as `append` does.

        Entries left out are archived.

        Args:
            key: the key.
            payload: as `append` takes it.
        """
        messages = self._limits.checked(payload)
        session = self.session(key)
        written = stored(session.replace(messages))
        self._end(session)
        return written

    # --- one key, or those of a pattern

    def delete(self, key: str, *, max_keys: int = 0) -> int:
        """Destroy the sessions of a key or a pattern, and return how many there were.

        Raises LockTimeout if another caller clears or deletes the same key for longer than five seconds. The other keys
        of a pattern are deleted all the same.

        Args:
            key: a key, or a pattern.
            max_keys: the most keys of a pattern, up to 10,000; 0: 1,000.
        """
        self._may_write()
        deleted, failed = 0, dict[str, PalimpsestError]()
        for found in self._keys(key, max_keys):
            with noted(found, failed):
                deleted += self._deleted(self._resource.session_id(found))
        for fault in failed.values():
            raise fault
        return deleted

    def _deleted(self, session: str) -> int:
        with held_inline(self._memory, session, self._clear_seconds):
            return self._memory.delete_session(session)

    def clear(self, key: str, *, confirm: bool = False, backup: bool = False, max_keys: int = 0) -> KeyCleared:
        """Destroy all entries of a key or a pattern; the sessions stay. Raises ConfigError unless `confirm` is True.

        For a key it raises LockTimeout if another caller clears or deletes it for longer than five seconds, and
        Conflict if others add entries faster than a backup can be made: then the key is as it was. Such keys of a
        pattern are in `failed` instead.

        Args:
            key: a key, or a pattern.
            confirm: must be True.
            backup: whether all entries are first copied to a session of their own, which `forget` destroys with its
                user. The copy holds all that is destroyed: if others add entries meanwhile, it is made again.
            max_keys: the most keys of a pattern, up to 10,000; 0: 1,000.
        """
        if confirm is not True:
            raise ConfigError("confirm", confirm, "True, to confirm that the entries are to be destroyed")
        values.switch("backup", backup)
        self._may_write()
        entries, backups, failed = dict[str, int](), dict[str, str](), dict[str, PalimpsestError]()
        for found in self._keys(key, max_keys):
            with noted(found, failed):
                copy, entries[found] = self._cleared(self.session(found), backup=backup)
                backups |= {found: copy} if copy else {}
        raise_or_warn(failed, key)
        return KeyCleared(entries=entries, backups=backups, failed=reasons(failed))

    def _cleared(self, session: Session, *, backup: bool) -> tuple[str, int]:
        """Clear a session; return the id of its copy ("": there is none) and how many entries were destroyed."""
        with held_inline(self._memory, session.id, self._clear_seconds):
            return self._cleared_into_a_copy(session) if backup else ("", session.clear())

    def _cleared_into_a_copy(self, session: Session) -> tuple[str, int]:
        """Copy a session, and clear the original; return the copy's id ("": there was no session) and how many entries
        were destroyed. If others change the session in between, it is copied again. Raises Conflict after `COPIES`."""
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
        """Copy a session; return the copy's id and the revision it is of; "" and 0 if there is no session."""
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
        """Flush a key, or the keys of a pattern, if they have reached the threshold; return the result of each by key.
        Entries that leave the context go to the archive.

        Raises ConfigError, naming it, for an invalid argument. If a key of a pattern fails, its reason is "failed".

        Args:
            key: a key, or a pattern.
            strategy: simple_fifo (or fifo), lru, hybrid_summary or token_aware_lru; None: the declared one.
            dry_run: whether nothing is changed.
            force: whether to flush also below the threshold.
            threshold: the share of the limit from which a key is flushed, over 0 and up to 1; None: the declared one.
            max_keys: the most keys of a pattern, up to 10,000; 0: 1,000.
        """
        chosen = self._strategy(strategy)
        values.switch("dry_run", dry_run)
        values.switch("force", force)
        values.share("threshold", threshold, none=True)
        share = None if force else threshold
        results, failed = dict[str, CompactionResult](), dict[str, PalimpsestError]()
        for found in self._keys(key, max_keys):
            with noted(found, failed):
                session = self.session(found)
                results[found] = session.compact(chosen, dry_run=dry_run, force=force, threshold=share)
                if results[found].done and not dry_run:
                    self._end(session)
            if found in failed:
                name = str((chosen or {}).get("type", ""))
                results[found] = CompactionResult(strategy=name, reason="failed", why=str(failed[found]))
        raise_or_warn(failed, key)
        return results

    def _strategy(self, name: str | None) -> dict[str, Any] | None:
        return flush_of(self._options.get("long_term") or (), name)

    def _end(self, session: Session) -> None:
        """Destroy what was replaced by key, if the memory keeps no archive: no end of a turn follows that would."""
        if session.options.flushes:
            session.end_turn()

    def stats(self, key: str, *, max_keys: int = 0) -> dict[str, KeyStats]:
        """Return figures by key, without keys that nothing was written to, and those of a pattern that cannot be read.

        Args:
            key: a key, or a pattern.
            max_keys: the most keys of a pattern, up to 10,000; 0: 1,000.
        """
        figures, failed = self._figures(key, max_keys)
        raise_or_warn(failed, key)
        return figures

    def _figures(self, key: str, max_keys: int) -> tuple[dict[str, KeyStats], dict[str, PalimpsestError]]:
        """Return figures by key, and by key the errors of those that cannot be read."""
        figures, failed = dict[str, KeyStats](), dict[str, PalimpsestError]()
        for found in self._keys(key, max_keys):
            with noted(found, failed):
                figures[found] = self._stats(self.session(found))
        return figures, failed

    def _stats(self, session: Session) -> KeyStats:
        stats, entries, records = session.stats(), session.active_entries(), session.history()
        limit, max_messages = self._options.get("max_log_tokens"), self._options.get("max_messages")
        used = [stats.active_tokens / limit] if limit is not None else []
        used += [len(entries) / max_messages] if max_messages is not None else []
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
        """Write, read and delete a value in the store, and find keys that are near their limit.

        Args:
            key: a key, or a pattern, of the keys to check.
            max_keys: the most keys of a pattern, up to 10,000; 0: 1,000.
        """
        check_pattern(key, max_keys)
        facts, name = self._memory.working(f"health/{self._resource.id}"), os.urandom(8).hex()
        try:
            facts.set(name, name, ttl=60)
            works = facts.get(name) == name and facts.delete(name)
            figures, failed = self._figures(key, max_keys)
        except PalimpsestError as fault:
            return Health(works=False, error=str(fault), near_limit=())
        full = tuple(found for found, stats in figures.items() if (stats.utilization or 0) >= NEAR)
        error = None if works else "the store did not return what was written to it"
        return Health(works=works, error=error, near_limit=full, failed=reasons(failed))

    # --- keys

    def keys(self, key: str = "*", *, max_keys: int = 0) -> KeyList:
        """Return the keys that have a session, in order, also those that cannot be read. `more` of the result says
        whether the pattern matches further ones.

        Args:
            key: a key, or a pattern, of the keys to return.
            max_keys: the most keys of a pattern, up to 10,000; 0: 1,000.
        """
        return self._keys(key, max_keys)

    def _keys(self, key: str, max_keys: int) -> KeyList:
        """Return the keys with a session that a key or pattern stands for, in order. Warns of more than `max_keys`."""
        most, key = check_pattern(key, max_keys), plain_text(key)
        if "*" not in key:
            return KeyList([key] if self._exists(key) else [])
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
        keys = KeyList(found[:most])
        if len(found) > most:
            keys.more = True
            warn("%s matches more than %s keys; only the first %s are done: raise `max_keys`", key, most, most)
        return keys

    def _exists(self, key: str) -> bool:
        try:
            self.session(key).info()
        except SessionNotFound:
            return False
        except StoreCorrupt:  # a damaged session exists, and can be destroyed
            return True
        return True
