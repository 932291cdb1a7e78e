"""Names for the plain values that pass between modules."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Indices = NDArray[np.int64]
"""Row numbers of samples in a storage."""
Tensors = dict[str, Tensor]
"""The entries of a model, or of a part of one, by name."""
Groups = dict[str, Tensors]
"""Named groups of tensors: a client's private state, or what is sent beside a model."""
