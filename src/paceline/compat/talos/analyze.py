"""``Analyze``, also called ``Reporting``: tables and plots of a scan's results."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from paceline.compat.talos.errors import TalosDataError, TalosTypeError
from paceline.compat.talos.logs import column, parameter_columns, read_table
from paceline.errors import MissingExtraError


class Analyze:
    """Tables and plots of the results of a scan.

    Args:
        source: A ``Scan``, a ``Restore``, a table, or the path of an experiment's log.

    Raises:
        TalosTypeError: ``source`` is something else.
        TalosDataError: The file does not exist, or has no row.
    """

    def __init__(self, source: Any = None) -> None:
        parameters = getattr(source, "parameter_columns", None)
        if isinstance(source, (str, Path)):
            parameters = parameter_columns(source)
        self._parameters = None if parameters is None else list(parameters.values())
        self.data: Any = _table(source)
        if self.data.empty:
            raise TalosDataError("source has no rows to report. Pass a scan with results.")

    # -- numbers -----------------------------------------------------------------------------------

    def high(self, metric: str = "val_acc") -> float:
        """Returns the highest value of a metric."""
        return self._column(metric).max()

    def low(self, metric: str = "val_acc") -> float:
        """Returns the lowest value of a metric."""
        return self._column(metric).min()

    def rounds(self) -> int:
        """Returns the number of permutations."""
        return len(self.data)

    def rounds2high(self, metric: str = "val_acc") -> int:
        """Returns the number of the row with the highest value of a metric."""
        return int(self._column(metric).idxmax())

    def correlate(
        self, metric: str = "val_acc", exclude: Any = (), method: str = "pearson"
    ) -> pd.Series:
        """Returns the correlation of each numeric column with a metric.

        Args:
            metric: The metric.
            exclude: Columns to leave out.
            method: "pearson", "spearman" or "kendall".
        """
        name = column(metric, self.data.columns)
        numbers = self.data[self._kept(exclude, name)].select_dtypes("number")
        return numbers.corr(method=method)[name].drop(name)

    # -- tables ------------------------------------------------------------------------------------

    def table(
        self,
        metric: Any = "val_acc",
        exclude: Any = (),
        sort_by: str | None = None,
        ascending: bool = False,
    ) -> pd.DataFrame:
        """Returns the results, sorted.

        Args:
            metric: A metric, or several; their columns come first.
            exclude: Columns to leave out.
            sort_by: Name of a column; None: the first metric.
            ascending: Whether the lowest value comes first.
        """
        names = [column(m, self.data.columns) for m in _listed(metric)]
        columns = list(dict.fromkeys([*names, *self._kept(exclude)]))
        by = names[0] if sort_by is None else column(sort_by, self.data.columns, "sort_by")
        return self.data.sort_values(by, ascending=ascending, kind="stable")[columns]

    def best_params(
        self,
        metric: str = "val_acc",
        exclude: Any = (),
        n: int = 10,
        ascending: bool = False,
    ) -> np.ndarray:
        """Returns the parameter values of the best permutations.

        Args:
            metric: The metric that ranks permutations.
            exclude: Columns to leave out. For a log without ``metadata.json`` beside it, name the
                metrics here, because the log does not say which columns are parameters.
            n: Number of permutations.
            ascending: Whether low values are better.

        Returns:
            [n, parameters + 1]: one row for each permutation, with its rank in the last column.
        """
        if isinstance(exclude, int):  # in 2018 the second argument was n
            exclude, n = (), exclude
        found = self.table(metric, (), ascending=ascending).head(n)
        kept = set(self._kept(exclude))
        candidates = self.data.columns if self._parameters is None else self._parameters
        name = column(metric, self.data.columns)
        columns = [each for each in candidates if each in kept and each != name]
        return found[columns].assign(index_num=range(len(found))).to_numpy()

    # -- plots -------------------------------------------------------------------------------------

    def plot_line(self, metric: str = "val_acc") -> Any:
        """Plots a metric over the permutations."""
        values = self._column(metric)
        axes = _axes("permutation", str(values.name))
        axes.plot(np.arange(len(values)), values, marker=".")
        return axes

    def plot_hist(self, metric: str = "val_acc", bins: int = 10) -> Any:
        """Plots a histogram of a metric."""
        values = self._column(metric)
        axes = _axes(str(values.name), "permutations")
        axes.hist(values.dropna(), bins=bins)
        return axes

    def plot_corr(self, metric: str = "val_acc", exclude: Any = (), color_grades: int = 5) -> Any:
        """Plots the correlations between a metric and the other numeric columns."""
        name = column(metric, self.data.columns)
        columns = list(dict.fromkeys([name, *self._kept(exclude)]))
        table = self.data[columns].select_dtypes("number").corr()
        colours = pyplot().get_cmap("coolwarm", max(2, color_grades))
        axes = _axes("", "")
        image = axes.imshow(table, vmin=-1, vmax=1, cmap=colours)
        axes.set_xticks(range(len(table)), table.columns, rotation=90)
        axes.set_yticks(range(len(table)), table.columns)
        axes.figure.colorbar(image, ax=axes)
        return axes

    def plot_regs(self, x: str = "val_acc", y: str = "val_loss") -> Any:
        """Plots two columns as points, and a straight line through them."""
        one, other = self._column(x), self._column(y)
        axes = _axes(str(one.name), str(other.name))
        pairs = pd.DataFrame({"x": one, "y": other}).dropna()
        axes.scatter(pairs.x, pairs.y)
        if pairs.x.nunique() > 1:
            ends = np.array([pairs.x.min(), pairs.x.max()])
            axes.plot(ends, np.polyval(np.polyfit(pairs.x, pairs.y, 1), ends))
        return axes

    def plot_box(self, x: str, y: str = "val_acc", hue: str | None = None) -> Any:
        """Plots a box of y for each value of x."""
        axes = _axes(x if hue is None else f"{x}, {hue}", y)
        by = [x] if hue is None else [x, hue]
        parts: Any = self._columns(x, y, hue).groupby(by, dropna=False)
        groups = [(key, part[y].dropna()) for key, part in parts]
        axes.boxplot([part for _, part in groups])
        axes.set_xticks(
            range(1, len(groups) + 1), [", ".join(str(each) for each in key) for key, _ in groups]
        )
        return axes

    def plot_bars(self, x: str, y: str, hue: str | None = None, col: str | None = None) -> Any:
        """Plots the mean of y for each value of x, a bar for each hue, in a panel for each col."""
        table = self._columns(x, y, hue, col)
        panels: list[Any] = [("", table)] if col is None else list(table.groupby(col, dropna=False))
        size = (max(6.4, 3.2 * len(panels)), 4.8)
        figure, grid = pyplot().subplots(
            1, len(panels), squeeze=False, sharey=True, layout="constrained", figsize=size
        )
        for axes, (name, part) in zip(grid[0], panels, strict=True):
            means = part.groupby([x] if hue is None else [x, hue], dropna=False)[y].mean()
            bars = means if hue is None else means.unstack()
            bars.plot.bar(ax=axes, rot=0, ylabel=y, title="" if col is None else f"{col} = {name}")
        return figure

    def plot_kde(self, x: str = "val_acc", y: str | None = None) -> Any:
        """Plots the density of one column, or of two."""
        from scipy.stats import gaussian_kde

        columns = [self._column(name) for name in (x, y) if name is not None]
        points = pd.concat(columns, axis=1).dropna().to_numpy(float).T
        n_axes, n_points = points.shape
        low, high = points.min(axis=1), points.max(axis=1)
        if n_points <= n_axes or (low == high).any():
            raise ValueError(
                f"plot_kde needs more permutations with different values, got {n_points}. Plot "
                "another metric, or try more permutations."
            )
        margin = 0.2 * (high - low)
        lines = [np.linspace(a - m, b + m, 100) for a, b, m in zip(low, high, margin, strict=True)]
        kernel = gaussian_kde(points)
        if y is None:
            axes = _axes(str(columns[0].name), "density")
            axes.plot(lines[0], kernel(lines[0]))
            return axes
        axes = _axes(*(str(each.name) for each in columns))
        grid = np.meshgrid(*lines)
        heights = kernel(np.stack([part.ravel() for part in grid])).reshape(grid[0].shape)
        axes.contourf(*grid, heights, levels=12)
        return axes

    def _column(self, name: str) -> Any:
        return self.data[column(name, self.data.columns)]

    def _columns(self, *names: str | None) -> pd.DataFrame:
        """The columns that the user names, under the user's names."""
        return pd.DataFrame({name: self._column(name) for name in names if name is not None})

    def _kept(self, exclude: Any, *always: str) -> list[str]:
        out = set(_listed(exclude)) - set(always)
        return [name for name in self.data.columns if name not in out]


#: The name until version 1.0, which many people still use.
Reporting = Analyze


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple, set)) else [value]


def _table(source: Any) -> Any:
    if isinstance(source, pd.DataFrame):
        return source
    if isinstance(source, (str, Path)):
        path = Path(source)
        if not path.is_file():
            raise TalosDataError(
                f"source must be an existing file, got {path}. Pass a Scan, or the path of its log."
            )
        return read_table(path)
    data = getattr(source, "data", None)
    if isinstance(data, pd.DataFrame):
        return data
    raise TalosTypeError(
        f"source must be a Scan, a table or a path, got {type(source).__name__}. Pass a Scan, or "
        "the path of its log."
    )


def pyplot() -> Any:
    """Returns ``matplotlib.pyplot``, which is an extra."""
    try:
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise MissingExtraError(
            'plots need matplotlib, which is not installed: pip install "paceline[plots]"'
        ) from error


def _axes(x: str, y: str) -> Any:
    axes = pyplot().subplots(layout="constrained")[1]
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return axes
