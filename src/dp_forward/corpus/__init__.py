"""Corpus of releases: one stored release per record; draw, write, read."""
