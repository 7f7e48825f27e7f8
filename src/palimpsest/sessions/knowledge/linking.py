"""The knowledge bases of a session: its summaries go into them, and its contexts get chunks from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palimpsest.compaction.knowledge import MODES, KnowledgeBase, Linked, TextSplitter
from palimpsest.context.conditions import parse
from palimpsest.context.groups import Meter, by_group
from palimpsest.context.short_term import interaction_values
from palimpsest.context.tail import TailPart
from palimpsest.context.window import message_values
from palimpsest.errors import ConditionFailed, ConfigError
from palimpsest.errors.wording import briefly, words_of
from palimpsest.formats import find_format
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head
from palimpsest.runtime.logs import log_failure
from palimpsest.sessions.knowledge.asking import hits_of
from palimpsest.sessions.scope import SessionScope
from palimpsest.sessions.shelves.records import KnowledgeHit, Link, Place, places_of
from palimpsest.tokens.counter import Encoding


class KnowledgePart(TailPart):
    """Chunks of a knowledge base, best first, of at most `max_tokens` together, as many as fit."""

    name = "knowledge"

    def __init__(self, hits: Sequence[KnowledgeHit], max_tokens: int | None) -> None:
        self._texts, self._most = [hit.shown for hit in hits], max_tokens

    def within(self, most: int | None, count: Callable[[str], int]) -> str:
        """Return the best chunks that fit into `most` tokens; "" if there are none, or the first does not fit."""
        room = min((limit for limit in (most, self._most) if limit is not None), default=None)
        text = ""
        for chunk in self._texts:
            longer = f"{text}\n\n{chunk}" if text else chunk
            if room is not None and count(longer) > room:
                break
            text = longer
        return text


class SessionKnowledge:
    """The knowledge bases that the strategies of one open session name."""

    def __init__(self, scope: SessionScope) -> None:
        self._scope, self._summaries_added = scope, scope.summaries_added

    @property
    def _bases(self) -> list[Linked]:
        return self._scope.options.knowledge

    async def user(self) -> str | None:
        """Return the session's user, or None. Raises WrongUser if the session was opened as another user's."""
        about, head = self._scope.about, await self._scope.memory.store.head(self._scope.key)
        self._scope.check_user(head)
        if head is not None and head.about is not None:
            return head.user
        return about.user if about is not None else None

    # --- summaries into them

    async def announce(self) -> None:
        """Note in the store where the summaries of this session go, before the next one is committed.

        So other processes can put it there if this one ends before it does.
        """
        for base, splitter in self._bases:
            if base.write:
                await self._guarded(self._link, base, splitter)

    async def keep(self) -> None:
        """Put the session's summaries into its knowledge bases. A failure is reported, and tried again later."""
        scope = self._scope
        if scope.options.readonly or scope.is_ephemeral or not scope.memory.store.writable:
            return
        for base, splitter in self._bases:
            if base.write:
                await self._guarded(self._keep_in, base, splitter)

    async def _guarded(self, work: Any, base: KnowledgeBase, splitter: TextSplitter) -> None:
        try:
            await work(base, splitter)
        except Exception as fault:  # noqa: BLE001 (a boundary: a compaction must not fail because its chunks cannot be written)
            scope = self._scope
            told = "the knowledge base of session %s is not up to date"
            log_failure(scope.runner.redact, fault, told, scope.key.session)
            why = briefly(scope.gate.redact(words_of(fault)))
            await scope.tell("knowledge:deferred", collection=base.collection_id, why=why)

    async def _link(self, base: KnowledgeBase, splitter: TextSplitter) -> Link:
        """Store the link to the shelf that the session's summaries go to, and return it."""
        scope = self._scope
        user, counter = await self.user(), scope.options.counter
        collection = base.collection(scope.key.session, user)
        scope.gate.refuse([collection], "knowledge_base.collection_id")
        link = Link(
            place=Place.of(collection, user, "summary"),
            splitter=splitter,
            counter=counter.name if isinstance(counter, Encoding) else "",
        )
        await (await scope.memory.keeper()).link(scope.key.session, link)
        return link

    async def _keep_in(self, base: KnowledgeBase, splitter: TextSplitter) -> None:
        """Bring the shelf of a knowledge base up to date with the session, unless that was done in this epoch."""
        scope = self._scope
        head = await scope.memory.store.head(scope.key)
        state = (head.epoch, head.created) if head is not None else (0, 0)
        if head is None or self._summaries_added.get(base.collection_id) == state:
            return
        if not head.compaction and not self._summaries_added:
            keeper = await scope.memory.keeper(joins=False)
            if not await keeper.links(scope.key.session):
                return  # there never was a summary
        link = await self._link(base, splitter)
        keeper = await scope.memory.keeper()
        await keeper.drop_former_owners(scope.key.session, link)
        await keeper.bring_up_to_date(scope.key.session, link, base.embedder, scope.options.counter.count)
        self._summaries_added[base.collection_id] = state

    # --- contexts from them

    async def parts(self, *, keeps: bool) -> list[KnowledgePart]:
        """Return what each knowledge base contributes to the next context.

        With `keeps` the session's summaries are put into the knowledge bases first.
        """
        if keeps:
            await self.keep()
        bases = [base for base, _ in self._bases if base.reads]
        if not bases or not self._scope.options.tail_share:
            return []
        newest, head = await self._newest(), await self._scope.head()
        if newest is None or not newest.text.strip():
            return []
        parts = list[KnowledgePart]()
        for base in bases:
            if base.search_mode not in MODES and not await self._holds(base.search_mode, newest, head):
                continue
            user = await self.user()
            places = places_of(base.collection(self._scope.key.session, user), user)
            memory, own = self._scope.memory, self._scope.key.session
            if hits := await hits_of(memory, base, newest.text, places, without=own):
                parts.append(KnowledgePart(hits, base.max_tokens))
        return parts

    async def _newest(self) -> Entry | None:
        """Return the newest human message as far as the policy shows it; None if it is withheld or there is none."""
        head = await self._scope.head()
        if not head.turn:
            return None
        entries = await self._scope.store.fetch(self._scope.key, [head.turn])
        return next((entry for entry in self._scope.gate.shown(entries) if entry.is_human and not entry.erased), None)

    async def _holds(self, condition: str, newest: Entry, head: Head) -> bool:
        """Return whether a condition holds for the newest message, its interaction and its session.

        A condition that cannot be evaluated counts as true, and observers are told once.
        """
        scope, options = self._scope, self._scope.options
        meter = Meter(options.counter, find_format(options.format), options.model)
        meter.exact = True
        entries = await scope.store.read(scope.key, after=newest.seq - 1)
        values: Mapping[str, Mapping[str, object]] = {
            "message": message_values(newest, meter, False, newest.seq - 1, 0),
            "interaction": interaction_values(by_group(entries), head.turns - 1, 0),
            "session": {
                "id": scope.key.session,
                "message_count": head.entries,
                "interaction_count": head.turns,
                "tokens": scope.sent.counted if scope.sent is not None else 0,
                "metadata": head.metadata,
            },
        }
        try:
            return parse(condition, "search_mode").holds(values)
        except ConditionFailed as fault:
            if scope.observers.first_failure(scope.key.session, condition):
                redact = scope.gate.redact
                await scope.tell("condition:error", condition=redact(condition), error=redact(str(fault)))
            return True

    def chosen(self, collection: str | None) -> Linked:
        """Return the session's knowledge base of this collection (None: the only one).

        Raises ConfigError if there is none, or `collection` is None and there are several.
        """
        matching = [linked for linked in self._bases if collection in (None, linked[0].collection_id)]
        if len(matching) == 1:
            return matching[0]
        names = ", ".join(base.collection_id for base, _ in self._bases) or "none; give a strategy a knowledge_base"
        raise ConfigError("collection", collection, f"a collection of a knowledge base of this session: {names}")
