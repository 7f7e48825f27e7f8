"""A process that searches, adds or erases: `python indexer.py MODE STORE [ARGUMENT ...]`.

Like `writer.py` it prints one JSON value a line.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
from pathlib import Path

from palimpsest import Memory
from palimpsest.recall.index import Update
from palimpsest.recall.sqlite.index import FtsIndex
from recall_helpers import finds, marks
from writer import meet, say

SCRIPT = Path(__file__)


def pause(place: str, *words: str) -> None:
    """Print "read" before the first page is written to the index, and wait for a line; print which words are found.

    So the page was read from the log before another process changes it.
    """
    update, waited = FtsIndex.update, list[bool]()

    async def later(index: FtsIndex, session: str, page: Update) -> bool:
        if not waited:
            waited.append(True)
            say("read")
            sys.stdin.readline()
        return await update(index, session, page)

    FtsIndex.update = later  # type: ignore[method-assign, assignment]
    with Memory.open(place) as memory:
        say([finds(memory, word) for word in words])


def add(place: str) -> None:
    """Add entries until killed; print "ready" at the fiftieth."""
    with Memory.open(place, synchronous="NORMAL") as memory:
        session = memory.session("busy")
        for number in itertools.count():
            session.add_user_message(f"albatross {number} and so on " * 5)
            if number == 50:
                say("ready")


def erase(place: str, seed: str) -> None:
    """Add and erase entries; print the words that were erased and those that remain."""
    dice, words = random.Random(seed), iter(marks(seed, 400))
    present, gone = list[str](), list[str]()
    with Memory.open(place, synchronous="NORMAL") as memory:
        meet()
        for _ in range(60):
            for word in itertools.islice(words, 3):
                memory.session(f"s{dice.randrange(3)}").add_user_message(f"said {word}")
                present.append(word)
            word = present.pop(dice.randrange(len(present)))
            memory.forget(matches=word)
            gone.append(word)
    say([gone, present])


def search(place: str, seed: str) -> None:
    """Search for the entries of other processes until a line comes in; print words that were found again once gone."""
    ended = threading.Event()
    with Memory.open(place, synchronous="NORMAL") as memory:
        meet()

        def wait() -> None:
            sys.stdin.readline()
            ended.set()

        threading.Thread(target=wait, daemon=True).start()
        gone, last = set[str](), set[str]()
        while not ended.is_set():
            hits = memory.recall("said", limit=1000, max_tokens=None, neighbours=0).hits
            found = {passage.text.split()[1] for passage in hits}
            if back := found & gone:
                say(["came back", *back])
                return
            gone |= last - found
            last = found
    say("never found what was gone")


def index(place: str) -> None:
    """Index the store, and print each page that was written."""
    update = FtsIndex.update

    async def reported(index: FtsIndex, session: str, page: Update) -> bool:
        result = await update(index, session, page)
        say(["page", session, page.cursor.next_seq])
        return result

    FtsIndex.update = reported  # type: ignore[method-assign, assignment]
    with Memory.open(place) as memory:
        memory.recall("anything")
    say("done")


def rebuild(place: str) -> None:
    """Rebuild the index again and again until killed, and print each session that is done."""
    from palimpsest.runtime.runner import drive

    with Memory.open(place) as memory:
        recall = drive(memory._core._scope.recall())
        while True:
            drive(recall.follower.rebuild(lambda done, of: say([done, of])))


def erase_until(place: str, where: str, ids: str) -> None:
    """Erase entries; print "now" and wait for a line after the commit, and with `where` "before" also before it."""
    with Memory.open(place) as memory:
        commit = memory.store.commit

        async def stop(*args: object, **options: object) -> object:
            if where == "before":
                say("now")
                sys.stdin.readline()
            head = await commit(*args, **options)  # type: ignore[arg-type]
            say("now")
            sys.stdin.readline()
            return head

        memory.store.commit = stop  # type: ignore[method-assign, assignment]
        memory.session("one").erase([int(seq) for seq in ids.split(",")])


MODES = {
    "pause": pause,
    "add": add,
    "erase": erase,
    "search": search,
    "index": index,
    "rebuild": rebuild,
    "erase_until": erase_until,
}

if __name__ == "__main__":
    MODES[sys.argv[1]](*sys.argv[2:])  # type: ignore[operator]
