"""Chips: the table is whole and consistent, names are forgiving, an unknown GPU is derived and says so."""

from __future__ import annotations

import pytest

from knowledge_base import chips
from knowledge_base.chips import ARCHS, CHIPS, DEFAULT, Chip, chip, from_answers
from knowledge_base.errors import EnvironmentLacks, UserError

RTX_5060_TI = {
    "clock_khz": 2572000, "sms": 36, "memory_khz": 14001000, "bus_bits": 128, "l2": 33554432, "threads": 1536,
    "major": 12, "minor": 0, "shared_sm": 102400, "registers": 65536, "shared_block": 101376, "blocks": 24,
}  # fmt: skip


def test_every_named_chip_is_there_and_the_default_is_an_rtx_5070():
    assert list(CHIPS) == ["rtx5070", "rtx5080", "rtx5090", "gb10", "b200", "gb300", "h100", "h200"]
    assert DEFAULT == "rtx5070"
    assert {c.arch for c in CHIPS.values()} == set(ARCHS)


@pytest.mark.parametrize("name", CHIPS)
def test_every_figure_has_a_unit_and_a_source(name):
    figures = CHIPS[name].figures()
    assert len(figures) >= 17
    for figure in figures:
        assert figure.source, figure.name
        assert figure.unit, figure.name
        assert figure.value > 0


def test_a_chip_without_a_source_for_a_figure_is_refused():
    data = CHIPS["h200"].model_dump()
    del data["sources"]["l2_bytes"]
    with pytest.raises(ValueError, match="no source for l2_bytes"):
        Chip(**data)


@pytest.mark.parametrize(
    ("name", "bf16_tflops", "fp32_tflops"),
    [
        ("rtx5090", 209.5, 104.8),
        ("rtx5080", 112.6, 56.3),
        ("rtx5070", 61.7, 30.9),
        ("b200", 2250, 75),
        ("h200", 989, 67),
    ],
)
def test_peaks_equal_the_published_dense_rates(name, bf16_tflops, fp32_tflops):
    found = CHIPS[name]
    assert found.tensor_flops["bf16"] / 1e12 == pytest.approx(bf16_tflops, rel=0.005)
    assert found.fp32_flops / 1e12 == pytest.approx(fp32_tflops, rel=0.005)


@pytest.mark.parametrize("name", CHIPS)
def test_figures_of_one_chip_agree_with_each_other(name):
    c = CHIPS[name]
    assert c.shared_per_block == c.shared_per_sm - 1024
    assert c.tensor_flops["f8"] == pytest.approx(2 * c.tensor_flops["bf16"], rel=0.01)
    assert c.tensor_flops["bf16"] == pytest.approx(2 * c.tensor_flops["tf32"], rel=0.03)
    # 128 fused multiply-adds a clock and SM
    assert c.fp32_flops == pytest.approx(256 * c.sm_count * c.boost_hz, rel=0.02)
    assert c.l2_bytes_per_s > c.memory_bytes_per_s
    assert c.capability == (int(c.arch[3:-1]), int(c.arch[-1]))


@pytest.mark.parametrize("spelling", ["H200", "h-200", "h 200", "H_200"])
def test_names_ignore_case_and_separators(spelling):
    assert chip(spelling) is CHIPS["h200"]


def test_an_unknown_name_is_a_user_error_with_the_nearest_names():
    with pytest.raises(UserError, match="rtx5071") as raised:
        chip("rtx5071")
    assert "rtx5070" in raised.value.mend
    assert raised.value.exit_code == 2


def test_auto_without_a_driver_says_what_to_do(monkeypatch):
    import ctypes

    def no_driver(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", no_driver)
    with pytest.raises(EnvironmentLacks, match="no CUDA driver") as raised:
        chip("auto")
    assert "rtx5070" in raised.value.mend


def test_a_recorded_product_is_recognised_from_the_drivers_answers():
    answers = {**RTX_5060_TI, "sms": 132, "major": 9, "minor": 0}
    assert from_answers("NVIDIA H200", 150_754_820_096, answers) is CHIPS["h200"]


def test_a_ti_is_not_taken_for_the_plain_card():
    found = from_answers("NVIDIA GeForce RTX 5070 Ti", 17_094_475_776, {**RTX_5060_TI, "sms": 70})
    assert found.derived
    assert found.sm_count == 70


def test_an_unrecorded_product_is_derived_and_says_so():
    found = from_answers("NVIDIA GeForce RTX 5060 Ti", 16_000_000_000, RTX_5060_TI)
    assert found.derived
    assert (found.name, found.arch, found.sm_count) == ("nvidia-geforce-rtx-5060-ti", "sm_120", 36)
    assert found.memory_bytes_per_s == pytest.approx(448e9, rel=0.001)
    assert found.tensor_flops["bf16"] == pytest.approx(512 * 36 * 2.572e9)
    assert found.sources["sm_count"].startswith("derived")


def test_a_derived_chip_is_found_by_its_name_where_its_product_is(monkeypatch):
    """What is stored of such a chip names it."""
    with pytest.raises(UserError, match="no chip called"):
        chip("nvidia-geforce-rtx-5060-ti")
    asked = ("NVIDIA GeForce RTX 5060 Ti", 16_000_000_000, RTX_5060_TI)
    monkeypatch.setattr(chips, "_ask_driver", lambda device: asked)
    assert chip("nvidia-geforce-rtx-5060-ti") == chip("auto")
    with pytest.raises(UserError, match="no chip called"):
        chip("nvidia-geforce-rtx-5060")


def test_an_h100_is_the_sxm_card_with_80_gb():
    answers = {**RTX_5060_TI, "sms": 132, "major": 9, "minor": 0}
    assert from_answers("NVIDIA H100 80GB HBM3", 85_000_000_000, answers) is CHIPS["h100"]
    assert from_answers("NVIDIA H100 PCIe", 85_000_000_000, {**answers, "sms": 114}).derived


def test_an_unsupported_architecture_is_a_user_error():
    with pytest.raises(UserError, match="sm_86"):
        from_answers("NVIDIA GeForce RTX 3090", 24 << 30, {**RTX_5060_TI, "major": 8, "minor": 6})
