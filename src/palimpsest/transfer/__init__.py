"""Conversations on their way out and in: exports, their way back, and the files of other programs."""
