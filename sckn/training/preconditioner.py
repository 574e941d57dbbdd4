"""The matrix Q that speeds up gradient descent on the sphere: the damped inverse of the patches' second moments
(section 3.2 and appendix C), one for each layer, found once, after the network is initialised.

The paper says "inverse covariance matrix" and nothing of how it is made invertible. Here C is not centred, as filters meet
patches in inner products without an offset, and Q = (C + damping tr(C)/d I)^(-1), scaled to mean eigenvalue 1, so that the
learning rate keeps its meaning: strong damping leaves gradient descent as it is.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from sckn.data.batches import ImageSource, image_batches
from sckn.layer import KernelLayer, evaluating
from sckn.network import CKN
from sckn.patches import check_patches_fit, pad_for_patches
from sckn.precision import full_precision
from sckn.processes import ALONE, Processes
from sckn.settings import real_number, whole_number

__all__ = ["patch_second_moments", "preconditioner", "preconditioners"]

# Bytes of patches held at a time; bringing them into the form of a matrix needs as many again.
PIECE = 2**27


@torch.no_grad()
def patch_second_moments(
    network: CKN | KernelLayer, images: ImageSource, *, batch_size: int = 256, processes: Processes = ALONE
) -> list[Tensor]:
    """C = mean of x x' over all patches x of all images, for each layer: (d, d) with d = c e^2, in float64.

    Patches are those of the maps that the layer gets from the layers before it, with zeros around where it pads.

    Parameters
    ----------
    network: a CKN or a single KernelLayer, on the device where the work is done.
    images: (n, c, H, W) from any source that `fit_unsupervised` takes, and from a generator.
    batch_size: images encoded at a time.
    processes: those that share the work, each with its own images; all get the moments over all images.
    """
    layers = [network] if isinstance(network, KernelLayer) else network.kernel_layers
    parameter = next(network.parameters())
    sizes = [layer.filters[0].numel() for layer in layers]
    moments = [torch.zeros(d, d, dtype=torch.float64, device=parameter.device) for d in sizes]
    counts = torch.zeros(len(layers), dtype=torch.float64, device=parameter.device)
    for batch in image_batches(images, whole_number("batch_size", batch_size), parameter.device):
        maps = layers[0].checked(batch.to(parameter.dtype))
        for index, layer in enumerate(layers):
            for patches in _patch_columns(maps, layer.config.patch, layer.config.padding):
                with full_precision(patches.device):
                    moments[index] += patches @ patches.T
                counts[index] += patches.shape[1]
            if index + 1 < len(layers):
                with evaluating(network):
                    maps = layer(maps)
    counts = processes.sum(counts)
    if not counts.any():
        raise ValueError("there are no images to take patches from: the data set is empty")
    return [processes.sum(total).div_(count) for total, count in zip(moments, counts, strict=True)]


def _patch_columns(maps: Tensor, patch: int, padding: bool) -> Iterator[Tensor]:
    """All patches of (B, c, H, W), in fp32 at least, as the columns of matrices (c patch^2, n) of at most PIECE bytes.

    A piece is several images or, where one is too large, several rows of it.
    """
    channels, height, width = maps.shape[1:]
    check_patches_fit(height, width, patch, padding)
    lost = 0 if padding else patch - 1
    dtype = torch.promote_types(maps.dtype, torch.float32)
    row_bytes = channels * patch**2 * (width - lost) * dtype.itemsize
    rows = max(1, min(height - lost, PIECE // row_bytes))
    for part in maps.split(max(1, PIECE // (row_bytes * rows))):
        padded = pad_for_patches(part.to(dtype), patch, padding)
        for start in range(0, height - lost, rows):
            band = F.unfold(padded[:, :, start : start + rows + patch - 1], patch)  # (B', c patch^2, L)
            yield band.transpose(0, 1).flatten(1)


def preconditioner(second_moments: Tensor, damping: float) -> Tensor:
    """Q = (C + damping tr(C)/d I)^(-1), scaled to tr(Q)/d = 1, for second moments C (d, d).

    Q is symmetric and positive definite, computed in float64 and returned in the type of C. C = 0 gives I.
    """
    damping = real_number("damping", damping, above=0)
    shape = tuple(second_moments.shape)
    if len(shape) != 2 or shape[0] != shape[1] or not shape[0] or not second_moments.is_floating_point():
        raise ValueError(f"expected second moments as a matrix (d, d) in floating point, got {shape}, {second_moments.dtype}")
    C = second_moments.double()
    if not bool(torch.isfinite(C).all()):
        raise ValueError("the second moments hold NaN or infinity; check the images and the filters")
    identity = torch.eye(len(C), dtype=C.dtype, device=C.device)
    size = C.abs().max()
    if not size:
        return identity.to(second_moments)
    C = C / size  # the scale of C does not matter, as Q gets its own
    if bool((C - C.T).abs().max() > 1e-5):
        raise ValueError("the second moments are not symmetric")
    mean = C.diagonal().mean()
    if not mean > 0:
        raise ValueError("the second moments have a negative eigenvalue: they cannot be those of patches")
    factor, failed = torch.linalg.cholesky_ex((C + C.T) / (2 * mean) + damping * identity)
    if failed:
        raise ValueError(
            f"the second moments have a negative eigenvalue, or one of zero that a damping of {damping} does not lift "
            "above rounding; give a larger damping"
        )
    Q = torch.cholesky_inverse(factor)
    Q = (Q + Q.T) / 2
    # rows in order, as it is when it was saved and read: some processors round products with the other order differently
    return (Q / Q.diagonal().mean()).to(second_moments.dtype).contiguous()


def preconditioners(
    network: CKN | KernelLayer, images: ImageSource, damping: float, *, batch_size: int = 256, processes: Processes = ALONE
) -> list[Tensor]:
    """Q (d, d) for each layer of a network, in the type of its filters: what `SphereSGD` takes for each of them.

    The parameters are those of `patch_second_moments` and `preconditioner`.
    """
    damping = real_number("damping", damping, above=0)  # before the long work
    moments = patch_second_moments(network, images, batch_size=batch_size, processes=processes)
    dtype = next(network.parameters()).dtype
    # an inverse may be rounded differently by another kind of processor, and filters must not drift apart
    return [processes.same(preconditioner(C, damping).to(dtype)) for C in moments]
