"""The file backend: a folder a tenant, a log a home, a line a batch. `palimpsest.stores.file.lines` shows a log."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence

from palimpsest.errors import StoreCorrupt, StoreUnavailable
from palimpsest.runtime.logs import warn
from palimpsest.runtime.runner import Runner
from palimpsest.stores.backend import Again, Ask, Batch, BlockingBackend, Due, Listed, Place, Refusal, Seen
from palimpsest.stores.common import DiskOptions
from palimpsest.stores.file.disk import NEW, Disk, names, remove
from palimpsest.stores.file.folder import LOG, StoreFolder, log_of, tenant_folder
from palimpsest.stores.file.home import DESTROYED, DROPPED, Home
from palimpsest.stores.file.homes import Homes, There
from palimpsest.stores.file.lines import spoiled_in
from palimpsest.stores.file.rewrite import write_anew
from palimpsest.stores.file.writing import Write
from palimpsest.stores.shielded import shielded

FLEETING = 0.05
"""Seconds that writing what may be lost waits for other processes, which hold up who reads."""

SLACK = 1 << 16
"""Bytes that a log may have beside three times those of what is there, before it is written anew."""

MARKS = "marks"
"""The file of a tenant that holds when something was written last, so that marks rise whatever clocks do."""


class FileBackend(BlockingBackend):
    """A folder of logs. Writers lock those of the homes that they write to, readers none."""

    gathers = False  # each home has a file of its own, and whoever keeps one locked holds up nobody else

    def __init__(
        self, url: str, path: str, runner: Runner, options: DiskOptions, check: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(runner)
        self.url, self.path, self.writable = url, os.path.abspath(path), not options.readonly
        self._disk = Disk(
            url, self.path, synced=options.synchronous == "FULL", busy_seconds=options.busy_seconds, check=check
        )
        self._homes, self.large_bytes = Homes(self._disk), options.large_bytes
        self._spoiled: set[str] = set()
        self._told: set[str] = set()
        self._root = shielded(self._rooted)

    def _rooted(self) -> StoreFolder:
        with self._disk.translated():
            return StoreFolder(self._disk, self.path, self.writable)

    # --- the verbs, each where no signal handler runs

    async def look(self, asks: Sequence[Ask]) -> list[Seen]:
        return shielded(self._look, asks)

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        if lasting:
            return shielded(self._write, batches, at, None)
        if self.writable:
            with contextlib.suppress(StoreUnavailable):  # it is given up
                return shielded(self._write, batches, at, FLEETING)
        return [None] * len(batches)

    async def places(
        self, tenant: str, space: str, *, beneath: bool = False, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        def behind(one: Listed) -> bool:
            return after is None or _order(one.place) > _order(after)

        found = shielded(self._listed, tenant, lambda s: s.startswith(space) if beneath else s == space)
        return sorted(filter(behind, found), key=lambda one: _order(one.place))[:limit]

    async def recent(
        self, tenant: str, space: str, *, since: int = 0, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        begin = since, _order(after) if after is not None else ()
        until = shielded(self._last_mark, tenant)  # what is written meanwhile is for who asks next
        found = shielded(self._listed, tenant, lambda one: one == space)
        ordered = sorted((one.mark, _order(one.place), one) for one in found if one.mark <= until)
        return [one for mark, order, one in ordered if (mark, order) > begin][:limit]

    async def expired(self, tenant: str, now: int, *, after: Due | None = None, limit: int = 1000) -> list[Due]:
        found = shielded(self._due, tenant, now)
        return [due for due in sorted(found) if after is None or due > after][:limit]

    async def tenants(self, *, after: str | None = None, limit: int = 1000) -> list[str]:
        found = shielded(self._tenants)
        return [tenant for tenant in sorted(found) if after is None or tenant > after][:limit]

    async def scrub(self, *, whole: bool = True) -> tuple[str, ...]:
        return shielded(self._scrub, whole) if self.writable else ()

    async def close(self) -> None:
        self._homes.clear()

    # --- the folder

    @contextlib.contextmanager
    def holding(self, *, write: bool = False) -> Iterator[Disk]:
        """Hold on to the store's folder; whatever the system objects to is an error of ours.

        Nothing that is written is acknowledged unless the folder is there before and afterwards.
        """
        with self._disk.translated():
            if write and not self.writable:
                raise StoreUnavailable(self.url, "it was opened read-only, and nothing was written")
            self._root.check()
            yield self._disk
            if write:
                self._root.check()

    # --- reading

    def _look(self, asks: Sequence[Ask]) -> list[Seen]:
        paths = {(ask.place.tenant, ask.place.home) for ask in asks}
        at = {address: log_of(self.path, *address) for address in paths}
        with self.holding():
            return self._homes.reading(sorted(at.values()), lambda there: [self._seen(there, at, ask) for ask in asks])

    def _seen(self, there: There, at: dict[tuple[str, str], str], ask: Ask) -> Seen:
        tenant, name, space = ask.place.tenant, ask.place.name, ask.place.space
        found = there.get(at[tenant, ask.place.home])
        if found is None:
            return Seen(None, [[] for _ in ask.rows])
        home, fd = found
        rows = [home.rows(fd, space, name, one) for one in ask.rows]
        return Seen(home.head(space, name) if ask.head else None, rows)

    def _listed(self, tenant: str, meant: Callable[[str], bool]) -> list[Listed]:
        found: list[Listed] = []

        def read(there: There) -> None:
            for home, _ in there.values():
                for (space, name), one in home.heads.items():
                    head = home.head(space, name) if meant(space) else None
                    if head is not None:
                        found.append(Listed(Place(tenant, home.home, space, name), head, one.at))

        with self.holding():
            for path in self._homes.logs(tenant):
                self._homes.reading([path], read)
        return found

    def _due(self, tenant: str, now: int) -> list[Due]:
        """What has expired; what is damaged is told, and keeps nobody from the rest."""
        found: list[Due] = []

        def read(there: There) -> None:
            for home, _ in there.values():
                for (space, name), one in home.heads.items():
                    if one.expires is not None and one.expires <= now:
                        found.append(Due(one.expires, Place(tenant, home.home, space, name)))
                for (space, name, table), rows in home.tables.items():
                    place = Place(tenant, home.home, space, name)
                    found.extend(Due(at, place, table, key) for key, at in rows.due.items() if at <= now)

        with self.holding():
            for path in self._homes.logs(tenant):
                try:
                    self._homes.reading([path], read)
                except StoreCorrupt as fault:
                    if path not in self._told:
                        self._told.add(path)
                        warn("%s", f"{fault}. What has expired in it stays")
        return found

    def _tenants(self) -> set[str]:
        found: set[str] = set()
        with self.holding():
            for folder in names(self.path):
                for name in names(f"{self.path}/{folder}") if os.path.isdir(f"{self.path}/{folder}") else ():
                    if name.endswith(LOG):
                        tenant = self._homes.reading([f"{self.path}/{folder}/{name}"], _tenant)
                        if tenant is not None:
                            found.add(tenant)
                            break
        return found

    # --- writing

    def _write(self, batches: Sequence[Batch], at: int, patience: float | None) -> list[Refusal | None]:
        """Do these batches: all locks first, then all that is written; what cannot be done is taken back."""
        by_home: dict[str, list[int]] = {}
        for i, batch in enumerate(batches):
            place = batch[0].place
            by_home.setdefault(log_of(self.path, place.tenant, place.home), []).append(i)
        done: list[Refusal | None] = [None] * len(batches)
        with self.holding(write=True), contextlib.ExitStack() as stack:
            self._disk.let_pass(by_home)
            writes = []
            for path, which in sorted(by_home.items()):
                self._disk.make_folder(os.path.dirname(path))
                fd = stack.enter_context(
                    self._disk.locked(path, os.O_RDWR | os.O_CREAT, patience=patience, passing=False)
                )
                stack.callback(_leave_nothing, fd, path)
                write = Write(self._disk, self._homes.known(path), fd)
                with write.home.lock:
                    write.home.refresh(fd, sure=True)
                    for i in which:
                        done[i] = write.take(batches[i])
                writes.append(write)
            writes = [write for write in writes if write.lines]
            try:
                with contextlib.ExitStack() as undoing:
                    for write in writes:
                        undoing.enter_context(write.undone())
                        with self._marked(os.path.dirname(write.path), at) as mark:
                            write.put(mark)
                    for write in writes if patience is None else ():
                        write.sync()
            except BaseException:
                for write in writes:
                    self._homes.forget(write.path)
                raise
            for write in writes:
                self._settle(write)
        return done

    def _settle(self, write: Write) -> None:
        """See what a log is like after a write: it goes if nothing is left, and is written anew if much is dead."""
        home = write.home
        with home.lock:
            home.refresh(write.fd, sure=True)
            dead, spoiled = home.is_empty or home.end > 3 * home.live + SLACK, home.spoiled
        if spoiled == DESTROYED:
            self._spoiled.add(write.path)
        if dead:
            with contextlib.suppress(StoreUnavailable, OSError):  # it can be done another time
                self._anew(home, write.fd)

    @contextlib.contextmanager
    def _marked(self, folder: str, at: int) -> Iterator[int]:
        """Give the mark of what is written now. Nobody of the tenant writes under another meanwhile."""
        with self._disk.locked(f"{folder}/{MARKS}", os.O_RDWR | os.O_CREAT, passing=False) as fd:
            last = _mark(os.pread(fd, 20, 0))
            mark = max(at, last)
            yield mark
            if mark != last:
                os.pwrite(fd, b"%020d" % mark, 0)

    def _last_mark(self, tenant: str) -> int:
        try:
            with self.holding(), open(f"{tenant_folder(self.path, tenant)}/{MARKS}", "rb") as file:
                return _mark(file.read())
        except (FileNotFoundError, StoreUnavailable):
            self._root.check()
            return 0

    # --- what is not there any more

    def _scrub(self, whole: bool) -> tuple[str, ...]:
        remains = []
        with self.holding(write=True):
            for path in self._homes.all_logs() if whole else sorted(self._spoiled):
                try:
                    with self._disk.translated():
                        self._scrub_log(path, whole)
                except (StoreCorrupt, StoreUnavailable) as fault:
                    remains.append(f"what was dropped from {path} may still be there: {fault.reason}")
        return tuple(remains)

    def _scrub_log(self, path: str, whole: bool) -> None:
        if whole and path not in self._spoiled and not os.path.exists(path + NEW) and _spoiled(path) == 0:
            return
        with contextlib.suppress(FileNotFoundError), self._disk.locked(path, os.O_RDWR | os.O_CREAT) as fd:
            remove(path + NEW)  # of a writer that was killed
            home = self._homes.known(path)
            with home.lock:
                home.refresh(fd, sure=True)
            if home.spoiled >= (DROPPED if whole else DESTROYED):
                self._anew(home, fd)
            _leave_nothing(fd, path)
        self._spoiled.discard(path)

    def _anew(self, home: Home, fd: int) -> None:
        """Put another file in the log's place, for who has its lock: with what is there, and nothing of what was."""
        with home.lock:
            if home.is_empty:
                remove(home.path)
                self._disk.sync_folder(os.path.dirname(home.path))
            else:
                with self._disk.replacing(home.path) as file:
                    write_anew(home, fd, file)
        self._spoiled.discard(home.path)
        self._homes.forget(home.path)


def _order(place: Place) -> tuple[str, str, str]:
    return place.space, place.name, place.home


def _tenant(there: There) -> str | None:
    """The tenant of a home with a head."""
    return next((home.tenant for home, _ in there.values() if home.heads), None)


def _mark(text: bytes) -> int:
    return int(text) if text.isdigit() else 0


def _spoiled(path: str) -> int | None:
    """What the end of a log says of what it holds; None where that has to be looked for."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - 64, 0))
        return spoiled_in(file.read())
    return None


def _leave_nothing(fd: int, path: str) -> None:
    """Remove a log that nothing was written to, for who has its lock."""
    if os.fstat(fd).st_size == 0:
        remove(path)
