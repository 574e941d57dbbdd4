"""Settings are taken in the types that people use, and refused by name."""

from typing import Any

import numpy as np
import pytest

from sckn import KernelLayer, LayerConfig, NetworkConfig, kernels
from sckn.settings import one_of, real_number, true_or_false, whole_number


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_whole_numbers(value: Any) -> None:
    assert whole_number("x", value) == 3
    assert type(whole_number("x", value)) is int


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "3", None, float("nan"), float("inf"), [3]])
def test_no_whole_number(value: Any) -> None:
    with pytest.raises(ValueError, match="x must be a whole number of at least 1, got"):
        whole_number("x", value)


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int64(2)])
def test_real_numbers(value: Any) -> None:
    assert real_number("x", value, least=2, below=3) == 2.0
    assert type(real_number("x", value)) is float


@pytest.mark.parametrize("value", [0, 3.0, float("nan"), float("inf"), "2", True, None, 1j])
def test_no_real_number(value: Any) -> None:
    with pytest.raises(ValueError, match="x must be a number above 0 and below 3, got"):
        real_number("x", value, above=0, below=3)


def test_a_number_of_at_most_another() -> None:
    assert real_number("x", 3, most=3) == 3.0
    with pytest.raises(ValueError, match=r"x must be a number above 0 and of at most 3, got 3\.5"):
        real_number("x", 3.5, above=0, most=3)


def test_words_and_truth_values() -> None:
    assert one_of("x", "a", ("a", "b")) == "a"
    with pytest.raises(ValueError, match="x must be 'a' or 'b', got 'c'"):
        one_of("x", "c", ("a", "b"))
    assert true_or_false("x", np.True_) is True
    with pytest.raises(ValueError, match="x must be true or false, got 'false'"):
        true_or_false("x", "false")


@pytest.mark.parametrize(
    "settings",
    [
        {"filters": 2.5},
        {"patch": 0},
        {"subsampling": "2"},
        {"subsampling": 0.5},
        {"padding": "false"},
        {"epsilon": -1.0},
        {"norm_offset": float("nan")},
        {"pooling_width": 0.0},
        {"inverse_root": "svd"},
        {"gradient": "none"},
        {"kernel": "Exponential"},
    ],
)
def test_a_layer_names_the_setting(settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(ValueError, match=f"^{name} must be"):
        LayerConfig(**{"filters": 4, "patch": 3, **settings})


def test_plain_types_are_kept() -> None:
    layer = LayerConfig(np.int64(4), np.int32(3), subsampling=np.float32(2))  # pyright: ignore[reportArgumentType]
    assert layer == LayerConfig(4, 3, subsampling=2.0)
    assert [type(value) for value in (layer.filters, layer.patch, layer.subsampling)] == [int, int, float]


def test_constructors_name_what_they_want() -> None:
    with pytest.raises(ValueError, match="layers must be one or more LayerConfig"):
        NetworkConfig(1, LayerConfig(3, 3))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="a KernelLayer is made from its number of input channels and a LayerConfig"):
        KernelLayer(LayerConfig(3, 3), 1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="in_channels must be a whole number"):
        KernelLayer(0, LayerConfig(3, 3))
    with pytest.raises(ValueError, match="alpha must be a number above 0"):
        kernels.Exponential("4")  # pyright: ignore[reportArgumentType]
