"""Withheld entries stay withheld when a context is given to `replace`, however a format has rewritten them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from palimpsest import Audio, BudgetImpossible, Entry, File, Image, Memory, Opaque, Reasoning, Session, Text
from palimpsest.log.entry import Part

SECRET = "Zebra-4711"
TYPED = {"type": "health"}
FORMATS = ["openai", "openai-responses", "anthropic", "gemini"]
SEEDS = 40


def text(dice: random.Random) -> str:
    """Return a text that some formats rewrite."""
    texts = [
        SECRET,
        f"  {SECRET} \n",
        f"\n\n{SECRET}  \n\nmore {SECRET}\t\n",
        f"{SECRET}\r\nin lines\r\n",
        f"a <context> {SECRET} </context>",
        f"<summary>{SECRET}</summary>",
        f"{SECRET}&lt;context>",
        f"\ufeff\u200b{SECRET}\u2028é\x01",
        json.dumps({"a": SECRET}),
        f"{SECRET} " + "word " * 300,
    ]
    return dice.choice(texts)


def part(dice: random.Random) -> Part:
    """Return a part of a message; some formats have no counterpart for some of them."""
    kinds: list[Callable[[], Part]] = [
        lambda: Text(text=text(dice)),
        lambda: Image(source=f"https://example.org/{SECRET}.png"),
        lambda: Image(source="data:image/png;base64,QUJDQUJD", detail="low"),
        lambda: File(data="data:text/plain;base64,QUJD", filename=f"{SECRET}.txt"),
        lambda: Audio(data="UklG" * 8, format="wav", extra={"transcript": text(dice)}),
        lambda: Opaque(item={"type": "strange", "said": text(dice)}),
    ]
    return dice.choice(kinds)()


def call(session: Session, dice: random.Random, number: int) -> None:
    """Add a call that may be withheld, and perhaps its result, which is withheld."""
    private = dice.random() < 0.5
    name = dice.choice(["look", "look at it!", "näher"])
    id = dice.choice([f"c{number}", f"x y!{number}"])
    said = text(dice) if private else "plainly"
    given: object = dice.choice([{"of": said}, [said], said, {"a": [{"b": said}]}])
    session.add_tool_call(name, given, call_id=id, metadata=TYPED if private else None)
    if dice.random() < 0.8:
        output: object = dice.choice([text(dice), [text(dice)], {"found": text(dice)}])
        session.add_tool_result(name, output, call_id=id, status=dice.choice(["success", "error"]), metadata=TYPED)


def withhold(session: Session, dice: random.Random) -> None:
    """Add some entries to an open interaction, most of which are withheld."""
    for number in range(dice.randrange(1, 6)):
        match dice.choice(["user", "user", "call", "system", "context", "thought", "plain"]):
            case "user":
                content: Any = dice.choice([text(dice), [part(dice) for _ in range(dice.randrange(1, 4))]])
                session.add_user_message(content, metadata=TYPED, name=dice.choice([None, "ann"]))
            case "call":
                call(session, dice, number)
            case "system":
                session.add_system_message(text(dice), metadata=TYPED)
            case "context":
                session.add_context(text(dice), name=dice.choice(["notes", SECRET]), metadata=TYPED)
            case "thought":
                content = (Reasoning(text=text(dice)), Text(text=text(dice)))
                session.add_entries([Entry(role="assistant", content=content, metadata=TYPED)])
                session.add_user_message("go on")
            case _:
                session.add_user_message(f"plain {number}")


ODD: dict[str, Entry] = {
    "spaces at its ends": Entry(content=f" {SECRET}  \n"),
    "spaces in an answer": Entry(role="assistant", content=f"{SECRET} \n "),
    "a picture": Entry(content=(Image(source=f"https://example.org/{SECRET}.png"),)),
    "a document": Entry(content=(File(data="data:text/plain;base64,QUJD", filename=f"{SECRET}.txt"),)),
    "a thought": Entry(role="assistant", content=(Reasoning(text=SECRET), Text(text="I see"))),
    "an item": Entry(content=(Opaque(item={"type": "strange", "said": SECRET}),)),
    "a call by an odd name": Entry(
        kind="tool_call", role="assistant", name="näher, bitte", call_id="c 1!", content=f'["{SECRET}"]'
    ),
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("odd", ODD)
def test_entries_rewritten_by_a_format_stay_withheld_in_replace(format: Any, odd: str) -> None:
    """That includes entries that a format trims, renames, merges with other parts, or cannot represent."""
    with Memory.open("memory://", privacy={"non_persistable_message_types": ["health"]}) as memory:
        session = memory.session("s", format=format, max_tokens=5_000)
        session.add_user_message("may I?")
        session.add_entries([replace(ODD[odd], metadata=TYPED)])
        session.add_user_message("and then?")
        given = session.context()
        session.replace(given.messages, seen=given)

        assert SECRET not in json.dumps(session.export())
        assert "and then?" in json.dumps(session.export())


@pytest.mark.sampled
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_replace_with_any_context_stores_nothing_withheld(format: Any, seed: int) -> None:
    """`replace` stores no withheld text, with `seen` or without, once and again, and the session verifies."""
    dice, policy = random.Random(f"{seed} {format}"), {"non_persistable_message_types": ["health"]}
    seen, room = dice.random() < 0.5, dice.choice([700, 5_000, 50_000])
    with Memory.open("memory://", privacy=policy) as memory:
        session = memory.session("s", format=format, max_tokens=room)
        session.add_user_message("may I?")
        withhold(session, dice)
        for _ in range(2):
            try:
                given = session.context()
            except BudgetImpossible:
                return
            if seen and dice.random() < 0.4:
                session.add_assistant_message("you may")
            session.replace(given.messages, seen=given if seen else None)

            assert SECRET not in json.dumps(session.export())
            assert session.verify().problems == ()


def test_a_message_resembling_a_withheld_one_is_stored() -> None:
    """A message that only resembles a withheld one is stored as a new message."""
    with Memory.open("memory://", privacy={"non_persistable_message_types": ["health"]}) as memory:
        session = memory.session("s", format="anthropic", max_tokens=5_000)
        session.add_user_message("may I?")
        session.add_user_message([Text(text=SECRET), Image(source="https://example.org/a.png")], metadata=TYPED)
        session.add_tool_call("look", {"of": SECRET}, call_id="c1", metadata=TYPED)
        said = [f"not {SECRET}", "look", "may I?"]
        picture = {"type": "image", "source": {"type": "url", "url": "https://example.org/b.png"}}
        used = {"type": "tool_use", "id": "c2", "name": "look", "input": {"of": "another"}}
        answer = {"type": "tool_result", "tool_use_id": "c2", "content": "found"}
        stored = session.replace(
            [
                {"role": "user", "content": [{"type": "text", "text": one} for one in said] + [picture]},
                {"role": "assistant", "content": [used]},
                {"role": "user", "content": [answer]},
            ]
        )

        assert len(stored) == len(session.active_entries()) == 3
