"""Public helpers for tests: `StoreConformance`, the contract of every store, and a clock that stands still."""
