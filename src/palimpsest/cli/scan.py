"""`palimpsest scan`: find what a privacy policy would have redacted in a store, and redact it there."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from palimpsest import Memory, Policy, Redactor
from palimpsest.cli.app import Whole, confirm, examples, json_option, store_options
from palimpsest.cli.opening import open_memory, require, session_ids
from palimpsest.cli.output import console, counted, line, note, print_json, session_progress, table
from palimpsest.cli.privacy import read_policy, redactor, redactor_of
from palimpsest.privacy.policy import load
from palimpsest.types import Scanned


@click.command(
    "scan",
    epilog=examples(
        "palimpsest scan",
        "palimpsest scan --rule 'ACME-[0-9]{6}' --session support-7",
        "palimpsest scan --recogniser email --recogniser phone --check",
        "palimpsest scan --policy policy.json --apply",
    ),
)
@click.option("--policy", metavar="FILE", help="Look for what the policy in this JSON file redacts.")
@click.option("--rule", "rules", multiple=True, metavar="REGEX", help="Look for this pattern. Repeatable.")
@click.option(
    "--recogniser",
    "recognisers",
    multiple=True,
    metavar="NAME",
    help="Look for what this recogniser finds, such as email. Repeatable.",
)
@click.option(
    "--session",
    metavar="ID",
    shell_complete=session_ids,
    help="Scan only this session. [default: all sessions of the tenant]",
)
@click.option("--sample", type=Whole(0), default=5, show_default=True, metavar="N", help="Show at most N findings.")
@click.option("--apply", "applies", is_flag=True, help="Redact what is found, for good.")
@click.option("--yes", is_flag=True, help="Do not ask before redacting.")
@click.option("--check", is_flag=True, help="Exit with status 1 if something is found.")
@json_option
@store_options
def scan_command(
    store: str | None,
    tenant: str | None,
    as_json: bool,
    policy: str | None,
    rules: tuple[str, ...],
    recognisers: tuple[str, ...],
    session: str | None,
    sample: int,
    applies: bool,
    yes: bool,
    check: bool,
) -> None:
    """Find private data that is stored already, and redact it.

    The command finds what a policy would have redacted in entries, summaries and records. The policy is that of
    --policy, or of --rule and --recogniser, else that of --privacy, else the preset default. Findings are shown as they
    look redacted, never as they are. With --apply they are redacted in the store, and entries that the policy withholds
    are erased. Other programs may go on writing. If the command is interrupted, run it again: it goes on with what is
    left.

    The exit status is 0 whether or not something is found (with --check it is 1), and 1 if something cannot be checked.
    """
    if policy is not None and (rules or recognisers):
        raise click.UsageError("--policy has patterns and recognisers of its own: leave out --rule and --recogniser")
    own_redactor = _redactor(policy, rules, recognisers)
    with open_memory(store, tenant, write=applies) as memory:
        if session is not None:
            session = require(memory, session, whole=applies and yes).session
        if applies and as_json and not yes:
            raise click.UsageError("--json cannot ask for confirmation: give --yes with --apply")
        privacy = own_redactor or (None if redactor() is not None else "default")  # None: the memory's own policy
        scan = partial(_scan, memory, privacy, session, sample)
        found = scan(apply=applies and yes)
        if not as_json:
            _print(found, redacted=applies and yes)
        if _changes(found) and applies and not yes:
            confirm("Redact it? This cannot be undone.")
            found = scan(apply=True)
            click.echo(_outcome(found, redacted=True))
            _print_rest(found)
        elif _changes(found) and not applies and not as_json:
            note("Nothing was changed. Run it again with --apply to redact it.")
    if as_json:
        print_json(_as_json(found))
    if found.refused or (check and _changes(found)):
        click.get_current_context().exit(1)


def _redactor(policy: str | None, rules: tuple[str, ...], recognisers: tuple[str, ...]) -> Redactor | None:
    """Return a redactor for the policy in the command's own options, or None if they give none."""
    if policy is not None:
        return redactor_of(load(read_policy(policy, "--policy"), policy), policy)
    if rules or recognisers:
        return Redactor(Policy(redact_patterns=rules, recognisers=recognisers))
    return None


def _scan(memory: Memory, privacy: Any, session: str | None, sample: int, *, apply: bool) -> Scanned:
    with session_progress() as progress:
        return memory.scan(privacy, session=session, apply=apply, sample=sample, progress=progress)


def _changes(found: Scanned) -> bool:
    return bool(found.findings or found.withheld)


def _print(found: Scanned, *, redacted: bool) -> None:
    if found.findings:
        rows = table("kind", "place", "found", right=("found",))
        for (kind, place), number in found.findings.items():
            rows.add_row(line(kind), line(place), f"{number:,}")
        console().print(rows)
        click.echo()
    if found.samples:
        rows = table("session", "where", "kind", "redacted" if redacted else "would become")
        for sample in found.samples:
            where = f"entry {sample.where}" if isinstance(sample.where, int) else line(sample.where)
            rows.add_row(line(sample.session), where, line(sample.kind), line(sample.text))
        console().print(rows)
        click.echo()
    click.echo(_outcome(found, redacted=redacted))
    _print_rest(found)


def _outcome(found: Scanned, *, redacted: bool) -> str:
    """Return the scan's outcome in a sentence."""
    sessions = counted(found.sessions, "session")
    if not _changes(found):
        return f"Nothing was found in {sessions}."
    withheld = f", and {counted(found.withheld, 'entry')} of withheld types" if found.withheld else ""
    facts = f", and {counted(found.facts, 'fact')} of working memories" if found.facts else ""
    where = f"{counted(found.entries, 'entry')} and {_summaries(found.summaries)}{withheld}, of {sessions}{facts}"
    return f"{'Redacted' if redacted else 'Found something in'} {where}."


def _print_rest(found: Scanned) -> None:
    """Print what could not be checked, and what remains to be done."""
    for refused in found.refused:
        note(f"{line(refused.session)}: {refused.place}: not checked, and left unchanged: {refused.why}")
    for remainder in found.remains:
        note(remainder)


def _summaries(number: int) -> str:
    return "1 summary" if number == 1 else f"{number:,} summaries"


def _as_json(found: Scanned) -> dict[str, Any]:
    return {
        "sessions": found.sessions,
        "entries": found.entries,
        "summaries": found.summaries,
        "facts": found.facts,
        "withheld": found.withheld,
        "redacted": found.redacted,
        "findings": [{"kind": kind, "place": place, "count": n} for (kind, place), n in found.findings.items()],
        "samples": [sample._asdict() for sample in found.samples],
        "refused": [
            {"session": refused.session, "place": refused.place, "reason": refused.why} for refused in found.refused
        ],
        "remains": list(found.remains),
    }
