"""`AnswerPrinter`: prints a model's answer while it arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from palimpsest.cli.output import clean

if TYPE_CHECKING:
    from palimpsest.runtime.logs import Redact


class AnswerPrinter:
    """Prints the pieces of an answer as they arrive, or without `streams` all that arrived in `end`.

    A privacy policy needs the whole answer: private text may begin in one piece and end in another. The printer is
    called from another thread, so it keeps a BrokenPipeError, which `end` raises.
    """

    def __init__(self, redact: Redact, *, streams: bool, silent: bool) -> None:
        self._redact, self._streams, self._silent, self._open = redact, streams, silent, False
        self._held: list[str] = []
        self._broken: BrokenPipeError | None = None

    def __call__(self, piece: str) -> None:
        if self._silent or self._broken is not None:
            return
        self._open = True
        if not self._streams:
            self._held.append(piece)
            return
        try:
            click.echo(clean(piece), nl=False)
        except BrokenPipeError as broken:
            self._broken = broken

    def end(self) -> None:
        """Print held pieces, redacted, and end the line. Raises BrokenPipeError if the reader went away."""
        if self._broken is not None:
            raise self._broken
        if self._open:
            click.echo(clean(self._redact("".join(self._held))))
