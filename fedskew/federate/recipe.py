"""What a method is: a recipe of parts, and the stages that run before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from fedskew.errors import ConfigError
from fedskew.parts.aggregate import Aggregator, Mean
from fedskew.parts.begin import Begin
from fedskew.parts.correct import Correction
from fedskew.parts.distil import Invention
from fedskew.parts.finding import Finding
from fedskew.parts.objective import Erm, Objective
from fedskew.parts.packing import Packing
from fedskew.parts.report import Report
from fedskew.parts.select import EVERYTHING, Select
from fedskew.parts.step import Step, Whole

if TYPE_CHECKING:
    from fedskew.federate.roster import Roster


@dataclass(frozen=True)
class Phase:
    """One stretch of a client's training: which parameters move, for how long, how corrected.

    ``model`` says which of the client's models: "shared" (what the server sent, completed by the
    client's private parameters) or "personal" (a whole model of its own, as in Ditto).
    ``epochs``, ``lr`` and ``objective`` are the run's and the recipe's own where they are None.
    """

    trains: Select = EVERYTHING
    epochs: int | None = None
    lr: float | None = None
    objective: Objective | None = None
    corrects: tuple[Correction, ...] = ()
    model: Literal["shared", "personal"] = "shared"


@dataclass(frozen=True)
class Adapt:
    """What a client does to its model before it is scored as adapted.

    ``shots`` labelled samples per class (None: all of its training data), each phase in turn, in
    batches of ``batch_size`` (None: the run's). With ``patience`` the number of epochs is found on
    samples held out of those (see ``fedskew.federate.adapting``): this many checks without a
    smaller loss end the search.
    """

    phases: tuple[Phase, ...]
    shots: int | None = None
    patience: int | None = None
    batch_size: int | None = None

    @property
    def label(self) -> str:
        epochs = sum(phase.epochs or 1 for phase in self.phases)
        return f"fine-tuned {epochs}" if self.shots is None else f"{self.shots}-shot {epochs}"


@dataclass(frozen=True)
class Recipe:
    """A method, as the parts it is made of (see the README's table of methods)."""

    objective: Objective = field(default_factory=Erm)
    trains: tuple[Phase, ...] = (Phase(),)
    shares: Select = EVERYTHING
    reports: tuple[Report, ...] = ()
    aggregates: Aggregator = field(default_factory=Mean)
    steps: Step = field(default_factory=Whole)
    adapts: Adapt | None = None
    leaves: tuple[Finding, ...] = ()
    prepares: tuple[Stage, ...] = ()
    begins: Begin = field(default_factory=Begin)
    packs: Packing = field(default_factory=Packing)
    pools: bool = False
    """Train on everyone's data in one place (the central reference)."""
    invents: Invention | None = None
    """What makes the data a server trains on, from what an earlier stage handed over."""
    extends: Callable[[nn.Module], nn.Module] | None = None
    """Changes the model before anything else, e.g. to give it a second head."""

    def __post_init__(self) -> None:
        if not self.trains:
            raise ConfigError("a recipe must train something: give trains at least one phase.")
        if self.aggregates.several and not self.steps.whole:
            raise ConfigError(
                "a server step needs one target for all clients, but this server makes several "
                "models: leave the step out."
            )
        phase = any(phase.model == "personal" for phase in self.trains)
        if phase and any(objective.personal for objective in self.shared_objectives):
            raise ConfigError(
                "a phase and an objective of this method both make a client's own model: leave one "
                "of them out."
            )

    @property
    def shared_objectives(self) -> tuple[Objective, ...]:
        """What is minimised in the phases that train the shared model."""
        phases = [phase for phase in self.trains if phase.model == "shared"]
        return tuple(phase.objective or self.objective for phase in phases)


class ModelChoice:
    """Base of what picks a stage's model by what is known of the data."""

    def fitting(self, roster: Roster) -> dict[str, Any]:
        raise NotImplementedError


@dataclass(frozen=True)
class Stage:
    """A recipe that runs before another, and what it hands over.

    After its last round every client runs ``hands_over`` on the finished model; what the reports
    keep stays at the client for the next stage (e.g. "sample_weight"), what they send enters the
    server's memory there, as "client/name". ``train`` replaces settings of the run's [train].
    """

    name: str
    recipe: Recipe
    rounds: int | None = None
    train: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] | ModelChoice | None = None
    hands_over: tuple[Report, ...] = ()
    hands: Literal["last", "selected"] = "last"
    """Which round's model is handed over: the last, or the one with the best validation score."""
    score_every: int | None = None
    """Rounds from one score to the next; none: as often as the run's main stage."""

    def lasts(self, run: int) -> int:
        """How many rounds it lasts in a run of ``run`` rounds: as it says, else as its settings."""
        return int(self.train.get("rounds", run) if self.rounds is None else self.rounds)
