"""Files, SQLite databases, digests and JSON: one way to put something on disk, for every folder."""
