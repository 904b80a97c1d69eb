"""Makes the pictures of docs/explanation/how_it_works.md from jaxprs of Keras' train step.

    python tools/jaxpr_pictures.py [-o FOLDER]

Nothing is trained. The releases of JAX and Keras are in each picture's title; other releases trace
other steps.
"""

from __future__ import annotations

import argparse
import difflib
import html
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import keras
import numpy as np
from jax.extend.core import jaxpr_as_fun

from paceline.program import trace
from paceline.program.canonical import lift
from paceline.program.padding.widths import FamilyStep
from paceline.program.trace import Step

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
#: Examples of a batch, features, classes, and slots of the pack that is drawn.
BATCH, FEATURES, CLASSES, SLOTS = 32, 64, 10, 8
#: Squares in a row of a strip, and pixels of a square, of a character and of a line.
PER_ROW, SQUARE, WIDTH, LINE = 56, 11, 7.3, 19

KINDS = {
    "product": ("dot_general", "conv_general_dilated"),
    "random": ("random_bits", "random_unwrap", "random_wrap", "random_split", "random_fold_in"),
    "sum or largest": ("reduce_sum", "reduce_max", "argmax", "reduce_and", "reduce_or"),
    "shape": (
        "broadcast_in_dim",
        "reshape",
        "squeeze",
        "transpose",
        "slice",
        "concatenate",
        "iota",
    ),
}

STYLE = """
text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #24292f;
  white-space: pre; }
.back { fill: #f6f8fa; stroke: #d0d7de; } .dim { fill: #57606a; } .bold { font-weight: 600; }
.hot { fill: #b3261e; font-weight: 600; } .ring { fill: none; stroke: #b3261e; stroke-width: 2; }
.product { fill: #1f6feb; } .random { fill: #8250df; } .sum { fill: #1a7f37; }
.shape { fill: #d0d7de; } .number { fill: #9a8456; }
@media (prefers-color-scheme: dark) {
  text { fill: #c9d1d9; } .back { fill: #0d1117; stroke: #30363d; } .dim { fill: #9198a1; }
  .hot { fill: #ff7b72; } .ring { stroke: #ff7b72; } .shape { fill: #3d444d; }
}
"""


def step(dropout: float, units: int = 16, activation: str = "relu") -> Step:
    """Keras' train step of a small dense model, as a search traces it."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(units, activation=activation),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(CLASSES),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss)
    batch = (
        jax.ShapeDtypeStruct((BATCH, FEATURES), np.float32),
        jax.ShapeDtypeStruct((BATCH,), np.int32),
    )
    return trace.trace_train(model, trace.build_state(model, batch), batch)


def equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr, in order; calls are replaced by what they call."""
    for eqn in jaxpr.eqns:
        inner = [p for p in eqn.params.values() if hasattr(p, "eqns") or hasattr(p, "jaxpr")]
        if inner and eqn.primitive.name in ("jit", "pjit", "custom_jvp_call", "custom_vjp_call"):
            yield from equations(getattr(inner[0], "jaxpr", inner[0]))
        else:
            yield eqn


def kind(eqn: Any) -> str:
    """What sort of operation an equation is, of those that the strips tell apart."""
    name = eqn.primitive.name
    return next((kind for kind, names in KINDS.items() if name in names), "number by number")


def shapes(eqn: Any) -> str:
    """An equation as its operation and shapes: ``dot_general [32,64] [64,16] -> [32,16]``."""

    def text(atom: Any) -> str:
        return "[" + ",".join(map(str, atom.aval.shape)) + "]"

    ins, outs = ([text(atom) for atom in atoms] for atoms in (eqn.invars, eqn.outvars))
    return f"{eqn.primitive.name} {' '.join(ins)} -> {' '.join(outs)}"


def page(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    """A picture of some parts, with the releases in its title."""
    versions = f"JAX {jax.__version__}, Keras {keras.__version__}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" role="img"><title>{html.escape(title)} ({versions})</title>'
        f"<style>{STYLE}</style>"
        f'<rect class="back" x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1:.0f}" '
        f'rx="6"/>{"".join(parts)}</svg>\n'
    )


def line(x: float, y: float, text: str, style: str = "") -> str:
    """A line of text."""
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{style}">{html.escape(text)}</text>'


def table(title: str, rows: Sequence[Sequence[str]], hot: Sequence[int] = ()) -> str:
    """A picture of a table; the first row is its head, and ``hot`` columns stand out."""
    widths = [max(len(row[at]) for row in rows) + 3 for at in range(len(rows[0]))]
    parts = []
    for at, row in enumerate(rows):
        x = 14.0
        for column, cell in enumerate(row):
            style = "bold" if at == 0 else "hot" if column in hot else ""
            parts.append(line(x, 24 + at * LINE, cell, style))
            x += widths[column] * WIDTH
    return page(title, sum(widths) * WIDTH + 14, len(rows) * LINE + 20, parts)


def structures() -> str:
    """Four trials as strips of squares, one for each equation of the step."""
    first = step(0.2)
    trials = [
        ("dropout 0.2", first),
        ("dropout 0.4", step(0.4)),
        ("dropout 0.2, 24 units", step(0.2, units=24)),
        ("dropout 0.2, tanh", step(0.2, activation="tanh")),
    ]
    known = [shapes(eqn) for eqn in equations(first.closed.jaxpr)]
    parts, y = [], 16.0
    for name, one in trials:
        eqns = list(equations(one.closed.jaxpr))
        told = f"{name}: {len(eqns)} equations, fingerprint {one.canonical.fingerprint[:8]}"
        parts.append(line(14, y + 10, told, "bold"))
        y += 18
        texts = [shapes(eqn) for eqn in eqns]
        matcher = difflib.SequenceMatcher(a=known, b=texts, autojunk=False)
        alike = {block.b + i for block in matcher.get_matching_blocks() for i in range(block.size)}
        for at, eqn in enumerate(eqns):
            x = 14 + (at % PER_ROW) * (SQUARE + 2)
            top = y + (at // PER_ROW) * (SQUARE + 2)
            style = kind(eqn).split()[0]
            ring = (
                f'<rect class="ring" x="{x}" y="{top}" width="{SQUARE}" height="{SQUARE}"/>'
                if at not in alike
                else ""
            )
            square = f'x="{x}" y="{top}" width="{SQUARE}" height="{SQUARE}"'
            parts.append(f'<rect class="{style}" {square}/>{ring}')
        y += ((len(eqns) - 1) // PER_ROW + 1) * (SQUARE + 2) + 12
    x = 14.0
    for name in (*KINDS, "number by number"):
        parts.append(
            f'<rect class="{name.split()[0]}" x="{x:.0f}" y="{y}" width="{SQUARE}" '
            f'height="{SQUARE}"/>' + line(x + SQUARE + 5, y + 10, name, "dim")
        )
        x += (len(name) + 4) * WIDTH
    parts.append(
        f'<rect class="ring" x="{x:.0f}" y="{y}" width="{SQUARE}" height="{SQUARE}"/>'
        + line(x + SQUARE + 5, y + 10, "not as in the first", "dim")
    )
    width = 28 + PER_ROW * (SQUARE + 2)
    return page("The train steps of four trials, equation by equation", width, y + 28, parts)


def differing(a: Step, b: Step) -> list[int]:
    """The numbers of the constants that differ between two steps of one fingerprint."""
    pairs = zip(a.canonical.constants, b.canonical.constants, strict=True)
    return [at for at, (one, two) in enumerate(pairs) if one.value.tobytes() != two.value.tobytes()]


def constants() -> str:
    """The constants that differ between two trials, and the equations that read them."""
    a, b = step(0.2), step(0.4)
    assert a.canonical.fingerprint == b.canonical.fingerprint
    numbers = differing(a, b)
    lifted = lift(a.closed, numbers)
    rows = [("constant", "is read by", "dropout 0.2", "dropout 0.4")]
    for at, number in enumerate(numbers):
        variable = lifted.jaxpr.invars[at]
        readers = [eqn for eqn in lifted.jaxpr.eqns if variable in eqn.invars]
        values = [f"{float(one.canonical.constants[number].value):.4g}" for one in (a, b)]
        reader = shapes(readers[0]) if readers else "a loop"
        rows.append((f"{number} of {len(a.canonical.constants)}", reader, *values))
    return table("Constants that become inputs", rows, hot=(2, 3))


def packs() -> str:
    """The products of one trial's step, and of the step of a pack."""
    a = step(0.2)
    numbers = differing(a, step(0.4))
    lifted = lift(a.closed, numbers)
    avals = [var.aval for var in lifted.jaxpr.invars]
    many = [jax.ShapeDtypeStruct((SLOTS, *aval.shape), aval.dtype) for aval in avals]
    packed = jax.make_jaxpr(jax.vmap(jaxpr_as_fun(lifted)))(*many)
    one, all_ = ([e for e in equations(j.jaxpr) if kind(e) == "product"] for j in (lifted, packed))
    rows = [("one trial", f"a pack of {SLOTS} slots")]
    rows += [(shapes(mine), shapes(ours)) for mine, ours in zip(one, all_, strict=True)]
    return table("The step of a trial and of a pack", rows)


def widths() -> str:
    """The products of two trials of other widths, and of the program that trains both."""
    large, small = step(0.2, units=24), step(0.2, units=16)
    program, _, _ = FamilyStep((large, small), None).admit(small)
    columns = [
        [shapes(e) for e in equations(jaxpr) if kind(e) == "product"]
        for jaxpr in (small.closed.jaxpr, large.closed.jaxpr, program.closed.jaxpr)
    ]
    rows = [("16 units", "24 units", "the program for both")]
    rows += list(zip(*columns, strict=True))
    fills = [sum(1 for _ in equations(each.closed.jaxpr)) for each in (small, large, program)]
    rows.append(tuple(f"{n} equations" for n in fills))
    return table("Two widths in one program", rows)


PICTURES = {
    "structures": structures,
    "constants": constants,
    "packs": packs,
    "widths": widths,
}


def main() -> None:
    """Writes the pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, default=FOLDER, help="where they go")
    folder = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in PICTURES.items():
        (folder / f"{name}.svg").write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
