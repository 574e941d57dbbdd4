"""K_Z against products of features and against kernel machines; the exact kernel against loops and explicit features."""

import math
import pickle
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from closed_form import pooling_weights
from sklearn.base import clone
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.svm import SVC
from torch import Tensor, nn

from sckn import gram
from sckn.gram import ImageKernel, exact_kernel_matrix, exact_layer_kernel, kernel_matrix
from sckn.kernels import ArcCosine, CentredExponential, Exponential, Kernel, Linear, Polynomial
from sckn.layer import KernelLayer, LayerConfig
from sckn.network import CKN, NetworkConfig
from sckn.patches import extract_patches
from sckn.pooling import pooling_matrix

Array = npt.NDArray[np.float64]


def random_images(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def network() -> CKN:
    torch.manual_seed(0)
    return CKN(NetworkConfig(3, (LayerConfig(8, 3, subsampling=math.sqrt(2)), LayerConfig(12, 2, subsampling=2)))).double()


def flat_features(network: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return network(images).flatten(1)


# K_Z


@pytest.mark.parametrize("batch_size", [1, 3, 4, 100])
def test_blocks_equal_the_product_of_features(network: CKN, batch_size: int) -> None:
    images, others = random_images(7, 3, 8, 8), random_images(5, 3, 8, 8, seed=1)
    x, y = flat_features(network, images), flat_features(network, others)
    torch.testing.assert_close(kernel_matrix(network, images, batch_size=batch_size), x @ x.T, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(kernel_matrix(network, images, others, batch_size=batch_size), x @ y.T, rtol=1e-12, atol=1e-12)


def test_kernel_is_the_sum_over_positions(network: CKN) -> None:
    images = random_images(2, 3, 8, 8)
    with torch.no_grad():
        a, b = network(images)
    expected = sum(float(a[:, i, j] @ b[:, i, j]) for i in range(a.shape[1]) for j in range(a.shape[2]))
    assert float(kernel_matrix(network, images)[0, 1]) == pytest.approx(expected, rel=1e-12)


def test_numpy_images_may_be_read_only_reversed_or_of_another_type(network: CKN) -> None:
    images = random_images(4, 3, 8, 8)
    array = images.numpy()[::-1]
    array.flags.writeable = False
    expected = kernel_matrix(network, images.flip(0))
    assert torch.equal(kernel_matrix(network, array), expected)
    assert torch.equal(kernel_matrix(network, images.flip(0), array), kernel_matrix(network, images.flip(0), images.flip(0)))
    torch.testing.assert_close(kernel_matrix(network, array.astype(np.float32)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("dtype", "result"), [(torch.float32, torch.float32), (torch.float64, torch.float64)])
def test_precision_follows_the_network(network: CKN, dtype: torch.dtype, result: torch.dtype) -> None:
    K = kernel_matrix(network.to(dtype), random_images(3, 3, 8, 8))
    assert K.dtype == result
    assert K.device.type == "cpu"
    assert not K.requires_grad


def test_modes_of_all_modules_are_restored_also_after_an_error(network: CKN) -> None:
    network.train()
    network.layers[1].eval()
    modes: list[bool] = []
    network.layers[0].register_forward_hook(lambda module, *_: modes.append(module.training))
    kernel_matrix(network, random_images(3, 3, 8, 8))
    with pytest.raises(ValueError, match="expected images"):
        kernel_matrix(network, random_images(3, 2, 8, 8))
    assert modes == [False]
    assert [network.training, network.layers[0].training, network.layers[1].training] == [True, True, False]
    assert torch.is_grad_enabled()


def test_symmetric_case_encodes_each_pair_of_blocks_once(network: CKN) -> None:
    sizes: list[int] = []
    network.register_forward_hook(lambda _module, inputs, _output: sizes.append(len(inputs[0])))
    images = random_images(8, 3, 8, 8)
    kernel_matrix(network, images, batch_size=2)
    assert sizes == [2] * (4 + 3 + 2 + 1)  # the features of the rows serve the diagonal
    sizes.clear()
    kernel_matrix(network, images, images[:3], batch_size=2)
    assert sizes == [2, 2, 1] * 4


def test_single_layer_and_empty_sets(network: CKN) -> None:
    layer, images = network.kernel_layers[0], random_images(3, 3, 6, 6)
    x = flat_features(layer, images)
    torch.testing.assert_close(kernel_matrix(layer, images), x @ x.T)
    assert kernel_matrix(network, images[:0], images).shape == (0, 3)
    assert exact_kernel_matrix(network, images, images[:0]).shape == (3, 0)


@pytest.mark.parametrize("function", [kernel_matrix, exact_kernel_matrix])
def test_shapes_that_do_not_fit_are_named(network: CKN, function: type) -> None:
    with pytest.raises(ValueError, match=r"\(2, 3, 8, 8\) and \(2, 3, 8, 9\)"):
        function(network, random_images(2, 3, 8, 8), random_images(2, 3, 8, 9))
    with pytest.raises(ValueError, match=r"\(3, 8, 8\)"):
        function(network, random_images(3, 8, 8))


# kernel machines


def labelled(network: CKN) -> tuple[Tensor, npt.NDArray[np.int64], Tensor]:
    """Training images, labels of three classes that are not separable, and test images."""
    train, test = random_images(40, 3, 8, 8, seed=2), random_images(15, 3, 8, 8, seed=3)
    scores = flat_features(network, train) @ random_images(math.prod(network(train[:1]).shape), 3, seed=4)
    return train, (scores + scores.std() * random_images(40, 3, seed=5)).argmax(1).numpy(), test


def test_svm_with_the_callable_the_matrix_or_the_features(network: CKN) -> None:
    train, labels, test = labelled(network)
    kernel: Any = ImageKernel(network, (3, 8, 8), batch_size=16)  # scikit-learn's signature says str
    called = SVC(kernel=kernel, tol=1e-9).fit(train.flatten(1).numpy(), labels)
    precomputed = SVC(kernel="precomputed", tol=1e-9).fit(kernel_matrix(network, train).numpy(), labels)
    linear = SVC(kernel="linear", tol=1e-9).fit(flat_features(network, train).numpy(), labels)
    decision = called.decision_function(test.flatten(1).numpy())
    assert np.ptp(decision) > 0.1
    np.testing.assert_allclose(decision, precomputed.decision_function(kernel_matrix(network, test, train).numpy()), atol=1e-6)
    np.testing.assert_allclose(decision, linear.decision_function(flat_features(network, test).numpy()), atol=1e-6)
    np.testing.assert_array_equal(called.predict(test.flatten(1).numpy()), linear.predict(flat_features(network, test).numpy()))


def test_kernel_ridge_equals_ridge_on_the_features(network: CKN) -> None:
    train, labels, test = labelled(network)
    targets = np.eye(3)[labels]
    dual = KernelRidge(kernel="precomputed", alpha=1).fit(kernel_matrix(network, train).numpy(), targets)
    primal = Ridge(fit_intercept=False, alpha=1).fit(flat_features(network, train).numpy(), targets)
    expected = primal.predict(flat_features(network, test).numpy())
    np.testing.assert_allclose(dual.predict(kernel_matrix(network, test, train).numpy()), expected, atol=1e-8)


def test_image_kernel_pickles_clones_and_takes_both_shapes(network: CKN) -> None:
    images, others = random_images(5, 3, 8, 8).numpy(), random_images(4, 3, 8, 8, seed=1).numpy()
    kernel: Any = ImageKernel(network, (3, 8, 8))
    expected = kernel(images, others)
    assert expected.dtype == np.float64
    assert expected.shape == (5, 4)
    np.testing.assert_array_equal(kernel(images.reshape(5, -1), others.reshape(4, -1)), expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(kernel))(images, others), expected)
    cloned: Any = clone(SVC(kernel=kernel))
    np.testing.assert_array_equal(cloned.kernel(images, others), expected)
    np.testing.assert_array_equal(ImageKernel(network)(images, others), expected)
    np.testing.assert_allclose(kernel(images), kernel(images, images.copy()), rtol=1e-12)
    with pytest.raises(ValueError, match="image_shape"):
        ImageKernel(network)(images.reshape(5, -1))


# the exact kernel


def naive_layer_kernel(a: Array, b: Array, config: LayerConfig) -> float:
    """sum_z sum_u sum_u' P[z, u] P[z, u'] K(x_u, x'_u') in numpy, position by position."""
    patches = []
    for image in (a, b):
        before, after = ((config.patch - 1) // 2, config.patch // 2) if config.padding else (0, 0)
        padded = np.pad(image, ((0, 0), (before, after), (before, after)))
        rows, columns = padded.shape[1] - config.patch + 1, padded.shape[2] - config.patch + 1
        patches.append(
            {
                (i, j): padded[:, i : i + config.patch, j : j + config.patch].ravel()
                for i, j in product(range(rows), range(columns))
            }
        )
    vertical = pooling_weights(rows, config.subsampling, config.pooling_width).numpy()
    horizontal = pooling_weights(columns, config.subsampling, config.pooling_width).numpy()
    total = 0.0
    for (u, x), (v, y) in product(patches[0].items(), patches[1].items()):
        norms = float(np.linalg.norm(x) * np.linalg.norm(y))
        if norms > 0:
            kappa = float(config.kernel(torch.tensor(float(x @ y) / norms, dtype=torch.float64)))
            weight = (vertical[:, u[0]] @ vertical[:, v[0]]) * (horizontal[:, u[1]] @ horizontal[:, v[1]])
            total += float(weight) * norms * kappa * float(config.kernel.gain()) ** 2
    return total


@pytest.mark.parametrize(
    "config",
    [
        LayerConfig(1, 3, subsampling=2),
        LayerConfig(1, 2, subsampling=math.sqrt(2), kernel=ArcCosine()),
        LayerConfig(1, 1, subsampling=1.5, kernel=Polynomial(3, 0.5)),
        LayerConfig(1, 3, padding=False, kernel=Exponential(1.5)),
        LayerConfig(1, 3, subsampling=2, kernel=CentredExponential(1.5)),
        LayerConfig(1, 2, subsampling=2, padding=False, kernel=Linear()),
        LayerConfig(1, 2, subsampling=2, pooling_width=0.5),
    ],
    ids=str,
)
def test_exact_layer_kernel_equals_the_loops(config: LayerConfig) -> None:
    maps, others = random_images(2, 2, 4, 5), random_images(3, 2, 4, 5, seed=1)
    maps[0, :, :3, :3] = 0  # some patches are zero
    layer = KernelLayer(2, config)
    expected = [[naive_layer_kernel(a, b, config) for b in others.numpy()] for a in maps.numpy()]
    torch.testing.assert_close(exact_layer_kernel(layer, maps, others), torch.tensor(expected, dtype=torch.float64))
    expected = [[naive_layer_kernel(a, b, config) for b in maps.numpy()] for a in maps.numpy()]
    torch.testing.assert_close(exact_layer_kernel(layer, maps), torch.tensor(expected, dtype=torch.float64))


def explicit_square_map(maps: Tensor, config: LayerConfig) -> Tensor:
    """phi(x) = x (x) x / |x|, whose inner product is |x| |y| cos^2: the kernel of Polynomial(2, 0), written out."""
    lost = 0 if config.padding else config.patch - 1
    height, width = maps.shape[2] - lost, maps.shape[3] - lost
    x = extract_patches(maps, config.patch, config.padding)  # (n, d, H' W')
    norms = torch.linalg.vector_norm(x, dim=1)[:, None, None, :]
    phi = torch.einsum("ndu,neu->ndeu", x, x) / torch.where(norms > 0, norms, 1)  # (n, d, d, H' W')
    vertical, horizontal = (pooling_weights(size, config.subsampling, config.pooling_width) for size in (height, width))
    return torch.einsum("nkhw,ph,qw->nkpq", phi.flatten(1, 2).unflatten(2, (height, width)), vertical, horizontal)


@pytest.mark.parametrize("padding", [True, False])
def test_exact_network_kernel_equals_explicit_features(padding: bool) -> None:
    square = Polynomial(2, 0.0)
    configs = (
        LayerConfig(1, 2, subsampling=1.5, padding=padding, kernel=square, pooling_width=0.5),
        LayerConfig(1, 2, subsampling=math.sqrt(2), padding=padding, kernel=square),
    )
    maps = images = random_images(4, 1, 5, 6)
    images[1, :, 1:] = 0
    for config in configs:
        maps = explicit_square_map(maps, config)
    expected = torch.einsum("akhw,bkhw->ab", maps, maps)
    network = CKN(NetworkConfig(1, configs))
    torch.testing.assert_close(exact_kernel_matrix(network, images), expected)
    torch.testing.assert_close(exact_kernel_matrix(network, images[:3], images[1:]), expected[:3, 1:])


def test_linear_network_with_enough_filters_is_exact() -> None:
    torch.manual_seed(0)
    linear = Linear()
    configs = (
        LayerConfig(8, 2, subsampling=1.5, kernel=linear, epsilon=0, norm_offset=1e-13),  # 2 x 2^2 = 8 dimensions
        LayerConfig(32, 2, subsampling=2, kernel=linear, epsilon=0, norm_offset=1e-13),  # 8 x 2^2
    )
    network = CKN(NetworkConfig(2, configs)).double()
    images, others = random_images(4, 2, 6, 6), random_images(3, 2, 6, 6, seed=1)
    exact = exact_kernel_matrix(network, images, others)
    torch.testing.assert_close(kernel_matrix(network, images, others), exact, rtol=1e-9, atol=1e-9)


def all_patches_as_filters(images: Tensor, config: LayerConfig) -> Tensor:
    """Distinct patches of unit norm (p, c, e, e), in a random order."""
    patches = extract_patches(images, config.patch, config.padding).transpose(1, 2).flatten(0, 1)
    patches = patches[torch.randperm(len(patches), generator=torch.Generator().manual_seed(0))]
    return nn.functional.normalize(patches).unflatten(1, (images.shape[1], config.patch, config.patch))


@pytest.mark.parametrize("kernel", [Exponential(4.0), CentredExponential(4.0), ArcCosine()], ids=str)
def test_projection_tends_to_the_exact_kernel_as_filters_are_added(kernel: Kernel) -> None:
    images = random_images(5, 1, 6, 6)
    config = LayerConfig(1, 3, subsampling=2, kernel=kernel, epsilon=1e-12, norm_offset=1e-13)
    filters = all_patches_as_filters(images, config)
    exact = exact_layer_kernel(KernelLayer(1, config), images)
    errors, last = [], torch.zeros_like(exact)
    for count in (1, 4, 16, 64, len(filters)):
        layer = KernelLayer(1, config).double()
        layer.filters = nn.Parameter(filters[:count])
        K = kernel_matrix(layer, images)
        # K grows with the subspace, in the order of positive definite matrices, and stays below the exact kernel
        assert float(torch.linalg.eigvalsh(K - last).min()) > -1e-8
        assert float(torch.linalg.eigvalsh(exact - K).min()) > -1e-8
        errors.append(float((K - exact).norm() / exact.norm()))
        last = K
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.1
    assert errors[-1] < 1e-6


@pytest.mark.parametrize("kernel", [Exponential(2.0), CentredExponential(2.0)], ids=str)
def test_a_network_with_all_patches_as_filters_is_exact(kernel: Kernel) -> None:
    """Layer upon layer: the second one's patches are of maps that the gain of the first has made larger."""
    images = random_images(3, 1, 5, 5)
    configs = (
        LayerConfig(75, 2, subsampling=1.5, kernel=kernel, epsilon=1e-13, norm_offset=1e-13),
        LayerConfig(27, 2, kernel=kernel, epsilon=1e-13, norm_offset=1e-13),
    )
    network, maps = CKN(NetworkConfig(1, configs)).double(), images
    for layer in network.kernel_layers:
        filters = all_patches_as_filters(maps, layer.config)
        assert filters.shape == layer.filters.shape
        layer.filters = nn.Parameter(filters)
        maps = layer(maps).detach()
    exact = exact_kernel_matrix(network, images)
    torch.testing.assert_close(kernel_matrix(network, images), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "kernel", [Exponential(4.0), CentredExponential(4.0), ArcCosine(), Polynomial(2, 1.0), Linear()], ids=str
)
def test_kernels_are_positive_definite_and_zero_at_a_zero_image(kernel: Kernel) -> None:
    torch.manual_seed(0)
    layers = (LayerConfig(6, 3, subsampling=2, kernel=kernel), LayerConfig(9, 2, subsampling=1.5, kernel=kernel))
    network = CKN(NetworkConfig(2, layers)).double()
    images = random_images(8, 2, 7, 7)
    images[3] = 0
    for K in (kernel_matrix(network, images, batch_size=3), exact_kernel_matrix(network, images)):
        assert bool(torch.isfinite(K).all())
        torch.testing.assert_close(K, K.T, rtol=1e-12, atol=1e-12)
        assert float(torch.linalg.eigvalsh(K).min()) > -1e-10 * float(K.norm())
        assert not K[3].any()
        assert not K[:, 3].any()
        assert bool((K.diagonal()[[0, 1, 2, 4, 5, 6, 7]] > 0).all())


def test_exact_kernel_is_homogeneous_and_ignores_the_filters(network: CKN) -> None:
    images, others = random_images(3, 3, 6, 6), random_images(2, 3, 6, 6, seed=1)
    K = exact_kernel_matrix(network, images, others)
    torch.testing.assert_close(exact_kernel_matrix(network, 3 * images, others.numpy()), 3 * K)
    torch.testing.assert_close(exact_kernel_matrix(network, others, images), K.T)
    for layer in network.kernel_layers:
        nn.init.normal_(layer.filters)
    assert torch.equal(exact_kernel_matrix(network.float(), images, others), K)
    assert K.dtype == torch.float64


def test_exact_kernel_does_not_depend_on_the_groups(network: CKN, monkeypatch: pytest.MonkeyPatch) -> None:
    images, others = random_images(5, 3, 6, 6), random_images(4, 3, 6, 6, seed=1)
    expected = exact_kernel_matrix(network, images), exact_kernel_matrix(network, images, others)
    for pairs in (0, 1, 3):
        monkeypatch.setattr(gram, "GROUP_NUMBERS", pairs * 36**2)
        torch.testing.assert_close(
            (exact_kernel_matrix(network, images), exact_kernel_matrix(network, images, others)), expected
        )


@pytest.mark.parametrize("kind", [Exponential, CentredExponential])
def test_exact_kernel_uses_the_learned_alpha(kind: type[Exponential] | type[CentredExponential]) -> None:
    config = LayerConfig(4, 3, subsampling=2, kernel=kind(4.0, learnable=True))
    layer, images = KernelLayer(1, config).double(), random_images(3, 1, 6, 6)
    assert layer.log_alpha is not None
    nn.init.constant_(layer.log_alpha, math.log(1.5))
    K = exact_layer_kernel(layer, images)
    fixed = KernelLayer(1, LayerConfig(4, 3, subsampling=2, kernel=kind(1.5)))
    torch.testing.assert_close(K, exact_layer_kernel(fixed, images))
    assert not K.requires_grad


def test_maps_that_cancel_give_no_cosine_beyond_one() -> None:
    # images in the null space of a linear layer's pooling: what is left of f is rounding, in no direction
    P = pooling_matrix(8, 3.0)
    null = torch.eye(8, dtype=torch.float64) - torch.linalg.pinv(P) @ P
    layers = (LayerConfig(1, 1, subsampling=3.0, kernel=Linear()), LayerConfig(1, 1, kernel=Exponential(100.0)))
    K = exact_kernel_matrix(CKN(NetworkConfig(1, layers)), random_images(6, 1, 8, 8) @ null)
    assert float(K.abs().max()) < 1e-15
