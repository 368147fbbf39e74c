"""Draws pictures for the pages on concepts and on the paper: `python docs/draw.py` writes them to docs/images."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from statistics import fmean

import matplotlib as mpl
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

import gevit
from gevit.data import open_dataset
from gevit.encoding import element_table
from gevit.evaluation.metrics import mean_interval
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


def _pairs() -> dict[str, tuple[list[float], float | None]]:
    """GE-ViT minus GSA-Nets in points: of every seed of runs that differ in nothing else, and in the paper."""
    pairs: dict[str, tuple[list[float], float | None]] = {}
    for name, what in PAIRED.items():
        study = STUDIES[name]("cpu")
        results = read_results(study, "cpu", RESULTS / name / "cpu")
        cells: dict[str, dict[str, Cell]] = {}
        for cell in study.runs:
            others = {setting: value for setting, value in cell.settings.items() if setting != "encoding"}
            cells.setdefault(str(others), {})[cell.settings.get("encoding", "ge")] = cell
        for ge, gsa in ((pair["ge"], pair["gsa"]) for pair in cells.values() if "gsa" in pair):
            ours, theirs = ({result.seed: result.test_accuracy for result in results[cell.key]} for cell in (ge, gsa))
            side = ge.settings.get("neighborhood", 5)
            label = (
                f"{ge.settings['model'].upper()}{f' {side}x{side}' if side != 5 else ''}, {what.format(**ge.settings)}"
            )
            paper = ge.paper - gsa.paper if ge.paper and gsa.paper else None
            points = [100 * (ours[seed] - theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]
            if len(points) > len(pairs.get(label, ([], None))[0]):  # tables share runs
                pairs[label] = points, paper
    return pairs


def draw_pairs() -> None:
    """The differences: a dot for each seed, and a diamond for the paper."""
    pairs = _pairs()
    ours = [(point, row) for row, (points, _) in enumerate(pairs.values()) for point in points]
    paper = [(point, row) for row, (_, point) in enumerate(pairs.values()) if point is not None]
    figure, axes = plt.subplots(figsize=(charts.WIDTH, 0.25 * len(pairs) + 1), layout="constrained")
    axes.plot(*zip(*ours, strict=True), "o", color=charts.BLUE, alpha=0.8, label="ours, a seed each")
    axes.plot(*zip(*paper, strict=True), "D", mfc="none", color=charts.ORANGE, label="the paper")
    axes.axvline(0, color=charts.INK, linewidth=1)
    axes.set_yticks(range(len(pairs)), list(pairs))
    axes.invert_yaxis()
    axes.set_xlabel("accuracy of GE-ViT minus that of GSA-Nets, points")
    axes.legend(frameon=False, fontsize=charts.FONT)
    charts.style(axes)
    charts.save(figure, FOLDER / "pairs.png")
    rotated = [points for row, (points, _) in pairs.items() if "digits" in row and "upright" not in row]
    for where, points in (("all", [point for point, _ in ours]), ("rotated digits", [*chain(*rotated)])):
        ahead, (low, high) = sum(point > 0 for point in points), mean_interval(points)
        print(f"{where}: GE-ViT is ahead in {ahead} of {len(points)} pairs")
        print(f"  by {fmean(points):+.2f} points on average, 95% interval {low:+.2f} to {high:+.2f}")


if __name__ == "__main__":
    draw_pairs()
    draw_group()
    draw_lifting()
    draw_encoding()
