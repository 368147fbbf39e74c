"""Segmentation whose mask rotates and reflects with the image: a decoder on the feature maps of a backbone.

    python examples/segmentation.py --data redcells --out masks.png

learns to outline the red blood cell in the middle of a picture, apart from the others there. The masks it learns from
are made from the pictures themselves: what is darker than Otsu's threshold in green and hangs together with the middle.
Pictures in which that reaches the edge, mostly because cells touch, are left out, of training and of the test. So the
score says how well the network agrees with that rule on smears it has not seen, not with a pathologist.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

import gevit
from gevit.data import DataSet, open_dataset
from gevit.data.dataset import Split
from gevit.equivariance import measure
from gevit.group_conv import GroupConv
from gevit.groups import Dihedral
from gevit.layers import Upsample
from gevit.models import FeatureMaps

GROUP = Dihedral(4)


class Segmenter(nn.Module):
    """Logits of the classes at every pixel: a backbone, and a decoder that goes back up through its maps.

    Every layer is equivariant; the maximum over the group at the end leaves an image, which rotates with the input.

    Args:
        backbone: `gevit.create_model(..., features_only=True)` in an architecture with a stem, such as `tiny`.
        classes: how many.
        width: channels of the decoder.
    """

    def __init__(self, backbone: FeatureMaps, classes: int = 1, width: int = 16) -> None:
        super().__init__()
        self.backbone, self.upsample = backbone, Upsample()
        group, (*finer, coarsest) = backbone.group, backbone.feature_info.channels()
        self.merges = nn.ModuleList()
        for channels in reversed(finer):
            merge = GroupConv(group, coarsest + channels, width, padding=1)
            self.merges.append(nn.Sequential(merge, nn.BatchNorm3d(width), nn.SiLU()))
            coarsest = width
        self.classify = nn.Conv2d(width, classes, 1)

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes height width"]:
        """Logits of each pixel."""
        *finer, signal = self.backbone(x)
        for maps, merge in zip(reversed(finer), self.merges, strict=True):
            signal = merge(torch.cat([self.upsample(signal, maps.shape[-2:]), maps], dim=1))
        logits: Tensor = self.classify(self.upsample(signal, x.shape[-2:]).amax(2))
        return logits


def otsu(grey: Float[Tensor, "batch height width"], levels: int = 64) -> Float[Tensor, "batch 1 1"]:
    """The threshold that separates bright from dark pixels best: the largest variance between the two (Otsu 1979)."""
    level = torch.linspace(0, 1, levels)[:, None, None, None]
    dark = (grey[None] < level).float()
    share = dark.mean((2, 3)).clamp(1e-6, 1 - 1e-6)
    mean_dark = (dark * grey).mean((2, 3)) / share
    mean_bright = ((1 - dark) * grey).mean((2, 3)) / (1 - share)
    between = share * (1 - share) * (mean_dark - mean_bright) ** 2
    return level[between.argmax(0)][:, 0]


def middle_cell(images: Float[Tensor, "batch 3 height width"]) -> Bool[Tensor, "batch height width"]:
    """What is dark in green and hangs together with the middle, pale centres of cells filled."""
    green = images[:, 1]
    dark = (green < otsu(green)).float()[:, None]
    outside = _grow(F.pad(torch.zeros_like(dark), [1] * 4, value=1.0), F.pad(1 - dark, [1] * 4, value=1.0))
    filled = 1 - outside[..., 1:-1, 1:-1]
    seed = torch.zeros_like(filled)
    height, width = filled.shape[-2:]
    seed[..., height // 2 - 3 : height // 2 + 3, width // 2 - 3 : width // 2 + 3] = 1
    return _grow(seed * filled, filled)[:, 0] > 0


def is_whole(masks: Bool[Tensor, "batch height width"]) -> Bool[Tensor, " batch"]:
    """Whether there is a cell, and all of it: nothing at the edge."""
    edges = torch.cat([masks[:, 0], masks[:, -1], masks[:, :, 0], masks[:, :, -1]], dim=1)
    return masks.any(2).any(1) & ~edges.any(1)


def _grow(seed: Tensor, within: Tensor) -> Tensor:
    """All that hangs together with the seed."""
    while True:
        grown = F.max_pool2d(seed, 3, stride=1, padding=1) * within
        if torch.equal(grown, seed):
            return grown
        seed = grown


def overlap(found: Bool[Tensor, "batch height width"], wanted: Bool[Tensor, "batch height width"]) -> float:
    """Intersection over union, the mean over images."""
    both, either = (found & wanted).sum((1, 2)), (found | wanted).sum((1, 2))
    return float((both / either.clamp(min=1)).mean())


def learn(model: nn.Module, images: Tensor, masks: Tensor, epochs: int, batch: int = 16, lr: float = 3e-3) -> None:
    """Train on images and their masks."""
    steps = epochs * (len(images) // batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)
    model.train()
    for epoch in range(epochs):
        total = 0.0
        for chosen in torch.randperm(len(images)).split(batch)[: len(images) // batch]:
            loss = F.binary_cross_entropy_with_logits(model(images[chosen])[:, 0], masks[chosen].float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        print(f"epoch {epoch + 1}/{epochs}  loss {total * batch / len(images):.4f}", flush=True)
    model.eval()


@torch.no_grad()
def segment(model: nn.Module, images: Tensor) -> Bool[Tensor, "batch height width"]:
    """The masks that the network finds."""
    return torch.cat([model(part)[:, 0] > 0 for part in images.split(32)])


def draw(path: Path, pictures: Tensor, wanted: Tensor, model: nn.Module, data: DataSet) -> None:
    """Pictures and masks, the same of the pictures rotated or reflected, and how the two masks differ.

    A mask is the probability of each pixel to belong to the cell.
    """
    from matplotlib import pyplot as plt

    @torch.no_grad()
    def mask(picture: Tensor) -> Tensor:
        return torch.sigmoid(model(data.normalize(picture[None]))[0, 0])

    figure, rows = plt.subplots(len(pictures), 5, figsize=(9, 1.9 * len(pictures)), layout="constrained")
    titles = ("found; dotted: wanted", "mask", "moved picture", "its mask", "|its - moved mask|")
    for axes, title in zip(rows[0], titles, strict=True):
        axes.set_title(title, fontsize=9)
    for row, element, picture, target in zip(rows, (1, 2, 4, 5), pictures, wanted, strict=True):
        moved = GROUP.act_on_image(picture, element)
        before, after = mask(picture), mask(moved)
        for axes, image, found in ((row[0], picture, before), (row[2], moved, after)):
            axes.imshow(image.permute(1, 2, 0))
            axes.contour(found, [0.5], colors="#ff2d78", linewidths=1.5)
        row[0].contour(target, [0.5], colors="white", linewidths=1, linestyles="dotted")
        row[1].imshow(before, vmin=0, vmax=1)
        row[3].imshow(after, vmin=0, vmax=1)
        difference = (after - GROUP.act_on_image(before, element)).abs()
        shown = row[4].imshow(difference, vmin=0, vmax=1e-5, cmap="magma")
        row[2].set_ylabel(GROUP.name(element), fontsize=9)
        row[4].set_xlabel(f"largest: {difference.max():.0e}", fontsize=8)
        for axes in row:
            axes.set(xticks=[], yticks=[])
    figure.colorbar(shown, ax=rows[:, 4], aspect=40)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Train, score, check and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="redcells", help="data set by name, or folder or archive of images")
    parser.add_argument("--images", type=int, default=1200, help="pictures to learn from")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path("masks.png"))
    options = parser.parse_args()

    torch.manual_seed(0)
    data = open_dataset(options.data)

    def some(split: Split, count: int) -> tuple[Tensor, Tensor]:
        pictures = split.images(torch.randperm(len(split), generator=torch.Generator().manual_seed(0))[:count])
        masks = middle_cell(pictures)
        whole = is_whole(masks)
        print(f"{int(whole.sum())} of {len(pictures)} pictures have a whole cell in the middle", flush=True)
        return pictures[whole], masks[whole]

    model = Segmenter(gevit.create_model("d4_sa", preset="tiny", features_only=True))
    pictures, masks = some(data.train, options.images)
    learn(model, data.normalize(pictures), masks, options.epochs)

    usual = masks.float().mean(0) > 0.5
    pictures, masks = some(data.test, 1000)
    images = data.normalize(pictures)
    found = segment(model, images)
    print(f"intersection over union {overlap(found, masks):.3f}, mean of the test pictures")
    print(f"for comparison, the mean training mask everywhere: {overlap(usual.expand_as(masks), masks):.3f}")
    few = images[:50]
    print(f"rotated and reflected pictures: relative error of the logits {measure(model, few, GROUP).worst:.1e}")
    moves = range(GROUP.order)
    changed = [segment(model, GROUP.act_on_image(few, g)) != GROUP.act_on_image(found[:50], g) for g in moves]
    print(f"pixels of their masks that change: {int(torch.stack(changed).sum())} of {found[:50].numel() * GROUP.order}")
    draw(options.out, pictures[:4], masks[:4], model, data)
    print(f"pictures in {options.out}")


if __name__ == "__main__":
    main()
