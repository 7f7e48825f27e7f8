"""A process whose threads all read for the first time at the same moment: `python first_readers_process.py URL`."""

from __future__ import annotations

import sys
import threading

from palimpsest import Memory

THREADS = 8


def main(url: str) -> None:
    """Write a session and a fact for each thread if the store is empty; otherwise let each thread read its own."""
    with Memory.open(url) as memory:
        names = [f"s{number}" for number in range(THREADS)]
        if not memory.sessions():
            for name in names:
                memory.session(name).add_user_message("hello")
                memory.working(name).set("key", 1)
            return
        start = threading.Barrier(THREADS)

        def read(name: str) -> None:
            start.wait()
            assert memory.working(name).get("key") == 1
            assert memory.session(name, max_tokens=100).context().messages[0]["content"] == "hello"

        threads = [threading.Thread(target=read, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    sys.stdout.write("read\n")


if __name__ == "__main__":
    sys.setswitchinterval(1e-6)
    main(sys.argv[1])
