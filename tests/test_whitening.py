"""Local whitening against explicit loops and a singular value decomposition, and its closed-form properties."""

import numpy as np
import pytest
import torch
from torch import Tensor

from sckn.whitening import local_whitening


def naive_whitening(image: np.ndarray, patch: int) -> np.ndarray:
    """One image (c, H, W) as the method says it: X = U s V' becomes U s^(1/2) V', for (X X')^(-1/4) X."""
    channels, height, width = image.shape
    places = [(row, column) for row in range(height - patch + 1) for column in range(width - patch + 1)]
    columns = []
    for row, column in places:
        cut = image[:, row : row + patch, column : column + patch].copy()
        for channel in range(channels):
            cut[channel] -= cut[channel].mean()
        columns.append(cut.ravel())
    X = np.stack(columns, axis=1)
    X -= X.mean(axis=1, keepdims=True)
    U, s, Vt = np.linalg.svd(X, full_matrices=False)
    X = U @ np.diag(np.where(s < 1e-6 * s.max(), 0, np.sqrt(s))) @ Vt
    total, count = np.zeros_like(image), np.zeros_like(image)
    for (row, column), cut in zip(places, X.T, strict=True):
        total[:, row : row + patch, column : column + patch] += cut.reshape(channels, patch, patch)
        count[:, row : row + patch, column : column + patch] += 1
    return total / count


def naive_batch(images: Tensor, patch: int = 3) -> np.ndarray:
    return np.stack([naive_whitening(image, patch) for image in images.double().numpy()])


def smooth_images(count: int, channels: int, height: int, width: int) -> Tensor:
    """Waves of few frequencies with some noise, the spectrum of photographs in small."""
    row, column = torch.meshgrid(torch.arange(height).double(), torch.arange(width).double(), indexing="ij")
    frequency = torch.rand(count, channels, 2, 1, 1, dtype=torch.float64)
    waves = torch.sin(frequency[:, :, 0] * row + frequency[:, :, 1] * column)
    return 0.5 + 0.3 * waves + 0.02 * torch.randn(count, channels, height, width, dtype=torch.float64)


@pytest.mark.parametrize(
    ("channels", "height", "width", "patch"), [(3, 12, 12, 3), (1, 10, 13, 3), (3, 11, 9, 2), (2, 14, 12, 5), (3, 5, 5, 4)]
)
def test_agrees_with_a_naive_loop(channels: int, height: int, width: int, patch: int) -> None:
    for images in (torch.rand(3, channels, height, width, dtype=torch.float64), smooth_images(3, channels, height, width)):
        np.testing.assert_allclose(
            local_whitening(images, patch).numpy(), naive_batch(images, patch), rtol=1e-8, atol=1e-10, strict=True
        )


def test_size_of_cifar_images() -> None:
    images = smooth_images(2, 3, 32, 32)
    np.testing.assert_allclose(local_whitening(images).numpy(), naive_batch(images), rtol=1e-8, atol=1e-10)


def test_faint_directions_above_the_threshold_are_kept() -> None:
    """Noise of 1e-4 of the contrast: its singular values are small but no rounding."""
    row = torch.linspace(0, 1, 16, dtype=torch.float64)
    images = (row[:, None] * row).expand(1, 3, 16, 16) + 1e-4 * torch.randn(1, 3, 16, 16, dtype=torch.float64)
    np.testing.assert_allclose(local_whitening(images).numpy(), naive_batch(images), rtol=0, atol=1e-7)


def test_directions_below_the_threshold_are_left_out() -> None:
    """Noise of 1e-9 in one channel beside contrast 1 in another: that channel becomes zero."""
    images = torch.rand(1, 2, 10, 10, dtype=torch.float64)
    images[:, 1] = 0.5 + 1e-9 * torch.randn(10, 10, dtype=torch.float64)
    whitened = local_whitening(images)
    np.testing.assert_allclose(whitened.numpy(), naive_batch(images), rtol=1e-8, atol=1e-10)
    assert float(whitened[:, 1].abs().max()) < 1e-8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1 / 3, -0.7, 1e6, 1e-12, 1e-30, 3e30])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_constant_image_gives_zeros(value: float, dtype: torch.dtype, channels: int) -> None:
    assert torch.equal(
        local_whitening(torch.full((2, channels, 9, 8), value, dtype=dtype)), torch.zeros(2, channels, 9, 8, dtype=dtype)
    )


def test_constant_bytes_give_zeros() -> None:
    images = torch.arange(256, dtype=torch.uint8)[:, None, None, None].expand(256, 3, 7, 7)
    assert torch.equal(local_whitening(images), torch.zeros(256, 3, 7, 7))


def test_a_different_constant_in_each_channel_gives_zeros() -> None:
    images = torch.tensor([0.1, 0.7, 1 / 3], dtype=torch.float64)[None, :, None, None].expand(1, 3, 8, 8)
    assert torch.equal(local_whitening(images), torch.zeros(1, 3, 8, 8, dtype=torch.float64))


def test_a_constant_channel_stays_zero_and_leaves_the_others_alone() -> None:
    images = torch.rand(2, 3, 10, 10, dtype=torch.float64)
    images[:, 1] = 0.37
    whitened = local_whitening(images)
    assert float(whitened[:, 1].abs().max()) < 1e-13
    others = local_whitening(images[:, [0, 2]])
    torch.testing.assert_close(whitened[:, [0, 2]], others, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(whitened.numpy(), naive_batch(images), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("exponent", range(0, 18))
@pytest.mark.parametrize("background", [0.0, 0.1, 1.0])
def test_one_pixel_that_differs(background: float, exponent: int) -> None:
    """The pixel is in 9 patches, so the largest singular value is at most 3 times the difference, and no number of
    U s^(1/2) V' exceeds its root."""
    difference = 10.0**-exponent
    images = torch.full((1, 3, 12, 12), background, dtype=torch.float64)
    images[0, 1, 6, 5] += difference
    whitened = local_whitening(images)
    assert bool(torch.isfinite(whitened).all())
    assert float(whitened.abs().max()) <= (3 * difference) ** 0.5 * (1 + 1e-3)
    if exponent <= 8:
        np.testing.assert_allclose(whitened.numpy(), naive_batch(images), rtol=0, atol=1e-5 * difference**0.5)


@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_the_batch_size_does_not_change_the_result(batch_size: int) -> None:
    images = smooth_images(7, 3, 9, 10)
    torch.testing.assert_close(local_whitening(images, batch_size=batch_size), local_whitening(images), rtol=1e-12, atol=1e-12)


def test_images_do_not_affect_each_other() -> None:
    images = smooth_images(4, 3, 9, 9)
    images[1] = 0.5
    images[2] *= 1e4
    alone = torch.cat([local_whitening(image[None]) for image in images])
    torch.testing.assert_close(local_whitening(images), alone, rtol=1e-12, atol=1e-12)


def test_bytes_are_parts_of_255() -> None:
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    whitened = local_whitening(images)
    assert whitened.dtype == torch.float32
    np.testing.assert_allclose(whitened.numpy(), naive_batch(images.double() / 255), rtol=1e-6, atol=1e-6)
    assert torch.equal(whitened, local_whitening(images.double() / 255).float())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_type_is_kept_and_the_images_are_left_alone(dtype: torch.dtype) -> None:
    images = torch.rand(2, 3, 8, 8).to(dtype)
    before = images.clone()
    whitened = local_whitening(images)
    assert whitened.dtype == dtype
    assert torch.equal(images, before)
    exact = torch.from_numpy(naive_batch(images))
    half_a_digit = torch.finfo(dtype).eps
    torch.testing.assert_close(whitened.double(), exact, rtol=half_a_digit, atol=max(half_a_digit * 1e-2, 1e-10))


@pytest.mark.parametrize("gain", [1e-6, 0.01, 3.0, 255.0, 1e8])
def test_scaling_an_image_scales_the_result_by_the_root(gain: float) -> None:
    images = smooth_images(2, 3, 10, 10)
    torch.testing.assert_close(
        local_whitening(gain * images), gain**0.5 * local_whitening(images), rtol=1e-8, atol=1e-9 * gain**0.5
    )


def test_a_constant_added_to_a_channel_changes_nothing() -> None:
    images = smooth_images(2, 3, 10, 10)
    shift = torch.tensor([5.0, -2.0, 0.3], dtype=torch.float64)[:, None, None]
    torch.testing.assert_close(local_whitening(images + shift), local_whitening(images), rtol=0, atol=1e-9)


def test_turning_an_image_turns_the_result() -> None:
    images = smooth_images(2, 3, 10, 12)
    torch.testing.assert_close(
        local_whitening(images.rot90(1, (2, 3))), local_whitening(images).rot90(1, (2, 3)), rtol=0, atol=1e-10
    )


def test_images_that_require_gradients() -> None:
    """Not differentiated, but a tensor that happens to require gradients is whitened like any other."""
    images = smooth_images(2, 3, 8, 8)
    torch.testing.assert_close(local_whitening(images.clone().requires_grad_()).detach(), local_whitening(images))


def test_no_images() -> None:
    assert local_whitening(torch.rand(0, 3, 8, 8)).shape == (0, 3, 8, 8)


@pytest.mark.parametrize("shape", [(2, 3, 2, 8), (2, 3, 8, 2), (3, 8, 8), (1, 2, 3, 8, 8)])
def test_images_without_a_patch_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"at least 3 x 3 pixels, got \("):
        local_whitening(torch.rand(shape))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_agrees_with_the_cpu() -> None:
    images = smooth_images(64, 3, 32, 32)
    images[3] = 0.4
    images[5, 1] = 0.2
    on_cuda = local_whitening(images.cuda())
    assert on_cuda.device.type == "cuda"
    torch.testing.assert_close(on_cuda.cpu(), local_whitening(images), rtol=1e-8, atol=1e-9)
    assert torch.equal(on_cuda[3].cpu(), torch.zeros(3, 32, 32, dtype=torch.float64))
