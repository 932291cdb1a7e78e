"""Which entries of a model's state a recipe means: all, some modules, or a kind of layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from fedskew.engine.torch_private import is_batch_or_instance_norm
from fedskew.errors import ConfigError

BATCH_NORM = "batch-norm"


@dataclass(frozen=True)
class Select:
    """Entries under the modules in ``only`` (none given: everything), without those in ``but``.

    A module is named by its path ("body", "head", "encoder"); ``batch-norm`` means every layer
    of that type, wherever it is and whatever its name, with its running statistics.
    """

    only: tuple[str, ...] = ()
    but: tuple[str, ...] = ()

    def names(self, model: nn.Module) -> frozenset[str]:
        everything = frozenset(model.state_dict())
        kept = _under(model, self.only) if self.only else everything
        return kept - _under(model, self.but)


EVERYTHING = Select()


def only(*modules: str) -> Select:
    """The entries under these modules."""
    return Select(only=modules)


def but(*modules: str) -> Select:
    """All entries but those under these modules."""
    return Select(but=modules)


NOTHING = but("")


def _under(model: nn.Module, modules: tuple[str, ...]) -> frozenset[str]:
    known = dict(model.named_modules())
    found: set[str] = set()
    for wanted in modules:
        if wanted == BATCH_NORM:
            paths = [path for path, layer in known.items() if is_batch_or_instance_norm(layer)]
        elif wanted in known:
            paths = [wanted]
        else:
            parts = ", ".join(dict(model.named_children()))
            raise ConfigError(f"the model has no part {wanted!r}; it has {parts}.")
        prefixes = tuple(f"{path}." if path else "" for path in paths)
        if prefixes:
            found.update(name for name in model.state_dict() if name.startswith(prefixes))
    return frozenset(found)
