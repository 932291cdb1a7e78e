"""Worker threads, one per core, each with a single thread of torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def one_intra_op_thread() -> Iterator[None]:
    """Our workers are the parallelism; torch's own threads slow small operations down."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_most: int | None = None


def use_cores(most: int) -> None:
    """Start no more worker threads than this: other processes of ours use the other cores.

    It counts from the first call of ``in_workers`` on, and decides no number.
    """
    global _most
    _most = most
    torch.set_num_threads(1)


@cache
def _pool() -> ThreadPoolExecutor:
    count = min(cores(), _most or cores())
    return ThreadPoolExecutor(count, "fedskew", initializer=lambda: torch.set_num_threads(1))


def in_workers(
    function: Callable[[Item], Result], items: Sequence[Item], here: bool = False
) -> list[Result]:
    """Map over worker threads, one per core; results keep the order of the items.

    ``here`` maps in the calling thread instead, where a debugger can stop.
    """
    with one_intra_op_thread():
        if here or len(items) == 1:
            return [function(item) for item in items]
        return list(_pool().map(function, items))
