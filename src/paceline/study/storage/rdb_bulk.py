"""Many rows of a database at once: writes what Optuna's calls write, in a dozen statements a batch.

Optuna's own calls take several statements for each value and attribute, some sixty for a trial,
through SQLAlchemy's object mapper. They cost as much processor time as training a small model. Here
a batch of records is one transaction over the same tables. ``BulkWriter.of`` checks first that the
tables are the known ones; where they may differ, Optuna's own calls write the records.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from datetime import UTC, datetime
from typing import Any, Final

import optuna
import sqlalchemy as sa
from optuna.distributions import (
    BaseDistribution,
    check_distribution_compatibility,
    distribution_to_json,
    json_to_distribution,
)
from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import FrozenTrial, create_trial
from optuna.trial import TrialState as OptunaState
from sqlalchemy.dialects import postgresql, sqlite

from paceline.study.metadata import META
from paceline.study.storage.events import (
    Record,
    StudyDescribed,
    TrialCreated,
    TrialTaken,
    fold,
)

#: Optuna's name of the tables' layout; all its releases since 3.2 have this one.
SCHEMA: Final = "v3.2.0.a"
#: Releases of Optuna whose rows were compared with those written here (tests/study/storage/
#: test_rdb_bulk.py): 5.0 stores times in UTC, earlier releases store local times.
RELEASES: Final = re.compile(r"(4\.[0-9]|5\.0)(\.|$)")
#: Table -> its columns, and the columns that are unique together.
_TABLES: Final[dict[str, tuple[set[str], set[str]]]] = {
    "studies": ({"study_id", "study_name"}, set()),
    "study_user_attributes": (
        {"study_user_attribute_id", "study_id", "key", "value_json"},
        {"study_id", "key"},
    ),
    "study_system_attributes": (
        {"study_system_attribute_id", "study_id", "key", "value_json"},
        {"study_id", "key"},
    ),
    "trials": (
        {"trial_id", "number", "study_id", "state", "datetime_start", "datetime_complete"},
        set(),
    ),
    "trial_params": (
        {"param_id", "trial_id", "param_name", "param_value", "distribution_json"},
        {"trial_id", "param_name"},
    ),
    "trial_values": (
        {"trial_value_id", "trial_id", "objective", "value", "value_type"},
        {"trial_id", "objective"},
    ),
    "trial_intermediate_values": (
        {
            "trial_intermediate_value_id",
            "trial_id",
            "step",
            "intermediate_value",
            "intermediate_value_type",
        },
        {"trial_id", "step"},
    ),
    "trial_user_attributes": (
        {"trial_user_attribute_id", "trial_id", "key", "value_json"},
        {"trial_id", "key"},
    ),
    "trial_system_attributes": (
        {"trial_system_attribute_id", "trial_id", "key", "value_json"},
        {"trial_id", "key"},
    ),
}
_INSERTS: Final[Mapping[str, Any]] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
#: Values of one IN; an old SQLite takes at most 999 values in a statement.
_MANY = 500

Row = dict[str, Any]


class BulkWriter:
    """Writes batches of records to the tables of one database; use ``BulkWriter.of``."""

    def __init__(self, engine: sa.Engine, tables: Mapping[str, sa.Table]) -> None:
        """Write to these tables."""
        self._engine, self._tables = engine, tables
        self._insert = _INSERTS[engine.dialect.name]
        # Of the last batch, by the numbers of the records: the numbers of new trials.
        self.given: dict[int, int] = {}
        # Study and name -> a stored distribution; further ones of that name must be compatible.
        self._known: dict[tuple[int, str], BaseDistribution] = {}

    @classmethod
    def of(cls, storage: BaseStorage) -> BulkWriter | None:
        """Return a writer to a storage's tables; None if Optuna's own calls have to write.

        They have to unless Optuna and the tables are known, and the isolation is the default.
        """
        if type(storage) is not RDBStorage or not RELEASES.match(optuna.__version__):
            return None
        engine = storage.engine
        chosen = {*storage.engine_kwargs, *engine.url.query}
        if engine.dialect.name not in _INSERTS or chosen & {"isolation_level", "execution_options"}:
            return None
        if storage.get_current_version() != SCHEMA:
            return None
        found = sa.MetaData()
        found.reflect(engine, only=lambda name, _: name in _TABLES)
        if not all(_is_known(found.tables.get(name), *known) for name, known in _TABLES.items()):
            return None
        return cls(engine, found.tables)

    def write(
        self, study: int, records: Sequence[Record], ids: Mapping[int, int]
    ) -> dict[int, int]:
        """Write records, in their order, all of them or none; KeyError where a trial is gone.

        Records of a trial that another process has ended are left out: that end stands. Those of a
        trial that begins here are part of its first one, as ``WriteBehind`` has joined them.
        ``ids`` are trials' numbers -> the storage's ids, as far as they are known. Returns the ids
        of all unfinished trials met, by the numbers of the records.
        """
        created = [record for record in records if isinstance(record, TrialCreated)]
        meta, changed = None, dict[int, FrozenTrial]()  # what changes in stored trials, by number
        for record in records:
            if isinstance(record, StudyDescribed):
                meta = record.meta
            elif not isinstance(record, TrialCreated | TrialTaken):
                if record.number not in changed:
                    changed[record.number] = create_trial(state=OptunaState.RUNNING)
                if not changed[record.number].state.is_finished():
                    fold(record, changed[record.number])
        try:
            with self._engine.begin() as connection:
                self._lock(connection, study)
                running = self._running(connection, study, changed.keys(), ids)
                begun, first = self._begin(connection, study, created)
                self._change(connection, {running[n]: changed[n] for n in running})
                if meta is not None:
                    row = {"study_id": study, **_attribute(META, meta)}
                    self._put(connection, "study_user_attributes", [row])
        except BaseException:
            self._known.clear()  # some may be of this batch, which was rolled back
            raise
        self.given = {record.number: first + index for index, record in enumerate(created)}
        return begun | {n: t for n, t in running.items() if not changed[n].state.is_finished()}

    def open_trials(self, study: int, known: int) -> dict[int, str]:
        """Return the states of trials that have not ended, or are new: those from ``known`` on."""
        trials = self._tables["trials"]
        ended = [state.name for state in OptunaState if state.is_finished()]
        query = sa.select(trials.c.number, trials.c.state).where(trials.c.study_id == study)
        query = query.where(trials.c.state.not_in(ended) | (trials.c.number >= known))
        with self._engine.connect() as connection:
            return {row.number: row.state for row in connection.execute(query)}

    def study_attribute(self, study: int, key: str) -> Any:
        """Return a study's attribute that programs write for one another; None without it."""
        attrs = self._tables["study_system_attributes"]
        query = sa.select(attrs.c.value_json).where(attrs.c.study_id == study, attrs.c.key == key)
        with self._engine.connect() as connection:
            text = connection.execute(query).scalar()
        return None if text is None else json.loads(text)

    def _lock(self, connection: sa.Connection, study: int) -> None:
        """Make other writers of the study wait, because trials are numbered by counting.

        Optuna selects a study FOR UPDATE, and on SQLite counts after its own first write. An UPDATE
        that changes nothing excludes both.
        """
        studies = self._tables["studies"]
        same = sa.update(studies).where(studies.c.study_id == study)
        if connection.execute(same.values(study_name=studies.c.study_name)).rowcount != 1:
            raise KeyError(f"study {study} is no longer in the storage")

    def _running(
        self, connection: sa.Connection, study: int, numbers: Set[int], ids: Mapping[int, int]
    ) -> dict[int, int]:
        """Return the ids of running trials by number; they stay running in this transaction."""
        trials = self._tables["trials"]
        known = {ids[number]: number for number in numbers if number in ids}
        query = sa.select(trials.c.trial_id, trials.c.number).where(trials.c.study_id == study)
        for some in _parts(sorted(numbers - ids.keys())):
            for trial, number in connection.execute(query.where(trials.c.number.in_(some))):
                known[trial] = number
        running: dict[int, int] = {}
        n_found = 0
        query = sa.select(trials.c.trial_id, trials.c.state).with_for_update()
        for some in _parts(sorted(known)):
            only = query.where(trials.c.trial_id.in_(some)).order_by(trials.c.trial_id)
            for trial, state in connection.execute(only):
                n_found += 1
                if not OptunaState[state].is_finished():
                    running[known[trial]] = trial
        if n_found != len(numbers):
            raise KeyError("a trial is no longer in the storage")
        return running

    def _begin(
        self, connection: sa.Connection, study: int, created: Sequence[TrialCreated]
    ) -> tuple[dict[int, int], int]:
        """Make trials, in their order, which have numbers in a row.

        Returns the ids of the unfinished ones, by the numbers of the records, and the first number.
        """
        if not created:
            return {}, 0
        trials = self._tables["trials"]
        mine = trials.c.study_id == study
        count = sa.select(sa.func.count()).select_from(trials).where(mine)
        first = connection.execute(count).scalar_one()
        connection.execute(
            sa.insert(trials),
            [
                {
                    "number": first + index,
                    "study_id": study,
                    "state": record.template.state.name,
                    "datetime_start": _stored_time(record.template.datetime_start),
                    "datetime_complete": _stored_time(record.template.datetime_complete),
                }
                for index, record in enumerate(created)
            ],
        )
        made = sa.select(trials.c.trial_id).where(mine, trials.c.number >= first)
        ids = connection.execute(made.order_by(trials.c.number)).scalars().all()
        if len(ids) != len(created) or list(ids) != sorted(ids):
            raise RuntimeError("the database numbered new trials in another order")
        begun = list(zip(ids, (record.template for record in created), strict=True))
        params = list(self._params(connection, study, begun))
        for table, rows in {"trial_params": params, **_rows(begun)}.items():
            if rows:
                connection.execute(sa.insert(self._tables[table]), rows)
        both = zip(created, ids, strict=True)
        open_ids = {made.number: t for made, t in both if not made.template.state.is_finished()}
        return open_ids, first

    def _params(
        self, connection: sa.Connection, study: int, begun: Sequence[tuple[int, Any]]
    ) -> Iterator[Row]:
        for trial, template in begun:
            for name, value in template.params.items():
                distribution = template.distributions[name]
                self._check(connection, study, name, distribution)
                yield {
                    "trial_id": trial,
                    "param_name": name,
                    "param_value": distribution.to_internal_repr(value),
                    "distribution_json": distribution_to_json(distribution),
                }

    def _check(
        self, connection: sa.Connection, study: int, name: str, distribution: BaseDistribution
    ) -> None:
        """Refuse a distribution that is incompatible with the stored one, as Optuna does."""
        known = self._known.get((study, name))
        if known is None:
            params, trials = self._tables["trial_params"], self._tables["trials"]
            query = (
                sa.select(params.c.distribution_json)
                .join_from(params, trials, params.c.trial_id == trials.c.trial_id)
                .where(trials.c.study_id == study, params.c.param_name == name)
                .limit(1)
            )
            text = connection.execute(query).scalar()
            known = distribution if text is None else json_to_distribution(text)
            self._known[study, name] = known
        if known != distribution:
            check_distribution_compatibility(known, distribution)

    def _change(self, connection: sa.Connection, changed: Mapping[int, FrozenTrial]) -> None:
        """Write changes of trials that are in the storage, by their ids."""
        for table, rows in _rows(changed.items()).items():
            self._put(connection, table, rows)
        trials = self._tables["trials"]
        ends = [
            {
                "ended": trial,
                "state": now.state.name,
                "datetime_complete": _stored_time(now.datetime_complete),
            }
            for trial, now in changed.items()
            if now.state.is_finished()
        ]
        if ends:
            ended = trials.c.trial_id == sa.bindparam("ended")
            connection.execute(sa.update(trials).where(ended), ends)

    def _put(self, connection: sa.Connection, table: str, rows: Sequence[Row]) -> None:
        """Insert rows, or change those that are there."""
        if not rows:
            return
        unique = _TABLES[table][1]
        statement = self._insert(self._tables[table])
        new = {name: statement.excluded[name] for name in rows[0] if name not in unique}
        statement = statement.on_conflict_do_update(index_elements=sorted(unique), set_=new)
        connection.execute(statement, rows)


def _is_known(table: sa.Table | None, columns: set[str], unique: set[str]) -> bool:
    """Whether a table has the columns and the uniqueness that this module relies on."""
    if table is None or set(table.columns.keys()) != columns:
        return False
    return not unique or any(
        isinstance(constraint, sa.UniqueConstraint) and set(constraint.columns.keys()) == unique
        for constraint in table.constraints
    )


def _parts(items: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(items), _MANY):
        yield items[start : start + _MANY]


def _stored_time(time: datetime | None) -> datetime | None:
    if time is None or optuna.__version__.startswith("4."):
        return time
    return time.astimezone(UTC).replace(tzinfo=None)


def _rows(trials: Iterable[tuple[int, FrozenTrial]]) -> dict[str, list[Row]]:
    """Return what trials have, given by their ids, as rows by table."""
    found: dict[str, list[Row]] = {}

    def add(
        table: str, trial: int, row: Callable[[Any, Any], Row], items: Iterable[tuple[Any, Any]]
    ) -> None:
        found.setdefault(table, []).extend({"trial_id": trial, **row(*item)} for item in items)

    for trial, has in trials:
        add("trial_values", trial, _value, enumerate(has.values or ()))
        add("trial_user_attributes", trial, _attribute, has.user_attrs.items())
        add("trial_system_attributes", trial, _attribute, has.system_attrs.items())
        add("trial_intermediate_values", trial, _step, has.intermediate_values.items())
    return found


def _attribute(key: str, value: Any) -> Row:
    return {"key": key, "value_json": json.dumps(value)}


def _value(objective: int, value: float) -> Row:
    kind = _kind(value) if math.isinf(value) else "FINITE"
    stored = value if kind == "FINITE" else None
    return {"objective": objective, "value": stored, "value_type": kind}


def _step(epoch: int, value: float) -> Row:
    kind = _kind(value)
    stored = value if kind == "FINITE" else None
    return {"step": epoch, "intermediate_value": stored, "intermediate_value_type": kind}


def _kind(value: float) -> str:
    """Return Optuna's name of a kind of number: not every database stores infinities and NaN."""
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INF_POS" if value > 0 else "INF_NEG"
    return "FINITE"
