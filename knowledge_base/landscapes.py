"""Measured landscapes that ship: what every configuration of a kernel took on one GPU, in one session.

``h200_product``: the whole spaces of files that the synthesizer wrote (:func:`landscape_sources` has them).
``h200_sweeps``: kernels written by hand, of which the axes' values are all that is left; parts of their spaces.
``h200_block``: the spaces of the GPT-2 block's files at B=8, T=1024, by ``benchmarks/spaces.py gpt2-block``; what was
priced too high to be the best (:mod:`agent.loop.assay`) has no row.
``h200_runs``: later texts; what four runs had time for in 120 s of searching each: the GPT-2 block at B, T = 8, 1024;
8, 128 and 1, 1024, and the Llama 3 8B block at 1, 4096 (docs/measured.md).  By ``benchmarks/spaces.py --base``.
All by the method of docs/measuring.md but for fresh processes (medians of 9 to 16 samples; cuda-tile 1.7.0,
tileiras 13.4.92, torch 2.11; 21, 27 and 28 November 2026).  Times say something of that chip alone.
"""

from __future__ import annotations

import functools
import gzip
import json
from pathlib import Path
from typing import Any

from knowledge_base.records import Record

LANDSCAPES = Path(__file__).with_name("seed") / "landscapes"


class LandscapeRow(Record):
    """task: what people call it; of an everyday task its name.  axes: the configuration.

    source: the first eight digits of the file's digest, where there is a file.  yardstick_us: PyTorch's best single
    call for the same work, sampled in turn.  error: relative L2 against float64.  status: ``correct``, or what is
    wrong; then there is no time.
    """

    task: str
    sizes: dict[str, int]
    dtype: str
    chip: str
    axes: dict[str, Any]
    us: float | None = None
    status: str
    source: str = ""
    yardstick_us: float | None = None
    error: float | None = None


@functools.cache
def landscape(name: str) -> tuple[LandscapeRow, ...]:
    """The rows of ``h200_product``, ``h200_sweeps``, ``h200_block`` or ``h200_runs``."""
    lines = gzip.decompress((LANDSCAPES / f"{name}.jsonl.gz").read_bytes()).decode().splitlines()
    return tuple(LandscapeRow.model_validate_json(line) for line in lines)


@functools.cache
def landscape_sources() -> dict[str, str]:
    """The files whose spaces they are, by the first eight digits of their digests."""
    found: dict[str, str] = {}
    for path in sorted(LANDSCAPES.glob("*_sources.json.gz")):
        found |= json.loads(gzip.decompress(path.read_bytes()))
    return found
