"""What an aggregator must return, its author's or ours."""

from __future__ import annotations

from fedskew.errors import RunError
from fedskew.federate.plan import Plan
from fedskew.parts.aggregate import ServerState


def check_target(plan: Plan, target: object) -> None:
    """Refuse an aggregate that lacks entries of the model, or has others: it would go unnoticed."""
    if not isinstance(target, ServerState):
        raise RunError(f"the method's aggregator must return a server state, not {target!r:.80}.")
    wanted = {name: plan.initial[name].shape for name in plan.shared}
    for model in (target.shared, *target.personal.values()):
        found = {name: getattr(tensor, "shape", None) for name, tensor in model.items()}
        for name in sorted({**wanted, **found}):
            if wanted.get(name) != found.get(name):
                how = "drops" if name in wanted else "invents"
                how = "reshapes" if name in wanted and name in found else how
                raise RunError(
                    f"the method's aggregator {how} {name!r}: it must return every entry it is "
                    "given, in its shape, and no other."
                )
