"""`palimpsest worker`: compact, sweep and index what is due in stores, until it is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import click
import msgspec

from palimpsest import AsyncMemory, Keys
from palimpsest.cli.app import PRIVACY, examples, json_option
from palimpsest.cli.failing import InputRefused, Missing, OperationFailed
from palimpsest.cli.opening import expect_store, resolve, shown
from palimpsest.cli.output import counted, json_line, line, moment, note, warn
from palimpsest.cli.privacy import redactor
from palimpsest.resources import AsyncResources, Worked, Worker, WorkReport
from palimpsest.stores.encrypted.keys import ENVIRONMENT as KEYS

IN_MEMORY = "memory:"


@click.command(
    "worker",
    epilog=examples(
        "palimpsest worker --config memory/",
        "palimpsest worker postgresql://db.internal/agents --config memory/ --all-tenants",
        "palimpsest worker --config memory/ --once --json",
        "palimpsest worker sqlite:///palimpsest.db",
    ),
)
@click.argument("url", required=False, metavar="[URL]")
@click.option(
    "--config",
    metavar="FILE|FOLDER",
    envvar="PALIMPSEST_CONFIG",
    show_envvar=True,
    help="File or folder that declares memories. Without it nothing is compacted.",
)
@click.option("--once", is_flag=True, help="Do what is due now, and end.")
@click.option("--tenant", "tenants", multiple=True, metavar="NAME", help="Work for this tenant. Repeatable.")
@click.option("--all-tenants", is_flag=True, help="Work for all tenants of the stores.")
@click.option(
    "--duty",
    "duties",
    multiple=True,
    metavar="NAME",
    help="Do only this: compact, sweep or index. Repeatable.  [default: all]",
)
@click.option("--every", default="5s", metavar="LENGTH", show_default=True, help="How long to wait between two rounds.")
@click.option(
    "--lease",
    default="60s",
    metavar="LENGTH",
    show_default=True,
    help="How long other workers leave a session alone after the worker on it was killed.",
)
@click.option(
    "--grace",
    default="8s",
    metavar="LENGTH",
    show_default=True,
    help="How long work under way may take after a signal to stop.",
)
@json_option
def worker_command(
    url: str | None,
    config: str | None,
    once: bool,
    tenants: tuple[str, ...],
    all_tenants: bool,
    duties: tuple[str, ...],
    every: str,
    lease: str,
    grace: str,
    as_json: bool,
) -> None:
    """Compact, sweep and index stores in the background.

    Until it is stopped, the worker compacts sessions of declared memories when that is due, destroys what has expired,
    and keeps search indexes up to date. It uses the stores that the memories in --config declare, or the store at URL
    instead. Without --config it compacts nothing. Any number of workers may run at once. SIGTERM and Ctrl-C end a
    worker as soon as it has finished the session under way. It prints a line for each session that it worked on.
    """
    if (tenants or (click.get_current_context().find_root().obj or (None, None))[1]) and all_tenants:
        raise click.UsageError("give either --tenant or --all-tenants, not both")
    lines = _Lines(as_json=as_json)
    options: dict[str, Any] = {"duties": duties or None, "lease": lease, "told": lines}
    options["tenants"] = None if all_tenants else tenants or (resolve(None, None)[1],)
    lengths = {"every": every, "grace": grace}
    report = asyncio.run(_worked(url, config, options, lengths, lines, once=once))
    if lines.broken is not None:
        raise lines.broken
    if as_json:
        click.echo(json_line({"done": msgspec.structs.asdict(report)}))
    else:
        note(_figures(report))
    if once and report.failed:
        raise OperationFailed(f"{counted(report.failed, 'compaction')} failed")


class _Lines:
    """Prints a line for each thing that the worker did, and stops the worker when their reader went away.

    `broken` is the error by which that was noticed: the worker itself goes on if one who is told fails.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.stop: Callable[[], None] = lambda: None
        self.broken: BrokenPipeError | None = None

    def __call__(self, done: Worked) -> None:
        values = {**msgspec.structs.asdict(done), "at": done.at.isoformat()}
        try:
            click.echo(json_line(values) if self.as_json else f"{moment(done.at)}  {_line(done)}")
        except BrokenPipeError as broken:
            self.broken = broken
            self.stop()


async def _worked(
    url: str | None, config: str | None, options: dict[str, Any], lengths: dict[str, str], lines: _Lines, *, once: bool
) -> WorkReport:
    async with _opened(url, config, options) as (worker, where):
        with _stopped_by_signals(worker.stop):
            if once:
                return await worker.once(grace=lengths["grace"])
            lines.stop = worker.stop
            if not lines.as_json:
                note(f"Working in {where}. SIGTERM or Ctrl-C ends it.")
            return await worker.run(**lengths)


@asynccontextmanager
async def _opened(url: str | None, config: str | None, options: dict[str, Any]) -> AsyncIterator[tuple[Worker, str]]:
    """Yield the worker, and its stores as text. Raises Unavailable for a store file that does not exist."""
    url = (click.get_current_context().find_root().obj or (None,))[0] if url is None else url
    where, _ = resolve(url, None)
    if url is not None or config is None:
        expect_store(where, "or give the URL of another store")
    if config is None:
        note("Nothing is compacted: give --config with the memories whose sessions are to be compacted.")
        keys = Keys.from_env() if KEYS in os.environ else None
        async with AsyncMemory.open(where, encryption=keys, privacy=redactor()) as memory:
            yield Worker([(memory, ())], **options), shown(where)
        return
    if PRIVACY in click.get_current_context().find_root().meta:
        raise click.UsageError(
            "give either --privacy or --config, not both: the files of --config declare the privacy policy"
        )
    override: dict[str, Any] = {"where": where} if url is not None else {}
    async with AsyncResources.load(config, **override) as resources:
        _expect_reachable(resources, config, url)
        tenants = options.pop("tenants")
        yield (
            resources.worker(tenants=tenants, all_tenants=tenants is None, **options),
            shown(where) if url is not None else f"the stores of {', '.join(map(line, resources))}",
        )


def _expect_reachable(resources: AsyncResources, config: str, url: str | None) -> None:
    """Raise an error if no declared memory is in a store that a worker can reach; warn of each that is not.

    A memory that is kept in the memory of another program cannot be reached.
    """
    if not len(resources):
        raise Missing(f"{config} declares no memory: a file declares one if it says `resource: memory`")
    if url is not None:
        return
    unreachable = [id for id in resources if (resources[id].place.address or "").startswith(IN_MEMORY)]
    reason = "kept in the memory of the program that uses it, which a worker cannot reach"
    if len(unreachable) == len(resources):
        raise InputRefused(f"each memory in {config} is {reason}: declare a store for it, or give URL")
    for id in unreachable:
        warn(f"memory {line(id)} is {reason}")


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Have SIGTERM and SIGINT stop the worker while the block lasts."""
    loop, signals = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop)) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _line(done: Worked) -> str:
    tenant = "" if done.tenant == "default" else f"{line(done.tenant)}: "
    if done.duty == "index":
        return f"{tenant}indexed what is new in {counted(done.indexed, 'session')}"
    if done.session is None:
        return f"{tenant}swept {done.swept:,} expired entries, items and sessions"
    name = f"{tenant}{line(done.session)}"
    if done.reason is not None:
        return f"{name}  {done.reason}: {line(done.why)}"
    by = f" by {line(done.model)}" if done.model else ""
    removed = done.covered + done.evicted + done.erased
    tokens = f"{done.tokens_before:,} → {done.tokens_after:,} tokens"
    return f"{name}  {line(done.strategy or '')}{by}: {tokens}, {counted(removed, 'entry')} left the context"


def _figures(report: WorkReport) -> str:
    """Return the figures of all rounds in a sentence."""
    waiting = f", {counted(report.waiting, 'session')} to be looked at again" if report.waiting else ""
    indexed = f"{report.indexed:,} indexed, " if report.indexed else ""
    done = (
        f"{counted(report.compacted, 'compaction')}, {report.swept:,} swept, {indexed}{report.failed:,} failed{waiting}"
    )
    return f"Done in {counted(report.rounds, 'round')}: {done}."
