"""A memory and its sessions: here the pure parts meet a store. Nothing is imported from here below it."""
