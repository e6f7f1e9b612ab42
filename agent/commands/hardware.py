"""What ``--gpu`` and ``--device`` mean on this machine."""

from __future__ import annotations

from knowledge_base.chips import DEFAULT, Chip, chip, from_driver
from knowledge_base.errors import EnvironmentLacks, UserError

DEVICES = ("auto", "cpu", "cuda")


def chip_for(gpu: str | None) -> Chip:
    """The chip that kernels are for: the one named, else this machine's GPU, else the default one.

    Raises UserError for an unknown name, EnvironmentLacks for ``auto`` without a driver.
    """
    if gpu is not None:
        return chip(gpu)
    try:
        return from_driver()
    except UserError:  # no driver, no GPU, or one that cuTile has no code for
        return chip(DEFAULT)


def device_for(device: str) -> str:
    """Where candidates run: ``cpu``, from their Tile IR.

    Raises UserError for an unknown name, EnvironmentLacks for ``cuda`` where that can't be had.
    """
    if device not in DEVICES:
        raise UserError(f"--device {device}: no such device", f"There are {', '.join(DEVICES)}.")
    if device != "cuda":
        return "cpu"

    mend = "Use --device cpu: kernels run on the CPU from their Tile IR, and times are modelled."
    try:
        chip = from_driver()
    except UserError as error:
        raise EnvironmentLacks(f"--device cuda: {error.what}", mend) from None
    raise EnvironmentLacks(f"--device cuda: this version does not run kernels on a GPU ({chip.product} is there)", mend)
