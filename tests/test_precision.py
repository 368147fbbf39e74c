"""Mixed precision in training, and models of 16 bits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gevit
from gevit.data import DataSet
from gevit.equivariance import measure
from gevit.training.config import TrainConfig
from gevit.training.loop import NonFiniteError, Run
from gevit.training.stopping import Interrupt
from tests.attention_problems import relative
from tests.running import (
    OPTIMIZERS,
    assert_same_run,
    assert_same_tensors,
    few_digits,
    last_checkpoint,
    make_run,
    rows,
)

MIXED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
HALF = [torch.bfloat16, torch.float16]
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # some processors lack it: torch does without


@pytest.fixture(scope="module")
def data() -> DataSet:
    return few_digits()


def test_another_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="precision must be one of float32, bf16-mixed, 16-mixed, got 'half'"):
        TrainConfig(precision="half")


@pytest.mark.parametrize("precision", MIXED)
@pytest.mark.parametrize("network", [{"model": "z2_cnn"}, {"model": "r4_sa", "preset": "nano", "neighborhood": 3}])
def test_products_are_of_16_bits_and_weights_of_32(
    tmp_path: Path, data: DataSet, precision: str, network: dict[str, Any]
) -> None:
    run = make_run(tmp_path, data, precision=precision, batch_size=12, **network)
    seen: set[torch.dtype] = set()

    def look(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.add(output.dtype)

    layers = run.state.model.modules()
    last = [layer for layer in layers if any(weight.ndim > 1 for weight in layer.parameters(recurse=False))][-1]
    hook = last.register_forward_hook(look)
    run.network.train()(run.batches[0][0])
    hook.remove()
    assert seen == {MIXED[precision]}
    run.fit(Interrupt())
    assert all(math.isfinite(float(row["loss"])) for row in rows(tmp_path / "steps.csv"))
    assert {tensor.dtype for tensor in run.state.model.parameters()} == {torch.float32}
    assert (run.state.scaler is not None) == (precision == "16-mixed")


@pytest.mark.parametrize("precision", MIXED)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_learns(tmp_path: Path, data: DataSet, precision: str, optimizer: str) -> None:
    run = make_run(tmp_path, data, precision=precision, optimizer=optimizer, lr=1e-3)
    before = {name: tensor.clone() for name, tensor in run.state.model.named_parameters()}
    run.fit(Interrupt())
    assert not any(torch.equal(before[name], tensor) for name, tensor in run.state.model.named_parameters())


@pytest.mark.parametrize("precision", MIXED)
def test_a_build_for_devices_that_finds_none_trains_on_the_cpu(
    tmp_path: Path, data: DataSet, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    make_run(tmp_path, data, precision=precision).fit(Interrupt())


@pytest.mark.parametrize("precision", MIXED)
def test_a_stopped_run_ends_in_the_same_bits(tmp_path: Path, data: DataSet, precision: str) -> None:
    """The scale of the loss grows and shrinks with the steps, and goes on where it was."""
    settings = {"precision": precision, "epochs": 3, "checkpoint_seconds": 0.0}

    def start(name: str) -> Run:
        run = make_run(tmp_path / name, data, **settings)
        if run.state.scaler is not None:
            run.state.scaler.set_growth_interval(2)
            run.state.scaler.set_growth_factor(3.0)  # halved as often as it grew, it is not what it was
        return run

    straight = start("straight")
    straight.fit(Interrupt())
    if straight.state.scaler is not None:
        assert last_checkpoint(tmp_path / "straight").facts["scaler"]["scale"] != 2.0**16
    interrupt = Interrupt()
    interrupt.requested = True
    with pytest.raises(KeyboardInterrupt):
        start("stopped").fit(interrupt)  # after one step
    other = make_run(tmp_path / "stopped", data, **settings)
    other.restore()
    other.fit(Interrupt())
    assert_same_run(tmp_path / "straight", tmp_path / "stopped")


def test_a_step_that_overflows_is_skipped(tmp_path: Path, data: DataSet) -> None:
    run = make_run(tmp_path, data, precision="16-mixed", epochs=1)
    steps = 0

    def overflow_once(gradient: Tensor) -> Tensor:
        nonlocal steps
        steps += 1
        return gradient * math.inf if steps == 1 else gradient

    next(run.state.model.parameters()).register_hook(overflow_once)
    before = {name: tensor.clone() for name, tensor in run.state.model.named_parameters()}
    interrupt = Interrupt()
    interrupt.requested = True
    with pytest.raises(KeyboardInterrupt):
        run.fit(interrupt)
    assert_same_tensors(before, dict(run.state.model.named_parameters()))
    assert run.state.scaler is not None
    assert run.state.scaler.get_scale() == 2.0**15
    run.fit(Interrupt())
    assert not any(torch.equal(before[name], tensor) for name, tensor in run.state.model.named_parameters())


def test_overflow_that_goes_on_stops_the_run(tmp_path: Path, data: DataSet) -> None:
    run = make_run(tmp_path, data, precision="16-mixed", epochs=9)
    assert run.state.scaler is not None
    run.state.scaler.load_state_dict({**run.state.scaler.state_dict(), "scale": 4.0})
    next(run.state.model.parameters()).register_hook(lambda gradient: gradient * math.inf)
    before = {name: tensor.clone() for name, tensor in run.state.model.named_parameters()}
    with pytest.raises(NonFiniteError, match="step 3 "):  # after scales of 4 and 2
        run.fit(Interrupt())
    assert_same_tensors(before, dict(run.state.model.named_parameters()))


@pytest.mark.parametrize("precision", MIXED)
def test_a_loss_that_is_no_number_stops_the_run(tmp_path: Path, data: DataSet, precision: str) -> None:
    run = make_run(tmp_path, data, precision=precision)
    with torch.no_grad():
        next(run.state.model.parameters()).fill_(math.nan)
    with pytest.raises(NonFiniteError, match="the loss is nan"):
        run.fit(Interrupt())


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("preset", ["rotmnist", "cifar10", "pcam", "nano", "tiny", "small"])
def test_models_of_16_bits_infer(preset: str, dtype: torch.dtype) -> None:
    """Logits as those of 32 bits, and equivariance, up to the rounding of 16 bits."""
    torch.manual_seed(0)
    model = gevit.create_model("r4_sa", preset=preset, neighborhood=3).eval()
    side = max(22, model.smallest_image)
    images = torch.randn(1, model.preset.in_channels, side, side)
    with torch.no_grad():
        _see(model, images)
        wanted = model(images)
        found = model.to(dtype)(images.to(dtype))
        assert found.dtype == dtype
        assert relative(found.float(), wanted) < 100 * torch.finfo(dtype).eps
        worst = max(error.worst for error in measure(model, images.to(dtype), model.group))
    assert worst < 100 * torch.finfo(dtype).eps


def _see(model: nn.Module, images: Tensor) -> None:
    """Give the batch norms of a new network the statistics of its images: without, its logits pass those of float16."""
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm3d):
            layer.momentum = 1.0
    model.train()(images)
    model.eval()
