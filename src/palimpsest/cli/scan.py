"""`palimpsest scan`: what a policy would have redacted in what is stored already, and redacting it there."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from palimpsest import Memory, Policy, Redactor
from palimpsest.cli.app import Whole, examples, json_option, store_options
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
@click.option("--policy", metavar="FILE", help="A JSON file with a policy.")
@click.option("--rule", "rules", multiple=True, metavar="REGEX", help="A pattern; may be given again.")
@click.option("--recogniser", "recognisers", multiple=True, metavar="NAME", help="Such as email; may be given again.")
@click.option(
    "--session", metavar="ID", shell_complete=session_ids, help="Only this session. [default: all of the tenant]"
)
@click.option("--sample", type=Whole(0), default=5, show_default=True, metavar="N", help="Findings to show.")
@click.option("--apply", "applies", is_flag=True, help="Redact what is found, for good.")
@click.option("--yes", is_flag=True, help="Do not ask before that.")
@click.option("--check", is_flag=True, help="Exit with 1 where something is found.")
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
    """Find what a policy would have redacted in what is stored already: in entries, summaries and records.

    The policy is that of --policy, or of --rule and --recogniser; else that of --privacy, else everything that is built
    in. What is found is shown as it would be, never as it is. With --apply it is redacted where it is, and what the
    policy withholds is erased. Others may go on writing. Interrupted, the same again goes on with what is left.

    The exit status is 0 whether or not something is found (1 with --check), and 1 where something cannot be checked.
    """
    if policy is not None and (rules or recognisers):
        raise click.UsageError("--policy has patterns and recognisers of its own: leave out --rule and --recogniser")
    given = _redactor(policy, rules, recognisers)
    with open_memory(store, tenant, write=applies) as memory:
        if session is not None:
            session = require(memory, session, whole=applies and yes).session
        if applies and as_json and not yes:
            raise click.UsageError("--json asks nothing: give --yes, too, where --apply is meant")
        privacy = given or (None if redactor() is not None else "default")
        scan = partial(_scan, memory, privacy, session, sample)
        found = scan(apply=applies and yes)
        if not as_json:
            _print(found, redacted=applies and yes)
        if _changes(found) and applies and not yes:
            click.confirm("Redact it? This cannot be undone.", abort=True)
            found = scan(apply=True)
            click.echo(_told(found, redacted=True))
            _tell_rest(found)
        elif _changes(found) and not applies and not as_json:
            note("Nothing was changed. Run it again with --apply to redact it.")
    if as_json:
        print_json(_as_json(found))
    if found.refused or (check and _changes(found)):
        click.get_current_context().exit(1)


def _redactor(policy: str | None, rules: tuple[str, ...], recognisers: tuple[str, ...]) -> Redactor | None:
    """What applies the policy that the command's own options state, if they state one."""
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
        rows = table("session", "where", "kind", "redacted" if redacted else "as it would be")
        for one in found.samples:
            where = f"entry {one.where}" if isinstance(one.where, int) else line(one.where)
            rows.add_row(line(one.session), where, line(one.kind), line(one.text))
        console().print(rows)
        click.echo()
    click.echo(_told(found, redacted=redacted))
    _tell_rest(found)


def _told(found: Scanned, *, redacted: bool) -> str:
    sessions = counted(found.sessions, "session")
    if not _changes(found):
        return f"Nothing was found in {sessions}."
    withheld = f", and {counted(found.withheld, 'entry')} of withheld types" if found.withheld else ""
    facts = f", and {counted(found.facts, 'fact')} of working memories" if found.facts else ""
    where = f"{counted(found.entries, 'entry')} and {_summaries(found.summaries)}{withheld}, of {sessions}{facts}"
    return f"{'Redacted' if redacted else 'Found something in'} {where}."


def _tell_rest(found: Scanned) -> None:
    for refused in found.refused:
        note(f"{line(refused.session)}: {refused.place}: not checked, and left as it was: {refused.why}")
    for left in found.remains:
        note(left)


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
        "samples": [one._asdict() for one in found.samples],
        "refused": [{"session": one.session, "place": one.place, "reason": one.why} for one in found.refused],
        "remains": list(found.remains),
    }
