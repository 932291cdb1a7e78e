"""A second, personal head beside the one that clients share (FedROD)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedskew.errors import ConfigError
from fedskew.models.registry import Classifier


class TwoHeads(Classifier):
    """A classifier whose logits are the sum of a generic and a personal head on one body.

    The personal head starts at zero: until it is trained, the generic head predicts alone.
    """

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__(body, head)
        # A layer made on a real device would draw random numbers that are not needed.
        empty = nn.Linear(
            head.in_features,
            head.out_features,
            bias=head.bias is not None,
            device="meta",
            dtype=head.weight.dtype,
        )
        self.personal = empty.to_empty(device=head.weight.device)
        with torch.no_grad():
            for parameter in self.personal.parameters():
                parameter.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch, as a client with its personal head predicts them."""
        features = self.body(x)
        logits: Tensor = self.head(features) + self.personal(features)
        return logits


def with_personal_head(model: nn.Module) -> nn.Module:
    """The model with a personal head of the same shape as its own, named ``personal``."""
    head = dict(model.named_children()).get("head")
    if head is None:
        raise ConfigError(
            "a personal head needs a model with a body and a linear head, but none was found: see "
            "docs/how-to/python.md, or choose another method."
        )
    if not isinstance(head, nn.Linear):
        raise ConfigError(
            "a personal head needs a model whose 'head' is a torch.nn.Linear, not "
            f"{type(head).__name__}: move the other layers into 'body' or choose another method."
        )
    return TwoHeads(model.get_submodule("body"), head)
