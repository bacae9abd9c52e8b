"""Texts and labels into records of a fixed public length."""

from dp_forward.data.tokens import FixedLength

__all__ = ["FixedLength"]
