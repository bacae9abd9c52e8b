"""Everything: `make bench`."""

import sys

from benchmarks import privacy, sanitizer

sys.exit(privacy.main() + sanitizer.main())
