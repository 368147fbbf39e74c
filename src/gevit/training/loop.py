"""The training loop.

Step k is a function of the state after step k-1 and of k: its batch, angles and dropout are drawn from the seed and k
alone. So a run that was killed and goes on from any checkpoint ends in the same weights, bit for bit. (Not with a
budget of time: there the learning rate follows the clock.)
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import math
import shlex
import sys
import time
import uuid
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from lightning.fabric import Fabric
from torch import Tensor
from torch.utils.data import DataLoader

from gevit.data import DataSet
from gevit.environment import environment
from gevit.evaluation.evaluate import evaluate
from gevit.evaluation.metrics import Evaluation, tally
from gevit.models.base import EquivariantModel, count_parameters
from gevit.persistence import WEIGHTS, save
from gevit.rendering.words import METRICS
from gevit.training import finish
from gevit.training.batches import For, check_batch_size, class_weights, seed_for
from gevit.training.checkpoint import Progress, RunState, newest_good_checkpoint, save_checkpoint
from gevit.training.config import PLACES, TrainConfig, read_yaml
from gevit.training.display import Display
from gevit.training.log import Row, RunLog
from gevit.training.optimizer import learning_rate, make_optimizer, run_length
from gevit.training.run_folder import CHECKPOINTS, CONFIG, REPORTS, check_folder, held, set_aside, write_config
from gevit.training.setup import (
    check_image_size,
    describe_model,
    loss_scaler,
    make_batches,
    make_fabric,
    make_model,
    on_every_process,
    on_first_process,
    open_data,
    same_everywhere,
    take_weights,
)
from gevit.training.stopping import Budget, Interrupt, Moment


class NonFiniteError(ArithmeticError):
    """The loss or its gradient is not a number any more."""


def train(config: TrainConfig, resume: bool = False, command: str = "", began: float | None = None) -> dict[str, Any]:
    """Train a model as `config` says; returns the facts of its report.

    Of several processes the first one decides: its settings and its checkpoint are everybody's. The others write
    nothing, so that machines need not share a disk.

    Args:
        config: the run.
        resume: go on from the newest checkpoint in `config.folder`, if there is one.
        command: what started the run, for the report.
        began: when its time began to count, by `time.monotonic()`; now if not given.

    Raises:
        KeyboardInterrupt: after a Ctrl-C, once a checkpoint is written.
        NonFiniteError: before a step that would spoil the weights.
    """
    began = time.monotonic() if began is None else began
    here = environment()  # now: by the time a long run ends, the checkout may be at another commit
    fabric = make_fabric(config)
    fabric.launch()
    own = {name: getattr(config, name) for name in PLACES}
    config = dataclasses.replace(fabric.broadcast(config), **own)
    on_first_process(fabric, lambda: check_folder(config, resume))  # before the images are read, which may take long
    data, label, origin = on_every_process(fabric, lambda: open_data(config))
    run = Run(config, fabric, data, origin, began)
    run.display.say(
        f"{config.model}, preset {run.info.preset}, {count_parameters(run.state.model):,} parameters, on {label}, "
        f"in {config.folder}"
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
            rotated = run.budget.rotated(run.state.progress)
            try:
                return finish.finish(
                    config, run.info, data, label, run.state, fabric.device, run.display, run.evaluation_batch, rotated
                )
            except KeyboardInterrupt as error:
                raise KeyboardInterrupt(f"trained, but not tested to the end; {run.way_on()} tests it") from error
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


class Run:
    """One run: its parts, and the loop over them."""

    def __init__(self, config: TrainConfig, fabric: Fabric, data: DataSet, origin: str, began: float) -> None:
        self.config, self.fabric, self.data = config, fabric, data
        self.folder = config.folder
        digest = same_everywhere(fabric, data.digest)
        check_batch_size(config.batch_size, len(data.train), fabric.world_size, config.accumulate)
        self.info = describe_model(config, data, origin)
        model = make_model(config, self.info)
        check_image_size(model, data)
        fresh = on_first_process(fabric, lambda: self._start(model))  # the others get the weights of the first
        optimizer = make_optimizer(config, model)
        self.network, self.optimizer = fabric.setup(model, optimizer)
        self.state = RunState(model, optimizer, config.ema, digest, config.select, loss_scaler(fabric))
        self.batches = make_batches(config, data.train, self.info, fabric.global_rank, fabric.world_size)
        weighted = config.balance == "weights"
        self.weights = class_weights(data.train.labels, len(data.classes)).to(fabric.device) if weighted else None
        # What fits into memory with gradients fits without.
        at_once = config.batch_size // (fabric.world_size * config.accumulate)
        self.evaluation_batch = config.eval_batch_size or at_once
        valid_images = math.ceil(len(data.valid) / fabric.world_size)
        self.budget = Budget(config.max_time, began, valid_images, *finish.images_to_test(data, model.group.order))
        self.display = Display(config, visible=fabric.is_global_zero)
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
            progress, epochs = self.state.progress, self.config.epochs
            # With a budget of time, which the schedule then follows, fewer epochs end the run where it is.
            if epochs and not self.config.max_time and progress.step > epochs * self.batches.steps_per_epoch:
                raise ValueError(
                    f"the run in {self.folder} has trained {progress.step} steps, more than --epochs {epochs} has "
                    f"({epochs * self.batches.steps_per_epoch}); give it more, or start another one with another --out"
                )
            self.budget.spent_before = progress.spent
            self.display.say(f"resuming after {self._place()}")
        elif faults:
            kept = on_first_process(self.fabric, lambda: set_aside(self.folder))
            self.display.say(
                f"warning: no checkpoint is whole; starting from the beginning. What the run had is kept in {kept}"
            )

    def note_origin(self, command: str, here: dict[str, str]) -> None:
        """Keep, for the report, what repeats the run and what it runs on."""
        progress = self.state.progress
        progress.command = self._repeating(command)
        progress.run_id = progress.run_id or uuid.uuid4().hex
        if here not in progress.environments:
            progress.environments.append(here)

    def _repeating(self, command: str) -> str:
        """The command that began the run; its file of settings once they were changed or the beginning is lost."""
        file, begun = self.folder / CONFIG, self.state.progress.command
        if not file.exists():
            return begun or command
        saved = TrainConfig(**read_yaml(file))
        is_as_begun = begun and saved == dataclasses.replace(self.config, **{n: getattr(saved, n) for n in PLACES})
        return begun if is_as_begun else f"gevit train --config {shlex.quote(str(file))} --out NEW"

    def fit(self, interrupt: Interrupt) -> None:
        """Run the steps that are left, with a validation after each epoch."""
        progress, first = self.state.progress, self.fabric.is_global_zero
        steps = self.config.epochs * self.batches.steps_per_epoch if self.config.epochs else sys.maxsize
        if self.config.max_time and not progress.evaluation_seconds:
            self._time_evaluation()
        moment = self._moment()
        if progress.step >= steps or (moment.is_last and 0 < progress.step == _validated(progress)):
            if first:
                write_config(self.config)
            if not progress.history:  # more epochs were planned, and there has been no time to validate one
                with self.display, self._open_log() if first else contextlib.nullcontext() as log:
                    self._validate_and_keep(log)
            return
        done_before = progress.step
        loader = self._loader(steps)
        self.display.go_on(progress.step, progress.best, self._length(moment))
        with self.display, self._open_log() if first else contextlib.nullcontext() as log:
            last_save = began = time.monotonic()
            for images, labels in loader:
                moment = self._moment()
                row, stop = self._step(images, labels, progress.step, moment.share, interrupt)
                if first and progress.step == done_before:  # what cannot make a step does not claim the folder
                    write_config(self.config)
                now = time.monotonic()
                self._count(row, now - began)
                self._show(row, moment, log)
                is_last = moment.is_last or progress.step == steps
                validates = is_last or (moment.may_validate and progress.step % self.batches.steps_per_epoch == 0)
                if validates:
                    self._validate_and_keep(log)
                if log is not None and (stop or validates or now - last_save >= self.config.checkpoint_seconds):
                    self._save(log)
                    last_save = now
                if stop:
                    raise self._stopped()
                if is_last:
                    break
                began = time.monotonic()
        # A request that came after the last step: what is left is the test.
        if self._total(torch.tensor(float(interrupt.requested), device=self.fabric.device)) > 0:
            raise self._stopped()

    def _loader(self, steps: int) -> DataLoader[tuple[Tensor, Tensor]]:
        """The batches of the steps that are left of so many."""
        return DataLoader(
            self.batches,
            batch_size=None,
            sampler=range(self.state.progress.step, steps),
            num_workers=self.config.workers,
            pin_memory=self.fabric.device.type == "cuda",
        )

    def _count(self, row: Row, seconds: float) -> None:
        """Count a step that was made, and took so long."""
        progress = self.state.progress
        self.budget.last_step = seconds
        row["images_per_second"] = self.batches.batch_size / seconds
        progress.step += 1
        progress.epoch_loss += row["loss"]
        progress.epoch_correct += row["accuracy"]
        progress.epoch_seconds += seconds
        progress.seconds += seconds

    def _show(self, row: Row, moment: Moment, log: RunLog | None) -> None:
        """Log a step that was made, and show it."""
        if log is not None:
            log.step(row)
        self.display.step(row, self._length(moment))
        if moment.is_last:
            self.display.say(self.budget.last_words(self.state.progress))

    def _save(self, log: RunLog) -> None:
        """Write a checkpoint, and the log up to it."""
        log.flush()
        progress = self.state.progress
        progress.spent = self.budget.spent()
        save_checkpoint(self.folder / CHECKPOINTS, progress.step, self.state.checkpoint())

    def _stopped(self) -> KeyboardInterrupt:
        return KeyboardInterrupt(f"stopped after {self._place()}, nothing is lost; go on with: {self._resuming}")

    def _place(self) -> str:
        """How far the run is, in words."""
        epochs, step = self.config.epochs, self.state.progress.step
        return f"step {step} of {epochs * self.batches.steps_per_epoch}" if epochs else f"step {step}"

    def _moment(self) -> Moment:
        """Where in its time the run is; the first process decides for all."""
        if self.config.max_time is None:
            return Moment()
        own = self.budget.moment(self.state.progress) if self.fabric.is_global_zero else (0.0, 0.0, 0.0)
        share, is_last, may_validate = self._total(torch.tensor(own, dtype=torch.float64)).tolist()
        return Moment(share, bool(is_last), bool(may_validate))

    def _time_evaluation(self) -> None:
        """Measure how long an image takes, for what the end of the run needs, until a validation tells better."""
        some = self.data.valid.subset(torch.arange(min(4 * self.evaluation_batch, len(self.data.valid))))
        seconds = []
        for _ in range(4):  # the first time takes longer, and on a busy machine any may: one hiccup is not the pace
            began = time.monotonic()
            evaluate(self.state.kept_model, some, self.info.normalize, self.evaluation_batch)
            seconds.append((time.monotonic() - began) / len(some))
        self.state.progress.evaluation_seconds = min(seconds)

    def _length(self, moment: Moment) -> int | float:
        """The steps of the whole run, as far as can be told."""
        return run_length(self.config, self.state.progress.step, self.batches.steps_per_epoch, moment.share)

    def _step(
        self,
        images: Float[Tensor, "batch channels height width"],
        labels: Int[Tensor, " batch"],
        step: int,
        share_of_time: float,
        interrupt: Interrupt,
    ) -> tuple[Row, bool]:
        """One optimizer step on this process's share of the batch; whether any process was asked to stop."""
        config = self.config
        rate = learning_rate(config, step, self.batches.steps_per_epoch, share_of_time)
        images, labels = images.to(self.fabric.device), labels.to(self.fabric.device)
        loss_sum, correct = torch.zeros((), device=images.device), torch.zeros((), device=images.device)
        self.network.train()
        self.optimizer.zero_grad()
        parts = zip(images.chunk(config.accumulate), labels.chunk(config.accumulate), strict=True)
        for part, (x, y) in enumerate(parts):
            torch.manual_seed(seed_for(config.seed, For.DROPOUT, step, part, self.fabric.global_rank))
            with self.fabric.no_backward_sync(self.network, enabled=part + 1 < config.accumulate):
                logits = self.network(x)
                loss = self._loss(logits, y)
                self.fabric.backward(loss * (len(x) / len(images)))
            loss_sum += loss.detach() * len(x)
            correct += (logits.argmax(dim=1) == y).sum()
        stop = torch.tensor(float(interrupt.requested), device=images.device)
        sums = self._total(torch.stack([loss_sum, correct, stop])).tolist()
        clip: Any = {"max_norm": config.clip_norm or math.inf, "error_if_nonfinite": False}
        norm = float(self.fabric.clip_gradients(self.network, self.optimizer, **clip))  # type: ignore[arg-type]
        row = {
            "step": step + 1,
            "epoch": step // self.batches.steps_per_epoch + 1,
            "lr": rate,
            "loss": sums[0] / self.batches.batch_size,
            "accuracy": sums[1] / self.batches.batch_size,
            "gradient_norm": norm,
        }
        if not (math.isfinite(row["loss"]) and (math.isfinite(norm) or self._may_skip())):
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

    def _may_skip(self) -> bool:
        """Whether a step whose gradient overflows is left out: until scaling the loss down has had its chance."""
        scaler = self.state.scaler
        return scaler is not None and scaler.get_scale() > 1

    def _loss(self, logits: Float[Tensor, "part classes"], labels: Int[Tensor, " part"]) -> Float[Tensor, ""]:
        """The mean over images; where they are weighted, by the number of images, so that parts of a batch add up."""
        if self.weights is None:
            return F.cross_entropy(logits, labels, label_smoothing=self.config.label_smoothing)
        losses = F.cross_entropy(logits, labels, label_smoothing=self.config.label_smoothing, reduction="none")
        return (self.weights[labels] * losses).mean()

    def way_on(self, flags: str = "") -> str:
        """What to do after a fault, with these flags; a run that has not made a step is none yet."""
        resumes = (self.folder / CONFIG).exists()
        return f"`{self._resuming}{flags}`" if resumes else "start again"

    @property
    def _resuming(self) -> str:
        return f"gevit train --out {shlex.quote(str(self.folder))} --resume"

    def _validate_and_keep(self, log: RunLog | None) -> None:
        """After an epoch, or what there was time for of it."""
        progress, steps_per_epoch = self.state.progress, self.batches.steps_per_epoch
        steps = progress.step - _validated(progress)
        began = time.monotonic()
        valid = self._validate()
        validation_seconds = time.monotonic() - began
        progress.seconds += validation_seconds
        progress.evaluation_seconds = validation_seconds / self.budget.valid_images
        epochs, rest = divmod(progress.step, steps_per_epoch)
        summary = {
            "epoch": progress.step / steps_per_epoch if rest else epochs,
            "step": progress.step,
            "lr": self.optimizer.param_groups[0]["lr"],
            "train_loss": progress.epoch_loss / steps,
            "train_accuracy": progress.epoch_correct / steps,
            **{f"valid_{name}": getattr(valid, name) for name in METRICS},
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

    def _validate(self) -> Evaluation:
        """Score the kept model on the validation images, shared out among the processes."""
        rank, world = self.fabric.global_rank, self.fabric.world_size
        share = self.data.valid.subset(torch.arange(rank, len(self.data.valid), world))
        model = self.state.kept_model.eval()
        classes = len(self.data.classes)
        loss, confusion = torch.zeros(1, dtype=torch.float64), torch.zeros(classes, classes, dtype=torch.int64)
        if len(share):  # there may be fewer images than processes
            progress = self.display.validation(len(share))
            result = evaluate(model, share, self.info.normalize, self.evaluation_batch, progress)
            loss, confusion = loss + result.loss * result.n, torch.tensor(result.confusion)
        return tally(self._total(confusion), float(self._total(loss)) / len(self.data.valid))

    def _total(self, values: Tensor) -> Tensor:
        if self.fabric.world_size == 1:
            return values
        total: Tensor = self.fabric.all_reduce(values, reduce_op="sum")  # type: ignore[assignment]
        return total

    def _save_best(self) -> None:
        best = self.state.progress.best
        info = dataclasses.replace(self.info, trained={**self.info.trained, "seed": self.config.seed, **(best or {})})
        model = self.state.kept_model
        for name in REPORTS:  # of the weights of before, where a finished run goes on
            (self.folder / name).unlink(missing_ok=True)
        save(model, info, self.folder / WEIGHTS)

    def _open_log(self) -> RunLog:
        progress, config = self.state.progress, self.config
        return RunLog(
            self.folder, progress.step, dataclasses.asdict(config), wandb_id=progress.run_id if config.wandb else ""
        )


def _validated(progress: Progress) -> int:
    """The step after which the last validation was."""
    return int(progress.history[-1]["step"]) if progress.history else 0
