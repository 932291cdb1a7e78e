"""Residual networks for small images."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn

from fedskew.models.registry import Classifier, Shape, register
from fedskew.registry.knobs import Knob


class _Block(nn.Module):
    """Two 3x3 convolutions around a shortcut, which is a 1x1 convolution where shapes change."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        activated: Tensor = self.relu(self.residual(x) + self.shortcut(x))
        return activated


@register("resnet18", min_side=1)
def resnet18(
    shape: Shape,
    classes: int,
    *,
    width: Annotated[int, Knob("channels of the first stage", ge=1)] = 64,
) -> Classifier:
    """ResNet-18 with the stem for small images: 3x3 convolution with stride 1, no max pooling."""
    body: list[nn.Module] = [
        nn.Conv2d(shape[0], width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    inputs = width
    for stage in range(4):
        outputs = width * 2**stage
        body += [
            _Block(inputs, outputs, stride=1 if stage == 0 else 2),
            _Block(outputs, outputs, 1),
        ]
        inputs = outputs
    body += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return Classifier(nn.Sequential(*body), nn.Linear(inputs, classes))
