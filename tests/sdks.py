"""Loads optional libraries without the warnings that they raise while they are imported."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any


def load(name: str) -> Any:
    """Return the module of this name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(name)
