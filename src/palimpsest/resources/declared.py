"""Reading the content of a resource file into a `Resource`: every key is checked, and all mistakes are noted. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from palimpsest.context.conditions import parse
from palimpsest.errors import ConfigError, nearest
from palimpsest.errors.secret import sealed
from palimpsest.log import values
from palimpsest.log.head import SessionKey
from palimpsest.log.lazy_imports import dumps, sha256
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
"""The keys that may be under `profile`."""
RESERVED = "health"
"""An id that no memory may have: in a service's addresses it would take the place of the health check."""


def resource_of(given: object, problems: Problems, *, project: str = "default", file: str | None = None) -> Resource:
    """Return the resource that a mapping, or a list of strategies, describes.

    Mistakes are noted in `problems`; if there are any, the returned resource must not be used.
    """
    if isinstance(given, Mapping):
        root = {str(key): value for key, value in given.items()}
    elif _is_strategies(given):
        key = "long_term_memory_strategy" if _has_key(given, BARE[1]) else "short_term_memory_strategy"
        root, problems.bare = {key: given}, (key,)
    else:
        found = None if given is None else type(given).__name__
        problems.add((), found, "a mapping of keys, or a list of strategies")
        root = {}
    return _Reader(_spread(root, problems), problems, project, file).resource()


def _is_strategies(given: object) -> bool:
    return isinstance(given, Sequence) and any(isinstance(item, Mapping) and set(BARE) & set(item) for item in given)


def _has_key(given: object, key: str) -> bool:
    """Whether this is a list in which one of the mappings has the key."""
    return isinstance(given, Sequence) and any(isinstance(item, Mapping) and key in item for item in given)


def _spread(root: dict[str, Any], problems: Problems) -> dict[str, Any]:
    """Return the root with the keys under `profile` moved to it, or with a file that is only a strategy put under the
    key of its kind. `problems` notes this, so that paths can be reported as they are in the file."""
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
            problems.add((str(key),), value, f"{key} only once: it is also given beside `profile`")
        root[str(key)] = value
    return root


class _Reader:
    """Reads one resource: each method checks some keys, notes their mistakes, and sets the options they stand for."""

    def __init__(self, root: dict[str, Any], problems: Problems, project: str, file: str | None) -> None:
        self._root, self._problems, self._project, self._file = root, problems, project, file
        self._warnings: list[str] = []
        self._options: dict[str, Any] = {}

    def resource(self) -> Resource:
        """Return the resource. It is valid only if no problem was noted."""
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
        required = self._root.get("type") is not None  # also for an invalid type
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
                near = next((known for known in KEYS if key.startswith(f"{known}_")), None) or nearest(key, KEYS)
                self._problems.add(
                    (key,), key, "a key of a resource, as `palimpsest config schema` lists them", nearest=near
                )

    def _text(self, key: str) -> None:
        """Note a value that is not text."""
        value = self._root.get(key)
        if value is not None and not isinstance(value, str):
            self._problems.add((key,), value, "text")

    def _kind(self) -> str | None:
        """Return the type; None: none is given, or it is invalid."""
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
        """Return the project: `project.id`, else `project` as a text, else the one that `load` was given."""
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
        """Read the keys that are options of a session by their own names, and check each as sessions do."""
        for name in OPTIONS:
            if name not in self._root or name in ("max_messages", "max_context_ratio", "max_log_tokens"):
                continue
            if name in self._options:
                self._check_said_once(name)
                continue
            if name == "conditions" and self._conditions_fail():
                continue
            with self._problems.at(name, named=name):
                if name == "lifetime" and self._root[name] is not None:  # sessions check it only when they are created
                    values.microseconds(name, self._root[name])
                Options(SessionKey("default", "check"), **{name: self._root[name]})
                self._options[name] = self._root[name]
        summarizer = self._root.get("summarizer")
        if summarizer is not None and each_fault(self._problems, ("summarizer",), summarizer, check_summarizer):
            self._options["summarizer"] = sealed(summarizer)
            if (doubt := doubt_of_summarizer(summarizer)) is not None:
                self._warnings.append(f"summarizer: {doubt}")

    def _conditions_fail(self) -> bool:
        """Whether one of a list of conditions is wrong; each that is wrong is noted at its own place."""

        def load(given: Any) -> None:
            for i, text in enumerate(given if isinstance(given, list | tuple) else ()):
                parse(text, f"conditions[{i}]")

        return not each_fault(self._problems, ("conditions",), self._root["conditions"], load)

    def _check_said_once(self, name: str) -> None:
        """Note an option for which a documented key gives another value."""
        if self._root[name] is not None and self._root[name] != self._options[name]:
            self._problems.add((name,), self._root[name], f"only one of the two: {SOURCES[name][0]} gives it, too")

    def _strategies(self, kind: str | None) -> None:
        """Read the strategies of short-term and long-term memory and of persistence."""
        root, problems, warnings = self._root, self._problems, self._warnings
        if (short := short_term_of(root, problems, warnings)) is not None:
            if root.get("conditions"):
                allowed = "conditions inside short_term_memory_strategy, where that is given"
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
            warnings.append("archive: false has an effect only with the persistence_strategy FLUSH")

    def _shared_out(self) -> float | None:
        """Return `token_allocation.long_term`, after dividing it between summaries and the tail (None: not given)."""
        share = long_term_share(self._root)
        if share is None or self._problems.found:
            return share
        with self._problems.at("tail_share"):
            self._options |= shared_out(share, self._options)
        if not share:
            self._warnings.append(
                "token_allocation.long_term is 0, so there is no room for summaries and recalled passages"
            )
        return share

    def _with_policy(self, place: StorePlace) -> StorePlace:
        policy = self._policy()
        if not self._problems.found and _has_pseudonyms(policy):
            self._warnings.append(
                "privacy.recognisers: pseudonyms need a key, which cannot be declared in a file: give Resources.load "
                "privacy=Redactor(policy, key=…), which replaces the declared policy"
            )
        return msgspec.structs.replace(place, privacy=policy)

    def _policy(self) -> Any:
        """Return the policy of `privacy_policy` or `privacy`, checked but as it is given; None: none."""
        given, own = self._root.get("privacy_policy"), self._root.get("privacy")
        if given is not None and own is not None:
            self._problems.add(("privacy",), "beside privacy_policy", "only one of the two")
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
        """Note what is wrong with the options in combination."""
        if self._problems.found:
            return
        with self._problems.at():
            checked = ("summarizer", "short_term", "long_term", "counter")  # checked on their own before
            options = {name: value for name, value in self._options.items() if name not in checked}
            Options(SessionKey("default", "check"), **options)

    def _effective(self, resource: Resource) -> tuple[Setting, ...]:
        return () if self._problems.found else effective_of(self._root, resource)


def _has_pseudonyms(policy: object) -> bool:
    """Whether a valid policy replaces something by pseudonyms."""
    recognisers = policy.get("recognisers") if isinstance(policy, Mapping) else None
    return isinstance(recognisers, Mapping) and PSEUDONYM in recognisers.values()


def _digested(root: Mapping[str, Any]) -> Any:
    """Return what the digest is made of: the whole definition without secrets."""
    content = plain({**root, **{key: sealed(root[key]) for key in ("summarizer", "token_provider") if key in root}})
    if isinstance(content.get("token_provider"), dict):
        content["token_provider"].pop("api_key", None)
    place = content.get("persistence")
    for holder, key in ((content, "store"), (place if isinstance(place, dict) else {}, "url")):
        if isinstance(holder.get(key), str):
            holder[key] = discreet_address(holder[key])
    return content
