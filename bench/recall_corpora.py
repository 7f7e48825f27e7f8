"""Conversations with questions whose evidence is known, for `recall.py`: from others, if available, and our own.

LoCoMo (Maharana et al., ACL 2024) and tau-bench are read from `PALIMPSEST_DATA`, and are not part of this project. The
others are made here: `pages` are sections of this project's documentation as long answers of a model, `advice` and
`friends` are invented.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from palimpsest.log.entry import Entry, Kind, Role, microseconds_of

DOCS = Path(__file__).parent.parent / "docs"


class Asked(NamedTuple):
    """A question: the seqs of the entries that answer it, its category, and the time at which it is asked."""

    text: str
    evidence: frozenset[int]
    category: str
    now: int = 0


class Talk(NamedTuple):
    """A conversation with its questions."""

    name: str
    entries: list[Entry]
    asked: list[Asked]


class _Log:
    """Builds entries, linked as a session links them."""

    def __init__(self, start: datetime) -> None:
        self.entries: list[Entry] = []
        self.at = start
        self._turn = 0

    def say(self, role: Role, text: str, *, name: str | None = None, kind: Kind = "message") -> int:
        """Add an entry and return its seq."""
        seq = len(self.entries) + 1
        if kind == "message" and role == "user":
            self._turn = seq
        self.entries.append(
            Entry(
                id=str(seq),
                seq=seq,
                kind=kind,
                role=role,
                content=text,
                name=name,
                at=microseconds_of(self.at),
                turn=self._turn,
                group=seq,
            )
        )
        return seq

    def pause(self, **time: float) -> None:
        """Advance the time."""
        self.at += timedelta(**time)

    @property
    def now(self) -> int:
        """The time of the next entry."""
        return microseconds_of(self.at)


# --- from others


def locomo(data: Path) -> list[Talk]:
    """Return the ten conversations: a turn is one entry, `Speaker: text [shared image: caption]`."""
    samples = json.loads((data / "locomo" / "locomo10.json").read_text(encoding="utf-8"))
    return [_locomo(sample) for sample in samples]


def _locomo(sample: dict) -> Talk:  # type: ignore[type-arg]
    talk = sample["conversation"]
    sittings = sorted(int(match[1]) for key in talk if (match := re.fullmatch(r"session_(\d+)", key)))
    log, seqs = _Log(datetime(2020, 1, 1, tzinfo=UTC)), dict[str, int]()
    for sitting in sittings:
        written = talk[f"session_{sitting}_date_time"]
        log.at = datetime.strptime(written.upper(), "%I:%M %p ON %d %B, %Y").replace(tzinfo=UTC)
        for turn in talk[f"session_{sitting}"]:
            text = f"{turn['speaker']}: {turn['text']}"
            if turn.get("blip_caption"):
                text += f" [shared image: {turn['blip_caption']}]"
            role: Role = "user" if turn["speaker"] == talk["speaker_a"] else "assistant"
            seqs[turn["dia_id"]] = log.say(role, text, name=turn["speaker"])
            log.pause(seconds=20)
    asked = []
    for question in sample["qa"]:
        ids = {f"D{int(a)}:{int(b)}" for text in question["evidence"] for a, b in re.findall(r"D:?(\d+):(\d+)", text)}
        evidence = frozenset(seqs[id] for id in ids if id in seqs)
        if evidence:
            asked.append(Asked(question["question"], evidence, str(question["category"]), log.now))
    return Talk(sample["sample_id"], log.entries, asked)


def tau_bench(data: Path, *, joined: int = 25, seed: int = 0) -> list[Talk]:
    """Return conversations of an airline's agent, `joined` of them to a session, with questions for known items.

    A question has words of one entry: of a sentence that somebody said, or values and a key of a JSON result.
    """
    runs = json.loads((data / "tau-bench" / "gpt-4o-airline.json").read_text(encoding="utf-8"))[:50]
    talks = []
    for first in range(0, len(runs), joined):
        log = _Log(datetime(2024, 5, 1, 9, tzinfo=UTC))
        for run in runs[first : first + joined]:
            for message in run["traj"][1:]:
                _add_message(log, message)
                log.pause(seconds=15)
            log.pause(days=1)
        talks.append(Talk(f"tau-bench {first}", log.entries, _known_items(log, random.Random(seed + first))))
    return talks


def _add_message(log: _Log, message: dict) -> None:  # type: ignore[type-arg]
    if message["role"] == "tool":
        log.say("tool", message["content"], name=message["name"], kind="tool_result")
        return
    if message["content"]:
        log.say(message["role"], message["content"])
    for call in message.get("tool_calls") or ():
        log.say("assistant", call["function"]["arguments"], name=call["function"]["name"], kind="tool_call")


def _known_items(log: _Log, rng: random.Random) -> list[Asked]:
    asked = []
    for entry in log.entries:
        if len(entry.text) < 80 or rng.random() < 0.3:
            continue
        same = frozenset(other.seq for other in log.entries if other.text == entry.text)
        if entry.kind == "tool_result":
            pairs = re.findall(r'"(\w+)": "?([\w .:-]{3,30})"?', entry.text)
            if len(pairs) < 4:
                continue
            chosen = rng.sample(pairs, 3)
            text = f"What was the {chosen[0][0]} {chosen[0][1]} with {chosen[1][1]} and {chosen[2][1]}?"
            asked.append(Asked(text, same, "JSON result", log.now))
        elif entry.kind == "message":
            asked.append(Asked(_some_words(entry.text, rng), same, entry.role, log.now))
    return asked


def _some_words(text: str, rng: random.Random, most: int = 5) -> str:
    """Return some words of one sentence of a text, in their order, as a question."""
    sentences = [part for part in re.split(r"(?<=[.!?])\s+|\n", text) if len(part.split()) > 5]
    words = re.findall(r"[\w./:-]*\w", rng.choice(sentences or [text]))
    kept = [word for word in words if len(word) > 3 or not word.isalpha()] or words
    chosen = sorted(rng.sample(range(len(kept)), min(most, len(kept))))
    return f"What was said about {' '.join(kept[at] for at in chosen)}?"


# --- our own


def pages(seed: int = 0) -> list[Talk]:
    """Return sections of this project's documentation as long answers, each between a question and thanks."""
    log, rng, asked = _Log(datetime(2025, 3, 3, 9, tzinfo=UTC)), random.Random(seed), []
    for path in sorted(DOCS.glob("**/*.md")):
        for section in re.split(r"^(?=##? )", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
            heading, _, text = section.partition("\n")
            if len(text) < 400:
                continue
            log.say("user", f"Can you tell me about {heading.strip('# `').lower()}?")
            seq = log.say("assistant", text[:12_000])
            log.say("user", rng.choice(("Thanks, that helps.", "Good, I will try that.", "I see. Let us go on.")))
            log.pause(minutes=5)
            prose = re.sub(r"```.*?```|^\|.*$", "", text[:12_000], flags=re.DOTALL | re.MULTILINE)
            if len(prose) > 300:
                asked.append(Asked(_some_words(prose, rng), frozenset((seq,)), "sentence", log.now))
            names = sorted(set(re.findall(r"`([a-z]+_[a-z_]+|[a-z]+\.[a-z_.]+)[`(]", text[:12_000])))
            if len(names) > 1:
                words = f"How do {' and '.join(rng.sample(names, 2))} go together in {heading.strip('# `').lower()}?"
                asked.append(Asked(words, frozenset((seq,)), "names in code", log.now))
        log.pause(days=1)
    return [Talk("pages", log.entries, asked)]


FACTS = """
my sister Ingrid moved to Lisbon for a job at a bakery | planning a weekend trip | Where does Ingrid work now?
I adopted a greyhound called Biscuit last week | feeding schedules for dogs | What breed is my dog?
I bought a second-hand cello for 900 euros | practising an instrument | How much did I pay for my cello?
my knee surgery is set for the ninth of March | gentle exercise at home | When do I have my operation on the knee?
I drive a 2014 Skoda with a broken air conditioner | long car journeys | What car do I have?
our daughter Noor started kindergarten on Monday | packing school lunches | What is my daughter called?
I switched from coffee to rooibos because of my stomach | drinks for the morning | Why did I stop drinking coffee?
I finished a marathon in four hours and eleven minutes | training plans for runners | What was my time in the marathon?
I am allergic to cashews, as I found out at a wedding | cooking vegan dinners | Which nuts can I not eat?
my landlord Mr Okafor raises the rent by eighty in June | household budgets | Who is my landlord?
I planted three fig trees behind the garage | gardens in dry summers | How many fig trees have I planted?
I left the bank after nine years to study carpentry | changing careers | What am I studying since I quit the bank?
my flight to Osaka goes through Helsinki | packing light for travel | Where do I change planes on the way to Osaka?
I keep my spare keys with Dolores from the third floor | locks and doors at home | Who has my spare keys?
I painted the nursery in a pale mustard yellow | decorating small rooms | What colour did I paint the nursery?
my grandfather's watch stopped at the airport | repairing old clocks | What happened to the watch of my grandfather?
I volunteer at the animal shelter on Thursdays | spending evenings well | On which day do I help at the shelter?
I lost my wallet on the tram line 12 | keeping valuables safe | Where did I lose my wallet?
our book club is reading a novel about lighthouses | reading more books | What is the novel of my book club about?
I make candles and sold forty at the autumn fair | running a shop online | How many candles did I sell at the fair?
my brother Tomas is getting divorced | supporting relatives | What is going on with my brother?
I have had a standing desk since January and my back is better | working at home | What helped my back?
I joined a choir that sings Georgian songs | learning to sing | What kind of songs does my choir sing?
I turned 37 in the mountains of Slovenia | birthdays outdoors | Where did I celebrate my birthday?
my phone fell into a lake while I was fishing | looking after gadgets | How did my phone break?
I have a podcast on forgotten bridges with Amara | recording sound | Who makes the podcast with me?
I got a scholarship for a summer school in Tartu | applying for courses | Which city is my summer school in?
my password manager is on an old tablet in the attic | storing papers | Where is my password manager?
I gave up sugar on the first of February | eating less sweets | Since when do I eat no sugar?
we named our boat Pelican after a cafe | sailing for beginners | What is the name of our boat?
"""

ADVICE = (
    "When it comes to {t}, it helps to begin with a clear picture of what you want to reach and of your time.",
    "Many people find {t} easier when they write a short list, and go through it at the same time each week.",
    "There are three things to keep in mind about {t}: start small, measure what changes, and do not rush.",
    "A common mistake with {t} is to buy too much at once, where a few good things at home would have done.",
    "If you have a friend who knows about {t}, ask them; what they learnt in their first year will save you money.",
    "1. **Prepare.** Set a day aside, look at what you have, and note what is broken, missing or called for.",
    "2. **Try.** Give each idea about {t} two weeks, on Mondays and Thursdays for example, before you drop it.",
    "3. **Review.** In the morning, or when work is done, ask what went well and which step is next.",
    "As for costs, {t} need not be dear: forty or eighty euros go a long way, and much can be had second-hand.",
    "Books, a podcast or a course in your city can teach you the basics of {t}, also in the summer.",
    "Children, a dog or relatives at home change the picture, so leave room for them in your plan for {t}.",
    "Last, look after your back, your knee and your stomach: rest, drink water, and stop when something hurts.",
    "You might also want to read about how others went about {t}; the stories of beginners are the most useful ones.",
    "I would not worry about doing everything right. What matters with {t} is that you go on after a bad week.",
)


def advice(seed: int = 0) -> list[Talk]:
    """Return talks of a user who mentions facts in passing while asking for advice, with long answers that have many of
    the same words."""
    rng, talks = random.Random(seed), []
    facts = [[field.strip() for field in line.split("|")] for line in FACTS.strip().splitlines()]
    for number in range(4):
        log, asked = _Log(datetime(2025, 1, 6, 18, tzinfo=UTC)), []
        for fact, topic, question in rng.sample(facts, len(facts)):
            phrasing = rng.choice(("By the way, {f}.", "As you may know, {f}.", "{f}, so I have little time."))
            mention = phrasing.format(f=fact)
            request = f"Could you give me some tips on {topic}?"
            seq = log.say("user", f"{mention} {request}" if rng.random() < 0.5 else f"{request} {mention}")
            log.say("assistant", _advice(topic, rng))
            log.say("user", f"Could you say more about the second point, on {topic}?")
            log.say("assistant", _advice(topic, rng))
            log.say("user", rng.choice(("Thank you!", "That is useful.", "Great, I will do that.")))
            log.say("assistant", "You are welcome! Tell me how it goes, and ask whenever you want to know more.")
            log.pause(days=rng.randint(1, 6))
            asked.append(Asked(question, frozenset((seq,)), "said on the way", 0))
        talks.append(Talk(f"advice {number}", log.entries, [question._replace(now=log.now) for question in asked]))
    return talks


def _advice(topic: str, rng: random.Random) -> str:
    return "\n\n".join(sentence.format(t=topic) for sentence in rng.sample(ADVICE, 11))


ASIDES = """
Did the interview at the museum work? | They took me! I start in May. | What came of {b}'s interview at the museum?
What did the vet say about the parrot? | Just a cold, he needs warmth and rest. | What is wrong with {b}'s parrot?
How was the pottery class in the end? | Messy! I have two crooked bowls. | What did {b} make in the pottery class?
Is the tent big enough for all of us? | Four sleep well in it, or even five. | How many people fit into {b}'s tent?
Who won your chess tournament? | Old Mr Brandt, as he does every year. | Who won the chess tournament of {b}?
What are you growing on the balcony now? | Chillies and a lot of mint. | What does {b} grow on the balcony?
Where did you get that green scarf? | My aunt knitted it when I was ill. | Who made {b}'s green scarf?
Have you found a flat in Porto yet? | Yes, a tiny one right above a fishmonger. | Where is {b}'s flat in Porto?
How long is the drive to the cabin? | Three hours, unless there is snow. | How long does it take {b} to reach the cabin?
What did you cook for the street party? | Lentil soup, and none was left. | What did {b} cook for the street party?
Did your cousin pass the pilot's exam? | She failed by a single point. | How did the pilot's exam of {b}'s cousin go?
What instrument is your son learning? | The trombone. Our neighbours hate us. | What instrument does {b}'s son learn?
How is the new boss? | Strict, but she says thank you. | What is {b}'s new boss like?
What was the film festival like? | Too crowded; we left before the last one. | Why did {b} leave the film festival?
Did they repair the roof after the storm? | Not yet, there is a bucket in the hall. | What does {b} do about the roof?
What did you name the kittens? | Pepper and Comet, my niece chose. | What are {b}'s kittens called?
How much did the kayak cost? | Nothing, I traded my old guitar for it. | How did {b} get the kayak?
What do you do when you cannot sleep? | I draw maps of places I invent. | What does {b} do on sleepless nights?
Are you still afraid of deep water? | Less, since the lessons with Imani. | Who taught {b} to swim without fear?
What happened at the harbour yesterday? | A crane fell over, nobody was hurt. | What fell over at the harbour?
"""

CHATTER = (
    ("Hey {b}! How are you today?", "Good, {a}, a bit tired. And you?"),
    ("Did you sleep well?", "Not much, the neighbours had a party."),
    ("The weather is awful here.", "Here too, rain since the morning."),
    ("I really missed talking to you!", "Me too! It has been too long."),
    ("Work was a lot this week.", "Tell me about it. I need a holiday."),
    ("I watched a film last night, it was fine.", "Which one? I never know what to watch."),
    ("I started running again.", "Nice! I should do more sport as well."),
    ("My new shoes hurt.", "Give them two weeks, mine did too."),
    ("We had soup for dinner.", "I love soup when it is cold."),
    ("My son is growing so fast.", "They do, my niece is taller than me now."),
    ("I had a long drive today.", "Rest a bit then."),
    ("Sorry, I have to go soon.", "No problem, call me when you can!"),
    ("Take care, {b}!", "You too, {a}, see you!"),
)


def friends(seed: int = 0) -> list[Talk]:
    """Return chats of two friends: the answer to a question shares few words with it."""
    rng, talks = random.Random(seed), []
    lines = [[field.strip() for field in line.split("|")] for line in ASIDES.strip().splitlines()]
    for pair in (("Leonie", "Marek"), ("Priya", "Oskar"), ("Samir", "Greta"), ("Yuki", "Hanna")):
        log, asked = _Log(datetime(2024, 2, 3, 19, tzinfo=UTC)), []
        for asking, answer, question in rng.sample(lines, len(lines)):
            for at, talk in enumerate(sorted(rng.sample(range(len(CHATTER)), 7))):
                a, b = pair if rng.random() < 0.5 else pair[::-1]
                turns = [(a, CHATTER[talk][0]), (b, CHATTER[talk][1])]
                if at == 3:
                    turns += [(a, asking), (b, answer)]
                for speaker, text in turns:
                    role: Role = "user" if speaker == pair[0] else "assistant"
                    seq = log.say(role, f"{speaker}: {text.format(a=a, b=b)}", name=speaker)
                    log.pause(seconds=30)
                    if text == answer:
                        asked.append(Asked(question.format(b=b), frozenset((seq,)), "answered by a friend"))
            log.pause(days=rng.randint(2, 9))
        talks.append(
            Talk(f"{pair[0]} and {pair[1]}", log.entries, [question._replace(now=log.now) for question in asked])
        )
    return talks


def own(data: Path | None) -> Iterator[tuple[str, Sequence[Talk]]]:
    """Yield the corpora that are not LoCoMo, by name."""
    if data is not None:
        yield "tau-bench, known items", tau_bench(data)
    yield "pages: long technical answers", pages()
    yield "advice: facts of a user among long answers", advice()
    yield "friends: short answers to questions", friends()
