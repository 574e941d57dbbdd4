"""An upscaler learned from half a photograph, judged on the other half, beside bicubic interpolation.

What interpolation loses is predicted from the features of a small kernel network, by a linear model on the features of each
pixel. The photograph, china.jpg of scikit-learn, is by danielbuechele (CC BY 2.0).
"""

import torch
from sklearn.datasets import load_sample_image

from sckn import CKN, LayerConfig, NetworkConfig, Recipe, UpscalerConfig, fit_unsupervised, train_supervised
from sckn.superres.colour import luminance
from sckn.superres.evaluation import measure_upscaling
from sckn.superres.patch_source import PatchSource

pixels = torch.from_numpy(load_sample_image("china.jpg").copy()).permute(2, 0, 1)
y = luminance(pixels.float()).round().byte()  # (427, 640)
left, right = y[:, :320], y[:, 320:]

layers = (LayerConfig(filters=32, patch=3, padding=False), LayerConfig(filters=32, patch=3, padding=False))
network, config = CKN(NetworkConfig(in_channels=1, layers=layers)), UpscalerConfig(scale=2, low_resolution=True)

source = PatchSource({"left": left}, config, patch=16, margin=2)
detail, lost = source.draw(1500, seed=0)  # what the network sees, and what it is to say
fit_unsupervised(network, detail, patches=10_000, seed=0)
recipe = Recipe(epochs=4, loss="square", learning_rate=0.2)
trained = train_supervised(network, detail, lost, regularization=1e-7, recipe=recipe, seed=0).model

upscaler = source.upscaler(trained)  # in grey levels, by which the source has divided

bicubic, ours = measure_upscaling(right, 2), measure_upscaling(right, 2, upscaler.upscale_luminance)
print(f"bicubic:  PSNR {bicubic.psnr:.2f} dB, SSIM {bicubic.ssim:.4f}")
print(f"upscaler: PSNR {ours.psnr:.2f} dB, SSIM {ours.ssim:.4f}")
