"""What may stand in the files of a study: the one schema, checked before anything uses a value.

Files may be damaged, or made by a stranger. ``msgspec`` compares what was parsed with these types;
what a type cannot say (that a trial's study exists) is checked where values are used.

| what | type | checked by |
|---|---|---|
| a line of a journal | ``JournalRecord`` | ``journal_storage.JournalReplay`` |
| the attribute ``paceline`` of a study | ``StudyMeta`` | ``metadata.check_meta`` |
| the attributes of a trial | ``TrialAttributes`` | ``trial_codec.check_attributes`` |
| the list of saved models | ``ManifestEntry`` | ``tuner/checkpoint/best_models.py`` |
| the header of a checkpoint | ``Checkpoint`` | ``tuner/checkpoint/files.py`` |
| its facts | ``SearchFacts``, ``TrialsFacts``, ``VariablesFacts`` | ``tuner/checkpoint`` |
| what a search did when | in ``study/timeline.py`` | there |
| the last ensemble | in ``study/ensemble_record.py`` | there |
| results of ``paceline bench`` | in ``benchmark/records.py`` | there |
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, MsgspecError, Struct, UnsetType, field

Count = Annotated[int, Meta(ge=0, le=2**53)]  # of trials, epochs, examples, bytes
Whole = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]  # of 64 bits, as a bound or a choice
#: A float as ``trial_codec.plain`` writes it: JSON has no NaN and no infinities.
Real = float | Literal["nan", "inf", "-inf"]
UNREADABLE = (MsgspecError, ValueError, RecursionError)  # errors of msgspec 0.19 are no ValueErrors
Scalar = bool | Whole | float | str | None
Text = str | None
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


class _Facts(Struct):
    """What is kept of a trial that has ended and of one under way alike."""

    plan: Text = None
    not_packed: Text = None
    worker: Text = None
    best_epoch: Count | None = None
    continues: Count | None = None
    continued_at: Count | None = None
    batch: BatchShape | None = None


class TrialAttributes(_Facts):
    """Attributes of a trial in storage. Others are of other programs, and of any type."""

    hparams: dict[str, Scalar] = {}
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    epochs: Count = 0
    seconds: Real = 0.0
    program: Text = None
    error: Text = None
    rejected: Text = None
    enqueued: bool = False
    history: dict[str, list[Real]] = {}
    members: list[list[Real]] = []
    value: Real | None = None
    costs: dict[str, float | str] = {}
    draw: Count = 0


class StoredParameter(Struct):
    """A parameter of the space; ``Parameter.from_json`` reads its distribution."""

    name: str
    storage_name: str
    distribution: dict[str, Any]
    default: Scalar
    mirrored: bool


class StoredSearch(Struct):
    """Arguments of a search; None stands for what was a function of hp.

    What was not given is left out.
    """

    epochs: Count | None = None
    batch_size: Count | None = None
    n_trials: Count | None = None
    shuffle: bool | Literal["batch"] = True
    repeats: Count | None = None
    folds: Count | None = None
    trial_timeout: Annotated[float, Meta(gt=0)] | None = None
    target: float | None = None
    stop_after: Count | None = None
    max_epochs_total: Count | None = None
    callbacks: list[str] | str | None = None
    steps_per_epoch: Count | None = None
    initial_epoch: Count | None = None
    validation_freq: Count | list[Count] | None = None


class BatchShape(Struct):
    """Shapes and dtypes of a batch, as ``data.arrays.shapes_to_json`` writes them."""

    shape: list[Count] | UnsetType = UNSET
    dtype: str | UnsetType = UNSET
    entries: dict[str, BatchShape] | UnsetType = field(default=UNSET, name="dict")
    items: list[BatchShape] | UnsetType = field(default=UNSET, name="list")
    parts: list[BatchShape] | UnsetType = field(default=UNSET, name="tuple")


class StudyMeta(Struct):
    """The attribute ``paceline`` of a study."""

    format: Count = 2
    id: str = ""
    space: list[StoredParameter] = []
    session: str = ""
    objective: Text = None
    direction: Literal["maximize", "minimize"] | None = None
    objectives: list[str] = []  # where there are several: the first one is ``objective``
    directions: list[Literal["maximize", "minimize"]] = []
    sampler: Text = None
    sampler_reason: Text = None  # where "auto" chose it
    seed: Count | None = None
    slots: Count | str | None = None
    plan: Text = None
    pruner: Text = None
    precision: Text = None
    widths: Text = None
    constraints: dict[str, list[tuple[Literal["<=", "<", ">=", ">"], float]] | None] = {}
    family_trials: Count = 8
    learnt: list[dict[str, Any]] = []  # ``samplers/learnt.py`` looks closer
    mesh: tuple[Count, Count | None] | None = None
    search: StoredSearch = field(default_factory=StoredSearch)
    data: Any = None
    batch: BatchShape | None = None
    versions: dict[str, str] = {}
    origin: Any = None  # ``paceline resume`` looks closer: it runs the file that this names
    build: Any = None  # the code's digest; compared, and nothing else
    run: Any = None  # of what is exported; nothing reads it that would act on it


# -- what Paceline keeps beside a study ------------------------------------------------------------


class ManifestEntry(Struct):
    """A saved model: the trial's file, and what the file holds."""

    file: Annotated[str, Meta(pattern=r"^trial-\d{1,16}-epoch-\d{1,16}\.(keras|weights\.h5)$")]
    epoch: Annotated[int, Meta(ge=1, le=2**53)]
    value: float
    sha256: str


Number = Annotated[str, Meta(pattern=r"^\d{1,16}$")]  # of a trial or a job, as a key of JSON
Numbers = list[Count]


class OpenTrial(_Facts, kw_only=True):
    """A trial under way, as ``trial_codec.to_json`` writes it."""

    seed: Count
    epochs: Count
    seconds: Real
    state: Literal["running", "paused"]
    value: Real | None
    history: dict[str, list[Real]]
    members: list[list[Real]]
    hparams: dict[str, Scalar]
    program: Text


class FamilyFacts(Struct):
    """Which trials were asked for together; see ``samplers/families.py``."""

    numbers: Numbers
    leader: Count | None
    asked: Count
    under_way: Numbers
    draws: Numbers
    rejected: bool = False


class StudyFacts(Struct):
    """What the storage does not hold of a study; see ``Study.state``."""

    next: Count
    queue: list[tuple[dict[str, Scalar], bool]]
    given: list[dict[str, Scalar]]
    points: list[str]
    families: FamilyFacts
    open: dict[Number, OpenTrial]
    session: str
    parents: dict[str, list[Count | list[Count]]] = {}


class ProgramFacts(Struct):
    """The program of a group of trials."""

    plan: str
    slots: Annotated[int, Meta(ge=1, le=2**20)]
    quick: Annotated[int, Meta(ge=0, le=2)]  # ``Effort``
    layout: tuple[Count, Count] | None


class RoleFacts(Struct):
    """The inputs of a group's step."""

    constants: Count
    observed: Numbers
    lifted: Numbers
    settled: bool
    widened: bool


class CallbackFacts(Struct):
    """What a callback held; see ``pack/callbacks/state.py``."""

    attributes: dict[str, Any]
    kind: str = field(name="class")
    lost: list[str] = []
    length: Count = 0


class DriverFacts(Struct):
    """What the callbacks of one trial held."""

    callbacks: list[CallbackFacts]


class GroupFacts(Struct):
    """A group of trials that share a program; see ``executor/snapshot.py``."""

    name: str
    example: Count | None
    seen: Count
    trials: Count
    most_slots: Count | None
    program: ProgramFacts | None
    met: Count
    roles: list[RoleFacts]
    packs: list[Annotated[list[Count | None], Meta(max_length=2**20)]]
    queue: Numbers
    parked: Numbers
    epochs: dict[Number, Count]
    callbacks: dict[Number, DriverFacts] = {}
    logs: dict[Number, dict[Number, Count]] = {}  # callback -> bytes before its trial began
    held: dict[Number, Count] = {}  # elsewhere: the epoch of the state that is held
    best: dict[Number, float | None] = {}  # elsewhere: the best value until now


class PackFacts(Struct):
    """All groups, and the devices that their programs were made for."""

    device: list[Any]
    founders: Numbers
    groups: list[GroupFacts]


class FitFacts(Struct):
    """The trial that Keras' ``fit`` trains; see ``executor/fit_state.py``."""

    job: Count
    epoch: Count
    random: Annotated[list[Any], Meta(min_length=5, max_length=5)]
    callbacks: list[CallbackFacts] = []


class MemberFacts(Struct):
    """How far the members of a trial are; see ``tuner/members.py``."""

    complete: Count
    trained: list[tuple[Count, Count]]
    waiting: Numbers
    verdict: str
    reports: list[tuple[Count, Count, dict[str, float]]]
    seconds: float
    wall: list[tuple[Count, float]]
    held: tuple[Count, Count] | None
    latest: list[tuple[Count, dict[str, float]]]
    ended: Numbers


class RunningFacts(Struct):
    """A trial that runs or is paused; see ``RunningTrial``."""

    epochs: Count
    epoch: Count = 0
    seconds: float = 0.0
    plan: Text = None
    program: Text = None
    not_packed: Text = None
    worker: Text = None
    wall: float = 0.0


class BestFacts(Struct):
    """Values, epochs and sizes of the weights that are held; see ``BestModels``."""

    open: dict[Number, tuple[float, Count, Count, Count]]
    complete: dict[Number, tuple[float, Count, Count, Count]]


class SearchFacts(Struct):
    """A search between two rounds; see ``tuner/search_state.py``."""

    study: StudyFacts
    packs: PackFacts | None
    trials: dict[Number, RunningFacts]
    trial_epochs: Count
    n_begun: Count
    best: BestFacts
    pruner: Any
    succeeded: Count
    fit: FitFacts | None
    teams: dict[Number, MemberFacts]
    n_extra: Count
    limit: tuple[Count | str | None, Count | None]
    owed: Count | None
    go_on: tuple[list[Count] | None, Numbers]
    key: dict[str, Any] = {}


class HandedOverFacts(OpenTrial, kw_only=True):
    """A trial that a worker left; see ``tuner/checkpoint/trial_variables.py``."""

    at: tuple[Count, float]
    sizes: Numbers
    best: tuple[Count, float] | None
    best_sizes: Numbers


class TrialsFacts(Struct):
    """The running trials of one worker of several."""

    shared: bool  # always true; msgspec 0.19 knows no Literal of a bool
    trials: dict[Number, HandedOverFacts]
    key: dict[str, Any] = {}


class VariablesFacts(Struct):
    """The last variables of one trial."""

    number: Count
    epoch: Count
    sizes: Numbers
    value: float | None = None


class Checkpoint(Struct):
    """The header of a checkpoint; its facts are of one of the types above, or empty."""

    format: Any
    kinds: dict[str, tuple[str, list[Count]]]
    facts: dict[str, Any]
    beside: list[str] = []


# -- what is wrong with a value that was read ------------------------------------------------------

_AT = re.compile(r"^(?P<what>.*?)(?: - at (?:key in )?`(?P<path>.*)`)?$", re.S)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")


def why(error: Exception, value: Any = None, what: str = "it") -> str:
    """Return what msgspec found wrong: the field, what it holds, what was expected.

    ``value`` was compared with a type, and the part of it that is wrong is shown; ``what`` is its
    name in messages. The error may be another one of reading.
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
