"""Keeps Ray on the loopback, in processes that are not to load the session of tests."""

from __future__ import annotations


def stay_on_loopback() -> None:
    """Has this process' part of Ray use the loopback, which it takes for another interface."""
    from ray._private import services

    services.resolve_ip_for_localhost = lambda host: host
    services.get_node_ip_address = lambda *_: "127.0.0.1"
