"""What others build on: a name, an argument or a default that changes is changed here too, on purpose.

What goes or is renamed also belongs into CHANGELOG.md.
"""

from __future__ import annotations

import importlib
import inspect
import operator
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gevit
from gevit.attention import BACKENDS
from gevit.cli import COMMANDS
from gevit.encoding import ENCODINGS
from gevit.models import PRESETS

ROOT = Path(__file__).parents[1]

NAMES = {
    "gevit": """
        GroupAttention LiftingAttention Orbit attention create_model data equivariance from_pretrained groups
        list_models list_pretrained load models save
    """,
    "gevit.groups": "Cyclic Dihedral Group named_group",
    "gevit.attention": "BACKENDS Projections attend attend_projected attention_of_pixel",
    "gevit.export": "Comparison compare export read",
    "gevit.equivariance": """
        EquivarianceError RelativeError Report assert_equivariant measure measure_layers worst_of
    """,
    "gevit.models": """
        EquivariantModel FeatureMaps GroupTransformer PRESETS Preset Stage build_model list_models official
    """,
    "gevit.data": "DataSet Split list_datasets load_digits normalize_digits open_dataset",
    "gevit.hub": "from_pretrained push_to_hub save_pretrained",
}

SIGNATURES = {
    "create_model": """
        name, preset='rotmnist', in_channels=None, num_classes=None, neighborhood=5, encoding='ge', pooling='max_mean',
        backend='auto', pretrained=False, restrict=None, initialisation=None, features_only=False, out_indices=None
    """,
    "list_models": "",
    "list_pretrained": "",
    "load": "path, backend='auto'",
    "save": "model, info, path",
    "from_pretrained": """
        source, *, revision=None, token=None, cache_dir=None, force_download=False, local_files_only=False,
        backend='auto'
    """,
    "LiftingAttention": """
        group, in_channels, out_channels, heads=9, neighborhood=5, dropout=0.0, backend='auto', initialisation='paper'
    """,
    "GroupAttention": """
        group, in_channels, out_channels, heads=9, neighborhood=5, encoding='ge', dropout=0.0, backend='auto',
        initialisation='paper'
    """,
    "Orbit": "model, group, reduce='mean'",
    "groups.Cyclic": "n",
    "groups.Dihedral": "n",
    "groups.Group.act_on_image": "self, image, element",
    "groups.Group.act_on_signal": "self, signal, element",
    "attention.attend": "query, key, value, positions, *, scale, dropout=0.0, backend='auto'",
    "equivariance.measure": "module, x, group, translations=((1, 0), (0, 1), (2, -1)), margin=None",
    "equivariance.assert_equivariant": "module, x, group, tolerance=None",
    "models.official.load": "path_or_state_dict, name, preset='rotmnist', neighborhood=5, encoding='ge'",
    "models.EquivariantModel.forward_features": "self, x",
    "models.EquivariantModel.reset_classifier": "self, num_classes",
    "models.EquivariantModel.save_pretrained": "self, folder",
    "models.EquivariantModel.from_pretrained": "source, **options",
    "models.EquivariantModel.push_to_hub": "self, repo_id, **options",
}

WORDS = {
    "models": "z2_sa r4_sa r8_sa r12_sa r16_sa d1_sa d4_sa d8_sa z2_cnn p4_cnn alpha_p4_cnn cpvt",
    "presets": "rotmnist cifar10 pcam nano tiny small",
    "encodings": "ge gsa relative",
    "backends": "auto reference factored native triton",
    "commands": "train evaluate predict data pretrained equivariance figures export reproduce bench app",
}


@pytest.mark.parametrize("module", NAMES)
def test_names(module: str) -> None:
    namespace = importlib.import_module(module)
    public = getattr(namespace, "__all__", None) or [
        name
        for name, value in vars(namespace).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module
    ]
    assert sorted(public) == sorted(NAMES[module].split())
    assert all(hasattr(namespace, name) for name in public)


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    signature = inspect.signature(operator.attrgetter(name)(gevit))
    bare = signature.replace(
        parameters=[parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()],
        return_annotation=signature.empty,
    )
    assert str(bare) == f"({' '.join(SIGNATURES[name].split())})"


def test_words() -> None:
    found = {
        "models": gevit.list_models(),
        "presets": PRESETS,
        "encodings": ENCODINGS,
        "backends": BACKENDS,
        "commands": COMMANDS,
    }
    for kind, words in WORDS.items():
        assert sorted(found[kind]) == sorted(words.split()), kind


def test_everything_is_there_after_import_gevit() -> None:
    code = f"import gevit\nfor name in {list(SIGNATURES)}: eval('gevit.' + name)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_one_version() -> None:
    """It is written in one place; what other programs read repeats it."""
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", gevit.__version__)
    assert f"\nversion: {gevit.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+),", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[0] == (
        gevit.__version__
    )
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_modules_are_there_before_anybody_imports_them() -> None:
    code = "import gevit; gevit.layers.Downsample, gevit.group_conv.GroupConv, gevit.encoding.ENCODINGS"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not hasattr(gevit, "no_such_module")
