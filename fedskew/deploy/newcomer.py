"""What a client that was never in the federation works with: a run's plan and its samples."""

from __future__ import annotations

from dataclasses import replace

from fedskew.config import Config
from fedskew.data.federation import Federation
from fedskew.federate.holdings import Holdings, roster_of
from fedskew.federate.metrics import MAIN
from fedskew.federate.planning import make_plan
from fedskew.federate.recipe import Stage
from fedskew.federate.rows import broadcast_of
from fedskew.methods import find
from fedskew.runs.experiment import Run
from fedskew.runs.folder import RunFolder
from fedskew.types import Groups, Tensors


def newcomers(config: Config, federation: Federation) -> Holdings:
    """These clients under the plan of a run's main stage.

    Nothing is sent to a server: there are no reports, and no server that makes up data.
    """
    recipe = find(config.method.name).recipe(**config.method.knobs)
    stage = Stage(MAIN, replace(recipe, reports=(), invents=None))
    return Holdings(make_plan(config, roster_of(federation), stage), federation)


def begun(run: Run, holdings: Holdings, client: str, sent: Tensors) -> Tensors:
    """What a newcomer starts from, given what it is sent; its method may let it choose."""
    plan = holdings.plan
    broadcast: Groups = {}
    if plan.recipe.begins.personal and plan.recipe.aggregates.broadcasts:
        broadcast = broadcast_of(plan, RunFolder(run.path).selected(MAIN).state)
    return holdings.begins_with(client, sent, {}, broadcast).model
