"""An answer that the store could not take is still given to whoever asked, since it was paid for."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any

import pytest

from failing_backends import Flaky
from openai_server import Play
from palimpsest import AsyncMemory, Memory, StoreUnavailable
from palimpsest.errors import PalimpsestError, PrivacyRefused
from palimpsest.integrations.streams import ready
from palimpsest.sessions.sync import Session
from palimpsest.stores import STORES
from sdks import load
from streams import CHAT, STREAMED, StreamServer, answers, plays
from test_clients import ONCE, WAYS, Way, read

NUMBERS = count()


class Away(Flaky):
    """A memory backend that takes no writes while it is away."""

    async def write(self, *given: Any, **named: Any) -> Any:
        """Write, unless the backend is away."""
        if self.away:
            raise StoreUnavailable(self.url, "it is away")
        return await super().write(*given, **named)


@pytest.fixture
def store() -> Away:
    """A store that works."""
    backend = Away()
    backend.url = f"unkept{next(NUMBERS)}://"
    STORES.register(backend.url.removesuffix("://"), lambda url, runner, **options: backend)
    return backend


@pytest.fixture
def session(store: Away) -> Iterator[Session]:
    """A session of that store."""
    with Memory.open(store.url) as memory:
        yield memory.session("s")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    """Each way to ask a model."""
    return WAYS[request.param]


def breaking(store: Away, play: Play) -> Play:
    """Let the store be away from the provider's answer on."""

    def broken(exchange: Any) -> None:
        store.away = True
        play(exchange)

    return broken


async def kept_at_last(session: Any, store: Away, fault: PalimpsestError) -> None:
    """Add what the error holds once the store is back; check that it is stored once with its usage."""
    store.away = False
    for _ in range(2):
        await ready(session.add(fault.answer, unless_last=True))

    assert spoken(await ready(session.entries())) == ONCE
    usage = (await ready(session.stats())).usage
    assert (usage.input_tokens, usage.output_tokens, usage.calls) == (40, 9, 1)
    assert not session.in_turn


def spoken(entries: list[Any]) -> list[tuple[str, str]]:
    """Return who has said what, without separate thoughts."""
    return [(one.kind, one.role) for one in entries if one.text or one.kind != "message" or one.role == "user"]


async def read_through(asked: Any) -> None:
    """Read a stream to its end."""
    events: AsyncIterator[Any] = await asked
    async for _ in events:
        pass


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_a_store_error_holds_the_unstored_answer(way: Way, streams: bool, session: Session, store: Away) -> None:
    """The store's error holds the whole answer, returned or streamed."""
    streamed = STREAMED[way.format]
    play = breaking(store, plays(streamed.events) if streams else answers(streamed.whole))
    with StreamServer(play) as server, way.opened(server, False) as client:
        remembering = way.remember(client, session)

        with pytest.raises(StoreUnavailable) as caught:
            read(way.stream(remembering, way.says("Which gate?"))) if streams else way.ask(
                remembering, way.says("Which gate?")
            )

    asyncio.run(kept_at_last(session, store, caught.value))


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_a_store_error_of_an_asynchronous_client_holds_the_unstored_answer(
    way: Way, streams: bool, store: Away
) -> None:
    """With asynchronous clients the store's error holds the whole answer, too."""
    streamed = STREAMED[way.format]
    play = breaking(store, plays(streamed.events) if streams else answers(streamed.whole))

    async def ask(server: StreamServer) -> None:
        async with AsyncMemory.open(store.url) as memory, way.opened(server, True) as client:
            session = memory.session("s")
            remembering = way.remember(client, session)
            asked = (way.stream if streams else way.ask)(remembering, way.says("Which gate?"))
            with pytest.raises(StoreUnavailable) as caught:
                await (read_through(asked) if streams else asked)
            await kept_at_last(session, store, caught.value)

    with StreamServer(play) as server:
        asyncio.run(ask(server))


@pytest.mark.parametrize("complete", [True, False])
def test_a_store_error_of_a_stream_block_holds_what_came(complete: bool, session: Session, store: Away) -> None:
    """The error at the end of a `stream` block holds the answer or its first part, with the original error as
    context."""
    session.add_user_message("Which gate?")
    heard = list[Any]()

    def listen() -> None:
        with session.turn(), session.stream() as answer:
            heard.append(answer)
            for event in CHAT.events if complete else CHAT.events[:3]:
                answer.feed(event)
            store.away = True
            if not complete:
                raise ConnectionError("the line is dead")

    with pytest.raises(StoreUnavailable) as caught:
        listen()

    assert caught.value.answer is None  # the caller that feeds an answer already has it
    assert complete or isinstance(caught.value.__context__, ConnectionError)
    store.away = False
    session.add(heard[0].whole, unless_last=True)
    assert session.entries()[1].text == (CHAT.text if complete else "I look")


def test_a_store_error_does_not_offer_an_answer_that_would_be_dropped(session: Session) -> None:
    """With `cut_off="drop"` a broken answer is not offered for adding."""
    with session.turn(), session.stream(cut_off="drop") as answer:
        for event in CHAT.events[:3]:
            answer.feed(event)

    assert answer.whole is None
    assert answer.text


def test_an_answer_that_privacy_could_not_check_is_in_no_message_or_pickle() -> None:
    """Only the error's attribute holds the answer: neither its message, nor its pickle, nor a cause."""

    def shaky(text: str) -> list[Any]:
        if CHAT.text in text:
            raise RuntimeError(text)
        return []

    with Memory.open("memory://", privacy={"recognisers": [shaky]}) as memory:
        with StreamServer(answers(CHAT.whole)) as server, WAYS["chat"].opened(server, False) as client:
            session = memory.session("s")
            with pytest.raises(PrivacyRefused) as caught:
                WAYS["chat"].ask(WAYS["chat"].remember(client, session), WAYS["chat"].says("Which gate?"))

        assert [entry.role for entry in session.entries()] == ["user"]
    fault: Any = caught.value
    assert fault.answer.choices[0].message.content == CHAT.text
    assert CHAT.text not in str(fault)
    assert fault.__cause__ is None
    for sent in (pickle.loads(pickle.dumps(fault)), copy.copy(fault)):  # noqa: S301 (it is our own)
        assert (str(sent), sent.answer) == (str(fault), None)


def test_the_clients_parse_error_comes_out_although_the_store_fails(session: Session, store: Away) -> None:
    """An answer that the client refuses to parse is in its error, whatever the store does."""
    cut = copy.deepcopy(CHAT.whole)
    cut["choices"][0] |= {"finish_reason": "length"}
    with StreamServer(breaking(store, answers(cut))) as server, WAYS["chat"].opened(server, False) as client:
        parse = WAYS["chat"].remember(client, session).chat.completions.parse
        with pytest.raises(load("openai").LengthFinishReasonError) as caught:
            parse(model="gpt-4o", messages=[{"role": "user", "content": "Which gate?"}])

    assert caught.value.completion.choices[0].message.content == CHAT.text
    assert any("not recorded" in note for note in caught.value.__notes__)


def test_a_store_error_of_an_agents_sdk_run_holds_the_unstored_items(session: Session, store: Away) -> None:
    """In a run of the Agents SDK the error holds the items that are not stored."""
    agents, scripted = load("agents"), load("agents.testing")
    agents.set_tracing_disabled(True)
    kept = load("palimpsest.integrations.openai_agents").PalimpsestSession(session)

    @agents.function_tool
    def leave() -> str:
        """Have the store be away."""
        store.away = True
        return "done"

    called = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "leave", "arguments": "{}"}
    model = scripted.ScriptedModel([[load("openai.types.responses").ResponseFunctionToolCall(**called)]])
    with pytest.raises(StoreUnavailable) as caught:
        asyncio.run(agents.Runner.run(agents.Agent(name="Guide", model=model, tools=[leave]), "Leave.", session=kept))

    store.away = False
    items: Any = caught.value.answer
    asyncio.run(kept.add_items(items))
    assert [entry.kind for entry in session.entries()] == ["message", "tool_call", "tool_result"]


def test_a_store_error_for_a_question_holds_no_answer(session: Session, store: Away) -> None:
    """If only a question was not stored, the error holds no answer."""
    kept = load("palimpsest.integrations.openai_agents").PalimpsestSession(session)
    session.add_user_message("Hello.")
    store.away = True
    with pytest.raises(StoreUnavailable) as caught:
        asyncio.run(kept.add_items([{"role": "user", "content": "Which gate?"}]))

    assert caught.value.answer is None


def test_a_store_error_of_a_pydantic_ai_run_holds_its_messages(session: Session, store: Away) -> None:
    """In a run of Pydantic AI the error holds all messages of the run."""
    pai, functions = load("pydantic_ai"), load("pydantic_ai.models.function")
    history = load("palimpsest.integrations.pydantic_ai").SessionHistory(session)

    def answer(_: Any, __: Any) -> Any:
        store.away = True
        return pai.messages.ModelResponse([pai.messages.TextPart("Gate B 12.")])

    with pytest.raises(StoreUnavailable) as caught:
        asyncio.run(pai.Agent(functions.FunctionModel(answer)).run("Which gate?", capabilities=[history]))

    told: Any = caught.value.answer
    assert [message.parts[0].content for message in told] == ["Which gate?", "Gate B 12."]


def test_an_error_in_a_turn_comes_out_although_its_lease_cannot_be_released(session: Session, store: Away) -> None:
    """An error raised in a turn comes out even if the lease cannot be given back."""

    def fail() -> None:
        with session.turn():
            store.away = True
            raise LookupError("no such gate")

    with pytest.raises(LookupError, match="no such gate"):
        fail()

    assert not session.in_turn
