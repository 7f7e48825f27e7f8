"""What is noted of a session beside its head: whose it is, and when it is over.

For a session that has a user there is a place in its home, in a space that the user's id is part of, and for one that
does not last for ever one that expires when it does. They are made, moved and dropped in the step that does so to the
head: so the two never differ, and nobody reads all sessions of a tenant to find those of one user, or those that are
over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from palimpsest.errors import WrongUser
from palimpsest.log.codec import encode
from palimpsest.log.head import About, Head, SessionKey
from palimpsest.stores.backend import Place, Step

if TYPE_CHECKING:
    from palimpsest.stores.engine.heads import Known

OWNED = "user/"
"""How the spaces begin that say which sessions are a user's."""

ENDS = "ends"
"""The space that says when sessions are over."""


def met(key: SessionKey, head: Head, about: About | None) -> Head:
    """The head of a session that somebody adds to who takes it for this one.

    One that nothing was added to yet, and of which nothing was said, becomes so. Raises WrongUser where it is another
    user's, or nobody's.
    """
    if about is None:
        return head
    if head.about is None and head.next_seq == 1:
        return msgspec.structs.replace(head, about=about)
    if about.user is not None and head.user != about.user:
        raise WrongUser(key.session, about.user, head.user)
    return head


def noted(before: Known, after: Known | None) -> list[Step]:
    """What has to become of the notes of a session, where they become others (None: none)."""
    was, now = _notes(before if before.there is not None else None), _notes(after)
    gone = [Step(place, hot, destroys=True) for place, (hot, _) in was.items() if place not in now]
    new = [(place, was.get(place), note) for place, note in now.items() if was.get(place) != note]
    return [*gone, *(Step(place, old and old[0], hot, expires=expires) for place, old, (hot, expires) in new)]


def _notes(known: Known | None) -> dict[Place, tuple[bytes, int | None]]:
    """Where something is noted, what stands there, and when it expires: it names the session's log, which no later one
    of its name has."""
    found: dict[Place, tuple[bytes, int | None]] = {}
    if known is not None and known.head.user is not None:
        found[known.place._replace(space=OWNED + known.head.user)] = encode(known.log), None
    if known is not None and known.head.expires is not None:
        ends = known.head.expires
        found[known.place._replace(space=ENDS)] = encode((known.log, ends)), ends
    return found
