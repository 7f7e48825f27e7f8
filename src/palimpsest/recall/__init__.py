"""Finding what was said: analysed terms, parts of entries, questions, one ranking, an index in memory. Pure."""
