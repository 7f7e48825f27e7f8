"""No error quotes what a policy withholds, whichever verb was given it, and whatever is wrong with it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from palimpsest import Entry, InvalidEntry, Memory, PalimpsestError, Session
from private_messages import MESSAGES

SECRET = "Zebra-4711"
TYPED = {"type": "health"}
POLICY = {"non_persistable_message_types": ["health"]}


def odd(dice: random.Random) -> Any:
    """Return a private value that hardly any argument accepts."""
    whole: list[Any] = [{SECRET: SECRET}, [SECRET], {SECRET}, SECRET.encode(), f"{SECRET}\ud800", SECRET, None, 7]
    parts = [{"type": SECRET}, [{"type": SECRET, "text": SECRET}], [{"text": [SECRET]}], {"text": {SECRET: SECRET}}]
    return dice.choice([*whole, *parts])


def changed(value: Any, dice: random.Random) -> Any:
    """Return the value with one leaf replaced."""
    if isinstance(value, dict) and value:
        key = dice.choice(list(value))
        return {**value, key: changed(value[key], dice)}
    if isinstance(value, list) and value:
        at = dice.randrange(len(value))
        return [*value[:at], changed(value[at], dice), *value[at + 1 :]]
    return odd(dice)


def messages(format: str, dice: random.Random) -> list[Any]:
    """Return messages of a format that are all marked as withheld, and one of which is faulty."""
    given: list[Any] = [{**message, **TYPED} for message in MESSAGES[format]("plain")]
    at = dice.randrange(len(given))
    given[at] = {**changed(given[at], dice), **TYPED}
    return given


def faulty(session: Session, format: str, dice: random.Random) -> Callable[[], object]:
    """Return a call that adds withheld content and that is very likely refused."""
    metadata, calls = {**TYPED, "more": odd(dice)}, list[Callable[[], object]]()
    calls += [lambda: session.add(messages(format, dice)), lambda: session.replace(messages(format, dice))]
    calls += [
        lambda: session.add(odd(dice), metadata=TYPED),
        lambda: session.add_user_message(odd(dice), name=odd(dice), metadata=metadata),
        lambda: session.add_assistant_message(odd(dice), metadata=metadata),
        lambda: session.add_tool_call(odd(dice), odd(dice), call_id=odd(dice), metadata=TYPED),
        lambda: session.add_tool_result("look", odd(dice), status=odd(dice), metadata=metadata),
        lambda: session.add_context(odd(dice), name=odd(dice), metadata=metadata),
        lambda: session.add_entries([Entry(content=odd(dice), name=odd(dice), metadata=TYPED)]),
    ]
    return dice.choice(calls)


def shown(fault: BaseException | None) -> str:
    """Return all that an error and its causes show."""
    told = ""
    while fault is not None:
        told += f"{fault} {fault!r} {fault.args!r} {vars(fault)!r}\n"
        fault = fault.__cause__ or fault.__context__
    return told


def test_no_error_quotes_withheld_text() -> None:
    """In any format, neither the error, its attributes nor its causes quote withheld text; keys are named as always."""
    faults = list[tuple[int, Exception]]()
    with Memory.open("memory://", privacy=POLICY) as memory:
        for seed in range(400):
            dice = random.Random(seed)
            format: Any = dice.choice(list(MESSAGES))
            session = memory.session(f"s{seed}", format=format)
            try:
                faulty(session, format, dice)()
            except Exception as fault:  # noqa: BLE001 (whichever it is)
                faults.append((seed, fault))

    assert len(faults) > 200
    assert [seed for seed, fault in faults if SECRET in shown(fault)] == []


def test_errors_of_user_code_quote_no_withheld_text() -> None:
    """The error for an object whose own conversion fails does not quote the object's text."""

    class Message:
        def __init__(self) -> None:
            self.type = "health"

        def model_dump(self, **_: Any) -> dict[str, Any]:
            raise ValueError(f"it was {SECRET}")

    with Memory.open("memory://", privacy=POLICY) as memory, pytest.raises(Exception) as caught:  # noqa: PT011
        memory.session("s").add([Message()])

    assert SECRET not in shown(caught.value)


@pytest.mark.parametrize(
    ("withheld", "verb"),
    [
        ("user", lambda session: session.add_user_message({SECRET})),
        ("message", lambda session: session.add_assistant_message({SECRET})),
        ("tool_result", lambda session: session.add_tool_result("look", {SECRET})),
        ("tool_call", lambda session: session.add_tool_call("look", {SECRET})),
        ("context", lambda session: session.add_context({SECRET}, name="x")),
        ("assistant", lambda session: session.add({"role": "assistant", "content": {SECRET}})),
    ],
)
def test_errors_of_verbs_whose_role_or_kind_is_withheld_quote_nothing(
    withheld: str, verb: Callable[[Session], object]
) -> None:
    """Content is withheld, and not quoted, if the verb's own role or kind is withheld."""
    policy = {"non_persistable_message_types": [withheld]}
    with Memory.open("memory://", privacy=policy) as memory, pytest.raises(PalimpsestError) as caught:
        verb(memory.session("s"))

    assert SECRET not in shown(caught.value)


def test_errors_about_other_entries_quote_them() -> None:
    """An error about anything else says what is wrong."""
    with Memory.open("memory://", privacy=POLICY) as memory:
        with pytest.raises(InvalidEntry, match="'nobody' is not a role"):
            memory.session("s").add({"role": "nobody", "content": "x"})
        with pytest.raises(InvalidEntry, match="'such'"):
            memory.session("s").add_tool_result("f", "x", status="such")  # type: ignore[arg-type]
