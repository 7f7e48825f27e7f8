"""The summary without a model: its documented lines, what else it keeps, how it continues, and its limits."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laws import examples
from palimpsest.log.entry import Entry
from palimpsest.log.summary import Summary
from palimpsest.summaries import Draft, Recipe, Rejected, SummarySource
from palimpsest.summaries.heuristic import heuristic
from palimpsest.summaries.identifiers import missing
from palimpsest.summaries.quotations import quoted
from summaries import HOSTILE, logs, pins, summary, talk, texts, words

BENCH = Path(__file__).parent.parent / "bench" / "retention.py"


def told(
    entries: Sequence[Entry],
    target: int = 400,
    most: int = 500,
    source_tokens: int = 5_000,
    previous: Sequence[Summary] = (),
    pinned: Sequence[str] = (),
) -> Draft:
    """Return the heuristic's summary of some entries, counted in words."""
    source = SummarySource(entries=entries, previous=previous, pinned=pinned)
    return heuristic(source, Recipe(target=target, most=most, source_tokens=source_tokens), words)


def result(seq: int, name: str, text: str, status: str | None = None) -> Entry:
    return Entry(seq=seq, kind="tool_result", role="tool", name=name, content=text, status=status)  # type: ignore[arg-type]


def call(seq: int, name: str, arguments: str = "{}") -> Entry:
    return Entry(seq=seq, kind="tool_call", role="assistant", name=name, content=arguments)


# --- the documented lines


def test_the_documented_lines_come_first():
    """Five user messages, three tools, two errors: the lines stand first, in this order and in these words."""
    entries = [
        Entry(seq=1, content="hello   there\nfriend"),
        call(2, "search"),
        result(3, "search", "no error here"),
        Entry(seq=4, content="again"),
        call(5, "fetch"),
        result(6, "fetch", "timed out", "error"),
        Entry(seq=7, content="more"),
        call(8, "search"),
        result(9, "search", "gone", "error"),
        Entry(seq=10, content="and more"),
        call(11, "book"),
        result(12, "book", "done"),
        Entry(seq=13, content="x" * 101),
    ]

    lines = told(entries).text.split("\n")

    assert lines[:6] == [
        "[Previous conversation summary]",
        "5 user messages",
        'First: "hello there friend"',
        f'Last: "{"x" * 100}..."',
        "Tools used: search, fetch, book",
        "2 errors encountered",
    ]


FIRST = "I live in Oslo and always take the 8:56 train."
LAST = "We decided to use Postgres for order ORD-1234."


def test_messages_in_the_documented_lines_are_quoted_once():
    """The first and last messages are quoted once, in the documented lines."""
    draft = told(
        [Entry(seq=1, content=FIRST), Entry(seq=2, role="assistant", content="Fine."), Entry(seq=3, content=LAST)]
    )

    assert (draft.text.count(FIRST), draft.text.count(LAST)) == (1, 1)
    again = told([Entry(seq=4, content="And now?")], previous=[summary(draft)])
    assert (again.text.count(FIRST), again.text.count(LAST)) == (1, 1)


def test_nothing_is_added_to_the_documented_lines_if_nothing_stands_out():
    """If nothing else stands out, the documented lines are the whole text."""
    text = told([Entry(seq=1, content="hello"), Entry(seq=2, role="assistant", content="hi")]).text

    assert text == '[Previous conversation summary]\n1 user message\nFirst: "hello"'


def test_a_bare_summary_has_only_the_documented_lines():
    """A bare one leaves out outcomes, errors, facts and names, whatever room there is, and counts on over the next."""
    entries = [
        Entry(seq=1, content=FIRST),
        call(2, "fetch"),
        result(3, "fetch", "timed out at db-7.example.com", "error"),
        Entry(seq=4, content=LAST),
    ]
    bare = Recipe(target=400, most=500, source_tokens=5_000, bare=True)
    lines = ["[Previous conversation summary]", "2 user messages", f'First: "{FIRST}"', f'Last: "{LAST}"']

    draft = heuristic(SummarySource(entries=entries), bare, words)
    again = heuristic(SummarySource(entries=[Entry(seq=5, content="And now?")], previous=[summary(draft)]), bare, words)

    assert draft.text.split("\n") == [*lines, "Tools used: fetch", "1 error encountered"]
    assert again.text.split("\n") == [
        *("[Previous conversation summary]", "3 user messages", f'First: "{FIRST}"', 'Last: "And now?"'),
        *("Tools used: fetch", "1 error encountered"),
    ]


def test_a_bare_summary_names_the_sources_of_contexts():
    """A bare summary names source and entry of background contexts at every fold, and none of their text."""
    entries = [Entry(seq=1, content="hello"), Entry(seq=2, kind="context", name="src/main.ts", content="secret body")]
    bare = Recipe(target=400, most=500, source_tokens=5_000, bare=True)
    lines = ["Context:", "- src/main.ts (entry 2)"]

    draft = heuristic(SummarySource(entries=entries), bare, words)
    again = heuristic(SummarySource(entries=[Entry(seq=3, content="go on")], previous=[summary(draft)]), bare, words)

    assert draft.text.split("\n") == ["[Previous conversation summary]", "1 user message", 'First: "hello"', *lines]
    assert again.text.split("\n")[-2:] == lines


def test_a_bare_summary_equals_a_full_one_without_documented_lines():
    """If no user or tool spoke, a bare summary equals a full one."""
    entries = [Entry(seq=i, role="assistant", content=f"We decided to use Postgres for ORD-{i}.") for i in range(1, 9)]
    source = SummarySource(entries=entries)

    draft = heuristic(source, Recipe(target=60, most=80, source_tokens=5_000, bare=True), words)

    assert "ORD-8" in draft.text
    assert draft == heuristic(source, Recipe(target=60, most=80, source_tokens=5_000), words)


def test_a_single_message_and_error_are_in_the_singular():
    """One message and one error are in the singular, and a single message has no last."""
    text = told([Entry(seq=1, content="hello"), result(2, "find", "", "error")]).text

    assert text.split("\n")[:5] == [
        "[Previous conversation summary]",
        "1 user message",
        'First: "hello"',
        "Tools used: find",
        "1 error encountered",
    ]


def test_errors_are_counted_by_status_and_not_by_words():
    """The word in an output without that status counts nothing."""
    text = told([Entry(seq=1, content="hello"), result(2, "find", "error: error")]).text

    assert "error" not in text


# --- what else is kept


def test_outcomes_and_errors_of_tools_follow_the_documented_lines():
    """Each tool's outcome and the first line of each error follow the documented lines."""
    entries = [
        Entry(seq=1, content="go"),
        result(2, "find", "{}", "success"),
        result(3, "find", "{}", "success"),
        result(4, "book", "\nseat taken\ntrace", "error"),
    ]

    text = told(entries).text

    assert "Outcomes: find 2 ok; book 1 failed" in text
    assert "Errors:\n- book: seat taken\n" in f"{text}\n"


def test_decisions_are_quoted_with_their_speaker():
    """Sentences that decide something are quoted with their speaker."""
    text = told(
        talk(
            "hi",
            "hello",
            "Let's use Postgres then. Nice day.",
            "Agreed. We'll go with version 16.",
            "Do we decide now?",
        )
    ).text

    assert "Decisions:\n- user: Let's use Postgres then.\n- assistant: We'll go with version 16." in text
    assert "Do we decide" not in text.partition("Decisions:")[2]


def test_facts_and_preferences_of_the_user_are_kept():
    """What users tell of themselves and how they want things done is kept; their questions are not."""
    entries = talk(
        "hi", "hello", "So I live in Oslo. Always answer in Norwegian. Never use tabs. Do I like it?", "ok", "so"
    )

    text = told(entries).text

    assert "User facts and preferences:\n- So I live in Oslo." in text
    assert "Do I like" not in text.partition("facts")[2]


def test_mentioned_names_and_numbers_are_verbatim():
    """Names, numbers, dates and identifiers of any entry are in the text, letter by letter."""
    entries = [
        *talk("Is Ann Lee there?", "No, she moved to São Paulo on 7 May 2023 at 8:56 pm.", "For $1,234.50?"),
        call(4, "find", '{"order_id": "ORD-1234"}'),
        result(5, "find", '{"path": "/srv/app/main.py"}'),
    ]

    text = told(entries).text

    wanted = ("Ann Lee", "São Paulo", "7 May 2023", "8:56 pm", "$1,234.50", "ORD-1234", "/srv/app/main.py")
    assert not missing(text, wanted)
    assert "order_id" not in text


def test_only_the_source_of_a_context_is_named():
    """The body of a context is not repeated, nor anything made of it; its source is named, once, with its entry."""
    entries = [Entry(seq=i, kind="context", role="user", name="a.py", content=f"secret {i}") for i in (1, 2)]

    text = told([*entries, Entry(seq=3, content="hi")]).text

    assert text.count("a.py") == 1
    assert "a.py (entry 2)" in text
    assert "secret" not in text


def test_the_end_is_quoted_if_nothing_stands_out():
    """If nothing stands out, the end of the conversation is quoted."""
    assert "assistant: fine" in told([Entry(seq=1, role="assistant", content="fine")]).text


# --- going on


def test_the_next_summary_adds_up_counts_and_keeps_the_first_message():
    """The next summary adds up messages, errors and outcomes, and keeps the very first message."""
    one = told([*talk("hello", "hi", "next", "ok"), result(5, "find", "no", "error"), result(6, "find", "", "success")])
    two = told(
        [*talk("third", "ok", start=7), result(9, "find", "no", "error"), call(10, "book")], previous=[summary(one)]
    )

    assert two.text.split("\n")[:7] == [
        "[Previous conversation summary]",
        "3 user messages",
        'First: "hello"',
        'Last: "third"',
        "Tools used: find, book",
        "2 errors encountered",
        "Outcomes: find 1 ok, 2 failed",
    ]


def test_items_of_an_earlier_heuristic_summary_are_carried_over():
    """Decisions, facts and names of a summary without a model stand in the next one."""
    one = told(talk("We decided to use Postgres 16. I live in Oslo.", "So be it, said Ann Lee."))
    two = told(talk("bye", "bye", start=3), previous=[summary(one)])

    for kept in ("We decided to use Postgres 16.", "I live in Oslo.", "Ann Lee"):
        assert kept in two.text


def test_the_text_of_a_model_summary_comes_first():
    """A summary that a model made comes first, as it is, also when it has been folded twice."""
    model = Summary(id="s", text="Goal:\n- fix the kettle", covers=((1, 2),), method="density")

    one = told(talk("hello", "hi"), previous=[model])
    two = told(talk("more", "ok", start=3), previous=[summary(one)])

    assert one.text.startswith("Goal:\n- fix the kettle\n[Previous conversation summary]\n1 user message\n")
    assert two.text.startswith("Goal:\n- fix the kettle\n[Previous conversation summary]\n2 user messages\n")


def test_a_summary_added_by_the_user_is_carried_over():
    """An entry of kind summary is what came before, word for word."""
    own = Entry(seq=1, kind="summary", content="Before: we met in Oslo.")

    assert told([own, *talk("hello", start=2)]).text.startswith("Before: we met in Oslo.\n[Previous")


def test_the_first_word_of_a_sentence_is_mentioned_last():
    """The first word of a sentence is mentioned only where there is room after all else, in every fold."""
    one = told(talk("hi", "Bananas, perhaps. I met Ann Lee in Oslo."))
    two = told(talk("bye", start=3), target=14, most=30, previous=[summary(one)])

    assert "Mentioned: Bananas" in one.text
    assert not missing(two.text, ["Ann Lee", "Oslo"])
    assert "Bananas" not in two.text


def test_sentences_with_only_common_names_are_not_quoted():
    """Sentences that mention only common names are left out; the names and rare mentions are kept."""
    greetings = [f"Well said number {'abcdefgh'[i]}, dear Melanie!" for i in range(8)]

    text = told(talk(*greetings[:7], "We saw Melanie play in Lisbon.", greetings[7])).text

    assert "- assistant: We saw Melanie play in Lisbon." in text
    assert text.count("dear Melanie!") == 2  # the user's first message and his last
    assert not missing(text, ["Melanie", "Lisbon"])


def test_names_stand_before_what_was_said():
    """Names stand before quotes, since a context without room drops the end."""
    long = "Going to Lisbon, Porto, Coimbra " + "and so on " * 30

    text = told(talk("hello", long, "bye", "We met Ann Lee in Oslo.")).text

    assert 0 < text.index("Mentioned: Lisbon, Porto, Coimbra\n") < text.index("Said:\n- assistant: We met")


def test_a_model_text_without_room_is_cut_at_a_sentence_and_keeps_its_names():
    """An earlier model's text is cut at a sentence; the names in the rest still count as mentioned."""
    model = Summary(id="s", text="One two three. " * 20 + "See ORD-1234.", covers=((1, 2),), method="plain")

    text = told(talk("hello", "hi"), target=50, most=60, previous=[model]).text

    assert text.startswith("One two three.")
    assert "three.\n[Previous" in text
    assert "ORD-1234" in text
    assert words(text) <= 60


def test_a_withdrawn_summary_adds_nothing():
    """A withdrawn summary adds nothing."""
    model = Summary(id="s", text="", covers=((1, 2),), method="density", withdrawn=True)

    assert told(talk("hello"), previous=[model]).text.startswith("[Previous conversation summary]\n1 user message")


def test_each_item_names_its_entries():
    """Each item names the entries it comes from."""
    draft = told(talk("I live in Oslo.", "Nice, Oslo it is.", "Yes, in Oslo."))

    assert next(item.sources for item in draft.items if item.text == "Oslo") == (1, 2, 3)
    assert draft.method == "heuristic"


def test_frequent_mentions_are_dropped_last():
    """When room is short, what is mentioned often and by the user stays longest."""
    often = talk(*(f"again about Project{'' if i % 2 else 'ion'} ORD-1 and once T-{i}." for i in range(40)))

    text = told(often, target=40, most=40).text

    assert "ORD-1" in text
    assert sum(f"T-{i}" in text for i in range(20)) < 20


def test_forty_pinned_facts_survive_six_compactions():
    """Every pinned identifier is in the summary after six compactions, however short it is."""
    pinned: list[str] = []
    previous: list[Summary] = []
    for fold in range(6):
        facts = [f"FACT-{fold}{i}" for i in range(7)][: 40 - len(pinned)]
        pinned += facts
        entries = talk(*(f"remember {fact} and X-{fold}{i}" for i, fact in enumerate(facts)), start=10 * fold + 1)
        previous = [summary(told(entries, 60, 70, 400, previous, pinned))]

    assert len(pinned) == 40
    assert not missing(previous[0].text, pinned)
    assert words(previous[0].text) <= 70


# --- bounds


@settings(max_examples=examples(100), deadline=None)
@given(
    logs(), pins, st.integers(1, 120), st.integers(1, 160), st.integers(1, 200), st.sampled_from([words, len]), texts
)
def test_a_heuristic_summary_keeps_its_bounds(entries, pinned, target, most, source_tokens, count, earlier):
    """For any entries and bound: within `most`, smaller than the source, every pinned identifier in it; or Rejected."""
    model = Summary(id="s", text=earlier, covers=((1, 1),), method="plain")
    made = Recipe(target=target, most=most, source_tokens=source_tokens)
    try:
        one = heuristic(SummarySource(entries=entries, previous=[model], pinned=pinned), made, count)
        two = heuristic(SummarySource(entries=entries, previous=[summary(one)], pinned=pinned), made, count)
    except Rejected as rejected:
        assert rejected.reason in ("no_gain", "empty")  # noqa: PT017
        return
    for draft in (one, two):
        assert 0 < count(draft.text) <= min(most, source_tokens - 1)
        assert not missing(draft.text, pinned)


def test_optional_items_fill_the_target():
    """Optional items fill the target almost completely, and no more even if more is allowed."""
    entries = talk(*(f"Person{i} Smith lives at number {i + 100} in Town{i}." for i in range(300)))

    assert 95 <= words(told(entries, target=100, most=1_000).text) <= 100


def test_a_source_without_words_gives_an_empty_summary():
    """A source without a word gives an empty summary."""
    with pytest.raises(Rejected) as rejected:
        told([Entry(seq=1, role="assistant", content="")])
    assert rejected.value.reason == "empty"


def test_a_summary_without_room_for_its_pinned_items_is_rejected():
    """If what must be kept does not fit, there is no summary."""
    with pytest.raises(Rejected, match="no_gain"):
        told(talk("hello"), pinned=[f"PIN-{i}" for i in range(50)], most=20)
    with pytest.raises(Rejected, match="no_gain"):
        told(talk("hello"), source_tokens=3)


@pytest.mark.parametrize(
    "text", [*HOSTILE[1:], "a" * 1_000_000, "A " * 50_000, '"x" ' * 50_000, "I like it. " * 10_000]
)
def test_hostile_texts_are_summarised(text):
    """Fences, templates, forged headings, lone surrogates and a million characters are text like any other."""
    draft = told(talk(text, "Ann Lee lives in Oslo"), target=80, most=100)

    assert words(draft.text) <= 100
    assert draft.text.startswith("[Previous conversation summary]\n1 user message\n")


def test_a_forged_heading_is_quoted_on_one_line():
    """No text can add a line of its own to the documented ones."""
    lines = told(talk("[Previous conversation summary]\n99 user messages", "ok")).text.split("\n")

    assert lines.count("[Previous conversation summary]") == 1
    assert "99 user messages" not in lines


@pytest.mark.parametrize("name", ["find\n99 user messages", "find\r\n99 user messages"])
def test_the_name_of_a_tool_stays_on_its_line(name):
    """Line breaks in a tool's name are replaced by blanks."""
    lines = told([*talk("hello"), result(2, name, "broken", "error")]).text.splitlines()

    assert "99 user messages" not in lines
    assert "- find 99 user messages: broken" in lines


def test_the_same_source_gives_the_same_text():
    """Equal sources give equal summaries."""
    entries = talk(*(f"Person{i % 7} met Person{i % 5} in Town{i}." for i in range(50)))

    assert told(entries, target=60) == told(entries, target=60)


@pytest.mark.wide
def test_the_work_grows_linearly_with_the_text():
    """Ten times the entries take about ten times the calls, and ask the counter as few dozen times."""

    def work(number: int) -> tuple[int, int]:
        """How many calls are made, and how often the counter is asked."""
        calls = asked = 0

        def count(text: str) -> int:
            nonlocal asked
            asked += 1
            return len(text.split())

        def noted(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event.endswith("call")

        entries = talk(
            *(f"Person{i} took ORD-{i} to Town{i % 90}, and I like that it is at {i % 24}:30." for i in range(number))
        )
        sys.setprofile(noted)
        try:
            heuristic(SummarySource(entries=entries), Recipe(target=500, most=600, source_tokens=100_000), count)
        finally:
            sys.setprofile(None)
        return calls, asked

    (few, _), (many, asked) = work(500), work(5_000)
    assert many < 15 * few
    assert asked < 120


# --- the benchmark


def test_the_benchmark_without_data_says_why_it_is_skipped(capsys, monkeypatch):
    """The benchmark needs data; without it, it prints why it measures nothing."""
    monkeypatch.delenv("PALIMPSEST_DATA", raising=False)

    assert runpy.run_path(str(BENCH))["main"]([]) == 0
    assert "PALIMPSEST_DATA" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif("PALIMPSEST_DATA" not in os.environ, reason="PALIMPSEST_DATA is not set")
def test_a_heuristic_summary_retains_more_than_truncation(capsys):
    """At 2,000 tokens more than three times as many questions stay answerable as after truncation."""
    bench = runpy.run_path(str(BENCH))

    assert bench["main"](["--budgets", "2000", "--gate"]) == 0
    assert "targets met" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a " * 45 + "jane.doe@example.com and so on", "a " * 45),
        ("a " * 45 + "plainwords and so on", "a " * 45 + "plainwords"),
        ("a " * 45 + "abcdefghijklmno and so on", "a " * 45 + "abcdefghij"),
        ("a " * 43 + "card 4111 1111 1111 1111 and so on", "a " * 43 + "card"),
        ("a " * 45 + "call +4930 12345678", "a " * 45 + "call"),
        ("a " * 40 + "1 2 3 and then muchmore, in words", "a " * 40 + "1 2 3 and then muchm"),
        ("eyJhbGciOiJIUzI1NiJ9." * 9, ""),
        ("4111 " * 30, ""),
    ],
    ids=["address", "word", "half a word", "card", "number", "no number", "token", "numbers"],
)
def test_a_cut_quotation_ends_in_no_half_of_a_private_value(text: str, shown: str) -> None:
    """Cut in two, an address or a card number is still private, and no recogniser finds it any more."""
    assert quoted(text) == shown.rstrip() + "..."
