"""Audits that try to refute a promise: of a sampler, of released bytes, of a service."""
