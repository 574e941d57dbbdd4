"""Supervised convolutional kernel networks (Mairal, 2016) on PyTorch."""

from sckn import kernels
from sckn.checkpoint import CheckpointError, load, save
from sckn.classifier import ImageClassifier
from sckn.estimators import CKNClassifier, CKNRegressor, CKNTransformer
from sckn.export.onnx_file import export_onnx
from sckn.gram import ImageKernel, exact_kernel_matrix, exact_layer_kernel, kernel_matrix
from sckn.layer import KernelLayer, LayerConfig
from sckn.model import KernelModel
from sckn.network import CKN, NetworkConfig
from sckn.nystrom import projection_coefficients, projection_residuals
from sckn.superres.upscaler import Upscaler, UpscalerConfig
from sckn.training.recipe import Recipe
from sckn.training.runs import RunFolder
from sckn.training.sphere import SphereSGD
from sckn.training.supervised import TrainingDivergedError, TrainingResult, train_supervised
from sckn.training.unsupervised import encode, encoded_batches, fit_unsupervised
from sckn.version import __version__
from sckn.whitening import local_whitening

__all__ = [
    "CKN",
    "CKNClassifier",
    "CKNRegressor",
    "CKNTransformer",
    "CheckpointError",
    "ImageClassifier",
    "ImageKernel",
    "KernelLayer",
    "KernelModel",
    "LayerConfig",
    "NetworkConfig",
    "Recipe",
    "RunFolder",
    "SphereSGD",
    "TrainingDivergedError",
    "TrainingResult",
    "Upscaler",
    "UpscalerConfig",
    "__version__",
    "encode",
    "encoded_batches",
    "exact_kernel_matrix",
    "exact_layer_kernel",
    "export_onnx",
    "fit_unsupervised",
    "kernel_matrix",
    "kernels",
    "load",
    "local_whitening",
    "projection_coefficients",
    "projection_residuals",
    "save",
    "train_supervised",
]
