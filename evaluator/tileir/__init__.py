"""CUDA Tile IR on the CPU: parser, lockstep machine, sanitizer.

    program = evaluator.kernel.Kernel.of(bytecode).program
    report = run(program, (8, 1, 1), [Array("x", "f32", 0, (1024,), (1,)), Scalar("i32", 1024)], buffers={"x": x})

Candidate Python plays no part here: the input is Tile IR bytecode, the memory is the caller's torch tensors.
"""

from typing import TYPE_CHECKING

from knowledge_base.lazy import exports

if TYPE_CHECKING:
    from . import ir as ir
    from .arguments import Binding as Binding
    from .arguments import check_version as check_version
    from .arguments import pass_arguments as pass_arguments
    from .arguments import to_bytecode as to_bytecode
    from .disassembly import disassemble as disassemble
    from .errors import InvalidTileIR as InvalidTileIR
    from .errors import TileIRError as TileIRError
    from .errors import Unsupported as Unsupported
    from .errors import Unverified as Unverified
    from .errors import out_of_memory as out_of_memory
    from .footprint import Footprint as Footprint
    from .footprint import Places as Places
    from .footprint import Reads as Reads
    from .footprint import Touching as Touching
    from .launch import Argument as Argument
    from .launch import ArgumentError as ArgumentError
    from .launch import Array as Array
    from .launch import RunReport as RunReport
    from .launch import Scalar as Scalar
    from .launch import launch_words as launch_words
    from .launch import run as run
    from .machine import StepLimit as StepLimit
    from .machine import Watcher as Watcher
    from .memory import Memory as Memory
    from .ops_atomic import ATOMIC_OPS as ATOMIC_OPS
    from .ops_taint import OUTPUT as OUTPUT
    from .ops_taint import WORKSPACE as WORKSPACE
    from .program import Program as Program
    from .program import build as build
    from .program import walk as walk
    from .promises import PassedArray as PassedArray
    from .promises import shared_byte as shared_byte
    from .runs import NOWHERE as NOWHERE
    from .sanitizer import Sanitizer as Sanitizer
    from .sanitizer import Violation as Violation
    from .slicing import stores_alone as stores_alone
    from .taint import tainted as tainted
    from .text import parse as parse
    from .tracker import Tracker as Tracker
else:
    __getattr__, __all__ = exports(
        __name__,
        arguments=["Binding", "check_version", "pass_arguments", "to_bytecode"],
        disassembly=["disassemble"],
        errors=["InvalidTileIR", "TileIRError", "Unsupported", "Unverified", "out_of_memory"],
        footprint=["Footprint", "Places", "Reads", "Touching"],
        launch=["Argument", "ArgumentError", "Array", "RunReport", "Scalar", "launch_words", "run"],
        machine=["StepLimit", "Watcher"],
        memory=["Memory"],
        ops_atomic=["ATOMIC_OPS"],
        ops_taint=["OUTPUT", "WORKSPACE"],
        program=["Program", "build", "walk"],
        promises=["PassedArray", "shared_byte"],
        runs=["NOWHERE"],
        sanitizer=["Sanitizer", "Violation"],
        slicing=["stores_alone"],
        taint=["tainted"],
        text=["parse"],
        tracker=["Tracker"],
    )
