"""TensorBoard's page of hyperparameters, by its own plugin."""

from __future__ import annotations

from typing import Any


def page_of(folder: str) -> Any:
    """Return the plugin's context for the event files in a folder."""
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams import backend_context

    multiplexer = EventMultiplexer()
    multiplexer.AddRunsFromDirectory(folder)
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, folder)
    return backend_context.Context(TBContext(data_provider=provider))


def columns(page: Any) -> tuple[set[str], set[str]]:
    """Return the names of the page's columns: hyperparameters, and metrics."""
    from tensorboard.context import RequestContext

    context = RequestContext()
    values = page.hparams_metadata(context, ""), page.hparams_from_data_provider(context, "", 100)
    found = page.experiment_from_metadata(context, "", True, *values)
    return {info.name for info in found.hparam_infos}, {i.name.tag for i in found.metric_infos}
