"""What may stand in the files of a study: the one schema, checked before anything uses a value.

Files may be damaged, or made by a stranger. ``msgspec`` compares what was parsed with these types;
what a type cannot say (that a trial's study exists) is checked where values are used.

| what | type | checked by |
|---|---|---|
| a line of a journal | ``JournalRecord`` | ``journal_storage.JournalReplay`` |
| the attribute ``paceline`` of a study | ``StudyMeta`` | ``metadata.check_meta`` |
| the attributes of a trial | ``TrialAttributes`` | ``trial_codec.check_attributes`` |
| the list of saved models | in ``tuner/checkpoint/trial_variables.py`` | there |
| what a checkpoint has of a study | ``StudyCheckpoint`` | ``tuner/checkpoint/files.py`` |
| the other facts of a checkpoint | with their owners in ``tuner`` and ``executor`` | there |
| what a search did when | in ``study/timeline.py`` | there |
| the last ensemble | in ``study/ensemble_record.py`` | there |
| results of ``paceline bench`` | in ``benchmark/records.py`` | there |
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from msgspec import Meta, MsgspecError, Struct, defstruct, field

from paceline.records import BatchShape, Count, Numbers, Scalar, Text, Whole
from paceline.study.trials.trial import STORED

UNREADABLE = (MsgspecError, ValueError, RecursionError)  # msgspec 0.19 has no ValueErrors
State = Literal[0, 1, 2, 3, 4]  # optuna.trial.TrialState
OneAttribute = Annotated[dict[str, Any], Meta(min_length=1, max_length=1)]


# -- lines of a journal, as Optuna writes them -----------------------------------------------------


class CreateStudy(Struct, tag_field="op_code", tag=0):
    """A new study; studies are numbered by these lines."""

    worker_id: str
    study_name: str
    directions: Annotated[list[Literal[0, 1, 2]], Meta(min_length=1)]


class DeleteStudy(Struct, tag_field="op_code", tag=1):
    """The end of a study; its trials keep their ids."""

    worker_id: str
    study_id: Count


class SetStudyUserAttr(Struct, tag_field="op_code", tag=2):
    """An attribute of a study, such as ``paceline``."""

    worker_id: str
    study_id: Count
    user_attr: OneAttribute


class SetStudySystemAttr(Struct, tag_field="op_code", tag=3):
    """An attribute of a study that programs write for one another, such as a heartbeat."""

    worker_id: str
    study_id: Count
    system_attr: OneAttribute


class CreateTrial(Struct, tag_field="op_code", tag=4):
    """A new trial; trials are numbered by these lines. It may have ended already."""

    worker_id: str
    study_id: Count
    datetime_start: Text = None
    datetime_complete: Text = None
    state: State = 0
    value: float | None = None
    values: list[float] | None = None
    distributions: dict[str, str] = {}
    params: dict[str, float] = {}
    user_attrs: dict[str, Any] = {}
    system_attrs: dict[str, Any] = {}
    intermediate_values: dict[Whole, float] = {}


class SetTrialParam(Struct, tag_field="op_code", tag=5):
    """A value that a sampler chose, by another program; Paceline writes all with the trial."""

    worker_id: str
    trial_id: Count
    param_name: str
    param_value_internal: float
    distribution: str


class SetTrialState(Struct, tag_field="op_code", tag=6):
    """The end of a trial, or that one that waited runs."""

    worker_id: str
    trial_id: Count
    state: State
    values: list[float] | None = None
    datetime_start: Text = None
    datetime_complete: Text = None


class SetTrialIntermediateValue(Struct, tag_field="op_code", tag=7):
    """The objective after an epoch."""

    worker_id: str
    trial_id: Count
    step: Whole
    intermediate_value: float


class SetTrialUserAttr(Struct, tag_field="op_code", tag=8):
    """An attribute of a trial."""

    worker_id: str
    trial_id: Count
    user_attr: OneAttribute


class SetTrialSystemAttr(Struct, tag_field="op_code", tag=9):
    """An attribute of a trial that programs write for one another, such as its worker."""

    worker_id: str
    trial_id: Count
    system_attr: OneAttribute


class DiscardTrials(Struct, tag_field="op_code", tag=10):
    """Of another implementation of Optuna; Optuna itself passes it over."""

    worker_id: str = ""


_OfStudies = CreateStudy | DeleteStudy | SetStudyUserAttr | SetStudySystemAttr
_OfTrials = CreateTrial | SetTrialParam | SetTrialState | SetTrialIntermediateValue
JournalRecord = _OfStudies | _OfTrials | SetTrialUserAttr | SetTrialSystemAttr | DiscardTrials


# -- what Paceline keeps in a study ----------------------------------------------------------------


#: Attributes of a trial in storage. Others are of other programs, and of any type. ``draw`` is that
#: of random search.
TrialAttributes = defstruct(
    "TrialAttributes",
    [(name, stored.kind, stored.default) for name, stored in STORED.items()] + [("draw", Count, 0)],
)


class StoredParameter(Struct):
    """A parameter of the space; ``Parameter.from_json`` reads its distribution."""

    name: str
    storage_name: str
    distribution: dict[str, Any]
    default: Scalar
    mirrored: bool
    typed: bool = False


class StoredSearch(Struct):
    """Arguments of a search that were given; None stands for what was a function of hp."""

    epochs: Count | None = None
    batch_size: Count | None = None
    n_trials: Count | None = None
    shuffle: bool | Literal["batch"] = True
    repeats: Count | None = None
    folds: Count | None = None
    trial_timeout: Annotated[float, Meta(gt=0)] | None = None
    target_value: float | None = None
    patience_trials: Count | None = None
    max_total_epochs: Count | None = None
    callbacks: list[str] | str | None = None
    steps_per_epoch: Count | None = None
    initial_epoch: Count | None = None
    validation_freq: Count | list[Count] | None = None


class StoredOutlook(Struct):
    """What the search was expected to train when the study began; see ``SearchOutlook``."""

    trials: Count = 8
    core_seconds: Annotated[float, Meta(ge=0)] = 0.0
    trained: Annotated[float, Meta(gt=0, le=1)] = 1.0
    alike: Annotated[int, Meta(ge=1)] = 1


class StudyMeta(Struct):
    """The attribute ``paceline`` of a study."""

    format: Count = 2
    id: str = ""
    space: list[StoredParameter] = []
    session: str = ""
    objective: Text = None
    direction: Literal["maximize", "minimize"] | None = None
    objectives: list[str] = []  # if there are several: the first one is ``objective``
    directions: list[Literal["maximize", "minimize"]] = []
    sampler: Text = None
    sampler_reason: Text = None  # where "auto" chose it
    seed: Count | None = None
    parallel_trials: Count | str | None = None
    plan: Text = None
    pruner: Text = None
    pruner_reason: Text = None  # where "auto" chose it
    precision: Text = None
    share_widths: bool | str | None = None
    constraints: dict[str, list[tuple[Literal["<=", "<", ">=", ">"], float]] | None] = {}
    outlook: StoredOutlook = field(default_factory=StoredOutlook)
    learnt: list[dict[str, Any]] = []  # ``samplers/earlier_studies.py`` looks closer
    mesh: tuple[Count, Count | None] | None = None
    search: StoredSearch = field(default_factory=StoredSearch)
    data: Any = None
    batch: BatchShape | None = None
    versions: dict[str, str] = {}
    origin: Any = None  # ``paceline resume`` looks closer: it runs the file that this names
    build: Any = None  # the code's digest; compared, and nothing else
    run: Any = None  # of what is exported; nothing reads it that would act on it


# -- what Paceline keeps beside a study ------------------------------------------------------------


Number = Annotated[str, Meta(pattern=r"^\d{1,16}$")]  # of a trial or a job, as a key of JSON


_OPEN = [(name, stored.kind) for name, stored in STORED.items() if "open" in stored.forms]


class OpenTrial(defstruct("_OpenTrial", _OPEN), kw_only=True):
    """An unfinished trial, as ``trial_codec.to_json`` writes it."""

    state: Literal["running", "paused"]


class StructureOrderFacts(Struct):
    """Which trials were asked for together; see ``samplers/structure_order.py``."""

    numbers: Numbers
    leader: Count | None
    asked: Count
    under_way: Numbers
    draws: Numbers
    rejected: bool = False
    trains_long: bool = False
    programs: dict[str, Numbers] = {}
    open: Count = 1


class StudyCheckpoint(Struct):
    """What the storage does not hold of a study; see ``Study.state``."""

    next: Count
    queue: list[tuple[dict[str, Scalar], bool]]
    given: list[dict[str, Scalar]]
    points: list[str]
    structure_order: StructureOrderFacts
    open: dict[Number, OpenTrial]
    session: str
    parents: dict[str, list[Count | list[Count]]] = {}


class StudyPartOfCheckpoint(Struct):
    """What the study reads of a search's checkpoint; see ``tuner/search/checkpointer.py``."""

    study: StudyCheckpoint


# -- what is wrong with a value that was read ------------------------------------------------------

_AT = re.compile(r"^(?P<what>.*?)(?: - at (?:key in )?`(?P<path>.*)`)?$", re.S)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")


def why(error: Exception, value: Any = None, what: str = "it") -> str:
    """Return what msgspec found wrong in a value: the field, what it holds, what was expected.

    ``what`` is its name in messages. The error may be another one of reading.
    """
    match = _AT.match(str(error))
    said, path = (match["what"], match["path"]) if match is not None else (str(error), None)
    said = said.replace("`", "") or type(error).__name__
    said = said[:1].lower() + said[1:] if said[1:2].islower() else said
    if path is None:
        return f"{what} is {shown(value)}: {said}" if value is not None else said
    steps = list(_STEP.finditer(path))
    name = "".join(step[0] for step in steps).removeprefix(".")
    name = f"{what}, {name}" if what != "it" else name
    if said.startswith("object missing"):
        return f"{name}: {said}"
    found: Any = value
    for step in steps:
        try:
            found = found[step[1]] if step[1] is not None else found[int(step[2])]
        except (KeyError, IndexError, TypeError):
            return f"{name}: {said}"
    return f"{name} is {shown(found)}: {said}"


def shown(value: Any) -> str:
    """Return a value as a message shows it: in ASCII, and short."""
    try:
        text = ascii(value)
    except (ValueError, RecursionError):  # a number of thousands of digits; nesting without end
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= 60 else f"{text[:57]}..."
