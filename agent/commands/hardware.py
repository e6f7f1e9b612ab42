"""What ``--gpu`` and ``--device`` mean on this machine."""

from __future__ import annotations

from evaluator import toolchain
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


CPU_INSTEAD = "Use --device cpu: kernels run on the CPU from their Tile IR, and times are modelled."


def device_for(device: str, chip: Chip) -> str:
    """Where kernels for ``chip`` run: ``cpu``, from their Tile IR alone, or ``cuda``, on this machine's GPU as well.

    ``auto`` is cuda where the machine has such a GPU.  Raises UserError for an unknown name and for a GPU that is
    another chip, EnvironmentLacks for ``cuda`` without a GPU.
    """
    check_device(device)
    if device == "cpu":
        return "cpu"
    try:
        card = from_driver()
    except UserError as error:
        if device == "auto":
            return "cpu"
        raise EnvironmentLacks(f"--device cuda: {error.what}", CPU_INSTEAD) from None
    if card.name == chip.name:
        return "cuda"
    if device == "auto":
        return "cpu"
    mend = f"Leave --gpu out, or name --gpu {card.name}. {CPU_INSTEAD}"
    raise UserError(f"--device cuda: kernels are for {chip.name}, and this machine has {card.product}", mend)


def check_toolchain() -> None:
    """Raises EnvironmentLacks where kernels could be neither compiled nor read, before any work."""
    for name in ("tileiras", "tileirdisasm"):
        toolchain.find(name)


def check_cluster(address: str | None, device: str) -> None:
    """Raises UserError for a cluster where kernels run on no GPU of this machine, which measures winners again."""
    if address is not None and device != "cuda":
        raise UserError(
            "--cluster: kernels do not run on a GPU of this machine",
            "Start it on a host with the GPU: what has won is judged and measured again there.",
        )


def check_device(device: str) -> None:
    """Raises UserError for an unknown name."""
    if device not in DEVICES:
        raise UserError(f"--device {device}: no such device", f"There are {', '.join(DEVICES)}.")
