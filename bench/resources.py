"""Time loading a declared memory of 200 lines: in a new process, after the import of the parser, and again.

    python bench/resources.py [--runs 3] [--json] [--gate]

Processor time, since others use the machine. What a process pays once, such as modules that only a check needs, is in
the first figure. The parser itself, in C, reads the same text in the same process: what checking costs is shown beside
it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from measure import Figure, arguments, over_runs, report, scratch

LOADS = """
import json, sys, time
import yaml
from palimpsest.resources import Resources
path, clock = sys.argv[1], time.process_time
text = open(path, encoding="utf-8").read()
loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

def least(work):
    taken = []
    for _ in range(9):
        start = clock()
        work()
        taken.append(clock() - start)
    return min(taken)

yaml.load("a: 1", Loader=loader)
start = clock()
Resources.load(path)
first = clock() - start
again, parser = least(lambda: Resources.load(path)), least(lambda: yaml.load(text, Loader=loader))
print(json.dumps({"first": first, "again": again, "parser": parser}))
"""


def declared() -> str:
    """Return a file of 200 lines with what a large one has: patterns, types, conditions, shares."""
    patterns = [f"    - '\\\\b{number:03d}-\\\\d{{2}}-\\\\d{{4}}\\\\b'" for number in range(60)]
    types = [f"    - kind_{number}" for number in range(33)]
    conditions = [
        f"      - \"message.content_length < {1000 + number} or contains(message.content, 'topic {number}')\""
        for number in range(40)
    ]
    shares = [f"    part_{number}: 0.01" for number in range(30)]
    lines = [
        *("resource: memory", "id: chat", "description: What users say", "version: 2.1.0", "type: token_based"),
        *("max_tokens: 8000", "max_messages: 400", "token_allocation:", "  short_term: 0.4", "  long_term: 0.2"),
        *("  system: 0.1", "  user_defined:", *shares, "short_term_memory_strategy:"),
        *("  - memory_strategy_id: max_tokens", "    memory_max_tokens: 6000", "    conditions:", *conditions),
        *("flushing:", "  type: hybrid_summary", "  summarize_threshold: 0.8", "  summary_tokens: 500"),
        *("persistence:", "  type: sqlite", "  path: chat.db", "  ttl: 30d", "privacy_policy:", "  redact_patterns:"),
        *(*patterns, "  non_persistable_message_types:", *types, "  default_redaction_string: '[GONE]'"),
        *("locking:", "  append_ttl: 30s", "  clear_ttl: 10s", "  flush_ttl: 5m"),
        "default_key_template: 'user:{{.workflow.input.user_id}}'",
    ]
    return "\n".join(lines) + "\n"


def measured(path: Path) -> dict[str, float]:
    """Return the seconds of one process."""
    command = [sys.executable, "-c", LOADS, str(path)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds: dict[str, float] = json.loads(process.stdout)
    return seconds


def main() -> int:
    """Measure and report."""
    given = arguments(__doc__ or "")
    with scratch() as folder:
        path = folder / "chat.yaml"
        path.write_text(declared(), "utf-8")
        measured(path)  # makes the byte code
        found = over_runs(given.runs, lambda: measured(path))
    ratio = found["again"] / found["parser"]
    return report(
        "A declared memory of 200 lines",
        [
            Figure("loaded first, over the imports, in ms", found["first"] * 1000, 50),
            Figure("loaded again, in ms", found["again"] * 1000, 50),
            Figure("loaded again, beside the parser in C", ratio),
        ],
        given,
    )


if __name__ == "__main__":
    sys.exit(main())
