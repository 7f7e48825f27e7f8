"""From what a resource says to a `Resource`: every key is checked, and all that is wrong is told together. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from palimpsest.errors import ConfigError, nearest
from palimpsest.errors.secret import sealed
from palimpsest.log import values
from palimpsest.log.head import SessionKey
from palimpsest.log.late import dumps, sha256
from palimpsest.privacy.policy import PSEUDONYM
from palimpsest.privacy.policy import load as load_policy
from palimpsest.resources.allocation import long_term_share, shared_out
from palimpsest.resources.definition import CLEAR_LEASE, Resource, Setting, StorePlace, plain
from palimpsest.resources.effective import SOURCES, effective_of
from palimpsest.resources.faults import each_fault
from palimpsest.resources.keys import Template, check_name
from palimpsest.resources.limits import limits_of, sizes_of, version_of
from palimpsest.resources.places import leases_of, lifetime_of, place_of
from palimpsest.resources.problems import Problems
from palimpsest.resources.strategies import (
    check_embedders,
    check_summarizer,
    check_unwritten,
    doubt_of_summarizer,
    long_term_of,
    persistence_of,
    short_term_of,
)
from palimpsest.resources.table import BARE, KEYS, OPTIONS
from palimpsest.sessions.options import Options
from palimpsest.stores.options import discreet_address

PROFILE = ("short_term_memory_strategy", "long_term_memory_strategy", "persistence_strategy")
"""What may stand under `profile`."""
RESERVED = "health"
"""An id that no memory may have: it would stand where a service answers how it is."""


def resource_of(given: object, problems: Problems, *, project: str = "default", file: str | None = None) -> Resource:
    """Return the resource that a mapping, or a list of strategies, describes.

    What is wrong is noted in `problems`; then what is returned is of no use.
    """
    if isinstance(given, Mapping):
        root = {str(key): value for key, value in given.items()}
    elif _is_strategies(given):
        key = "long_term_memory_strategy" if _names(given, BARE[1]) else "short_term_memory_strategy"
        root, problems.bare = {key: given}, (key,)
    else:
        found = None if given is None else type(given).__name__
        problems.add((), found, "a mapping of keys, or a list of strategies")
        root = {}
    return _Reader(_spread(root, problems), problems, project, file).resource()


def _is_strategies(given: object) -> bool:
    return isinstance(given, Sequence) and any(isinstance(one, Mapping) and set(BARE) & set(one) for one in given)


def _names(given: object, key: str) -> bool:
    return isinstance(given, Sequence) and any(isinstance(one, Mapping) and key in one for one in given)


def _spread(root: dict[str, Any], problems: Problems) -> dict[str, Any]:
    """The same with what stands under `profile`, or alone, where it is looked for."""
    for key, at in zip(BARE, ("short_term_memory_strategy", "long_term_memory_strategy"), strict=True):
        if key in root:
            problems.bare = (at, 0)
            return {at: [root]}
    profile = root.pop("profile", None)
    if profile is None:
        return root
    if not isinstance(profile, Mapping):
        problems.add(("profile",), profile, "a mapping")
        return root
    problems.inside["profile"] = tuple(map(str, profile))
    for key, value in profile.items():
        if key not in PROFILE:
            problems.add((str(key),), key, ", ".join(PROFILE), nearest=nearest(key, PROFILE))
            continue
        if key in root:
            problems.add((str(key),), value, f"one {key}: it stands beside `profile`, too")
        root[str(key)] = value
    return root


class _Reader:
    """Reads one resource."""

    def __init__(self, root: dict[str, Any], problems: Problems, project: str, file: str | None) -> None:
        self._root, self._problems, self._project, self._file = root, problems, project, file
        self._warnings: list[str] = []
        self._options: dict[str, Any] = {}

    def resource(self) -> Resource:
        """The resource."""
        self._check_names()
        self._text("description")
        version_of(self._root, self._problems)
        kind = self._kind()
        name, project = self._name(kind), self._project_name()
        self._options |= limits_of(self._root, self._problems, self._warnings, kind)
        if (lifetime := lifetime_of(self._root)) is not None:
            self._options["lifetime"] = lifetime
        self._own_options()
        self._strategies(kind)
        long_term = self._shared_out()
        required = self._root.get("type") is not None  # also where that is none
        place = place_of(self._root, self._problems, self._warnings, required=required)
        place = self._with_policy(place)
        resource = Resource(
            id=name,
            project=project,
            description=self._root.get("description") or "",
            version=self._root.get("version"),
            place=place,
            options=self._options,
            template=self._template(),
            digest=sha256(dumps(_digested(self._root), sort_keys=True).encode()).hex(),
            file=self._file,
            clear_lease=leases_of(self._root, Problems()).get("clear_lease", CLEAR_LEASE),
            limits=sizes_of(self._root, self._problems),
            long_term_share=long_term,
        )
        self._check_whole()
        return msgspec.structs.replace(resource, warnings=tuple(self._warnings), settings=self._effective(resource))

    def _check_names(self) -> None:
        for key in self._root:
            if key not in KEYS:
                near = next((one for one in KEYS if key.startswith(f"{one}_")), None) or nearest(key, KEYS)
                self._problems.add(
                    (key,), key, "a key of a resource, as `palimpsest config schema` lists them", nearest=near
                )

    def _text(self, key: str) -> None:
        value = self._root.get(key)
        if value is not None and not isinstance(value, str):
            self._problems.add((key,), value, "text")

    def _kind(self) -> str | None:
        kind, resource = self._root.get("type"), self._root.get("resource")
        if resource is not None or kind is not None:
            with self._problems.at("resource"):
                values.choice("resource", resource, ("memory",))
        if kind is None:
            return None
        with self._problems.at("type"):
            values.choice("type", kind, ("token_based", "message_count_based", "buffer"))
            return str(kind)
        return None

    def _name(self, kind: str | None) -> str:
        name = self._root.get("id")
        if name is None and kind is None and self._root.get("resource") is None:
            return "memory"
        with self._problems.at("id"):
            if name == RESERVED:
                raise ConfigError("id", name, f"another name than {RESERVED}")
            return check_name(name, "id")
        return "memory"

    def _project_name(self) -> str:
        """The project: nested, else flat, else the one that was configured."""
        given = self._root.get("project")
        for key in given if isinstance(given, Mapping) else ():
            if key != "id":
                self._problems.add(("project", str(key)), key, "id", nearest=nearest(key, ("id",)))
        nested = given.get("id") if isinstance(given, Mapping) else given
        if not isinstance(nested, str) or not nested.strip():
            return self._project
        with self._problems.at("project"):
            return check_name(nested, "project")
        return self._project

    def _own_options(self) -> None:
        """Options of a session by their own names, each checked by what checks options."""
        for name in OPTIONS:
            if name not in self._root or name in ("max_messages", "max_context_ratio", "max_log_tokens"):
                continue
            if name in self._options:
                self._check_said_once(name)
                continue
            with self._problems.at(name, named=name):
                if (
                    name == "lifetime" and self._root[name] is not None
                ):  # which says something of a session that is made
                    values.microseconds(name, self._root[name])
                Options(SessionKey("default", "check"), **{name: self._root[name]})
                self._options[name] = self._root[name]
        summarizer = self._root.get("summarizer")
        if summarizer is not None and each_fault(self._problems, ("summarizer",), summarizer, check_summarizer):
            self._options["summarizer"] = sealed(summarizer)
            if (doubt := doubt_of_summarizer(summarizer)) is not None:
                self._warnings.append(f"summarizer: {doubt}")

    def _check_said_once(self, name: str) -> None:
        """Note an option that a documented key says otherwise."""
        if self._root[name] is not None and self._root[name] != self._options[name]:
            self._problems.add((name,), self._root[name], f"one of the two: {SOURCES[name][0]} says it, too")

    def _strategies(self, kind: str | None) -> None:
        root, problems, warnings = self._root, self._problems, self._warnings
        if (short := short_term_of(root, problems, warnings)) is not None:
            if root.get("conditions"):
                allowed = "conditions in the strategy, where short_term_memory_strategy is given"
                problems.add(("conditions",), root["conditions"], allowed)
            self._options["short_term"] = short
        if long := long_term_of(root, problems, warnings, kind):
            self._options["long_term"] = long
        check_embedders(root, problems, warnings)
        if (persistence := persistence_of(root, problems)) is not None:
            self._options["persistence"] = persistence
            if persistence == "ephemeral":
                check_unwritten(root, problems)
        if root.get("archive") is False and self._options.get("persistence") != "flush":
            warnings.append("archive: false has no effect beside another persistence_strategy than FLUSH")

    def _shared_out(self) -> float | None:
        """The share of what is remembered for long; take the room of what is recalled out of it."""
        share = long_term_share(self._root)
        if share is None or self._problems.found:
            return share
        with self._problems.at("tail_share"):
            self._options |= shared_out(share, self._options)
        if not share:
            self._warnings.append("token_allocation.long_term is 0: no summary, and nothing recalled, has room")
        return share

    def _with_policy(self, place: StorePlace) -> StorePlace:
        policy = self._policy()
        if not self._problems.found and _numbers(policy):
            self._warnings.append(
                "privacy.recognisers: pseudonyms need a key, which no file has: privacy=Redactor(policy, key=…) for "
                "Resources.load, in the place of what is declared"
            )
        return msgspec.structs.replace(place, privacy=policy)

    def _policy(self) -> Any:
        given, own = self._root.get("privacy_policy"), self._root.get("privacy")
        if given is not None and own is not None:
            self._problems.add(("privacy",), "beside privacy_policy", "one of the two")
        if given is not None:
            each_fault(self._problems, ("privacy_policy",), given, lambda block: load_policy(block, "privacy_policy"))
            return given
        if isinstance(own, Mapping):
            each_fault(self._problems, ("privacy",), own, lambda block: load_policy(block, "privacy"))
        elif own is not None:
            with self._problems.at("privacy", named="privacy.recognisers"):
                load_policy({"recognisers": own}, "privacy")
                return {"recognisers": own}
        return own

    def _template(self) -> Template | None:
        given = self._root.get("default_key_template")
        if given is None:
            return None
        with self._problems.at("default_key_template"):
            return Template(given)
        return None

    def _check_whole(self) -> None:
        """What holds of all options together."""
        if self._problems.found:
            return
        with self._problems.at():
            checked = ("summarizer", "short_term", "long_term", "counter")  # each by itself
            options = {name: value for name, value in self._options.items() if name not in checked}
            Options(SessionKey("default", "check"), **options)

    def _effective(self, resource: Resource) -> tuple[Setting, ...]:
        return () if self._problems.found else effective_of(self._root, resource)


def _numbers(policy: object) -> bool:
    """Whether a policy that loads gives out pseudonyms."""
    found = policy.get("recognisers") if isinstance(policy, Mapping) else None
    return isinstance(found, Mapping) and PSEUDONYM in found.values()


def _digested(root: Mapping[str, Any]) -> Any:
    """What a digest is made of: all that is said but for secrets, which say nothing of a memory."""
    said = plain({**root, **{key: sealed(root[key]) for key in ("summarizer", "token_provider") if key in root}})
    if isinstance(said.get("token_provider"), dict):
        said["token_provider"].pop("api_key", None)
    place = said.get("persistence")
    for holder, key in ((said, "store"), (place if isinstance(place, dict) else {}, "url")):
        if isinstance(holder.get(key), str):
            holder[key] = discreet_address(holder[key])
    return said
