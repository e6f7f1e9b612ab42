"""``agent compare``: a model of PyTorch on generated kernels beside itself: what is replaced, the error, the times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agent.console import console, emit, table
from agent.models import Asked, compared
from knowledge_base.errors import EXIT_DONE, EXIT_REJECTED, UserError

from .hardware import check_device, chip_for, device_for

if TYPE_CHECKING:
    from rich.console import Console

DTYPES = ("bf16", "f16", "f32")
MODES = ("default", "reduce-overhead", "max-autotune", "none")


def compare(
    model: str, shape: dict[str, int], dtype: str | None, mode: str, gpu: str | None, device: str, as_json: bool
) -> int:
    """Compares and prints; exit 0, or 1 where the model on generated kernels computes something else."""
    for option, given, known in (("--dtype", dtype, DTYPES), ("--mode", mode, MODES)):
        if given is not None and given not in known:
            raise UserError(f"{option} {given}: there is no such thing", f"There are {', '.join(known)}.")
    check_device(device)
    chip = chip_for(gpu)
    err = console(error=True)
    with err.status("starting …") as status:
        asked = Asked(model, device_for(device, chip), chip.name, dtype, shape, mode)
        document = compared(asked, status.update)
    if as_json:
        emit(document)
    else:
        _print(document, err)
    return EXIT_REJECTED if document["refused"] else EXIT_DONE


def _print(document: Mapping[str, Any], err: Console) -> None:
    out = console()
    place = document["card"] or f"the CPU, as {document['emulated']} emulated"
    dtypes = f" in {' and '.join(document['dtypes'])}" if document["dtypes"] else ""
    count = f"{document['parameters']:,} parameters{dtypes}, "
    takes = ", ".join([*document["example"], *(f"{name}={text}" for name, text in document["named"].items())])
    for line in (f"{document['model']} of {document['of']}", f"{count}on {place}", f"called with {takes}", ""):
        out.print(line, markup=False)
    if document["refused"]:
        err.print(document["refused"], style="red", markup=False)
        return
    out.print(document["report"], markup=False)
    exact = document["float32"]
    if exact is not None:
        out.print(
            f"from the model in float32 they differ by {exact['patched']:.1e}, by {exact['eager']:.1e} before",
            markup=False,
        )
    if document["times"]:
        _print_times(document["times"], out)
    for name, why in document["lacking"].items():
        what = "no times" if name == "times" else f"no {name}"
        err.print(f"{what}: {why}", style="dim", markup=False)


def _print_times(rows: list[Mapping[str, Any]], out: Console) -> None:
    made = table(
        [
            ("form", "left", 13),
            ("ms", "right", 8),
            ("95%", "right", 16),
            ("÷ patched", "right", 9),
            ("error", "right", 7),
            ("kernels", "right", 7),
            ("ours", "right", 4),
            ("busy", "right", 7),
        ]
    )
    for row in rows:
        interval = f"{row['low']:.3f}–{row['high']:.3f}"
        numbers = str(row["kernels"]), str(row["generated"]), f"{row['busy_ms']:.3f}"
        made.add_row(row["name"], f"{row['ms']:.3f}", interval, f"{row['ratio']:.2f}", f"{row['error']:.1e}", *numbers)
    out.print()
    out.print(made)
    patched = next(row for row in rows if row["name"] == "patched")
    share = patched["generated_ms"] / patched["busy_ms"] if patched["busy_ms"] else 0.0
    out.print(f"busy: ms of the card in kernels, {share:.0%} of the patched model's in generated ones", style="dim")
