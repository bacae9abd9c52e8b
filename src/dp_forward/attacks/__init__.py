"""Trying to break the promise: attacks on releases, and audits of the promise itself."""
