"""The notebooks run from top to bottom, and what they hold was made by running them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from tests.outside import reference

# The same cells, with fewer images to train and test on.
QUICKER = {
    "limit_train=1000": "limit_train=32",
    "limit_test=200": "limit_test=4, limit_valid=4",
    "limit_train=200": "limit_train=32",
    "limit_valid=100": "limit_valid=4",
    "limit_test=300": "limit_test=4",
    "- 1, 200)": "- 1, 8)",
    "epochs=6": "epochs=1",
    "epochs=3": "epochs=1",
    "[:100]": "[:4]",
    "arange(100)": "arange(4)",
}
NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


def code_cells(notebook: Path) -> list[dict[str, Any]]:
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
@pytest.mark.usefixtures("unchecked_shapes")
def test_it_runs(notebook: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if notebook.stem == "real_images" and "GEVIT_DATA" not in os.environ:
        monkeypatch.setenv("GEVIT_DATA", str(reference("data", "eurosat").parent))
    matplotlib.use("Agg")
    names: dict[str, object] = {}
    for cell in code_cells(notebook):
        source = "".join(cell["source"])
        for slow, quick in QUICKER.items():
            source = source.replace(slow, quick)
        exec(compile(source, notebook.name, "exec"), names)
    assert capsys.readouterr().out


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_its_outputs_are_those_of_one_run(notebook: Path) -> None:
    cells = code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert not any(output["output_type"] == "error" for cell in cells for output in cell["outputs"])
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell["outputs"])
