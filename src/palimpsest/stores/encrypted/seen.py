"""A head as it is stored and as it is: what is below it is held against that."""

from __future__ import annotations

import msgspec

from palimpsest.log.head import Head, Seal
from palimpsest.stores.encrypted.forms import Lineage
from palimpsest.stores.encrypted.ledger import Ledger


class Seen(msgspec.Struct, frozen=True):
    """A head as it is stored and as it is, with what it says of the rows below it."""

    stored: Head
    plain: Head
    seal: Seal
    ledger: Ledger
    lineage: Lineage
