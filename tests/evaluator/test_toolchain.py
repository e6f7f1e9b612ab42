"""The toolchain is found in the wheels, and its absence says how to mend it."""

from __future__ import annotations

import pytest

from evaluator import toolchain
from kernels_generated.runtime import assembler
from knowledge_base.errors import EXIT_ENVIRONMENT, EnvironmentLacks


@pytest.mark.parametrize("name", toolchain.WHEELS)
def test_every_tool_is_found_with_the_pinned_version(name):
    found = toolchain.tool(name)
    assert found.path.name == name
    assert found.version == toolchain.VERSION


def test_the_pinned_version_is_the_projects(request):
    text = (request.config.rootpath / "pyproject.toml").read_text()
    assert f"nvidia-cuda-tileiras=={toolchain.VERSION}" in text


def test_a_missing_tool_names_the_command_that_mends_it(monkeypatch, tmp_path):
    monkeypatch.setattr(assembler, "search_path", lambda: (tmp_path,))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentLacks, match="no tileiras") as raised:
        toolchain.find("tileiras")
    assert raised.value.exit_code == EXIT_ENVIRONMENT
    assert f"pip install nvidia-cuda-tileiras=={toolchain.VERSION}" in raised.value.mend


def test_cuda_home_is_looked_into(monkeypatch, tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    fake = folder / "tileiras"
    fake.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.9, V13.9.1'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(assembler.sysconfig, "get_path", lambda key: str(tmp_path / "no-such-packages"))
    assert toolchain.tool("tileiras") == toolchain.Tool(fake, "13.9.1")


def test_a_tool_that_does_not_run_is_named(monkeypatch, tmp_path):
    broken = tmp_path / "tileiras"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(assembler, "search_path", lambda: (tmp_path,))
    with pytest.raises(EnvironmentLacks, match="exit 3"):
        toolchain.tool("tileiras")
