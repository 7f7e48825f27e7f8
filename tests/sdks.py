"""The libraries whose files are imported, loaded without the warnings that they give while they are loaded."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any


def load(name: str) -> Any:
    """Return the module of this name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(name)
