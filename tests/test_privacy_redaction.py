"""Redacting and withholding: strings in order, pseudonyms, idempotence, stubs, and that nothing passes unchecked."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laws import examples
from palimpsest.errors import PrivacyRefused
from palimpsest.log.entry import Entry, Native, Text
from palimpsest.privacy import Span
from palimpsest.privacy.pseudonyms import Pseudonyms
from palimpsest.privacy.redaction import Redactor, Verdict
from privacy_corpus import CORPUS_PIECES
from processes import at_once
from redactors import CLEAN, KEY, MARKER, RED, TEXT, kept, marks

# --- patterns


def test_a_match_becomes_the_redaction_string() -> None:
    """A match is replaced by the policy's redaction string."""
    one = Redactor({"redact_patterns": [r"\b\d{3}-\d{2}-\d{4}\b"], "default_redaction_string": "[SSN]"})
    two = Redactor({"redact_patterns": [r"\d{3}-\d{4}", r"\S+@\S+\.com"]})

    assert one.text("My SSN is 123-45-6789") == "My SSN is [SSN]"
    assert two.text("My phone is 555-1234 and email is test@example.com") == f"My phone is {RED} and email is {RED}"


def test_patterns_run_in_order_over_earlier_results() -> None:
    """Patterns run in order, each over the result of the earlier ones."""
    redactor = Redactor({"redact_patterns": [("abc", "[X]"), ("abcd", "[Y]"), (r"say \[X\]", "[Z]")]})

    assert redactor.text("abcd") == "[X]d"
    assert redactor.text("say abc") == "[Z]"


def test_an_empty_match_changes_nothing() -> None:
    """An empty match is not replaced."""
    assert Redactor({"redact_patterns": ["z*"]}).text("abc zz") == f"abc {RED}"


@pytest.mark.parametrize("linear", [True, False], ids=["re2", "regex"])
def test_both_engines_redact_alike(linear: bool) -> None:
    """Both engines redact alike, so that the stored text does not depend on what is installed."""
    redactor = Redactor({"redact_patterns": [r"(?i)pwd\s*[:=]\s*\S+"]}, linear=linear)

    assert redactor.text("é PWD: ä1 \ud800 pwd=b2") == f"é {RED} \ud800 {RED}"


# --- pseudonyms


def names_of(redactor: Redactor, *texts: str) -> tuple[list[str], Pseudonyms]:
    pseudonyms, found = Pseudonyms(), []
    for text in texts:
        verdict = redactor.entry(Entry(content=text), pseudonyms)
        found.append(kept(verdict).text)
        pseudonyms = verdict.pseudonyms
    return found, pseudonyms


def test_a_pseudonym_is_the_same_for_the_same_value() -> None:
    """A value has one pseudonym throughout a session, however it is written; another value gets the next number."""
    redactor = Redactor({"recognisers": {"email": "pseudonym", "card": "pseudonym"}}, key=KEY)

    found, pseudonyms = names_of(
        redactor,
        "bob@example.com and ann@example.com",
        "ANN@example.com, 4111 1111 1111 1111 or 4111111111111111",
        "eve@example.com",
    )

    assert found == ["[EMAIL_1] and [EMAIL_2]", "[EMAIL_2], [CARD_1] or [CARD_1]", "[EMAIL_3]"]
    assert len(pseudonyms.numbers) == 4


def test_the_mapping_holds_no_clear_value_and_needs_its_key() -> None:
    """The mapping of pseudonyms holds only keyed hashes, and the mapping passed in is not changed."""
    given = Pseudonyms()
    policy = {"recognisers": {"email": "pseudonym"}}
    entry = Entry(content="bob@example.com")

    one, other = (Redactor(policy, key=key).entry(entry, given).pseudonyms for key in (KEY, KEY[::-1]))

    assert given == Pseudonyms()
    assert "bob" not in repr(one)
    assert one.numbers.keys().isdisjoint(other.numbers)
    assert msgspec.json.decode(msgspec.json.encode(one), type=Pseudonyms) == one


def test_pseudonyms_without_a_session_have_no_numbers() -> None:
    """A log line names only the kind of a pseudonym; a summary uses the session's numbers."""
    redactor = Redactor({"recognisers": {"email": "pseudonym"}}, key=KEY)
    _, pseudonyms = names_of(redactor, "ann@example.com")

    assert redactor.text("to bob@example.com") == "to [EMAIL]"
    assert redactor.text("[EMAIL] ann@example.com bob@example.com", pseudonyms) == "[EMAIL] [EMAIL_1] [EMAIL_2]"


def test_text_that_resembles_a_pseudonym_is_redacted() -> None:
    """A text that only looks like a pseudonym is redacted like any other."""
    redactor = Redactor({"recognisers": {"email": "pseudonym"}, "redact_patterns": [r"MARKER\w*", r"\d{4}"]}, key=KEY)

    found, _ = names_of(redactor, "ann@example.com [MARKERS] [EMAIL_1234] [EMAIL_1]")

    assert found == [f"[EMAIL_1] [{RED}] [EMAIL_{RED}] [EMAIL_1]"]


# --- twice is once

_PIECES = st.one_of(
    st.sampled_from([RED, "[SSN]", "[EMAIL_1]", "[EMAIL]", " ", "\n", "password = ", "token: ", '"', "Bearer ", "."]),
    st.sampled_from(CORPUS_PIECES),
    st.text(alphabet="a1@.-[]_ é", max_size=4),
)


@settings(max_examples=examples(250), deadline=None)
@given(st.lists(_PIECES, max_size=8))
def test_redacting_twice_changes_nothing(pieces: list[str]) -> None:
    """Redacting an entry or a text a second time changes nothing."""
    policy = {
        "redact_patterns": [(r"\b\d{3}-\d{2}-\d{4}\b", "[SSN]"), r"(?i)(?:password|pwd)\s*[:=]\s*\S+"],
        "recognisers": {"default": True, "email": "pseudonym"},
    }
    redactor = Redactor(policy, key=KEY)

    once = redactor.entry(Entry(content="".join(pieces)))
    twice = redactor.entry(kept(once), once.pseudonyms)

    assert twice.entry is once.entry
    assert twice.findings == ()
    line = redactor.text("".join(pieces))
    assert redactor.text(line) == line


def test_a_pattern_that_matches_its_own_result_is_refused_as_unstable() -> None:
    """A text that a pattern never stops changing is refused as unstable."""
    redactor = Redactor({"redact_patterns": [r"(?:\w|\[REDACTED\]) \[REDACTED\]", "MARKER"]})

    with pytest.raises(PrivacyRefused) as caught:
        redactor.text("a " * 40 + "MARKER")

    assert caught.value.kind == "unstable"


# --- withheld


@pytest.mark.parametrize(
    ("types", "entry"),
    [
        (["SYSTEM"], Entry(role="system", content="x")),
        (["system"], Entry(role="system", content="x")),
        (["Context"], Entry(kind="context", content="x")),
        (["payment_info"], Entry(content="x", metadata={"type": "Payment_Info"})),
        (["a", "secret"], Entry(content="x", metadata={"tags": ["b", "SECRET"]})),
        (["secret"], Entry(content="x", metadata={"tags": "secret"})),
    ],
)
def test_a_type_withholds_by_role_kind_metadata_or_tag(types: list[str], entry: Entry) -> None:
    """A type withholds entries by role, kind, metadata or tag, ignoring case."""
    redactor = Redactor({"non_persistable_message_types": types})

    assert redactor.entry(entry) == Verdict(entry=None, withheld=True)
    assert redactor.is_withheld(entry)
    assert not redactor.is_withheld(Entry(content="secret system context"))


def test_a_withheld_result_leaves_a_stub_that_answers_its_call() -> None:
    """A withheld result leaves a stub that keeps its call paired and nothing else."""
    entry = Entry(
        id="e1",
        kind="tool_result",
        role="tool",
        content=(Text(text="private"),),
        name="find",
        call_id="c1",
        status="success",
        metadata={"type": "payment", "more": "private"},
        native=Native(format="x", keep={"a": "private"}),
        tokens=5,
    )

    verdict = Redactor({"non_persistable_message_types": ["payment"]}).entry(entry)

    stub = Entry(id="e1", kind="tool_result", role="tool", content=RED, name="find", call_id="c1", status="success")
    assert verdict == Verdict(entry=stub, withheld=True)


def test_calls_behind_a_withheld_text_begin_their_own_message() -> None:
    """Calls of a message whose text is withheld do not join the message before it."""
    entries = [
        Entry(role="user", content="hi"),
        Entry(role="assistant", content="x", metadata={"type": "private"}),
        Entry(kind="tool_call", role="assistant", content="{}", name="a", continues=True),
        Entry(kind="tool_call", role="assistant", content="{}", name="b", continues=True),
    ]

    verdicts = Redactor({"non_persistable_message_types": ["private"]}).entries(entries)

    assert [verdict.withheld for verdict in verdicts] == [False, True, False, False]
    assert [kept(verdict).continues for verdict in (verdicts[2], verdicts[3])] == [False, True]


def test_a_batch_that_begins_with_a_continued_entry_stays_continued() -> None:
    """A batch that continues a stored message still does after redaction."""
    (verdict,) = marks().entries([Entry(role="assistant", content=TEXT, continues=True)])

    assert kept(verdict).continues


# --- fail closed


class Failing:
    """A recogniser that fails a number of times and then finds nothing."""

    def __init__(self, times: int) -> None:
        self.left, self.asked = times, 0

    def __call__(self, text: str) -> list[Span]:
        self.asked += 1
        if self.left:
            self.left -= 1
            raise ValueError(text)
        return []


class Clock:
    """A clock that a test advances."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def failing(times: int, clock: Clock | None = None) -> tuple[Redactor, Failing]:
    recogniser = Failing(times)
    policy = {"redact_patterns": [r"MARKER\d+"], "recognisers": {"shaky": recogniser}}
    return Redactor(policy, clock=clock or Clock()), recogniser


def test_a_recogniser_that_succeeds_at_the_third_try_counts() -> None:
    """A failing recogniser is tried twice more before the text is refused."""
    redactor, _ = failing(2)

    assert kept(redactor.entry(Entry(content=TEXT))).text == CLEAN


def test_a_recogniser_that_learns_is_asked_about_every_text_again() -> None:
    """What a recogniser of one's own knows by now is redacted everywhere, also in a key that was clean before."""
    known: set[str] = set()
    redactor = Redactor(
        {"recognisers": {"person": lambda text: [Span(0, len(text), "person")] if text in known else []}}
    )
    entry = Entry(content="Jane", name="Jane", metadata={"Jane": ["Jane"]})

    assert kept(redactor.entry(entry)) == entry
    known.add("Jane")

    found = kept(redactor.entry(entry))
    assert (found.content, found.name, found.metadata) == (RED, RED, {RED: [RED]})


def test_three_failures_refuse_without_quoting_the_text() -> None:
    """After three failures the error names the rule and the cause, and neither it nor its causes hold the text."""
    redactor, recogniser = failing(3)

    with pytest.raises(PrivacyRefused) as caught:
        redactor.entry(Entry(content=TEXT))

    assert recogniser.asked == 3
    assert (caught.value.rule, caught.value.kind) == ("recognisers.shaky", "error")
    assert "ValueError" in str(caught.value)
    assert "nothing was stored" in str(caught.value)
    chained = [caught.value, caught.value.__cause__, caught.value.__context__]
    assert MARKER not in repr([(error, str(error)) for error in chained])


@pytest.mark.parametrize(
    "answer", [[(0, 99, "x")], [(-1, 2, "x")], [(0, 1)], [("a", "b", "c")], 7, "x", [(0, 1, None)]]
)
def test_an_answer_that_is_no_list_of_spans_is_a_failure(answer: Any) -> None:
    """A recogniser's answer that is no list of spans counts as a failure."""
    with pytest.raises(PrivacyRefused, match=r"recognisers\.odd .* it did not return a list of spans"):
        Redactor({"recognisers": {"odd": lambda _: answer}}).text("some text")


def test_a_pattern_timeout_counts_as_a_failure() -> None:
    """A pattern's timeout counts as a failure."""
    redactor = Redactor({"redact_patterns": [r"(?=(.*))(?:.*)(?:.*)(?:.*)(?:.*)\d(?!x)"]}, linear=False)

    with pytest.raises(PrivacyRefused) as caught:
        redactor.text("a" * 3_000)

    assert (caught.value.rule, caught.value.kind) == ("redact_patterns[0]", "timeout")


def test_after_ten_refusals_nothing_is_tried_for_five_seconds() -> None:
    """After ten refusals in a row nothing is tried for five seconds; then one try decides."""
    clock = Clock()
    redactor, recogniser = failing(33, clock)
    for _ in range(10):
        with pytest.raises(PrivacyRefused, match="error"):
            redactor.text("x")

    with pytest.raises(PrivacyRefused, match="paused"):
        redactor.text("x")
    assert recogniser.asked == 30

    clock.now += 5.0
    with pytest.raises(PrivacyRefused, match="error"):
        redactor.text("x")
    with pytest.raises(PrivacyRefused, match="paused"):
        redactor.text("x")
    clock.now += 4.9
    with pytest.raises(PrivacyRefused, match="paused"):
        redactor.text("x")
    clock.now += 0.2
    assert redactor.text(TEXT) == CLEAN
    assert redactor.text(TEXT) == CLEAN


def test_a_success_resets_the_count_of_refusals() -> None:
    """Only refusals in a row count; a success resets the count."""
    redactor, recogniser = failing(27)
    for _ in range(9):
        with pytest.raises(PrivacyRefused):
            redactor.text("x")
    assert redactor.text("x") == "x"
    recogniser.left = 3
    with pytest.raises(PrivacyRefused, match="error"):
        redactor.text("x")

    assert redactor.text("x") == "x"


def test_one_entry_that_cannot_be_checked_refuses_its_batch() -> None:
    """If one entry of a batch cannot be checked, the whole batch is refused."""

    def picky(text: str) -> list[Span]:
        if "odd" in text:
            raise RuntimeError
        return []

    redactor = Redactor({"recognisers": [picky]})

    with pytest.raises(PrivacyRefused):
        redactor.entries([Entry(content="fine"), Entry(content="odd")])


def test_threads_share_one_redactor() -> None:
    """Threads that share a redactor get their own findings and pseudonyms."""
    redactor = Redactor({"recognisers": {"email": "pseudonym"}, "redact_patterns": [r"MARKER\d+"]}, key=KEY)
    wrong: list[str] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(60):
            texts = [f"a{rng.randrange(5)}@example.com {MARKER}" for _ in range(5)]
            verdicts = redactor.entries([Entry(content=text) for text in texts])
            numbers = {text: kept(verdict).text for text, verdict in zip(texts, verdicts, strict=True)}
            if len(set(numbers.values())) != len(set(texts)) or any("MARKER" in text for text in numbers.values()):
                wrong.append(repr(numbers))

    at_once(work, 4)

    assert wrong == []
