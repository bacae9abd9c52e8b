"""The benchmarks of this repository: Opacus installs a package of the same name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
