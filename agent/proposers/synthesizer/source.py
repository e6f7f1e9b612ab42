"""Puts kernels together into a candidate file: imports, AXES, helpers, kernels, launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernels_generated.runtime.expr import Expr, symbols
from knowledge_base.snf.graph import Tensor
from knowledge_base.snf.task import Task, told_by

from .arithmetic import HELPERS, TORCH_DTYPES
from .body import INDENT, OWN_VARIABLES, RESERVED, Names, Parameter
from .groups import Workspace
from .kernels import KernelText
from .unaligned import RowClasses

# Compile-time parameters of kernels in the order in which they are printed, and the hints that launch hands to
# replace_hints.
CONSTANTS = ("TM", "TN", "TK", "TD", "TE", "GROUP", "ROWS", "CHUNK", "FACTOR")
KINDS = ("map", "rows", "matmul", "attention")
HINTS = ("occupancy", "num_ctas", "num_worker_warps")


@dataclass(frozen=True)
class Unfit:
    """A condition, as text over ``sizes`` and the axis ``tile``, under which launch raises ValueError."""

    condition: str
    message: str
    sizes: tuple[Expr, ...]
    tile: str = ""


@dataclass(frozen=True)
class File:
    """What a candidate file is printed from.

    axes: AXES, first value default.  classes: of the result's rows, each of which its kernel is launched for.
    """

    task: Task
    title: str
    axes: Mapping[str, Sequence[int]]
    kernels: Sequence[KernelText]
    workspaces: Sequence[Workspace]
    names: Names
    refusals: Sequence[Unfit] = field(default=())
    classes: RowClasses | None = None


def make_names(task: Task) -> Names:
    """Python names for the task's tensors and dimensions that clash with nothing in the file."""
    taken = {*RESERVED, *OWN_VARIABLES, *(f"{k}_{part}" for k in KINDS for part in ("kernel", "tile"))}

    def pick(wanted: str) -> str:
        base = "".join(c if c.isalnum() and c.isascii() else "_" for c in wanted).strip("_")
        base = base if base.isidentifier() else f"t_{base}"
        name = base if base not in taken else f"{base}_"
        while name in taken:
            name += "_"
        taken.add(name)
        return name

    tensors = (*task.inputs, *task.outputs)
    buffers = {t.name: pick(t.name) for t in tensors}
    dims = {d: pick(d) for d in task.sizes}
    return Names({**buffers, **{f"ws{i}": pick(f"ws{i}") for i in range(64)}}, dims)


def print_file(file: File) -> str:
    """The candidate's source text."""
    parts = [_head(file), f"AXES = {_axes_text(file.axes)}", ""]
    kernels = [_kernel_text(k, file.names) for k in file.kernels]
    launch = _launch_text(file) if file.classes is None else _launch_of_classes(file, file.classes)
    body = "\n".join((*kernels, launch))
    named = [f"{n} = math.{n.lower()}" for n in ("INF", "NAN") if _uses(body, n)]
    imports = [
        *(["import math", ""] if named or "math." in launch else []),
        "import cuda.tile as ct",
        *(["import torch"] if "torch." in body else []),
    ]
    helpers = dict.fromkeys(h for k in file.kernels for h in k.writer.helpers)
    text = "\n".join((parts[0], *imports, "", *parts[1:], *([*named, ""] if named else [])))
    return text + "".join("\n" + HELPERS[h][0] + "\n" for h in helpers) + "\n" + body


def _uses(body: str, name: str) -> bool:
    return any(word.strip("-(") == name for word in body.replace(",", " ").replace(")", " ").split())


def _axes_text(axes: Mapping[str, Sequence[int]]) -> str:
    return "{" + ", ".join(f'"{name}": {list(values)}' for name, values in axes.items()) + "}"


def _head(file: File) -> str:
    size = file.names.size
    lines = [f'"""{file.title}', ""]
    for t in (*file.task.inputs, *file.task.outputs):
        lines.append(f"    {file.names.buffers[t.name]}: {t.dtype}[{', '.join(size(s) for s in t.shape)}]")
    lines += [f"    {file.names.dims[dim]}: int, a size" for dim in file.task.size_arguments]
    lines.append("")
    for n in file.task.graph.nodes:
        attrs = "".join(f", {k}={v}" for k, v in n.attrs if k != "expr")
        lines.append(f"    {n.name} = {n.op}({', '.join(n.args)}{attrs})".replace("(, ", "("))
    return "\n".join([*lines, '"""', ""])


# ---------------------------------------------------------------------------------------------------- kernels


def _sources(shape: Sequence[Expr], text: str, wanted: set[str]) -> dict[str, str]:
    """Dimensions that can be read from an array of ``shape`` called ``text``."""
    return {s: f"{text}.shape[{p}]" for p, s in enumerate(shape) if isinstance(s, str) and s in wanted}


def _kernel_dims(kernel: KernelText) -> tuple[dict[str, str], list[str]]:
    """(dimension -> where the kernel reads it, dimensions to be passed)."""
    wanted = set(kernel.writer.dims)
    found: dict[str, str] = {}
    for p in kernel.writer.parameters.values():
        for dim, text in _sources(p.shape, p.name, wanted).items():
            found.setdefault(dim, text)
    return found, [d for d in kernel.writer.dims if d not in found]


def _kernel_text(kernel: KernelText, names: Names) -> str:
    writer = kernel.writer
    found, passed = _kernel_dims(kernel)
    runtime = [*(p.name for p in writer.parameters.values()), *(names.dims[d] for d in passed)]
    constants = sorted(writer.constants, key=CONSTANTS.index)
    body = [f"{INDENT}{names.dims[d]} = {text}" for d, text in found.items()] + _tidy(writer.body())
    doc = f'{INDENT}"""{kernel.doc}"""'
    if not kernel.persistent:
        header = _header(kernel.name, [*runtime, *map(_constant, constants)])
        return "\n".join(["", "@ct.kernel", *header, doc, *body, ""])
    given = [*runtime, *constants]
    tile = f"{kernel.name.replace('_kernel', '_tile', 1)}"
    header = _header(kernel.name, [*runtime, "tiles", *map(_constant, (*constants, "PERSISTENT"))])
    return "\n".join([
        "", *_header(tile, ["tile", *given]), doc, *body, "", "",
        "@ct.kernel", *header, f'{INDENT}"""One tile a block, or PERSISTENT blocks that take every n-th tile."""',
        f"{INDENT}if PERSISTENT:",
        f"{INDENT * 2}for tile in range(ct.bid(0), tiles, ct.num_blocks(0)):",
        f"{INDENT * 3}{tile}(tile, {', '.join(given)})",
        f"{INDENT}else:",
        f"{INDENT * 2}{tile}(ct.bid(0), {', '.join(given)})", "",
    ])  # fmt: skip


def _constant(name: str) -> str:
    return f"{name}: ct.Constant[{'float' if name == 'FACTOR' else 'int'}]"


def _header(name: str, arguments: Sequence[str]) -> list[str]:
    header = f"def {name}({', '.join(arguments)}):"
    return [header] if len(header) <= 110 else [f"def {name}(", f"{INDENT}{', '.join(arguments)},", "):"]


def _tidy(lines: Sequence[str]) -> list[str]:
    """Without doubled, leading or trailing blank lines."""
    out: list[str] = []
    for line in lines:
        if line or (out and out[-1]):
            out.append(line)
    while out and not out[-1]:
        out.pop()
    return out


# ---------------------------------------------------------------------------------------------------- launch


def _dim_lines(tensors: Sequence[Tensor], names: Names, wanted: set[str]) -> list[str]:
    """Lines that read the wanted dimensions off the tensors' shapes."""
    told = told_by(tensors)
    wanted = set(wanted)
    for one in reversed(told):  # what one is computed from comes before it
        if one.dim in wanted:
            wanted |= symbols(one.less) | symbols(one.by)
    lines: list[str] = []
    for t in tensors:
        at = {one.axis: names.dims[one.dim] for one in told if one.tensor is t and one.plain and one.dim in wanted}
        if at:
            left = [at.get(p, "_") for p in range(len(t.shape))]
            lines.append(f"{', '.join(left)}{',' if len(left) == 1 else ''} = {names.buffers[t.name]}.shape")
    for one in told:
        if one.dim in wanted and not one.plain:
            text = f"{names.buffers[one.tensor.name]}.shape[{one.axis}]"
            if one.less != 0:
                text = f"{text} - {names.factor(one.less)}"
            if one.by != 1:
                text = f"({text})" if one.less != 0 else text
                text = f"{text} // {names.factor(one.by)}"
            lines.append(f"{names.dims[one.dim]} = {text}")
    return lines


def _view(p: Parameter, natural: Sequence[Expr], names: Names) -> str:
    if tuple(natural) == p.shape:
        return p.name
    return f"{p.name}.view({', '.join(names.size(s) for s in p.shape)})"


def _launch_text(file: File) -> str:
    names, task = file.names, file.task
    tensors = (*task.inputs, *task.outputs)
    natural: dict[str, Sequence[Expr]] = {t.name: t.shape for t in tensors}
    natural |= {w.name: w.value.shape or (1,) for w in file.workspaces}
    wanted: set[str] = set()
    body: list[str] = []
    setup = list(dict.fromkeys(line for k in file.kernels for line in k.setup_constants))
    body += setup  # the same head width serves several kernels
    for refusal in file.refusals:
        wanted |= {d for s in refusal.sizes for d in symbols(s)}
        body += [f"if {refusal.condition}:", f'{INDENT}raise ValueError("{refusal.message}")']
    device = names.buffers[tensors[0].name]
    for w in file.workspaces:
        shape = w.value.shape or (1,)
        wanted |= {d for s in shape for d in symbols(s)}
        text = f"({', '.join(names.size(s) for s in shape)}{',' if len(shape) == 1 else ''})"
        body.append(
            f"{names.buffers[w.name]} = torch.empty({text}, "
            f"dtype={TORCH_DTYPES[w.value.dtype]}, device={device}.device)"
        )
    for k in file.kernels:
        body += _launch_kernel(k, file, natural)
        wanted |= _dims_to_launch(k)
        for p in k.writer.parameters.values():
            if tuple(natural[p.buffer]) != p.shape:
                wanted |= {d for s in p.shape for d in symbols(s)}
    lines = [*_dim_lines(tensors, names, wanted), *body]
    return "\n".join(["", _launch_header(file), *(INDENT + line for line in lines), ""])


def _dims_to_launch(kernel: KernelText) -> set[str]:
    """The dimensions that its grid is made of, and those that it is passed."""
    return {d for s in kernel.sizes for d in symbols(s)} | set(_kernel_dims(kernel)[1])


def _launch_header(file: File) -> str:
    names, task = file.names, file.task
    tensors = (*task.inputs, *task.outputs)
    given = [*(names.buffers[t.name] for t in tensors), *(names.dims[d] for d in task.size_arguments)]
    arguments = [*given, "*", *(f"{name}={values[0]}" for name, values in file.axes.items())]
    header = f"def launch(stream, {', '.join(arguments)}, num_sms=None):"
    if len(header) > 110:
        header = (
            f"def launch(\n{INDENT}stream, {', '.join(given)},\n"
            f"{INDENT}{', '.join(arguments[len(given) :])}, num_sms=None,\n):"
        )
    return header


def _launch_of_classes(file: File, classes: RowClasses) -> str:
    """``product`` launches the kernel for a part of the rows and columns, ``launch`` calls it for all of them."""
    (kernel,) = file.kernels
    names, parameters = file.names, list(kernel.writer.parameters.values())
    tensors = (*file.task.inputs, *file.task.outputs)
    natural = {t.name: t.shape for t in tensors}
    wanted = _dims_to_launch(kernel)
    part = [*_dim_lines(tensors, names, wanted), *_launch_kernel(kernel, file, natural)]
    lines = [*_dim_lines(tensors, names, {classes.rows, classes.columns}), f"how = ({', '.join(file.axes)}, num_sms)"]
    lines += classes.lines(parameters, names)
    header = _header("product", ["stream", *(p.name for p in parameters), *file.axes, "num_sms"])
    body = [*classes.helper(), "", "", *header, *(INDENT + line for line in part)]
    return "\n".join(["", *body, "", "", _launch_header(file), *(INDENT + line for line in lines), ""])


def _launch_kernel(kernel: KernelText, file: File, natural: Mapping[str, Sequence[Expr]]) -> list[str]:
    writer, names = kernel.writer, file.names
    hints = [h for h in HINTS if h in kernel.hints and h in file.axes]
    replaced = f".replace_hints({', '.join(f'{h}={h}' for h in hints)})" if hints else ""
    arrays = [_view(p, natural[p.buffer], names) for p in writer.parameters.values()]
    arguments = [*arrays, *(names.dims[d] for d in _kernel_dims(kernel)[1])]
    arguments += ["tiles"] * kernel.persistent + sorted(writer.constants, key=CONSTANTS.index)
    arguments += ["PERSISTENT"] * kernel.persistent
    grid = f"({', '.join(kernel.grid)}{',' if len(kernel.grid) == 1 else ''})"
    given = f"({', '.join(arguments)}{',' if len(arguments) == 1 else ''})"
    lines = [*kernel.setup, f"grid = {grid}"]
    call = f"ct.launch(stream, grid, {kernel.name}{replaced}, {given})"
    if len(call) > 110:
        return [*lines, "ct.launch(", f"{INDENT}stream, grid, {kernel.name}{replaced},", f"{INDENT}{given},", ")"]
    return [*lines, call]
