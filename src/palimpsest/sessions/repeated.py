"""Recognises withheld entries in a list of messages that a program gives back. Pure.

A message does not say that it was withheld. Formats also change what it looks like: they merge neighbours, write
content in parts, shorten it, cut off spaces, and show what has no role or form of theirs between tags.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import msgspec

from palimpsest.formats.common import is_fitted
from palimpsest.formats.fences import guard
from palimpsest.formats.wording import stand_in
from palimpsest.log.entry import Audio, Entry, File, Image, Opaque, Part, Reasoning, Text
from palimpsest.log.replacing import says_the_same


def repeated(entry: Entry, withheld: Iterable[Entry]) -> Entry | None:
    """Return the first of the withheld entries that the entry repeats, alone or among other things; None if none."""
    return next((own for own in withheld if _repeats(entry, own)), None)


def _repeats(entry: Entry, own: Entry) -> bool:
    if entry.kind == own.kind == "tool_call":
        same_id = own.call_id is not None and entry.call_id == own.call_id
        return same_id or (is_fitted(entry.name or "", own.name or "") and _same_arguments(entry, own))
    if says_the_same(_bare(own), _bare(entry)):
        return True
    if "tool_call" in (entry.kind, own.kind):
        return False
    if not _media(own).isdisjoint(_media(entry)):
        return True
    given_texts = [f"\n{text}\n" for text in _texts(entry)]
    return any(f"\n{text}\n" in given for text in _texts(own) if text for given in given_texts)


def _bare(entry: Entry) -> Entry:
    """Return the entry without what a format keeps of the message that it came as."""
    return msgspec.structs.replace(entry, native=None)


def _same_arguments(entry: Entry, own: Entry) -> bool:
    """Return whether two calls have the same arguments, or a format has put those of `own` into an object."""
    return _arguments(entry) in (_arguments(own), {"input": _arguments(own)})


def _arguments(call: Entry) -> object:
    """Return the arguments of a call as data, since formats write the same JSON in different ways."""
    try:
        return json.loads(call.text)
    except ValueError:
        return call.text


def _texts(entry: Entry) -> list[str]:
    """Return the texts of an entry as formats write them, so that they can be found between tags.

    Spaces around lines are left out: formats cut some of them off.
    """
    content = entry.content
    texts = [content] if isinstance(content, str) else [text for part in content for text in _texts_of(part)]
    return ["\n".join(map(str.strip, guard(text).splitlines())).strip("\n") for text in texts]


def _texts_of(part: Part) -> Iterator[str]:
    """Yield the text of a part, or what stands for it where a format has no counterpart and that tells of it."""
    if isinstance(part, Text | Reasoning):
        yield part.text
    elif isinstance(part, Opaque) or (isinstance(part, File) and (part.filename or part.file_id)):
        yield stand_in(part)


def _media(entry: Entry) -> set[str]:
    """Return the pictures, sound, documents and items of a provider in an entry, in the form that formats share."""
    media = set[str | None]()
    for part in entry.content if not isinstance(entry.content, str) else ():
        if isinstance(part, Image):
            media.add(_payload(part.source))
        elif isinstance(part, Audio):
            media.add(_payload(part.data))
        elif isinstance(part, File):
            media |= {part.file_id, part.data and _payload(part.data)}
        elif isinstance(part, Opaque):
            media.add(json.dumps(part.item, sort_keys=True, default=repr))
    return {medium for medium in media if medium}


def _payload(address: str) -> str:
    """Return the base64 of a `data:` address; of any other the address itself."""
    return address.partition(",")[2] if address.startswith("data:") else address
