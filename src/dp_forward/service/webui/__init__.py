"""The user's own page: ask, see what it cost, and see what the provider could read from it."""
