"""Terms, stems, parts and questions: what an entry is found by, and what a question asks for."""

from __future__ import annotations

import json
import random
import re
import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.log.entry import LAST_MOMENT, Entry, Reasoning, Text, microseconds_of, moment
from palimpsest.recall.analysis import LONGEST, terms
from palimpsest.recall.parts import LENGTH, MOST, parts_of, pieces
from palimpsest.recall.porter import stem
from palimpsest.recall.questions import MOST_TERMS, PAIR, question

ENDINGS = (
    "s es ies ed ing eed ational tional izer bli logi ly ness ful icate ement ent sion tion ism ous ive ize e ll y"
)
TERM = re.compile(r"[^\x00-/:-^`{-\x7f\s]+")
"""Matches a term: no blanks, quotes or ASCII punctuation but `_`, and no ASCII capitals."""


def words_of_the_docs() -> set[str]:
    """Return many English words, taken from the documentation."""
    pages = (Path(__file__).parent.parent / "docs").glob("**/*.md")
    return {word for page in pages for word in re.findall("[a-z]+", page.read_text(encoding="utf-8").lower())}


def test_stems_equal_those_of_sqlites_porter_tokenizer() -> None:
    """Words have the stems of SQLite's porter tokenizer, except for non-words such as an ending alone or a double y."""
    rng = random.Random(1)
    made = {
        "".join(rng.choices("aeiouybcdlmnrstwxz", k=rng.randint(1, 6))) + rng.choice(ENDINGS.split())
        for _ in range(20_000)
    }
    words = sorted(
        word for word in words_of_the_docs() | made if len(word) < 60 and "yy" not in word and word not in ENDINGS
    )
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE VIRTUAL TABLE words USING fts5(word, tokenize='porter ascii', content='')")
        db.execute("CREATE VIRTUAL TABLE stems USING fts5vocab(words, instance)")
        db.executemany("INSERT INTO words (rowid, word) VALUES (?, ?)", enumerate(words))
        stems = {words[row]: found for found, row in db.execute("SELECT term, doc FROM stems")}

    assert len(stems) == len(words) > 10_000
    assert {word: stem(word) for word in words} == stems


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Running runners RAN", ["run", "runner", "run"]),
        ("She didn't; that's Caroline's", ["she", "do", "carolin"]),
        ("max_retry_count=5", ["max", "retri", "count", "5"]),
        ("parseHttpResponse", ["pars", "http", "respons", "parsehttprespons"]),
        ("HTTPServer PDFs iPhone", ["http", "server", "httpserver", "pdf", "phone", "iphon"]),
        ("src/app/main.py", ["src", "app", "main", "py"]),
        ("HAT170 v2 10am", ["hat170", "hat", "170", "v2", "2", "10am", "10", "am"]),
        ("$1,299.50 or 1,2", ["1299", "50", "or", "1", "2"]),
        ("Café Ångström straße", ["cafe", "angstrom", "strass"]),
        ("ΑΘΉΝΑ Ёлка", ["αθηνα", "елка"]),
        ("Łódź TROMSØ Đakovo \u0131l\u0131k œuvre", ["lodz", "tromso", "dakovo", "ilik", "oeuvr"]),
        ("party\U0001f389\U0001f382 I \u2764\ufe0f it", ["parti", "\U0001f389", "\U0001f382", "\u2764"]),
        ("\U0001f469\u200d\U0001f467 \u845b\U000e0100", ["\U0001f469", "\U0001f467", "\u845b"]),
        ("\u2b50\u23f0 \u2800 done", ["\u2b50", "\u23f0", "do"]),
        ("הַחָתוּל القِطَّة", ["החתול", "القطة"]),
        ("我的猫", ["我", "我的", "的", "的猫", "猫"]),
        ("東京タワー2023年", ["東", "東京", "京", "京タ", "タワ", "ワー", "2023", "年"]),
        ("고양이가 물을", ["고양", "양이", "이가", "물을"]),
        ("ไทย", ["ไท", "ทย"]),
        ("\uff21\uff22\uff23 ①", ["abc", "1"]),
        ("\ud800 … \x00", []),
    ],
)
def test_words_numbers_and_identifiers_give_the_expected_terms(text: str, found: list[str]) -> None:
    """An identifier has terms for the whole and its pieces, a word for its stem, an unspaced script for pairs of
    letters."""
    assert terms(text) == found


@given(st.text())
def test_terms_hold_no_characters_of_index_syntax(text: str) -> None:
    """A term has no blank, quote or punctuation that an index could take for syntax, whatever the text is."""
    for term in terms(text):
        assert TERM.fullmatch(term), term
        assert term == term.lower() or not term.isascii()
        assert len(term) <= LONGEST


@given(st.text(), st.text())
def test_terms_of_two_lines_are_those_of_each_line(one: str, other: str) -> None:
    """A line end separates words, so that the terms of two lines are those of each line."""
    assert terms(f"{one}\n;\n{other}") == terms(one) + terms(other)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "text",
    [
        "a" + "\u0316\u0300" * (5 * 10**5),
        *("a" * 10**6, "aB" * 10**6, "é," * 10**6, "漢" * 10**6, "'" * 10**6, "1,000" * 10**5),
    ],
)
def test_a_megabyte_of_hostile_text_is_analysed_within_seconds(text: str) -> None:
    """A megabyte of any text is analysed within seconds."""
    found = terms(text)

    assert all(len(term) <= LONGEST for term in found)


@given(st.text(alphabet='ab .\n,;{"\\n\u00e9', max_size=3000))
def test_pieces_of_a_text_lie_end_to_end(text: str) -> None:
    """Pieces of a text lie end to end, and none is much longer than intended."""
    cut = list(pieces(text))

    assert [start for start, _ in cut] == [0, *(end for _, end in cut[:-1])]
    assert cut[-1][1] == len(text)
    assert all(end - start <= LENGTH + LENGTH // 4 for start, end in cut)


def test_texts_are_cut_into_pieces_at_sentence_ends() -> None:
    """A text is cut behind sentences."""
    text = "One sentence of some words. " * 60

    cut = [text[start:end] for start, end in pieces(text)]

    assert len(cut) > 2
    assert all(piece.endswith(". ") for piece in cut)


@pytest.mark.parametrize("between", [",", "\t", '","', "/", "|", ";", "\\n", "\\\\n", "=", ">\u3000<"])
def test_texts_without_blanks_are_cut_between_words(between: str) -> None:
    """A text without blanks, such as JSON, tables or addresses, is still cut between words."""
    words = [f"word{number}" for number in range(1000)]

    parts = parts_of(Entry(content="[" + between.join(words) + "]"))

    assert len(parts) > 5
    assert {term for part in parts for term in part.terms} >= set(words)


@pytest.mark.parametrize("text", ["x" * 2_000_000, "word " * 400_000, "a. " * 700_000])
def test_a_long_entry_has_no_more_parts_than_keys_can_number(text: str) -> None:
    """A text of megabytes has longer parts instead of more parts than a key can number."""
    assert 1 < len(list(pieces(text))) <= MOST


def test_the_first_part_holds_speaker_and_day_once() -> None:
    """The first part has the speaker's name and the day; a name at the text's beginning is not repeated."""
    at = microseconds_of(datetime.fromisoformat("2023-05-08T13:56:00+00:00"))

    named, unnamed = (
        parts_of(Entry(content=text, name="Caroline", at=at))[0].terms for text in ("Caroline: Hello!", "Hello!")
    )

    assert named == unnamed == ["_2023_05", "_2023_05_08", "carolin", "hello"]
    long = parts_of(Entry(content="Words of a story. " * 100, name="Caroline", at=at))
    assert [part.terms.count("carolin") for part in long] == [1, *(0 for _ in long[1:])]


def test_json_parts_are_found_by_keys_and_values() -> None:
    """Arguments and results in JSON are found by keys and values, whatever is escaped."""
    content = '{"user_id": "mia_li_3668", "note": "line\\nbreak caf\\u00e9"}'

    (part,) = parts_of(Entry(kind="tool_call", role="assistant", content=content, name="get_user"))

    assert part.terms == ["get", "user", "user", "id", "mia", "li", "3668", "note", "line", "break", "cafe"]


@pytest.mark.parametrize(
    "text",
    [
        "C:\\reports\\new_budget.txt",
        "\\\\server\\nina",
        "a\nbudget\tof nina",
        "caf\u00e9 \U0001f600",
        "\u0434\u043e\u043c\n\u043e\u043d",
    ],
)
@pytest.mark.parametrize("escaped", [True, False])
@pytest.mark.parametrize("times", [1, 2])
def test_text_escaped_in_json_is_found_in_its_plain_form(text: str, escaped: bool, times: int) -> None:
    """Paths with backslashes, letters beyond ASCII and lines are found in JSON, even in JSON inside JSON."""
    content = text
    for _ in range(times):
        content = json.dumps({"note": content}, ensure_ascii=escaped)

    (part,) = parts_of(Entry(content=content))

    assert set(part.terms) >= set(terms(text))


def test_tombstones_and_reasoning_have_no_parts() -> None:
    """Tombstones, reasoning, and entries without text and name have no parts, so they are never found."""
    assert parts_of(Entry(content="Secret", erased=True)) == []
    assert parts_of(Entry(content=(Reasoning(text="Thoughts"),))) == []
    assert parts_of(Entry(content="?!")) == []
    assert parts_of(Entry(content=(Text(text="One"), Text(text="two"))))[0].terms == ["on", "two"]


def test_a_question_asks_for_its_words_without_question_words() -> None:
    """A question asks for its words without question words; adjacent words count more together."""
    asked = question("When did Caroline go to the support group?")

    assert dict(zip(asked.terms, asked.weights, strict=True)) == {
        "carolin": 1.0,
        "go": 1.0,
        "support": 1.0,
        "group": 1.0,
        "carolin go": PAIR,
        "support group": PAIR,
    }
    assert not asked.own


@pytest.mark.parametrize("behind", [True, False])
def test_a_question_before_or_after_a_long_pasted_text_is_asked(behind: bool) -> None:
    """The question before or behind a long pasted text is among the terms asked for."""
    asks, text = "How is the parrot called?", " ".join(f"line{number} parrot" for number in range(500))

    asked = question(f"{text} {asks}" if behind else f"{asks} {text}")

    assert {"parrot", "call", "parrot call"} <= set(asked.terms)
    assert len([term for term in asked.terms if " " not in term]) == MOST_TERMS


def test_a_question_of_only_question_words_asks_for_one_of_them() -> None:
    """A question of question words alone asks for one of them; one without any word asks for nothing."""
    assert question("Who are you?").terms == ("who",)
    assert question("?! …").terms == question("Is it this?").terms == ()


@pytest.mark.parametrize(
    ("text", "several"),
    [
        ("How many cats does Ann have?", True),
        ("how often did it rain", True),
        ("What books has Melanie read?", True),
        ("Which classical pieces did they play?", True),
        ("Which of her brothers are taller?", True),
        ("Where has he been?", True),
        ("What have Ann and Bo seen?", True),
        ("And what has she painted so far?", True),
        ("What glass did he break?", False),
        ("What is the name of Ann's cats?", False),
        ("What does Ann's cat eat?", False),
        ("When did they paint these walls?", False),
        ("How long has he been ill?", False),
        ("Why has it failed?", False),
        ("Which?", False),
        ("how", False),
        ("", False),
    ],
)
def test_plurals_and_numbers_ask_for_several_things(text: str, several: bool) -> None:
    """A plural, a number, or what somebody has done asks for several things."""
    assert question(text).several is several


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ('Where is "the lady of the lake"?', "ladi lake"),
        ("What is max_retry_count?", "max retri count"),
        ("Did 2.10.3 fix src/app/main.py?", "2 10 3"),
        ("Who wrote to ann@example.org?", "ann exampl org"),
    ],
)
def test_quoted_texts_and_identifiers_are_asked_for_as_phrases(text: str, phrase: str) -> None:
    """A quoted text and an identifier are asked for as phrases."""
    assert phrase in question(text).terms


@given(st.text())
def test_a_question_has_no_syntax_and_gives_bounded_terms(text: str) -> None:
    """Nothing in a question is syntax: it gives a bounded number of words and pairs of words."""
    asked = question(f'"{text}" {text}')

    assert len(asked.terms) == len(asked.weights) == len(set(asked.terms)) < 64
    assert all(TERM.fullmatch(word) for term in asked.terms for word in term.split(" "))


NOW = microseconds_of(datetime.fromisoformat("2025-06-18T12:00:00+00:00"))  # a Wednesday


@pytest.mark.parametrize(
    ("text", "since", "until"),
    [
        ("What happened on 8 May, 2023?", "2023-05-08", "2023-05-09"),
        ("What happened on May 8th 2023?", "2023-05-08", "2023-05-09"),
        ("2023-05-08?", "2023-05-08", "2023-05-09"),
        ("Who came on December 24?", "2024-12-24", "2024-12-25"),
        ("Who came on May 24?", "2025-05-24", "2025-05-25"),
        ("Where was I in May 2023?", "2023-05-01", "2023-06-01"),
        ("Where was I last May?", "2025-05-01", "2025-06-01"),
        ("Where was I last June?", "2024-06-01", "2024-07-01"),
        ("Where was I in December?", "2024-12-01", "2025-01-01"),
        ("Where was I in 2022?", "2022-01-01", "2023-01-01"),
        ("yesterday", "2025-06-17", "2025-06-18"),
        ("What did I say last Wednesday?", "2025-06-11", "2025-06-12"),
        ("two weeks ago", "2025-06-01", "2025-06-08"),
        ("last week", "2025-06-09", "2025-06-16"),
        ("this month", "2025-06-01", "2025-07-01"),
        ("last year", "2024-01-01", "2025-01-01"),
    ],
)
def test_dates_in_a_question_become_spans_of_days(text: str, since: str, until: str) -> None:
    """Dates, months, years and relative days in a question are spans of whole days."""
    (span,) = question(text, NOW).spans

    assert (moment(span.since).date().isoformat(), moment(span.until).date().isoformat()) == (since, until)


@pytest.mark.parametrize("text", ["31 June", "2023-13-41", "It may cost $2000", "version 2.10", "year 0", "MMXX"])
def test_impossible_dates_and_plain_numbers_are_not_times(text: str) -> None:
    """Impossible dates and plain numbers are words, not times."""
    assert question(text, NOW).spans == ()


def test_a_question_with_a_day_or_month_asks_for_its_term() -> None:
    """A question with a day or month asks for the term that entries of that time have; without a clock it does not."""
    day, month = question("on 8 May 2023", NOW).terms, question("in May 2023", NOW).terms

    entry = parts_of(Entry(content="Hello", at=microseconds_of(datetime.fromisoformat("2023-05-08T23:59:00+00:00"))))[0]

    assert entry.terms[:2] == ["_2023_05", "_2023_05_08"]
    assert "_2023_05_08" in day
    assert "_2023_05" in month
    assert len([term for term in question("last week", NOW).terms if term.startswith("_")]) == 7
    assert not any(term.startswith("_") for term in question("on 8 May 2023").terms)


@given(st.text(alphabet="0123456789 -,/MayJuneago lastweek"), st.integers(0, LAST_MOMENT))
def test_date_spans_of_any_text_begin_before_they_end(text: str, now: int) -> None:
    """Whatever looks like a date, a span begins before it ends, or there is none."""
    assert all(span.since < span.until for span in question(text, now).spans)
