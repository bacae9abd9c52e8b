"""Settings for all tests."""

import gc
import os

from hypothesis import settings

# A busy machine is no bug, so there is no deadline; in CI the examples are the same every time.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_collection_finish() -> None:
    """What was imported stays: nobody who collects garbage, as every Trainer does, looks through it again."""
    gc.collect()
    gc.freeze()
