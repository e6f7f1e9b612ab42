"""Compile: Tile IR bytecode to cubins for any architecture, on any machine, with what each cubin tells unrun.

The entrance is :func:`compile_kernels`.  The assembler reads bytes that a candidate made, so it runs under the process
limits of :mod:`evaluator.confinement`; results are kept in a cache of our own (:mod:`.cache`), never in cuTile's.
"""

from .assemble import Compiled
from .cache import Cache
from .pool import compile_kernels, cores
from .remarks import transfers

__all__ = ["Cache", "Compiled", "compile_kernels", "cores", "transfers"]
