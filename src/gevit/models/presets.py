"""The architectures: the paper's, one for each data set, and those with a convolutional stem."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """An architecture: everything about a group transformer but the group, the encoding and the neighbourhood.

    Attributes:
        in_channels: channels of the images.
        num_classes: number of classes.
        image_size: side of the images the architecture was made for (others work too).
        width: channels of the first stage.
        stem: channels of the group convolutions before attention, each followed by down-sampling; the first lifts.
            Blocks are then pre-norm, with attention that starts like a convolution. Without a stem, attention lifts,
            and blocks are the paper's.
        heads: attention heads.
        blocks: number of blocks of each stage; stages are separated by a 2x2 max-pool.
        widen: factor on the width at the first block of each stage.
        crops: pixels cropped on each side by each block.
        norm_after_block: whether norm and activation follow each block.
        pool_last: whether a max-pool follows the last stage too.
        attention_dropout: rate on attention coefficients.
        value_dropout: rate on what a block's attention adds.
        input_dropout: rate on the image.
        pool_dropout: rate after each max-pool.
    """

    in_channels: int
    num_classes: int
    image_size: int
    width: int
    blocks: tuple[int, ...]
    widen: tuple[int, ...]
    crops: tuple[int, ...]
    norm_after_block: bool = False
    pool_last: bool = False
    attention_dropout: float = 0.1
    value_dropout: float = 0.0
    input_dropout: float = 0.0
    pool_dropout: float = 0.0
    stem: tuple[int, ...] = ()
    heads: int = 9


PRESETS = {
    "rotmnist": Preset(
        in_channels=1,
        num_classes=10,
        image_size=28,
        width=20,
        blocks=(2, 3),
        widen=(1, 1),
        crops=(2, 0, 2, 1, 1),
        value_dropout=0.1,
    ),
    "cifar10": Preset(
        in_channels=3,
        num_classes=10,
        image_size=32,
        width=96,
        blocks=(2, 2, 2),
        widen=(1, 2, 1),
        crops=(0, 0, 0, 0, 0, 0),
        norm_after_block=True,
        input_dropout=0.2,
        pool_dropout=0.3,
    ),
    "pcam": Preset(
        in_channels=3,
        num_classes=2,
        image_size=96,
        width=12,
        blocks=(0, 1, 2, 1),
        widen=(1, 2, 2, 2),
        crops=(0, 2, 1, 1),
        norm_after_block=True,
        pool_last=True,
        value_dropout=0.1,
    ),
    "nano": Preset(
        in_channels=1,
        num_classes=10,
        image_size=28,
        width=16,
        blocks=(4,),
        widen=(1,),
        crops=(0, 0, 0, 0),
        attention_dropout=0.0,
        stem=(8, 16),
        heads=6,
    ),
}
