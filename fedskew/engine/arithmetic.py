"""What decides the last bits of numbers besides settings, seed and data: a machine's arithmetic.

With other instructions (AVX-512, AVX2), another build of torch or another kernel of numpy's BLAS
the same sum is added in another order. The number of threads must not count: whatever adds does so
in one thread, or in one thread for each client.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from fedskew.engine.workers import cores, one_intra_op_thread

Arithmetic = dict[str, str]
UNKNOWN = "unknown"
CHOOSING = ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
"""Settings of the environment by which libraries choose other instructions."""
UNCOUNTED = ("cores", "OMP_NUM_THREADS")
"""Recorded, though they decide nothing."""


@contextmanager
def one_order() -> Iterator[None]:
    """Inside, torch and numpy add in one order, whatever the number of cores."""
    with one_intra_op_thread(), threadpool_limits(1, user_api="blas"):
        yield


@cache
def arithmetic() -> Arithmetic:
    """This machine's: two that agree on all but their cores give a run the same bits."""
    blas = {str(each.get("architecture", UNKNOWN)) for each in _blas()}
    chosen = [f"{name}={os.environ[name]}" for name in CHOOSING if name in os.environ]
    return {
        "processor": _maker(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": f"{torch.__version__} ({str(torch.version.git_version)[:10]})",
        "numpy": f"{np.__version__} (BLAS kernel {', '.join(sorted(blas)) or UNKNOWN})",
        "environment": " ".join(chosen),
        "cores": str(cores()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", ""),
    }


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """What of two machines decides bits and is not the same, for a sentence; or nothing.

    >>> differences({"instructions": "AVX512", "cores": "8"}, {"instructions": "AVX2"})
    'instructions (AVX512, here AVX2)'
    """
    return ", ".join(
        f"{name} ({before.get(name) or 'none'}, here {now.get(name) or 'none'})"
        for name in sorted((before.keys() | now.keys()) - {*UNCOUNTED})
        if before.get(name) != now.get(name)
    )


def _blas() -> list[dict[str, object]]:
    return [each for each in threadpool_info() if each["user_api"] == "blas"]


def _maker() -> str:
    """Who made the processor: libraries choose kernels by that, too."""
    described = Path("/proc/cpuinfo")
    text = described.read_text() if described.exists() else platform.processor()
    makers = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}
    return next((name for mark, name in makers.items() if mark in text), platform.machine())
