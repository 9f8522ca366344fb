"""EM for a mixture of Gaussians, the seed deck's example program, in our own writing.

N points in D dimensions, K Gaussians. `z[n, k]`: how much of point n belongs to Gaussian k.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

__all__ = ["HOT", "RIDGE", "Contract", "by_matmul", "by_sums", "data", "step"]

Contract = Callable[..., "np.ndarray"]
"""Called as np.einsum: subscripts, then arrays."""
HOT = "nk,nkd,nke->kde"
RIDGE = 1e-8
"""Added to the covariances, so that each can be inverted."""


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
