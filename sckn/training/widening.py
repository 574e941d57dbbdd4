"""More filters for a network that has learned with fewer: the subspaces it knows are parts of larger ones.

With p filters a layer projects onto F = Span(phi(z_1), ..., phi(z_p)); with others beside them onto a larger F* that holds F.
In both the coordinates are psi(x) = B' k(x), with k(x) the kernels of a patch x with the filters and B B' = K^-1 of their
kernel matrix, epsilon on its diagonal. Of k(x) in the larger space, which is K* B* psi*(x), the first p numbers are k(x) in the
smaller one, so that

    psi(x) = M psi*(x),    M = B' [I 0] K* B*,    M M' = B' K B = I.

A filter z of the next layer, a patch of coordinates in F, is the patch M'z in F*: of the same length, and with the same inner
products with all patches. Patches themselves become longer by what F* has beyond F, and cosines smaller. That must be little:
after training, F may hold little of a patch, and the rest is what later layers have learned not to see. So the new filters are
near the known ones. With centres of k-means, which hold much of what F does not, a network of six layers lost all it knew.
"""

from dataclasses import replace

import torch
from torch import Tensor

from sckn.layer import KernelLayer, LayerConfig, evaluating
from sckn.network import CKN, NetworkConfig
from sckn.nystrom import unit_rows
from sckn.precision import full_precision
from sckn.settings import real_number, whole_number

__all__ = ["embedding", "obstacle_to_widening", "widen"]


def obstacle_to_widening(narrow: NetworkConfig, wide: NetworkConfig) -> str | None:
    """What the first network has that keeps the second from beginning with its filters, if anything."""
    if narrow.in_channels != wide.in_channels:
        return f"{narrow.in_channels} channels, not {wide.in_channels}"
    if len(narrow.layers) != len(wide.layers):
        return f"{len(narrow.layers)} layers, not {len(wide.layers)}"
    for number, (few, many) in enumerate(zip(narrow.layers, wide.layers, strict=True), 1):
        if few.filters > many.filters:
            return f"{few.filters} filters in layer {number}, more than {many.filters}"
        if _map(few) != _map(many):
            return f"as layer {number} {_map(few)}, not {_map(many)}"
    return None


def _map(layer: LayerConfig) -> LayerConfig:
    """A layer but for what may change: how many filters it has, and how it is trained."""
    return replace(layer, filters=1, inverse_root="eigh", gradient="exact", dropout=0.0)


@torch.no_grad()
def widen(network: CKN, narrow: CKN, *, angle: float = 0.2, seed: int = 0) -> None:
    """Give a network the filters and learned alphas of a narrow one, and beside them copies of these filters, turned at random.

    Parameters
    ----------
    network: changed in place; new, so that moving frames have not turned yet.
    narrow: of the same layers with as many filters or fewer, on the same device.
    angle: about that by which copies are turned. seed: of the directions.
    """
    obstacle = obstacle_to_widening(narrow.config, network.config)
    if obstacle is not None:
        raise ValueError(f"the narrow network has {obstacle}; give one with the same layers, of as many filters or fewer")
    angle = real_number("angle", angle, above=0)
    generator = torch.Generator().manual_seed(whole_number("seed", seed, least=0))
    to_narrow = None  # M, from maps of the network to those of the narrow one
    with evaluating(network), evaluating(narrow):
        for layer, known in zip(network.kernel_layers, narrow.kernel_layers, strict=True):
            filters = known.filters
            if to_narrow is not None:
                with full_precision(filters.device):
                    filters = torch.einsum("pcij,cd->pdij", filters, to_narrow)
            others = layer.config.filters - len(filters)
            layer.filters.copy_(torch.cat([filters, _turned_copies(filters, others, angle, generator)]))
            if layer.log_alpha is not None and known.log_alpha is not None:
                layer.log_alpha.copy_(known.log_alpha)
            if to_narrow is not None or others or known.frame is not None:  # else they are the same
                to_narrow = embedding(known, layer)


def _turned_copies(filters: Tensor, count: int, angle: float, generator: torch.Generator) -> Tensor:
    """So many filters, one of each that there are before a second one of any."""
    copied = unit_rows(filters)[torch.arange(count, device=filters.device) % len(filters)]  # (count, c e e)
    directions = torch.randn(copied.shape, generator=generator, dtype=copied.dtype).to(copied.device)
    return (copied + angle * unit_rows(directions)).view(count, *filters.shape[1:])


def embedding(narrow: KernelLayer, wide: KernelLayer) -> Tensor:
    """M (p, p*): coordinates in the smaller subspace from those in the larger one, whose first filters are its own."""
    with full_precision(wide.filters.device):
        kernels_from_coordinates = wide.gram() @ wide.inverse_root()  # K* B*
        return narrow.inverse_root().T @ kernels_from_coordinates[: narrow.config.filters]
