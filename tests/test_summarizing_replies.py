"""Replies: every form that models answer in is understood, and what is no answer is told from one."""

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
    """A provider's object, bare or fenced JSON, steps, sections, and an answer that broke off mean the same items."""
    step = parse(reply)

    assert step is not None
    assert step.items == (EXPECTED,)


def test_items_and_missing_as_text_with_semicolons():
    """Lists may be one text with `;` between, and an item may begin with its kind."""
    step = parse(Reply(text='{"missing_entities": "Ann Lee; Oslo", "items": "goal: fix it; likes tea"}'))

    assert step.missing == ("Ann Lee", "Oslo")
    assert step.items == (SummaryItem(kind="goal", text="fix it"), SummaryItem(kind="fact", text="likes tea"))


def test_a_text_in_place_of_items():
    """The form of the paper, with the summary as one text, is understood, too; of a list the last step counts."""
    first = {"Missing_Entities": "a", "Denser_Summary": "short"}
    last = {"Missing_Entities": "b; c", "Denser_Summary": "longer text"}

    step = parse(Reply(text=json.dumps([first, last])))

    assert (step.text, step.missing, step.items) == ("longer text", ("b", "c"), ())


def test_nothing_missing_is_not_the_same_as_nothing_said_of_it():
    """An empty list says that nothing is missing; without the key it is not known."""
    assert parse(Reply(text='{"missing": []}')).missing == ()
    assert parse(Reply(data={"items": [ITEM]})).missing is None


def test_items_are_one_line_each():
    """Line breaks in an item become blanks, so that no item can look like two."""
    step = parse(Reply(data={"items": [{"kind": "goal", "text": "a\n- b", "status": "x\ny"}]}))

    assert rendered(step.items) == "Goal:\n- a - b (x y)"


@pytest.mark.parametrize(
    "text", ["", "just prose", "{", "[1, 2]", 'prose with ["a"]', '{"a": 1}', "[" * 100_000, "{" * 100_000, "null"]
)
def test_what_is_no_pass_is_told(text):
    """Prose, broken JSON and JSON of another meaning are no pass."""
    assert parse(Reply(text=text)) is None


def test_plain_text_loses_its_fence_and_its_thoughts():
    """A plain answer is taken without the fence around it and the thoughts before it."""
    assert plain(Reply(text="<think>hm</think>\n```text\nThey met.\n```")) == "They met."
    assert plain(Reply(data={"summary": "They met."})) == "They met."


def test_sections_come_in_a_fixed_order_and_empty_ones_do_not():
    """Sections have titles and a line for each item."""
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
    """Whatever a summarizer answers, reading it raises nothing, and items are lines with text."""
    step = parse(Reply(data=data, text=text))

    for item in step.items if step is not None else ():
        assert item.text
        assert "\n" not in item.text
