"""A kernel layer among PyTorch's own: an ordinary module, trained by Adam together with a convolution and a linear layer.

Its filters start from k-means on patches of the images; random ones work, too.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from sckn import KernelLayer, LayerConfig, fit_unsupervised

torch.manual_seed(0)
pixels, digits = load_digits(return_X_y=True)
images = torch.from_numpy(pixels).float().reshape(-1, 1, 8, 8) / 16
labels = torch.from_numpy(digits)

first = KernelLayer(1, LayerConfig(filters=24, patch=3, subsampling=2))
fit_unsupervised(first, images[:1000], patches=5000)
model = nn.Sequential(first, nn.Conv2d(24, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 2 * 2, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for epoch in range(5):
    for batch in torch.randperm(1000).split(50):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    with torch.no_grad():
        accuracy = float((model(images[1000:]).argmax(1) == labels[1000:]).float().mean())
    print(f"epoch {epoch + 1}: {100 * accuracy:.1f} % of 797 digits right")
