"""Replies of summarizers: every form that models answer in is read, and what is no answer is recognised."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.log.summary import SummaryItem
from palimpsest.summaries import Reply
from palimpsest.summaries.replies import parse, plain
from palimpsest.summaries.sections import rendered
from summaries import texts

ITEM = {"kind": "decision", "text": "use Postgres", "status": "done", "sources": [3, "4"]}
EXPECTED = SummaryItem(kind="decision", text="use Postgres", status="done", sources=(3, 4))


@pytest.mark.parametrize(
    "reply",
    [
        Reply(data={"items": [ITEM]}),
        Reply(data=[ITEM]),
        Reply(data=json.dumps({"items": [ITEM]})),
        Reply(text=json.dumps({"items": [ITEM]})),
        Reply(text=json.dumps([ITEM])),
        Reply(text=f"```json\n{json.dumps({'items': [ITEM]})}\n```"),
        Reply(text=f"Here it is:\n{json.dumps({'items': [ITEM]}, indent=2)}\nDone."),
        Reply(text=json.dumps([{"missing": [], "items": []}, {"Missing_Items": "a", "Items": [ITEM]}])),
        Reply(text=json.dumps({"Decisions": [{**ITEM, "kind": None}]})),
        Reply(text=f"<think>{{so}} [what]</think>{json.dumps({'items': [ITEM]})}"),
        Reply(text=f'{{"items": [{json.dumps(ITEM)}, {{"kind": "open", "te'),
    ],
    ids=[
        "object",
        "list",
        "text of an object",
        "bare",
        "bare list",
        "fenced",
        "in prose",
        "steps",
        "sections",
        "thoughts",
        "cut",
    ],
)
def test_items_are_read_in_every_form(reply):
    """A provider's object, bare or fenced JSON, steps, sections and a broken-off answer are read as the same items."""
    step = parse(reply)

    assert step is not None
    assert step.items == (EXPECTED,)


def test_lists_may_be_one_text_with_semicolons():
    """A list may be one text with `;` between its parts, and an item may begin with its kind."""
    step = parse(Reply(text='{"missing_entities": "Ann Lee; Oslo", "items": "goal: fix it; likes tea"}'))

    assert step.missing == ("Ann Lee", "Oslo")
    assert step.items == (SummaryItem(kind="goal", text="fix it"), SummaryItem(kind="fact", text="likes tea"))


def test_a_text_may_take_the_place_of_items():
    """A summary as one text, the form of the paper, is read; of a list of steps the last one counts."""
    first = {"Missing_Entities": "a", "Denser_Summary": "short"}
    last = {"Missing_Entities": "b; c", "Denser_Summary": "longer text"}

    step = parse(Reply(text=json.dumps([first, last])))

    assert (step.text, step.missing, step.items) == ("longer text", ("b", "c"), ())


def test_an_empty_list_differs_from_none():
    """An empty list says that nothing is missing; without the key that is not known."""
    assert parse(Reply(text='{"missing": []}')).missing == ()
    assert parse(Reply(data={"items": [ITEM]})).missing is None


def test_items_are_one_line_each():
    """Line breaks in an item become spaces, so that no item can look like two."""
    step = parse(Reply(data={"items": [{"kind": "goal", "text": "a\n- b", "status": "x\ny"}]}))

    assert rendered(step.items) == "Goal:\n- a - b (x y)"


@pytest.mark.parametrize(
    "text", ["", "just prose", "{", "[1, 2]", 'prose with ["a"]', '{"a": 1}', "[" * 100_000, "{" * 100_000, "null"]
)
def test_an_invalid_pass_is_recognised(text):
    """Prose, broken JSON and JSON of another meaning are no pass."""
    assert parse(Reply(text=text)) is None


def test_plain_text_loses_its_fence_and_its_thoughts():
    """A plain answer is read without the fence around it and the thoughts before it."""
    assert plain(Reply(text="<think>hm</think>\n```text\nThey met.\n```")) == "They met."
    assert plain(Reply(data={"summary": "They met."})) == "They met."


def test_sections_come_in_a_fixed_order():
    """Sections are rendered in a fixed order with titles, a line for each item, and without empty ones."""
    items = [SummaryItem(kind="next", text="pay"), SummaryItem(kind="goal", text="buy", status="open")]

    assert rendered(items) == "Goal:\n- buy (open)\nNext step:\n- pay"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["items", "missing", "summary", "kind", "text", "sources", "goal"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(json_values, texts)
def test_any_reply_is_read_or_refused(data, text):
    """Reading any reply raises nothing, and its items are lines with text."""
    step = parse(Reply(data=data, text=text))

    for item in step.items if step is not None else ():
        assert item.text
        assert "\n" not in item.text
