"""What is known of the documents of knowledge bases, and by which names they are stored. Pure.

A shelf is a tenant of its own, which no user's can be called: a collection, of one user (`user`), of everybody
(`shared`: documents that somebody added), or of sessions that are nobody's (`nobody`). A document is a session of it
for each of its versions, whose entries are its chunks, and a record, an item, that says which version holds. A summary
is a document by the id of its session. Links, items by session, say which shelves have one of its summaries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from palimpsest.compaction.knowledge import TextSplitter
from palimpsest.log.codec import ready
from palimpsest.log.entry import Entry, derived_ids, moment
from palimpsest.log.late import sha256
from palimpsest.log.spans import Span
from palimpsest.log.summary import Summary

if TYPE_CHECKING:
    from palimpsest.recall.splitter import Chunk

OWNER = "\x01knowledge"
"""What tenants of knowledge bases begin with."""
DOCUMENTS, SHELVES, LINKS = "documents", "shelves", "links/"
"""Namespaces of items: a shelf's records; of a tenant, its shelves, and the links of each session."""

Owned: TypeAlias = Literal["user", "shared", "nobody"]
Kind: TypeAlias = Literal["document", "summary"]


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which shelf it is: of a collection, `owned` by a user or not."""

    collection: str
    owned: Owned
    user: str | None = None

    @classmethod
    def of(cls, collection: str, user: str | None, kind: Kind) -> Place:
        """The shelf that something of this kind goes to."""
        if user is not None:
            return cls(collection, "user", user)
        return cls(collection, "shared" if kind == "document" else "nobody")

    @property
    def key(self) -> str:
        """What it is known by."""
        return _digest(self.collection, self.owned, self.user or "")


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A document: its `version`, whose `chunks` are stored, when it came (`at`, microseconds), and what is said of it.

    That of a summary is true as long as its session, which began at `created`, is at `epoch`, or says the same then;
    `covers` is what it tells of. `embedder` names what made the vectors of its chunks.
    """

    id: str
    kind: Kind
    version: str
    chunks: int
    at: int
    title: str | None = None
    metadata: dict[str, Any] = {}
    embedder: str = ""
    epoch: int = 0
    created: int = 0
    covers: tuple[Span, ...] = ()

    @property
    def key(self) -> str:
        """What it is known by on its shelf."""
        return document_key(self.kind, self.id)

    @property
    def session(self) -> str:
        """The session of its chunks."""
        return f"{self.key}.{self.version}"


class Link(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """That the summaries of a session go to a shelf, split so, counted by this encoding."""

    place: Place
    splitter: TextSplitter
    counter: str = ""


ready(Place, Record, Link)


class KnowledgeDocument(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """A document of a knowledge base: its `id` in the `collection`, how many `chunks` it has, and when this version of
    it came (`at`, microseconds since 1970, UTC).

    `title` is what it is called, `metadata` what else was said of it. `session` is the one whose summary it is; None:
    somebody added it. `user` is whose it is; None: everybody's.
    """

    id: str
    collection: str
    chunks: int
    at: int
    title: str | None = None
    metadata: dict[str, Any] = {}
    session: str | None = None
    user: str | None = None

    @classmethod
    def of(cls, place: Place, record: Record) -> KnowledgeDocument:
        """The document of a record.

        Args:
            place: its shelf.
            record: what is known of it.
        """
        return cls(
            id=record.id,
            collection=place.collection,
            chunks=record.chunks,
            at=record.at,
            title=record.title,
            metadata=record.metadata,
            session=record.id if record.kind == "summary" else None,
            user=place.user,
        )

    @property
    def created_at(self) -> datetime:
        """When this version of it came, UTC."""
        return moment(self.at)


class KnowledgeHit(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """A chunk that answers: its `text`, with a `score` from 0 to 1, from a `document` (its id) of a `collection`.

    It is `part` (from 1) `of` so many. `session` is the one whose summary it is from; None: a document that was added.
    `id` is the chunk's own, `title` what the document is called, `metadata` what else was said of it.
    """

    id: str
    collection: str
    document: str
    text: str
    score: float
    part: int
    of: int
    title: str | None = None
    session: str | None = None
    metadata: dict[str, Any] = {}

    @property
    def shown(self) -> str:
        """The chunk with a line that says where it is from."""
        what = f"summary of session {self.session}" if self.session is not None else self.title or self.document
        return f"[{self.collection}: {what}, part {self.part} of {self.of}]\n{self.text}"


def tenant_of(tenant: str, place: Place | None = None) -> str:
    """The tenant of a shelf of this tenant's; without one, that of its links and of the list of its shelves."""
    return f"{OWNER}\x01{tenant}" if place is None else f"{OWNER}\x01{tenant}\x01{place.key}"


def places_of(collection: str, user: str | None) -> list[Place]:
    """The shelves on which somebody may find something: one's own, and what is everybody's."""
    own = Place(collection, "nobody") if user is None else Place(collection, "user", user)
    return [own, Place(collection, "shared")]


def document_key(kind: Kind, id: str) -> str:
    """What a document is known by on its shelf."""
    return _digest(kind, id)


def version_of(parts: Sequence[object]) -> str:
    """A version, which is another one where any of these is."""
    return _digest(msgspec.json.encode(parts, order="sorted").decode())


def chunk_entries(
    record: Record, chunks: Sequence[Chunk], vectors: Sequence[Sequence[int]] | None, *, start_index: bool
) -> list[Entry]:
    """The entries of a document's chunks: the same of the same, so that writing them again adds nothing."""
    made = list[Entry]()
    for number, (chunk, id) in enumerate(zip(chunks, derived_ids(record.session, len(chunks)), strict=True)):
        said: dict[str, Any] = {"document": record.id, "part": number + 1, "of": len(chunks)}
        if start_index:
            said["start_index"] = chunk.start
        if vectors is not None:
            said["vector"] = list(vectors[number])
        made.append(Entry(id=id, kind="context", role="user", content=chunk.text, metadata=said))
    return made


def summary_version(summaries: Sequence[Summary], splitter: TextSplitter, embedder: str) -> str:
    """The version of a document that is made of these summaries."""
    return version_of([[[one.id, one.text] for one in summaries], msgspec.to_builtins(splitter), embedder])


def hit_of(place: Place, record: Record, entry: Entry, score: float) -> KnowledgeHit:
    """A chunk as a search returns it."""
    said: Mapping[str, Any] = entry.metadata or {}
    own = {"start_index": said["start_index"]} if "start_index" in said else {}
    return KnowledgeHit(
        id=entry.id,
        collection=place.collection,
        document=record.id,
        text=entry.text,
        score=round(min(max(score, 0.0), 1.0), 6),
        part=said.get("part", 1),
        of=said.get("of", 1),
        title=record.title,
        session=record.id if record.kind == "summary" else None,
        metadata={**record.metadata, **own},
    )


def _digest(*parts: str) -> str:
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return sha256(f"palimpsest:knowledge:{text}".encode("utf-8", "surrogatepass")).hex()[:32]
