"""The training loop.

Step k is a function of the state after step k-1 and of k: its batch, angles and dropout are drawn from the seed and k
alone. So a run that was killed and goes on from any checkpoint ends in the same weights, bit for bit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import math
import signal
import threading
import time
import uuid
from types import FrameType, TracebackType
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
from gevit.persistence import save
from gevit.training.batches import For, StepBatches, check_batch_size, seed_for
from gevit.training.checkpoint import RunState, newest_good_checkpoint, save_checkpoint
from gevit.training.config import TrainConfig
from gevit.training.display import Display
from gevit.training.log import Row, RunLog
from gevit.training.optimizer import learning_rate, make_optimizer
from gevit.training.run_folder import CHECKPOINTS, CONFIG, check_folder, held, write_config
from gevit.training.setup import (
    check_image_size,
    describe_model,
    make_fabric,
    make_model,
    on_every_process,
    on_first_process,
    open_data,
    take_weights,
)

# torchrun passes on the Ctrl-C that its processes had from the terminal already: so soon it is the same one.
SAME_SECONDS = 1.0
# Each process may have these in another place; all else is as the first process has it.
PLACES = ("out", "data_root")


class NonFiniteError(ArithmeticError):
    """The loss or its gradient is not a number any more."""


def train(config: TrainConfig, resume: bool = False, command: str = "") -> dict[str, Any]:
    """Train a model as `config` says; returns the facts of its report.

    Of several processes the first one decides: its settings and its checkpoint are everybody's. The others write
    nothing, so that machines need not share a disk.

    Args:
        config: the run.
        resume: go on from the newest checkpoint in `config.folder`, if there is one.
        command: what started the run, for the report.

    Raises:
        KeyboardInterrupt: after a Ctrl-C, once a checkpoint is written.
        NonFiniteError: before a step that would spoil the weights.
    """
    here = environment()  # now: by the time a long run ends, the checkout may be at another commit
    fabric = make_fabric(config)
    fabric.launch()
    own = {name: getattr(config, name) for name in PLACES}
    config = dataclasses.replace(fabric.broadcast(config), **own)
    on_first_process(fabric, lambda: check_folder(config, resume))  # before the images are read, which may take long
    data, label = on_every_process(fabric, lambda: open_data(config))
    run = Run(config, fabric, data)
    parameters = sum(parameter.numel() for parameter in run.state.model.parameters())
    run.display.say(
        f"{config.model}, preset {run.info.preset}, {parameters:,} parameters, on {label}, in {config.folder}"
    )
    with contextlib.ExitStack() as until_the_report:
        # Only now: settings that cannot be run must not touch the folder.
        on_first_process(fabric, lambda: until_the_report.enter_context(held(config, resume)))
        try:
            run.restore()
            run.note_origin(command, here)
            with Interrupt() as interrupt:
                run.fit(interrupt)
            if not fabric.is_global_zero:
                return {}
            from gevit.training.finish import finish

            return finish(config, run.info, data, label, run.state, fabric.device, run.display, run.evaluation_batch)
        except OSError as error:
            if "disk is full" in str(error) or error.errno == errno.ENOSPC:
                raise OSError(
                    f"the disk of {config.folder} is full. Nothing is lost: free some space, then {run.way_on()}"
                ) from error
            raise
        except RuntimeError as error:
            if "by peer" not in str(error):
                raise
            raise ConnectionError(
                "another process of this run failed or was killed. Nothing is lost: look for what it said, then "
                f"{run.way_on()}"
            ) from error


class Interrupt:
    """While it is entered, signals to stop set `requested`: the first lets the step end, the second does not wait.

    Signals come to the main thread; in another one there is nothing to hear.
    """

    def __init__(self) -> None:
        self.requested = False
        self._since = math.inf
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if time.monotonic() - self._since > SAME_SECONDS:
            raise KeyboardInterrupt("stopped at once; --resume goes on from the last checkpoint")
        if not self.requested:
            self.requested, self._since = True, time.monotonic()


class Run:
    """One run: its parts, and the loop over them."""

    def __init__(self, config: TrainConfig, fabric: Fabric, data: DataSet) -> None:
        self.config, self.fabric, self.data = config, fabric, data
        self.folder = config.folder
        digest = _same_everywhere(fabric, data.digest)
        check_batch_size(config.batch_size, len(data.train), fabric.world_size, config.accumulate)
        self.info = describe_model(config, data, digest)
        model = make_model(config, self.info)
        check_image_size(model, data)
        fresh = on_first_process(fabric, lambda: self._start(model))  # the others get the weights of the first
        optimizer = make_optimizer(config, model)
        self.network, self.optimizer = fabric.setup(model, optimizer)
        self.state = RunState(model, optimizer, config.ema, digest)
        self.batches = StepBatches(
            data.train,
            data.normalize,
            config.batch_size,
            config.seed,
            config.rotate,
            config.flip,
            fabric.global_rank,
            fabric.world_size,
        )
        # What fits into memory with gradients fits without.
        at_once = config.batch_size // (fabric.world_size * config.accumulate)
        self.evaluation_batch = config.eval_batch_size or at_once
        self.steps = config.epochs * self.batches.steps_per_epoch
        self.display = Display(config, self.steps, visible=fabric.is_global_zero)
        if fresh:
            self.display.say(f"not in {config.start_from}, so re-initialised: {', '.join(fresh)}")

    def _start(self, model: EquivariantModel) -> list[str]:
        """Give the weights to start from to a run that has no checkpoint yet; returns the names of the rest."""
        source = self.config.start_from
        if source is None or newest_good_checkpoint(self.folder / CHECKPOINTS)[0] is not None:
            return []
        return take_weights(model, source, self.info.preset)

    def restore(self) -> None:
        """Go on from the first process's newest whole checkpoint, if there is one."""
        checkpoint, faults = on_first_process(self.fabric, lambda: newest_good_checkpoint(self.folder / CHECKPOINTS))
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

    def note_origin(self, command: str, here: dict[str, str]) -> None:
        """Keep, for the report, what started the run and what it runs on."""
        progress = self.state.progress
        progress.command = progress.command or command
        # Earlier versions had the name of the folder at Weights & Biases.
        progress.run_id = progress.run_id or (self.folder.name if progress.step else uuid.uuid4().hex)
        if here not in progress.environments:
            progress.environments.append(here)

    def fit(self, interrupt: Interrupt) -> None:
        """Run the steps that are left, with a validation after each epoch."""
        progress, first = self.state.progress, self.fabric.is_global_zero
        if progress.step >= self.steps:
            if first:
                write_config(self.config)
            return
        done_before = progress.step
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
                if first and progress.step == done_before:  # what cannot make a step does not claim the folder
                    write_config(self.config)
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
                f"{rate:.2g}); stopped before the weights were changed. Look for bad values in the data, or try "
                f"--clip-norm 1, a smaller --lr or a longer --warmup-epochs: {self.way_on(' --clip-norm 1')}"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        if self.state.average is not None:
            self.state.average.update_parameters(self.state.model)
        return row, bool(sums[2])

    def way_on(self, flags: str = "") -> str:
        """What to do after a fault, with these flags; a run that has not made a step is none yet."""
        resumes = (self.folder / CONFIG).exists()
        return f"`gevit train --out {self.folder} --resume{flags}`" if resumes else "start again"

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
                result = evaluate(model, share, self.data.normalize, self.evaluation_batch, progress)
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
        progress, config = self.state.progress, self.config
        return RunLog(
            self.folder, progress.step, dataclasses.asdict(config), wandb_id=progress.run_id if config.wandb else ""
        )


def _same_everywhere(fabric: Fabric, digest: str) -> str:
    """The digest of the data, which must be the same on every process."""
    of_the_first = fabric.broadcast(digest)

    def check() -> None:
        if digest != of_the_first:
            raise ValueError("the images or labels here are not those of the first process; give all the same data")

    on_every_process(fabric, check)
    return digest
