"""The storage of knowledge bases: shelves of documents, and the keeper that keeps summaries on them up to date."""
