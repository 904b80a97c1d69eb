"""Databases as storages: drivers, waiting times, and passwords that must not be shown."""

from __future__ import annotations

import importlib.util
import re
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, unquote_plus

from optuna.storages import BaseStorage

from paceline.errors import StorageError

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

#: Seconds that one call waits for an SQLite file that another process writes. Optuna waits 5, which
#: two busy processes on a slow disk use up.
SQLITE_WAIT = 60.0
#: Options of libpq, so that a lost server is noticed within a minute and not within hours.
_PATIENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
_PASSWORD = re.compile(r"(://[^:/@\s]*):(\S*)@")
_NAMED = re.compile(r"(?i)(password|passwd|pwd)=([^&\s;]+)")
# In a text that is a URL and nothing else: SQLAlchemy accepts spaces in both.
_PASSWORD_OF_URL = re.compile(r"(?s)(://[^:/@]*):(.*)@")
_NAMED_OF_URL = re.compile(r"(?i)(password|passwd|pwd)=([^&;]+)")
# In a text that should be a URL, and lacks a slash or its scheme.
_PASSWORD_OF_NONE = re.compile(r"(?s)^([^:@]*):(.*)@")
#: Drivers of PostgreSQL by what they are imported as, the best first.
_DRIVERS = ("psycopg", "psycopg2", "pg8000")


def hide_password(text: str) -> str:
    """Return ``text`` with the password of any URL in it shown as stars."""
    text = _PASSWORD.sub(r"\1:***@", text)
    return _NAMED.sub(r"\1=***", text)


def label_of(url: str) -> str:
    """Return a URL, or a text that should be one, with its password shown as stars."""
    whole = _PASSWORD_OF_URL if "://" in url else _PASSWORD_OF_NONE
    return PasswordMask(url)(_NAMED_OF_URL.sub(r"\1=***", whole.sub(r"\1:***@", url)))


class PasswordMask:
    """Shows the password of one storage URL as stars, wherever a driver repeats it."""

    def __init__(self, url: str) -> None:
        found = [match[2] for match in _PASSWORD_OF_URL.finditer(url)]
        query = url.partition("?")[2]
        names = ("password", "passwd", "pwd")
        found += [value for name, value in parse_qsl(query) if name.lower().endswith(names)]
        found += [match[2] for match in _NAMED_OF_URL.finditer(url)]
        # Where a password holds characters that should be encoded, drivers take a part of it for
        # the host, and repeat that part in their messages.
        found += [part for text in found for part in re.split("[@:/?]", text)]
        decoded = [form(text) for text in found for form in (str, unquote, unquote_plus, repr)]
        # The longest first. One or two letters are part of many words: stars there would only show
        # the password.
        self._secrets = sorted({text for text in decoded if len(text) > 2}, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """Return ``text`` without the password."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return hide_password(text)


def check_url(url: str) -> str:
    """Return the label of a database URL, itself without a password; StorageError for others."""
    label = label_of(url)
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise StorageError(
            f"storage must be a URL, got {label!r}. Write journal:{label} or sqlite:///{label}."
        )
    if scheme.startswith("redis"):
        raise StorageError(
            f"storage {label}: pass the object optuna.storages.JournalStorage("
            "optuna.storages.journal.JournalRedisBackend(url)) instead of the URL."
        )
    if sqlite_path(url) == Path():
        raise StorageError(
            f"storage {label} is lost when the program ends. Use a file, as in sqlite:///study.db."
        )
    return label


def sqlite_path(url: str) -> Path | None:
    """Return the absolute path of an SQLite URL, empty for one in memory; None for others."""
    scheme, _, rest = url.partition("://")
    if scheme.partition("+")[0] != "sqlite":
        return None
    name, _, query = rest.partition("?")
    name, options = name.removeprefix("/"), dict(parse_qsl(query))
    if _is_true(options.get("uri", "")):  # then the name is an URI of SQLite's own
        name = unquote(name.removeprefix("file:"))
        if name.startswith("//"):  # an authority: none, or localhost
            name = "/" + name[2:].partition("/")[2]
        if options.get("mode") == "memory":
            name = ""
    return Path() if name in ("", ":memory:") else Path(name).absolute()


def _is_true(text: str) -> bool:
    """Whether SQLAlchemy reads an option of a URL as true."""
    return text.strip().lower() in ("true", "yes", "on", "y", "t", "1")


def has_tables(url: str) -> bool:
    """Whether a database that is there has Optuna's tables; makes none, as opening it would."""
    from sqlalchemy import create_engine, inspect  # loads late: a journal does not need it

    engine = create_engine(_with_driver(url), connect_args=_connect_args(url))
    try:
        return inspect(engine).has_table("studies")
    finally:
        engine.dispose()


def open_database(url: str) -> BaseStorage:
    """Open a database, and make its tables if need be."""
    storage = _opened(url)
    # Who forgets a study leaves no connections open; a fork that ends spares its parent's.
    weakref.finalize(storage, storage.engine.dispose).atexit = False
    return storage


def _opened(url: str) -> RDBStorage:
    from optuna.storages import RDBStorage  # SQLAlchemy loads here

    # Optuna formats URLs because of {SCHEMA_VERSION}: other braces have to be doubled.
    kept = "{SCHEMA_VERSION}"
    parts = _with_driver(url).split(kept)
    formatted = kept.join(part.replace("{", "{{").replace("}", "}}") for part in parts)
    for pause in (0.1, 0.5, 2.0):
        try:
            return RDBStorage(formatted, engine_kwargs={"connect_args": _connect_args(url)})
        except Exception as error:  # errors of drivers have no common base
            # Another process makes the same tables at this moment.
            if not re.search("already exists|duplicate key|UNIQUE constraint", str(error)):
                raise
        time.sleep(pause)
    return RDBStorage(formatted, engine_kwargs={"connect_args": _connect_args(url)})


def close_connections(storage: Any) -> None:
    """Close the connections that this thread and the pool hold."""
    storage.remove_session()
    storage.engine.dispose()


def _with_driver(url: str) -> str:
    """Return a PostgreSQL URL that names no driver with one that is installed; others as is."""
    scheme, _, rest = url.partition("://")
    if scheme not in ("postgresql", "postgres"):
        return url
    for driver in _DRIVERS:
        if importlib.util.find_spec(driver) is not None:
            return f"postgresql+{driver}://{rest}"
    raise StorageError(
        f"storage {label_of(url)} needs a driver that is not installed: "
        'pip install "paceline[postgresql]"'
    )


def _connect_args(url: str) -> dict[str, Any]:
    scheme, _, rest = url.partition("://")
    dialect, _, driver = scheme.partition("+")
    if dialect == "sqlite" and "timeout=" not in rest:
        return {"timeout": SQLITE_WAIT}
    libpq = driver in ("psycopg", "psycopg2") or _DRIVERS[2] not in _with_driver(url)
    if dialect in ("postgresql", "postgres") and libpq:
        return {name: value for name, value in _PATIENCE.items() if f"{name}=" not in rest}
    return {}
