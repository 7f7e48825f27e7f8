"""The options of a store on PostgreSQL."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from palimpsest.stores.servers import ServerOptions

NAME = r"\A[a-z_][a-z0-9_]{0,62}\Z"
"""Names of schemas that need no quotes, and are no longer than PostgreSQL keeps them."""


class PostgresOptions(ServerOptions, frozen=True, kw_only=True):
    """The options of all stores on servers, and `schema_name`, in which the tables are."""

    schema_name: Annotated[
        str, Meta(pattern=NAME, description="a name of 1 to 63 lower-case letters, digits and _, no digit first")
    ] = "palimpsest"
