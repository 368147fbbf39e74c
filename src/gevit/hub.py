"""Models on the Hugging Face hub, and in folders as the hub has them.

Such a folder has `model.safetensors` and `config.json`, the two files of `gevit.save` under the names that the hub
wants, and a model card, `README.md`. Nothing is pickled. Folders need no other package; the hub itself needs
huggingface_hub (`pip install 'gevit[hub]'`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gevit.environment import needs
from gevit.files import write_aside
from gevit.model_card import CARD, model_card
from gevit.models.base import EquivariantModel
from gevit.persistence import HUB_CONFIG, WEIGHTS, load, save_pair


def save_pretrained(model: EquivariantModel, folder: str | Path) -> None:
    """Write `config.json`, `model.safetensors` and `README.md`, a model card.

    The card tells what the report of a training run, or the card of shipped weights, tells of the model, as long as it
    is the one that was loaded from there. A `README.md` that is in the folder already stays as it is.

    Args:
        model: from `gevit.load`, `gevit.create_model` or `from_pretrained`.
        folder: the folder to write; created if needed. The folder of a run of another model is refused.

    >>> import tempfile, gevit
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     gevit.create_model("r4_sa", num_classes=3).save_pretrained(folder)
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['README.md', 'config.json', 'model.safetensors']
    """
    folder, info = Path(folder), model.describe()
    described = (folder / WEIGHTS).with_suffix(".json")
    if described.exists() and described.read_bytes() != info.to_json().encode():
        raise ValueError(  # where there are both, `load` takes this one instead of config.json
            f"{folder} has another model already, {WEIGHTS} and {described.name}; name another folder"
        )
    card = model_card(model)
    save_pair(model, info, folder / WEIGHTS, folder / HUB_CONFIG)
    if not (folder / CARD).exists():
        with write_aside(folder / CARD) as aside:
            aside.write_text(card, encoding="utf-8", errors="backslashreplace")


def from_pretrained(
    source: str | Path,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    force_download: bool = False,
    local_files_only: bool = False,
    backend: str = "auto",
) -> EquivariantModel:
    """Read a model that `save_pretrained` wrote or `push_to_hub` uploaded, in evaluation mode, with its `info`.

    Args:
        source: a folder, or the name of a repository on the hub, such as `"you/your-model"`.
        revision: branch, tag or commit of the repository.
        token: for private repositories; that of `hf auth login` if not given.
        cache_dir: where downloads are kept.
        force_download: download again what is there.
        local_files_only: take what was downloaded before, and do not look for anything newer.
        backend: how attention is computed, see `gevit.attention`.
    """
    if Path(source).is_dir():
        return load(source, backend)
    with needs("huggingface_hub", "hub"):
        from huggingface_hub import snapshot_download
    try:
        folder = snapshot_download(
            str(source),
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            force_download=force_download,
            local_files_only=local_files_only,
            allow_patterns=[HUB_CONFIG, WEIGHTS, CARD],
        )
    except (OSError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(f"there is no folder {source}, and the hub does not give it: {reason}") from error
    return load(folder, backend)


def push_to_hub(model: EquivariantModel, repo_id: str, **options: Any) -> str:
    """Upload what `save_pretrained` writes to a repository on the hub, which is made if need be; returns its address.

    Args:
        model: from `gevit.load`, `gevit.create_model` or `from_pretrained`.
        repo_id: such as `"you/your-model"`.
        options: `private`, `token`, `commit_message`, `branch`, `create_pr` and others of
            `huggingface_hub.ModelHubMixin.push_to_hub`.
    """
    with needs("huggingface_hub", "hub"):
        from huggingface_hub import ModelHubMixin

    class Upload(ModelHubMixin):
        def save_pretrained(self, save_directory: str | Path, **_: Any) -> None:
            save_pretrained(model, save_directory)

    address: str = Upload().push_to_hub(repo_id, **options)
    return address
