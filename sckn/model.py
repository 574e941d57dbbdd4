"""A network with its linear model: images in, scores or predictions out."""

import torch
from torch import Tensor, nn

from sckn.data.batches import floating_point
from sckn.layer import evaluating
from sckn.network import CKN
from sckn.precision import precision, without_autocast

__all__ = ["KernelModel", "feature_rows"]


def feature_rows(maps: Tensor, per_pixel: bool) -> Tensor:
    """What the linear model sees of maps (B, p, h, w): one row an image (B, p h w), or one a pixel (B h w, p)."""
    return maps.permute(0, 2, 3, 1).flatten(0, 2) if per_pixel else maps.flatten(1)


class KernelModel(nn.Module):
    """f(x) = <W, features of x> + b: scores (B, outputs) of images, or (B, outputs, h, w) of their pixels.

    Parameters
    ----------
    network: gives the features. weights: W (d, outputs). bias: (outputs,), zero where left out.
    per_pixel: the linear model acts on the p numbers of each pixel of the last map.
    """

    def __init__(self, network: CKN, weights: Tensor, bias: Tensor | None = None, *, per_pixel: bool = False) -> None:
        super().__init__()
        self.network = network
        self.weights = nn.Parameter(weights.detach().clone())
        self.bias = nn.Parameter(weights.new_zeros(weights.shape[1]) if bias is None else bias.detach().clone())
        self.per_pixel = per_pixel

    def forward(self, images: Tensor) -> Tensor:
        maps = self.network(images)
        with without_autocast(maps.device):  # classes may differ by less than bf16 tells apart
            scores = feature_rows(maps, self.per_pixel).to(self.weights.dtype) @ self.weights + self.bias
        if not self.per_pixel:
            return scores
        return scores.unflatten(0, (len(maps), *maps.shape[2:])).permute(0, 3, 1, 2)

    @torch.no_grad()
    def predict(self, images: Tensor, batch_size: int = 256) -> Tensor:
        """Scores of many images, in floating point or bytes, a batch at a time, on the device of the model, not below fp32."""
        like = self.weights
        with evaluating(self), precision("highest", like.device):
            batches = (floating_point(batch.to(like.device)).to(like.dtype) for batch in images.split(batch_size))
            return torch.cat([self(batch) for batch in batches])
