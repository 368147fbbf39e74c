"""The training loop.

Step k is a function of the state after step k-1 and of k: its batch, angles and dropout are drawn from the seed and k
alone. So a run that was killed and goes on from any checkpoint ends in the same weights, bit for bit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.utils.data import DataLoader

from gevit.data import DataSet
from gevit.environment import environment
from gevit.evaluation.evaluate import evaluate
from gevit.models.base import EquivariantModel
from gevit.models.info import ModelInfo
from gevit.persistence import save
from gevit.training.batches import StepBatches
from gevit.training.checkpoint import newest_good_checkpoint, save_checkpoint
from gevit.training.config import TrainConfig
from gevit.training.display import Display
from gevit.training.folder import CHECKPOINTS, check_folder, claim_folder, held
from gevit.training.interrupt import Interrupt
from gevit.training.log import Row, RunLog
from gevit.training.randomness import For, seed_for
from gevit.training.schedule import learning_rate
from gevit.training.setup import describe_model, make_fabric, make_model, make_optimizer, open_data, take_weights
from gevit.training.state import RunState


class NonFiniteError(ArithmeticError):
    """The loss or its gradient is not a number any more."""


def train(config: TrainConfig, resume: bool = False, command: str = "") -> dict[str, Any]:
    """Train a model as `config` says; returns the facts of its report.

    Args:
        config: the run.
        resume: go on from the newest checkpoint in `config.folder`, if there is one.
        command: what started the run, for the report.

    Raises:
        KeyboardInterrupt: after a Ctrl-C, once a checkpoint is written.
        NonFiniteError: before a step that would spoil the weights.
    """
    here = environment()  # now: by the time a long run ends, the checkout may be at another commit
    check_folder(config, resume)
    fabric = make_fabric(config)
    fabric.launch()
    data = open_data(config)
    run = Run(config, fabric, data)
    with contextlib.ExitStack() as claim, Interrupt() as interrupt:
        # Only now: settings that cannot be run must not become those of the folder.
        _on_first_process(fabric, lambda: claim.enter_context(held(config.folder)))
        _on_first_process(fabric, lambda: claim_folder(config))
        try:
            run.restore()
            run.note_origin(command, here)
            run.fit(interrupt)
        except OSError as error:
            if "disk is full" in str(error) or error.errno == errno.ENOSPC:
                raise OSError(
                    f"the disk of {config.folder} is full. Nothing is lost: free some space, then "
                    f"`gevit train --out {config.folder} --resume`"
                ) from error
            raise
        except RuntimeError as error:
            if "by peer" not in str(error):
                raise
            raise ConnectionError(
                "another process of this run failed or was killed. Nothing is lost: look for what it said, then "
                f"`gevit train --out {config.folder} --resume`"
            ) from error
    if not fabric.is_global_zero:
        return {}
    from gevit.training.finish import finish

    return finish(config, run.info, data, run.state, fabric.device, run.display)


class Run:
    """One run: its parts, and the loop over them."""

    def __init__(self, config: TrainConfig, fabric: Fabric, data: DataSet) -> None:
        self.config, self.fabric, self.data = config, fabric, data
        self.info: ModelInfo = describe_model(config, data)
        self.folder: Path = config.folder
        model = make_model(config, self.info)
        anew = self._start(model)
        optimizer = make_optimizer(config, model)
        self.network, self.optimizer = fabric.setup(model, optimizer)
        self.state = RunState(model, optimizer, config.ema, data.digest)
        self.batches = StepBatches(
            data.train,
            data.normalize,
            _batch_size(config, len(data.train), fabric.world_size),
            config.seed,
            config.rotate,
            config.flip,
            fabric.global_rank,
            fabric.world_size,
        )
        self.steps = config.epochs * self.batches.steps_per_epoch
        self.display = Display(config, self.steps, visible=fabric.is_global_zero)
        if anew:
            self.display.say(f"not in {config.start_from}, so begun anew: {', '.join(anew)}")

    def _start(self, model: EquivariantModel) -> list[str]:
        """Give the weights to start from to a run that has no checkpoint yet; returns the names of the rest."""
        source = self.config.start_from
        if source is None or newest_good_checkpoint(self.folder / CHECKPOINTS)[0] is not None:
            return []
        return take_weights(model, source, self.info.preset)

    def note_origin(self, command: str, here: dict[str, str]) -> None:
        """Keep, for the report, what started the run and what it runs on."""
        progress = self.state.progress
        progress.command = progress.command or command
        if here not in progress.environments:
            progress.environments.append(here)

    def restore(self) -> None:
        """Go on from the newest whole checkpoint, if there is one."""
        checkpoint, faults = newest_good_checkpoint(self.folder / CHECKPOINTS)
        for fault in faults:
            self.display.say(f"warning: {fault}")
        if checkpoint is not None:
            try:
                self.state.restore(checkpoint)
            except ValueError as error:
                raise ValueError(
                    f"the checkpoints in {self.folder} do not fit: {error}. Give the run back what it had, or start "
                    "another one with another --out"
                ) from error
            self.display.say(f"resuming after step {self.state.progress.step} of {self.steps}")
        elif faults:
            self.display.say("warning: no checkpoint is whole; starting from the beginning")

    def fit(self, interrupt: Interrupt) -> None:
        """Run the steps that are left, with a validation after each epoch."""
        progress, first = self.state.progress, self.fabric.is_global_zero
        if progress.step >= self.steps:
            return
        loader = DataLoader(
            self.batches,
            batch_size=None,
            sampler=range(progress.step, self.steps),
            num_workers=self.config.workers,
            pin_memory=self.fabric.device.type == "cuda",
        )
        self.display.go_on(progress.step, progress.best)
        with self.display, self._open_log() if first else contextlib.nullcontext() as log:
            last_save = began = time.monotonic()
            for images, labels in loader:
                row, stop = self._step(images, labels, progress.step, interrupt)
                now = time.monotonic()
                row["images_per_second"] = self.batches.batch_size / (now - began)
                progress.step += 1
                progress.epoch_loss += row["loss"]
                progress.epoch_correct += row["accuracy"]
                progress.epoch_seconds += now - began
                progress.seconds += now - began
                if log is not None:
                    log.step(row)
                self.display.step(row)
                epoch_ends = progress.step % self.batches.steps_per_epoch == 0
                if epoch_ends:
                    self._end_epoch(row, log)
                if log is not None and (stop or epoch_ends or now - last_save >= self.config.checkpoint_seconds):
                    log.flush()
                    save_checkpoint(self.folder / CHECKPOINTS, progress.step, self.state.checkpoint())
                    last_save = now
                if stop:
                    raise self._stopped()
                began = time.monotonic()
        # A request that came after the last step: what is left is the test.
        if self._total(torch.tensor(float(interrupt.requested), device=self.fabric.device)) > 0:
            raise self._stopped()

    def _stopped(self) -> KeyboardInterrupt:
        return KeyboardInterrupt(
            f"stopped after step {self.state.progress.step} of {self.steps}, nothing is lost; "
            f"go on with: gevit train --out {self.folder} --resume"
        )

    def _step(
        self,
        images: Float[Tensor, "batch channels height width"],
        labels: Int[Tensor, " batch"],
        step: int,
        interrupt: Interrupt,
    ) -> tuple[Row, bool]:
        """One optimizer step on this process's share of the batch; whether any process was asked to stop."""
        config, rate = self.config, learning_rate(self.config, step, self.batches.steps_per_epoch)
        images, labels = images.to(self.fabric.device), labels.to(self.fabric.device)
        loss_sum, correct = torch.zeros((), device=images.device), torch.zeros((), device=images.device)
        self.network.train()
        self.optimizer.zero_grad()
        parts = zip(images.chunk(config.accumulate), labels.chunk(config.accumulate), strict=True)
        for part, (x, y) in enumerate(parts):
            torch.manual_seed(seed_for(config.seed, For.DROPOUT, step, part, self.fabric.global_rank))
            with self.fabric.no_backward_sync(self.network, enabled=part + 1 < config.accumulate):
                logits = self.network(x)
                loss = F.cross_entropy(logits, y, label_smoothing=config.label_smoothing)
                self.fabric.backward(loss * (len(x) / len(images)))
            loss_sum += loss.detach() * len(x)
            correct += (logits.argmax(dim=1) == y).sum()
        stop = torch.tensor(float(interrupt.requested), device=images.device)
        sums = self._total(torch.stack([loss_sum, correct, stop])).tolist()
        norm = float(nn.utils.clip_grad_norm_(self.state.model.parameters(), config.clip_norm or math.inf))
        row = {
            "step": step + 1,
            "epoch": step // self.batches.steps_per_epoch + 1,
            "lr": rate,
            "loss": sums[0] / self.batches.batch_size,
            "accuracy": sums[1] / self.batches.batch_size,
            "gradient_norm": norm,
        }
        if not (math.isfinite(row["loss"]) and math.isfinite(norm)):
            raise NonFiniteError(
                f"the loss is {row['loss']} and the norm of its gradient {norm} at step {step + 1} (learning rate "
                f"{rate:.2g}); stopped before the weights were changed. Try a smaller --lr, --clip-norm 1, a longer "
                f"--warmup-epochs, or look for bad values in the data; the last checkpoint is in {self.folder}"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        if self.state.average is not None:
            self.state.average.update_parameters(self.state.model)
        return row, bool(sums[2])

    def _end_epoch(self, row: Row, log: RunLog | None) -> None:
        progress, steps = self.state.progress, self.batches.steps_per_epoch
        began = time.monotonic()
        loss, accuracy = self._validate()
        validation_seconds = time.monotonic() - began
        progress.seconds += validation_seconds
        summary = {
            "epoch": row["epoch"],
            "step": row["step"],
            "lr": row["lr"],
            "train_loss": progress.epoch_loss / steps,
            "train_accuracy": progress.epoch_correct / steps,
            "valid_loss": loss,
            "valid_accuracy": accuracy,
            "seconds": progress.epoch_seconds + validation_seconds,
            "images_per_second": steps * self.batches.batch_size / progress.epoch_seconds,
        }
        progress.history.append(summary)
        progress.epoch_loss = progress.epoch_correct = progress.epoch_seconds = 0.0
        is_best = self.state.keep_best(summary)
        if log is not None:
            if is_best:
                self._save_best()
            log.epoch(progress.history)
        assert progress.best is not None
        self.display.epoch(summary, progress.best, is_best)

    def _validate(self) -> tuple[float, float]:
        """Loss and accuracy on the validation images, shared out among the processes."""
        rank, world = self.fabric.global_rank, self.fabric.world_size
        share = self.data.valid.subset(torch.arange(rank, len(self.data.valid), world))
        model = self.state.kept_model.eval()
        sums = torch.zeros(2)
        if len(share):  # there may be fewer images than processes
            with self.display.validation(len(share)) as progress:
                result = evaluate(model, share, self.data.normalize, progress=progress)
            sums = torch.tensor([result.loss * result.n, result.accuracy * result.n])
        loss, accuracy = (self._total(sums) / len(self.data.valid)).tolist()
        return loss, accuracy

    def _total(self, values: Tensor) -> Tensor:
        if self.fabric.world_size == 1:
            return values
        total: Tensor = self.fabric.all_reduce(values, reduce_op="sum")  # type: ignore[assignment]
        return total

    def _save_best(self) -> None:
        best = self.state.progress.best
        info = dataclasses.replace(self.info, trained={**self.info.trained, "seed": self.config.seed, **(best or {})})
        model = self.state.kept_model
        save(model, info, self.folder / "model.safetensors")

    def _open_log(self) -> RunLog:
        config = dataclasses.asdict(self.config)
        return RunLog(self.folder, self.folder.name, config, self.state.progress.step, self.config.wandb)


def _batch_size(config: TrainConfig, images: int, world_size: int) -> int:
    size, parts = config.batch_size, world_size * config.accumulate
    if size > images:
        raise ValueError(f"batch_size is {size}, but there are only {images} training images")
    if size % parts:
        raise ValueError(
            f"batch_size must be a multiple of processes x accumulate = {world_size} x {config.accumulate}, got {size}"
        )
    return size


def _on_first_process(fabric: Fabric, action: Callable[[], object]) -> None:
    """Do it on the first process; if it fails there, fail everywhere, so that none waits for the others."""
    error: Exception | None = None
    if fabric.is_global_zero:
        try:
            action()
        except (OSError, ValueError) as caught:
            error = caught
    message = fabric.broadcast(str(error) if error else "")
    if error is not None:
        raise error
    if message:
        raise ValueError(message)
