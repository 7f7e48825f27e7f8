"""The options of a store on Redis."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from palimpsest.stores.servers import ServerOptions

PREFIX = r"\A[A-Za-z0-9_.:/-]{1,64}\Z"
"""What keys may begin with: nothing that means something in a pattern, or in a cluster."""


class RedisOptions(ServerOptions, frozen=True, kw_only=True):
    """The options of all stores on servers; `prefix`, with which every key begins; and `cluster`.

    With `cluster` the address names any node of a cluster.
    """

    prefix: Annotated[
        str, Meta(pattern=PREFIX, description="1 to 64 letters, digits and characters out of _ . : / -")
    ] = "palimpsest"
    cluster: Annotated[bool, Meta(description="true or false")] = False
