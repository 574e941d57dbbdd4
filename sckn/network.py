"""The convolutional kernel network: layers stacked, section 2 of the paper."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from sckn import kernels
from sckn.inverse_root import inverse_square_root, iterations_needed
from sckn.layer import KernelLayer, LayerConfig
from sckn.moving_frame import moving_frame
from sckn.nystrom import filter_grams
from sckn.patches import channels_last
from sckn.settings import check_names, whole_number

__all__ = ["CKN", "NetworkConfig"]


@dataclass(frozen=True)
class NetworkConfig:
    """A network: the channels of its images, 3 for colours, and its layers, first to last."""

    in_channels: int
    layers: tuple[LayerConfig, ...]

    def __post_init__(self) -> None:
        if isinstance(self.layers, list | tuple):
            object.__setattr__(self, "layers", tuple(self.layers))
        object.__setattr__(self, "in_channels", whole_number("in_channels", self.in_channels))
        proper = isinstance(self.layers, tuple) and all(isinstance(layer, LayerConfig) for layer in self.layers)
        if not proper or not self.layers:
            raise ValueError(f"layers must be one or more LayerConfig, got {self.layers!r}")

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the last map, for images of this size."""
        for layer in self.layers:
            height, width = layer.output_size(height, width)
        return height, width

    def to_dict(self) -> dict[str, Any]:
        """A form for TOML, JSON and checkpoints."""
        return {
            "in_channels": self.in_channels,
            "layers": [{**asdict(layer), "kernel": kernels.to_dict(layer.kernel)} for layer in self.layers],
        }

    @classmethod
    def from_dict(cls, description: dict[str, Any]) -> Self:
        """The config that `to_dict` described; settings left out have those of the table `every_layer`, if there is one, else
        their defaults."""
        if not isinstance(description, dict):
            raise ValueError(f"a network is described by a table with in_channels and layers, got {description!r}")
        check_names("the network", description, ("in_channels", "layers", "every_layer"), ("in_channels", "layers"))
        common, layers = description.get("every_layer", {}), description["layers"]
        if not isinstance(common, dict):
            raise ValueError(f"every_layer is a table of the settings that layers share, got {common!r}")
        if not isinstance(layers, list | tuple) or not all(isinstance(layer, dict) for layer in layers):
            raise ValueError(f"layers is a list of tables, one a layer, got {layers!r}")
        described = (_layer(number, {**common, **layer}) for number, layer in enumerate(layers, 1))
        return cls(description["in_channels"], tuple(described))


def _layer(number: int, table: dict[str, Any]) -> LayerConfig:
    """The layer that a table describes."""
    known = {field.name for field in fields(LayerConfig)}
    check_names(f"layer {number} of the network", table, known, required=("filters", "patch"))
    return LayerConfig(**{**table, "kernel": kernels.from_dict(table["kernel"])} if "kernel" in table else table)


class CKN(nn.Module):
    """A convolutional kernel network: (B, c, H, W) -> (B, p, h, w).

    The filters start at random; `fit_unsupervised` learns them from images, any optimiser from a loss.

    Example
    -------
    >>> network = CKN(NetworkConfig(3, (LayerConfig(64, 3, subsampling=2), LayerConfig(256, 3, subsampling=6))))
    >>> network(torch.rand(8, 3, 32, 32)).shape
    torch.Size([8, 256, 3, 3])

    References
    ----------
    Mairal, End-to-End Kernel Learning with Supervised Convolutional Kernel Networks, NIPS 2016.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        channels = [config.in_channels, *(layer.filters for layer in config.layers)]
        self.layers = nn.ModuleList(KernelLayer(c, layer) for c, layer in zip(channels, config.layers, strict=False))

    @property
    def kernel_layers(self) -> list[KernelLayer]:
        """The layers, first to last."""
        return list(self.layers)  # pyright: ignore[reportReturnType]

    def forward(self, images: Tensor, roots: list[Tensor] | None = None, directions: list[Tensor] | None = None) -> Tensor:
        """The last map, (B, p, h, w), of images (B, c, H, W); `roots` are B and `directions` Z of each layer, where they are
        known (`prepared`)."""
        maps = channels_last(images) if images.dim() == 4 else images
        directions = [layer.directions() for layer in self.kernel_layers] if directions is None else directions
        roots = self.inverse_roots(directions) if roots is None else roots
        for layer, root, Z in zip(self.kernel_layers, roots, directions, strict=True):
            maps = layer(maps, root, Z)
        return maps.to(torch.promote_types(maps.dtype, images.dtype))

    @torch.no_grad()
    def prepared(self) -> Callable[[Tensor], Tensor]:
        """The network as a function of images alone, for many batches: B and Z of the parameters as they are now are found
        once, and no gradient reaches the parameters through them.

        A network in eval mode knows its B, too, but compares its parameters at every call, for which the program waits on a
        GPU. Whoever changes a parameter needs a new function.
        """
        directions = [layer.directions() for layer in self.kernel_layers]
        return partial(self, roots=self.inverse_roots(directions), directions=directions)

    def root_iterations(self) -> int:
        """Iterations that the inverse roots by matrix products need for the present filters; 0 if no layer uses them."""
        layers = [layer for layer in self.kernel_layers if layer.config.inverse_root == "newton_schulz"]
        with torch.no_grad():
            return max((iterations_needed(layer.gram()) for layer in layers), default=0)

    def inverse_roots(self, directions: list[Tensor] | None = None) -> list[Tensor]:
        """B of each layer; those of one width that use matrix products are found together, in one batch. `directions` are
        Z of each, where they are known."""
        layers = self.kernel_layers
        roots = [layer.cached_root() for layer in layers]
        together: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for index, (layer, root) in enumerate(zip(layers, roots, strict=True)):
            if root is None:
                config = layer.config
                # an eigendecomposition gains nothing from company
                alone = index if config.inverse_root == "eigh" else None
                together[
                    config.filters, config.inverse_root, config.gradient, layer.filters.dtype, layer.filters.device, alone
                ].append(index)
        for indices in together.values():
            config = layers[indices[0]].config
            given = [layers[index].directions() if directions is None else directions[index] for index in indices]
            kernels_of = [layers[index].kernel for index in indices]
            grams = filter_grams(given, kernels_of, [layers[index].config.epsilon for index in indices])
            frames = [frame for frame in (layers[index].frame for index in indices) if frame is not None]
            if frames:
                batch = moving_frame(grams, torch.stack(frames))
            else:
                batch = inverse_square_root(grams, config.inverse_root, config.gradient)
            for index, root in zip(indices, batch.unbind(), strict=True):
                layers[index].remember_root(root)
                roots[index] = root
        return [root for root in roots if root is not None]
