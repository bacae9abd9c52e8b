"""Trying to refute the promise: of a sampler, of released bytes, of a service, of a trained back."""
