"""The installation: pins for both builds of torch, and what the wheel holds."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
)


def pip(*arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT)


def test_every_dependency_is_pinned() -> None:
    wanted = PROJECT["dependencies"] + [d for extra in PROJECT["optional-dependencies"].values() for d in extra]
    pinned = {re.sub(r"[-_.]+", "-", name).lower() for name in PINS}
    unpinned = [d for d in wanted if re.sub(r"[-_.]+", "-", re.split(r"[=<>\[; ]", d)[0]).lower() not in pinned]
    assert unpinned == []


def test_the_project_can_not_be_uploaded_by_accident() -> None:
    assert "Private :: Do Not Upload" in PROJECT["classifiers"]


@pytest.mark.pins
def test_the_pins_also_resolve_with_the_cuda_build_of_torch() -> None:
    probe = pip("index", "versions", "nvidia-cuda-tileiras", timeout=120)
    if probe.returncode != 0:
        pytest.skip(f"no package registry answers: {probe.stderr.strip().splitlines()[-1:]}")
    # Three equals signs compare the whole text, so a local CPU build (2.13.0+cpu) is not taken for it.
    wanted = [d for d in PROJECT["dependencies"] if not d.startswith("torch")] + ["torch===2.13.0"]
    done = pip("install", "--dry-run", "--ignore-installed", "--constraint", "constraints.txt", *wanted)
    assert done.returncode == 0, done.stderr[-3000:]
    chosen = done.stdout.split("Would install", 1)[1].split()
    assert "torch-2.13.0" in chosen
    assert any(name.startswith("nvidia-cudnn-cu13-") for name in chosen), "that was not the CUDA build"
    known = {re.sub(r"[-_.]+", "-", name).lower() for name in PINS}
    strays = [c for c in chosen if re.sub(r"[-_.]+", "-", c.rsplit("-", 1)[0]).lower() not in known]
    assert strays == [], "installed without a pin"
