"""Words and meaning in one order: what either finds is found, and neither spoils the other's."""

from __future__ import annotations

import pytest

from palimpsest.recall.fusion import WEIGHT, Meaning
from palimpsest.recall.ranking import LONG, SITTING, Facts, Ranked

START = 1_700_000_000_000_000


def facts(count: int, *, chars: int = 100, apart: int = 60_000_000, role: str = "user") -> dict[int, Facts]:
    return {
        seq: Facts(at=START + seq * apart, kind="message", role=role, chars=chars)  # type: ignore[arg-type]
        for seq in range(1, count + 1)
    }


def near(cosines: dict[int, float]) -> dict[int, float]:
    """Cosines of first parts, by the seqs of their entries."""
    return {seq << 8: cosine for seq, cosine in cosines.items()}


def words(scores: dict[int, float]) -> list[Ranked]:
    return [Ranked(0, seq, score, 0) for seq, score in scores.items()]


def seqs(found: list[Ranked]) -> list[int]:
    return [one.seq for one in found]


FAR_APART = facts(40, apart=SITTING + 1)


def test_what_only_one_of_both_finds_is_found() -> None:
    """An entry without a word of the question, and one without a vector."""
    found = Meaning(near({3: 0.8, 9: 0.2})).joined(words({7: 5.0}), FAR_APART)

    assert seqs(found)[:2] == [7, 3]
    assert found[0].score == pytest.approx(1 - WEIGHT)
    assert found[1].score == pytest.approx(WEIGHT)


def test_what_both_find_comes_first() -> None:
    """The best of both has a score of 1, whatever the scales of both were."""
    found = Meaning(near({5: 0.61, 6: 0.60, 9: 0.3})).joined(words({6: 40.0, 8: 41.0, 5: 41.0}), FAR_APART)

    assert seqs(found)[0] == 5
    assert found[0].score == pytest.approx(1.0)
    assert all(0 <= one.score <= 1 for one in found)


def test_without_vectors_the_order_is_that_of_words() -> None:
    """As where an embedder fails; and without words that of meaning."""
    scores = {seq: 100.0 - seq for seq in (4, 9, 2, 30)}
    ranked = words(dict(sorted(scores.items(), key=lambda one: -one[1])))

    assert seqs(Meaning({}).joined(ranked, FAR_APART)) == [2, 4, 9, 30]
    assert seqs(Meaning(near({7: 0.5, 8: 0.9, 9: 0.6})).joined([], FAR_APART))[:2] == [8, 9]
    assert Meaning({}).joined([], {}) == []


@pytest.mark.parametrize(("weight", "first"), [(0.0, 2), (1.0, 3), (0.1, 2), (0.9, 3)])
def test_a_weight_says_how_much_meaning_counts(weight: float, first: int) -> None:
    """0 is words alone, 1 meaning alone."""
    meaning = Meaning(near({3: 0.9, 2: 0.5, 20: 0.1}))

    assert seqs(meaning.joined(words({2: 9.0, 3: 6.0}), FAR_APART, weight=weight))[0] == first


def test_an_entry_counts_by_its_best_part() -> None:
    """And that part is told, unless words say which one it is."""
    meaning = Meaning({(4 << 8) + 0: 0.3, (4 << 8) + 2: 0.9, (6 << 8) + 1: 0.8})

    by_meaning = {one.seq: one.part for one in meaning.joined([], FAR_APART)}
    by_words = {one.seq: one.part for one in meaning.joined([Ranked(0, 4, 1.0, 1)], FAR_APART)}

    assert by_meaning == {4: 2, 6: 1}
    assert by_words == {4: 1, 6: 1}


def test_what_stands_around_a_near_entry_is_found_with_it() -> None:
    """What was said just before and after it in a sitting: an answer often shares nothing with its question."""
    meaning = Meaning(near({10: 0.9, 30: 0.2}))

    assert seqs(meaning.joined([], facts(40), limit=3)) == [10, 11, 12]
    assert seqs(meaning.joined([], FAR_APART, limit=3)) == [10, 30]
    assert 11 in meaning.wanted


def test_long_entries_say_less_of_those_around_them() -> None:
    """Most of a long one is about something else."""
    meaning = Meaning(near({10: 0.9, 30: 0.2}))

    def share(chars: int) -> float:
        found = {one.seq: one.score for one in meaning.joined([], facts(40, chars=chars))}
        return found[11] / found[10]

    assert share(LONG * 10) == pytest.approx(share(LONG) / 10)


def test_a_filter_leaves_out_and_what_it_leaves_out_still_counts() -> None:
    """Only what the filter takes is returned."""
    known = facts(40)
    known[10] = Facts(at=known[10].at, kind="message", role="assistant", chars=100)

    found = Meaning(near({10: 0.9, 30: 0.2})).joined([], known, only=lambda one: one.role == "user")

    assert seqs(found)[:2] == [11, 12]
    assert 10 not in seqs(found)


def test_what_is_not_alike_at_all_is_not_found() -> None:
    """Cosines of 0 and less say nothing."""
    assert Meaning(near({1: 0.0, 2: -0.4})).joined([], FAR_APART) == []
    assert seqs(Meaning(near({1: 0.5})).joined([], FAR_APART)) == [1]


def test_entries_that_nobody_knows_of_are_left_out() -> None:
    """A vector may be there a moment longer than its entry."""
    assert seqs(Meaning(near({99: 0.9, 3: 0.5, 4: 0.2})).joined([], FAR_APART)) == [3, 4]


def test_sessions_are_apart() -> None:
    """What is around an entry is of its own session."""
    other = 5 << 28
    known = facts(3) | {other | seq: one for seq, one in facts(3).items()}

    found = Meaning({(other | 2) << 8: 0.9, 1 << 8: 0.2}).joined([], known)

    assert [(one.session_number, one.seq) for one in found][:3] == [(5, 2), (5, 3), (5, 1)]
