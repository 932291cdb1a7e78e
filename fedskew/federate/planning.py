"""From a config and a roster to the plan of a stage, refused where the two do not go together."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from fedskew.config import Config, Named, TrainSection, config_of
from fedskew.engine.dropout import with_stream_dropout
from fedskew.engine.executor import choose
from fedskew.engine.optim import Optimiser
from fedskew.errors import ConfigError
from fedskew.federate.checks import (
    check_classes,
    check_keep,
    check_metric,
    check_numbers,
    check_parts,
    check_problem,
    check_shots,
    check_trains,
)
from fedskew.federate.metrics import MAIN
from fedskew.federate.plan import Plan, Settings
from fedskew.federate.recipe import Adapt, ModelChoice, Phase, Stage
from fedskew.federate.roster import Roster
from fedskew.federate.rounds import Rounds
from fedskew.models import seeded
from fedskew.models.registry import for_samples
from fedskew.parts.augment import augmentations, check_augmentations
from fedskew.parts.losses import LOSSES, Loss
from fedskew.parts.select import EVERYTHING, only
from fedskew.problem import Problem
from fedskew.rng import stream, torch_seed
from fedskew.types import Groups


def usable_device(name: str) -> torch.device:
    """A device that torch can compute on here."""
    try:
        device = torch.device(name)
        if device.type != "meta" and float(torch.ones(1, device=device).sum()) == 1.0:
            return device
    except Exception:  # each kind of device fails in its own way where it is not there
        pass
    raise ConfigError(f"device {name!r} is not there, or torch cannot use it: choose 'cpu'.")


def make_plan(config: Config, roster: Roster, stage: Stage) -> Plan:
    """A stage's recipe with the model, settings and executor it trains with, if they fit."""
    chosen = checked_model(config, roster, stage)
    plan = plan_with(config, chosen, roster.sample_shape, roster.outputs, roster.problem, stage)
    check_shots(plan, roster)
    return plan


def plan_with(
    config: Config,
    chosen: Named,
    sample_shape: tuple[int, ...],
    outputs: int,
    problem: Problem,
    stage: Stage,
) -> Plan:
    """The same plan where others have checked it, with the model that was chosen."""
    module = with_stream_dropout(_model(config, chosen, sample_shape, outputs, stage))
    train = _train_section(config, stage)
    device = usable_device(config.device)
    initial = {name: t.detach().clone().to(device) for name, t in module.state_dict().items()}
    optimiser = Optimiser(train.optimiser, train.lr, train.momentum, train.weight_decay)
    plan = Plan(
        recipe=stage.recipe,
        module=module.to(device).train(),
        initial=initial,
        settings=Settings(
            optimiser,
            train.epochs,
            train.batch_size,
            loss_of(train.loss),
            augmentations(train.augment),
        ),
        execution=choose(module, config.executor),
        seed=config.seed,
        stage=stage.name,
        model=chosen,
        problem=problem,
        metric=config.evaluate.metric if stage.name == MAIN else None,
        hands_over=stage.hands_over,
    )
    return replace(plan, adapts=adaptations(config, plan) if stage.name == MAIN else ())


def loss_of(chosen: Named) -> Loss:
    """What errors of a number cost, as chosen by name."""
    made = LOSSES.find(chosen.name).make(**chosen.knobs)
    if not isinstance(made, Loss):
        raise ConfigError(
            f"train.loss = {chosen.name!r} made {type(made).__name__}: it must make a fedskew.Loss."
        )
    return made


def made_up(config: Config, plan: Plan, memory: Groups) -> Tensor | None:
    """The samples a server invents for a recipe that trains on such, of what it was handed."""
    if plan.recipe.invents is None:
        return None
    rng = stream(config.seed, plan.stage, "invented")
    return plan.recipe.invents.samples(plan.module, memory, rng)


def checked_model(config: Config, roster: Roster, stage: Stage) -> Named:
    """Which model a stage begins with, if its recipe, the settings and the data go together."""
    check_numbers(config.method.name, stage.recipe, roster)
    chosen = stage_model(stage, roster) or config.model
    check_problem(config, stage, roster)
    knobs = for_samples(chosen.name, chosen.knobs, roster.sample_shape, roster.vocabulary)
    chosen = Named(name=chosen.name, **knobs)
    module = _model(config, chosen, roster.sample_shape, roster.outputs, stage)
    check_parts(config.method.name, chosen.name, module, stage.recipe)
    check_trains(module, stage.recipe)
    check_classes(config.method.name, stage.recipe, roster)
    if stage.name == MAIN:
        check_metric(config, stage.recipe, roster.problem)
        check_keep(config, stage.recipe)
    module = with_stream_dropout(module)
    train = _train_section(config, stage)
    check_augmentations(train.augment, roster.name, roster.sample_shape)
    if train.optimiser != "sgd" and any(report.needs_sgd for report in stage.recipe.reports):
        raise ConfigError(
            f"method {config.method.name!r} reads gradients off the way its clients went: "
            f"it needs train.optimiser = 'sgd', not {train.optimiser!r}."
        )
    fitting = roster.whole_where_small(train.batch_size)
    stage.recipe.objective.check(module, fitting, train.batch_size)
    for report in (*stage.recipe.reports, *stage.hands_over):
        report.check(roster)
    return chosen


def _model(
    config: Config, chosen: Named, sample_shape: tuple[int, ...], outputs: int, stage: Stage
) -> nn.Module:
    """The model of a stage before any training, with whatever its recipe adds to it."""
    module = seeded(
        chosen.name, sample_shape, outputs,
        seed=torch_seed(config.seed, stage.name, "model"), **chosen.knobs,
    )  # fmt: skip
    if stage.recipe.extends:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(config.seed, stage.name, "extension"))
            module = stage.recipe.extends(module)
    return module


def stage_model(stage: Stage, roster: Roster) -> Named | None:
    """The model a stage brings along, or picks by what is known of the data; None: the run's."""
    if isinstance(stage.model, ModelChoice):
        return Named(**stage.model.fitting(roster))
    return Named(**stage.model) if stage.model else None


def _train_section(config: Config, stage: Stage) -> TrainSection:
    """The run's settings with the stage's own, which the user may have written."""
    return config_of({"train": {**config.train.model_dump(), **stage.train}}).train


def make_rounds(config: Config, stage: Stage, roster: Roster) -> Rounds:
    """How long a stage goes on, who takes part, and what is scored when."""
    train, evaluate = _train_section(config, stage), config.evaluate
    if train.clients_per_round and train.clients_per_round > len(roster.seen):
        raise ConfigError(
            f"train.clients_per_round is {train.clients_per_round}, "
            f"but there are {len(roster.seen)} clients."
        )
    if train.min_clients > len(roster.seen):
        raise ConfigError(
            f"train.min_clients is {train.min_clients}, but there are {len(roster.seen)} clients."
        )
    return Rounds(
        rounds=stage.lasts(config.train.rounds),
        clients_per_round=train.clients_per_round,
        min_clients=train.min_clients,
        patience=train.patience,
        score_every=evaluate.every if stage.score_every is None else stage.score_every,
        lr_decay=train.lr_decay,
        lr_steps=tuple(train.lr_steps),
        matrix_rounds=None if evaluate.matrix_rounds is None else tuple(evaluate.matrix_rounds),
    )


def adaptations(config: Config, plan: Plan) -> tuple[Adapt, ...]:
    """What a run's models do before they are scored as adapted, for each number of shots."""
    evaluate, own = config.evaluate, plan.recipe.adapts
    wanted = [count for count in evaluate.shots if count != 0]
    phases = own.phases if own else (Phase(epochs=evaluate.fine_tune_epochs),)
    parts = evaluate.fine_tune_part
    named = only(*([parts] if isinstance(parts, str) else parts))
    if parts not in ("method", "all"):
        # A part that is not there is a mistake, whether or not anything adapts.
        plan.trained_by(replace(phases[-1], trains=named))
    if evaluate.generated and not plan.recipe.objective.draws:
        raise ConfigError(
            f"evaluate.generated asks for samples, but method {config.method.name!r} learns no "
            "model that makes any: leave it out."
        )
    if evaluate.generated and not plan.problem.classifies:
        raise ConfigError(
            "evaluate.generated judges samples by a classifier, but the data are for "
            f"{plan.problem.kind}: leave it out."
        )
    if not phases[-1].epochs and not evaluate.fine_tune_epochs:
        if any(count != "all" for count in wanted):
            raise ConfigError(
                f"evaluate.shots asks for adaptation, but method {config.method.name!r} says "
                "nothing about it: set evaluate.fine_tune_epochs."
            )
        return ()
    *before, last = phases
    if parts == "all":
        last = replace(last, trains=EVERYTHING)
    elif parts != "method":
        last = replace(last, trains=named)
    if evaluate.fine_tune_epochs:
        last = replace(last, epochs=evaluate.fine_tune_epochs)
    if evaluate.fine_tune_lr is not None:
        last = replace(last, lr=evaluate.fine_tune_lr)
    plan.trained_by(last)
    return tuple(
        Adapt(
            (*before, last), None if count == "all" else count, evaluate.fine_tune_patience,
            evaluate.fine_tune_batch,
        )
        for count in wanted
    )  # fmt: skip
