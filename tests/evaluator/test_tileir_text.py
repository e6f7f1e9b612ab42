"""The parser of disassembled Tile IR: types, forms, literals, scopes, locations, and what it refuses."""

import contextlib
import functools
import io
import re

import cuda.tile as ct
import pytest
from cuda.tile.compilation import (
    ArrayConstraint,
    CallingConvention,
    ConstantConstraint,
    KernelSignature,
    ScalarConstraint,
    export_kernel,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.tileir import ir
from evaluator.tileir.disassembly import disassemble
from evaluator.tileir.errors import InvalidTileIR, TileIRError, Unsupported
from evaluator.tileir.program import build
from evaluator.tileir.text import parse
from evaluator.tileir.type_text import parse_type, parse_types

ENTRY = "entry @k(%arg0: tile<ptr<f32>>, %arg1: tile<i32>) optimization_hints=<default = {}> {\n"


def module_with(*lines: str) -> ir.Module:
    return parse(ENTRY + "\n".join(lines) + "\n  return loc(#loc1)\n} loc(#loc)\n" + LOCATIONS)


LOCATIONS = """#di_file = #cuda_tile.di_file<"a.py" in "/src">
#di_sub = #cuda_tile.di_subprogram<file = #di_file, line = 3, name = "kern", linkageName = "k", scopeLine = 3>
#di_sub1 = #cuda_tile.di_subprogram<file = #di_file, line = 9, name = "astype", linkageName = "s", scopeLine = 9>
#loc = loc("/src/a.py":3:0)
#loc1 = #cuda_tile.di_loc<#loc in #di_sub>
#loc2 = loc("/py/cuda/tile/_stub.py":678:15)
#loc3 = #cuda_tile.di_loc<#loc2 in #di_sub1>
#loc4 = loc("/src/a.py":12:7)
#loc5 = #cuda_tile.di_loc<#loc4 in #di_sub>
#loc6 = loc(callsite(#loc3 at #loc5))
"""


def only(module: ir.Module, name: str) -> ir.Op:
    (op,) = [o for o in module.body.ops if o.name == name]
    return op


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tile<f32>", ir.TileType((), "f32")),
        ("tile<4x16xf32>", ir.TileType((4, 16), "f32")),
        ("tile<16xptr<bf16>>", ir.TileType((16,), ir.PtrElem("bf16"))),
        ("tile<8xf8E4M3FN>", ir.TileType((8,), "f8E4M3FN")),
        ("token", ir.TokenType()),
        ("tensor_view<?x1xf32, strides=[?,1]>", ir.TensorViewType("f32", (None, 1), (None, 1))),
        ("tensor_view<f32>", ir.TensorViewType("f32", (), ())),
    ],
)
def test_types_are_read(text, expected):
    assert parse_type(text) == expected


def test_view_types_carry_padding_and_dimension_map():
    view = parse_type(
        "partition_view<tile=(64x32), padding_value = zero, tensor_view<?x?xbf16, strides=[?,1]>, dim_map=[1, 0]>"
    )
    assert view == ir.TileViewType(
        "partition", (64, 32), ir.TensorViewType("bf16", (None, None), (None, 1)), "zero", (1, 0)
    )
    view = parse_type("strided_view<tile=(4), traversal_strides=[130], tensor_view<?xf32, strides=[1]>>")
    assert isinstance(view, ir.TileViewType)
    assert (view.kind, view.traversal, view.dim_map) == ("strided", (130,), (0,))
    view = parse_type("gather_scatter_view<tile=(4x2), tensor_view<?x?xf32, strides=[?,1]>, sparse_dim=0>")
    assert isinstance(view, ir.TileViewType)
    assert (view.kind, view.sparse_dim) == ("gather_scatter", 0)


def test_type_lists_split_at_top_level_commas_only():
    types = parse_types("tensor_view<?x?xf32, strides=[?,1]>, tile<i32>, token")
    assert [type(t).__name__ for t in types] == ["TensorViewType", "TileType", "TokenType"]


@pytest.mark.parametrize("text", ["tile<4xf31>", "tile<4xptr<q8>>", "vector<4xf32>", "tile<4x>"])
def test_unknown_types_are_unsupported(text):
    with pytest.raises(Unsupported):
        parse_type(text)


def test_defaults_that_the_text_omits_are_filled_in():
    module = module_with(
        "%0 = constant <f32: 1.5> : tile<f32> loc(#loc1)",
        "%1 = addf %0, %0  : tile<f32> loc(#loc1)",
        "%2 = addf %1, %0 rounding<zero> flush_to_zero : tile<f32> loc(#loc1)",
        "%3 = exp %2 : tile<f32> loc(#loc1)",
        "%4 = maxf %2, %3 propagate_nan : tile<f32> loc(#loc1)",
    )
    plain, rounded = [o for o in module.body.ops if o.name == "addf"]
    assert dict(plain.attrs) == {"rounding": "nearest_even", "flush_to_zero": False}
    assert dict(rounded.attrs) == {"rounding": "zero", "flush_to_zero": True}
    assert only(module, "exp").attrs["rounding"] == "full"
    assert dict(only(module, "maxf").attrs) == {"propagate_nan": True, "flush_to_zero": False}


@pytest.mark.parametrize(
    ("literal", "kind", "expected"),
    [
        ("<i32: -7>", "tile<i32>", ir.Dense(-7)),
        ("<i1: true>", "tile<i1>", ir.Dense(True)),
        ("<f32: -0.000000e+00>", "tile<f32>", ir.Dense(-0.0)),
        ("<f16: 0x7E00>", "tile<f16>", ir.Dense(0x7E00, bits=True)),
        ("<i32: [[1, 0], [2, 3]]>", "tile<2x2xi32>", ir.Dense((1, 0, 2, 3))),
        ('<i8: "0x0102">', "tile<2xi8>", ir.Dense(raw=b"\x01\x02")),
    ],
)
def test_literals_are_read(literal, kind, expected):
    value = only(module_with(f"%0 = constant {literal} : {kind} loc(#loc1)"), "constant").attrs["value"]
    assert value == expected
    assert str(value.values) == str(expected.values)  # -0.0 and 0.0 are equal


def test_a_list_may_mix_numbers_and_bit_patterns():
    module = module_with("%0 = constant <f32: [0x7F800000, 1.0, 0xFF800000, 0x7FC00000]> : tile<4xf32> loc(#loc1)")
    values = only(module, "constant").attrs["value"].values
    assert values[:3] == (float("inf"), 1.0, float("-inf"))
    assert values[3] != values[3]


def test_names_are_scoped_by_region():
    module = module_with(
        "%c = constant <i1: true> : tile<i1> loc(#loc1)",
        "%r = if %c -> (tile<i32>) {",
        "%x = constant <i32: 1> : tile<i32> loc(#loc1)",
        "yield %x : tile<i32> loc(#loc1)",
        "} else {",
        "%x = constant <i32: 2> : tile<i32> loc(#loc1)",
        "yield %x : tile<i32> loc(#loc1)",
        "} loc(#loc1)",
    )
    branch = only(module, "if")
    first, second = (region.ops[0].results for region in branch.regions)
    assert first != second
    assert branch.regions[1].ops[1].operands == second


def test_a_value_of_a_closed_region_is_not_visible_outside():
    with pytest.raises(InvalidTileIR, match="%x"):
        module_with(
            "%c = constant <i1: true> : tile<i1> loc(#loc1)",
            "if %c {",
            "%x = constant <i32: 1> : tile<i32> loc(#loc1)",
            "} loc(#loc1)",
            "%y = addi %x, %x : tile<i32> loc(#loc1)",
        )


def test_groups_of_results_have_numbers():
    module = module_with(
        "%b:3 = get_tile_block_id : tile<i32> loc(#loc1)", "%s = addi %b#0, %b#2 : tile<i32> loc(#loc1)"
    )
    ids = only(module, "get_tile_block_id")
    assert only(module, "addi").operands == (ids.results[0], ids.results[2])


def test_memory_operations_keep_their_operands_and_drop_the_token():
    module = module_with(
        "%t = make_token : token loc(#loc1)",
        "%v = make_tensor_view %arg0, shape = [%arg1, 4], strides = [4, 1] : tile<i32>"
        " -> tensor_view<?x4xf32, strides=[4,1]> loc(#loc1)",
        "%p = make_partition_view %v : partition_view<tile=(2x4), tensor_view<?x4xf32, strides=[4,1]>> loc(#loc1)",
        "%z = constant <i32: 0> : tile<i32> loc(#loc1)",
        "%x, %u = load_view_tko weak %p[%z, %z] token = %t optimization_hints = <default = {latency = 2}>"
        " inbounds = [true, false] : partition_view<tile=(2x4), tensor_view<?x4xf32, strides=[4,1]>>, tile<i32>"
        " -> tile<2x4xf32>, token loc(#loc1)",
    )
    view, load = only(module, "make_tensor_view"), only(module, "load_view_tko")
    assert view.attrs["shape"] == (None, 4)
    assert view.attrs["strides"] == (4, 1)
    assert len(load.operands) == 3
    assert load.attrs["inbounds"] == (True, False)
    assert load.attrs["semantics"] == "weak"
    assert load.result_types == (ir.TileType((2, 4), "f32"), ir.TokenType())


def test_strings_are_unescaped_as_bytes_of_utf8():
    module = module_with(
        "%t = make_token : token loc(#loc1)",
        r'%u = print_tko "a : b \22%d\22 h\C3\A9 \\ loc(x)\0A", %arg1 token=%t : tile<i32> -> token loc(#loc1)',
        "%c = constant <i1: true> : tile<i1> loc(#loc1)",
        r'assert %c, "n\0A" : tile<i1> loc(#loc1)',
    )
    assert only(module, "print_tko").attrs["format"] == 'a : b "%d" hé \\ loc(x)\n'
    assert only(module, "assert").attrs["message"] == "n\n"


def test_locations_lead_to_the_users_line_through_library_helpers():
    module = module_with("%0 = constant <f32: 1.5> : tile<f32> loc(#loc6)")
    where = module.location(only(module, "constant"))
    assert where is not None
    assert (where.file, where.line, where.column, where.function) == ("/src/a.py", 12, 7, "kern")
    assert [f.function for f in where.chain] == ["astype", "kern"]
    assert module.location(ir.Op("x", (), (), {}, (), ())) is None


@pytest.mark.parametrize(
    ("line", "op"),
    [
        ("%0 = frobnicate %arg1 : tile<i32> loc(#loc5)", "frobnicate"),
        ("%0 = addi %arg1, %arg1 sparkle<3> : tile<i32> loc(#loc5)", "addi"),
        ("%0 = cmpi approximately %arg1, %arg1, signed : tile<i32> -> tile<i1> loc(#loc5)", "cmpi"),
        ("%0 = assume prime, %arg1 : tile<i32> loc(#loc5)", "assume"),
    ],
)
def test_what_the_tables_do_not_know_is_a_named_error_with_its_line(line, op):
    with pytest.raises(Unsupported) as caught:
        module_with(line)
    assert caught.value.op == op
    assert caught.value.location is not None
    assert caught.value.location.line == 12


@pytest.mark.parametrize("text", ["", "entry @k() {", "hello", ENTRY + "%1 = addi %7, %7 : tile<i32>\n}"])
def test_broken_text_is_refused(text):
    with pytest.raises((InvalidTileIR, Unsupported)):
        parse(text)


def test_bytes_that_are_no_bytecode_are_refused_by_the_disassembler():
    with pytest.raises(InvalidTileIR, match="failed to verify"):
        disassemble(b"not bytecode")


def export(kernel, parameters) -> bytes:
    out = io.BytesIO()
    signature = KernelSignature(parameters, CallingConvention.cutile_python_v2(), symbol="k")
    export_kernel(
        kernel, [signature], out, gpu_code="sm_100", output_format="tileir_bytecode", bytecode_version="13.4"
    )  # fmt: skip
    return out.getvalue()


def array(dtype, ndim) -> ArrayConstraint:
    return ArrayConstraint(
        dtype, ndim, index_dtype=ct.int32, stride_lower_bound_incl=0, alias_groups=(), may_alias_internally=False
    )  # fmt: skip


@ct.kernel
def _everything(x, y, p, n, T: ct.Constant[int]):
    i = ct.bid(0)
    tile = ct.load(x, (i, 0), (T, T), padding_mode=ct.PaddingMode.NEG_INF, latency=2)
    total = ct.sum(tile, axis=1)
    where = ct.argmax(tile, axis=1)
    running = ct.cumsum(total)
    for k in range(0, n, 2):
        if k == 4:
            continue
        running = running + 1
    while n > 0:
        n -= 1
        if n == 5:
            break
    old = ct.atomic_add(p, where, 1)
    ct.atomic_cas(p, 0, n, 2)
    picked = ct.gather(y, (where, where))
    ct.scatter(y, (where, where), picked * running + old.astype(ct.float32))
    ct.printf("%d\n", n)
    ct.assert_(n < 100, "too big")  # noqa: PT009


def test_a_real_kernel_of_many_forms_parses_with_a_python_line_at_every_operation_that_has_one():
    parameters = [array(ct.float32, 2), array(ct.float32, 2), array(ct.int32, 1)]
    text = disassemble(export(_everything, [*parameters, ScalarConstraint(ct.int32), ConstantConstraint(8)]))
    module = parse(text)
    names = set()

    def visit(region: ir.Region) -> None:
        for op in region.ops:
            names.add(op.name)
            where = module.location(op)
            assert op.name == "return" or where is None or where.file == __file__
            for inner in op.regions:
                visit(inner)

    visit(module.body)
    control = {"for", "loop", "if", "reduce", "scan", "continue", "break", "yield"}
    memory = {"atomic_rmw_tko", "atomic_cas_tko", "load_ptr_tko", "store_ptr_tko", "load_view_tko", "make_tensor_view"}
    assert control | memory | {"print_tko", "assert"} <= names
    assert len(module.args) == 5 + 5 + 3 + 1  # pointers, sizes and strides of ranks 2, 2, 1, and n


MUTATIONS = ["f32", "i32", "tile", "0", "-1", "9" * 25, "%0", "ptr", "?", "bf16", "3x3xf32", "}", "{", ":", "loc("]


@functools.cache
def _lines() -> list[str]:
    parameters = [array(ct.float32, 2), array(ct.float32, 2), array(ct.int32, 1)]
    code = export(_everything, [*parameters, ScalarConstraint(ct.int32), ConstantConstraint(8)])
    return disassemble(code).split("\n")


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_text_is_refused_by_name_or_builds_but_never_breaks_the_parser(data):
    lines = list(_lines())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        damage = data.draw(st.sampled_from(["delete", "swap", "repeat", "token"]))
        other = data.draw(st.integers(0, len(lines) - 1))
        if damage == "delete":
            del lines[at]
        elif damage == "swap":
            lines[at], lines[other] = lines[other], lines[at]
        elif damage == "repeat":
            lines.insert(at, lines[other])
        elif tokens := re.findall(r"\w+|\W", lines[at]):
            tokens[data.draw(st.integers(0, len(tokens) - 1))] = data.draw(st.sampled_from(MUTATIONS))
            lines[at] = "".join(tokens)
    with contextlib.suppress(TileIRError):
        build(parse("\n".join(lines)))
