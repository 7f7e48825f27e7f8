"""`Resource`: a declared memory, resolved to a place, a policy and the options of its sessions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from palimpsest.resources.keys import Template, check_key, session_of
from palimpsest.stores.options import discreet_address

Origin: TypeAlias = Literal["given", "document default", "our default"]
"""Where a value comes from: the resource itself, the default of the document that defines the key, or Palimpsest's own.
"""


CLEAR_LEASE = "10s"


def plain(value: Any) -> Any:
    """Return a value in JSON's types; what has no form in these becomes a text."""
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
    """Where a memory is kept: the `backend` and its `address` (None: the environment variable `variable` holds it), the
    policy of what may not be kept (`privacy`), and how long the leases of turns and compactions last."""

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

    `id` is its name in its `project`. `options` are those of its sessions, `place` is where they are kept, and
    `template` makes the key for a reference without one. `digest` is equal for definitions that say the same.
    `warnings` name settings that have no effect here, or not the expected one. `file` is the file that declares it.
    `clear_lease` is how long a killed caller of `clear` or `delete` holds up the next one. `limits`, in fields of
    `Limits`, bounds what one call may write by key. `long_term_share` is the share of the budget that summaries and
    recalled text have together (None: not given).
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
        """Return the id of the session of a key. Raises ConfigError for an invalid key.

        Args:
            key: 1 to 256 of A-Z a-z 0-9 _ : - @ . and neither "__" at the beginning nor at the end.
        """
        return session_of(self.project, self.id, check_key(key))
