"""`palimpsest facts`: list, read, set and delete facts of working memories."""

from __future__ import annotations

import json
import shlex
from datetime import datetime
from typing import Any

import click

from palimpsest import Memory
from palimpsest.cli.app import Number, Whole, examples, json_option, store_options
from palimpsest.cli.failing import Missing
from palimpsest.cli.opening import open_memory
from palimpsest.cli.output import console, counted, line, moment, note, print_json, table
from palimpsest.types import Fact

VALUE = 60
"""The most characters of a value in a listing."""


@click.command(
    "facts",
    epilog=examples(
        "palimpsest facts",
        "palimpsest facts user/ann",
        "palimpsest facts user/ann language",
        "palimpsest facts user/ann language German --importance 0.9",
        "palimpsest facts session/trip cart '[\"SK 4418\"]' --ttl 2h",
        "palimpsest facts user/ann language --delete",
    ),
)
@click.argument("scope", required=False, metavar="[SCOPE]")
@click.argument("key", required=False, metavar="[KEY]")
@click.argument("value", required=False, metavar="[VALUE]")
@click.option(
    "--importance", type=Number(0, 1), metavar="SHARE", help="How important VALUE is, 0 to 1.  [default: 0.5]"
)
@click.option("--ttl", metavar="LENGTH", help="How long VALUE lasts, such as 30m or 7d.  [default: for ever]")
@click.option(
    "--version",
    type=Whole(0),
    metavar="N",
    help="Change the fact only if it has this version; 0: only if it does not exist.",
)
@click.option("--delete", is_flag=True, help="Delete the fact, with its history.")
@json_option
@store_options
def facts_command(
    store: str | None,
    tenant: str | None,
    as_json: bool,
    scope: str | None,
    key: str | None,
    value: str | None,
    importance: float | None,
    ttl: str | None,
    version: int | None,
    delete: bool,
) -> None:
    """List, print, set or delete facts of working memories.

    Without arguments the scopes are listed, with SCOPE its facts. With KEY the fact is printed with its history, and
    with VALUE it is set. VALUE is JSON. If it is not valid JSON, it is taken as text.
    """
    if delete and (key is None or value is not None):
        raise click.UsageError("--delete takes SCOPE and KEY, and no VALUE")
    if value is None and (importance, ttl) != (None, None):
        raise click.UsageError("--importance and --ttl are for a VALUE")
    if value is None and version is not None and not delete:
        raise click.UsageError("--version is for a VALUE, or --delete")
    changes = value is not None or delete
    with open_memory(store, tenant, write=changes, create=value is not None) as memory:
        if scope is None:
            _list_scopes(memory, as_json)
        elif key is None:
            _list_facts(memory, scope, as_json)
        elif delete:
            _delete(memory, scope, key, version, as_json)
        else:
            if value is not None:
                share = 0.5 if importance is None else importance
                memory.working(scope).set(key, _parsed(value), importance=share, ttl=ttl, version=version)
            _show(memory, scope, key, as_json, whole=value is None)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=str)
    except ValueError:
        return text
    except RecursionError as fault:
        raise click.UsageError("VALUE is nested too deeply") from fault


def _list_scopes(memory: Memory, as_json: bool) -> None:
    counts = {scope: len(memory.working(scope).keys()) for scope in memory.scopes()}
    if as_json:
        print_json([{"scope": scope, "facts": number} for scope, number in counts.items()])
    elif counts:
        rows = table("scope", "facts", right=("facts",))
        for scope, number in counts.items():
            rows.add_row(line(scope), f"{number:,}")
        console().print(rows)
    else:
        note("No facts yet: `palimpsest facts SCOPE KEY VALUE` sets one.")


def _list_facts(memory: Memory, scope: str, as_json: bool) -> None:
    facts = memory.working(scope).facts()
    if as_json:
        print_json([_as_json(fact) for fact in facts])
    elif facts:
        rows = table("key", "value", "importance", "version", "updated (UTC)", right=("importance", "version"))
        for fact in facts:
            shown = line(str(fact.value), VALUE)
            rows.add_row(line(fact.key), shown, f"{fact.importance:g}", str(fact.version), _time(fact.updated_at))
        console().print(rows)
    else:
        note(f"{line(scope)} has no facts.")


def _show(memory: Memory, scope: str, key: str, as_json: bool, *, whole: bool) -> None:
    fact = memory.working(scope).fact(key)
    if fact is None:
        raise Missing(
            f"{line(scope)} has no fact {line(key)}; `palimpsest facts {shlex.quote(line(scope))}` lists those it has"
        )
    if as_json:
        print_json(_as_json(fact))
        return
    click.echo(line(str(fact.value)))
    if not whole:
        return
    until = f", expires {_time(fact.expires_at)}" if fact.expires_at is not None else ""
    note(f"version {fact.version}, importance {fact.importance:g}, updated {_time(fact.updated_at)}{until}")
    for earlier in fact.history:
        note(f"version {earlier.version}, until {_time(earlier.superseded_at)}: {line(str(earlier.value), VALUE)}")


def _delete(memory: Memory, scope: str, key: str, version: int | None, as_json: bool) -> None:
    deleted = memory.working(scope).delete(key, version=version)
    if as_json:
        print_json({"scope": scope, "key": key, "deleted": deleted})
    else:
        click.echo(f"Deleted {counted(int(deleted), 'fact')}.")


def _time(at: datetime) -> str:
    return moment(int(at.timestamp() * 1_000_000))


def _as_json(fact: Fact) -> dict[str, Any]:
    return {
        "key": fact.key,
        "value": _plain(fact.value),
        "importance": fact.importance,
        "version": fact.version,
        "created_at": fact.created_at.isoformat(),
        "updated_at": fact.updated_at.isoformat(),
        "since": fact.since.isoformat(),
        "expires_at": None if fact.expires_at is None else fact.expires_at.isoformat(),
        "history": [
            {
                "value": _plain(earlier.value),
                "version": earlier.version,
                "since": earlier.since.isoformat(),
                "superseded_at": earlier.superseded_at.isoformat(),
                "superseded_by": earlier.superseded_by,
            }
            for earlier in fact.history
        ],
    }


def _plain(value: Any) -> Any:
    """Return the value in JSON's types, with text for whatever they cannot express."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)
