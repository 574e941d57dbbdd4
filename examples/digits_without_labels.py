"""Features that nobody labelled: a kernel network learns from digits alone, and a linear model needs few labels after it.

The network sees 1,000 images without their labels. A logistic regression then learns from 50 labelled ones, from the pixels
or from the network's features.
"""

from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from sckn import CKN, LayerConfig, NetworkConfig, encode, fit_unsupervised

pixels, labels = load_digits(return_X_y=True)
images = pixels.reshape(-1, 1, 8, 8).astype("float32") / 16

layers = (LayerConfig(filters=32, patch=3), LayerConfig(filters=128, patch=3, subsampling=2))
network = fit_unsupervised(CKN(NetworkConfig(in_channels=1, layers=layers)), images[:1000], seed=0)

accuracies = {}
for name, features in (("pixels", images.reshape(len(images), -1)), ("features", encode(network, images).numpy())):
    model = LogisticRegression(C=10, max_iter=5000).fit(features[:50], labels[:50])
    accuracies[name] = model.score(features[1000:], labels[1000:])
    print(f"{name:8} {100 * accuracies[name]:.1f} % of 797 digits right, after 50 labels")
