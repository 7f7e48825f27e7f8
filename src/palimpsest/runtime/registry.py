"""`Registry`: names of plug-ins, resolved in one order: registered by the program, built in, entry point."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from palimpsest.errors import ConfigError, nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints


class Registry:
    """Plug-ins of one kind, by name. Built-in targets are `module:attribute`, imported when they are first found.

    `option` names the option that takes such a name. `group` is the entry-point group in which installed packages
    offer more. `form` is how messages show a name.
    """

    def __init__(self, option: str, group: str, built_in: dict[str, str], form: str = "{}") -> None:
        self._option, self._group, self._built_in, self._form = option, group, built_in, form
        self._registered: dict[str, Any] = {}
        self._offered: frozenset[str] | None = None

    @property
    def built_in(self) -> tuple[str, ...]:
        """The names of the plug-ins that come with Palimpsest."""
        return tuple(self._built_in)

    def is_built_in(self, name: str) -> bool:
        """Return whether `name` is built in, and the program has not registered another target for it."""
        return name in self._built_in and name not in self._registered

    def register(self, name: str, target: Any) -> None:
        """Let `name` stand for `target` in this process, even if a built-in one has that name."""
        self._registered[name] = target

    def knows(self, name: str) -> bool:
        """Return whether `name` stands for anything. Entry points are looked up once."""
        if name in self._registered or name in self._built_in:
            return True
        if self._offered is None:
            self._offered = frozenset(point.name for point in self._points())
        return name in self._offered

    def _points(self) -> EntryPoints:
        """Return the entry points of installed packages."""
        from importlib.metadata import entry_points  # late: it costs 40 milliseconds, for names of others only

        return entry_points(group=self._group)

    def find(self, name: object, given: object = None) -> Any:
        """Return the target of `name`. Raises ConfigError, which lists the known names, for an unknown one.

        `given` is what the user wrote, if that is more than the name.
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
        """Raise ConfigError, which lists the known names, for an unknown one. Loads no target."""
        if not self.knows(name):
            raise self._unknown(name)

    def _unknown(self, name: str, given: object = None) -> ConfigError:
        known = sorted({*self._registered, *self._built_in, *(point.name for point in self._points())})
        allowed = ", ".join(map(self._form.format, known))
        return ConfigError(self._option, given or name, allowed, nearest=nearest(name, known))
