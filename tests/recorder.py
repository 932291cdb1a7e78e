"""An observer that notes the runs it is shown, and may interrupt one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fedskew.config import Config
from fedskew.federate.metrics import Row
from fedskew.federate.progress import Progress, RoundRecord
from fedskew.runs.experiment import Run


@dataclass
class Observed:
    """One run as an observer saw it; ``repeated`` is None until it ended."""

    position: int
    total: int
    name: str
    config: Config
    rounds: list[int] = field(default_factory=list)
    repeated: bool | None = None


@dataclass
class Recorder:
    """``stop`` says after which round a run is interrupted, as by Ctrl-C."""

    stop: Callable[[Observed], bool] = lambda run: False
    runs: list[Observed] = field(default_factory=list)

    def begin(self, config: Config, position: int, total: int, name: str) -> None:
        self.runs.append(Observed(position, total, name, config))

    def __call__(self, progress: Progress, record: RoundRecord, rows: Sequence[Row]) -> None:
        self.runs[-1].rounds.append(progress.round)
        if self.stop(self.runs[-1]):
            raise KeyboardInterrupt

    def end(self, run: Run, repeated: bool) -> None:
        self.runs[-1].repeated = repeated
