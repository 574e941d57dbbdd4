"""PSNR and SSIM against closed forms, scikit-image, and a plain loop at the border."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from sckn.superres.quality import psnr, ssim, ssim_map


@pytest.fixture
def pair() -> tuple[torch.Tensor, torch.Tensor]:
    """A smooth picture with an edge, and the same with noise, both in whole numbers."""
    row, column = torch.meshgrid(torch.arange(40.0), torch.arange(33.0), indexing="ij")
    truth = (120 + 80 * torch.sin(row / 5) * torch.cos(column / 7) + 40 * (column > 20)).round().clamp(0, 255)
    return (truth + 12 * torch.randn(40, 33)).round().clamp(0, 255), truth


def test_psnr_of_known_errors() -> None:
    truth = torch.zeros(10, 10)
    assert psnr(truth + 255, truth) == 0
    assert psnr(truth + 1, truth) == pytest.approx(20 * math.log10(255))
    assert psnr(truth, truth) == math.inf
    assert psnr(truth + 0.1, truth, peak=1.0) == pytest.approx(20)


def test_psnr_as_in_scikit_image(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    image, truth = pair
    assert psnr(image, truth) == pytest.approx(peak_signal_noise_ratio(truth.numpy(), image.numpy(), data_range=255))
    assert psnr(image.to(torch.uint8), truth.to(torch.uint8)) == psnr(image, truth)


def test_ssim_as_in_scikit_image_away_from_the_border(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    image, truth = pair
    settings = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "data_range": 255}
    found: Any = structural_similarity(image.double().numpy(), truth.double().numpy(), full=True, **settings)
    expected = found[1]
    inside = (slice(5, -5), slice(5, -5))
    assert np.allclose(ssim_map(image, truth)[inside].numpy(), expected[inside], atol=1e-12)


def test_ssim_repeats_the_last_pixel_beyond_the_border(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    image, truth = pair
    larger, larger_truth = (torch.from_numpy(np.pad(x.double().numpy(), 5, mode="edge")) for x in pair)
    assert torch.allclose(ssim_map(image, truth), ssim_map(larger, larger_truth)[5:-5, 5:-5])
    assert ssim(image, truth) == pytest.approx(float(ssim_map(image, truth).mean()))


def test_ssim_of_constants_has_a_closed_form() -> None:
    a, b, C1 = 100.0, 150.0, 2.55**2
    expected = (2 * a * b + C1) / (a * a + b * b + C1)
    assert ssim(torch.full((20, 20), a), torch.full((20, 20), b)) == pytest.approx(expected)
    assert ssim(torch.full((3, 2), a), torch.full((3, 2), a)) == pytest.approx(1)


def test_what_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="two images of one size"):
        psnr(torch.rand(3, 3), torch.rand(3, 4))
    with pytest.raises(ValueError, match="two images of one size"):
        psnr(torch.rand(0, 3), torch.rand(0, 3))
    with pytest.raises(ValueError, match=r"shape \(H, W\)"):
        ssim(torch.rand(3, 3, 3), torch.rand(3, 3, 3))
