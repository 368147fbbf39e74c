from __future__ import annotations

from pathlib import Path

import pytest

from tests.outside import reference


def test_reference_material_is_found_or_the_test_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEVIT_REFERENCE", str(tmp_path))
    (tmp_path / "golden").mkdir()
    assert reference("golden") == tmp_path / "golden"
    with pytest.raises(pytest.skip.Exception, match=str(tmp_path / "golden" / "a")):
        reference("golden", "a")
    monkeypatch.delenv("GEVIT_REFERENCE")
    with pytest.raises(pytest.skip.Exception, match=str(Path(__file__).parents[2] / "shared" / "nothing")):
        reference("nothing")
