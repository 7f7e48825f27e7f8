"""Whose a session is: what is noted of that beside its head, so that the sessions of one user are found by name.

For a session that has a user there is a place in its home, in a space that the user's id is part of. It is made, moved
and dropped in the step that does so to the head: so the two never differ, and nobody reads all sessions of a tenant to
find those of one user.
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
    """What has to become of the note of whose a session is, where it becomes another one (None: none)."""
    was, now = _note(before if before.there is not None else None), _note(after)
    if was == now:
        return []
    if was is None or now is None or was[0] != now[0]:
        gone = [Step(was[0], was[1], destroys=True)] if was is not None else []
        return [*gone, Step(now[0], None, now[1])] if now is not None else gone
    return [Step(now[0], was[1], now[1])]


def _note(known: Known | None) -> tuple[Place, bytes] | None:
    """Where it says whose a session is, and what says so: the number of its log, which no later one of its name has."""
    if known is None or known.head.user is None:
        return None
    return known.place._replace(space=OWNED + known.head.user), encode(known.log)
