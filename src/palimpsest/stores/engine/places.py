"""Where sessions are, what says so of those that are not in their own home, and what stands in the way of new ones."""

from __future__ import annotations

from palimpsest.errors import Conflict
from palimpsest.log.codec import encode
from palimpsest.log.head import SessionKey
from palimpsest.stores.backend import Place, PlaceHead, Step
from palimpsest.stores.engine.forms import new_log

BARRED = "barred"
"""The space of places that keep a branch from being made, whose session has been made in its own home instead."""

FAR = chr(0x10FFFF)
"""Sorts behind every home."""

PATIENCE = 3_600_000_000
"""Microseconds for which what was begun, and that nobody has finished, is left alone."""


class Over(Conflict):
    """A session is to be made where one is stored still whose time is over: `key`. That has to be ended first."""

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        super().__init__(f"session {key.session!r}", "is over, and has not been destroyed yet: sweep")


def root(key: SessionKey) -> Place:
    """Where a session is that is in its own home."""
    return Place(key.tenant, key.session, "session", key.session)


def barred(place: Place) -> Place:
    """Where it says that a branch is not to be made at a place."""
    return place._replace(space=BARRED)


def bar_of(place: Place, there: PlaceHead | None, at: int) -> Step:
    """What keeps everybody from making a branch at a place who saw it before."""
    return Step(barred(place), there.hot if there is not None else None, encode(new_log()), expires=at + PATIENCE)


def where_of(key: SessionKey) -> Place:
    """Where it says in which home a session is that is not in its own."""
    return Place(key.tenant, key.session, "where", key.session)


def pointer_to(home: str) -> bytes:
    """What says that a session is in this home. It is like no other, so that none is taken for an earlier one."""
    return encode((home, new_log()))
