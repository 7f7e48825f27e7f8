"""Where knowledge bases are kept: shelves of documents, and what keeps those of summaries true to their sessions."""
