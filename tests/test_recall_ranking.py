"""Ranking: matching entries come first, their neighbours behind them, and length alone decides nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from palimpsest.log.entry import Entry, Role, moment
from palimpsest.recall.parts import parts_of
from palimpsest.recall.postings import Postings, key_of, place_of
from palimpsest.recall.questions import Question, question
from palimpsest.recall.ranking import Facts, Ranked, Ranking, named_by

MINUTE = 60_000_000
DAY = 24 * 60 * MINUTE
FILLING = "We talked about the weather, and what was on at the cinema. "


class Talk:
    """A conversation whose entries are in an index."""

    def __init__(self, turns: Sequence[tuple[Role, str] | tuple[Role, str, str]], *, every: int = MINUTE) -> None:
        self.index, self.facts = Postings(), dict[int, Facts]()
        self.every, self.at = every, 0
        for turn in turns:
            self.say(*turn)

    def say(self, role: Role, text: str, name: str | None = None) -> int:
        """Add an entry and return its seq."""
        seq = len(self.facts) + 1
        self.at += self.every
        entry = Entry(seq=seq, role=role, content=text, name=name, at=self.at)
        for number, part in enumerate(parts_of(entry)):
            self.index.put(key_of(0, seq, number), part.terms)
        self.facts[seq] = Facts(at=self.at, kind="message", role=role, chars=len(text), name=name)
        return seq

    def ask(self, text: str) -> list[Ranked]:
        """Return the hits of a question."""
        asked = question(text)
        return Ranking(asked, self.index.matches(asked.terms)).ranked(self.facts)

    def order(self, text: str) -> list[int]:
        """Return the seqs of a question's hits."""
        return [hit.seq for hit in self.ask(text)]


def filled(*, before: int = 20, behind: int = 20, turns: Sequence[tuple[Role, str]]) -> Talk:
    """Return a conversation with these turns behind many unrelated ones."""
    filling: list[tuple[Role, str]] = [("user", FILLING), ("assistant", "Indeed it was so.")]
    return Talk([*filling * before, *turns, *filling * behind])


def test_an_answer_is_found_through_the_matching_entry_before_it() -> None:
    """An entry without the question's words is found behind the entry before it that has them."""
    talk = filled(turns=[("user", "What did the vet say of your parrot?"), ("assistant", "He needs rest.")])

    assert talk.order("What did the vet say about the parrot?")[:2] == [41, 42]


def test_a_hit_ranks_before_its_neighbours() -> None:
    """A hit comes before its neighbours, and the neighbour behind it before the one in front."""
    talk = filled(turns=[("assistant", "Hm."), ("user", "The harbour crane fell over."), ("assistant", "Oh no.")])

    assert talk.order("crane at the harbour")[:2] == [42, 43]


def test_neighbours_are_of_the_same_day() -> None:
    """An entry of another day is no neighbour."""
    talk = Talk([("user", "The harbour crane fell over."), ("assistant", "Oh no.")], every=DAY)

    assert talk.order("harbour crane") == [1]


def test_a_short_fact_ranks_before_neighbours_of_a_long_answer() -> None:
    """A short fact comes before the neighbours of a long answer that repeats the same word."""
    long = "A cello wants care: keep the cello dry, tune the cello each day. " * 40
    talk = filled(
        turns=[
            ("user", "I bought a cello for 900 euros."),
            ("assistant", "Nice."),
            ("user", "How do I look after it?"),
            ("assistant", long),
            ("user", "Thanks!"),
        ]
    )

    order = talk.order("How much did I pay for the cello in euros?")

    assert order[0] == 41
    assert order.index(41) < order.index(44) < order.index(45)


def test_a_long_entry_scores_by_its_best_part() -> None:
    """A paragraph of a long entry is found as well as if it stood alone."""
    text = FILLING * 40 + "The gateway listens on port 8443 behind the proxy. " + FILLING * 40
    talk = filled(turns=[("assistant", text), ("user", "And which port is the right one for ships?")])

    first = talk.ask("On which port does the gateway listen?")[0]

    assert first.seq == 41
    assert 2 <= first.part < len(parts_of(Entry(content=text))) - 1


def test_adjacent_words_score_higher_than_separate_ones() -> None:
    """Of two entries with the same words, the one that has them side by side comes first."""
    talk = filled(
        turns=[
            ("user", "The group thanked us for our support, it was fun."),
            *[("assistant", "Indeed it was so.")] * 5,
            ("user", "I thanked the support group, it was fun for us."),
        ]
    )

    assert talk.order("the support group")[0] == 47


def test_the_newest_of_equal_entries_comes_first() -> None:
    """Of equal entries the newest comes first."""
    talk = Talk([("user", "The key is blue.")] * 5, every=DAY)

    assert talk.order("key") == [5, 4, 3, 2, 1]


def test_entries_by_the_named_speaker_come_first() -> None:
    """An entry by the speaker whom the question names comes before the same text of another speaker."""
    turns: list[tuple[Role, str, str]] = [("user", "I like figs.", "Ann"), ("assistant", "I like figs.", "Bo")]
    talk = Talk(turns, every=DAY)

    assert talk.order("Does Ann like figs?")[0] == 1
    assert talk.order("Does Bo like figs?")[0] == 2


def test_a_question_with_my_prefers_entries_of_the_user() -> None:
    """With "my" in the question, a user's entry comes before the same text of an assistant."""
    talk = Talk([("user", "The car is a Skoda."), ("assistant", "The car is a Skoda.")], every=DAY)

    assert talk.order("What is my car?")[0] == 1
    assert talk.order("What is the car?")[0] == 2


def test_the_best_entries_of_each_sitting_come_first_for_several_things() -> None:
    """If several things are asked for, the best entries of each sitting come first."""
    said: list[tuple[Role, str]] = [("user", "I read the book Momo, such a book."), ("user", "It is a book on time.")]
    talk = Talk([*said, ("user", "The door is shut.")])
    talk.at += DAY
    talk.say("user", "That book with the long name is one I read.")

    assert talk.order("Which book did you read?")[:2] == [1, 2]
    assert talk.order("Which books did you read?")[:2] == [1, 4]


def test_the_named_speaker_counts_more_if_several_things_are_asked_for() -> None:
    """If several things are asked for, the named speaker counts more."""
    turns: list[tuple[Role, str, str]] = [
        ("user", "We went to the lake by train.", "Ann"),
        ("assistant", "At the lake, Ann, by that lake.", "Bo"),
    ]
    talk = Talk(turns, every=DAY)

    assert talk.order("Where was Ann, at the lake?")[0] == 2
    assert talk.order("Which lakes has Ann been to?")[0] == 1


def test_entries_of_the_time_in_the_question_come_first() -> None:
    """Of equal entries, the one of the time in the question comes first."""
    talk = Talk([("user", "We went to the lake.")] * 4, every=40 * DAY)
    said = talk.facts[2].at
    asked = question(f"the lake on {moment(said).date().isoformat()}", talk.at)

    hits = Ranking(asked, talk.index.matches(asked.terms)).ranked(talk.facts)

    assert hits[0].seq == 2


def test_filtered_out_entries_still_raise_their_neighbours() -> None:
    """Filtered-out entries still raise their neighbours."""
    talk = filled(turns=[("user", "What did the vet say of your parrot?"), ("assistant", "He needs rest.")])
    asked = question("the vet on the parrot")

    ranking = Ranking(asked, talk.index.matches(asked.terms))
    hits = ranking.ranked(talk.facts, only=lambda facts: facts.role == "assistant")

    assert hits[0].seq == 42
    assert {talk.facts[hit.seq].role for hit in hits} == {"assistant"}


def test_facts_of_the_wanted_entries_suffice_for_the_order() -> None:
    """The facts of the few wanted entries give the same order as those of all entries."""
    rng = random.Random(3)
    colours = ["red", "green", "blue", "grey", "pink", "white"]
    talk = Talk([("user", " ".join(rng.choices(colours, k=4))) for _ in range(3000)])
    asked = question("red and blue")
    matches = talk.index.matches(asked.terms)

    ranking = Ranking(asked, matches)
    wanted = ranking.wanted

    assert len(wanted) < 500
    assert ranking.ranked({key: talk.facts[key] for key in wanted if key in talk.facts}) == Ranking(
        asked, matches
    ).ranked(talk.facts)


def test_a_common_word_does_not_change_the_order_of_other_words() -> None:
    """A word that most entries have changes neither the hits nor the order of other words."""
    turns: list[tuple[Role, str]] = [
        ("user", f"The lot number {i} has {'rye' if i % 4 == 0 else 'oats'}.") for i in range(200)
    ]
    talk = Talk(turns, every=DAY)

    assert talk.order("rye in a lot") == talk.order("rye")


def test_entries_with_only_the_common_word_come_last() -> None:
    """If few entries have the rare word, those with only the common word are found behind them."""
    turns: list[tuple[Role, str]] = [("user", "The lot has oats."), ("user", "The door is shut.")]
    talk = Talk([*turns * 3, ("user", "The lot has rye."), ("user", "The lot has oats.")], every=DAY)

    order = talk.order("rye lot")

    assert order[0] == 7
    assert sorted(order) == [1, 3, 5, 7, 8]


def test_no_terms_matches_or_facts_give_no_hits() -> None:
    """Without terms, matches or facts there are no hits and no errors."""
    assert Ranking(Question((), ()), []).ranked({}) == []
    assert Ranking(question("harbour"), [{}]).ranked({}) == []
    assert Ranking(question("harbour"), [{256: 1.0}]).ranked({}) == []


@given(
    st.lists(st.lists(st.sampled_from(["red", "green", "blue", "grey"]), max_size=12), min_size=1, max_size=30),
    st.lists(st.sampled_from(["red", "green", "blue", "grey"]), min_size=1, max_size=4),
)
def test_hits_are_unique_and_in_falling_order(texts: list[list[str]], asked: list[str]) -> None:
    """Hits have falling scores, come once each, and include every entry with a word of the question."""
    talk = Talk([("user", " ".join(words)) for words in texts])

    hits = talk.ask(" ".join(asked))

    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    seqs = [hit.seq for hit in hits]
    assert len(seqs) == len(set(seqs))
    assert {seq for seq, words in enumerate(texts, 1) if set(words) & set(asked)} <= set(seqs)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.3, 1.0]),
            st.dictionaries(st.integers(1, 60), st.sampled_from([1e-6, 0.5, 1.0, 2.0, 8.0]), min_size=1),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 20),
)
def test_skipping_terms_does_not_change_the_candidates(asked: list[tuple[float, dict[int, float]]], most: int) -> None:
    """Terms that cannot change the best candidates are skipped; the candidates are those of all terms added up."""
    matches = [{key_of(0, seq * 100): score for seq, score in found.items()} for _, found in asked]
    totals = {
        key: sum(weight * found.get(key, 0.0) for (weight, _), found in zip(asked, matches, strict=True))
        for key in set().union(*matches)
    }
    best = sorted(totals, key=lambda key: (round(totals[key], 9), key), reverse=True)[:most]
    weights = tuple(weight for weight, _ in asked)

    ranking = Ranking(Question(tuple(map(str, range(len(asked)))), weights), matches, candidates=most)

    assert {entry for entry in ranking.wanted if entry % 100 == 0} == {place_of(key) for key in best}


def test_only_names_of_speakers_count_as_names() -> None:
    """Only names of speakers count as names; a tool's name may be what a question is about."""
    said = [Facts(at=0, kind="message", role="user", chars=9, name=name) for name in ("Ann Lee", "Ann", None, "")]
    result = Facts(at=0, kind="tool_result", role="tool", chars=9, name="weather")

    assert named_by([*said, result]) == {"ann", "lee"}
    assert named_by([]) == frozenset()
