"""The patches to which filters respond most are where the response is largest, and as large as what a filter sees."""

import numpy as np
import torch
from torch import Tensor

from sckn import CKN, ImageClassifier, LayerConfig, NetworkConfig, kernels
from sckn.model import KernelModel
from sckn.training.strongest import strongest_patches


def classifier(*layers: LayerConfig, size: int = 24) -> ImageClassifier:
    network = CKN(NetworkConfig(3, layers))
    height, width = network.config.output_size(size, size)
    return ImageClassifier(KernelModel(network, torch.randn(layers[-1].filters * height * width, 2)), ("a", "b"), size)


def responses(model: ImageClassifier, images: np.ndarray, layer: int) -> Tensor:
    """|x| kappa(z'x / |x|) of all patches of a layer's input, written out: (n, p, places)."""
    with torch.no_grad():
        maps = torch.from_numpy(images).float() / 255
        layers = model.model.network.kernel_layers
        for below in layers[:layer]:
            maps = below(maps)
        config = layers[layer].config
        patches = torch.nn.functional.unfold(maps, config.patch, padding=config.patch // 2 if config.padding else 0)
        norms = patches.norm(dim=1, keepdim=True)
        Z = torch.nn.functional.normalize(layers[layer].filters.flatten(1))
        return norms * layers[layer].kernel(Z @ patches / (norms + config.norm_offset))


def test_the_strongest_images_are_found() -> None:
    torch.manual_seed(1)
    model = classifier(
        LayerConfig(5, 3, subsampling=2.0, kernel=kernels.Exponential(2.0, learnable=True)),
        LayerConfig(4, 3, kernel=kernels.CentredExponential(2.5, learnable=True)),
        LayerConfig(20, 3, padding=False),
    )
    model.model.network.kernel_layers[1].log_alpha.data += 0.5  # pyright: ignore[reportOptionalMemberAccess]
    images = np.random.default_rng(0).integers(0, 256, (30, 3, 24, 24), dtype=np.uint8)
    second, third = strongest_patches(model, images, filters=3, count=6, batch_size=7)
    assert (second.layer, third.layer) == (2, 3)
    assert second.filters == (0, 2, 3)
    assert third.filters == (0, 10, 19)
    # layer 2 sees 3 x 3 of pixels that are 2 apart, each of 3 pixels and sqrt(2) to each side by pooling
    assert second.patches.shape == (3, 6, 3, 10, 10)
    assert third.patches.shape == (3, 6, 3, 14, 14)
    for found in (second, third):
        values, places = responses(model, images, found.layer - 1).max(dim=2)
        for row, number in enumerate(found.filters):
            side, width = found.patches.shape[-1], 12 if found.layer == 2 else 10
            for column, image in enumerate(values[:, number].topk(6).indices.tolist()):
                y, x = divmod(int(places[image, number]), width)
                first = 1.0 if found.layer == 2 else 3.0  # the middle of the first patch in the image
                top, left = (min(max(round(first + 2 * place - side / 2), 0), 24 - side) for place in (y, x))
                expected = images[image, :, top : top + side, left : left + side]
                np.testing.assert_array_equal(found.patches[row, column], expected)


def test_an_alpha_may_have_grown_beyond_what_a_setting_may_be() -> None:
    torch.manual_seed(0)
    model = classifier(LayerConfig(5, 3, subsampling=2.0), LayerConfig(4, 3, kernel=kernels.CentredExponential(79, True)))
    log_alpha = model.model.network.kernel_layers[1].log_alpha
    assert log_alpha is not None
    log_alpha.data += 0.05
    assert float(log_alpha.detach().exp()) > 82
    images = np.random.default_rng(0).integers(0, 256, (9, 3, 24, 24), dtype=np.uint8)
    (found,) = strongest_patches(model, images, filters=4, count=9)
    values, _ = responses(model, images, 1).max(dim=2)
    assert bool(torch.isfinite(values).all())
    for row in range(4):
        first = images[int(values[:, row].argmax())]
        windows = np.lib.stride_tricks.sliding_window_view(first, found.patches.shape[-2:], axis=(1, 2))  # (3, y, x, h, w)
        assert (windows == found.patches[row, 0][:, None, None]).all(axis=(0, 3, 4)).any()


def test_a_square_is_found_where_it_is() -> None:
    """Filters of bright patches respond to a square in the dark; it lies in the middle of what is cut out."""
    model = classifier(LayerConfig(4, 1, subsampling=2.0), LayerConfig(2, 3))
    images = np.zeros((12, 3, 24, 24), np.uint8)
    for number, image in enumerate(images):
        image[:, 6 + number // 3 : 12 + number // 3, 4 + number : 10 + number] = 255
    (found,) = strongest_patches(model, images, count=12)
    side = found.patches.shape[-1]
    brightness = found.patches[0].mean(axis=1, dtype=float)  # (12, side, side)
    grid = np.arange(side) - (side - 1) / 2
    for patch in brightness:
        assert abs((patch.sum(axis=0) * grid).sum() / patch.sum()) < 1.5
        assert abs((patch.sum(axis=1) * grid).sum() / patch.sum()) < 1.5


def test_few_images_and_few_filters_suffice() -> None:
    model = classifier(LayerConfig(2, 3, subsampling=3.0), LayerConfig(1, 3, subsampling=8.0), LayerConfig(3, 1))
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 24, 24), dtype=np.uint8)
    second, third = strongest_patches(model, images)
    assert second.filters == (0,)
    assert second.patches.shape[:2] == (1, 2)
    assert third.patches.shape == (3, 2, 3, 24, 24)  # never more than the image
    assert strongest_patches(classifier(LayerConfig(2, 3, subsampling=3.0)), images) == []
