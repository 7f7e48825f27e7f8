"""Fixtures that more than one file of tests asks for. A file that needs another `memory` makes its own."""

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
"""How many parameters of a test that is long for each of them `.ci/run` has, beside the first."""

IN_MEMORY, ROOM = Path("/dev/shm"), 2 * 1024**3  # noqa: S108 (files there have folders that nobody else may enter)
"""A file system that takes no disk, and the bytes that are to be free there: twice what a usual run writes at once."""

COMPILED = pytest.StashKey[str]()
"""The folder of compiled modules for processes that tests start."""


def pytest_configure(config: pytest.Config) -> None:
    """Make tests independent of how they are run.

    Where SIGINT is ignored, as in a background job, it interrupts here all the same, and in the processes that tests
    start. These write compiled modules even where Python is told to write none: into a folder of their own then. A
    worker is started without it, because in that folder it would find no library as it was compiled when installed.
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
        Path(servers_in).chmod(0o755)  # one that runs as another user has its folder there
        config.add_cleanup(servers.configure(servers_in))
    is_runner = "PYTEST_XDIST_WORKER" in os.environ or not config.getoption("numprocesses", default=0)
    if is_runner and os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        os.environ["PYTHONPYCACHEPREFIX"] = folder
    laws.everything = "not slow" not in config.getoption("markexpr")
    # How long an example takes says more of the machine than of what is tested.
    settings.register_profile(
        "palimpsest", deadline=None, max_examples=laws.examples(100), suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("palimpsest")


def _write_to_memory() -> None:
    """Have tests write where it takes no disk, unless somebody says where: on a disk a test waits for its folder."""
    if "TMPDIR" not in os.environ and os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free >= ROOM:
        os.environ["TMPDIR"] = str(IN_MEMORY)
        tempfile.tempdir = None  # it had been asked already


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than there are cores: a quarter of a worker's time it waits, for processes and for the disk."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS", cores + 1))


def pytest_configure_node(node: Any) -> None:
    """Tell a worker where the folder of compiled modules is."""
    node.workerinput["compiled"] = node.config.stash[COMPILED]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave the collector of garbage alone while nothing is let go of: a fifth of that time it went through tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


Report = pytest.CollectReport


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Report, Report]:
    """Have each worker begin with other files: one that another has compiled is not compiled again."""
    report = yield
    if isinstance(collector, pytest.Dir) and (worker := os.environ.get("PYTEST_XDIST_WORKER")):
        files, workers = report.result, int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        first = len(files) * int(worker.removeprefix("gw")) // workers
        files[:] = [*files[first:], *files[:first]]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files in order again. Let each law, on all of its examples, be among the slow tests; quick ones keep to some.

    Of a test that is `sampled` the first is in a usual run; of the others `SAMPLES` are `wide`, evenly spread, and the
    rest `slow`.
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
    for alike in sampled.values():
        first = next((item for item in alike if item.get_closest_marker("wide") is None), None)
        others = [item for item in alike if item is not first]
        kept = {number * len(others) // SAMPLES for number in range(SAMPLES)}
        for number, item in enumerate(others):
            item.add_marker(pytest.mark.wide if number in kept or len(others) <= SAMPLES else pytest.mark.slow)


DRIVERS: dict[str, Callable[..., AbstractContextManager[Memory]]] = {"driver": Memory.open, "driver awaited": awaited}
"""A store with an asynchronous driver, in both classes: the second is an `AsyncMemory` on an event loop."""

SERVERS: dict[str, tuple[Callable[[], str], Callable[..., AbstractContextManager[Memory]]]] = {
    "postgres": (lambda: postgresstore.address_of("sessions"), Memory.open),
    "postgres apart": (lambda: shards.address_of("apart"), Memory.open),
    "postgres awaited": (lambda: postgresstore.address_of("sessions"), awaited),
    "redis": (redisstore.address_of, Memory.open),
    "redis awaited": (redisstore.address_of, awaited),
    "mongodb (SecantusDB)": (lambda: mongostore.address_of("sessions"), Memory.open),
    "mongodb (SecantusDB) awaited": (lambda: mongostore.address_of("sessions"), awaited),
}
"""Stores on servers: what gives the address of an empty one, and what opens it, in both classes."""

SELDOM = ("mongodb (SecantusDB) awaited", "postgres apart")
"""Of these what is `wide` everywhere: such servers take their time."""

ONCE = ("postgres apart",)
"""And what only the tests of `USUAL` run over."""

USUAL = "test_sessions"
"""What runs over each server in a usual run, too; others are `wide` there, and over SecantusDB slow."""

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
"""Tests of sessions that run over them, too."""


def passes(server: str, *, usual: bool) -> tuple[pytest.MarkDecorator, ...]:
    """In which pass tests of sessions run over a server: those of `USUAL`, or others."""
    if usual and server not in SELDOM:
        return ()
    return (pytest.mark.wide,) if usual or "SecantusDB" not in server else (pytest.mark.slow,)


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests of sessions over stores with an asynchronous driver, too."""
    drivers = OVER_DRIVERS.get(metafunc.module.__name__.rpartition(".")[2], ())
    chosen = [mark for mark in metafunc.definition.iter_markers("parametrize") if mark.args[0] == "memory"]
    if drivers and "memory" in metafunc.fixturenames and not (chosen or hasattr(metafunc.module, "memory")):
        usual = metafunc.module.__name__.rpartition(".")[2] == USUAL
        over = [pytest.param(one, marks=passes(one, usual=usual)) for one in SERVERS if usual or one not in ONCE]
        embedded = ("memory", "sqlite", "file") if usual else EMBEDDED
        mark = pytest.mark.parametrize("memory", [*embedded, *drivers, *over], indirect=True)
        metafunc.definition.add_marker(mark)  # a mark stands in for the fixture's own parameters


@pytest.fixture
def anyio_backend() -> str:
    """Promised is asyncio only."""
    return "asyncio"


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still until it is told to go on."""
    return FakeClock()


@pytest.fixture(params=EMBEDDED)
def memory(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Memory]:
    """An empty store of each embedded kind, whose clock stands still."""
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
    """An empty session of that store."""
    return memory.session("one", counter=quarters)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what the examples of a module's laws write."""
    return tmp_path_factory.mktemp("examples")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a store of a test lives that others open, too: a file of SQLite's, which is not there yet."""
    return tmp_path / "log.db"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with a store of its own named by the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PALIMPSEST_STORE", "sqlite:///chats.db")
    return tmp_path


@pytest.fixture
def chat(here: Path) -> str:
    """A session of one interaction, imported from JSON lines; returns its id."""
    write_lines(here / "chat.jsonl", CHAT)
    assert run("import", "chat.jsonl", "--session", "chat").exit_code == 0
    return "chat"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one mebibyte."""
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
    """A folder that every user may enter; pytest's own are private."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    yield place
    place.chmod(0o755)
    shutil.rmtree(place)


@pytest.fixture
def dice() -> random.Random:
    """Randomness whose seed a failure shows; PALIMPSEST_SEED repeats it (the moments of a kill never quite repeat)."""
    seed = int(os.environ.get("PALIMPSEST_SEED") or random.SystemRandom().randrange(2**32))
    logging.getLogger("tests").warning("PALIMPSEST_SEED=%d", seed)
    return random.Random(seed)
