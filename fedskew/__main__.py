"""``python -m fedskew`` is the ``fedskew`` command."""

import sys

from fedskew.cli import main

sys.exit(main())
