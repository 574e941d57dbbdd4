"""One layer of the network: patches -> kernel map projected on the filters' span -> pooling, equation (11)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sckn.inverse_root import Gradient, InverseRoot, inverse_square_root
from sckn.kernels import Exponential, Kernel
from sckn.nystrom import filter_gram, unit_rows
from sckn.patches import check_patches_fit, pad_for_patches, patch_norms
from sckn.pooling import PAPER_WIDTH, gaussian_pool, pooled_size
from sckn.settings import one_of, real_number, true_or_false, whole_number

__all__ = ["KernelLayer", "LayerConfig", "evaluating"]


@dataclass(frozen=True)
class LayerConfig:
    """One layer.

    Parameters
    ----------
    filters: p, the dimension of the subspace.
    patch: e, the side of a patch.
    subsampling: pooling factor, any real number from 1; 1 is no pooling.
    padding: surround the map with zeros, so that there is a patch for each pixel.
    kernel: kappa.
    epsilon: regularisation of the projection, added to the diagonal of kappa(Z'Z).
    norm_offset: added to a patch's norm before dividing by it.
    pooling_width: standard deviation of the pooling window, as a multiple of the subsampling factor.
    inverse_root: how (kappa(Z'Z) + epsilon I)^(-1/2) is found: "eigh", or "newton_schulz" by matrix products alone.
    gradient: of that matrix: "exact", or "paper" for the approximation printed in the paper.
    """

    filters: int
    patch: int
    subsampling: float = 1.0
    padding: bool = True
    kernel: Kernel = field(default_factory=lambda: Exponential(alpha=4.0))
    epsilon: float = 1e-3
    norm_offset: float = 1e-5
    pooling_width: float = PAPER_WIDTH
    inverse_root: InverseRoot = "eigh"
    gradient: Gradient = "exact"

    def __post_init__(self) -> None:
        checked = {
            "filters": whole_number("filters", self.filters),
            "patch": whole_number("patch", self.patch),
            "subsampling": real_number("subsampling", self.subsampling, least=1),
            "padding": true_or_false("padding", self.padding),
            "epsilon": real_number("epsilon", self.epsilon, least=0),
            "norm_offset": real_number("norm_offset", self.norm_offset, least=0),
            "pooling_width": real_number("pooling_width", self.pooling_width, above=0),
            "inverse_root": one_of("inverse_root", self.inverse_root, get_args(InverseRoot)),
            "gradient": one_of("gradient", self.gradient, get_args(Gradient)),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if not isinstance(self.kernel, Kernel):
            raise ValueError(f"kernel must be one of sckn.kernels, such as Exponential(alpha=4.0), got {self.kernel!r}")

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the output map."""
        lost = 0 if self.padding else self.patch - 1
        check_patches_fit(height, width, self.patch, self.padding)
        return pooled_size(height - lost, self.subsampling), pooled_size(width - lost, self.subsampling)


class KernelLayer(nn.Module):
    """(B, c, H, W) -> (B, filters, H', W'), an ordinary module that trains inside any network with any optimiser.

    `filters` (p, c, e, e) is used as filters / |filters|, so every value except zero is valid.

    Example
    -------
    >>> layer = KernelLayer(3, LayerConfig(filters=16, patch=3, subsampling=2))
    >>> layer(torch.rand(8, 3, 32, 32)).shape
    torch.Size([8, 16, 16, 16])
    """

    def __init__(self, in_channels: int, config: LayerConfig) -> None:
        super().__init__()
        if not isinstance(config, LayerConfig):
            raise ValueError(f"a KernelLayer is made from its number of input channels and a LayerConfig, got {config!r}")
        self.in_channels = whole_number("in_channels", in_channels)
        self.config = config
        filters = torch.randn(config.filters, in_channels, config.patch, config.patch)
        self.filters = nn.Parameter(filters / torch.linalg.vector_norm(filters, dim=(1, 2, 3), keepdim=True))
        self.log_alpha: nn.Parameter | None = None
        if isinstance(config.kernel, Exponential) and config.kernel.learnable:
            self.log_alpha = nn.Parameter(torch.tensor(float(config.kernel.alpha)).log())
        self._cached_for: tuple[Tensor, ...] = ()
        self._cached_root: Tensor | None = None

    @property
    def kernel(self) -> Kernel:
        """kappa, with the alpha learned so far."""
        if self.log_alpha is None:
            return self.config.kernel
        # fp32 at least, so that a network in half precision keeps its alpha
        log_alpha = self.log_alpha.to(torch.promote_types(self.log_alpha.dtype, torch.float32))
        return replace(self.config.kernel, alpha=log_alpha.exp())  # pyright: ignore[reportArgumentType, reportCallIssue]

    def gram(self) -> Tensor:
        """kappa(Z'Z) + epsilon I, (p, p)."""
        return filter_gram(unit_rows(self.filters), self.kernel, self.config.epsilon)

    def _own_parameters(self) -> list[Tensor]:
        """What A depends on (a replica for data parallelism has it, but no `parameters()`)."""
        return [self.filters] if self.log_alpha is None else [self.filters, self.log_alpha]

    def cached_root(self) -> Tensor | None:
        """A as last computed, if it may be used now: in eval mode, without gradients, the parameters unchanged."""
        if self.training or torch.is_grad_enabled() or not self._cached_for:
            return None
        # By value: a version counter does not see assignments through `.data`.
        same = all(
            old.device == new.device and old.dtype == new.dtype and torch.equal(old, new)
            for old, new in zip(self._cached_for, self._own_parameters(), strict=True)
        )
        return self._cached_root if same else None

    def remember_root(self, root: Tensor) -> None:
        """Keep A for `cached_root`, where it may be used again."""
        if not (self.training or torch.is_grad_enabled()):
            self._cached_for = tuple(parameter.detach().clone() for parameter in self._own_parameters())
            self._cached_root = root

    def inverse_root(self) -> Tensor:
        """A = (kappa(Z'Z) + epsilon I)^(-1/2), (p, p)."""
        root = self.cached_root()
        if root is None:
            root = inverse_square_root(self.gram(), self.config.inverse_root, self.config.gradient)
            self.remember_root(root)
        return root

    def checked(self, maps: Tensor) -> Tensor:
        """The maps as they are, if this layer can take them."""
        if maps.dim() != 4 or maps.shape[1] != self.in_channels:
            raise ValueError(f"expected images of shape (B, {self.in_channels}, H, W), got {tuple(maps.shape)}")
        if not maps.is_floating_point():
            raise ValueError(f"expected images in floating point, got {maps.dtype}; divide bytes by 255")
        return maps

    def forward(self, maps: Tensor, root: Tensor | None = None) -> Tensor:
        """The output map; `root` is A where a network has computed it for several layers at once."""
        config = self.config
        maps = self.checked(maps)
        A = self.inverse_root() if root is None else root  # (p, p)
        Z = unit_rows(self.filters).view_as(self.filters)  # (p, c, e, e)
        norms = patch_norms(maps, config.patch, config.padding)  # (B, 1, H', W')
        projected = F.conv2d(pad_for_patches(maps, config.patch, config.padding), Z.to(maps.dtype))  # (B, p, H', W')
        similarity = self.kernel(projected / torch.where(norms > 0, norms + config.norm_offset, 1))
        pooled = gaussian_pool(norms * similarity, config.subsampling, config.pooling_width)
        # pooling is linear, so A may come after it, where there are fewer pixels
        return F.conv2d(pooled, A[:, :, None, None].to(pooled.dtype)).to(maps.dtype)

    def extra_repr(self) -> str:
        config = self.config
        text = f"{self.in_channels}, {config.filters}, patch={config.patch}, subsampling={config.subsampling:.4g}"
        text += f", padding={config.padding}, kernel={config.kernel}, epsilon={config.epsilon}"
        text += f", norm_offset={config.norm_offset}, pooling_width={config.pooling_width:.4g}"
        return text + f", inverse_root={config.inverse_root}, gradient={config.gradient}"


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode, in which a layer computes its A once; afterwards each module is in the mode it was in."""
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training
