"""Every operation on each element by itself, on operands whose padding holds this or that."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from paceline.program.padding.lockstep import Padding
from program.padding.walks import Case, Input

DIMS = ("9*u", "v")
#: What the padding of an operand holds, in one letter; a number stands for itself.
LETTERS = {"Z": Padding.ZERO, "F": Padding.FINITE, "A": Padding.ANYTHING}


@dataclass(frozen=True)
class Operation:
    """An operation on each element.

    Attributes:
        run: The operands -> the result.
        kinds: Which numbers each operand holds.
        numbers: Numbers that the last operand may be instead.
    """

    run: Callable[..., Any]
    kinds: tuple[str, ...] = ("normal",)
    numbers: tuple[float, ...] = ()

    def combinations(self) -> list[str]:
        """What the operands' padding holds, for each result of ``case``."""
        each: list[Sequence[str | float]] = [[*LETTERS] for _ in self.kinds]
        each[-1] = [*each[-1], *self.numbers]
        return ["".join(map(str, found)) for found in itertools.product(*each)]

    def case(self, letters: str = "ZFA") -> Case:
        """The operation on operands of every kind of padding, or of some kinds."""
        inputs = [Input(DIMS, LETTERS[each], kind) for kind in self.kinds for each in letters]
        n = len(letters)

        def run(_: Any, *arrays: Any) -> list[Any]:
            each = [list(arrays[i : i + n]) for i in range(0, len(arrays), n)]
            each[-1] += self.numbers
            return [self.run(*operands) for operands in itertools.product(*each)]

        return Case(run, tuple(inputs))


def _add_any(x: Any, y: Any) -> Any:
    """What derivatives are added with."""
    return jax.linear_transpose(lambda a: (a, a), x)((x, y))[0]


def _unary(names: str, kind: str = "normal") -> dict[str, Operation]:
    return {name: Operation(getattr(lax, name), (kind,)) for name in names.split()}


def _binary(names: str, *kinds: str, numbers: tuple[float, ...] = ()) -> dict[str, Operation]:
    return {name: Operation(getattr(lax, name), kinds, numbers) for name in names.split()}


TWO = ("normal", "normal")
OPERATIONS: dict[str, Operation] = {
    **_unary("neg abs sign cbrt tanh sin sinh asinh atan tan expm1 erf square floor ceil round"),
    **_unary("cos exp exp2 logistic cosh erfc is_finite bessel_i0e bessel_i1e"),
    **_unary("sqrt rsqrt log lgamma digamma", "positive"),
    **_unary("asin acos atanh log1p erf_inv", "unit"),
    **_unary("acosh", "high"),
    **_unary("real imag conj", "complex"),
    **_unary("population_count clz", "int32"),
    **_binary("add sub max min", *TWO, numbers=(0.0, 1.0)),
    **_binary("mul", *TWO, numbers=(0.0, 2.0, np.inf)),
    **_binary("div", *TWO, numbers=(2.0, 0.0, np.inf, np.nan)),
    **_binary("rem atan2 nextafter complex eq ne lt le gt ge", *TWO),
    **_binary("pow", "positive", "normal"),
    "polygamma": Operation(lax.polygamma, ("high", "positive")),
    "not": Operation(lax.bitwise_not, ("int32",)),
    "and": Operation(lax.bitwise_and, ("int32", "int32")),
    "or": Operation(lax.bitwise_or, ("int32", "int32")),
    "xor": Operation(lax.bitwise_xor, ("bool", "bool")),
    **_binary("shift_left shift_right_logical shift_right_arithmetic", "int32", "int32"),
    "integer_pow": Operation(lambda x: lax.integer_pow(x, 3)),
    "clamp": Operation(lambda x: lax.clamp(-1.0, x, 1.0)),
    "select_n": Operation(lax.select_n, ("bool", *TWO)),
    "convert_element_type": Operation(lambda x: x.astype(np.float32)),
    "convert_element_type of int32": Operation(lambda x: x.astype(np.float64), ("int32",)),
    "convert_element_type to float16": Operation(lambda x: x.astype(np.float16), ("int32",)),
    "convert_element_type to int32": Operation(lambda x: x.astype(np.int32)),
    "reduce_precision": Operation(lambda x: lax.reduce_precision(x, 5, 10)),
    "bitcast_convert_type": Operation(
        lambda x: lax.bitcast_convert_type(x, np.float64), ("int64",)
    ),
    "add_any": Operation(_add_any, TWO),
    "copy": Operation(jnp.copy),
    "stop_gradient": Operation(lax.stop_gradient),
    "optimization_barrier": Operation(lax.optimization_barrier),
    "device_put": Operation(jax.device_put),
}
if hasattr(lax, "mulhi"):
    OPERATIONS["mulhi"] = Operation(lax.mulhi, ("int32", "int32"))
if hasattr(lax, "one_minus_square"):
    OPERATIONS |= _unary("one_minus_square")
    OPERATIONS["log2"] = Operation(jnp.log2, ("positive",))
    OPERATIONS["polynomial"] = Operation(lambda x: jnp.polyval(jnp.array([2.0, 1.0, 1.0]), x))
#: These are new in JAX 0.11 and 0.12.
NEW = {"mulhi", "one_minus_square", "log2", "polynomial"}

#: Where padding is said to be less well known than it is, in the order of the operands. It costs a
#: fill where elements are combined, and no wrong result.
WEAKER = {
    "acos": "Z",
    "add": "ZF Z1.0 FZ F0.0 F1.0",
    "add_any": "ZF FZ",
    "and": "ZF ZA FZ AZ",
    "atan2": "ZZ ZF FZ FF",
    "bessel_i0e": "Z F",
    "bessel_i1e": "Z F",
    "bitcast_convert_type": "Z",
    "cbrt": "F",
    "clamp": "Z F",
    "complex": "ZZ ZF FZ FF",
    "conj": "Z F",
    "cosh": "Z",
    "div": "Zinf F2.0 Finf",
    "erfc": "Z F",
    "exp": "Z",
    "exp2": "Z",
    "gt": "ZZ",
    "imag": "F",
    "integer_pow": "Z",
    "lt": "ZZ",
    "min": "Z1.0",
    "mulhi": "ZZ ZF ZA FZ AZ",
    "ne": "ZZ",
    "nextafter": "ZZ ZF FZ FF",
    "population_count": "Z",
    "pow": "ZZ FZ AZ",
    "real": "F",
    "select_n": "ZZF ZZA ZFA",
    "shift_left": "ZZ ZF ZA",
    "shift_right_arithmetic": "ZZ ZF ZA",
    "shift_right_logical": "ZZ ZF ZA",
    "sub": "ZF Z1.0 FZ F0.0 F1.0",
    "tan": "F",
}
