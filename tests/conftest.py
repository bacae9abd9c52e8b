"""Settings for all tests."""

import os

from hypothesis import settings

# A busy machine is no bug, so there is no deadline; in CI the examples are the same every time.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
