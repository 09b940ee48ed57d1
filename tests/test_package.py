"""The wheel carries all it needs and works from any directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Launcher

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_an_installed_wheel_trains_from_any_directory(tmp_path, artifacts):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(tmp_path), str(REPOSITORY)], check=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True, timeout=300)
    place = tmp_path / "elsewhere"
    place.mkdir()
    environment = os.environ | {"PYTHONPATH": str(site)}

    def run(*command: str) -> str:
        result = subprocess.run(
            [sys.executable, *command], cwd=place, env=environment, capture_output=True, text=True, timeout=300
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    assert str(site) in run("-c", "import experiment; print(experiment.__file__)")
    assert str(site) in run("-c", "from experiment.config.compose import CONF; print(CONF)")
    assert "en-ar__bl_destarved__100b" in run("-m", "experiment.runs")
    assert "cooldown_100b" in run("-m", "experiment.train", "--help")
    small = Launcher(place / "runs", artifacts).base
    assert "BPB" in run("-m", "experiment.train", *small, "schedule=cooldown_30b")
    assert (site / "experiment" / "assets" / "corpus" / "README.md").exists()


def test_every_folder_of_the_package_is_in_the_wheel():
    import tomllib

    listed = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {p.parent for p in (REPOSITORY / "experiment").rglob("*.py")}
    assert {str(p.relative_to(REPOSITORY)).replace("/", ".") for p in folders} <= set(listed)
