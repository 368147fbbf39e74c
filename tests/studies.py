"""Studies without their training: results of made-up numbers, and sketches instead of pictures."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from gevit.cli import main
from gevit.reproduce.budgets import config_of
from gevit.reproduce.results import result_path, settings_of, write_result
from gevit.reproduce.study import Result, Study

DRAWN = ["plot.png", "plot.svg", "table.html", "table.md", "table.tex"]


def made_up(study: Study, budget: str, folder: Path, seeds: int = 1) -> None:
    """Results of made-up numbers, all different."""
    for seed in range(seeds):
        for number, cell in enumerate(study.runs):
            config = config_of(study, budget, cell, seed)
            accuracy = 0.5 + 0.0123 * number + 0.0014 * seed
            result = Result(
                study=study.name,
                budget=budget,
                run=cell.key,
                seed=seed,
                settings=settings_of(config),
                data=config.data,
                data_note="made-up digits & more, 50% of them",
                data_digest="v2:those",
                train_images=config.limit_train or 10_000,
                valid_images=200,
                test_images=1000,
                test_accuracy=accuracy,
                valid_accuracy=accuracy + 0.003,
                best_epoch=1,
                parameters=44_428,
                equivariance_error=2e-7,
                by_angle={f"{angle:g}": accuracy * (1 - angle / 1000) for angle in study.angles},
                seconds=100.0,
                environment={"cpu": "a machine", "gevit": "0.0", "commit": "abc"},
                finished="2000-01-01T00:00:00+00:00",
                test_macro_f1=accuracy,
                orbit_accuracy=accuracy,
                confusion=[[1] * 4] * 4,
            )
            write_result(result_path(folder, cell, seed), result)


def reproduce(home: Path, *words: str) -> int:
    return main(["reproduce", *words, "--results", str(home / "results"), "--runs", str(home / "runs")])


def sketch(figure: Figure, file: str | Path | io.StringIO, **options: Any) -> None:
    """In place of a picture, which takes longer to draw than a small model to train."""
    svg = '<svg viewBox="0 0 1 1"></svg>'
    if isinstance(file, io.StringIO):
        file.write(svg)
    else:
        Path(file).write_text(svg)
