"""More filters for a network that has learned with fewer: the subspaces it knows are parts of larger ones.

With p filters a layer projects onto F = Span(phi(z_1), ..., phi(z_p)); with others beside them onto a larger F* that holds F.
In both the coordinates are psi(x) = B' k(x), with k(x) the kernels of a patch x with the filters and B B' = K^-1 of their
kernel matrix. Of k(x) in the larger space, which is K* B* psi*(x), the first p numbers are k(x) in the smaller one, so that

    psi(x) = M psi*(x),    M = B' [I 0] K* B*,    M M' = B' K B = I.

A filter z of the next layer, a patch of coordinates in F, is the patch M'z in F*: of the same length, and with the same inner
products with all patches. Patches themselves become longer by what F* has beyond F, so that cosines are a little smaller, and
the network is nearly, not quite, what it was.
"""

import torch
from torch import Tensor

from sckn.kmeans import spherical_kmeans
from sckn.layer import KernelLayer, evaluating
from sckn.network import CKN, NetworkConfig
from sckn.patches import sample_patches
from sckn.training.unsupervised import input_maps

__all__ = ["check_can_widen", "embedding", "widen"]


def check_can_widen(narrow: NetworkConfig, wide: NetworkConfig) -> None:
    """Refuse networks of which the second is not the first with as many filters or more."""
    differences = [
        f"{found}, not {wanted}" for wanted, found in zip(_kinds(wide), _kinds(narrow), strict=False) if wanted != found
    ]
    if narrow.in_channels != wide.in_channels:
        differences.insert(0, f"{narrow.in_channels} channels, not {wide.in_channels}")
    if len(narrow.layers) != len(wide.layers):
        differences.append(f"{len(narrow.layers)} layers, not {len(wide.layers)}")
    differences += [
        f"a layer of {few.filters} filters, more than {many.filters}"
        for few, many in zip(narrow.layers, wide.layers, strict=False)
        if few.filters > many.filters
    ]
    if differences:
        raise ValueError(f"has {differences[0]}; begin with one that has the same layers, of as many filters or fewer")


def _kinds(config: NetworkConfig) -> list[str]:
    """What layers have in common with those that may begin with their filters."""
    return [f"a layer of {layer.patch} x {layer.patch} with {layer.kernel}" for layer in config.layers]


@torch.no_grad()
def widen(
    network: CKN,
    narrow: CKN,
    images: Tensor,
    *,
    patches: int = 100_000,
    iterations: int = 20,
    batch_size: int = 256,
    seed: int = 0,
) -> None:
    """Give a network the filters and learned alphas of a narrow one, and centroids of k-means for those that it has beyond.

    Parameters
    ----------
    network: changed in place. narrow: of the same layers with as many filters or fewer, on the same device.
    images: (n, c, H, W), whose patches k-means learns from. patches, iterations, batch_size, seed: as in `fit_unsupervised`.
    """
    check_can_widen(narrow.config, network.config)
    generator = torch.Generator().manual_seed(seed)
    layers, to_narrow = network.kernel_layers, None  # M, from maps of the network to those of the narrow one
    with evaluating(network), evaluating(narrow):
        for depth, (layer, known) in enumerate(zip(layers, narrow.kernel_layers, strict=True)):
            filters, config = known.filters, layer.config
            if to_narrow is not None:
                filters = torch.einsum("pcij,cd->pdij", filters, to_narrow)
            others = config.filters - len(filters)
            if others:
                maps = (input_maps(layers, depth, batch.to(filters)) for batch in images.split(batch_size))
                sample = sample_patches(maps, config.patch, config.padding, max(patches, others), generator)
                found = spherical_kmeans(sample, others, iterations=iterations, generator=generator).centroids
                filters = torch.cat([filters, found.view(-1, *filters.shape[1:]).to(filters)])
            layer.filters.copy_(filters)
            if layer.log_alpha is not None and known.log_alpha is not None:
                layer.log_alpha.copy_(known.log_alpha)
            if to_narrow is not None or others or known.frame is not None:  # else they are the same
                to_narrow = embedding(known, layer)


def embedding(narrow: KernelLayer, wide: KernelLayer) -> Tensor:
    """M (p, p*): coordinates in the smaller subspace from those in the larger one, whose first filters are its own."""
    kernels_from_coordinates = wide.gram() @ wide.inverse_root()  # K* B*
    return narrow.inverse_root().T @ kernels_from_coordinates[: narrow.config.filters]
