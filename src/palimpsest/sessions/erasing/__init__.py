"""What makes texts go: erasing entries, forgetting what belongs to somebody, redacting what is stored."""
