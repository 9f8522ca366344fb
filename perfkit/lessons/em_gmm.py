"""EM for a mixture of Gaussians, the seed deck's example program, in our own writing.

N points in D dimensions, K Gaussians. `z[n, k]`: how much of point n belongs to Gaussian k.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "BLOCK",
    "HOT",
    "RIDGE",
    "TOLERANCE",
    "Contract",
    "by_matmul",
    "by_sums",
    "data",
    "fit",
    "fit_blocks",
    "step",
]

Contract = Callable[..., "np.ndarray"]
"""Called as np.einsum: subscripts, then arrays."""
HOT = "nk,nkd,nke->kde"
RIDGE = 1e-8
"""Added to the covariances, so that each can be inverted."""
BLOCK = 512
"""Points that are worked on together, so that what is made of them stays in a cache."""
TOLERANCE = 5e-5
"""Two results are the same answer if their z differ by less in the mean: float32 does, while a
step left out or inputs of less precision do not.
"""


def data(n: int = 4000, d: int = 50, k: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Points `x` and a first guess `z`, the same in each call. Uniform, as in the deck."""
    import numpy as np

    random = np.random.default_rng(30)
    x, z = random.random((n, d)), random.random((n, k))
    return x, z / z.sum(axis=1, keepdims=True)


def by_sums(subscripts: str, *arrays: np.ndarray) -> np.ndarray:
    """What the subscripts say, summed in plain loops in C."""
    import numpy as np

    result: np.ndarray = np.einsum(subscripts, *arrays)
    return result


def by_matmul(subscripts: str, *arrays: np.ndarray) -> np.ndarray:
    """As `by_sums`; the covariances are K matrix products."""
    if subscripts != HOT:
        return by_sums(subscripts, *arrays)
    import numpy as np

    z, left, right = arrays
    products = [np.matmul((z[:, [k]] * left[:, k]).T, right[:, k]) for k in range(z.shape[1])]
    return np.stack(products)


def step(x: np.ndarray, z: np.ndarray, contract: Contract = by_sums) -> np.ndarray:
    """One step of EM: a better z."""
    import numpy as np

    weight = z.sum(axis=0)
    mean = contract("nk,nd->kd", z, x) / weight[:, None]
    apart = x[:, None] - mean
    spread = contract("nk,nkd,nke->kde", z, apart, apart)
    spread = spread / weight[:, None, None] + RIDGE * np.eye(x.shape[1])
    inverse = np.linalg.inv(spread)
    logdet = np.linalg.slogdet(spread)[1]
    turned = contract("nkd,kde->nke", apart, inverse)
    distance = contract("nke,nke->nk", turned, apart)
    logz = np.log(weight / len(x)) - 0.5 * (logdet + distance)
    z = np.exp(logz - logz.max(axis=1, keepdims=True))
    z /= z.sum(axis=1, keepdims=True)
    return z


def fit(x: np.ndarray, z: np.ndarray, steps: int = 10) -> np.ndarray:
    """Take so many steps, in float64, and give the last z: the program as it was begun."""
    for _ in range(steps):
        z = step(x, z)
    return z


def fit_blocks(
    x: np.ndarray, z: np.ndarray, steps: int = 10, *, dtype: Any = "float32", block: int = BLOCK
) -> np.ndarray:
    """As `fit`: matrix products on blocks of points, in `dtype`; no array of N by K by D is made.

    The small part (K covariances, their inverses) stays in float64.
    """
    import numpy as np

    points = np.ones((len(x), x.shape[1] + 1), dtype)
    # Centred first: float32 loses what is common to all points when it squares them.
    points[:, :-1] = x - x.mean(axis=0)
    z = z.astype(dtype)
    parts = [slice(start, start + block) for start in range(0, len(x), block)]
    for _ in range(steps):
        sums = sum((_sums(points[part], z[part]) for part in parts), np.zeros(()))
        turn, offset = _turned(sums, len(x))
        turn, offset = turn.astype(dtype), offset.astype(dtype)
        for part in parts:
            z[part] = _belongs(points[part], turn, offset)
    return z


def _sums(points: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Sums of z [x, 1] [x, 1]^T: each Gaussian's weight, mean and spread in one matrix."""
    (k, width), rows = (z.shape[1], points.shape[1]), len(points)
    weighted = (z[:, :, None] * points[:, None, :]).reshape(rows, k * width)
    sums: np.ndarray = (weighted.T @ points).reshape(k, width, width).astype("float64")
    return sums


def _turned(sums: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """What makes each Gaussian round and central, side by side in one matrix, and the part of log z
    that is the same for all points.
    """
    import numpy as np

    weight = sums[:, -1, -1]
    moments = sums / weight[:, None, None]
    mean, width = moments[:, -1, :-1], sums.shape[1]
    spread = moments[:, :-1, :-1] - mean[:, :, None] * mean[:, None, :]
    root = np.linalg.cholesky(spread + RIDGE * np.eye(width - 1))
    turn = np.linalg.inv(root).transpose(0, 2, 1)
    turn = np.concatenate([turn, -(mean[:, None] @ turn)], axis=1)
    half_logdet = np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
    return turn.transpose(1, 0, 2).reshape(width, -1), np.log(weight / n) - half_logdet


def _belongs(points: np.ndarray, turn: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """How much of each of these points belongs to each Gaussian."""
    import numpy as np

    round_ = (points @ turn).reshape(len(points), len(offset), -1)
    logz = offset - 0.5 * np.einsum("nkd,nkd->nk", round_, round_)
    z: np.ndarray = np.exp(logz - logz.max(axis=1, keepdims=True))
    z /= z.sum(axis=1, keepdims=True)
    return z
