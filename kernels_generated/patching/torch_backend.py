"""torch.compile on generated kernels: TorchInductor, once products are operators."""

from __future__ import annotations

import collections
import copy
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from .attending import attend
from .joining import join

_log = logging.getLogger(__name__)


def tilewright(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """A backend of torch.compile: ``torch.compile(model, backend="tilewright", mode=…, options=…)``.

    mode, options: as TorchInductor has them, which compiles what is not a product.
    """
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx

    made = collections.Counter(_replaced(module))
    _log.info("%s", ", ".join(f"{count} {name}" for name, count in made.items()) or "no operator computes any of it")
    patches = {**(list_mode_options(mode) if mode else {}), **(options or {})}
    compiled: Any = compile_fx(module, list(inputs), config_patches=patches)
    return compiled  # type: ignore[no-any-return]


def _replaced(module: fx.GraphModule) -> list[str]:
    """The operators that are in the graph now.  A model that PyTorch compiles is compiled, whatever is wrong here."""
    before = copy.deepcopy(module.graph)
    for node, twin in zip(module.graph.nodes, before.nodes, strict=True):
        if hasattr(node, "_dynamo_source"):  # what a copy lacks, and the compiler wants of inputs
            twin._dynamo_source = node._dynamo_source
    try:
        return attend(module) + join(module)
    except Exception as error:
        warnings.warn(f"products and attention stay PyTorch's: {type(error).__name__}: {error}", RuntimeWarning)  # noqa: B028
        _log.warning("products and attention stay PyTorch's", exc_info=True)
        module.graph = before
        module.recompile()
        return []
