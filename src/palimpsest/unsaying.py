"""Making summaries that do not say what was erased, whatever the summarizer answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from palimpsest.admission import Admission
from palimpsest.compaction import Plan, Strategy
from palimpsest.folding import Folder
from palimpsest.matching import Says, summary_says
from palimpsest.options import Options
from palimpsest.summarizers import Summarizer
from palimpsest.summarizing import Rejected
from palimpsest.summary import Summary
from palimpsest.survey import Survey, Surveyor


class Unsaying(Folder):
    """Makes summaries without a text: where the summarizer says it, the heuristic answers in its place."""

    def __init__(
        self,
        surveyor: Surveyor,
        options: Options,
        clock: Callable[[], int],
        summarizer: Summarizer | None,
        admission: Admission,
        unsaid: Says,
    ) -> None:
        super().__init__(surveyor, options, clock, summarizer, admission)
        self._unsaid = unsaid

    async def fold(
        self, strategy: Strategy, survey: Survey, plan: Plan, renew: Callable[[], Awaitable[object]]
    ) -> Summary:
        """Return the summary that the plan asks for. Raises Rejected where even the heuristic would say the text."""
        made = await super().fold(strategy, survey, plan, renew)
        if not summary_says(made, self._unsaid):
            return made
        spent, summarizer, self._summarizer = self.spent, self._summarizer, None
        try:
            made = await super().fold(strategy, survey, plan, renew)
        finally:
            self.spent, self._summarizer = spent, summarizer
        if summary_says(made, self._unsaid):
            raise Rejected("failed", "it would say what was erased")
        return msgspec.structs.replace(made, spent=spent, fallback="the summarizer said what was erased")
