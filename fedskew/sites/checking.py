"""What a method would ask of a site, and what has left it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedskew.comparisons.crossing import parse_method
from fedskew.config import Config
from fedskew.data.federation import Federation
from fedskew.diagnosis.basis import BINS
from fedskew.diagnosis.summary import DECLARED, most_bytes
from fedskew.federate.holdings import roster_of
from fedskew.federate.metrics import MAIN
from fedskew.federate.plan import Plan
from fedskew.federate.planning import checked_model, plan_with
from fedskew.federate.recipe import Stage
from fedskew.methods import find
from fedskew.runs.identity import resolve
from fedskew.sites.audit import needed_by, read_audit
from fedskew.sites.describing import NEEDED
from fedskew.sites.held import Held, read
from fedskew.sites.site import ALL, Site
from fedskew.sites.study import study_config

if TYPE_CHECKING:
    from rich.table import Table

ALWAYS = (
    "the names of clients, how many samples each has, a hash of its data, names of classes, the "
    "shape of samples and the smallest and largest value in them"
)
DIAGNOSED = (
    "the names of clients, how many training rows each has, a hash of its data, names of classes "
    "and the shape of samples"
)


def what_would_leave(site: Site, method: str, given: Config) -> tuple[list[str], bool]:
    """What a method would ask of a site in a study with these settings, and whether it may."""
    config = resolve(study_config(given.model_copy(update={"method": parse_method(method)})))
    recipe = find(config.method.name).recipe(**config.method.knobs)
    if recipe.pools and recipe.invents is None:
        return [f"{method} trains on all data in one place: no study on sites can use it."], False
    stages = (*recipe.prepares, Stage(MAIN, recipe))
    held = read(site, config)
    federation = held.alone(config)
    plans = [_plan(config, federation, stage) for stage in stages]
    needed = {
        "counts": "samples of each class of each client (may be withheld)",
        **_of_columns(held),
        **needed_by(stages),
    }
    allow = site.settings.allow
    lines = [f"{method} at site {site.name!r}:", f"  always      {ALWAYS}"]
    refused = []
    for what, meant in needed.items():
        may = what in allow
        if not may and what not in ("counts", "words"):
            refused.append(what)
        lines.append(f"  {what:<11} {meant}{'' if may else '   NOT ALLOWED by site.toml'}")
    for plan in plans:
        size = 4 * plan.sent_parameters
        kept = f"; {', '.join(plan.private)} stay here" if plan.private else ""
        lines.append(
            f"  stage {plan.stage!r}: {plan.sent_parameters:,} parameters ({size / 1e6:.2f} MB) a "
            f"client and round{kept}"
        )
    if refused:
        lines.append(f"it would be refused before the first round: {', '.join(refused)}")
    return lines, not refused


def diagnosis_would_leave(site: Site, given: Config) -> tuple[list[str], bool]:
    """What 'fedskew diagnose --sites' would ask of a site, and whether it may."""
    held = read(site, resolve(study_config(given)))
    needed = {**_of_columns(held), **NEEDED}
    refused = [each for each in needed if each not in site.settings.allow and each != "words"]
    marked = {what: "   NOT ALLOWED by site.toml" if what in refused else "" for what in needed}
    cell = site.settings.min_cell
    federation = held.federation
    bins = len(federation.class_names) if federation.problem.classifies else BINS
    lines = [
        f"diagnose at site {site.name!r}:",
        f"  always      {DIAGNOSED}",
        *(f"  {what:<11} {meant}{marked[what]}" for what, meant in needed.items()),
        *(f"    {what:<9} {meant}" for what, meant in DECLARED.items()),
        f"  the cell size is {cell} rows at least (min_cell in site.toml); "
        f"{most_bytes(bins):,} bytes a client at most, and sums of its inputs before",
        "  with --epsilon noise is added here, and neither moments, hashes nor the spread leave",
    ]
    if refused:
        lines.append(f"it would be refused before anything is summed: {', '.join(refused)}")
    return lines, not refused


def _of_columns(held: Held) -> dict[str, str]:
    """What samples are scaled and encoded by."""
    told = held.columns(())
    if told:
        names = ", ".join(next(iter(told.values()))["columns"])
        words = any(
            c.get("words") for each in held.columns(ALL).values() for c in each["columns"].values()
        )
        listed = {"words": "words of columns that hold words (may be withheld: they are hashed)"}
        return {
            "moments": f"sums, median and quartiles of each column, by client: {names}",
            **(listed if words else {}),
        }
    return {"moments": "sums by which everybody's data are scaled"} if held.standardise else {}


def _plan(config: Config, federation: Federation, stage: Stage) -> Plan:
    roster = roster_of(federation)
    chosen = checked_model(config, roster, stage)
    return plan_with(config, chosen, roster.sample_shape, roster.outputs, roster.problem, stage)


def audit_table(site: Site, last: int) -> Table:
    """The newest lines of a site's audit, and the sum of all."""
    from rich.table import Table

    lines = read_audit(site.folder)
    total = sum(line["bytes"] for line in lines)
    title = f"what left site {site.name!r}: {len(lines)} replies, {total:,} bytes"
    if spent := sum(line.get("epsilon", 0.0) for line in lines):
        title += f"; by noised diagnoses an epsilon of {spent:g} at most for any row"
    table = Table(title=title, box=None)
    for column in ("time", "study", "stage", "round", "clients", "fields", "bytes", "sha256"):
        table.add_column(column, justify="right" if column in ("round", "bytes") else "left")
    for line in lines[-last:]:
        fields = ", ".join(f"{name} {size:,}" for name, size in line["fields"].items())
        fields += f" (epsilon {line['epsilon']:g})" if "epsilon" in line else ""
        clients = line["clients"]
        table.add_row(
            line["time"], line["study"][:8] or line["op"], line["stage"], str(line["round"] or ""),
            clients[0] if len(clients) == 1 else str(len(clients) or ""), fields or "–",
            f"{line['bytes']:,}", line["sha256"][:12],
        )  # fmt: skip
    return table
