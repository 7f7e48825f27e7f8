"""Search over what was said: terms of texts, parts of entries, questions, ranking, and the indexes that answer them."""
