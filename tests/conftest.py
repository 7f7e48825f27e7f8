"""Fixtures and hooks for the whole suite. A test file that needs another kind of `memory` defines its own fixture."""

from __future__ import annotations

import gc
import logging
import os
import random
import shutil
import signal
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

import laws
import mongostore
import postgresstore
import redisstore
import servers
import shards
from commands import CHAT, run, write_lines
from palimpsest import Memory, Session
from palimpsest.testing import FakeClock
from processes import can_be_anybody
from suspending import awaited
from writer import quarters

EMBEDDED = (pytest.param("memory", marks=pytest.mark.wide), "sqlite", pytest.param("file", marks=pytest.mark.wide))

SAMPLES = 2
"""How many parameters of a `sampled` test, beside the first, run in `.ci/run` (as `wide` tests)."""

IN_MEMORY, ROOM = Path("/dev/shm"), 2 * 1024**3  # noqa: S108 (files there have folders that nobody else may enter)
"""A file system in memory, and the bytes that must be free on it: twice what a usual run holds there at once."""

COMPILED = pytest.StashKey[str]()
"""The folder for the compiled modules of processes that tests start."""


def pytest_configure(config: pytest.Config) -> None:
    """Make the tests independent of how they are started.

    SIGINT is often ignored (in a background job, for example): its default handler is restored here, and so in the
    processes that tests start. Compiled modules are written even under PYTHONDONTWRITEBYTECODE, into a folder of this
    run, because processes would otherwise compile the library at each start. An xdist worker itself is started without
    that folder: with it, the worker would not find the modules that were compiled when the library was installed.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    folder: str | None = getattr(config, "workerinput", {}).get("compiled")
    if folder is None:
        _write_to_memory()
        folder = tempfile.mkdtemp()
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        config.stash[COMPILED] = folder
        servers_in = tempfile.mkdtemp()
        Path(servers_in).chmod(0o755)  # PostgreSQL runs as another user and has its folder in there
        config.add_cleanup(servers.configure(servers_in))
    is_runner = "PYTEST_XDIST_WORKER" in os.environ or not config.getoption("numprocesses", default=0)
    if is_runner and os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        os.environ["PYTHONPYCACHEPREFIX"] = folder
    laws.everything = "not slow" not in config.getoption("markexpr")
    # No deadline: how long an example takes depends on the machine more than on the code under test.
    settings.register_profile(
        "palimpsest", deadline=None, max_examples=laws.examples(100), suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("palimpsest")


def _write_to_memory() -> None:
    """Let tests write to a file system in memory, unless TMPDIR is set: on a disk, tests wait for their folders."""
    if "TMPDIR" not in os.environ and os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free >= ROOM:
        os.environ["TMPDIR"] = str(IN_MEMORY)
        tempfile.tempdir = None  # drop the folder that tempfile has chosen already


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Start one worker more than there are cores: a worker waits a quarter of its time, for processes and the disk."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS", cores + 1))


def pytest_configure_node(node: Any) -> None:
    """Tell an xdist worker which folder holds the compiled modules."""
    node.workerinput["compiled"] = node.config.stash[COMPILED]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Pause the garbage collector while tests are collected: it frees nothing then and takes a fifth of that time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


Report = pytest.CollectReport


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Report, Report]:
    """Let each worker import other test files first, so that a file one worker has compiled is not compiled twice."""
    report = yield
    if isinstance(collector, pytest.Dir) and (worker := os.environ.get("PYTEST_XDIST_WORKER")):
        files, workers = report.result, int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        first = len(files) * int(worker.removeprefix("gw")) // workers
        files[:] = [*files[first:], *files[:first]]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Restore the order of files, and mark laws and `sampled` tests as `wide` or `slow`.

    When slow tests run, every hypothesis test is one of them, with all its examples; a usual run tries fewer examples.
    Of a `sampled` test the first parameter runs in a usual run. Of the other parameters `SAMPLES`, evenly spread, are
    marked `wide`, and the rest `slow`.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.path)
    if laws.everything:
        for item in items:
            if is_hypothesis_test(getattr(item, "obj", None)):
                item.add_marker(pytest.mark.slow)
    sampled = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("sampled") is not None and item.get_closest_marker("slow") is None:
            sampled[item.nodeid.partition("[")[0]].append(item)
    for variants in sampled.values():
        first = next((item for item in variants if item.get_closest_marker("wide") is None), None)
        others = [item for item in variants if item is not first]
        kept = {number * len(others) // SAMPLES for number in range(SAMPLES)}
        for number, item in enumerate(others):
            item.add_marker(pytest.mark.wide if number in kept or len(others) <= SAMPLES else pytest.mark.slow)


DRIVERS: dict[str, Callable[..., AbstractContextManager[Memory]]] = {"driver": Memory.open, "driver awaited": awaited}
"""How to open the suspending store (`suspending.py`): as a `Memory`, and as an `AsyncMemory` on an event loop."""

SERVERS: dict[str, tuple[Callable[[], str], Callable[..., AbstractContextManager[Memory]]]] = {
    "postgres": (lambda: postgresstore.address_of("sessions"), Memory.open),
    "postgres apart": (lambda: shards.address_of("apart"), Memory.open),
    "postgres awaited": (lambda: postgresstore.address_of("sessions"), awaited),
    "redis": (redisstore.address_of, Memory.open),
    "redis awaited": (redisstore.address_of, awaited),
    "mongodb (SecantusDB)": (lambda: mongostore.address_of("sessions"), Memory.open),
    "mongodb (SecantusDB) awaited": (lambda: mongostore.address_of("sessions"), awaited),
}
"""Stores on servers: a function that returns the address of an empty store, and a function that opens it.

"awaited" opens an `AsyncMemory` on an event loop behind the interface of `Memory`.
"""

SELDOM = ("mongodb (SecantusDB) awaited", "postgres apart")
"""Servers that are too slow for a usual run: tests over them are marked `wide` in every file."""

ONCE = ("postgres apart",)
"""Servers over which only the tests of the file `USUAL` run."""

USUAL = "test_sessions"
"""The one file whose tests run over servers in a usual run.

Tests of the other files in `OVER_DRIVERS` are marked `wide` over servers, and `slow` over SecantusDB.
"""

OVER_DRIVERS = {
    "test_branches": DRIVERS,
    "test_compacting": DRIVERS,
    "test_erasing": DRIVERS,
    "test_past_contexts": DRIVERS,
    "test_replacing": DRIVERS,
    "test_session_changes": DRIVERS,
    "test_sessions": DRIVERS,
    "test_streaming": DRIVERS,
}
"""Test files about sessions whose tests also run over asynchronous drivers and servers."""


def passes(server: str, *, usual: bool) -> tuple[pytest.MarkDecorator, ...]:
    """Return the marks of a test over this server; `usual` says whether the test is in the file `USUAL`."""
    if usual and server not in SELDOM:
        return ()
    return (pytest.mark.wide,) if usual or "SecantusDB" not in server else (pytest.mark.slow,)


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of the files in `OVER_DRIVERS` over every store, not only over the embedded ones."""
    drivers = OVER_DRIVERS.get(metafunc.module.__name__.rpartition(".")[2], ())
    own_stores = [mark for mark in metafunc.definition.iter_markers("parametrize") if mark.args[0] == "memory"]
    if drivers and "memory" in metafunc.fixturenames and not (own_stores or hasattr(metafunc.module, "memory")):
        usual = metafunc.module.__name__.rpartition(".")[2] == USUAL
        over = [
            pytest.param(server, marks=passes(server, usual=usual)) for server in SERVERS if usual or server not in ONCE
        ]
        embedded = ("memory", "sqlite", "file") if usual else EMBEDDED
        mark = pytest.mark.parametrize("memory", [*embedded, *drivers, *over], indirect=True)
        metafunc.definition.add_marker(mark)  # a mark overrides the fixture's own parameters


@pytest.fixture
def anyio_backend() -> str:
    """Run coroutine tests on asyncio alone: the library promises no other event loop."""
    return "asyncio"


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still until a test advances it."""
    return FakeClock()


@pytest.fixture(params=EMBEDDED)
def memory(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Memory]:
    """An empty store with a clock that stands still, once for each embedded backend."""
    if request.param in DRIVERS:
        with DRIVERS[request.param]("suspending://", clock=clock) as memory:
            yield memory
        return
    if request.param in SERVERS:
        address, opened = SERVERS[request.param]
        with opened(address(), clock=clock) as memory:
            yield memory
        return
    addresses = {"memory": "memory://", "file": f"file://{tmp_path}/logs"}
    where: str | Path = addresses.get(request.param, tmp_path / "log.db")
    with Memory.open(where, clock=clock) as memory:
        yield memory


@pytest.fixture
def session(memory: Memory) -> Session:
    """An empty session of `memory`, with a counter that needs no vocabulary."""
    return memory.session("one", counter=quarters)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder shared by a module's hypothesis tests, which open a new store in it for each example."""
    return tmp_path_factory.mktemp("examples")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of an SQLite file that does not exist yet, for tests that open the same store several times."""
    return tmp_path / "log.db"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, where PALIMPSEST_STORE names a store for the command line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PALIMPSEST_STORE", "sqlite:///chats.db")
    return tmp_path


@pytest.fixture
def chat(here: Path) -> str:
    """Import a session of one interaction from JSON lines and return its id."""
    write_lines(here / "chat.jsonl", CHAT)
    assert run("import", "chat.jsonl", "--session", "chat").exit_code == 0
    return "chat"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one mebibyte, to show what happens when the disk is full."""
    place = tmp_path / "disk"
    place.mkdir()
    if not can_be_anybody() or not shutil.which("mount"):
        pytest.skip("only root can mount a small disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.fixture
def shelf() -> Iterator[Path]:
    """A folder that every user may enter, for processes of other users; pytest's own folders are private."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    yield place
    place.chmod(0o755)
    shutil.rmtree(place)


@pytest.fixture
def dice() -> random.Random:
    """A random generator whose seed is logged; PALIMPSEST_SEED repeats it, but kills still come at other moments."""
    seed = int(os.environ.get("PALIMPSEST_SEED") or random.SystemRandom().randrange(2**32))
    logging.getLogger("tests").warning("PALIMPSEST_SEED=%d", seed)
    return random.Random(seed)
