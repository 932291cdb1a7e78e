"""Classifiers by their parts: a body and a head, a head found in a user's module, or one piece."""

from __future__ import annotations

import copy
from collections import OrderedDict

from torch import Tensor, nn


class Classifier(nn.Module):
    """A body that makes features and a head that turns them into logits.

    Methods that treat the two differently (frozen heads, private heads) tell them apart by the
    parameter names ``body.*`` and ``head.*``, so nothing else may hold parameters.
    """

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch."""
        logits: Tensor = self.head(self.body(x))
        return logits


class FoundHead(Classifier):
    """A user's module whose head was found: ``body`` is the module without it.

    ``place`` is the path of the head in the module, where a layer that does nothing stands in for
    it; of a sequence cut in two there is none.
    """

    def __init__(self, body: nn.Module, head: nn.Module, place: str | None) -> None:
        super().__init__(body, head)
        self.place = place

    def own(self) -> nn.Module:
        """The user's module with the weights of this one."""
        body, head = copy.deepcopy(self.body), copy.deepcopy(self.head)
        if self.place is None:
            return nn.Sequential(OrderedDict([*body.named_children(), *head.named_children()]))
        if not self.place:
            return head
        body.set_submodule(self.place, head)
        return body


class OnePiece(nn.Module):
    """A user's module that answers with logits, but has no head that could be told apart.

    Its parameters are named ``whole.*``. Methods that treat body and head differently refuse it.
    """

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch."""
        logits: Tensor = self.whole(x)
        return logits

    def own(self) -> nn.Module:
        """The user's module with the weights of this one."""
        return copy.deepcopy(self.whole)


def tells_classes(module: nn.Module) -> bool:
    """Whether a model answers with logits of classes."""
    parts = {name for name, _ in module.named_children()}
    return isinstance(module, OnePiece) or bool({"head", "classifier"} & parts)
