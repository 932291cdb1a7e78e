"""Worker threads keep the order of their items and leave torch's threads as they found them."""

from __future__ import annotations

import pytest
import torch

from fedskew.engine.workers import in_workers, one_intra_op_thread


def test_workers_keep_the_order_and_give_torch_its_threads_back() -> None:
    before = torch.get_num_threads()
    assert in_workers(lambda n: n * n, range(20)) == [n * n for n in range(20)]
    with pytest.raises(ZeroDivisionError):
        in_workers(lambda n: 1 // n, [1, 0])
    with one_intra_op_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
