"""The shuffler: a process of its own, trusted by users, that takes away who sent which record, and when."""
