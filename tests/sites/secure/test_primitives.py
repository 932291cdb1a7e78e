"""The functions the protocol is made of."""

from __future__ import annotations

import base64
import os
from contextlib import suppress

import numpy as np
import pytest
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from scipy import stats

from fedskew.errors import RunError
from fedskew.sites.secure.primitives import (
    MODULUS,
    added,
    agreed_key,
    joined,
    key_pair,
    mask,
    opened,
    sealed,
    seed_key,
    split,
    unweighted,
    weighted,
)


def test_a_mask_is_the_key_stream_of_chacha20() -> None:
    """The first test vector of RFC 8439, appendix A.1: key, nonce and counter are zero."""
    stream = bytes.fromhex("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")
    like = weighted(0, np.zeros(7, np.int64))
    weight, numbers = mask(seed_key(bytes(32)), like)
    assert weight.tolist() + numbers.tolist() == np.frombuffer(stream, "<u4").tolist()


def test_masks_are_uniform() -> None:
    numbers = unweighted(mask(seed_key(bytes(range(32))), weighted(0, np.zeros(10**5, np.int64))))[
        1
    ]
    for low in (0, 24):
        counts = np.bincount((numbers >> low) & 255, minlength=256)
        assert stats.chisquare(counts).pvalue > 0.001


def test_flowers_own_masks_know_32_bits_of_a_secret_and_ours_all() -> None:
    """The reason for another generator; if this fails, Flower's may have become usable."""
    one, other = bytes(32), bytes([9, 9, 9, 9, 9, 9, 9, 9]) + bytes(24)
    shapes = [(1000,)]
    assert np.array_equal(
        pseudo_rand_gen(one, MODULUS, shapes)[0], pseudo_rand_gen(other, MODULUS, shapes)[0]
    )
    like = weighted(0, np.zeros(1000, np.int64))
    assert np.mean(mask(seed_key(one), like)[1] == mask(seed_key(other), like)[1]) < 0.01


def test_two_sites_agree_on_a_key_that_a_third_does_not_get() -> None:
    (one, public_one), (other, public_other), (third, _) = key_pair(), key_pair(), key_pair()
    key = agreed_key(one, public_other)
    assert key == agreed_key(other, public_one) != agreed_key(third, public_one)
    assert len(base64.urlsafe_b64decode(key)) == 32
    letter = sealed(key, 1, 2, b"seed", b"key")
    assert opened(key, letter) == (1, 2, b"seed", b"key")
    with pytest.raises(RunError, match="cannot be opened"):
        opened(agreed_key(third, public_one), letter)


def test_a_threshold_of_shares_brings_a_secret_back_and_fewer_do_not() -> None:
    secret = os.urandom(32)
    shares = split(secret, 3, 5)
    assert joined(shares[:3]) == joined(shares[2:]) == joined(shares) == secret
    with suppress(ValueError):  # most wrong secrets are not even padded rightly
        assert joined(shares[:2]) != secret


def test_sums_are_taken_modulo_two_to_the_32() -> None:
    one, other = weighted(3, np.array([MODULUS - 1, 5])), weighted(4, np.array([2, 7]))
    weight, numbers = unweighted(added(one, other))
    assert (weight, numbers.tolist()) == (7, [1, 12])
    weight, numbers = unweighted(added(one, other, -1))
    assert (weight, numbers.tolist()) == (MODULUS - 1, [MODULUS - 3, MODULUS - 2])
