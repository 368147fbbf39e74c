"""How the weights move: the optimizer, Muon among them, and the learning rate as a function of the step (or the time).

Muon is momentum whose matrices are made orthogonal before they are applied. The maps of an attention layer (query,
key, value, out) have gradients of a few dominant directions; Adam follows those and learns the others slowly. Muon
(K. Jordan and others, 2024) replaces the momentum of a matrix, U S V^T, by U V^T, so that all directions learn alike,
from fewer images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.adamw import adamw

from gevit.group_conv import GroupConv
from gevit.models.base import EquivariantModel
from gevit.training.config import TrainConfig

# A quintic that draws singular values in (0, 1] to about 1: fast rather than exact, 0.7 to 1.2 is as good.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
ITERATIONS = 6

MAPS = (nn.Linear, nn.Conv2d, GroupConv)

# The rest moves by Adam, in steps of this share of the learning rate.
ADAM_SHARE, ADAM_BETA, ADAM_EPS = 0.25, 0.999, 1e-8

# A one-cycle run starts and ends at these fractions of its peak.
ONE_CYCLE_START, ONE_CYCLE_END = 1 / 25, 1 / 10_000


def make_optimizer(config: TrainConfig, model: EquivariantModel) -> Optimizer:
    """The optimizer; its learning rate is set at every step."""
    if config.optimizer == "sgd":
        return SGD(model.parameters(), config.peak_lr, momentum=config.momentum, weight_decay=config.weight_decay)
    if config.optimizer == "muon":
        return Muon(*hidden_matrices(model), config.peak_lr, config.momentum, config.weight_decay)
    kind: type[Adam] = {"adam": Adam, "adamw": AdamW}[config.optimizer]
    fused = config.precision != "16-mixed"  # a fused one takes scaled gradients, which cannot be clipped
    return kind(model.parameters(), config.peak_lr, weight_decay=config.weight_decay, fused=fused)


class Muon(Optimizer):
    """Muon for the matrices inside a network, AdamW for everything else.

    torch.optim.Muon takes matrices alone and works in bfloat16, which some CPUs announce and cannot run.

    Args:
        matrices: the weights of maps between hidden layers; the axes of a filter after the first count as one.
        others: everything else: biases, norms, tables of vectors, the last map.
        lr: the spectral norm of a matrix's step (times the square root of rows / columns, where there are more rows);
            a quarter of it is Adam's learning rate for the others.
        momentum: of the gradient; applied to matrices as Nesterov does.
        weight_decay: share of the weights taken off at each step, times the learning rate.
    """

    def __init__(
        self,
        matrices: Sequence[nn.Parameter],
        others: Sequence[nn.Parameter],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
    ) -> None:
        groups = [
            # "fused" has the counted steps, which a fused operator reads, loaded to the device of their parameter.
            {"params": list(parameters), "orthogonal": orthogonal, "fused": not orthogonal}
            for parameters, orthogonal in ((matrices, True), (others, False))
            if parameters
        ]
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        for group in self.param_groups:
            moving = [parameter for parameter in group["params"] if parameter.grad is not None]
            move = self._move_orthogonally if group["orthogonal"] else self._move_by_adam
            move(moving, group["lr"], group["momentum"], group["weight_decay"])

    def _move_orthogonally(
        self, parameters: list[nn.Parameter], lr: float, momentum: float, weight_decay: float
    ) -> None:
        for shape in dict.fromkeys(parameter.shape for parameter in parameters):
            alike = [parameter for parameter in parameters if parameter.shape == shape]
            gradients = torch.stack([_gradient(parameter) for parameter in alike])
            buffers = [self._moment(parameter, "momentum_buffer") for parameter in alike]
            for buffer, gradient in zip(buffers, gradients, strict=True):
                buffer.mul_(momentum).add_(gradient)
            moments = (gradients + momentum * torch.stack(buffers)).flatten(2)
            rows, columns = moments.shape[1:]
            directions = orthogonalized(moments) * math.sqrt(max(1.0, rows / columns))
            for parameter, direction in zip(alike, directions.view_as(gradients), strict=True):
                parameter.mul_(1 - lr * weight_decay).sub_(direction, alpha=lr)

    def _move_by_adam(self, parameters: list[nn.Parameter], lr: float, momentum: float, weight_decay: float) -> None:
        adamw(
            list(parameters),
            [_gradient(parameter) for parameter in parameters],
            [self._moment(parameter, "exp_avg") for parameter in parameters],
            [self._moment(parameter, "exp_avg_sq") for parameter in parameters],
            [],
            [self._steps(parameter) for parameter in parameters],
            fused=True,  # there are many, and small: one by one, calls would take most of the time
            amsgrad=False,
            beta1=momentum,
            beta2=ADAM_BETA,
            lr=lr * ADAM_SHARE,
            weight_decay=weight_decay,
            eps=ADAM_EPS,
            maximize=False,
        )

    def _steps(self, parameter: Tensor) -> Tensor:
        steps: Tensor = self.state[parameter].setdefault("step", torch.zeros((), device=parameter.device))
        return steps

    def _moment(self, parameter: Tensor, name: str) -> Tensor:
        moment: Tensor = self.state[parameter].setdefault(name, torch.zeros_like(parameter))
        return moment


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def hidden_matrices(model: EquivariantModel) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The weights of linear maps and convolutions between hidden layers, and all other parameters.

    The map to the classes and the vectors of group elements, which are a table and no map, are left to Adam.

    >>> from gevit import create_model
    >>> matrices, others = hidden_matrices(create_model("r4_sa"))
    >>> len(matrices), len(others)
    (43, 145)
    """
    last = model.body["classes"]
    maps = [module for module in model.modules() if isinstance(module, MAPS) and module is not last]
    maps = [module for module in maps if getattr(module, "groups", 1) == 1]  # others act on each channel alone
    chosen = {id(module.weight) for module in maps if min(module.weight.flatten(1).shape) > 1}
    parameters = list(model.parameters())
    return [p for p in parameters if id(p) in chosen], [p for p in parameters if id(p) not in chosen]


def orthogonalized(matrices: Float[Tensor, "*batch rows columns"]) -> Float[Tensor, "*batch rows columns"]:
    """U V^T, nearly, of matrices U S V^T, by Newton and Schulz's iteration: products alone, no decomposition.

    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch...>
    >>> values = torch.linalg.svdvals(orthogonalized(torch.randn(3, 20, 90)))
    >>> bool((values > 0.6).all() and (values < 1.3).all())
    True
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    x: Tensor = matrices.mT if tall else matrices
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    a, b, c = NEWTON_SCHULZ
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


def run_length(config: TrainConfig, step: int, steps_per_epoch: int, share_of_time: float = 0.0) -> int | float:
    """How many steps a run has: those of its epochs, or as many as its time has room for at its pace so far.

    >>> run_length(TrainConfig(epochs=5), 30, 10), run_length(TrainConfig(epochs=5, max_time=60.0), 20, 10, 0.5)
    (50, 40.0)
    """
    planned = config.epochs * steps_per_epoch if config.epochs else math.inf
    return min(planned, step / share_of_time) if share_of_time else planned


def learning_rate(config: TrainConfig, step: int, steps_per_epoch: int, share_of_time: float = 0.0) -> float:
    """Learning rate of a step, counted from 0, when a share of the time that the run has is over.

    `constant`: the peak throughout; `cosine`: half a cosine from the peak to 0; `one_cycle`: half a cosine up, half a
    cosine down to (nearly) 0; `trapezoid`: the peak, then a straight fall to 0 in the last `cooldown_epochs`, so that a
    run may be made longer or ended early and lose nothing. All rise linearly for `warmup_epochs` first, except
    `one_cycle`, which rises by its half cosine for `warmup_epochs`, or 0.3 of the run if that is 0.
    Where the time ends before the epochs do, the course is that of a run of as many steps as there is time for; the
    warm-up and cool-down shrink with the epochs that were planned, or so far that both find room.

    >>> config = TrainConfig(lr=1.0, epochs=10, schedule="cosine", warmup_epochs=2.0)
    >>> [round(learning_rate(config, step, 10), 3) for step in (0, 10, 20, 60, 99)]
    [0.05, 0.55, 1.0, 0.5, 0.0]
    """
    total = run_length(config, step, steps_per_epoch, share_of_time)
    epoch = total / config.epochs if config.epochs else steps_per_epoch
    if (edges := (config.warmup_epochs + config.cooldown_epochs) * epoch) > total:
        epoch *= total / edges
    warmup, cooldown = config.warmup_epochs * epoch, config.cooldown_epochs * epoch
    if config.schedule == "one_cycle":
        warmup = warmup or 0.3 * total
        if step < warmup:
            return config.peak_lr * _between(ONE_CYCLE_START, 1.0, step / warmup)
        return config.peak_lr * _between(1.0, ONE_CYCLE_END, _part(step - warmup, total - warmup))
    if step < warmup:
        return config.peak_lr * min(1.0, (step + 1) / warmup)
    if config.schedule == "cosine":
        return config.peak_lr * _between(1.0, 0.0, _part(step - warmup, total - warmup))
    if config.schedule == "trapezoid" and config.cooldown_epochs:
        return config.peak_lr * min(1.0, (total - step) / cooldown) if cooldown else 0.0
    return config.peak_lr


def _part(done: int | float, whole: int | float) -> float:
    """How much of a period is over; one of no length is."""
    return done / whole if whole > 0 else 1.0


def _between(start: float, end: float, fraction: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * fraction)) / 2
