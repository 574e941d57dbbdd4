"""Local whitening as part of an ONNX graph.

ONNX has no eigenvalues. A symmetric matrix is brought to diagonal form by Jacobi's rotations instead, in float64: each round
makes n / 2 entries off the diagonal zero, no two of which share a row or a column, and n - 1 rounds meet each pair once, as a
tournament does in which all players but the first move on by one chair. The result is that of `local_whitening` to rounding.
"""

import numpy as np

from sckn.export.graph import Graph, Value
from sckn.whitening import CONSTANT_TOLERANCE, RANK_TOLERANCE

__all__ = ["whitened"]

PATCH = 3
MOST_SWEEPS = 15  # through all pairs; about eight are enough
# What is off the diagonal at the end, relative to the whole matrix: about what rounding leaves.
OFF_DIAGONAL = 3e-15


def whitened(graph: Graph, images: Value, channels: int, size: int, power: float) -> Value:
    """As `sckn.whitening.local_whitening` of images (B, channels, size, size), in float64; the result is of their type."""
    places = size - PATCH + 1
    offsets = [(row, column) for row in range(PATCH) for column in range(PATCH)]
    exact = images.cast(np.float64)
    shifted = [exact.part(2, row, row + places).part(3, column, column + places) for row, column in offsets]
    flat = [part.reshaped(0, channels, 1, places**2) for part in shifted]
    X = graph.node("Concat", *flat, axis=2)  # (B, c, e^2, L)
    energy = (X * X).sum(1, 2, 3).reshaped(-1, 1)
    # e^2 - 1 contrasts tell all of a patch but its mean: an even number, and the smaller matrix has no zero eigenvalues of it
    basis = _contrasts(PATCH**2)
    dimension = channels * len(basis)
    X = (basis @ X).reshaped(0, dimension, places**2)  # (B, d, L)
    X = X - X.mean(2)
    eigenvalues, U = _eigenvectors(graph, X @ X.transposed(0, 2, 1), dimension)  # (B, d), rows of (B, d, d)
    kept = graph.node(
        "And",
        eigenvalues > eigenvalues.max(1) * RANK_TOLERANCE**2,
        eigenvalues > energy * CONSTANT_TOLERANCE**2,
        dtype=np.bool_,
    )
    gain = graph.where(kept, graph.where(kept, eigenvalues, 1.0) ** -power, 0.0).reshaped(0, dimension, 1)
    X = U.transposed(0, 2, 1) @ (gain * (U @ X))
    X = basis.T @ X.reshaped(0, channels, len(basis), places**2)  # (B, c, e^2, L)
    back = [
        graph.node(
            "Pad",
            X.part(2, place, place + 1).reshaped(0, channels, places, places),
            np.array([0, 0, row, column, 0, 0, size - places - row, size - places - column]),
        )
        for place, (row, column) in enumerate(offsets)
    ]
    return (graph.node("Sum", *back) / _overlap(size)).cast(images.dtype)


def _contrasts(count: int) -> np.ndarray:
    """Orthonormal rows (count - 1, count) that sum to zero: each number against the mean of those before it."""
    rows = np.zeros((count - 1, count))
    for row in range(1, count):
        rows[row - 1, :row] = -1 / row
        rows[row - 1, row] = 1
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _overlap(size: int) -> np.ndarray:
    """The number of patches that each pixel is in."""
    side = np.convolve(np.ones(size - PATCH + 1), np.ones(PATCH))
    return np.outer(side, side)


def _eigenvectors(graph: Graph, matrix: Value, dimension: int) -> tuple[Value, Value]:
    """Eigenvalues (B, n) in no order and eigenvectors, the rows of (B, n, n), of symmetric matrices with an even n."""
    unit = np.eye(dimension)
    # beside the matrix stands the product of all rotations so far
    start = graph.node("Concat", matrix, matrix * 0.0 + unit, axis=2)  # (B, n, 2n)
    bound = (matrix * matrix).sum(1, 2) * OFF_DIAGONAL**2
    body = Graph("jacobi_")
    body.input("jacobi_round", np.int64, [])
    body.input("jacobi_again", np.bool_, [])
    state = body.input("jacobi_state", np.float64, ["batch", dimension, 2 * dimension])
    turned = _one_round(body, state, dimension)
    off = turned.part(2, 0, dimension) * (1 - unit)
    # not "off > bound": a NaN in one image must not end the work on the others
    done = body.node("LessOrEqual", (off * off).sum(1, 2), bound, dtype=np.bool_)
    again = body.node("Not", done, dtype=np.bool_).cast(np.int32).max(0, 1, 2).reshaped().cast(np.bool_)
    result = graph.loop(body, MOST_SWEEPS * (dimension - 1), start, turned, again)
    return (result.part(2, 0, dimension) * unit).sum(2).reshaped(0, dimension), result.part(2, dimension, 2 * dimension)


def _one_round(graph: Graph, state: Value, dimension: int) -> Value:
    """Rotate rows and columns i and n/2 + i of the matrix for all i, and the rows of what stands beside it; then move on."""
    half = dimension // 2
    matrix = state.part(2, 0, dimension)
    diagonal = (matrix * np.eye(dimension)).sum(2)  # (B, n, 1)
    across = (matrix.part(1, 0, half) * np.eye(half, dimension, half)).sum(2)  # (B, n/2, 1): entries (i, n/2 + i)
    gap = diagonal.part(1, half, dimension) - diagonal.part(1, 0, half)
    # the tangent of the smaller of the two angles that make the entry zero; 0 where both numbers are
    sign = graph.where(graph.node("Less", gap, 0.0, dtype=np.bool_), -1.0, graph.constant(1.0, np.float64))
    below = graph.node("Abs", gap) + (gap * gap + across * across * 4.0).sqrt()
    tangent = 2.0 * across * sign / graph.where(below.equals(0.0), 1.0, below)
    cosine = 1.0 / (tangent * tangent + 1.0).sqrt()
    sine = tangent * cosine
    # row i of the product that turns and moves on comes from the rows `moved[i]` and, weighted by the sine, its partner
    first, second = np.split(np.arange(dimension), 2)
    moved = np.concatenate([first[:1], second[:1], first[1:-1], second[1:], first[-1:]])
    own, partner = np.eye(dimension)[moved], np.eye(dimension)[(moved + half) % dimension]
    partner[moved < half] *= -1
    turn = cosine.gathered(moved % half, 1) * own + sine.gathered(moved % half, 1) * partner  # (B, n, n)
    state = turn @ state
    matrix = state.part(2, 0, dimension) @ turn.transposed(0, 2, 1)
    return graph.node("Concat", matrix, state.part(2, dimension, 2 * dimension), axis=2)
