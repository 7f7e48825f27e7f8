"""`palimpsest facts`: working memories, and what is in them."""

from __future__ import annotations

import json
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
"""Characters of a value in a listing."""


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
@click.option("--ttl", metavar="LENGTH", help="How long it is seen, such as 30m or 7d.  [default: for ever]")
@click.option(
    "--version",
    type=Whole(0),
    metavar="N",
    help="Change it only if it has this version; 0: if it is not there.",
)
@click.option("--delete", is_flag=True, help="Take the fact away, with its history.")
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
    """List the scopes of working memories, the facts of SCOPE, or the fact KEY with its history; or set it to VALUE.

    VALUE is JSON, or else a text.
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
                memory.working(scope).set(key, _given(value), importance=share, ttl=ttl, version=version)
            _show(memory, scope, key, as_json, whole=value is None)


def _given(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=str)
    except ValueError:
        return text
    except RecursionError as fault:
        raise click.UsageError("VALUE is nested too deeply") from fault


def _list_scopes(memory: Memory, as_json: bool) -> None:
    found = {scope: len(memory.working(scope).keys()) for scope in memory.scopes()}
    if as_json:
        print_json([{"scope": scope, "facts": number} for scope, number in found.items()])
    elif found:
        rows = table("scope", "facts", right=("facts",))
        for scope, number in found.items():
            rows.add_row(line(scope), f"{number:,}")
        console().print(rows)
    else:
        note("No facts yet: `palimpsest facts SCOPE KEY VALUE` sets one.")


def _list_facts(memory: Memory, scope: str, as_json: bool) -> None:
    found = memory.working(scope).facts()
    if as_json:
        print_json([_as_json(fact) for fact in found])
    elif found:
        rows = table("key", "value", "importance", "version", "updated (UTC)", right=("importance", "version"))
        for fact in found:
            shown = line(str(fact.value), VALUE)
            rows.add_row(line(fact.key), shown, f"{fact.importance:g}", str(fact.version), _time(fact.updated_at))
        console().print(rows)
    else:
        note(f"{line(scope)} has no facts.")


def _show(memory: Memory, scope: str, key: str, as_json: bool, *, whole: bool) -> None:
    fact = memory.working(scope).fact(key)
    if fact is None:
        raise Missing(f"{line(scope)} has no fact {line(key)}; `palimpsest facts {line(scope)}` lists those it has")
    if as_json:
        print_json(_as_json(fact))
        return
    click.echo(line(str(fact.value)))
    if not whole:
        return
    until = f", expires {_time(fact.expires_at)}" if fact.expires_at is not None else ""
    note(f"version {fact.version}, importance {fact.importance:g}, updated {_time(fact.updated_at)}{until}")
    for one in fact.history:
        note(f"version {one.version}, until {_time(one.superseded_at)}: {line(str(one.value), VALUE)}")


def _delete(memory: Memory, scope: str, key: str, version: int | None, as_json: bool) -> None:
    gone = memory.working(scope).delete(key, version=version)
    if as_json:
        print_json({"scope": scope, "key": key, "deleted": gone})
    else:
        click.echo(f"Took {counted(int(gone), 'fact')} away.")


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
                "value": _plain(one.value),
                "version": one.version,
                "since": one.since.isoformat(),
                "superseded_at": one.superseded_at.isoformat(),
                "superseded_by": one.superseded_by,
            }
            for one in fact.history
        ],
    }


def _plain(value: Any) -> Any:
    """The value in JSON's types; what these have no form for as a text."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)
