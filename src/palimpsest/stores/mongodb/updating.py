"""A batch in one update of one document, as most are; and the operations that make documents so."""

from __future__ import annotations

import os
from collections.abc import Mapping

from bson import Binary
from pymongo import DeleteOne, ReplaceOne, UpdateOne

from palimpsest.stores.backend import Batch, Step
from palimpsest.stores.mongodb.layout import HEAD_INLINE, SUM, Cell, Doc, claim, head_key, home_of, id_sum, table_sum

TAIL = 56 * 1024
"""Bytes of a tail from which on its rows are moved on to buckets."""

FEW = 64
"""Rows, and..."""
SMALL = 32 * 1024
"""...bytes of rows, that are put to a tail at once."""


class Update:
    """What does a batch in one update of one head, if that is as expected and has the tails of these rows."""

    def __init__(self, head: Step, cells: list[bytes], claims: list[Binary], ids: list[Binary]) -> None:
        self.step, self.number = head, Binary(os.urandom(8))
        self.home, self.key = home_of(head.place.tenant, head.place.home), Binary(head_key(head.place))
        self.where: Doc = {"home": self.home, "k": self.key, "hot": Binary(head.expect or b"")}
        assigned: Doc = {"by": self.number}
        self.change: Doc = {"$set": assigned}
        if cells:
            self.where |= {"own": {"$all": claims} if len(claims) > 1 else claims[0], "size": {"$lt": TAIL}}
            self.change["$push"] = {"tail": {"$each": [Binary(cell) for cell in cells]}}
            self.change["$inc"] = {"size": sum(map(len, cells))}
            due = [at for cell in cells if (at := Cell.expires(cell[SUM:])) is not None]
            if due:
                self.change["$min"] = {"due": min(due)}
            if ids:
                self.change["$push"]["i"] = {"$each": ids}
        if head.moves:
            assigned["hot"] = Binary(head.hot or b"")
            self.change["$currentDate"] = {"mark": {"$type": "timestamp"}}
            if head.expires is not None:
                assigned["exp"] = head.expires
            else:
                self.change["$unset"] = {"exp": ""}
            if head.cold is not None:
                self.where["coldv"] = None  # whose pieces have to go
                assigned["cold"] = Binary(head.cold)


def update_of(batch: Batch) -> Update | None:
    """What does a batch in one update; None for one that takes more."""
    head: Step | None = None
    cells, claims, ids, size = list[bytes](), dict[Binary, None](), list[Binary](), 0
    for step in batch:
        if not step.rows_only:
            if head is not None or step.expect is None or step.hot is None:
                return None
            head = step
        if step.drop:
            return None
        for name, rows in step.put:
            table = table_sum(step.place, name)
            for row in rows:
                size += len(row[1])
                if size > SMALL or len(cells) == FEW:
                    return None
                cells.append(table + Cell.made(row))
                claims[claim(table, row[0] >> 32)] = None
                if row[2]:
                    ids.append(id_sum(table, row[2]))
    if head is None or len(head.hot or b"") > HEAD_INLINE or len(head.cold or b"") > HEAD_INLINE:
        return None
    return Update(head, cells, list(claims), ids) if cells or head.moves else None


# --- of a transaction

OPTIONAL = ("hot", "hotv", "cold", "coldv", "exp", "by", "i", "due")
"""What the document of a head may be without."""


def operations(home: Binary, changed: Mapping[bytes, Doc | None]) -> list[ReplaceOne[Doc] | UpdateOne | DeleteOne]:
    """What makes documents of a home so, by their keys; those that are None go."""
    found: list[ReplaceOne[Doc] | UpdateOne | DeleteOne] = []
    for key, doc in changed.items():
        where = {"home": home, "k": Binary(key)}
        if doc is None:
            found.append(DeleteOne(where))
        elif key[:1] == b"h":
            found.append(UpdateOne(where, _change_of(doc), upsert=True))
        else:
            found.append(ReplaceOne(where, doc, upsert=True))
    return found


def _change_of(doc: Doc) -> Doc:
    """The update that makes a head so, with a mark of the server's if it has moved."""
    assigned = {name: value for name, value in doc.items() if name not in {"home", "k", "mark", "moved"}}
    change: Doc = {"$set": assigned, "$unset": {name: "" for name in OPTIONAL if name not in doc}}
    return change | {"$currentDate": {"mark": {"$type": "timestamp"}}} if doc.get("moved") else change
