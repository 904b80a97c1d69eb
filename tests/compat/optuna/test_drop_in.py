"""``from paceline.compat import optuna``: Optuna itself, but for studies that pack."""

from __future__ import annotations

import pickle  # noqa: TID251 - users pickle their studies
import subprocess
import sys

import optuna as real
import pytest

from compat.interception.functions import X, Y, network
from paceline.compat import optuna

MADE = {"create_study", "load_study", "study"}


@pytest.mark.parametrize("name", sorted(set(real.__all__) - MADE))
def test_every_name_is_optunas_own_object(name):
    assert getattr(optuna, name) is getattr(real, name)


def test_all_names_of_optunas_study_module_are_there():
    import paceline.compat.optuna.study as ours

    for name in set(real.study.__all__) - MADE:
        assert getattr(ours, name) is getattr(real.study, name)
    assert ours.create_study is optuna.create_study is optuna.study.create_study
    assert dir(optuna) == dir(real)


def test_modules_are_optunas_by_every_way_to_import_them():
    import paceline.compat.optuna.storages.journal
    from paceline.compat.optuna.samplers import TPESampler

    from paceline.compat.optuna import samplers, visualization
    from paceline.compat.optuna.study import MaxTrialsCallback, StudyDirection

    assert paceline.compat.optuna.storages.journal is real.storages.journal
    assert samplers is real.samplers
    assert visualization is real.visualization
    assert TPESampler is real.samplers.TPESampler
    assert MaxTrialsCallback is real.study.MaxTrialsCallback
    assert StudyDirection is real.study.StudyDirection
    assert real.samplers.__spec__.name == "optuna.samplers"
    assert sys.modules["optuna.samplers"] is real.samplers


def test_a_module_that_optuna_lacks_is_missing():
    with pytest.raises(ModuleNotFoundError, match="optuna.no_such_module"):
        import paceline.compat.optuna.no_such_module  # noqa: F401
    with pytest.raises(AttributeError, match="no_such_name"):
        optuna.no_such_name  # noqa: B018
    with pytest.raises(AttributeError, match="no_such_name"):
        optuna.study.no_such_name  # noqa: B018


def objective(trial):
    model = network(trial.suggest_int("i", 0, 2))
    return model.fit(X, Y, verbose=0).history["loss"][-1]


def test_a_created_and_a_loaded_study_pack(tmp_path, capsys):
    storage = f"sqlite:///{tmp_path}/study.db"
    optuna.logging.set_verbosity(optuna.logging.INFO)
    study = optuna.create_study(study_name="s", storage=storage, directions=["minimize"])
    assert isinstance(study, real.Study)
    study.optimize(objective, n_trials=2)
    study = optuna.load_study(study_name="s", storage=storage)
    study.optimize(objective, n_trials=2)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 4
    assert capsys.readouterr().err.count("2 fits in packs") == 2


def test_a_study_can_be_pickled():
    study = optuna.create_study()
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    again = pickle.loads(pickle.dumps(study))
    assert again.best_value == study.best_value
    again.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    assert len(again.trials) == 3


def test_optuna_itself_is_left_as_it_is():
    study = real.create_study()
    assert type(study) is real.Study
    assert "optimize" not in vars(study)


@pytest.mark.parametrize(
    ("statement", "module"),
    [("import paceline", "optuna"), ("import paceline.compat.optuna", "jax")],
)
def test_an_import_loads_nothing_that_it_does_not_need(statement, module):
    script = f"import sys; {statement}; sys.exit({module!r} in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
