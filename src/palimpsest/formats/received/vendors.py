"""All that knows the vendors' shapes, which is loaded when the first is given."""

from palimpsest.formats.received.recognise import recognise
from palimpsest.formats.received.stream import AnswerStream

__all__ = ["AnswerStream", "recognise"]
