"""Whether the same class looks different at different clients, and of which kind that is.

‖φ‖ = 1, so the products of different rows are ‖Σφ‖² - n: squared distances of means have no bias,
although only sums are known. Under no difference they vary as quadratic forms do whose weights are
the eigenvalues of the covariance within classes, of which the products give all moments needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import pearson3

from fedskew.diagnosis.basis import WIDTH, Floats
from fedskew.diagnosis.labels import Score
from fedskew.diagnosis.together import Together

SIMPLEX_STEPS = 200


@dataclass(frozen=True, eq=False)
class Shift:
    """How far each client's classes lie from the others', in units of the variance within a class.

    ``apart`` is by class, ``whole`` of all inputs beside what labels explain, ``strange`` of all
    inputs beside any mixture of the others' classes; each has no bias, with its deviation under no
    difference and the chance of as much. ``weights`` are the clients' shares of rows.
    """

    apart: Floats
    deviation: Floats
    chance: Floats
    whole: Floats
    whole_deviation: Floats
    whole_chance: Floats
    strange: Floats
    weights: Floats
    total: Score
    total_chance: float
    whole_total: Score
    whole_total_chance: float
    strange_total: float


def shift_of(all_: Together) -> Shift:
    counts, sums = all_.counts, all_.sums
    sigma2 = all_.noise.sums**2
    trace, second, third = all_.traces
    noised = np.asarray(sigma2 * (counts > 0), np.float64)
    others, other_sums = counts.sum(axis=0) - counts, sums.sum(axis=0) - sums
    other_noised = noised.sum(axis=0) - noised
    # A mean of a noised count is too long or too short: that adds to its squared distance.
    middle = sums.sum(axis=0) / np.maximum(counts.sum(axis=0), 1.0)[:, None]
    longer = all_.noise.counts**2 / WIDTH * (middle**2).sum(axis=1) * (counts > 0)
    other_longer = longer.sum(axis=0) - longer
    usable = (counts >= 2) & (others >= 2)
    n: Floats = np.maximum(counts, 2.0)
    m: Floats = np.maximum(others, 2.0)
    noised, other_noised = noised + longer, other_noised + other_longer
    squared = _mean_squared(sums, n, noised) + _mean_squared(other_sums, m, other_noised)
    apart = squared - 2 * (sums * other_sums).sum(axis=2) / (n * m)
    weight = np.where(usable, counts, 0.0)
    weight /= np.maximum(weight.sum(axis=1, keepdims=True), 1e-12)
    distance = (weight * np.where(usable, apart, 0.0)).sum(axis=1) / trace
    spread, skew = _moments(
        weight, 1 / n + 1 / m, noised / n**2 + other_noised / m**2, (trace, second, third)
    )
    whole, whole_spread, whole_skew = _whole(all_, weight, n, m, noised, other_noised)
    held = np.where(usable, counts, 0.0).sum(axis=1)
    share = held / max(float(held.sum()), 1e-12)
    total, total_chance = _together(distance, spread, skew, share)
    whole_total, whole_chance = _together(whole, whole_spread, whole_skew, share)
    strange = _strange(all_, weight, m, held)
    return Shift(
        distance, spread, _beyond(distance, spread, skew),
        whole, whole_spread, _beyond(whole, whole_spread, whole_skew),
        strange, share, total, total_chance, whole_total, whole_chance,
        float(share @ strange),
    )  # fmt: skip


def _mean_squared(sums: Floats, n: Floats, noised: Floats) -> Floats:
    """‖mean‖² without bias: products of different rows only, less what noise adds."""
    squared = (sums**2).sum(axis=2)
    return np.asarray((squared - n - WIDTH * noised) / (n * (n - 1)))


def _moments(
    weight: Floats, chance: Floats, noised: Floats, traces: tuple[float, float, float]
) -> tuple[Floats, Floats]:
    """Deviation and skewness of Σ_c w_c·(quadratic form of Σ·chance + I·noised), over the trace."""
    first, second, third = traces
    square = second * chance**2 + 2 * first * chance * noised + WIDTH * noised**2
    cube = (
        third * chance**3 + 3 * second * chance**2 * noised
        + 3 * first * chance * noised**2 + WIDTH * noised**3
    )  # fmt: skip
    variance = (weight**2 * 2 * square).sum(axis=1)
    skewness = (weight**3 * 8 * cube).sum(axis=1) / np.maximum(variance, 1e-30) ** 1.5
    return np.sqrt(np.maximum(variance, 1e-30)) / first, skewness


def _whole(
    all_: Together, weight: Floats, n: Floats, m: Floats, noised: Floats, other_noised: Floats
) -> tuple[Floats, Floats, Floats]:
    """The mean of all a client's inputs, less the others' mixed by its labels: squared."""
    sums = all_.sums
    other_means = (sums.sum(axis=0) - sums) / m[:, :, None]
    trace, second, third = all_.traces
    held = np.where(weight > 0, n, 0.0)
    rows = np.maximum(held.sum(axis=1), 2.0)
    rest = (np.where(weight[:, :, None] > 0, sums - n[:, :, None] * other_means, 0.0)).sum(axis=1)
    own = held - 2 * np.where(weight > 0, (sums * other_means).sum(axis=2), 0.0)
    own = (own + held * (other_means**2).sum(axis=2)).sum(axis=1)
    added = WIDTH * np.where(weight > 0, noised, 0.0).sum(axis=1)
    squared = ((rest**2).sum(axis=1) - added - own) / (rows * (rows - 1))
    borrowed = (weight**2 * (trace / m + WIDTH * other_noised / m**2)).sum(axis=1)
    chance = 1 / rows + (weight**2 / m).sum(axis=1)
    noise = np.where(weight > 0, noised, 0.0).sum(axis=1) / rows**2 + (
        weight**2 * other_noised / m**2
    ).sum(axis=1)
    one = np.ones((len(rows), 1))
    spread, skew = _moments(one, chance[:, None], noise[:, None], (trace, second, third))
    return (squared - borrowed) / trace, spread, skew


def _strange(all_: Together, weight: Floats, m: Floats, held: Floats) -> Floats:
    """How far each client's inputs lie from every mixture of the others' classes; unbiased."""
    sums, sigma = all_.sums, all_.within
    trace = all_.traces[0]
    known = (all_.counts.sum(axis=0) - all_.counts) >= 2
    rows = np.maximum(held, 1.0)
    means = (sums.sum(axis=0) - sums) / m[:, :, None]
    inputs = (sums * (weight > 0)[:, :, None]).sum(axis=1) / rows[:, None]
    mixed = nearest_mixtures(means, inputs, known)
    found = np.zeros(len(sums))
    for k in np.flatnonzero((held >= 2) & known.any(axis=1)).tolist():
        rest = inputs[k] - mixed[k] @ means[k]
        active = means[k][mixed[k] > 1e-3]
        span = np.linalg.qr((active[1:] - active[0]).T)[0]
        # Chance that lies in the span of what was mixed has been fitted away.
        left = trace - float(((sigma @ span) * span).sum())
        noise = left * (1 / rows[k] + float((mixed[k] ** 2 / m[k]).sum()))
        cells = float((weight[k] > 0).sum())
        noise += (WIDTH - span.shape[1]) * all_.noise.sums**2 * cells / rows[k] ** 2
        noise += all_.noise.counts**2 * cells * float(inputs[k] @ inputs[k]) / rows[k] ** 2
        found[k] = (float(rest @ rest) - noise) / trace
    return found


def nearest_mixtures(means: Floats, targets: Floats, known: NDArray[np.bool_]) -> Floats:
    """Of each client the weights, none negative and 1 in all, that bring a mixture of its known
    means [K, C, D] nearest to its target [K, D].

    >>> nearest_mixtures(np.eye(2)[None], np.array([[0.25, 0.75]]), np.ones((1, 2), bool)).round(3)
    array([[0.25, 0.75]])
    """
    usable = means * known[:, :, None]
    products = usable @ usable.transpose(0, 2, 1)
    wanted = (usable @ targets[:, :, None])[:, :, 0]
    step = 1.0 / np.maximum(np.linalg.norm(products, 2, axis=(1, 2)), 1e-12)[:, None]
    weights = ahead = known / np.maximum(known.sum(axis=1, keepdims=True), 1.0)
    pace = 1.0
    for _ in range(SIMPLEX_STEPS):
        moved = ahead - step * ((products @ ahead[:, :, None])[:, :, 0] - wanted)
        moved = _onto_simplex(np.where(known, moved, -1e9))
        faster = (1 + np.sqrt(1 + 4 * pace**2)) / 2
        ahead = moved + (pace - 1) / faster * (moved - weights)
        weights, pace = moved, faster
    return np.asarray(weights)


def _onto_simplex(points: Floats) -> Floats:
    """The nearest points whose entries are at least 0 and add up to 1."""
    ordered = np.sort(points, axis=1)[:, ::-1]
    over = (np.cumsum(ordered, axis=1) - 1) / np.arange(1, points.shape[1] + 1)
    last = (ordered > over).sum(axis=1) - 1
    return np.asarray(np.maximum(points - over[np.arange(len(points)), last][:, None], 0.0))


def _beyond(value: Floats, spread: Floats, skew: Floats) -> Floats:
    return np.asarray(pearson3.sf(value / spread, np.maximum(skew, 1e-6)))


def _together(distance: Floats, spread: Floats, skew: Floats, share: Floats) -> tuple[Score, float]:
    """The clients' mean with its interval over clients, and the chance of as much."""
    clients = len(distance)
    # Each client is held against the others, so that K distances have K - 1 degrees of freedom.
    tied = clients / (clients - 1)
    value = float(share @ distance)
    variance = float((share**2) @ spread**2) * tied
    # Where no class was sent by two clients, nothing is known.
    deviation = max(float(np.sqrt(variance)), 1e-12)
    third = float((share**3) @ (skew * spread**3)) * tied**2
    chance = float(pearson3.sf(value / deviation, max(third / deviation**3, 1e-6)))
    over_clients = float((share**2) @ (distance - value) ** 2) * tied
    half = 1.96 * np.sqrt(max(over_clients, variance))
    return Score(value, value - half, value + half, value / deviation), chance
