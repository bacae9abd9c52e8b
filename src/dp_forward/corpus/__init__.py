"""A corpus of texts into a stored corpus of releases, one per record."""
