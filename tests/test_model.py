"""The network with its linear model: scores are inner products with the features, and predicting changes nothing."""

import numpy as np
import pytest
import torch
from torch import Tensor

from sckn.layer import LayerConfig
from sckn.model import KernelModel, feature_rows
from sckn.network import CKN, NetworkConfig
from sckn.precision import precision


def network(inverse_root: str = "eigh") -> CKN:
    layers = (LayerConfig(4, 3, subsampling=2), LayerConfig(3, 1, inverse_root=inverse_root))  # pyright: ignore[reportArgumentType]
    return CKN(NetworkConfig(2, layers)).double()


def images(count: int = 5) -> Tensor:
    return torch.rand(count, 2, 6, 4, dtype=torch.float64)


def test_scores_are_products_with_the_features_and_a_bias() -> None:
    net, pictures = network(), images()
    W, b = torch.randn(3 * 3 * 2, 7, dtype=torch.float64), torch.randn(7, dtype=torch.float64)
    maps = net(pictures).detach().numpy()
    expected = np.array([[np.sum(maps[i].ravel() * W[:, c].numpy()) + float(b[c]) for c in range(7)] for i in range(5)])
    np.testing.assert_allclose(KernelModel(net, W, b)(pictures).detach().numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(KernelModel(net, W)(pictures).detach().numpy(), expected - b.numpy(), rtol=1e-12, atol=1e-12)


def test_scores_of_pixels() -> None:
    net, pictures = network(), images()
    W, b = torch.randn(3, 2, dtype=torch.float64), torch.randn(2, dtype=torch.float64)
    maps = net(pictures).detach().numpy()  # (5, 3, 3, 2)
    scores = KernelModel(net, W, b, per_pixel=True)(pictures)
    assert scores.shape == (5, 2, 3, 2)
    expected = np.einsum("iphw,pc->ichw", maps, W.numpy()) + b.numpy()[:, None, None]
    np.testing.assert_allclose(scores.detach().numpy(), expected, rtol=1e-12)


def test_rows_of_features_are_images_or_pixels() -> None:
    maps = torch.arange(2.0 * 3 * 2 * 2).view(2, 3, 2, 2)
    assert torch.equal(feature_rows(maps, False), maps.reshape(2, 12))
    rows = feature_rows(maps, True)
    assert rows.shape == (8, 3)
    for number, (i, h, w) in enumerate(np.ndindex(2, 2, 2)):
        assert rows[number].tolist() == maps[i, :, h, w].tolist()


@pytest.mark.parametrize("batch_size", [1, 2, 5, 100])
def test_predictions_do_not_depend_on_the_batches(batch_size: int) -> None:
    model, pictures = KernelModel(network(), torch.randn(18, 3, dtype=torch.float64)), images()
    found = model.predict(pictures, batch_size=batch_size)
    assert not found.requires_grad
    torch.testing.assert_close(found, model(pictures).detach(), rtol=1e-12, atol=1e-12)


def test_no_image_gives_no_score() -> None:
    assert KernelModel(network(), torch.randn(18, 3, dtype=torch.float64)).predict(images(0)).shape == (0, 3)


def test_bytes_are_scaled_and_other_types_converted() -> None:
    model = KernelModel(network(), torch.randn(18, 3, dtype=torch.float64))
    pixels = torch.randint(0, 256, (3, 2, 6, 4), dtype=torch.uint8)
    torch.testing.assert_close(model.predict(pixels), model.predict(pixels.double() / 255), rtol=1e-6, atol=1e-6)
    assert model.predict(images(3).float()).dtype == torch.float64
    with pytest.raises(ValueError, match="floating point or in bytes"):
        model.predict(pixels.long())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("network_training", [True, False])
def test_predicting_leaves_every_mode_as_it_was(training: bool, network_training: bool) -> None:
    model = KernelModel(network(), torch.randn(18, 3, dtype=torch.float64)).train(training)
    model.network.train(network_training)
    model.network.layers[1].train(not network_training)
    before = [module.training for module in model.modules()]
    model.predict(images())
    assert [module.training for module in model.modules()] == before
    with pytest.raises(ValueError, match="expected images of shape"):
        model.predict(images()[:, :1])
    assert [module.training for module in model.modules()] == before


def test_predicting_turns_no_frame() -> None:
    model = KernelModel(network("moving_frame"), torch.randn(18, 3, dtype=torch.float64)).train()
    frame = model.network.kernel_layers[1].frame
    assert frame is not None
    before = frame.clone()
    first = model.predict(images())
    assert torch.equal(frame, before)
    assert first.shape == (5, 3)


def test_the_weights_are_its_own() -> None:
    W = torch.randn(18, 3, dtype=torch.float64)
    model = KernelModel(network(), W)
    pictures = images()
    before = model.predict(pictures)
    W.zero_()
    assert torch.equal(model.predict(pictures), before)
    assert {name for name, _ in model.named_parameters()} == {"weights", "bias", "network.layers.0.filters"} | {
        "network.layers.1.filters"
    }


def test_scores_keep_their_digits_at_medium_precision() -> None:
    """Features may be of bf16's precision, but scores that differ by less are still told apart."""
    model = KernelModel(network().float(), torch.randn(18, 3))
    model.weights.data[:, 1] = model.weights.data[:, 0] * (1 + 1e-4)
    with precision("medium", torch.device("cpu")):
        scores = model.predict(images(20).float())
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores[:, 1] / scores[:, 0], torch.full((20,), 1 + 1e-4), rtol=2e-5, atol=0)
