"""Resizing against a plain loop that follows Matlab's words, values worked out by hand, and what must hold of any resize."""

import math

import numpy as np
import pytest
import torch

from sckn.superres.imresize import imresize, reflected, resample, resize_taps

# The cubic kernel with a = -1/2 at odd multiples of 1/4: one step of a doubling, and half of a halving.
QUARTERS = {0.25: 0.8671875, 0.75: 0.2265625, 1.25: -0.0703125, 1.75: -0.0234375}


def cubic(x: float) -> float:
    x = abs(x)
    if x <= 1:
        return 1.5 * x**3 - 2.5 * x**2 + 1
    return -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x <= 2 else 0.0


def naive_resize(signal: np.ndarray, scale: float) -> np.ndarray:
    """One line of pixels, with Matlab's indices from 1."""
    before, after = len(signal), math.ceil(len(signal) * scale)
    stretch = min(1.0, scale)
    mirrored = np.concatenate([signal, signal[::-1]])
    result = []
    for x in range(1, after + 1):
        u = x / scale + 0.5 * (1 - 1 / scale)
        left = math.floor(u - 2 / stretch)
        places = range(left, left + math.ceil(4 / stretch) + 2)
        weights = np.array([stretch * cubic(stretch * (u - place)) for place in places])
        values = np.array([mirrored[(place - 1) % (2 * before)] for place in places])
        result.append(weights @ values / weights.sum())
    return np.array(result)


@pytest.mark.parametrize("scale", [0.2, 1 / 3, 0.5, 0.75, 0.9, 1.1, 1.5, 2, 3, 4])
@pytest.mark.parametrize("size", [1, 2, 7, 24])
def test_it_is_what_matlab_says(scale: float, size: int) -> None:
    image = np.random.RandomState(0).rand(size, size + 1) * 255
    columns = np.stack([naive_resize(line, scale) for line in image.T], axis=1)
    expected = np.stack([naive_resize(line, scale) for line in columns])
    assert np.allclose(imresize(torch.from_numpy(image), scale).numpy(), expected, atol=1e-10)


def test_values_worked_out_by_hand() -> None:
    weights = [QUARTERS[x] for x in (1.25, 0.25, 0.75, 1.75)]
    line = torch.tensor([[10.0, 20.0, 40.0, 80.0, 160.0]], dtype=torch.float64)
    double = imresize(line, size=(1, 10))
    # the sixth new pixel sits a quarter of a pixel right of the third old one, which weighs most
    assert float(double[0, 5]) == pytest.approx(sum(w * x for w, x in zip(weights, (20, 40, 80, 160), strict=True)))
    half = imresize(torch.tensor([[0.0, 50.0, 100.0, 150.0]], dtype=torch.float64), size=(1, 2))
    pairs = {0.25: 0 + 50, 0.75: 0 + 100, 1.25: 50 + 150, 1.75: 100 + 150}
    assert float(half[0, 0]) == pytest.approx(sum(QUARTERS[x] * pair for x, pair in pairs.items()) / 2)
    assert float(half[0, 0] + half[0, 1]) == pytest.approx(150)


@pytest.mark.parametrize("scale", [0.25, 1 / 3, 0.7, 2, 3.3])
def test_it_commutes_with_mirroring_and_turning(scale: float) -> None:
    image = torch.rand(3, 30, 30, dtype=torch.float64)
    side = round(30 * scale)
    resized = imresize(image, size=(side, side))
    for move in (lambda x: x.flip(-1), lambda x: x.flip(-2), lambda x: x.transpose(-1, -2)):
        assert torch.allclose(imresize(move(image), size=(side, side)), move(resized), atol=1e-12)


def test_constants_stay_and_straight_lines_grow_straight() -> None:
    assert torch.allclose(imresize(torch.full((9, 9), 7.0), 0.4), torch.tensor(7.0))
    ramp = torch.arange(20.0, dtype=torch.float64).expand(20, 20)
    expected = (torch.arange(60, dtype=torch.float64) + 0.5) / 3 - 0.5
    assert torch.allclose(imresize(ramp, 3)[30, 9:-9], expected[9:-9])


def test_without_antialiasing_shrinking_takes_four_pixels() -> None:
    assert resize_taps(100, 25, antialias=False).weights.shape[1] == 4
    assert resize_taps(100, 25).weights.shape[1] > 12


def test_types() -> None:
    image = torch.randint(0, 256, (2, 12, 12), dtype=torch.uint8)
    exact = imresize(image.double(), 0.5)
    assert torch.equal(imresize(image, 0.5), (exact + 0.5).floor().clamp(0, 255).to(torch.uint8))
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        result = imresize(image.to(dtype), 0.5)
        assert result.dtype == dtype
        assert torch.allclose(result.double(), exact, atol=1.0 if dtype == torch.bfloat16 else 0.13)
    assert imresize(image, 1.0) is not None
    assert torch.equal(imresize(image, 1.0), image)


def test_an_edge_overshoots_and_is_clipped_in_bytes() -> None:
    edge = torch.tensor([[0, 0, 255, 255]], dtype=torch.uint8)
    assert float(imresize(edge.double(), 2).min()) < 0
    assert int(imresize(edge, 2).min()) == 0


def test_a_window_can_be_computed_alone() -> None:
    image = torch.rand(17, 5, dtype=torch.float64)
    taps = resize_taps(17, 29)
    assert torch.equal(resample(image, taps.window(4, 9), 0), resample(image, taps, 0)[4:9])


def test_gradients_flow() -> None:
    image = torch.rand(1, 6, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: imresize(x, 1.5), image)


def test_reflection() -> None:
    assert reflected(torch.arange(-7, 8), 3).tolist() == [0, 0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0, 0, 1]


@pytest.mark.parametrize(
    ("image", "arguments", "sentence"),
    [
        (torch.rand(4), {"scale": 2}, r"\(\.\.\., H, W\)"),
        (torch.rand(0, 4), {"scale": 2}, "pixels in it"),
        (torch.rand(4, 4), {}, "either a scale or a size"),
        (torch.rand(4, 4), {"scale": 2, "size": (3, 3)}, "either a scale or a size"),
        (torch.rand(4, 4), {"scale": -1.0}, "scale must be a number above 0"),
        (torch.rand(4, 4), {"size": (0, 3)}, "each side of size"),
    ],
)
def test_what_it_refuses(image: torch.Tensor, arguments: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        imresize(image, **arguments)
