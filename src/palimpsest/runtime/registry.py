"""Names of stores and formats, resolved in one order: registered by the program, built in, entry point."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from palimpsest.errors import ConfigError, nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints


class Registry:
    """What goes by a name. Built-in targets are `module:attribute`, imported when they are first asked for.

    `group` is the entry-point group in which installed packages offer more of the kind. `form` is how a name
    is written where it is used, for messages.
    """

    def __init__(self, option: str, group: str, built_in: dict[str, str], form: str = "{}") -> None:
        self._option, self._group, self._built_in, self._form = option, group, built_in, form
        self._registered: dict[str, Any] = {}
        self._offered: frozenset[str] | None = None

    @property
    def built_in(self) -> tuple[str, ...]:
        """The names of what comes with Palimpsest."""
        return tuple(self._built_in)

    def is_built_in(self, name: str) -> bool:
        """Whether `name` stands for what comes with Palimpsest, and the program has put nothing in its place."""
        return name in self._built_in and name not in self._registered

    def register(self, name: str, target: Any) -> None:
        """Let `name` stand for `target` in this process, before anything built in."""
        self._registered[name] = target

    def knows(self, name: str) -> bool:
        """Whether `name` stands for anything. What installed packages offer is looked up once."""
        if name in self._registered or name in self._built_in:
            return True
        if self._offered is None:
            self._offered = frozenset(point.name for point in self._points())
        return name in self._offered

    def _points(self) -> EntryPoints:
        """What installed packages offer."""
        from importlib.metadata import entry_points  # costs 40 milliseconds, and only a name that is not ours needs it

        return entry_points(group=self._group)

    def find(self, name: object, given: object = None) -> Any:
        """Return what `name` stands for. Raises ConfigError, with what there is, for an unknown name.

        `given` is what the user wrote, where that is more than the name.
        """
        if not isinstance(name, str):
            raise ConfigError(self._option, name, ", ".join(map(self._form.format, sorted(self._built_in))))
        if name in self._registered:
            return self._registered[name]
        if name in self._built_in:
            module, _, attribute = self._built_in[name].partition(":")
            return getattr(import_module(module), attribute)
        offered = {point.name: point for point in self._points()}
        if name in offered:
            return offered[name].load()
        raise self._unknown(name, given)

    def check(self, name: str) -> None:
        """Raise ConfigError, with what there is, for an unknown name. Nothing is loaded."""
        if not self.knows(name):
            raise self._unknown(name)

    def _unknown(self, name: str, given: object = None) -> ConfigError:
        known = sorted({*self._registered, *self._built_in, *(point.name for point in self._points())})
        allowed = ", ".join(map(self._form.format, known))
        return ConfigError(self._option, given or name, allowed, nearest=nearest(name, known))
