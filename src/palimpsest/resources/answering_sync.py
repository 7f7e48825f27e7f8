"""`Answers`: what is answered about a key, or about each key of a pattern, by the service and by the command line."""

# Written by `python tools/make_sync.py`. Not to be edited: edit `palimpsest.resources.answering`, and run that again.

from __future__ import annotations

from collections.abc import Callable

from palimpsest.errors import StoreUnavailable
from palimpsest.resources.failing import OF_ONE_KEY
from palimpsest.resources.operations_sync import DeclaredMemory
from palimpsest.resources.refusals import Refusal, of_key, refuse_failed
from palimpsest.resources.replies import Reply, clear_reply, delete_reply, flush_reply, pattern_reply, stats_reply

NO_KEY = "-"
"""A key for a check that is about no key."""

OneKey = Callable[[str], Reply]


class Answers:
    """Answers about the keys of a declared memory. Raises Refusal, and the errors of the library, for a single key.

    A key of a pattern that fails has its error in its place, and the others are done. If the store fails, Refusal is
    raised with the results of the keys before.
    """

    def __init__(self, memory: DeclaredMemory) -> None:
        self._memory = memory

    def delete(self, key: str, *, max_keys: int = 0) -> Reply:
        """Destroy keys. Raises Refusal for a key that nothing was written to."""

        def one(key: str) -> Reply:
            return delete_reply(key, self._memory.delete(key))

        if "*" in key:
            reply = self._each(key, max_keys, one)
            return {**reply, "deleted": sum(result.get("deleted", 0) for result in reply["results"])}
        reply = one(key)
        if not reply["deleted"]:
            raise Refusal(404, "unknown_key", f"there is nothing under {key}", field="key", rule="an existing key")
        return reply

    def flush(
        self,
        key: str,
        *,
        strategy: str | None = None,
        dry_run: bool = False,
        force: bool = False,
        threshold: float | None = None,
        max_keys: int = 0,
    ) -> Reply:
        """Let old messages of keys go to the archive. Raises Refusal if a flush of a key is under way, or fails."""

        def one(key: str) -> Reply:
            results = self._memory.flush(key, strategy=strategy, dry_run=dry_run, force=force, threshold=threshold)
            result = results.get(key)
            refuse_failed(result)
            return flush_reply(key, result, strategy or self._memory.strategy)

        if "*" not in key:
            return one(key)
        self._memory.flush(NO_KEY, strategy=strategy, dry_run=True, threshold=threshold)  # checks both
        return self._each(key, max_keys, one)

    def clear(self, key: str, *, backup: bool = False, max_keys: int = 0) -> Reply:
        """Destroy all entries of keys."""

        def one(key: str) -> Reply:
            cleared = self._memory.clear(key, confirm=True, backup=backup)
            return clear_reply(key, cleared.entries.get(key, 0), cleared.backups.get(key))

        return self._each(key, max_keys, one) if "*" in key else one(key)

    def stats(self, key: str, *, max_keys: int = 0) -> Reply:
        """Return the figures of keys."""

        def one(key: str) -> Reply:
            return stats_reply(key, (self._memory.stats(key)).get(key))

        return self._each(key, max_keys, one) if "*" in key else one(key)

    def _each(self, pattern: str, max_keys: int, one: OneKey) -> Reply:
        keys = self._memory.keys(pattern, max_keys=max_keys)
        results = list[Reply]()
        for key in keys:
            try:
                results.append(one(key))
            except (Refusal, *OF_ONE_KEY) as fault:
                results.append({"success": False, "key": key, "error": of_key(fault).error})
            except StoreUnavailable as fault:
                refusal = of_key(fault)
                if results:
                    refusal.details |= {"written": None, "results": results}
                raise refusal from fault
        return pattern_reply(pattern, results, more=keys.more)
