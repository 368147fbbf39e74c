"""Tries an installed gevit: `python smoke.py kernel`, or `no-kernel` where there was no compiler.

Only what `pip install gevit` alone brings is used; what needs more has to say so in one line.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

EXTRAS = ("matplotlib", "lightning", "PIL", "h5py", "huggingface_hub")
COMMAND = Path(sys.executable).with_name("gevit")


def main(wants_kernel: bool) -> None:
    import torch

    import gevit
    from gevit.attention import native
    from gevit.models.base import info_of

    where = Path(gevit.__file__)
    assert where.is_relative_to(sys.prefix), f"this is not the installed gevit: {where}"
    installed = [name for name in EXTRAS if importlib.util.find_spec(name)]
    assert not installed, f"not needed, and yet installed: {installed}"

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert native.is_available() is wants_kernel, native.reason() or "there is a kernel"
        model = gevit.create_model("d4_sa", preset="tiny", pretrained="eurosat")
        images = torch.rand(2, 3, 64, 64)
        normalize = info_of(model).normalize
        started = time.perf_counter()
        logits = model(normalize(images))
        seconds = time.perf_counter() - started
        turned = model(normalize(images.rot90(1, (2, 3)).flip(3)))
        assert torch.allclose(logits, turned, atol=1e-4), "it is not invariant"
        digits = gevit.create_model("r4_sa", num_classes=3)
        digits(torch.rand(2, 1, 28, 28)).sum().backward()
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            assert torch.equal(gevit.from_pretrained(folder)(images), model(images))

    assert gevit.__version__ in gevit_says("--version", code=0)
    assert "equivariance" in gevit_says("--help", code=0)
    gevit_says("equivariance", "--model", "r4_sa", "--pretrained", "--images", "1", code=0)
    gevit_says("pretrained", code=0)
    with tempfile.TemporaryDirectory() as folder:
        picture, out = Path(folder, "x.png"), Path(folder, "x.onnx")
        picture.write_bytes(b"something")
        for arguments in (
            ["train", "--data", "digits"],
            ["figures"],
            ["app"],
            ["equivariance", "--html", str(out)],
            ["equivariance", "--image", str(picture)],
            ["export", "--model", "r4_sa", "--pretrained", "--format", "onnx", "--out", str(out)],
        ):
            said = gevit_says(*arguments, code=2).strip().splitlines()
            assert len(said) == 1, said
            assert "pip install 'gevit[" in said[0], said
    print(f"gevit {gevit.__version__} works, {'with' if wants_kernel else 'without'} kernel: {1000 * seconds:.0f} ms")


def gevit_says(*arguments: str, code: int) -> str:
    # Without a kernel every command warns that it is slow, which is not what is looked at here.
    quiet = os.environ | {"PYTHONWARNINGS": "ignore"}
    answer = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, env=quiet)
    assert answer.returncode == code, f"gevit {' '.join(arguments)}: {answer.stderr}"
    assert "Traceback" not in answer.stderr, answer.stderr
    return answer.stdout if code == 0 else answer.stderr


if __name__ == "__main__":
    main({"kernel": True, "no-kernel": False}[sys.argv[1]])
