"""`PalimpsestSession(session)`: a session for the OpenAI Agents SDK. No other module imports the SDK."""

from __future__ import annotations

from asyncio import CancelledError
from itertools import takewhile
from typing import Any, cast

from palimpsest import AsyncSession, Session
from palimpsest.errors import ConfigError, InvalidEntry, MissingExtra, PalimpsestError
from palimpsest.formats import FORMATS, FormatName, find_format
from palimpsest.formats.openai_responses_items import answers, asks, is_assistant_side, pair_key
from palimpsest.integrations.agents_items import AgentsItems
from palimpsest.integrations.streams import ready
from palimpsest.integrations.waiting import open_group

try:
    from agents import SessionSettings, TResponseInputItem
    from agents.memory.session_settings import resolve_session_limit
except ImportError as missing:
    raise MissingExtra("an agent of the OpenAI Agents SDK", "openai-agents") from missing

FORMATS.register(AgentsItems.name, AgentsItems)

_FORMAT = "openai-responses"
_SHOWN = cast("FormatName", AgentsItems.name)

_SEALED = (
    "is encrypted by the SDK's EncryptedSession, so it could be neither cut to a budget, nor searched, nor checked for "
    "private text: give the run this session itself, and open the memory with encryption=Keys(…)"
)


class PalimpsestSession:
    """A session of the OpenAI Agents SDK that is kept in Palimpsest: `Runner.run(agent, "…", session=…)`.

    A run begins with the context of the Palimpsest session. Its items are added to the log as the SDK hands them over:
    the input before the model is asked, the items of a step after it. The run's instructions, tools, input and steps
    take room beside the context, so give the session a `reserve` for them and the answer. To run several agents at once
    on one conversation, put `turn()` of the session around each run; they then go one after the other.

    An AsyncSession fits everywhere. A Session blocks the event loop while its store works, so it is for
    `Runner.run_sync` and for programs that run one agent.
    """

    def __init__(self, session: Session | AsyncSession, *, session_settings: SessionSettings | None = None) -> None:
        """Raises ConfigError if this is no session of Palimpsest.

        Args:
            session: the session that keeps the conversation, of a Memory or an AsyncMemory.
            session_settings: the SDK's settings; their `limit` is as in `get_items`. None: no limit but the budget.
        """
        if not isinstance(session, Session | AsyncSession):
            raise ConfigError("session", type(session).__qualname__, "a session: memory.session(…)")
        self._session: Any = session
        self.session_id = session.id
        self.session_settings = session_settings
        self._looked = 0, 0  # the limit of the last `get_items`, and how many items that returned
        self._unconfirmed: list[TResponseInputItem] = []  # items of a failed `add_items`, which may be stored or not
        self._resume_limit: int | None = None  # the limit with which a resumed run will look for these items

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.session_id!r}>"

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the context as items: within the budget, valid, and beginning as it did before.

        With a limit these are the newest items, starting with one that needs nothing before it; calls that still wait
        for their results are included. A limit moves the beginning with every run, so the provider's cache never helps;
        `max_messages` of the Palimpsest session avoids that.

        If an `add_items` failed, so that it is not known whether its items were stored, a run that is resumed looks for
        them. They are then left out, since a policy may have changed them: the run adds them again, and only what is
        not stored yet is added.

        Raises BudgetImpossible if what may not be left out does not fit.

        Args:
            limit: the most items; None: as in the settings, or else all.
        """
        context = await ready(self._session.context(format=_SHOWN))
        most = resolve_session_limit(limit, self.session_settings)
        items: list[TResponseInputItem] = context.messages
        if most is None:
            return items
        waiting = await open_group(self._session) if context.pending and most > 0 else []
        items = [*items, *find_format(_FORMAT).encode(waiting)]
        if most == self._resume_limit:
            return _newest(_without(items, self._unconfirmed), most)
        newest = _newest(items, max(most, 0))
        self._looked = most, len(newest)
        return newest

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items to the log, all or none.

        If the log already ends with exactly these items, as when a failed run is tried again, they are not added twice.
        Raises InvalidEntry, naming the place, for what is no item, and for what the SDK has encrypted.

        Args:
            items: items of the Responses API, as the SDK has them.
        """
        given: list[Any] = list(items)
        for i, item in enumerate(given):
            if isinstance(item, dict) and "__enc__" in item:
                raise InvalidEntry(f"messages[{i}]", _SEALED)
        if not given:
            return
        try:
            await ready(self._session.add(given, format=_FORMAT, unless_last=True))
        except InvalidEntry:
            raise
        except (PalimpsestError, CancelledError) as fault:
            asked, shown = self._looked
            resumed = asked == len(given) + 1  # a resumed run first asks for one item more than it will add
            self._unconfirmed, self._resume_limit = given, shown + len(given) if resumed else None
            if isinstance(fault, PalimpsestError) and any(is_assistant_side(item) or answers(item) for item in given):
                fault.answer = given
            raise
        self._unconfirmed, self._resume_limit = [], None

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the newest item and return it as it was added; None if there is none.

        It is rewound, not destroyed: rewinding the Palimpsest session to a later revision brings it back.
        """
        while True:
            entries = await ready(self._session.entries(last=2))
            if not entries:
                return None
            await ready(self._session.rewind(entries[0] if len(entries) > 1 else 0))
            if not entries[-1].erased and (items := find_format(_FORMAT).encode(entries[-1:])):
                item: TResponseInputItem = items[-1]
                return item

    async def clear_session(self) -> None:
        """Destroy every entry of the session for good, like `clear`."""
        await ready(self._session.clear())


def _newest(items: list[Any], most: int) -> list[Any]:
    """Return the newest items, at most `most`, starting with one that needs nothing before it.

    So a smaller `most` gives the end of what a larger one gives.
    """
    start = max(len(items) - most, 0)
    while start < len(items) and not _stands_alone(items[:start], items[start:]):
        start += 1
    return items[start:]


def _stands_alone(before: list[Any], items: list[Any]) -> bool:
    """Return whether no item needs one of those before.

    An item needs the thought that it was made with, the calls that were made together with it, and, if it is a result,
    its call.
    """
    said = list(takewhile(is_assistant_side, reversed(before))) if is_assistant_side(items[0]) else []
    if any(item.get("type") == "reasoning" for item in said) or (said and asks(items[0]) and asks(said[0])):
        return False
    asked = {item[pair_key(item["type"])] for item in items if asks(item)}
    return all(item.get(pair_key(item["type"])) in asked for item in items if answers(item))


def _without(items: list[Any], newest: list[Any]) -> list[Any]:
    """Return the items without the newest ones, if they end with these as far as that can be told without texts."""
    first = len(items) - len(newest)
    ends_with_them = first >= 0 and [*map(_identity, items[first:])] == [*map(_identity, newest)]
    return items[:first] if ends_with_them else items


def _identity(item: Any) -> tuple[object, ...]:
    kind = item.get("type", "message")
    return kind, item.get("role"), item.get(pair_key(kind)) if asks(item) or answers(item) else None
