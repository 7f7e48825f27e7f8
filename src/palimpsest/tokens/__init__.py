"""What texts, images and sound cost in tokens, and what is known of models.

Programs use the two names below. `palimpsest.tokens.models` holds the facts about models.
"""

from palimpsest.tokens.counter import FunctionCounter as FunctionCounter
from palimpsest.tokens.counter import encoding as encoding

__all__ = ["FunctionCounter", "encoding"]
