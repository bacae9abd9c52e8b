"""The only place where a bound meets a draw: `Sanitizer` bounds, then adds noise, in one call."""

from dp_forward.noise.sanitizer import Sanitizer

__all__ = ["Sanitizer"]
