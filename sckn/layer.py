"""One layer of the network: patches -> kernel map projected on the filters' span -> pooling, equation (11)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Self, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sckn.capture import capturing
from sckn.inverse_root import Gradient, InverseRoot, inverse_square_root
from sckn.kernels import Exponential, Kernel, WithAlpha
from sckn.moving_frame import moving_frame
from sckn.nystrom import filter_gram, unit_rows
from sckn.patches import check_patches_fit, maps_and_margin, patch_squares
from sckn.pooling import PAPER_WIDTH, gaussian_pool, pooled_size
from sckn.precision import without_autocast
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
    inverse_root: how (kappa(Z'Z) + epsilon I)^(-1/2) is found: "eigh", or "newton_schulz" by matrix products alone, or
        "moving_frame" by a few from the last step's: a rotation of it that turns as the layer learns, with the same kernel.
    gradient: of that matrix: "exact", or "paper" for the approximation printed in the paper.
    dropout: in training mode, the part of the input's numbers that the filters do not see, at random; the others are
        enlarged to make up for it. Norms of patches are those of the whole input, so that the argument of kappa keeps its
        mean.
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
    dropout: float = 0.0

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
            "dropout": real_number("dropout", self.dropout, least=0, below=1),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if not isinstance(self.kernel, Kernel):
            raise ValueError(f"kernel must be one of sckn.kernels, such as Exponential(alpha=4.0), got {self.kernel!r}")
        if self.inverse_root == "moving_frame" and self.gradient != "exact":
            raise ValueError("gradient must be 'exact' with inverse_root='moving_frame': the paper's formula is for A itself")

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the output map."""
        lost = 0 if self.padding else self.patch - 1
        check_patches_fit(height, width, self.patch, self.padding)
        return pooled_size(height - lost, self.subsampling), pooled_size(width - lost, self.subsampling)


class KernelLayer(nn.Module):
    """(B, c, H, W) -> (B, filters, H', W'), an ordinary module that trains inside any network with any optimiser.

    `filters` (p, c, e, e) is used as filters / |filters|, so every value except zero is valid.

    With inverse_root="moving_frame" the buffer `frame` (p, p) holds B of the last forward pass in training mode, the
    identity before the first; it belongs to the filters and is saved with them. After a change of the filters by any
    other way than small steps, `with torch.no_grad(): layer.inverse_root()` in training mode lets it catch up, which a
    CUDA graph cannot do by itself: run the layer once before it is captured, too.

    Example
    -------
    >>> layer = KernelLayer(3, LayerConfig(filters=16, patch=3, subsampling=2))
    >>> layer(torch.rand(8, 3, 32, 32)).shape
    torch.Size([8, 16, 16, 16])
    """

    frame: Tensor | None

    def __init__(self, in_channels: int, config: LayerConfig) -> None:
        super().__init__()
        if not isinstance(config, LayerConfig):
            raise ValueError(f"a KernelLayer is made from its number of input channels and a LayerConfig, got {config!r}")
        self.in_channels = whole_number("in_channels", in_channels)
        self.config = config
        filters = torch.randn(config.filters, in_channels, config.patch, config.patch)
        self.filters = nn.Parameter(filters / torch.linalg.vector_norm(filters, dim=(1, 2, 3), keepdim=True))
        self.log_alpha: nn.Parameter | None = None
        if isinstance(config.kernel, WithAlpha) and config.kernel.learnable:
            self.log_alpha = nn.Parameter(torch.tensor(float(config.kernel.alpha)).log())
        self.register_buffer("frame", torch.eye(config.filters) if config.inverse_root == "moving_frame" else None)
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

    def directions(self) -> Tensor:
        """The filters at unit norm, (p, c e e): the columns of Z."""
        return unit_rows(self.filters)

    def gram(self) -> Tensor:
        """kappa(Z'Z) + epsilon I, (p, p)."""
        return filter_gram(self.directions(), self.kernel, self.config.epsilon)

    def _own_state(self) -> list[Tensor]:
        """What B depends on (a replica for data parallelism has it, but no `parameters()`)."""
        return [tensor for tensor in (self.filters, self.log_alpha, self.frame) if tensor is not None]

    def cached_root(self) -> Tensor | None:
        """B as last computed, if it may be used now: in eval mode, without gradients, the parameters unchanged."""
        if self.training or torch.is_grad_enabled() or not self._cached_for or capturing(self.filters.device):
            return None
        # By value: a version counter does not see assignments through `.data`.
        same = all(
            old.device == new.device and old.dtype == new.dtype and torch.equal(old, new)
            for old, new in zip(self._cached_for, self._own_state(), strict=True)
        )
        return self._cached_root if same else None

    def remember_root(self, root: Tensor) -> None:
        """Keep B: in training as the frame to start from next time; otherwise for `cached_root`, where it may be used."""
        if self.training:
            if self.frame is not None:
                self.frame.copy_(root.detach())
        elif not torch.is_grad_enabled() and not capturing(root.device):  # what a graph captures has no value yet
            self._cached_for = tuple(tensor.detach().clone() for tensor in self._own_state())
            self._cached_root = root

    def inverse_root(self) -> Tensor:
        """B with B B' = (kappa(Z'Z) + epsilon I)^-1, (p, p): the symmetric A, or a rotation of it by the moving frame."""
        root = self.cached_root()
        if root is None:
            if self.frame is None:
                root = inverse_square_root(self.gram(), self.config.inverse_root, self.config.gradient)
            else:
                root = moving_frame(self.gram(), self.frame)
            self.remember_root(root)
        return root

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """As for any module, but the frame stays in fp32 at least: it is no parameter that rounding leaves what it is."""
        frame = self.frame
        super()._apply(fn, recurse)
        if frame is not None and self.frame is not None and self.frame.dtype in (torch.float16, torch.bfloat16):
            self.frame = frame.to(self.frame.device)
        return self

    def checked(self, maps: Tensor) -> Tensor:
        """The maps as they are, if this layer can take them."""
        if maps.dim() != 4 or maps.shape[1] != self.in_channels:
            raise ValueError(f"expected images of shape (B, {self.in_channels}, H, W), got {tuple(maps.shape)}")
        if not maps.is_floating_point():
            raise ValueError(f"expected images in floating point, got {maps.dtype}; divide bytes by 255")
        return maps

    def forward(self, maps: Tensor, root: Tensor | None = None, directions: Tensor | None = None) -> Tensor:
        """The output map; `root` is B, and `directions` Z, where a network has computed them for several layers at once."""
        config = self.config
        maps, kind = self._in_types_of_computation(self.checked(maps))
        root = self.inverse_root() if root is None else root  # (p, p)
        Z = self.directions() if directions is None else directions
        Z = Z.view_as(self.filters).to(maps.dtype)  # (p, c, e, e)
        squares = patch_squares(maps, config.patch, config.padding)  # (B, 1, H', W')
        seen = F.dropout(maps, config.dropout) if self.training and config.dropout else maps
        padded, margin = maps_and_margin(seen, config.patch, config.padding)
        with without_autocast(maps.device):
            projected = F.conv2d(padded, Z, padding=margin)  # (B, p, H', W')
            scaled = self.kernel.scaled(projected, squares, config.norm_offset, overwrite=True)
            pooled = gaussian_pool(scaled, config.subsampling, config.pooling_width)
            # pooling is linear, so B' may come after it, where there are fewer pixels
            return F.conv2d(pooled, root.T[:, :, None, None].to(pooled.dtype)).to(kind)

    def _in_types_of_computation(self, maps: Tensor) -> tuple[Tensor, torch.dtype]:
        """The maps in the type of the first product, and the type of the output.

        Under autocast, half precision is for products with patches of several pixels, most of the work, alone: an exponential
        of large alpha, which layers of single pixels learn, magnifies the rounding of its argument, and what B adds up, in the
        second product, nearly cancels.
        """
        device = maps.device.type
        if not torch.is_autocast_enabled(device):
            return maps, maps.dtype
        kind = self.filters.dtype
        return maps.to(torch.get_autocast_dtype(device) if self.config.patch > 1 else kind), kind

    def extra_repr(self) -> str:
        config = self.config
        text = f"{self.in_channels}, {config.filters}, patch={config.patch}, subsampling={config.subsampling:.4g}"
        text += f", padding={config.padding}, kernel={config.kernel}, epsilon={config.epsilon}"
        text += f", norm_offset={config.norm_offset}, pooling_width={config.pooling_width:.4g}"
        return text + f", inverse_root={config.inverse_root}, gradient={config.gradient}, dropout={config.dropout}"


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode, in which a layer computes its B once; afterwards each module is in the mode it was in."""
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training
