"""Where each home's log is, whatever characters names hold. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256

LOG = ".jsonl"


def tenant_folder(root: str, tenant: str) -> str:
    """The folder of a tenant."""
    return f"{root}/{safe_name(tenant)}"


@lru_cache(4096)
def log_of(root: str, tenant: str, home: str) -> str:
    """The log of a home."""
    return f"{tenant_folder(root, tenant)}/{safe_name(home, within=tenant)}{LOG}"


def safe_name(text: str, within: str = "") -> str:
    """A name for files that no other text has: its readable beginning, and 160 bits of SHA-256 of all of it.

    Lower-case letters, digits and hyphens, whatever the text holds: it leaves no folder, and file systems that take
    upper and lower case, or two forms of one letter, for the same tell two texts apart.
    """
    beginning = re.sub("[^a-z0-9]+", "-", text[:256].lower())[:40].strip("-")
    owner, own = (part.encode("utf-8", "surrogatepass") for part in (within, text))
    digest = sha256(b"%d:%b%b" % (len(owner), owner, own)).hexdigest()[:40]
    return f"{beginning}-{digest}" if beginning else digest
