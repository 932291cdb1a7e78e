"""Names for the plain values that pass between modules."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
"""Places of samples in a storage."""
