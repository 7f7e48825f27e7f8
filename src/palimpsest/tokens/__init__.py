"""What texts, images and sound cost in tokens, and what is known of models.

The two names below are what programs use of it; `palimpsest.tokens.models` answers for models.
"""

from palimpsest.tokens.counter import FunctionCounter as FunctionCounter
from palimpsest.tokens.counter import encoding as encoding

__all__ = ["FunctionCounter", "encoding"]
