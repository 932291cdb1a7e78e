"""The parts of ``python -m benchmarks.recommending``."""
