from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import gevit
from gevit.equivariance import assert_equivariant
from gevit.layers import MaxPool
from gevit.models import EquivariantModel, GroupTransformer, official
from tests.outside import reference

FILES = {
    "ge_se2_1_rot_5": ("z2_sa", "ge"),
    "ge_se2_4_rot_5": ("r4_sa", "ge"),
    "ge_e2_2_rot_5": ("d1_sa", "ge"),
    "gsa_se2_4_rot_5": ("r4_sa", "gsa"),
}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("backend", ["reference", "factored", "auto"])
def test_logits_of_the_authors(file: str, backend: str) -> None:
    path = reference("golden", f"{file}.safetensors")
    name, encoding = FILES[file]
    model = official.load(path, name, "rotmnist", 5, encoding)
    for module in model.modules():
        if isinstance(module, (gevit.LiftingAttention, gevit.GroupAttention)):
            module.backend = backend
    golden = load_file(path)
    with torch.no_grad():
        logits = model(golden["x"])
    assert (logits - golden["logits"]).abs().max() <= 1e-5 * golden["logits"].abs().max()


def authors_state(model: EquivariantModel) -> dict[str, Tensor]:
    """The weights of a model under the authors' names, with the trailing ones of their convolutions."""
    assert isinstance(model, GroupTransformer)
    state = {}
    for key, parameter in official._layout(model).items():
        is_map = parameter.ndim == 2 and not key.endswith("group_embedding.weight")
        state[key] = parameter.detach().clone()[(..., *[None] * 3)] if is_map else parameter.detach().clone()
    return state


@pytest.mark.parametrize("preset", ["rotmnist", "cifar10", "pcam"])
@pytest.mark.parametrize("name", ["z2_sa", "r8_sa", "d1_sa"])
def test_layout_covers_every_parameter_and_round_trips(name: str, preset: str, tmp_path: Path) -> None:
    model = gevit.create_model(name, preset, neighborhood=3)
    state = authors_state(model)
    assert len(state) == len(list(model.parameters()))
    save_file(
        {f"param/{key}": value for key, value in state.items()} | {"x": torch.zeros(1)},
        tmp_path / "w.safetensors",
    )
    for source in (tmp_path / "w.safetensors", {f"module.{key}": value for key, value in state.items()}):
        loaded = official.load(source, name, preset, 3)
        for key, value in model.state_dict().items():
            assert torch.equal(loaded.state_dict()[key], value)
        assert not loaded.training


def test_layout_names_of_the_authors() -> None:
    """Positions in the authors' nn.Sequential: norms, activations, pools and dropouts count."""
    model = gevit.create_model("r4_sa", "cifar10")
    keys = set(authors_state(model))
    # block, norm, act, block, norm, act, pool, dropout, block of the next stage, ...
    assert "transformer.1.layer_norm.weight" in keys
    assert "transformer.8.shortcut.0.weight" in keys
    assert "transformer.22.weight" in keys
    assert "transformer.22.bias" not in keys
    assert not any(key.startswith(("transformer.6.", "transformer.7.")) for key in keys)


def test_buffers_of_the_authors_are_ignored(tmp_path: Path) -> None:
    model = gevit.create_model("r4_sa")
    state = authors_state(model)
    state |= {
        "lifting_self_attention.row_indices": torch.zeros(4, 5, 5),
        "transformer.0.attention.2.g_indices": torch.zeros(4, 4, 4),
        "transformer.0.attention.2.group._elements": torch.zeros(4, 1),
        "group._identity": torch.zeros(1),
    }
    torch.save(state, tmp_path / "w.pt")
    loaded = official.load(tmp_path / "w.pt", "r4_sa")
    x = torch.randn(1, 1, 28, 28)
    model = gevit.create_model("r4_sa", pooling="sum_max").eval()
    model.load_state_dict(loaded.state_dict())
    assert torch.equal(model(x), loaded(x))


def test_gsa_elements_are_reordered_by_inverses() -> None:
    model = gevit.create_model("r4_sa", encoding="gsa")
    loaded = official.load(authors_state(model), "r4_sa", encoding="gsa")
    key = "body.stage1_block1.attention.2.positions.element"
    assert torch.equal(loaded.state_dict()[key], model.state_dict()[key][[0, 3, 2, 1]])


def test_pools_truncate_as_the_authors_do() -> None:
    """pcam at 96x96 pools a 7x7 map: parity needs the authors' truncation, equivariance its absence."""
    model = gevit.create_model("r4_sa", "pcam", neighborhood=3)
    loaded = official.load(authors_state(model), "r4_sa", "pcam", 3)
    assert all(layer.truncate for layer in loaded.modules() if isinstance(layer, MaxPool))
    x = torch.randn(1, 3, 96, 96)
    with pytest.raises(AssertionError, match="not equivariant"):
        assert_equivariant(loaded, x, loaded.group)
    model.load_state_dict(loaded.state_dict())
    assert_equivariant(model.eval(), x, model.group)


def test_a_saved_model_of_the_authors_pools_as_they_do(tmp_path: Path) -> None:
    loaded = official.load(authors_state(gevit.create_model("z2_sa", "pcam", neighborhood=3)), "z2_sa", "pcam", 3)
    loaded.save_pretrained(tmp_path)
    x = torch.randn(1, 3, 50, 50)  # an odd map is pooled on the way
    assert torch.equal(gevit.load(tmp_path)(x), loaded(x))


class TestBadCheckpoints:
    @pytest.fixture
    def state(self) -> dict[str, Tensor]:
        model = gevit.create_model("r4_sa")
        return authors_state(model)

    def test_missing(self, state: dict[str, Tensor]) -> None:
        del state["transformer.0.mlp.0.weight"]
        with pytest.raises(ValueError, match=r"missing: transformer\.0\.mlp\.0\.weight"):
            official.load(state, "r4_sa")

    def test_extra(self, state: dict[str, Tensor]) -> None:
        state["transformer.9.weight"] = torch.zeros(1)
        with pytest.raises(ValueError, match=r"not expected: transformer\.9\.weight"):
            official.load(state, "r4_sa")

    def test_shape(self, state: dict[str, Tensor]) -> None:
        key = "transformer.0.attention.2.group_embedding.weight"
        state[key] = torch.zeros(8, 4)
        with pytest.raises(ValueError, match=r"wrong shape: .*group_embedding.weight is \[8, 4\], expected \[4, 4\]"):
            official.load(state, "r4_sa")
        state[key] = torch.zeros(4, 4, 2)
        with pytest.raises(ValueError, match="wrong shape"):
            official.load(state, "r4_sa")

    def test_other_model(self, state: dict[str, Tensor]) -> None:
        with pytest.raises(ValueError, match=r"does not fit the model; check name, preset.*\n(.*\n)*.*and \d+ more"):
            official.load(state, "r4_sa", "pcam")

    def test_file(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="no checkpoint at"):
            official.load(tmp_path / "nothing.safetensors", "r4_sa")

    def test_encoding(self, state: dict[str, Tensor]) -> None:
        with pytest.raises(ValueError, match="encodings 'ge' and 'gsa', got 'relative'"):
            official.load(state, "r4_sa", encoding="relative")

    def test_broken_group_is_said(self) -> None:
        model = gevit.create_model("d4_sa")
        with pytest.warns(UserWarning, match=r"tables for Dihedral\(4\) are not those of a group"):
            official.load(authors_state(model), "d4_sa")


def test_loading_leaves_the_callers_random_numbers_alone() -> None:
    weights = authors_state(gevit.create_model("r4_sa"))
    state = torch.get_rng_state()
    official.load(weights, "r4_sa")
    assert torch.equal(torch.get_rng_state(), state)


def test_what_is_no_checkpoint_of_the_authors(tmp_path: Path) -> None:
    weights = authors_state(gevit.create_model("r4_sa"))
    with pytest.raises(ValueError, match=r"wrong type: .* is torch\.int8, expected floating-point"):
        official.load({key: value.to(torch.int8) for key, value in weights.items()}, "r4_sa")
    with pytest.raises(ValueError, match="valid: rotmnist, cifar10, pcam"):
        official.load(weights, "r4_sa", preset="nano")
    for name in ("cut.safetensors", "noise.pt"):
        (tmp_path / name).write_bytes(b"no tensors")
        with pytest.raises(ValueError, match=f"{name} is damaged, or holds more than tensors"):
            official.load(tmp_path / name, "r4_sa")
    for content in ([torch.zeros(3)], {0: torch.zeros(3)}, {"weight": 3}):
        torch.save(content, tmp_path / "other.pt")
        with pytest.raises(ValueError, match="expected a state dict, tensors by name"):
            official.load(tmp_path / "other.pt", "r4_sa")
