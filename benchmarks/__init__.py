"""Benchmarks with thresholds: `make bench`."""
