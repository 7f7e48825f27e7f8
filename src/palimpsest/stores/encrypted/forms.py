"""What of entries, heads and items is sealed, and how it stands in the store below. Pure.

    entry    the whole of it is its `content`; id, place, kind, role, status and links stay beside it, and are compared
             when it is opened. The head's tokens stand for its name and call id while it is linked
    head     `calls` and `contexts` have tokens for names and call ids; digests of contexts, or a mark for each that
             the store below has made; `pseudonyms` whole, as the name of one; conditions of cuts; the line of a branch
    record   `detail`, the reason of an erasure, conditions of a cut, the words of a summary

A branch shares what its ancestors have sealed. Which of them that was follows from the place: its head keeps, sealed,
the line of its ancestors, behind the name of the one that it branched off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

import msgspec

from palimpsest.log.codec import decoded, encoded
from palimpsest.log.entry import Entry, Reasoning, pack, unpack
from palimpsest.log.head import Cut, Head, OpenCall, Seal
from palimpsest.stores.encrypted.sealing import Box, Unsealed, sealed_under

Translate = Callable[[str, str], str]
"""From a place and a sealed text to what comes in its place."""

_replace = msgspec.structs.replace

# --- names


class Names:
    """Tokens for names and call ids: of one text there is one, so that what belongs together is found together.

    The tokens that a head has already are used again: a result finds its call, a context its earlier version.
    """

    def __init__(self, box: Box, known: Iterable[tuple[str, str]] = ()) -> None:
        self._box = box
        self._tokens: dict[str, str] = {}
        for token, name in known:
            self._tokens.setdefault(name, token)

    def on(self, given: Entry, sealed: Entry) -> Entry:
        """The sealed entry with tokens in the places of names that were given: by these it is linked below."""
        if given.name is None and given.call_id is None:
            return sealed
        return _replace(sealed, name=self.token(given.name), call_id=self.token(given.call_id))

    def token(self, name: str | None) -> str | None:
        """The token of a name, if there is one."""
        return None if name is None else self.of(name)

    def of(self, name: str) -> str:
        """The token of a name."""
        found = self._tokens.get(name)
        if found is None:
            found = self._tokens[name] = self._box.seal("name", to_bytes(name))
        return found


def known_names(sealed: Head, plain: Head) -> Iterator[tuple[str, str]]:
    """The tokens of a head, each with what it stands for."""
    by_seq = {call.seq: call for call in plain.calls}
    for call in sealed.calls:
        told = by_seq[call.seq]
        for token, name in ((call.call_id, told.call_id), (call.name, told.name)):
            if token is not None and name is not None:
                yield token, name
    places = {seq: name for name, (seq, _) in plain.contexts.items()}
    for token, (seq, _) in sealed.contexts.items():
        if seq in places:
            yield token, places[seq]


# --- entries


def seal_entry(entry: Entry, box: Box, log: str, token: str = "", nonce: bytes = b"") -> Entry:
    """The entry, which has its place and links and is no tombstone, as it is stored in the log of this mark.

    `token` is that of the step that writes it anew.
    """
    text = box.seal(_place(entry, log, token), pack(entry), nonce)
    content = (Reasoning(text=text),) if entry.is_reasoning else text
    return Entry(id=entry.id, seq=entry.seq, content=content, **dict(zip(CLEAR, clear_fields(entry), strict=True)))


def open_entry(stored: Entry, box: Box, log: str, token: str = "") -> Entry:
    """The entry that was stored, which is no tombstone. Raises Unsealed where something of it was changed."""
    entry = sealed_entry(stored, box, log, token)
    if clear_fields(entry) != clear_fields(stored):
        raise Unsealed("is not as it was sealed: what stands in clear beside it was changed")
    return entry


def sealed_entry(stored: Entry, box: Box, log: str, token: str = "") -> Entry:
    """The entry that was sealed, whatever stands beside it. Raises Unsealed."""
    body = box.open(_place(stored, log, token), _text(stored))
    try:
        return unpack(body, stored.id, stored.seq, stored.tokens)
    except ValueError as fault:
        raise Unsealed(f"cannot be read ({fault})") from None


def keys_of(stored: Entry) -> set[str | None]:
    """The ids of the keys that the stored entry, and the tokens that it was linked by, are under."""
    return {sealed_under(text) for text in (_text(stored), stored.name, stored.call_id) if text is not None}


CLEAR = (
    *("kind", "role", "status", "importance", "pinned", "expires_at", "at"),
    *("turn", "group", "answers", "late", "continues", "pauses", "revision", "erased"),
)
"""What of an entry stands beside its ciphertext, with id and seq: stores below go by it."""

clear_fields = attrgetter(*CLEAR)
"""What of an entry stands in clear beside its id and seq."""


def _place(entry: Entry, log: str, token: str) -> str:
    return f"entry {log} {entry.seq} {token} {entry.id}"


def _text(stored: Entry) -> str:
    content = stored.content
    if isinstance(content, str):
        return content
    return content[0].text if len(content) == 1 and isinstance(content[0], Reasoning) else ""


# --- heads

Lineage = tuple[tuple[str, int, int, str], ...]
"""The sessions that a branch shares, oldest first.

Each with the seq before which, the revision up to which, and the mark of its log.
"""


def owner(lineage: Lineage, session: str, *, seq: int = 0, revision: int = 0) -> str:
    """The session that has sealed what stands at this place of a branch, or in the record of this revision."""
    for ancestor, next_seq, last, _ in lineage:
        if (seq and seq < next_seq) or (revision and revision <= last):
            return ancestor
    return session


def log_of(lineage: Lineage, log: str, *, seq: int = 0, revision: int = 0) -> str:
    """The mark of the log that what stands at this place, or in the record of this revision, was written into."""
    for _, next_seq, last, mark in lineage:
        if (seq and seq < next_seq) or (revision and revision <= last):
            return mark
    return log


def shared(lineage: Lineage, session: str, log: str, head: Head) -> Lineage:
    """The line of a branch that begins with this head, off a session of that line, whose log has this mark."""
    parts = [(name, min(seq, head.next_seq), min(last, head.revision), mark) for name, seq, last, mark in lineage]
    return (*parts, (session, head.next_seq, head.revision, log))


def seal_head(head: Head, box: Box, lineage: Lineage = (), seal: Seal | None = None) -> Head:
    """A whole head as it is stored, with this seal, and as it will be read again."""
    names = Names(box)
    forked = head.forked_from
    if lineage:
        parent, revision = forked or ("", 0)
        forked = (f"{parent}\n{box.seal('lineage', encoded(lineage))}", revision)
    sealed = _replace(
        head,
        seal=seal,
        mac="",
        calls=tuple(OpenCall(c.seq, names.token(c.call_id), names.token(c.name), c.group) for c in head.calls),
        contexts={
            names.of(name): (seq, box.seal(f"digest {seq}", to_bytes(digest)))
            for name, (seq, digest) in head.contexts.items()
        },
        pseudonyms=seal_pseudonyms(head.pseudonyms, box),
        views=_views(head, lambda cut: seal_cut(cut, box)),
        forked_from=forked,
    )
    return decoded(encoded(sealed), Head)


def open_head(stored: Head, open_text: Translate, digests: dict[int, str]) -> Head:
    """The head that was stored; `digests` are those of contexts that it has marks of: one without is left out."""
    if not (stored.calls or stored.contexts or stored.pseudonyms or stored.forked_from or _has_conditions(stored)):
        return _replace(stored, seal=None, mac="")
    calls = [OpenCall(c.seq, _opened(open_text, c.call_id), _opened(open_text, c.name), c.group) for c in stored.calls]
    contexts = {}
    for token, (seq, mark) in stored.contexts.items():
        digest = digests.get(seq) if is_mark(mark) else open_text(f"digest {seq}", mark)
        if digest is not None:
            contexts[open_text("name", token)] = (seq, digest)
    return _replace(
        stored,
        seal=None,
        mac="",
        calls=tuple(calls),
        contexts=contexts,
        pseudonyms=_open_pseudonyms(stored.pseudonyms, open_text),
        views=_views(stored, lambda cut: conditions(cut, open_text)),
        forked_from=parent_of(stored.forked_from),
    )


def parent_of(forked: tuple[str, int] | None) -> tuple[str, int] | None:
    """The session that a branch was made of, and its revision then, as its maker gave them."""
    if forked is None:
        return None
    parent, line = _parted(forked)
    return (parent, forked[1]) if parent or not line else None


def lineage_of(stored: Head, open_text: Translate) -> Lineage:
    """The line of a branch; empty for a session that is none."""
    if stored.forked_from is None or not (line := _parted(stored.forked_from)[1]):
        return ()
    return decoded(to_bytes(open_text("lineage", line)), Lineage)


def _parted(forked: tuple[str, int]) -> tuple[str, str]:
    """The name of the session that a branch was made of, and the sealed line behind it, if there is one."""
    name, _, line = forked[0].rpartition("\n")
    return (name, line) if sealed_under(line) is not None else (forked[0], "")


def is_mark(digest: str) -> bool:
    """Whether a stored head has this for a context whose digest nobody has sealed: it was appended."""
    return sealed_under(digest) is None


def seal_pseudonyms(numbers: dict[str, int], box: Box) -> dict[str, int]:
    """The pseudonyms that were given out, as a head or a change has them below."""
    return {box.seal("pseudonyms", encoded(numbers)): 0} if numbers else {}


def _open_pseudonyms(stored: dict[str, int], open_text: Translate) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for sealed in stored:
        numbers |= decoded(to_bytes(open_text("pseudonyms", sealed)), dict[str, int])
    return numbers


def _has_conditions(head: Head) -> bool:
    return any(cut.conditions for cut in head.views.values())


def _views(head: Head, change: Callable[[Cut], Cut]) -> dict[str, Cut]:
    return {view: change(cut) for view, cut in head.views.items()} if _has_conditions(head) else head.views


def _opened(translate: Translate, token: str | None) -> str | None:
    return None if token is None else translate("name", token)


def seal_cut(cut: Cut, box: Box) -> Cut:
    """The cut with its conditions sealed."""
    return conditions(cut, lambda place, text: box.seal(place, to_bytes(text)))


def conditions(cut: Cut, translate: Translate) -> Cut:
    """The cut with its conditions translated."""
    if not cut.conditions:
        return cut
    return _replace(cut, conditions=tuple(translate("condition", text) for text in cut.conditions))


def to_bytes(text: str) -> bytes:
    """The text as UTF-8, also where it holds lone surrogates."""
    return text.encode("utf-8", "surrogatepass")
