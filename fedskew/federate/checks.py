"""Whether a method, a model, the settings and the data go together; what does not is refused."""

from __future__ import annotations

from torch import nn

from fedskew.config import Config
from fedskew.errors import ConfigError
from fedskew.federate.plan import Plan, trained_in
from fedskew.federate.recipe import Recipe, Stage
from fedskew.federate.roster import Roster
from fedskew.models import OnePiece
from fedskew.models.registry import MODELS
from fedskew.parts.metrics import LOSS, metric_for
from fedskew.problem import Problem

NO_CLASSES = {"regression": "numbers", "multi-label": "several for each sample"}


def check_parts(method: str, name: str, module: nn.Module, recipe: Recipe) -> None:
    """Refuse a model that lacks what the method's objective calls."""
    if isinstance(module, OnePiece):
        _check_one_piece(method, name, module, recipe)
        return
    parts = dict(module.named_children())
    missing = [part for part in recipe.objective.needs if part not in parts]
    if missing:
        wanted = " and ".join(
            f"{'an' if part[0] in 'aeiou' else 'a'} {part}" for part in recipe.objective.needs
        )
        fitting = sorted(n for n, e in MODELS.items() if set(missing) <= set(e.parts))
        raise ConfigError(
            f"method {method!r} needs a model with {wanted}, which "
            f"{name!r} is not: choose from {', '.join(fitting)}."
        )


def check_trains(module: nn.Module, recipe: Recipe) -> None:
    """Refuse a model in which a phase finds nothing to train."""
    parameters = frozenset(name for name, _ in module.named_parameters())
    for phase in recipe.trains:
        trained_in(module, parameters, phase)


def check_problem(config: Config, stage: Stage, roster: Roster) -> None:
    """Refuse what needs classes where samples have none, and a loss of numbers where they have."""
    recipe, problem, method = stage.recipe, roster.problem, config.method.name
    if problem.kind != "regression" and config.train.loss.name != "squared":
        raise ConfigError(
            f"train.loss = {config.train.loss.name!r} is the loss of a target that is a number, "
            f"but {roster.name} is for {problem.kind}: leave it out."
        )
    objectives = [phase.objective or recipe.objective for phase in recipe.trains]
    why = [part.classes_for for part in objectives if part.classes_for]
    why += [part.classes_for for part in (*recipe.reports, *stage.hands_over) if part.classes_for]
    if why and not problem.classifies:
        raise ConfigError(
            f"method {method!r} needs classes {why[0]}, but the labels of {roster.name} are "
            f"{NO_CLASSES[problem.kind]}: choose another method."
        )


def _check_one_piece(method: str, name: str, module: OnePiece, recipe: Recipe) -> None:
    """Refuse a classifier in one piece where a method tells a body from a head."""
    adapts = recipe.adapts.phases if recipe.adapts else ()
    phases = (*recipe.trains, *adapts)
    objectives = [recipe.objective, *(phase.objective for phase in phases if phase.objective)]
    apart = any(o.in_parts for o in objectives) or any(r.in_parts for r in recipe.reports)
    named = (recipe.shares, recipe.begins.keeps, *(phase.trains for phase in phases))
    parts = {part for select in named for part in (*select.only, *select.but)}
    if apart or parts & set(recipe.objective.needs):
        raise ConfigError(
            f"method {method!r} treats {' and '.join(recipe.objective.needs)} of a model "
            f"differently, but model {name!r} is one piece: no layer was found whose output is the "
            "model's own. Give it children 'body' and 'head' as docs/how-to/python.md says, or "
            "choose a method that trains models whole."
        )


def check_numbers(method: str, recipe: Recipe, roster: Roster) -> None:
    """Refuse to compare a model's numbers with token ids, which are names and no amounts."""
    objectives = [recipe.objective, *(phase.objective for phase in recipe.trains)]
    if roster.vocabulary and any(o.of_numbers for o in objectives if o is not None):
        raise ConfigError(
            f"method {method!r} learns what samples look like, but those of {roster.name} are "
            "token ids, of which it can make none: choose a method that only tells classes apart."
        )


def check_classes(method: str, recipe: Recipe, roster: Roster) -> None:
    """Refuse to tell one class from no other."""
    classifies = {"head", "classifier"} & set(recipe.objective.needs)
    counts = roster.counts("classes")
    if classifies and counts.size and (counts.sum(axis=0) > 0).sum() < 2:
        raise ConfigError(
            f"method {method!r} tells classes apart, but the training data of {roster.name} are "
            "all of one class: bring another, or choose a method that learns densities."
        )


def check_metric(config: Config, recipe: Recipe, problem: Problem) -> None:
    """Refuse a metric that says nothing about what is learned."""
    wanted, own = config.evaluate.metric, recipe.objective.primary
    if wanted in (None, LOSS, own):
        return
    metric_for(wanted, problem)
    if own:
        raise ConfigError(
            f"evaluate.metric = {wanted!r} is about answers, but method {config.method.name!r} "
            f"gives none: its rounds are judged by {own!r}, so leave it out."
        )


def check_shots(plan: Plan, roster: Roster) -> None:
    """Refuse a number of shots nobody has: it would be the same as all data."""
    most = roster.most_of_a_class  # 0 where sites keep their counts to themselves
    per, of = (" per class", " of any") if plan.problem.classifies else ("", "")
    for adapt in plan.adapts:
        if adapt.shots is not None and most and adapt.shots > most:
            raise ConfigError(
                f"evaluate.shots asks for {adapt.shots} samples{per}, but no client has more than "
                f"{most}{of}."
            )


def check_keep(config: Config, recipe: Recipe) -> None:
    """Refuse to have clients choose among models that give no answers."""
    if config.evaluate.keep is not None and recipe.objective.primary:
        raise ConfigError(
            "evaluate.keep compares answers of models, but method "
            f"{config.method.name!r} gives none: leave it out."
        )
