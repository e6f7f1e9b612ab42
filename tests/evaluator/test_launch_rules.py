"""ct.launch's rules about arrays: stated once, so the tracer on plain sizes and the emulator's launcher agree."""

from typing import Annotated

import cuda.tile as ct
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.tileir.arguments import LaunchError, pass_arguments
from evaluator.tileir.memory import Memory
from evaluator.trace.signature import _Guarded
from evaluator.trace.symbolic import Context
from kernels_generated.runtime.launch_rules import ArrayFacts, array_facts, common, disjoint

ALIGNED = (16, 0)


def test_once_an_annotation_names_a_stride_no_other_one_is_inferred() -> None:
    shape, strides = (48, 40), (40, 1)
    assert array_facts(shape, strides, 32, ALIGNED).stride_constant == (None, 1)
    assert array_facts(shape, strides, 32, ALIGNED, ((), (0,))).stride_constant == (40, None)
    assert array_facts(shape, strides, 32, ALIGNED, ((-1,), ())).shape_constant == (None, 40)
    with pytest.raises(TypeError, match="fixes axis 2, the array has 2"):
        array_facts(shape, strides, 32, ALIGNED, ((), (2,)))


def test_an_annotation_that_names_no_stride_leaves_them_inferred() -> None:
    @ct.kernel
    def wide(x: ct.IndexedWithInt64):
        pass

    (passed,) = pass_arguments(wide, (torch.zeros(48, 40),), Memory()).parameters
    assert (passed.index_dtype, passed.stride_constant) == (ct.int64, (None, 1))


def test_an_annotation_of_an_axis_that_is_not_there_is_refused() -> None:
    @ct.kernel
    def static(x: Annotated[ct.Array, ct.ArrayAnnotation(static_shape_dims=(2,))]):
        pass

    with pytest.raises(LaunchError, match="x: its annotation fixes axis 2, the array has 2"):
        pass_arguments(static, (torch.zeros(48, 40),), Memory())


def test_a_fact_that_is_broken_is_named() -> None:
    facts = array_facts((64, 32), (32, 1), 16, ALIGNED)
    assert facts.broken((80, 48), (48, 1), 0) == ""
    assert facts.broken((80, 44), (48, 1), 0) == "shape[1] % 16 == 0, it is 44"
    assert facts.broken((80, 48), (48, 2), 0) == "stride[1] == 1, it is 2"
    assert facts.broken((80, 48), (48, 1), 8) == "an address divisible by 16, it starts at byte 8"
    assert facts.broken((80, 48), (16, 1), 0) == "elements that do not overlap"


def test_of_a_list_all_is_said_that_is_so_of_each() -> None:
    one, other = array_facts((64, 1), (1, 64), 32, ALIGNED), array_facts((24, 1), (1, 24), 32, (16, 8))
    assert common([one, other]) == ArrayFacts((None, 1), (1, None), (1, 1), (1, 4), 1, False)
    assert common([one]) == one


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_symbols_that_are_plain_numbers_get_the_same_facts(data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, 6))
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 16, 24, 48]), min_size=rank, max_size=rank))
    strides = data.draw(st.lists(st.sampled_from([0, 1, 2, 4, 8, 16, 48, 96]), min_size=rank, max_size=rank))
    axes = st.lists(st.integers(-rank, rank - 1), max_size=2) if rank else st.just([])
    static = (tuple(data.draw(axes)), tuple(data.draw(axes)))
    bits, start = data.draw(st.sampled_from([8, 16, 32, 64])), (16, data.draw(st.sampled_from([0, 8, 16])))
    plain = array_facts(shape, strides, bits, start, static)
    for sample in (False, True):
        assert array_facts(shape, strides, bits, start, static, _Guarded(Context({}), sample)) == plain
    assert plain.broken(shape, strides, start[1]) == ""
    if disjoint(shape, strides):
        places = [0]
        for n, s in zip(shape, strides, strict=True):
            places = [p + k * s for p in places for k in range(min(n, 4))]
        assert len(set(places)) == len(places)
