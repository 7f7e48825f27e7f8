"""`Metrics`: what happened in the service, in the text format of Prometheus. Only what is recorded is exposed.

Each request also has a line in the log `palimpsest.service`, without keys, tokens, and what was said.
"""

from __future__ import annotations

import logging
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from palimpsest import AsyncMemory

ACCESS = logging.getLogger("palimpsest.service")
"""Has a line for each request: method, operation, memory, status and milliseconds."""

NOTHING = "-"
"""Stands for an operation, or a memory, that there is not."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""The bounds of the histograms of durations."""

NAMES = {
    "palimpsest_operations_total": "Requests by operation and outcome: ok, or the code of the error.",
    "palimpsest_operation_seconds": "How long requests took, by operation.",
    "palimpsest_flushes_total": "Compactions that took messages out of contexts, by strategy.",
    "palimpsest_tokens_saved_total": "Tokens that compactions took out of contexts.",
    "palimpsest_compaction_failures_total": "Compactions that failed, and summaries that a model did not write.",
    "palimpsest_redactions_total": "Entries of which private text was redacted or withheld.",
    "palimpsest_privacy_refusals_total": "Batches that were refused because a privacy policy could not be applied.",
    "palimpsest_lock_wait_seconds": "How long operations waited for a lock that another caller held.",
}
"""Every metric, with its description."""


class Metrics:
    """The metrics of one application."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._operations = self._counter("palimpsest_operations_total", "operation", "outcome")
        self._seconds = self._histogram("palimpsest_operation_seconds", "operation")
        self._flushes = self._counter("palimpsest_flushes_total", "strategy")
        self._saved = self._counter("palimpsest_tokens_saved_total")
        self._failures = self._counter("palimpsest_compaction_failures_total")
        self._redactions = self._counter("palimpsest_redactions_total")
        self._refusals = self._counter("palimpsest_privacy_refusals_total")
        self._waits = self._histogram("palimpsest_lock_wait_seconds")

    def _counter(self, name: str, *labels: str) -> Counter:
        return Counter(name, NAMES[name], labels, registry=self._registry)

    def _histogram(self, name: str, *labels: str) -> Histogram:
        return Histogram(name, NAMES[name], labels, registry=self._registry, buckets=SECONDS)

    def watch(self, memory: AsyncMemory) -> None:
        """Count what the memory's sessions tell."""
        memory.on("compressed", self._flushed)
        memory.on("evicted", self._evicted)
        memory.on("compaction:failed", self._failed)
        memory.on("summarizer:failed", self._failed)
        memory.on("privacy:redacted", lambda _, facts: self._redactions.inc(facts["entries"]))
        memory.on("privacy:refused", lambda *_: self._refusals.inc())
        memory.on("lock:waited", lambda _, facts: self._waits.observe(facts["seconds"]))

    def _flushed(self, _: str, facts: dict[str, Any]) -> None:
        self._flushes.labels(str(facts["strategy"])).inc()
        self._saved.inc(max(facts["tokens_saved"], 0))

    def _evicted(self, session: str, facts: dict[str, Any]) -> None:
        if "tokens_saved" in facts and facts["result"].summary is None:  # else "compressed" has told of it
            self._flushed(session, facts)

    def _failed(self, *_: object) -> None:
        self._failures.inc()

    def note(
        self,
        method: str,
        status: int,
        outcome: str,
        seconds: float = 0.0,
        *,
        operation: str = NOTHING,
        memory: str = NOTHING,
    ) -> None:
        """Count a request, and log it. `outcome` is "ok", or the code of its error."""
        self._operations.labels(operation, outcome).inc()
        self._seconds.labels(operation).observe(seconds)
        ACCESS.info("%s %s %s %s %.0f ms", method, operation, memory, status, seconds * 1e3)

    def exposition(self) -> Response:
        """Return all metrics in the text format."""
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)
