"""Puts the peers into a virtual environment of their own, so the project never depends on them."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".bench-venv"
PINS = ROOT / "benchmarks" / "constraints.txt"
PEERS = ("pfl[pytorch]==0.6.0", "flwr[simulation]==1.41.0")


def ensure_peers() -> Path:
    """Install the peers once and again whenever a pin changes; returns their interpreter."""
    python = VENV / "bin" / "python"
    stamp = VENV / "installed"
    torch_pin = _torch_pin()
    wanted = hashlib.sha256("\n".join([torch_pin, PINS.read_text(), *PEERS]).encode()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"installing the peers into {VENV.name} ...", flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "-c", str(PINS), torch_pin, *PEERS]
    subprocess.run(command, check=True)
    stamp.write_text(wanted)
    return python


def _torch_pin() -> str:
    """The project's own torch, so that no contender wins by a different build."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line.strip() for line in lines if line.startswith("torch=="))
