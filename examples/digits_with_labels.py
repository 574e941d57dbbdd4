"""Filters that know what they are for: the same small network with filters from k-means, and trained with the labels.

scikit-learn's interface, in which supervised=True trains all layers and the linear model together.
"""

from sklearn.datasets import load_digits

from sckn import CKNClassifier, LayerConfig, NetworkConfig

X, y = load_digits(return_X_y=True)
X = X.astype("float32")
small = NetworkConfig(in_channels=1, layers=(LayerConfig(8, 3, subsampling=2), LayerConfig(8, 3, subsampling=2)))

errors = {}
for supervised in (False, True):
    classifier = CKNClassifier(small, image_shape=(1, 8, 8), supervised=supervised, random_state=0).fit(X[:600], y[:600])
    errors[supervised] = 100 * (1 - classifier.score(X[1000:], y[1000:]))
    print(f"{'with labels' if supervised else 'k-means':11}: {errors[supervised]:.1f} % error on 797 digits")
