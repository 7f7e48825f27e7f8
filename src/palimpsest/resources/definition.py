"""A declared memory: what a resource says, resolved to a store, a policy and the options of its sessions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from palimpsest.resources.keys import Template, check_key, session_of
from palimpsest.stores.options import discreet_address

Origin: TypeAlias = Literal["given", "document default", "our default"]
"""Who says a value: the resource, the document that its keys are from, or Palimpsest."""


CLEAR_LEASE = "10s"


def plain(value: Any) -> Any:
    """What is said in JSON's types; what these have no form for as a text."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


class Setting(NamedTuple):
    """One resolved value: the `option` of Palimpsest, its `value`, its `origin`, and the `key` that it comes from."""

    option: str
    value: Any
    origin: Origin
    key: str = ""


class StorePlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a memory is kept: the `backend`, its `address` (None: what the environment variable `variable` says), what
    may not be kept there, and how long the leases of who works there last."""

    backend: str
    address: str | None = None
    variable: str | None = None
    privacy: Any = None
    circuit_breaker: Any = None
    keys_env: str | None = None
    turn_lease: str = "30s"
    compaction_lease: str = "5m"

    def __repr__(self) -> str:
        shown = f"${{{self.variable}}}" if self.address is None else discreet_address(self.address)
        return f"<StorePlace {self.backend} {shown}>"


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """A memory that is declared in a file or a mapping. Made by `Resources.load`.

    `id` is its name in its `project`. `options` are those of its sessions, `place` says where they are kept, `template`
    which key a reference without one has. `digest` is the same for two definitions that say the same. `warnings` are
    what a reader should know: what has no effect here, or not the one that may be expected. `file` is where it stands.
    `clear_lease` is how long who clears or deletes by key holds up the next one if he is killed. `limits`, in fields of
    `Limits`, says how large what is written by key at once may be. `long_term_share` is the share of the room that
    summaries and what is recalled have together (None: it is not said).
    """

    id: str
    project: str = "default"
    description: str = ""
    version: str | None = None
    place: StorePlace
    options: Mapping[str, Any]
    template: Template | None = None
    settings: tuple[Setting, ...] = ()
    warnings: tuple[str, ...] = ()
    digest: str = ""
    file: str | None = None
    clear_lease: str = CLEAR_LEASE
    limits: Mapping[str, int] = {}
    long_term_share: float | None = None

    def effective(self) -> tuple[Setting, ...]:
        """Return every resolved value with its origin."""
        return self.settings

    def session_id(self, key: str) -> str:
        """The id of the session of a key. Raises ConfigError for what is no key.

        Args:
            key: 1 to 256 of A-Z a-z 0-9 _ : - @ . and neither "__" at the beginning nor at the end.
        """
        return session_of(self.project, self.id, check_key(key))
