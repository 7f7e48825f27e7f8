"""The records of knowledge bases, and the names under which they are stored. Pure.

A shelf holds the documents of one collection that belong to one user (`user`), to everybody (`shared`: documents that
were added without a user), or to sessions without a user (`nobody`: their summaries). It is a tenant of its own, whose
name no user's tenant can have. Each version of a document is a session of that tenant, with the chunks as entries. A
record (an item) says which version is current. The summaries of a session are one document, whose id is the session's.
Links (items by session) say which shelves have the summaries of a session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from palimpsest.compaction.knowledge import TextSplitter
from palimpsest.log.codec import ready
from palimpsest.log.entry import Entry, moment
from palimpsest.log.ids import derived_ids
from palimpsest.log.lazy_imports import sha256
from palimpsest.log.spans import Span
from palimpsest.log.summary import Summary

if TYPE_CHECKING:
    from palimpsest.recall.splitter import Chunk

OWNER = "\x01knowledge"
"""The beginning of the names of tenants that keep knowledge bases."""
DOCUMENTS, SHELVES, LINKS = "documents", "shelves", "links/"
"""Namespaces of items: the records of a shelf; the shelves of a tenant; the links of each session (its id follows)."""

Owned: TypeAlias = Literal["user", "shared", "nobody"]
Kind: TypeAlias = Literal["document", "summary"]


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """Identifies a shelf: the collection, and whether a `user`, everybody or nobody owns it."""

    collection: str
    owned: Owned
    user: str | None = None

    @classmethod
    def of(cls, collection: str, user: str | None, kind: Kind) -> Place:
        """Return the shelf that documents of this kind go to."""
        if user is not None:
            return cls(collection, "user", user)
        return cls(collection, "shared" if kind == "document" else "nobody")

    @property
    def key(self) -> str:
        """The key of the shelf, a hash."""
        return _digest(self.collection, self.owned, self.user or "")


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A document: its current `version`, the number of its `chunks`, when it was added (`at`, microseconds), and more.

    For the summaries of a session, `created` is the creation time of that session, `epoch` its epoch when they were
    read, and `covers` the entries that they cover. In a later epoch the record is valid if the session still has the
    same summaries. `embedder` is the name of the embedder that made the vectors of the chunks.
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
        """The document's key on its shelf."""
        return document_key(self.kind, self.id)

    @property
    def session(self) -> str:
        """The session that has the chunks of this version."""
        return f"{self.key}.{self.version}"


class Link(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Says that the summaries of a session go to a shelf, with this splitter and encoding ("": not a known one)."""

    place: Place
    splitter: TextSplitter
    counter: str = ""


ready(Place, Record, Link)


class KnowledgeDocument(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """A document of a knowledge base: its `id` in the `collection`, the number of its `chunks`, and when this version
    was added (`at`, microseconds since 1970, UTC).

    `title` and `metadata` are those that it was added with. `session` is the session whose summaries it is made of;
    None for a document that was added. `user` is the owner; None: everybody's.
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
        """Make the public view of a record.

        Args:
            place: the shelf.
            record: the document's record.
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
        """When this version was added, UTC."""
        return moment(self.at)


class KnowledgeHit(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """A chunk that answers: its `text`, with a `score` from 0 to 1, from a `document` (its id) of a `collection`.

    It is number `part` (from 1) of the `of` parts of the document. `session` is the session whose summary it is from;
    None for a document that was added. `id` is the chunk's own; `title` and `metadata` are the document's.
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
        """The chunk below a line that says where it is from."""
        source = f"summary of session {self.session}" if self.session is not None else self.title or self.document
        return f"[{self.collection}: {source}, part {self.part} of {self.of}]\n{self.text}"


def tenant_of(tenant: str, place: Place | None = None) -> str:
    """Return the tenant that stores a shelf of `tenant`; without a place, the one for links and the list of shelves."""
    return f"{OWNER}\x01{tenant}" if place is None else f"{OWNER}\x01{tenant}\x01{place.key}"


def places_of(collection: str, user: str | None) -> list[Place]:
    """Return the shelves of a collection that a user may search: the user's own (None: nobody's) and the shared one."""
    own = Place(collection, "nobody") if user is None else Place(collection, "user", user)
    return [own, Place(collection, "shared")]


def document_key(kind: Kind, id: str) -> str:
    """Return the key of a document on its shelf."""
    return _digest(kind, id)


def version_of(parts: Sequence[object]) -> str:
    """Return a version that differs if any of these parts differs."""
    return _digest(msgspec.json.encode(parts, order="sorted").decode())


def chunk_entries(
    record: Record, chunks: Sequence[Chunk], vectors: Sequence[Sequence[int]] | None, *, start_index: bool
) -> list[Entry]:
    """Return the entries of a document's chunks. The same chunks give the same ids, so a second append adds nothing."""
    entries = list[Entry]()
    for number, (chunk, id) in enumerate(zip(chunks, derived_ids(record.session, len(chunks)), strict=True)):
        metadata: dict[str, Any] = {"document": record.id, "part": number + 1, "of": len(chunks)}
        if start_index:
            metadata["start_index"] = chunk.start
        if vectors is not None:
            metadata["vector"] = list(vectors[number])
        entries.append(chunk_entry(id=id, content=chunk.text, metadata=metadata))
    return entries


def chunk_entry(**fields: Any) -> Entry:
    """Return an entry as chunks are: a context."""
    return Entry(kind="context", role="user", **fields)


def summary_version(summaries: Sequence[Summary], splitter: TextSplitter, embedder: str) -> str:
    """Return the version of a document made of these summaries."""
    texts = [[summary.id, summary.text] for summary in summaries]
    return version_of([texts, msgspec.to_builtins(splitter), embedder])


def hit_of(place: Place, record: Record, entry: Entry, score: float) -> KnowledgeHit:
    """Return a chunk as a search returns it."""
    chunk: Mapping[str, Any] = entry.metadata or {}
    own = {"start_index": chunk["start_index"]} if "start_index" in chunk else {}
    return KnowledgeHit(
        id=entry.id,
        collection=place.collection,
        document=record.id,
        text=entry.text,
        score=round(min(max(score, 0.0), 1.0), 6),
        part=chunk.get("part", 1),
        of=chunk.get("of", 1),
        title=record.title,
        session=record.id if record.kind == "summary" else None,
        metadata={**record.metadata, **own},
    )


def _digest(*parts: str) -> str:
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return sha256(f"palimpsest:knowledge:{text}".encode("utf-8", "surrogatepass")).hex()[:32]
