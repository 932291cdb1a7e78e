"""How long a stage goes on, what is done in which round, and which round is the best so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Rounds:
    """How long a stage goes on, who takes part, and what is scored when."""

    rounds: int
    clients_per_round: int | None = None
    min_clients: int = 1
    patience: int | None = None
    score_every: int = 1
    lr_decay: float = 1.0
    lr_steps: tuple[int, ...] = ()
    matrix_rounds: tuple[int, ...] | None = None
    """Rounds whose matrices over clients are kept; none: 1, 4, 16, 64, ... and the last."""

    def keeps_matrices_in(self, round_number: int) -> bool:
        last = self.matrix_rounds is None and round_number == self.rounds
        return last or keeps_matrices_in_turn(round_number, self.matrix_rounds)

    def lr_factor(self, round_number: int) -> float:
        return math.prod(self.lr_decay for step in self.lr_steps if round_number > step)

    def scores_in(self, round_number: int) -> bool:
        return self.scores_in_turn(round_number) or round_number == self.rounds

    def scores_in_turn(self, round_number: int) -> bool:
        """Whether a round is scored however long the run is."""
        return round_number % self.score_every == 0

    def over(self, round_number: int, selected: Choice) -> bool:
        """Whether the stage ends with a round."""
        stop = self.patience is not None and selected.waited >= self.patience
        return stop or round_number >= self.rounds


def keeps_matrices_in_turn(round_number: int, wanted: Sequence[int] | None) -> bool:
    """Whether a round's matrices are kept however long the run is.

    >>> [n for n in range(1, 100) if keeps_matrices_in_turn(n, None)]
    [1, 4, 16, 64]
    """
    if wanted is not None:
        return round_number in wanted
    return round_number in (4**power for power in range(round_number.bit_length()))


@dataclass(frozen=True)
class Choice:
    """The best round so far by the clients' mean validation score, and how long ago it was."""

    round: int = 0
    value: float = math.nan
    waited: int = 0

    def see(self, round_number: int, value: float, higher_is_better: bool) -> Choice:
        if math.isnan(value):
            return self
        better = value > self.value if higher_is_better else value < self.value
        if better or math.isnan(self.value):
            return Choice(round_number, value)
        return Choice(self.round, self.value, self.waited + 1)
