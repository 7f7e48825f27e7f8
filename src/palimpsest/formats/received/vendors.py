"""All that knows the vendors' shapes, which is loaded when the first is given."""

from palimpsest.formats.received.recognise import recognise
from palimpsest.formats.received.stream import AnswerStream
from palimpsest.formats.received.usage import reported_by

__all__ = ["AnswerStream", "recognise", "reported_by"]
