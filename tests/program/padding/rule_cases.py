"""Small programs for every rule that moves or combines elements, or walks a body.

Where own elements lie matters: in ``3*u`` they lie in three pieces.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from paceline.program.padding.lockstep import Padding
from program.padding.walks import Case, Input, program

ZERO, FINITE, ANYTHING = Padding
KEY = Input((), kind="key")


def of(*dims: Any, holds: Padding = ANYTHING, kind: str = "normal") -> Input:
    return Input(dims, holds, kind)


def each_holds(run: Any, *dims: Any, kind: str = "normal") -> list[Case]:
    """One operand, whose padding is zero, finite or anything."""
    return [program(run, of(*dims, holds=holds, kind=kind)) for holds in Padding]


def pairs(run: Any, left: tuple[Any, ...], right: tuple[Any, ...]) -> list[Case]:
    """Two operands with all combinations of what their padding holds."""
    return [program(run, of(*left, holds=a), of(*right, holds=b)) for a in Padding for b in Padding]


def _dot(w: Any, x: Any, y: Any) -> Any:
    """Contracts the second axis of both; the first goes along."""
    return lax.dot_general(x, y, (((1,), (1,)), ((0,), (0,))))


def _conv(w: Any, x: Any, k: Any) -> Any:
    return lax.conv_general_dilated(x, k, (1,), "VALID")


def _conv_of_groups(**groups: Any) -> Any:
    return lambda w, x, k: lax.conv_general_dilated(x, k, (1,), "VALID", **groups)


def _window(init: float, combine: Any) -> list[Case]:
    def run(w: Any, x: Any) -> Any:
        return lax.reduce_window(x, init, combine, (1, 2, 1), (1, 2, 1), "VALID")

    return each_holds(run, "3*u", 6, "v")


def _max_pool_gradient(w: Any, x: Any, y: Any) -> Any:
    def pool(a: Any) -> Any:
        return lax.reduce_window(a, -np.inf, lax.max, (1, 2, 1), (1, 2, 1), "VALID")

    return jax.vjp(pool, x)[1](y)[0]


def _cumulative(function: Any, kind: str = "normal") -> list[Case]:
    cases = []
    for axis in (0, 1):
        cases += each_holds(lambda w, x, a=axis: function(x, axis=a), "3*u", 3, kind=kind)
    # No element of a trial's own is above the neutral number.
    return [
        *cases,
        *each_holds(lambda w, x: function(x, axis=0, reverse=True), "3*u", 3, kind=kind),
    ]


def _counted(w: Any, x: Any) -> Any:
    places = lax.broadcasted_iota(x.dtype, x.shape, 0)
    return places, x + places


def _along(argument: Any) -> Any:
    return lambda w, x: argument(x, 0, np.int32)


def _rows(w: Any, table: Any, i: Any) -> Any:
    return table[i]


def _add_rows(w: Any, table: Any, i: Any, rows: Any) -> Any:
    return table.at[i].add(rows)


def _each_row(w: Any, table: Any, i: Any) -> Any:
    """One element of each row, whose number is another one in each row."""
    return jnp.take_along_axis(table, i[:, None], 1)


def _write_each_row(w: Any, table: Any, i: Any, new: Any) -> Any:
    return jax.vmap(lambda row, at, value: row.at[at].set(value))(table, i, new)


def _write_one(w: Any, table: Any, new: Any) -> Any:
    return table.at[jnp.array([1])].set(new[None])


def _dropped(bits: int, *dims: Any) -> list[Case]:
    """Random words of an array that follows another one; the latter says where they lie."""

    def run(w: Any, key: Any, x: Any) -> Any:
        words = jax.random.bits(key, x.shape, f"uint{bits}")
        return words, words ^ x

    return [program(run, KEY, of(*dims, kind=f"uint{bits}"))]


def _looped(w: Any, x: Any, y: Any, rows: Any) -> Any:
    """Sums over padding in each round, and a carried value whose padding becomes anything."""

    def step(carry: Any, row: Any) -> Any:
        return carry / carry + x.sum(0), jnp.dot(row * carry, y)

    return lax.scan(step, jnp.zeros_like(y[:, 0]), rows)


def _carried(w: Any, x: Any, y: Any) -> Any:
    """The carried value begins with zeros in its padding, which the first round spoils."""

    def step(carry: Any, _: Any) -> Any:
        return jnp.exp(carry), jnp.vdot(carry, y)

    return lax.scan(step, x, None, length=3)


def _carried_while(w: Any, x: Any, y: Any) -> Any:
    def going(now: Any) -> Any:
        return (now[0] < 3) & (now[1].sum() > -1e300)

    def step(now: Any) -> Any:
        return now[0] + 1, jnp.exp(now[1]), now[2] + jnp.vdot(now[1], y)

    return lax.while_loop(going, step, (jnp.int32(0), x, jnp.zeros((), x.dtype)))


def _doubled(w: Any, x: Any) -> Any:
    return lax.while_loop(lambda now: now[0] < 2, lambda now: (now[0] + 1, now[1] * 2), (0, x))


def _branched(w: Any, flag: Any, x: Any, y: Any) -> Any:
    return lax.cond(flag[0], lambda a, b: (jnp.vdot(a, b), a), lambda a, b: (a.sum(), b), x, y)


CASES: dict[str, list[Case]] = {
    "broadcast_in_dim": [
        *each_holds(lambda w, x: lax.broadcast_in_dim(x, (2, *x.shape), (1, 2)), "3*u", "v"),
        # A value is repeated into padding, and so is a number.
        *each_holds(
            lambda w, x, y=None: lax.broadcast_in_dim(x, (w["u"], x.shape[0]), (1,)), "3*v"
        ),
        program(
            lambda w, x: [x * lax.broadcast_in_dim(c, x.shape, ()) for c in (0.0, 2.0, np.inf)],
            of("3*u", "v", holds=ZERO),
        ),
    ],
    "reshape": [
        *each_holds(lambda w, x: x.reshape(-1, 2), 3, "v", 2),
        *each_holds(lambda w, x: x.reshape(3, -1, 2), "3*u", 2),
        program(lambda w, x: x.reshape(w["u"], -1), of(1, "u", 2, "v")),
    ],
    "transpose": each_holds(lambda w, x: x.T, "3*u", "v"),
    "squeeze": each_holds(lambda w, x: lax.squeeze(x, (1,)), "3*u", 1, "v"),
    "rev": each_holds(lambda w, x: lax.rev(x, (1,)), "3*u", 4),
    "concatenate": [
        *pairs(lambda w, x, y: jnp.concatenate([x, y]), ("u", 3), ("v", 3)),
        program(lambda w, x, y: jnp.concatenate([x, y], 1), of("3*u", 2), of("3*u", 4)),
    ],
    "stack": pairs(lambda w, x, y: jnp.stack([x, y], 1), ("3*u", "v"), ("3*u", "v")),
    "unstack": each_holds(lambda w, x: list(x), 3, "3*u"),
    "tile": [
        *each_holds(lambda w, x: jnp.tile(x, (1, 2)), "3*u", 4),
        # Zeros in padding do not help where the value itself is repeated into padding.
        *each_holds(lambda w, x: jnp.tile(x, (1, w["u"])), "3*v", 1),
    ],
    "split": each_holds(lambda w, x: jnp.split(x, [3 * w["u"]]), "3*u+v", 2),
    "slice": [
        *each_holds(lambda w, x: x[w["u"] :], "u+v", 2),
        program(lambda w, x: (x[:, 1:5:2], x[: w["u"]]), of("u+v", 6)),
    ],
    "pad": [
        *each_holds(lambda w, x: lax.pad(x, np.float64(0), [(1, 2, 0), (0, 0, 0)]), "u", "3*v"),
        *each_holds(lambda w, x: lax.pad(x, np.float64(1), [(1, 2, 0), (0, 1, 1)]), "3*u", 2),
        program(lambda w, x: lax.pad(x, np.float64(2), [(0, w["v"], 0)]), of("u")),
        program(lambda w, x, y: lax.pad(x, np.float64(2), [(w["v"], 0, 0)]), of("u"), of("v")),
    ],
    "iota": [program(_counted, of("u", "3*v"))],
    "dot_general": [
        *pairs(_dot, ("v", "3*u", 2), ("v", "3*u", "u")),
        program(lambda w, x, y: jnp.dot(x, y), of("v", 2), of(2, "3*u")),
    ],
    "conv_general_dilated": [
        *pairs(_conv, ("v", "3*u", 4), (3, "3*u", 2)),
        program(_conv, of(2, 3, 4), of("3*u", 3, 2)),
        program(_conv_of_groups(feature_group_count=2), of("u", 4, 4), of(2, 2, 2)),
        program(_conv_of_groups(batch_group_count=2), of(4, "3*u", 4), of(2, "3*u", 2)),
    ],
    "reduce_sum": [
        *each_holds(lambda w, x: x.sum(0), "3*u", "3*v"),
        *each_holds(lambda w, x: x.sum(), "3*u", "3*v"),
        program(lambda w, x: x.sum(0), of("3*u", "3*v", kind="int32")),
        program(lambda w, x: x.sum(1), of("3*u", 2)),
    ],
    "reduce_prod": [
        *each_holds(lambda w, x: x.prod(0), "3*u", "3*v"),
        program(lambda w, x: x.prod(0), of("3*u", 2, kind="int32")),
    ],
    "reduce_max": [
        *each_holds(lambda w, x: x.max(0), "3*u", "3*v", kind="negative"),
        program(lambda w, x: x.max(0), of("3*u", 2, kind="negative int")),
        *each_holds(lambda w, x: x.max(1), "3*u", 2),
    ],
    "reduce_min": [
        *each_holds(lambda w, x: x.min(0), "3*u", "3*v", kind="positive"),
        program(lambda w, x: x.min(0), of("3*u", 2, kind="int32")),
        *each_holds(lambda w, x: x.min(1), "3*u", 2),
    ],
    "reduce_and": [
        program(lambda w, x: jnp.all(x, 0), of("3*u", 2, kind="true")),
        program(lambda w, x: lax.reduce_and(x, (0,)), of("3*u", 2, kind="odd int32")),
        program(lambda w, x: lax.reduce_and(x, (0,)), of("3*u", 2, kind="odd uint32")),
        program(lambda w, x: jnp.all(x, 1), of("3*u", 2, kind="bool")),
    ],
    "reduce_or": [
        program(lambda w, x: jnp.any(x, 0), of("3*u", 2, kind="false")),
        program(lambda w, x: lax.reduce_or(x, (0,)), of("3*u", "3*v", kind="uint32")),
    ],
    "reduce_xor": [program(lambda w, x: lax.reduce_xor(x, (0,)), of("3*u", "3*v", kind="int32"))],
    "argmax": [
        program(_along(lax.argmax), of("u", "3*v", kind="negative")),
        program(_along(lax.argmax), of("u*3", kind="lowest")),
        program(_along(lax.argmax), of("u", 2, kind="negative int")),
    ],
    "argmin": [
        program(_along(lax.argmin), of("u", "3*v", kind="positive")),
        program(_along(lax.argmin), of("u", 2, kind="uint32")),
    ],
    "cumsum": _cumulative(lax.cumsum),
    "cumprod": _cumulative(lax.cumprod),
    "cummax": _cumulative(lax.cummax, "negative"),
    "cummin": _cumulative(lax.cummin, "positive"),
    "cumlogsumexp": _cumulative(lax.cumlogsumexp, "negative"),
    "reduce_window_sum": _window(0.0, lax.add),
    "reduce_window_max": _window(-np.inf, lax.max),
    "reduce_window_min": _window(np.inf, lax.min),
    "select_and_scatter_add": [program(_max_pool_gradient, of("3*u", 6, "v"), of("3*u", 3, "v"))],
    "sort": [
        program(lambda w, x: lax.sort(x, dimension=1), of("3*u", 5, "v")),
        program(lambda w, x, y: lax.sort((x, y), dimension=1), of("3*u", 5), of("3*u", 5)),
    ],
    "top_k": [program(lambda w, x: lax.top_k(x, 2), of("3*u", "v", 5))],
    "dynamic_slice": each_holds(
        lambda w, x: lax.dynamic_slice(x, (0, 1), (x.shape[0], 2)), "3*u", 4
    ),
    "dynamic_update_slice": pairs(
        lambda w, x, y: lax.dynamic_update_slice(x, y, (0, 1)), ("3*u", 4), ("3*u", 2)
    ),
    "gather": [
        program(_rows, of(4, "3*u"), of("v", kind="index")),
        program(_each_row, of("3*u", 4), of("3*u", kind="index")),
        program(_rows, of(4, "3*u", kind="int32"), of("3*v", kind="index")),
    ],
    "scatter-add": [
        *[
            program(
                _add_rows, of(4, "3*u", holds=a), of("3*v", kind="index"), of("3*v", "3*u", holds=b)
            )
            for a in Padding
            for b in Padding
        ],
        program(_add_rows, of(4, "3*u"), of(5, kind="index"), of(5, "3*u")),
        program(_add_rows, of(4, 2, kind="int32"), of("v", kind="index"), of("v", 2, kind="int32")),
    ],
    "scatter": [
        program(_write_each_row, of("3*u", 4), of("3*u", kind="index"), of("3*u")),
        program(_write_one, of(4, "3*u"), of("3*u")),
    ],
    "random_bits": [*_dropped(32, 2, "3*u"), *_dropped(64, "v", "3*u"), *_dropped(32, "u", 2)],
    "scan": [
        program(_looped, of("3*u", "v"), of("v", 2), of(3, "v")),
        program(_carried, of("3*u", holds=ZERO), of("3*u", holds=FINITE)),
        program(
            lambda w, x, y: lax.scan(lambda c, r: (c + r, c * r), x, y), of("3*u"), of(3, "3*u")
        ),
    ],
    "while": [
        program(_carried_while, of("3*u", holds=ZERO), of("3*u", holds=FINITE)),
        *each_holds(_doubled, "3*u"),
    ],
    "cond": [
        *[
            program(_branched, of(1, kind=kind), of("3*u", holds=a), of("3*u", holds=b))
            for kind in ("true", "false")
            for a, b in ((ZERO, ANYTHING), (ANYTHING, ZERO), (FINITE, FINITE))
        ],
        program(
            lambda w, f, x: lax.cond(f[0], jnp.negative, jnp.exp, x), of(1, kind="true"), of("3*u")
        ),
    ],
}
