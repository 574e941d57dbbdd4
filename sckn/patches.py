"""Image patches: the operator E of Proposition 1, their norms S without building them, and random samples of them.

A patch of side e is a vector of c e^2 numbers in the order (channel, row, column), as in a convolution's weights.
With padding the map is surrounded by zeros so that there is one patch a pixel; without, only whole patches count.
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["extract_patches", "pad_for_patches", "patch_norms", "sample_patches"]

# A patch shorter than this part of the root mean square norm in its batch has no direction worth learning.
NEAR_ZERO = 1e-3


def check_patches_fit(height: int, width: int, patch: int, padding: bool) -> None:
    """Refuse a map without a single patch."""
    if min(height, width) < (1 if padding else patch):
        advice = "give larger images" if padding else "give larger images or set padding=True"
        raise ValueError(f"patches of side {patch} do not fit into a map of {height} x {width} pixels; {advice}")


def pad_for_patches(maps: Tensor, patch: int, padding: bool) -> Tensor:
    """Zeros around (B, c, H, W), so that patches of side `patch` are as many as pixels. An even side looks ahead."""
    height, width = maps.shape[-2:]
    check_patches_fit(height, width, patch, padding)
    if not padding:
        return maps
    before, after = (patch - 1) // 2, patch // 2
    return F.pad(maps, (before, after, before, after)) if patch > 1 else maps


def extract_patches(maps: Tensor, patch: int, padding: bool) -> Tensor:
    """E(maps): all patches of (B, c, H, W), as (B, c patch^2, H' W'). Large: for tests and small inputs."""
    return F.unfold(pad_for_patches(maps, patch, padding), patch)


def patch_norms(maps: Tensor, patch: int, padding: bool) -> Tensor:
    """Euclidean norm S of each patch, (B, 1, H', W'), in fp32 at least, with a zero gradient at a zero patch."""
    squares = maps.to(torch.promote_types(maps.dtype, torch.float32)).square().sum(dim=1, keepdim=True)
    squares = pad_for_patches(squares, patch, padding)
    if patch > 1:
        squares = F.avg_pool2d(squares, patch, stride=1, divisor_override=1)
    present = squares != 0
    return torch.where(present, torch.where(present, squares, 1).sqrt(), 0)


def sample_patches(batches: Iterable[Tensor], patch: int, padding: bool, count: int, generator: torch.Generator) -> Tensor:
    """At most `count` patches, uniformly without replacement from all patches of all maps, scaled to unit norm.

    Every patch of the stream draws a random key and the `count` smallest keys stay, so one pass over batches of any
    shape (B, c, H, W) suffices, and memory is bounded by the sample and one batch. The keys come from `generator`,
    a CPU one, so the choice is the same whatever the device. Patches that are nearly zero are left out.

    Returns
    -------
    Tensor (n, c patch^2) on the device of the maps, n = `count` unless the stream holds fewer patches.
    """
    sample = keys = None
    for maps in batches:
        maps = maps.detach()
        norms = patch_norms(maps, patch, padding).flatten()  # (B H' W')
        if not bool(torch.isfinite(norms).all()):
            raise ValueError("the images hold NaN or infinity; clean them first")
        if sample is None or keys is None:
            sample = torch.empty(count, maps.shape[1] * patch * patch, dtype=norms.dtype, device=maps.device)
            # A free place has a key above all random ones, and no two are equal: which place a patch takes, and so the
            # start of k-means, is then the same on every device.
            keys = torch.arange(2, 2 + count, dtype=torch.float64, device=maps.device)
        batch_keys = torch.rand(norms.numel(), dtype=torch.float64, generator=generator).to(maps.device)
        worth = norms > NEAR_ZERO * norms.square().mean().sqrt()
        chosen = torch.nonzero(worth & (batch_keys < keys.max())).flatten()
        # of the keys held and the new ones, the smallest stay: each newcomer takes the place of one that leaves
        stays = torch.zeros(count + len(chosen), dtype=torch.bool, device=maps.device)
        stays[torch.cat([keys, batch_keys[chosen]]).topk(count, largest=False, sorted=False).indices] = True
        arrivals = chosen[stays[count:]]
        places = torch.nonzero(~stays[:count]).flatten()
        keys[places] = batch_keys[arrivals]
        padded = pad_for_patches(maps, patch, padding)
        for piece, into in zip(arrivals.split(65536), places.split(65536), strict=True):
            picked = _patches_at(padded, patch, piece).to(norms.dtype)
            sample[into] = picked / torch.linalg.vector_norm(picked, dim=1, keepdim=True)
    if sample is None or keys is None:
        raise ValueError("there are no images to sample patches from: the data set is empty")
    filled = keys < 1
    return sample if bool(filled.all()) else sample[filled]


def _patches_at(padded: Tensor, patch: int, index: Tensor) -> Tensor:
    """Patches (n, c patch^2) at flat positions into the (B, H', W') patches of a padded map."""
    _, channels, height, width = padded.shape
    rows, columns = height - patch + 1, width - patch + 1
    offset = torch.arange(patch, device=padded.device)
    image = index.div(rows * columns, rounding_mode="floor")[:, None, None]  # (n, 1, 1)
    row = (index.div(columns, rounding_mode="floor") % rows)[:, None, None] + offset[:, None]  # (n, e, 1)
    column = (index % columns)[:, None, None] + offset  # (n, 1, e)
    picked = padded.permute(0, 2, 3, 1)[image, row, column]  # (n, e, e, c)
    return picked.permute(0, 3, 1, 2).reshape(len(index), channels * patch * patch)
