"""Words and meaning in one order: what either finds is found, and neither spoils the order of the other."""

from __future__ import annotations

import pytest

from palimpsest.recall.analysis import terms
from palimpsest.recall.fusion import BY_WORDS, Meaning
from palimpsest.recall.questions import question
from palimpsest.recall.ranking import LONG, SITTING, Facts, Ranked, Ranking
from palimpsest.recall.search import unnamed

START = 1_700_000_000_000_000


def facts(count: int, *, chars: int = 100, apart: int = 60_000_000, role: str = "user") -> dict[int, Facts]:
    return {
        seq: Facts(at=START + seq * apart, kind="message", role=role, chars=chars)  # type: ignore[arg-type]
        for seq in range(1, count + 1)
    }


def near(cosines: dict[int, float]) -> dict[int, float]:
    """Return cosines of the first parts of entries, by the entries' seqs."""
    return {seq << 8: cosine for seq, cosine in cosines.items()}


def words(scores: dict[int, float], asked: str = "harbour", part: int = 0) -> Ranking:
    """Return a ranking in which parts have these scores for a word."""
    wanted = question(asked)
    held = {seq << 8 | part: score for seq, score in scores.items()}
    return Ranking(wanted, [held, *({} for _ in wanted.terms[1:])], candidates=BY_WORDS)


def seqs(found: list[Ranked]) -> list[int]:
    return [one.seq for one in found]


FAR_APART = facts(40, apart=SITTING + 1)


def test_an_entry_is_found_by_words_or_by_meaning_alone() -> None:
    """An entry is found by words alone or by meaning alone."""
    found = Meaning(near({3: 0.8, 9: 0.2})).joined(words({7: 5.0}), FAR_APART)

    assert seqs(found) == [7, 3, 9]


def test_meaning_counts_more_the_fewer_words_of_the_question_match() -> None:
    """The smaller the share of the question's words that entries have, the more meaning counts."""
    wanted = question("harbour winter lantern bicycle parsley")
    elsewhere = [{seq << 8: 1.0} for seq in (31, 32, 33, 34)]  # entries that have the other words
    one_of_five = Ranking(wanted, [{7 << 8: 1.0}, *elsewhere, *({} for _ in wanted.terms[5:])], candidates=BY_WORDS)
    meaning = Meaning(near({3: 0.8, 9: 0.2}))

    assert seqs(meaning.joined(words({7: 1.0}), FAR_APART, weight=0.3))[:2] == [7, 3]
    assert seqs(meaning.joined(one_of_five, FAR_APART, weight=0.3))[0] == 3


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_entries_found_by_words_and_meaning_come_first(scale: float) -> None:
    """An entry that both find comes first, whatever their scales."""
    by_words = {seq: scale * score for seq, score in {6: 4.0, 8: 4.1, 5: 4.1}.items()}

    found = Meaning(near({5: 0.61, 6: 0.60, 9: 0.3})).joined(words(by_words), FAR_APART)

    assert seqs(found) == [5, 6, 8, 9]


def test_words_alone_or_meaning_alone_decide_the_order_if_the_other_is_missing() -> None:
    """Without vectors the order is that of words; without words, that of meaning."""
    scores = {seq: 100.0 - seq for seq in (4, 9, 2, 30)}

    assert seqs(Meaning({}).joined(words(scores), FAR_APART)) == [2, 4, 9, 30]
    assert seqs(Meaning(near({7: 0.5, 8: 0.9, 9: 0.6})).joined(words({}), FAR_APART))[:2] == [8, 9]
    assert Meaning({}).joined(words({}), {}) == []


@pytest.mark.parametrize(("weight", "first"), [(0.0, 2), (1.0, 3), (0.1, 2), (0.9, 3)])
def test_the_weight_scales_how_much_meaning_counts(weight: float, first: int) -> None:
    """A weight of 0 is words alone, 1 is meaning alone."""
    meaning = Meaning(near({3: 0.9, 2: 0.5, 20: 0.1}))

    assert seqs(meaning.joined(words({2: 9.0, 3: 6.0}), FAR_APART, weight=weight))[0] == first


def test_an_entry_counts_by_its_best_part() -> None:
    """An entry counts by its best part, which is reported unless words decide on another one."""
    meaning = Meaning({(4 << 8) + 0: 0.3, (4 << 8) + 2: 0.9, (6 << 8) + 1: 0.8})

    by_meaning = {one.seq: one.part for one in meaning.joined(words({}), FAR_APART)}
    by_words = {one.seq: one.part for one in meaning.joined(words({4: 1.0}, part=1), FAR_APART)}

    assert by_meaning == {4: 2, 6: 1}
    assert by_words == {4: 1, 6: 1}


def test_neighbours_of_a_similar_entry_are_found_with_it() -> None:
    """Neighbours of a similar entry in its sitting are found with it, since an answer may not resemble its question."""
    meaning = Meaning(near({10: 0.9, 30: 0.2}))

    assert seqs(meaning.joined(words({}), facts(40), limit=3)) == [10, 11, 12]
    assert seqs(meaning.joined(words({}), FAR_APART, limit=3)) == [10, 30]
    assert 11 in meaning.wanted


def test_long_entries_raise_their_neighbours_less() -> None:
    """A long entry raises its neighbours less, since most of it is about something else."""
    meaning = Meaning(near({10: 0.9, 30: 0.2}))

    def share(chars: int) -> float:
        found = {one.seq: one.score for one in meaning.joined(words({}), facts(40, chars=chars))}
        return (found[11] - found[30]) / (found[10] - found[30])  # entry 30 has only what its sitting adds

    assert share(LONG * 10) == pytest.approx(share(LONG) / 10)


def test_the_named_speaker_decides_between_equally_similar_entries() -> None:
    """Of two equally similar entries, the one by the speaker whom the question names comes first."""
    meaning, known = Meaning(near({3: 0.9, 9: 0.9, 20: 0.1})), dict(FAR_APART)
    assert seqs(meaning.joined(words({}), known))[:2] == [9, 3]

    known[3] = Facts(at=known[3].at, kind="message", role="user", chars=100, name="Ann")

    assert seqs(meaning.joined(words({}, "What has Ann seen?"), known))[:2] == [3, 9]
    assert seqs(meaning.joined(words({}, "What has Bob seen?"), known))[:2] == [9, 3]


def test_a_sitting_with_matching_words_decides_between_equally_similar_entries() -> None:
    """Of two equally similar entries, the one in a sitting that has words of the question comes first."""
    known = {
        seq: Facts(at=START + seq // 20 * 2 * SITTING, kind="message", role="user", chars=100) for seq in range(80)
    }

    found = Meaning(near({30: 0.9, 50: 0.9, 70: 0.1})).joined(words({25: 1.0, 35: 1.0}), known)

    assert seqs(found).index(30) < seqs(found).index(50)


def test_several_things_asked_for_are_found_in_several_sittings() -> None:
    """If several things are asked for, the best entry of another sitting precedes the second of the same."""
    known = {
        seq: Facts(at=START + seq // 20 * 2 * SITTING, kind="message", role="user", chars=100) for seq in range(80)
    }
    meaning = Meaning(near({22: 0.90, 32: 0.89, 52: 0.88, 70: 0.1}))

    assert seqs(meaning.joined(words({}, "What was her boat?"), known))[:3] == [22, 32, 52]
    assert seqs(meaning.joined(words({}, "Which boats has she had?"), known))[:3] == [22, 52, 32]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("What did Caroline say about her dog?", "What did say about her dog?"),
        ("Where is Caroline's dog now?", "Where is dog now?"),
        ("Was CAROLINE in Zürich, or Jean?", "Was in Zürich, or ?"),
        ("Where did Carolines dogs go?", "Where did dogs go?"),
        ("What did Caroline say?", "What did Caroline say?"),
        ("Caroline", "Caroline"),
        ("Where is the dog of the one that Jean is with?", "Where is the dog of the one that is with?"),
        ("carolineさんの犬はどこ?", "carolineさんの犬はどこ?"),
        ("", ""),
    ],
)
def test_speaker_names_are_removed_before_a_question_is_embedded(text: str, left: str) -> None:
    """Speakers' names are removed from a question before it is embedded, unless nothing else is left."""
    assert unnamed(text, frozenset(terms("Caroline Jean"))) == left


def test_a_question_without_names_is_embedded_unchanged() -> None:
    """A question without names is embedded unchanged, blanks included."""
    assert unnamed("  Who has\n a dog? ", frozenset()) == "  Who has\n a dog? "


def test_filtered_out_entries_still_raise_their_neighbours() -> None:
    """A filtered-out entry is not returned but still raises its neighbours."""
    known = facts(40)
    known[10] = Facts(at=known[10].at, kind="message", role="assistant", chars=100)

    found = Meaning(near({10: 0.9, 30: 0.2})).joined(words({}), known, only=lambda one: one.role == "user")

    assert seqs(found)[:2] == [11, 12]
    assert 10 not in seqs(found)


def test_entries_with_a_cosine_of_0_or_less_are_not_found() -> None:
    """Entries with a cosine of 0 or less are not found."""
    assert Meaning(near({1: 0.0, 2: -0.4})).joined(words({}), FAR_APART) == []
    assert seqs(Meaning(near({1: 0.5})).joined(words({}), FAR_APART)) == [1]


def test_vectors_of_unknown_entries_are_ignored() -> None:
    """A vector whose entry is unknown is ignored, since it may outlive its entry for a moment."""
    assert seqs(Meaning(near({99: 0.9, 3: 0.5, 4: 0.2})).joined(words({}), FAR_APART)) == [3, 4]


def test_neighbours_are_of_the_same_session_only() -> None:
    """Only entries of the same session are neighbours."""
    other = 5 << 28
    known = facts(3) | {other | seq: one for seq, one in facts(3).items()}

    found = Meaning({(other | 2) << 8: 0.9, 1 << 8: 0.2}).joined(words({}), known)

    assert [(one.session_number, one.seq) for one in found][:3] == [(5, 2), (5, 3), (5, 1)]
