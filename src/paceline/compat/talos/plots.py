"""Plots of results. They need matplotlib, which is an extra."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pandas as pd

from paceline.errors import MissingExtraError


def pyplot() -> Any:
    """Returns ``matplotlib.pyplot``.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise MissingExtraError(
            'plots: matplotlib is not installed; pip install "paceline[plots]"'
        ) from error


def _axes(x: str, y: str) -> Any:
    axes = pyplot().subplots(layout="constrained")[1]
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return axes


def line(values: pd.Series) -> Any:
    """Plots values in their order as a line."""
    axes = _axes("permutation", str(values.name))
    axes.plot(np.arange(len(values)), values, marker=".")
    return axes


def histogram(values: pd.Series, bins: int) -> Any:
    """Plots a histogram of values."""
    axes = _axes(str(values.name), "permutations")
    axes.hist(values.dropna(), bins=bins)
    return axes


def correlations(table: pd.DataFrame, grades: int) -> Any:
    """Plots a table of correlations as colours."""
    plt = pyplot()
    axes = _axes("", "")
    image = axes.imshow(table, vmin=-1, vmax=1, cmap=plt.get_cmap("coolwarm", max(2, grades)))
    axes.set_xticks(range(len(table)), table.columns, rotation=90)
    axes.set_yticks(range(len(table)), table.columns)
    axes.figure.colorbar(image, ax=axes)
    return axes


def regression(x: pd.Series, y: pd.Series) -> Any:
    """Plots points, and a straight line through them."""
    axes = _axes(str(x.name), str(y.name))
    pairs = pd.DataFrame({"x": x, "y": y}).dropna()
    axes.scatter(pairs.x, pairs.y)
    if pairs.x.nunique() > 1:
        ends = np.array([pairs.x.min(), pairs.x.max()])
        axes.plot(ends, np.polyval(np.polyfit(pairs.x, pairs.y, 1), ends))
    return axes


def boxes(table: pd.DataFrame, x: str, y: str, hue: str | None) -> Any:
    """Plots a box of y for each value of x and of hue."""
    axes = _axes(x if hue is None else f"{x}, {hue}", y)
    by = [x] if hue is None else [x, hue]
    parts: Any = table.groupby(by, dropna=False)
    groups = [(key, part[y].dropna()) for key, part in parts]
    axes.boxplot([part for _, part in groups])
    axes.set_xticks(
        range(1, len(groups) + 1), [", ".join(str(each) for each in key) for key, _ in groups]
    )
    return axes


def bars(table: pd.DataFrame, x: str, y: str, hue: str | None, col: str | None) -> Any:
    """Plots means of y as bars: a group for each x, a bar for each hue, a panel for each col."""
    plt = pyplot()
    panels: list[Any] = [("", table)] if col is None else list(table.groupby(col, dropna=False))
    figure, grid = plt.subplots(
        1,
        len(panels),
        squeeze=False,
        sharey=True,
        layout="constrained",
        figsize=(max(6.4, 3.2 * len(panels)), 4.8),
    )
    for axes, (name, part) in zip(grid[0], panels, strict=True):
        means = part.groupby([x] if hue is None else [x, hue], dropna=False)[y].mean()
        frame = means.to_frame() if hue is None else means.unstack()
        width = 0.8 / frame.shape[1]
        for at, label in enumerate(frame.columns):
            axes.bar(np.arange(len(frame)) + at * width, frame[label], width, label=str(label))
        axes.set_xticks(np.arange(len(frame)) + 0.4 - width / 2, [str(i) for i in frame.index])
        axes.set_xlabel(x)
        axes.set_title("" if col is None else f"{col} = {name}")
        if hue is not None:
            axes.legend(title=hue)
    grid[0][0].set_ylabel(y)
    return figure


def density(x: pd.Series, y: pd.Series | None) -> Any:
    """Plots the density of one column as a line, or of two columns as shades."""
    from scipy.stats import gaussian_kde

    table = pd.DataFrame({"x": x} if y is None else {"x": x, "y": y}).dropna()
    points = table.to_numpy(float).T
    low, high = points.min(axis=1), points.max(axis=1)
    if table.shape[0] <= len(points) or (low == high).any():
        raise ValueError(
            f"plot_kde: {len(table)} permutations with these values have no density; it takes "
            "more of them, and different values."
        )
    margin = 0.2 * (high - low)
    lines = [np.linspace(a - m, b + m, 100) for a, b, m in zip(low, high, margin, strict=True)]
    kernel = gaussian_kde(points)
    if y is None:
        axes = _axes(str(x.name), "density")
        axes.plot(lines[0], kernel(lines[0]))
        return axes
    axes = _axes(str(x.name), str(y.name))
    grid = np.meshgrid(*lines)
    heights = kernel(np.stack([part.ravel() for part in grid])).reshape(grid[0].shape)
    axes.contourf(*grid, heights, levels=12)
    return axes
