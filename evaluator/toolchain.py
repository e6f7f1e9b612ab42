"""Where NVIDIA's Tile IR toolchain is on this machine: tileiras, tileirdisasm, ptxas, and their versions.

Looked for in the wheels of this Python (``site-packages/nvidia/cu13/bin``), then ``$CUDA_HOME/bin``, then ``PATH``.
Finding is all this module does; running them on hostile bytes is for :mod:`evaluator.confinement`.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from kernels_generated.runtime.assembler import located
from knowledge_base.errors import EnvironmentLacks
from knowledge_base.records import clean

VERSION = "13.4.92"  # what the product is built and tested with (constraints.txt)

# Which wheel brings which tool.
WHEELS = {
    "tileiras": "nvidia-cuda-tileiras",
    "tileirdisasm": "nvidia-cuda-tileiras",
    "ptxas": "nvidia-cuda-nvcc",
}
MEND = "python -m pip install " + " ".join(
    f"{wheel}=={VERSION}"
    for wheel in ("nvidia-cuda-tileiras", "nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt")
)  # fmt: skip
_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Tool:
    """An executable and the version it reports (``13.4.92``)."""

    path: Path
    version: str


def find(name: str) -> Path:
    """The path of ``tileiras``, ``tileirdisasm`` or ``ptxas``.  Raises EnvironmentLacks with the mending command."""
    path = located(name)
    if path is not None:
        return path
    raise EnvironmentLacks(f"no {name} in this Python's packages, $CUDA_HOME or PATH", MEND)


def tool(name: str) -> Tool:
    """The tool with its version; asked once per process and file.  Raises EnvironmentLacks."""
    path = find(name)
    return Tool(path, _version(path, path.stat().st_mtime_ns))


@functools.lru_cache(maxsize=16)
def _version(path: Path, _mtime_ns: int) -> str:
    try:
        done = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env={"PATH": os.defpath},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentLacks(f"{path} does not run: {error}", MEND) from None
    found = re.search(r"\bV(\d+\.\d+\.\d+)", done.stdout)
    if done.returncode or not found:
        said = (done.stderr or done.stdout).strip()[:200]
        raise EnvironmentLacks(f"{path} --version failed (exit {done.returncode}): {said}", MEND)
    return found.group(1)


MAX_MESSAGE = 600  # characters of what a tool says that are kept
# A location may hold names that a candidate chose, in quotation marks: nothing in them is the tool's.
_ERROR = re.compile(r'^(?P<where>(?:[^"\n]|"(?:[^"\\\n]|\\.)*")*?)\berror: (?P<said>.*)$', re.MULTILINE)
_PLACE = re.compile(r'loc\("(?P<file>(?:[^"\\]|\\.)*)":(?P<line>\d+):\d+\)|^[^"\s]+:(?P<bare>\d+):\d+')
_FRONT_END = "cuda/tile/"  # files of cuTile itself, whose functions are inlined
_ECHOES = ("failed to compile Tile IR program", "input does not correspond to Tile IR bytecode")


def first_error(stderr: str) -> tuple[str, int | None]:
    """What tileiras or tileirdisasm says first, without debug locations, and the candidate's line if it names one.

    Empty where it says no more than that it failed.
    """
    errors = list(_ERROR.finditer(stderr))
    told = [said for error in errors if (said := error["said"].strip()) and said not in _ECHOES]
    lines = [line for error in errors for line in _lines(error["where"])]
    if told:
        message = told[0]
    elif _ECHOES[1] in stderr:
        message = "the kernel's bytecode is damaged: " + _ECHOES[1]
    else:
        message = "" if errors else stderr.strip()
    return clean(message)[:MAX_MESSAGE], lines[0] if lines else None


def _lines(where: str) -> list[int]:
    """Lines of a debug location, the innermost first, without those of cuTile's own files."""
    found = _PLACE.finditer(where)
    return [int(p["line"] or p["bare"]) for p in found if not (p["file"] or "").startswith(_FRONT_END)]
