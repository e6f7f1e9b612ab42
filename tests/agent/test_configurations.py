"""Which configurations are looked at: all of a small space, an even and repeatable part of a large one."""

from __future__ import annotations

from agent.loop.enumeration import configurations

AXES = {"a": list(range(8)), "b": list(range(8)), "c": ["x", "y", "z"], "d": [1]}


def test_a_small_space_is_taken_whole_default_first():
    found = list(configurations(AXES, limit=192))
    assert found[0] == {"a": 0, "b": 0, "c": "x", "d": 1}
    assert len({tuple(f.values()) for f in found}) == len(found) == 192


def test_a_large_space_is_sampled_without_repetition_and_covers_every_value():
    found = list(configurations(AXES, limit=60))
    assert len({tuple(f.values()) for f in found}) == len(found) == 60
    for name, values in AXES.items():
        assert {f[name] for f in found} == set(values)


def test_samples_depend_on_the_seed_and_on_nothing_else():
    assert list(configurations(AXES, 60, seed=1)) == list(configurations(AXES, 60, seed=1))
    assert list(configurations(AXES, 60, seed=1)) != list(configurations(AXES, 60, seed=2))


def test_warm_starts_come_before_the_default_and_foreign_ones_are_ignored():
    first = [{"a": 5, "c": "z"}, {"a": 99}, {"unknown": 1}, {"b": 2}]
    found = list(configurations(AXES, 20, first))
    assert found[:3] == [
        {"a": 5, "b": 0, "c": "z", "d": 1},
        {"a": 0, "b": 2, "c": "x", "d": 1},
        {"a": 0, "b": 0, "c": "x", "d": 1},
    ]


def test_a_file_without_axes_has_one_configuration():
    assert list(configurations({}, 10)) == [{}]
