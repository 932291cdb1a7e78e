"""The small convolutional networks of the source papers.

Every ReLU next to a max pooling comes after it: both orders give the same numbers and the same
gradients, because the maximum commutes with a monotone function, and the pooled map is a quarter
of the size.
"""

from __future__ import annotations

from typing import Annotated

from torch import nn

from fedskew.models.registry import Classifier, Shape, register
from fedskew.registry.knobs import Knob


def _pooled_area(shape: Shape, *kernels: int, padding: int = 0) -> int:
    """Pixels left of an image after convolutions with these kernels, each with 2x2 pooling."""
    height, width = shape[1:]
    for kernel in kernels:
        height, width = ((side + 2 * padding - kernel + 1) // 2 for side in (height, width))
    return height * width


def _conv_pool(inputs: int, outputs: int, kernel: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel), nn.MaxPool2d(2), nn.ReLU()]


@register("cnn", min_side=16)
def cnn(shape: Shape, classes: int) -> Classifier:
    """The two-convolution network of FedAvg's paper, without padding: 5x5(32), 5x5(64), 512."""
    body = nn.Sequential(
        *_conv_pool(shape[0], 32, 5),
        *_conv_pool(32, 64, 5),
        nn.Flatten(),
        nn.Linear(64 * _pooled_area(shape, 5, 5), 512),
        nn.ReLU(),
    )
    return Classifier(body, nn.Linear(512, classes))


@register("femnist-cnn", min_side=12)
def femnist_cnn(
    shape: Shape,
    classes: int,
    *,
    k: Annotated[int, Knob("channels of the first convolution", ge=1)] = 32,
) -> Classifier:
    """The handwriting classifier of the federated CI-VAE work: 5x5(k), 3x3(2k), 100."""
    body = nn.Sequential(
        *_conv_pool(shape[0], k, 5),
        *_conv_pool(k, 2 * k, 3),
        nn.Flatten(),
        nn.Linear(2 * k * _pooled_area(shape, 5, 3), 100),
        nn.ReLU(),
    )
    return Classifier(body, nn.Linear(100, classes))


@register("cnn-babu", min_side=16)
def cnn_babu(
    shape: Shape,
    classes: int,
    *,
    channels: Annotated[int, Knob("channels of every convolution", ge=1)] = 64,
) -> Classifier:
    """FedBABU's four blocks of 3x3(64); BatchNorm always uses the statistics of the batch.

    Without running statistics a prediction depends on the other samples it is batched with, in
    testing as in training; this is how the published results were obtained.
    """
    body: list[nn.Module] = []
    for inputs in (shape[0], channels, channels, channels):
        body += [
            nn.Conv2d(inputs, channels, 3, padding=1),
            nn.BatchNorm2d(channels, track_running_stats=False),
            nn.MaxPool2d(2),
            nn.ReLU(),
        ]
    features = channels * _pooled_area(shape, 3, 3, 3, 3, padding=1)
    return Classifier(nn.Sequential(*body, nn.Flatten()), nn.Linear(features, classes))


@register("cnn-bn", min_side=16)
def cnn_bn(
    shape: Shape,
    classes: int,
    *,
    channels: Annotated[int, Knob("channels of both convolutions", ge=1)] = 16,
    affine: Annotated[bool, Knob("BatchNorm has a scale and a shift")] = False,
) -> Classifier:
    """FedDisk's network: two blocks of 5x5 convolution, pooling and BatchNorm, then 16 units.

    The paper names no activation; its reference code uses ReLU on convolutions and on the hidden
    layer, so here ReLU is between the pooling and the BatchNorm. The published sizes include no
    scale and shift of BatchNorm; since there is no padding, the next layer can express both, and
    nothing is lost without them. ``affine=True`` adds them for methods that keep them private.
    """
    body = nn.Sequential(
        *_conv_pool(shape[0], channels, 5),
        nn.BatchNorm2d(channels, affine=affine),
        *_conv_pool(channels, channels, 5),
        nn.BatchNorm2d(channels, affine=affine),
        nn.Flatten(),
        nn.Linear(channels * _pooled_area(shape, 5, 5), 16),
        nn.ReLU(),
    )
    return Classifier(body, nn.Linear(16, classes))


@register("cnn-groupnorm", min_side=1)
def cnn_groupnorm(
    shape: Shape,
    classes: int,
    *,
    deep: Annotated[bool, Knob("DomainBed's four convolutions")] = False,
) -> Classifier:
    """DomainBed's GroupNorm network in FeDomainBed's two layers, or its own four with deep=true.

    FeDomainBed also has a GroupNorm that its forward pass never uses; it is left out, because
    a parameter without a gradient breaks methods that compare gradients.
    """
    body = _domainbed_convolutions(shape[0]) if deep else _fedomainbed_convolutions(shape[0])
    pooling = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return Classifier(nn.Sequential(*body, *pooling), nn.Linear(128, classes))


def _fedomainbed_convolutions(channels: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.ReLU(),
        nn.GroupNorm(8, 128),
    ]


def _domainbed_convolutions(channels: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((channels, 64, 1), (64, 128, 2), (128, 128, 1), (128, 128, 1)):
        layers += [
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1),
            nn.ReLU(),
            nn.GroupNorm(8, outputs),
        ]
    return layers
