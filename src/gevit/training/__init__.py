"""Training: one deterministic loop on Lightning Fabric, resumable at any step, bit for bit."""

from gevit.training.config import TrainConfig

__all__ = ["TrainConfig", "train"]


def __getattr__(name: str) -> object:
    if name == "train":  # loads torch and Lightning
        from gevit.training.loop import train

        return train
    raise AttributeError(f"module 'gevit.training' has no attribute {name!r}")
