"""The architectures: the paper's, one for each data set, and those that begin with convolutions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """The layers of one resolution: group convolutions, then blocks of group attention.

    Attributes:
        width: channels.
        blocks: blocks of attention.
        convolutions: group convolutions before the blocks; the first takes the channels to `width`, the others add to
            what comes in.
        crops: pixels cropped on each side by each block; nothing is cropped if not given.
    """

    width: int
    blocks: int
    convolutions: int = 0
    crops: tuple[int, ...] = ()


@dataclass(frozen=True)
class Preset:
    """An architecture: everything about a group transformer but the group, the encoding and the neighbourhood.

    Attributes:
        in_channels: channels of the images.
        num_classes: number of classes.
        image_size: side of the images the architecture was made for (others work too).
        stages: from the finest resolution to the coarsest; each has half the height and width of the one before.
        stem: channels of the group convolution that lifts images to the group and halves them. Blocks are then
            pre-norm, with attention that starts like a convolution, and stages are separated by a blur. With 0,
            attention lifts, blocks are the paper's, and stages are separated by a 2x2 max-pool.
        heads: attention heads.
        norm_after_block: whether norm and activation follow each block.
        pool_last: whether a max-pool follows the last stage too.
        attention_dropout: rate on attention coefficients.
        value_dropout: rate on what a block's attention adds.
        input_dropout: rate on the image.
        pool_dropout: rate after each max-pool.
        drop_path: stochastic depth of pre-norm blocks: the rate at which the last is left out in training, image by
            image; it falls to 0 at the first.
    """

    in_channels: int
    num_classes: int
    image_size: int
    stages: tuple[Stage, ...]
    stem: int = 0
    heads: int = 9
    norm_after_block: bool = False
    pool_last: bool = False
    attention_dropout: float = 0.1
    value_dropout: float = 0.0
    input_dropout: float = 0.0
    pool_dropout: float = 0.0
    drop_path: float = 0.0


PRESETS = {
    "rotmnist": Preset(
        in_channels=1,
        num_classes=10,
        image_size=28,
        stages=(Stage(20, 2, crops=(2, 0)), Stage(20, 3, crops=(2, 1, 1))),
        value_dropout=0.1,
    ),
    "cifar10": Preset(
        in_channels=3,
        num_classes=10,
        image_size=32,
        stages=(Stage(96, 2), Stage(192, 2), Stage(192, 2)),
        norm_after_block=True,
        input_dropout=0.2,
        pool_dropout=0.3,
    ),
    "pcam": Preset(
        in_channels=3,
        num_classes=2,
        image_size=96,
        stages=(Stage(12, 0), Stage(24, 1, crops=(2,)), Stage(48, 2, crops=(1, 1)), Stage(96, 1, crops=(1,))),
        norm_after_block=True,
        pool_last=True,
        value_dropout=0.1,
    ),
    "nano": Preset(
        in_channels=1,
        num_classes=10,
        image_size=28,
        stem=8,
        stages=(Stage(16, 0, convolutions=1), Stage(16, 4)),
        heads=6,
        attention_dropout=0.0,
    ),
    "tiny": Preset(
        in_channels=3,
        num_classes=10,
        image_size=64,
        stem=12,
        stages=(Stage(12, 0), Stage(16, 0, convolutions=2), Stage(32, 3, convolutions=1)),
        heads=4,
        attention_dropout=0.0,
    ),
    "small": Preset(
        in_channels=3,
        num_classes=10,
        image_size=224,
        stem=12,
        stages=(
            Stage(12, 0),
            Stage(24, 0, convolutions=2),
            Stage(48, 2, convolutions=2),
            Stage(64, 4, convolutions=1),
        ),
        heads=4,
        attention_dropout=0.0,
        drop_path=0.1,
    ),
}
