"""Recording the token usage of model calls, as given by hand or as reported by a response that is added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from palimpsest.errors import ConfigError
from palimpsest.formats.received import reported_by
from palimpsest.formats.received.values import Reported
from palimpsest.log import values
from palimpsest.log.change import Change
from palimpsest.log.head import Usage
from palimpsest.runtime.logs import warn_caller
from palimpsest.sessions.remembered import Sent
from palimpsest.sessions.scope import SessionScope

if TYPE_CHECKING:
    from palimpsest.context.result import Context

_PART_OF = "It includes the cached ones: where a provider reports them apart, as Anthropic does, give the sum of all"

TELLING = 1000
"""From this many counted tokens of a context on, a report of zero input tokens must be wrong."""


class UsageRecorder:
    """Records the usage of one session."""

    def __init__(self, scope: SessionScope) -> None:
        self._scope = scope

    async def record(
        self,
        given: object,
        input_tokens: int | None,
        output_tokens: int,
        cached_tokens: int,
        context: Context | None,
    ) -> Usage:
        """Record the usage of a call: of `given`, which is a provider's response or usage, or as numbers.

        Raises ConfigError for impossible numbers.
        """
        if context is not None and not hasattr(context, "counted"):
            raise ConfigError("context", context, "the Context that was sent, or None for the last one")
        if given is None:
            report = _of_figures(input_tokens, output_tokens, cached_tokens)
        else:
            _check_none(
                input_tokens=input_tokens, output_tokens=output_tokens or None, cached_tokens=cached_tokens or None
            )
            report = reported_by(given)
        self._scope.may_write()
        return await self._recorded(report, context or self._scope.sent)

    async def of_answers(self, usages: Sequence[Reported]) -> None:
        """Record the usage of responses that were added. A single one is taken as the answer to the last context.

        Impossible numbers only cause a warning, since the responses are stored already.
        """
        sent = self._scope.sent if len(usages) == 1 else None
        for report in usages:
            try:
                await self._recorded(report, sent)
            except ConfigError as fault:
                warn_caller(f"the usage of the added response is not recorded: {fault}")

    async def unless_noted(self, usages: Sequence[Reported]) -> None:
        """Record the usage of the last of these responses, if it was not recorded before, which its id tells.

        For responses whose entries the log has already: an interrupt may have come between adding them and recording.
        """
        await self.of_answers([report for report in usages[-1:] if report.response])

    async def _recorded(self, report: Reported, sent: Context | Sent | None) -> Usage:
        """Store the report with the session, unless the last stored one is of the same response."""
        counted = sent.counted if sent is not None and not report.looped else 0
        _check(report, counted)
        head = await self._scope.head()
        if head.usage is not None and report.response and report.response == head.usage.response:
            return head.usage
        reported = Usage(
            input_tokens=report.input_tokens,
            output_tokens=report.output_tokens,
            cached_tokens=report.cached_tokens,
            counted=counted,
            margin=sent.margin if sent is not None else self._scope.options.default_factor(),
            epoch=head.epoch,
            revision=sent.revision if sent is not None else head.revision,
            response=report.response,
            calls=1,
            total_input=report.input_tokens,
            total_output=report.output_tokens,
            total_cached=report.cached_tokens,
        )
        change = Change(kind="usage", reason="usage", usage=reported)
        usage = (await self._scope.store.commit(self._scope.key, change)).usage
        assert usage is not None, "a change of kind usage leaves one"
        await self._scope.tell("usage:recorded", usage=usage)
        return usage


def _of_figures(input_tokens: int | None, output_tokens: int, cached_tokens: int) -> Reported:
    for name, value in (
        ("input_tokens", input_tokens),
        ("output_tokens", output_tokens),
        ("cached_tokens", cached_tokens),
    ):
        values.whole(name, value)
    assert input_tokens is not None, "checked above"
    return Reported(input_tokens, output_tokens, cached_tokens)


def _check_none(**figures: int | None) -> None:
    """Raise ConfigError for a number that is given beside a response or its usage."""
    for name, value in figures.items():
        if value is not None:
            raise ConfigError(name, value, "no numbers of tokens beside a response or its usage")


def _check(report: Reported, counted: int) -> None:
    """Raise ConfigError for impossible numbers."""
    if report.cached_tokens > report.input_tokens:
        allowed = f"at most input_tokens ({report.input_tokens}). {_PART_OF}"
        raise ConfigError("cached_tokens", report.cached_tokens, allowed)
    if report.input_tokens == 0 and counted >= TELLING:
        raise ConfigError("input_tokens", 0, f"the provider's own figure: the context has about {counted} tokens")
