"""What of the engine neither an append nor a steady context needs: loaded, and made, when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable

from palimpsest.stores.backend import Scrubbed
from palimpsest.stores.engine.branching import Branching
from palimpsest.stores.engine.changing import Changing
from palimpsest.stores.engine.expiry import Expiry
from palimpsest.stores.engine.heads import Sessions
from palimpsest.stores.engine.items import Items
from palimpsest.stores.engine.large import Large
from palimpsest.stores.engine.leases import Leases
from palimpsest.stores.engine.listing import Listing
from palimpsest.stores.engine.loading import Loading
from palimpsest.stores.engine.reading import Reading


class Seldom:
    """The parts that change, branch, list, load and sweep sessions."""

    def __init__(self, sessions: Sessions, reading: Reading, large: Large, items: Items, leases: Leases) -> None:
        self.changing = Changing(sessions, reading, large)
        self.branching = Branching(sessions, large)
        self.listing = Listing(sessions)
        self.loading = Loading(sessions, large)
        self.expiry = Expiry(sessions, self.changing, self.branching, items, leases, self.loading)
        self._backend = sessions.backend

    async def scrub(self, whole: bool, progress: Callable[[int, int], object], check: Callable[[], None]) -> Scrubbed:
        """As `Store.scrub` says; `check` is called before each piece."""
        all_done, most = Scrubbed(left=1), 1
        while all_done.left:
            check()
            done = await self._backend.together(lambda: self._backend.scrub(whole=whole))
            all_done = Scrubbed((*all_done.remains, *done.remains), done.left, all_done.freed + done.freed)
            most = max(most, done.left)
            progress(most - done.left, most)
        return Scrubbed(all_done.remains, all_done.left, max(all_done.freed, 0))
