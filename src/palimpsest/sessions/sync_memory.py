"""`Memory`: the synchronous face of `AsyncMemory`. The same verbs and signatures, no logic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from palimpsest.log.change import BY_REQUEST
from palimpsest.log.entry import now_us
from palimpsest.privacy.gate import gate_of
from palimpsest.runtime.events import Handler
from palimpsest.runtime.runner import Inline, drive
from palimpsest.sessions.memory import DEFAULT_TENANT, AsyncMemory, OnConflict, Privacy
from palimpsest.sessions.sync_session import Session, mirrors
from palimpsest.stores import SessionInfo, Store

if TYPE_CHECKING:
    import os
    from pathlib import Path
    from typing import BinaryIO, Unpack

    from palimpsest.sessions.derived import Derived
    from palimpsest.sessions.erased import Erased
    from palimpsest.sessions.erasing.query import Query
    from palimpsest.sessions.erasing.scan import Scanned
    from palimpsest.sessions.importing.files import Progress
    from palimpsest.sessions.importing.importer import ImportReport
    from palimpsest.sessions.options import SessionOptions
    from palimpsest.stores.encrypted import Encryption
    from palimpsest.transfer.sources.limits import Given


@mirrors(AsyncMemory)
class Memory:
    """A store and its sessions: `with Memory.open("sqlite:///agent.db") as memory:`.

    Needs no event loop; safe to share between threads. What goes on beside your code has threads of its own: work in
    the background, and, while a `turn()` is open, one that renews its lease.
    """

    def __init__(self, core: AsyncMemory) -> None:
        self._core = core

    @classmethod
    def open(
        cls,
        where: str | Path,
        *,
        tenant: str = DEFAULT_TENANT,
        clock: Callable[[], int] = now_us,
        encryption: Encryption | None = None,
        privacy: Privacy | None = None,
        **options: Any,
    ) -> Memory:
        """Open a store: `memory://`, `sqlite:///relative.db`, `sqlite:////absolute.db`, or a path to a file.

        `tenant` owns every session of this memory and sees no other tenant's. `clock` returns microseconds
        since 1970. With `encryption` (`Keys`, a mapping of key ids to keys) what is stored is encrypted. `privacy`
        says what may not be kept: a preset ("default", "secrets"), a mapping or a `Policy`, or a `Redactor`, which has
        a key for pseudonyms, too; without it everything is kept as it is. Further options are the store's: on disk
        `synchronous` ("FULL", "NORMAL"), `busy_seconds`, `readonly`, `large_bytes`.
        Raises ConfigError for an address or option that is unknown, StoreError where the store cannot be opened, and
        WrongKey where it is encrypted with other keys.
        """
        core = AsyncMemory(where, Inline(), tenant, clock, encryption, gate_of(privacy), options)
        drive(core.connect())
        return cls(core)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> None:
        drive(self._core.connect())

    @property
    def tenant(self) -> str:
        """Who owns this memory's sessions."""
        return self._core.tenant

    @property
    def store(self) -> Store:
        return self._core.store

    def session(self, session_id: str, **options: Unpack[SessionOptions]) -> Session:
        return Session(self._core.session(session_id, **options))

    def sessions(self, *, after: str = "", limit: int = 1000) -> list[SessionInfo]:
        return drive(self._core.sessions(after=after, limit=limit))

    def info(self, session_id: str) -> SessionInfo:
        return drive(self._core.info(session_id))

    def import_session(
        self, data: Mapping[str, Any], *, session_id: str | None = None, on_conflict: OnConflict = "error"
    ) -> str:
        return drive(self._core.import_session(data, session_id=session_id, on_conflict=on_conflict))

    def import_file(
        self,
        path: str | os.PathLike[str] | BinaryIO,
        *,
        source: str = "auto",
        format: str | None = None,
        session_id: str | None = None,
        key: str | None = None,
        strict: bool = False,
        branches: bool = False,
        progress: Progress | None = None,
        limits: Given = None,
    ) -> ImportReport:
        return drive(
            self._core.import_file(
                path,
                source=source,
                format=format,
                session_id=session_id,
                key=key,
                strict=strict,
                branches=branches,
                progress=progress,
                limits=limits,
            )
        )

    def delete_session(self, session_id: str) -> bool:
        return drive(self._core.delete_session(session_id))

    def forget(
        self,
        *,
        user: str | None = None,
        session: str | None = None,
        tenant: str | None = None,
        matches: str | Query | None = None,
        reason: str = BY_REQUEST,
        dry_run: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> Erased:
        return drive(
            self._core.forget(
                user=user,
                session=session,
                tenant=tenant,
                matches=matches,
                reason=reason,
                dry_run=dry_run,
                progress=progress,
            )
        )

    def derive(self, derived: Derived) -> Callable[[], None]:
        return drive(self._core.derive(derived))

    def derivers(self) -> tuple[str, ...]:
        return drive(self._core.derivers())

    def underive(self, name: str) -> bool:
        return drive(self._core.underive(name))

    def scan(
        self,
        privacy: Privacy | None = None,
        *,
        session: str | None = None,
        apply: bool = False,
        sample: int = 5,
        progress: Callable[[int, int], object] | None = None,
    ) -> Scanned:
        return drive(self._core.scan(privacy, session=session, apply=apply, sample=sample, progress=progress))

    def sweep(self) -> int:
        return drive(self._core.sweep())

    def on(self, event: str, handler: Handler) -> Callable[[], None]:
        return self._core.on(event, handler)

    def close(self) -> None:
        drive(self._core.close())
