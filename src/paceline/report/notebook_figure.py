"""A Plotly figure that a notebook keeps as a picture, too."""

from __future__ import annotations

from typing import Any

import plotly.io
from plotly.graph_objects import Figure

from paceline.report.static import as_dict, picture_html

#: What JupyterLab and VS Code draw a figure from.
_FIGURE = "application/vnd.plotly.v1+json"


class NotebookFigure(Figure):
    """A figure whose HTML, beside what Plotly's extension draws, is a picture without scripts.

    Plotly's own HTML is a script, which neither an untrusted notebook nor a page without Plotly
    runs: the figure would vanish there.
    """

    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None, validate: bool = True, **kwargs: Any
    ) -> dict[str, Any]:
        bundle = dict(super()._repr_mimebundle_(include, exclude, validate, **kwargs) or {})
        if _FIGURE in bundle:
            bundle["text/html"] = picture_html(as_dict(self))
        return bundle

    def _ipython_display_(self) -> None:
        bundle = self._repr_mimebundle_() if plotly.io.renderers.render_on_display else {}
        if _FIGURE not in bundle:  # a browser's window, or a place that has a renderer of its own
            super()._ipython_display_()
            return
        from IPython.display import display

        display(bundle, raw=True)
