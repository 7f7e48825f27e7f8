"""A counter that may fail: a fallback counts meanwhile, and its counts are replaced later."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from palimpsest import ConfigError, Memory
from palimpsest.errors import InvalidResource
from palimpsest.resources import Resources
from palimpsest.testing import FakeClock
from palimpsest.tokens import FunctionCounter
from palimpsest.tokens.fallback import COUNTERS, FallbackCounter
from writer import quarters

WORDS = FunctionCounter(lambda text: len(text.split()), name="words")


class Service:
    """Counts quarters of bytes unless it is away; `asked` is how often it was asked."""

    def __init__(self) -> None:
        self.away, self.asked = False, 0

    def __call__(self, text: str) -> int:
        self.asked += 1
        if self.away:
            raise ConnectionError("nobody there")
        return quarters(text)


def test_the_fallback_counts_while_the_counter_fails() -> None:
    """While the counter fails the fallback counts, and the counter is tried again after a pause."""
    clock, service = FakeClock(0), Service()
    counter = FallbackCounter(service, WORDS, name="service", pause=30, clock=lambda: clock() / 1e6)
    text = "twelve bytes"
    assert (counter.count(text), counter.failures) == (3, 0)

    service.away = True
    assert [counter.count(text) for _ in range(5)] == [2] * 5
    assert (service.asked, counter.failures) == (2, 5)
    service.away = False
    assert counter.count(text) == 2
    clock.advance(31)
    assert counter.count(text) == 3
    assert counter.count("") == 0


@pytest.mark.parametrize("answer", [-1, "7", None, True, 2.5])
def test_an_answer_that_is_no_number_is_a_failure(answer: Any) -> None:
    """A counter's answer that is no number of tokens counts as a failure."""
    assert FallbackCounter(lambda _: answer, WORDS).count("one two") == 2


def test_a_panicking_counter_counts_as_a_failure() -> None:
    """A native library's panic, which is no `Exception`, is treated as a failure of the counter."""

    def panics(text: str) -> int:
        raise SystemExit(text)

    counter = FallbackCounter(panics, WORDS)

    assert (counter.count("one two"), counter.failures) == (2, 1)


def test_a_hanging_counter_is_replaced_by_the_fallback() -> None:
    """A counter that does not answer in time is replaced by the fallback; either may be a coroutine function."""

    async def slow(text: str) -> int:
        await asyncio.Event().wait()
        return 1

    assert FallbackCounter(slow, WORDS, timeout=0.1).count("a long text") == 3


def test_invalid_options_and_counters_are_refused() -> None:
    """Invalid options and counters are refused when the counter is made."""
    for options in ({"timeout": 0}, {"timeout": "x"}, {"pause": -1}):
        with pytest.raises(ConfigError):
            FallbackCounter(len, WORDS, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        FallbackCounter(7)  # type: ignore[arg-type]


def test_counts_of_the_fallback_are_not_stored() -> None:
    """While the fallback counts, no append fails, no count is stored and no cut made; later all figures are the
    counter's."""
    service = Service()
    counter = FallbackCounter(service, WORDS, name="service", pause=0)
    with Memory.open("memory://") as memory:
        session = memory.session("s", max_log_tokens=60, counter=counter)
        service.away = True
        for number in range(12):
            session.add_user_message(f"{number} " + "w" * 38)
        for_now = session.context()
        assert for_now.epoch in (0, None)
        assert any("token counter failed" in note for note in for_now.report.notes)
        assert [entry.tokens for entry in session.entries()] == [None] * 12

        service.away = False
        context = session.context()
        assert not [note for note in context.report.notes if "token counter" in note]
        assert context.parts.log <= 60
        assert session.stats().total_tokens == sum(quarters(entry.text) for entry in session.entries())


@pytest.mark.wide
def test_a_randomly_failing_counter_leaves_no_wrong_counts() -> None:
    """Contexts fit by whichever counter counted; once the counter works again, all figures are its own."""
    chance, failing = random.Random(7), [True]

    def service(text: str) -> int:
        if failing[0] and chance.random() < 0.3:
            raise TimeoutError
        return quarters(text)

    with Memory.open("memory://") as memory, Memory.open("memory://") as plain:
        counter = FallbackCounter(service, FunctionCounter(quarters, name="same"), name="service", pause=0)
        session = memory.session("s", max_log_tokens=100, counter=counter, long_term="ladder")
        for number in range(60):
            session.add_user_message(f"{number} " + "w" * chance.randrange(60))
            session.add_assistant_message("a" * chance.randrange(60))
            assert session.context().parts.log <= 100
        failing[0] = False
        session.context()
        stored = {entry.seq: entry.tokens for entry in session.entries() if entry.tokens is not None}
        assert stored == {seq: quarters(session.entry(seq).text) for seq in stored}
        stats = session.stats()
        plain.import_session(session.export())
        again = plain.session("s", max_log_tokens=100, counter=FunctionCounter(quarters, name="service"))
        assert stats.total_tokens == again.stats().total_tokens


def test_a_declared_memory_makes_its_counter_from_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """A declared memory makes its counter from the block, with the key from the environment and a `fallback`."""
    given, service = list[Mapping[str, Any]](), Service()

    def make(block: Mapping[str, Any]) -> Service:
        given.append(block)
        return service

    COUNTERS.register("acme", make)
    monkeypatch.setenv("ACME_KEY", "secret")
    provider = {
        "provider": "acme",
        "model": "acme-1",
        "api_key": "${ACME_KEY}",
        "endpoint": "unix:/x",
        "fallback": "gpt-4o",
    }
    source = {"resource": "memory", "id": "chat", "max_tokens": 500, "token_provider": provider}
    with Resources.load(source) as resources:
        assert not [text for text in resources.warnings if "token_provider" in text]
        session = resources.session({"id": "chat", "key": "a"})
        session.add_user_message("w" * 400)
        assert session.context().parts.log == 100
        service.away = True
        session.add_user_message("Hello, world!")
        assert session.context().parts.log == 104
        shown = repr(resources["chat"].effective())

    assert given == [{"model": "acme-1", "endpoint": "unix:/x", "api_key": "secret"}]
    assert "secret" not in shown
    with pytest.raises(InvalidResource, match="no-such-model"):
        Resources.load({**source, "token_provider": {**provider, "fallback": "no-such-model"}})


def test_a_key_in_the_declaration_is_used_and_never_shown(tmp_path: Path) -> None:
    """A key in the file is used, with a warning, and is in no value, digest or byte of the store."""
    given = list[Mapping[str, Any]]()

    def make(block: Mapping[str, Any]) -> Service:
        given.append(block)
        return Service()

    COUNTERS.register("acme-plain", make)
    provider = {"provider": "acme-plain", "api_key": "sk-veryplain-0123456789"}
    path = tmp_path / "a.db"
    source = {"resource": "memory", "id": "chat", "max_tokens": 500, "store": f"sqlite:///{path}"}
    with Resources.load({**source, "token_provider": provider}) as resources:
        resources.session({"id": "chat", "key": "a"}).add_user_message("hello")
        declared = resources["chat"]
        shown = repr((declared, declared.effective(), resources.warnings, declared.options))
    other = {**provider, "api_key": "sk-another"}

    assert given[0]["api_key"] == "sk-veryplain-0123456789"
    assert "who can read this file can read the key" in shown
    assert "veryplain" not in shown
    assert not [file for file in tmp_path.iterdir() if b"veryplain" in file.read_bytes()]
    assert Resources.load({**source, "token_provider": other})["chat"].digest == declared.digest
