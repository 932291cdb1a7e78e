"""``python -m benchmarks.secure_attack``: unmasks an update that Flower's own functions masked.

Of three sites one is lost after the keys were shared. The protocol then gives the server the lost
site's key and the others' own seeds, and one mask is left on each vector. It is made from 256 bits
that ``pseudo_rand_gen`` folds to 32: a C program tries them all, ten minutes of a core at most.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.quantization import quantize
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.supercore.primitives.asymmetric import generate_key_pairs

MODULUS, CLIP, RANGE = 2**32, 8.0, 2**22
"""Flower's defaults."""
PROGRAM = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#define LANES 16
#define WORDS 6
static inline uint32_t temper(uint32_t y) {
  y ^= y >> 11; y ^= (y << 7) & 0x9d2c5680u; y ^= (y << 15) & 0xefc60000u; return y ^ (y >> 18);
}
int main(int count, char **given) {  /* masked + (first words of the mask) lies in 0..RANGE */
  uint32_t masked[WORDS], top = strtoul(given[1], 0, 10);
  for (int k = 0; k < WORDS; k++) masked[k] = strtoul(given[2 + k], 0, 10);
  for (uint64_t first = 0; first < 1ull << 32; first += LANES) {
    uint32_t s[LANES], low[WORDS + 1][LANES], high[WORDS][LANES];
    for (int l = 0; l < LANES; l++) low[0][l] = s[l] = (uint32_t)first + l;
    for (int i = 1; i < 397 + WORDS; i++) {
      for (int l = 0; l < LANES; l++) s[l] = 1812433253u * (s[l] ^ (s[l] >> 30)) + i;
      if (i <= WORDS) for (int l = 0; l < LANES; l++) low[i][l] = s[l];
      if (i >= 397) for (int l = 0; l < LANES; l++) high[i - 397][l] = s[l];
    }
    for (int l = 0; l < LANES; l++) {
      int fits = 1;
      for (int k = 0; k < WORDS && fits; k++) {
        uint32_t z = (low[k][l] & 0x80000000u) | (low[k + 1][l] & 0x7fffffffu);
        fits = masked[k] + temper(high[k][l] ^ (z >> 1) ^ ((z & 1) ? 0x9908b0dfu : 0)) <= top;
      }
      if (fits) { printf("%llu\\n", (unsigned long long)first + l); return 0; }
    }
  }
  return 1;
}
"""


def mask(secret: bytes, length: int) -> np.ndarray:
    return pseudo_rand_gen(secret, MODULUS, [(length,)])[0]


def main() -> None:
    update = np.random.default_rng(1).normal(0, 0.1, 2000)
    numbers, length = quantize([update], CLIP, RANGE)[0], len(update)
    (own, _), (_, second), (lost, third) = (generate_key_pairs() for _ in range(3))
    seed = os.urandom(32)
    vector = numbers + mask(seed, length)
    for other in (second, third):
        vector = vector - mask(generate_shared_key(own, other), length)
    # From here on with nothing but what the server has.
    left = vector - mask(seed, length) + mask(generate_shared_key(lost, own.public_key()), length)
    left %= MODULUS
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "search.c"), Path(folder, "search")
        source.write_text(PROGRAM)
        subprocess.run(["cc", "-O3", "-march=native", source, "-o", program], check=True)
        words = [str(int(word)) for word in left[:6]]
        done = subprocess.run([program, str(RANGE), *words], capture_output=True, check=True)
    found = int(done.stdout)
    stream = np.random.RandomState(found).randint(0, MODULUS - 1, length, dtype=np.int64)
    laid_open = (left + stream) % MODULUS * (2 * CLIP / RANGE) - CLIP
    print(f"seed {found}; the update within {np.abs(laid_open - update).max():.1e} everywhere")


if __name__ == "__main__":
    main()
