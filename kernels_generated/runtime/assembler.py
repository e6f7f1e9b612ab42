"""NVIDIA's assembler of Tile IR, where it is installed: a kernel's bytecode in, a cubin out, once.

It is needed for a chip that no cubin ships for, and nowhere else.  What it made is kept in the user's cache folder, for
that version of the assembler.  The bytecode is trusted as far as its hash is; strangers' bytecode is for
evaluator.compile, which holds the assembler in.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

OPTIMISED = "--opt-level=3"
SECONDS = 240.0  # an honest kernel takes 0.2 to 7 s of a processor


class AssemblerError(RuntimeError):
    """The assembler refused a kernel, or did not end."""


def search_path() -> tuple[Path, ...]:
    """The folders looked into before PATH, in order: the wheels of this Python, then ``$CUDA_HOME/bin``."""
    folders = [Path(sysconfig.get_path(key)) / "nvidia" / "cu13" / "bin" for key in ("purelib", "platlib")]
    if os.environ.get("CUDA_HOME"):
        folders.append(Path(os.environ["CUDA_HOME"]) / "bin")
    return tuple(dict.fromkeys(folders))


def located(name: str) -> Path | None:
    """Where the tool of that name is (tileiras, ptxas …); None where it is not installed."""
    for folder in search_path():
        if (folder / name).is_file() and os.access(folder / name, os.X_OK):
            return folder / name
    on_path = shutil.which(name)
    return Path(on_path) if on_path else None


def assembled(kernel: str, bytecode: bytes, arch: str, tileiras: Path) -> bytes:
    """The cubin of ``bytecode``, whose SHA-256 is ``kernel``, for ``arch`` (sm_120).  Raises AssemblerError."""
    tool = tileiras.resolve().stat()
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tilewright" / "assembled"
    kept = home / f"{kernel}.{arch}.{tool.st_size:x}.{tool.st_mtime_ns:x}"
    with contextlib.suppress(OSError):
        data = kept.read_bytes()
        if hashlib.sha256(data[32:]).digest() == data[:32]:
            return data[32:]
    cubin = _run(bytecode, arch, tileiras)
    with contextlib.suppress(OSError):  # a folder that can't be written to costs time alone
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=home, delete=False) as file:
            file.write(hashlib.sha256(cubin).digest() + cubin)
        os.replace(file.name, kept)
    return cubin


def _run(bytecode: bytes, arch: str, tileiras: Path) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "k.tileir").write_bytes(bytecode)
        try:
            done = subprocess.run(
                [tileiras, f"--gpu-name={arch}", OPTIMISED, "-o", "k.cubin", "k.tileir"],
                cwd=folder, env={"PATH": os.defpath}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=SECONDS, check=False, errors="replace",
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise AssemblerError(f"{tileiras.name}: {error}") from None
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines() or [f"return code {done.returncode}"]
            raise AssemblerError(f"{tileiras.name} for {arch}: {said[0][:200]}")
        return (Path(folder) / "k.cubin").read_bytes()
