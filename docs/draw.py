"""Draws pictures for the pages on concepts and on the paper: `python docs/draw.py` writes them to docs/images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import matplotlib as mpl
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

import gevit
from gevit.data import open_dataset
from gevit.encoding import element_table
from gevit.groups import Cyclic, Dihedral, Group
from gevit.rendering import charts
from gevit.reproduce.results import read_results
from gevit.reproduce.studies import STUDIES
from gevit.reproduce.study import Cell

FOLDER = Path(__file__).parent / "images"
RESULTS = Path(__file__).parents[1] / "results"
# Studies with both encodings, and what their networks were trained on.
PAIRED = {
    "converged": "10,000 digits",
    "sizes": "nano, {limit_train:,} digits",
    "angles": "nano, 4,000 upright digits",
    "encodings": "3,000 digits, other recipe",
    "table1": "3,000 digits",
    "table2": "3,000 digits",
    "reflections": "3,000 digits",
    "table3": "tissue",
    "tissue": "tiny, tissue",
    "photographs": "tiny, photographs",
}
HOLLOW = {"color": charts.ORANGE, "markerfacecolor": "none"}  # of the paper's numbers
ORIENTATIONS = ["#4269d0", "#efb118", "#ff725c", "#3ca951"]  # one colour an element of C4


def _bare(axes: Axes, frame: str | None = None, title: str = "") -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title, fontsize=10)
    for spine in axes.spines.values():
        spine.set_visible(frame is not None)
        spine.set_color(frame or "black")
        spine.set_linewidth(2.5)


def _glyph() -> torch.Tensor:
    """A picture that no rotation or reflection leaves as it is: the letter F."""
    letter = torch.zeros(9, 9)
    letter[1:8, 2:4] = 1
    letter[1:3, 2:7] = 1
    letter[4:5, 2:6] = 1
    return letter


def draw_group() -> None:
    """A letter under the eight elements of D4."""
    group = Dihedral(4)
    figure, rows = plt.subplots(2, 4, figsize=(6.4, 3.6), layout="constrained")
    for element, axes in enumerate(rows.flat):
        axes.imshow(group.act_on_image(_glyph(), element), cmap="Blues", vmax=1.4)
        _bare(axes, "#999999", group.name(element))
    figure.savefig(FOLDER / "group.png", dpi=150)


def draw_lifting() -> None:
    """A digit, the rotated digit, and one channel of their lifted maps; a colour follows a map."""
    group = Cyclic(4)
    model = gevit.create_model("r4_sa", pretrained=True)
    test = open_dataset("digits-upright").test
    digit = test.images((test.labels == 4).nonzero()[0])
    figure, rows = plt.subplots(2, 5, figsize=(8, 3.6), layout="constrained")
    images = [group.act_on_image(digit, turn) for turn in (0, 1)]
    with torch.no_grad():
        lifted = [model.forward_features(model.info.normalize(image))["lifting"][0] for image in images]
    channel = int(lifted[0].std(1).mean((1, 2)).argmax())  # the one whose maps differ most
    for turn, (row, image, maps) in enumerate(zip(rows, images, lifted, strict=True)):
        row[0].imshow(image[0, 0], cmap="gray")
        _bare(row[0], "#999999", "a digit" if turn == 0 else "rotated by 90°")
        for element in range(group.order):
            row[1 + element].imshow(maps[channel, element], cmap="magma")
            before = int(group.product[group.inverse[turn], element])
            _bare(row[1 + element], ORIENTATIONS[before], f"map of {group.name(element)}")
    figure.savefig(FOLDER / "lifting.png", dpi=150)


def _elements(axes: Axes, encoding: str, group: Group, turn: int, title: str) -> None:
    """The element that rho_P sees at output h and key h^ for the query h~ = e, after all three were rotated."""
    table = element_table(encoding, group)
    moved = group.product[turn]
    seen = table[moved][:, moved][:, :, moved][:, 0]
    axes.imshow(seen, cmap=mpl.colors.ListedColormap(ORIENTATIONS), vmin=0, vmax=group.order - 1, alpha=0.75)
    for h in range(group.order):
        for key in range(group.order):
            axes.text(key, h, f"{90 * int(seen[h, key])}°", ha="center", va="center", fontsize=9)
    _bare(axes, title=title)
    axes.set_xlabel("key element")
    axes.set_ylabel("output element")


def draw_encoding() -> None:
    """The elements that two encodings see, of an image and of the rotated image."""
    group = Cyclic(4)
    figure, rows = plt.subplots(1, 4, figsize=(10, 3), layout="constrained")
    for pair, (encoding, name) in zip((rows[:2], rows[2:]), (("ge", "GE-ViT"), ("gsa", "GSA-Nets")), strict=True):
        _elements(pair[0], encoding, group, 0, name)
        _elements(pair[1], encoding, group, 1, f"{name}, image rotated")
    figure.savefig(FOLDER / "encoding.png", dpi=150)


@dataclass(frozen=True)
class Pair:
    """Two cells of a study that differ in the encoding and in no other setting.

    Attributes:
        label: what they are of.
        points: accuracy of GE-ViT minus that of GSA-Nets, of each seed.
        reach: the 95% interval that the test images leave of such a difference, to each side, at most: the two
            networks err on the same images, which makes it smaller.
        paper: the same in the paper.
        is_of_table: whether it is the paper's architecture on rotated digits.
    """

    label: str
    points: list[float]
    reach: float
    paper: float | None
    is_of_table: bool


def _pairs() -> list[Pair]:
    """All that have been run, those with the most test images first."""
    pairs: dict[str, Pair] = {}
    for name, what in PAIRED.items():
        study = STUDIES[name]("cpu")
        results = read_results(study, "cpu", RESULTS / name / "cpu")
        cells: dict[str, dict[str, Cell]] = {}
        for cell in study.runs:
            others = {setting: value for setting, value in cell.settings.items() if setting != "encoding"}
            cells.setdefault(str(others), {})[cell.settings.get("encoding", "ge")] = cell
        for ge, gsa in ((pair["ge"], pair["gsa"]) for pair in cells.values() if "gsa" in pair):
            ours, theirs = ({result.seed: result.test_accuracy for result in results[cell.key]} for cell in (ge, gsa))
            seeds = sorted(ours.keys() & theirs.keys())
            if not seeds:
                continue
            result = results[ge.key][0]
            side = ge.settings.get("neighborhood", 5)
            network = f"{ge.settings['model'].upper()}, {side}x{side}, {what.format(**ge.settings)}"
            share = fmean(ours[seed] for seed in seeds)
            pair = Pair(
                f"{network} ({result.test_images:,})",
                [100 * (ours[seed] - theirs[seed]) for seed in seeds],
                196 * math.sqrt(2 * share * (1 - share) / result.test_images),
                ge.paper - gsa.paper if ge.paper and gsa.paper else None,
                study.recipe in ("rotmnist", "encodings", "converged"),
            )
            if pair.label not in pairs or len(seeds) > len(pairs[pair.label].points):  # tables share runs
                pairs[pair.label] = pair
    return sorted(pairs.values(), key=lambda pair: pair.reach)


def draw_pairs() -> None:
    """The differences: a dot for each seed in the reach of the test images, and a diamond for the paper."""
    pairs = _pairs()
    figure, axes = plt.subplots(figsize=(charts.WIDTH, 0.25 * len(pairs) + 1), layout="constrained")
    for row, pair in enumerate(pairs):
        axes.plot([-pair.reach, pair.reach], [row, row], color=charts.GRID, linewidth=7, solid_capstyle="butt")
        axes.plot(pair.points, [row] * len(pair.points), "o", color=charts.BLUE, alpha=0.8)
        axes.plot([] if pair.paper is None else [pair.paper], [] if pair.paper is None else [row], "D", **HOLLOW)
    axes.plot([], [], color=charts.GRID, linewidth=7, label="by chance of the test images")
    axes.plot([], [], "o", color=charts.BLUE, alpha=0.8, label="ours, a seed each")
    axes.plot([], [], "D", **HOLLOW, label="the paper")
    axes.axvline(0, color=charts.INK, linewidth=1)
    axes.set_yticks(range(len(pairs)), [pair.label for pair in pairs])
    axes.invert_yaxis()
    axes.set_xlabel("GE-ViT minus GSA-Nets, points of accuracy")
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=charts.FONT)
    charts.style(axes)
    axes.grid(axis="y", visible=False)
    charts.save(figure, FOLDER / "pairs.png")
    of_tables = [pair for pair in pairs if pair.is_of_table]
    for where, chosen in (("all", pairs), ("the paper's architecture on rotated digits", of_tables)):
        points = [point for pair in chosen for point in pair.points]
        ahead = sum(point > 0 for point in points)
        print(f"{where}: GE-ViT is ahead in {ahead} of {len(points)} pairs, by {fmean(points):+.2f} points on average")


if __name__ == "__main__":
    draw_pairs()
    draw_group()
    draw_lifting()
    draw_encoding()
