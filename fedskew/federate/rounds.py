"""How long a stage goes on, what is done in which round, and which round is the best so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedskew.federate.metrics import plain_mean

LOSS = "loss"
"""The metric that decides between rounds of equal score."""
SAME = 1e-6
"""Scores that differ by no more than this part of themselves are equal. Clients' means are in
single precision: two that are equal on paper may differ in their last digits."""


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
class Score:
    """What a round's models scored: means over the clients that answered, all alike."""

    value: float
    """Of the main metric; NaN where nobody answered."""
    loss: float = math.nan
    """NaN where the objective tells none."""
    clients: int = 1

    @classmethod
    def of(cls, values: Sequence[float], losses: Sequence[float] = ()) -> Score:
        """Of the clients' values and losses."""
        return cls(plain_mean(values), plain_mean(losses), len(values))


@dataclass(frozen=True)
class Choice:
    """The best round so far, and in how many since the score was worse (``waited``).

    This is the one place that says which of two rounds is better; the server and every named rule
    of selection ask here. In this order:

    1. The one scored by more clients. A round that lacks clients is not compared with a fuller one:
       whose score is missing moves a mean more than training does. It neither is chosen nor uses up
       patience, and the first fuller round takes the place of whatever was chosen before.
    2. The better score.
    3. Of equal scores, the smaller loss; an unknown one is the largest. Small validation sets give
       equal accuracies for many rounds, in which models still learn.
    4. Of equal losses, the later round.

    Patience counts rounds with a worse score. Equal scores never use it up, whatever their losses;
    a smaller loss starts the count again like a better score. A stage that stays on a plateau ends
    with its number of rounds.
    """

    round: int = 0
    value: float = math.nan
    waited: int = 0
    loss: float = math.nan
    clients: int = 0

    def see(self, round_number: int, found: Score, higher_is_better: bool) -> Choice:
        """The choice after one more scored round; a round without a score changes nothing.

        >>> first = Choice().see(1, Score(0.9, loss=0.5), higher_is_better=True)
        >>> first.see(2, Score(0.9, loss=0.4), higher_is_better=True).round
        2
        """
        if math.isnan(found.value) or found.clients < self.clients:
            return self
        taken = Choice(round_number, found.value, 0, found.loss, found.clients)
        if found.clients > self.clients:
            return taken
        if not math.isclose(found.value, self.value, rel_tol=SAME):
            better = (found.value > self.value) == higher_is_better
            return taken if better else replace(self, waited=self.waited + 1)
        mine, its = (math.inf if math.isnan(loss) else loss for loss in (self.loss, found.loss))
        if its == mine:
            return replace(taken, waited=self.waited)
        return taken if its < mine else self
