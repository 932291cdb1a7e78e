"""Parts of ``benchmarks/keeping.py``."""
