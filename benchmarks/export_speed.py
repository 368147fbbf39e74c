"""Exported models beside PyTorch: time of an image in evaluation, and of the export itself.

    OMP_NUM_THREADS=1 python -m benchmarks.export_speed

Rounds of all ways alternate, and the fastest round of each counts. onnxruntime has as many threads as PyTorch.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import onnx
import onnxruntime
import torch
from torch import Tensor

import gevit
from gevit.environment import cpu_model
from gevit.export import export

MODELS = (("d4_sa", "rotmnist", None), ("r4_sa", "rotmnist", None), ("d4_sa", "tiny", "eurosat"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    versions = f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}"
    print(f"{cpu_model()}, {torch.get_num_threads()} thread(s), {versions}")
    print("| model | ms an image: kernel | factored | onnxruntime | seconds to export | operators | MB |")
    print("|---|---|---|---|---|---|---|")
    for name, preset, data in MODELS:
        print(
            f"| `{name}`, `{preset}` |", " | ".join(row(name, preset, data, args.batch, args.rounds)), "|", flush=True
        )


@torch.no_grad()
def row(name: str, preset: str, data: str | None, batch: int, rounds: int) -> list[str]:
    kernel, factored = (
        gevit.create_model(name, preset=preset, pretrained=data or True, backend=backend).eval()
        for backend in ("auto", "factored")
    )
    images = torch.randn(batch, kernel.preset.in_channels, *2 * [kernel.describe().image_size])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        started = time.perf_counter()
        export(kernel, path)
        seconds = time.perf_counter() - started
        ways: dict[str, Callable[[Tensor], object]] = {
            "kernel": kernel,
            "factored": factored,
            "onnxruntime": session(path),
        }
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(rounds):
            for way, model in ways.items():
                best[way] = min(best[way], once(model, images))
        return [*(f"{1000 * best[way] / batch:.1f}" for way in ways), f"{seconds:.0f}", *size(path)]


def session(path: Path) -> Callable[[Tensor], object]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    loaded = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda images: loaded.run(None, {"images": images.numpy()})


def once(model: Callable[[Tensor], object], images: Tensor) -> float:
    started = time.perf_counter()
    model(images)
    return time.perf_counter() - started


def size(path: Path) -> tuple[str, str]:
    return str(len(onnx.load(path).graph.node)), f"{path.stat().st_size / 2**20:.1f}"


if __name__ == "__main__":
    main()
