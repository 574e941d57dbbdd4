"""Image patches: the operator E of Proposition 1, their norms S without building them, and random samples of them.

A patch of side e is a vector of c e^2 numbers in the order (channel, row, column), as in a convolution's weights.
With padding the map is surrounded by zeros so that there is one patch a pixel; without, only whole patches count.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sckn.cache import parts_in_cache
from sckn.fused import squares as fused
from sckn.kernels import root
from sckn.processes import ALONE, Processes

__all__ = [
    "channels_last",
    "extract_patches",
    "maps_and_margin",
    "pad_for_patches",
    "patch_norms",
    "patch_squares",
    "sample_patches",
]

# A patch shorter than this part of the root mean square norm in its batch has no direction worth learning.
NEAR_ZERO = 1e-3


def channels_last(maps: Tensor) -> Tensor:
    """(B, c, H, W) with the numbers of a pixel together in memory, the order in which all that layers do is fastest.

    Maps of one channel are in both orders at once; PyTorch takes them for the other one unless their strides tell it.
    """
    if maps.shape[1] == 1:
        return maps.contiguous().squeeze(1).unsqueeze(3).permute(0, 3, 1, 2)
    return maps.contiguous(memory_format=torch.channels_last)


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


def maps_and_margin(maps: Tensor, patch: int, padding: bool) -> tuple[Tensor, int]:
    """As `pad_for_patches`, with the zeros that a convolution can add by itself left to it: its `padding`.

    An odd side needs as many zeros before as after, so that the map, which may be large, is not copied.
    """
    if not padding or patch % 2 == 0:
        return pad_for_patches(maps, patch, padding), 0
    height, width = maps.shape[-2:]
    check_patches_fit(height, width, patch, padding)
    return maps, patch // 2


def extract_patches(maps: Tensor, patch: int, padding: bool) -> Tensor:
    """E(maps): all patches of (B, c, H, W), as (B, c patch^2, H' W'). Large: for tests and small inputs."""
    return F.unfold(pad_for_patches(maps, patch, padding), patch)


def patch_norms(maps: Tensor, patch: int, padding: bool) -> Tensor:
    """Euclidean norm S of each patch, (B, 1, H', W'), in fp32 at least, with a zero gradient at a zero patch."""
    return root(patch_squares(maps, patch, padding))


def patch_squares(maps: Tensor, patch: int, padding: bool) -> Tensor:
    """The square of `patch_norms`: squares summed over the channels, then over the patch."""
    squares: Tensor = _SumOfSquares.apply(maps)  # pyright: ignore[reportAssignmentType]
    squares, margin = maps_and_margin(squares, patch, padding)
    if patch > 1:
        squares = F.avg_pool2d(squares, patch, stride=1, padding=margin, divisor_override=1)
    return squares


class _SumOfSquares(torch.autograd.Function):
    """Over the channels: (B, c, H, W) -> (B, 1, H, W), in fp32 at least."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor) -> Tensor:
        ctx.save_for_backward(maps)
        if fused.applies(maps):
            return fused.sum_of_squares(maps)
        squares = maps.new_empty((*maps.shape[:1], 1, *maps.shape[2:]), dtype=torch.promote_types(maps.dtype, torch.float32))
        for part, of_part in parts_in_cache(maps, squares):
            of_part.copy_(_sum_of_squares(part, squares.dtype))
        return squares

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (maps,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            return (2 * gradients[0] * maps).to(maps.dtype)
        if fused.applies(maps):
            return fused.squares_gradient(maps, gradients[0])
        found = torch.empty_like(maps)
        for part, of_maps, of_squares in parts_in_cache(found, maps, gradients[0]):
            part.copy_(of_maps.to(of_squares.dtype).mul(2 * of_squares))  # in one type: a product of two is slow
        return found


def _sum_of_squares(maps: Tensor, dtype: torch.dtype) -> Tensor:
    # where a pixel's numbers lie together, and on a GPU, the squared map need not be written; else that is faster
    if maps.is_cuda or (maps.dim() == 4 and maps.is_contiguous(memory_format=torch.channels_last)):
        return torch.linalg.vector_norm(maps, dim=1, keepdim=True, dtype=dtype).square()
    return maps.to(dtype).square().sum(dim=1, keepdim=True)


def sample_patches(
    batches: Iterable[Tensor],
    patch: int,
    padding: bool,
    count: int,
    generator: torch.Generator,
    processes: Processes = ALONE,
) -> Tensor:
    """At most `count` patches, uniformly without replacement from all patches of all maps, scaled to unit norm.

    Every patch of the stream draws a random key and the `count` smallest keys stay, so one pass over batches of any
    shape (B, c, H, W) suffices, and memory is bounded by the sample and one batch. The keys come from `generator`,
    a CPU one, so the choice is the same whatever the device. Patches that are nearly zero are left out.

    Each of several processes gives its share of every batch, (0, c, H, W) where it has none, and generators in the same
    state; all make the choice that one would make, and all get the whole sample.

    Returns
    -------
    Tensor (n, c patch^2) on the device of the maps, n = `count` unless the stream holds fewer patches.
    """
    sample = keys = None
    for maps in batches:
        maps = maps.detach()
        norms = patch_norms(maps, patch, padding)  # (share of B, 1, H', W')
        positions = norms.shape[2] * norms.shape[3]
        norms = processes.interleaved(norms).flatten()  # (B H' W')
        if not bool(torch.isfinite(norms).all()):
            raise ValueError("the images hold NaN or infinity; clean them first")
        if sample is None or keys is None:
            sample = torch.empty(count, maps.shape[1] * patch * patch, dtype=norms.dtype, device=maps.device)
            # A free place has a key above all random ones, and no two are equal: which place a patch takes, and so the
            # start of k-means, is then the same on every device.
            keys = torch.arange(2, 2 + count, dtype=torch.float64, device=maps.device)
        batch_keys = torch.rand(norms.numel(), dtype=torch.float64, generator=generator).to(maps.device)
        # a mean may be rounded differently by another kind of processor
        worth = norms > processes.same(NEAR_ZERO * norms.square().mean().sqrt())
        chosen = torch.nonzero(worth & (batch_keys < keys.max())).flatten()
        # of the keys held and the new ones, the smallest stay: each newcomer takes the place of one that leaves
        stays = torch.zeros(count + len(chosen), dtype=torch.bool, device=maps.device)
        stays[torch.cat([keys, batch_keys[chosen]]).topk(count, largest=False, sorted=False).indices] = True
        arrivals = chosen[stays[count:]]
        places = torch.nonzero(~stays[:count]).flatten()
        keys[places] = batch_keys[arrivals]
        if processes.count > 1:  # each fills in the patches of its own images and leaves zeros for the others
            sample[places] = 0
            images = arrivals.div(positions, rounding_mode="floor")
            own = images % processes.count == processes.rank
            own_images = images.div(processes.count, rounding_mode="floor")  # as this process numbers them
            arrivals, places = (own_images * positions + arrivals % positions)[own], places[own]
        padded = pad_for_patches(maps, patch, padding)
        for piece, into in zip(arrivals.split(65536), places.split(65536), strict=True):
            picked = _patches_at(padded, patch, piece).to(norms.dtype)
            sample[into] = picked / torch.linalg.vector_norm(picked, dim=1, keepdim=True)
    if sample is None or keys is None:
        raise ValueError("there are no images to sample patches from: the data set is empty")
    filled = keys < 1
    sample = sample if bool(filled.all()) else sample[filled]
    if processes.count > 1:
        for rows in sample.split(65536):  # not all at once, which would need the memory twice
            rows.copy_(processes.sum(rows))
    return sample


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
