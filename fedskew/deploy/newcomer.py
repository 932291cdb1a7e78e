"""What a client works with that was never in the federation: a run's plan, and its own samples."""

from __future__ import annotations

from dataclasses import replace

from fedskew.config import Config
from fedskew.data.federation import Federation
from fedskew.federate.holdings import Holdings, roster_of
from fedskew.federate.planning import make_plan
from fedskew.recipe import Stage, find
from fedskew.score import MAIN


def newcomers(config: Config, federation: Federation) -> Holdings:
    """These clients under the plan of a run's main stage.

    Nothing is sent to a server: there is nothing to report, and nobody who invents data.
    """
    recipe = find(config.method.name).recipe(**config.method.knobs)
    stage = Stage(MAIN, replace(recipe, reports=(), invents=None))
    return Holdings(make_plan(config, roster_of(federation), stage), federation)
