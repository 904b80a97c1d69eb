"""Large convolutions by fewer multiplications: Winograd's minimal filtering along the width.

F(m, r) computes m neighbouring results of a filter of r taps. It takes m + r - 1 products instead
of m r (Winograd 1980; for networks Lavin and Gray 2016). Along the height an ordinary convolution
remains, which does most of the additions. The results differ from those of the convolution by a few
times float32's rounding. If the user asks JAX for more precision
(``jax_default_matmul_precision``), a convolution stays as it is.

Notation
    N: images. H, W: their height and width. C: channels. K: channels of the result.
    H', W': height and width of the result. R, r: taps along height and width. m: results of a tile.
    points: m + r - 1 values at which polynomials are multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from paceline.program.rewrites.layouts import ConvLayout
from paceline.program.rewrites.splice import Replacement

Pads = Sequence[tuple[int, int]]

#: m. A larger tile saves more multiplications and rounds worse.
TILE = 4
#: The points, beside infinity, at which the polynomials of filter and data are multiplied.
_POINTS = (0, 1, -1, 2, -2, Fraction(1, 2), Fraction(-1, 2))
#: r -> channels of data and result from which on the rule was faster (docs/decisions/0028).
_CHANNELS = {3: 128, 5: 64}
#: Multiplications of a convolution below which the rule saves less time than it takes to compile.
_LEAST = 1e8
_DTYPE = np.float32
#: Dimension numbers of a product that sums over the first axes of both operands.
_FIRST = (((0,), (0,)), ((), ()))
_NHWC = ("NHWC", "HWIO", "NHWC")


def winograd(eqn: Any) -> Replacement | None:
    """The rule: images, float32, stride 1, no groups, and large enough."""
    arrays = (*eqn.invars, *eqn.outvars)
    if len(arrays[0].aval.shape) != 4 or any(var.aval.dtype != _DTYPE for var in arrays):
        return None
    if not _is_plain(eqn.params):
        return None
    layout, pads = ConvLayout.of(eqn), eqn.params["padding"]
    if min(min(pair) for pair in pads) < 0:
        return None
    x, kernel, result = layout.shapes(eqn)
    taps, width = kernel[1], result[2]
    if math.prod(result) * math.prod(kernel[:3]) < _LEAST or min(taps, width) not in _CHANNELS:
        return None
    least = _CHANNELS[min(taps, width)]
    if taps <= width and width >= TILE and min(kernel[2:]) >= least:
        return layout.around(lambda x, kernel: filtered(x, kernel, pads))
    if taps > width and min(x[0], kernel[3]) >= least:
        return layout.around(lambda x, kernel: correlated(x, kernel, pads))
    return None


def _is_plain(params: Mapping[str, Any]) -> bool:
    ones = (*params["window_strides"], *params["lhs_dilation"], *params["rhs_dilation"])
    groups = (params["feature_group_count"], params["batch_group_count"])
    precision = params["precision"]
    wanted = precision if isinstance(precision, tuple) else (precision,)
    return (
        set(ones) | set(groups) == {1}
        and set(wanted) <= {None, lax.Precision.DEFAULT}
        and params["preferred_element_type"] in (None, _DTYPE)
    )


def filtered(x: Any, kernel: Any, pads: Pads) -> Any:
    """The convolution of images with a kernel of few taps: float[N, H', W', K].

    ``x``: float[N, H, W, C]. ``kernel``: float[R, r, C, K]. ``pads``: zeros before and after the
    height and the width.
    """
    taps, width = kernel.shape[1], x.shape[2] + sum(pads[1]) - kernel.shape[1] + 1
    data, results, filters, n = _matrices(taps, x.shape[2], pads[1][0], width)
    tiles = data.shape[0] // n
    spread = _along_width(data, x)
    kernels = lax.dot_general(filters.astype(x.dtype), kernel, (((1,), (1,)), ((), ())))

    def product(point: Any, products: Any) -> Any:
        part = lax.dynamic_slice_in_dim(spread, point * tiles, tiles, axis=2)
        kernel = lax.dynamic_index_in_dim(kernels, point, keepdims=False)[:, None]
        found = lax.conv_general_dilated(
            part, kernel, (1, 1), (pads[0], (0, 0)), dimension_numbers=_NHWC
        )
        return lax.dynamic_update_slice_in_dim(products, found, point * tiles, axis=2)

    # A loop: straight-line code for all points takes half as long again to compile.
    high = x.shape[1] + sum(pads[0]) - kernel.shape[0] + 1
    products = jnp.zeros((x.shape[0], high, n * tiles, kernel.shape[3]), x.dtype)
    return _along_width(results, lax.fori_loop(0, n, product, products))


def correlated(x: Any, window: Any, pads: Pads) -> Any:
    """A convolution whose kernel is as large as the images: float[C, R, r, K], with few taps r.

    It is the gradient of a kernel: the transpose of ``filtered`` with respect to its kernel.

    ``x``: float[C, H, W, N]. ``window``: float[H', W', N, K]. ``pads``: zeros before and after the
    height and the width.
    """
    c, height, width, _ = x.shape
    rows, columns, _, k = window.shape
    taps, high = width + sum(pads[1]) - columns + 1, height + sum(pads[0]) - rows + 1
    data, results, filters, n = _matrices(taps, width, pads[1][0], columns)
    # [points, tiles * N, H, C]: the products at one point then read whole blocks.
    x = jnp.pad(jnp.transpose(x, (3, 1, 2, 0)), ((0, 0), pads[0], (0, 0), (0, 0)))
    x = lax.dot_general(data.astype(x.dtype), x, (((1,), (2,)), ((), ())))
    x = x.reshape(n, -1, *x.shape[2:])
    window = jnp.transpose(window, (2, 0, 1, 3))
    window = lax.dot_general(results.T.astype(x.dtype), window, (((1,), (2,)), ((), ())))
    window = window.reshape(n, -1, k)

    def product(parts: tuple[Any, Any]) -> Any:
        x, window = parts
        shifted = (x[:, tap : tap + rows].reshape(-1, c) for tap in range(high))
        return jnp.stack([lax.dot_general(one, window, _FIRST) for one in shifted])

    # A loop, as in ``filtered``: straight-line code takes longer to compile.
    products = lax.map(product, (x, window))
    gradient = lax.dot_general(filters.astype(x.dtype), products, _FIRST)  # [r, R, C, K]
    return jnp.transpose(gradient, (2, 1, 0, 3))


def _along_width(matrix: np.ndarray, x: Any) -> Any:
    """The product of a matrix, float[Q, W], with each row of images: float[N, H, Q, C]."""
    n, height, _, c = x.shape
    many = jnp.broadcast_to(matrix.astype(x.dtype), (n * height, *matrix.shape))
    found = lax.dot_general(many, x.reshape(n * height, -1, c), (((2,), (1,)), ((0,), (0,))))
    return found.reshape(n, height, -1, c)


@cache
def _matrices(
    taps: int, width: int, before: int, results: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """The matrices of a row: data to points and tiles, products to results, filter to points.

    They are float64[points * tiles, width] for the data, float64[results, points * tiles] for the
    products, float64[points, r] for the filter; then comes the number of points. ``taps``: r.
    ``width``: numbers of a row of data, with ``before`` zeros in front. ``results``: of a row.
    """
    back, filters, forth = transforms(TILE, taps)
    n, tiles = len(forth), -(-results // TILE)
    spread = np.zeros((n, tiles, width + before + n + tiles * TILE))
    gather = np.zeros((tiles * TILE, n, tiles))
    for tile in range(tiles):
        at = tile * TILE
        spread[:, tile, at : at + n] = forth
        gather[at : at + TILE, :, tile] = back
    spread = spread[:, :, before : before + width]
    return (
        spread.reshape(n * tiles, width),
        gather[:results].reshape(results, n * tiles),
        filters,
        n,
    )


@cache
def transforms(tile: int, taps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The matrices of F(m, r), computed in fractions, without rounding.

    The m results of filter g over data d are ``A ((G g) * (B d))``. This is the transposed product
    of two polynomials by their values at points (Toom and Cook). ``tile``: m. ``taps``: r. Returns
    A, float64[m, m + r - 1]; G, float64[m + r - 1, r]; B, float64[m + r - 1, m + r - 1].
    """
    n = tile + taps - 1
    back = np.array(_powers(n, tile)).T
    filters, forth = np.array(_powers(n, taps)), np.array(_inverse(_powers(n, n))).T
    for row in range(n):  # integers in the data's matrix: most multiplications are with it
        scale = math.lcm(*(value.denominator for value in forth[row]))
        forth[row] *= scale
        filters[row] /= scale
    return back.astype(np.float64), filters.astype(np.float64), forth.astype(np.float64)


def _powers(n: int, degree: int) -> list[list[Fraction]]:
    """Values of 1, x, x^2 ... at n points, infinity the last."""
    finite = [[Fraction(point) ** power for power in range(degree)] for point in _POINTS[: n - 1]]
    return [*finite, [*([Fraction(0)] * (degree - 1)), Fraction(1)]]


def _inverse(matrix: list[list[Fraction]]) -> list[list[Fraction]]:
    """The inverse of a matrix by Gauss and Jordan, without rounding."""
    n = len(matrix)
    rows = [[*row, *(Fraction(i == j) for j in range(n))] for i, row in enumerate(matrix)]
    for column in range(n):
        pivot = next(i for i in range(column, n) if rows[i][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [value / rows[column][column] for value in rows[column]]
        for i in range(n):
            if i != column:
                factor = rows[i][column]
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[column], strict=True)]
    return [row[n:] for row in rows]
