"""Steps on what notebooks use beside a scan: spaces, reports, archives, metrics, utils, paths."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import keras
import numpy as np
import pandas as pd
from sklearn import metrics as sk

from compat.talos.notebook import X, Y
from compat.talos.steps import (
    ADAGRAD,
    ADAM,
    Kit,
    logistic,
    my_metric,
    numbers,
    raises,
    step,
)

# -- paths -----------------------------------------------------------------------------------------


@step
def version(kit: Kit):
    assert kit.talos.__version__ == "2.0.10"


@step
def reporting_is_analyze(kit: Kit):
    assert kit.talos.Reporting is kit.talos.Analyze


@step
def paths_of_commands(kit: Kit):
    for name in ("analyze", "deploy", "evaluate", "predict", "restore"):
        assert hasattr(kit.module(f"commands.{name}"), name.capitalize())


@step
def paths_of_scan(kit: Kit):
    assert kit.module("scan.Scan").Scan is kit.talos.Scan
    assert callable(kit.module("scan.scan_addon").func_evaluate)


@step
def paths_of_model(kit: Kit):
    assert kit.module("model.normalizers").lr_normalizer is kit.talos.utils.lr_normalizer
    for name in ("hidden_layers", "early_stopper", "network_shape", "output_layer"):
        assert callable(getattr(kit.module(f"model.{name}"), name))


@step
def paths_of_utils(kit: Kit):
    names = {
        "best_model": "activate_model",
        "load_model": "load_model",
        "torch_history": "TorchHistory",
        "exceptions": "TalosParamsError",
        "recover_best_model": "recover_best_model",
        "test_utils": "create_param_space",
    }
    for path, name in names.items():
        assert hasattr(kit.module(f"utils.{path}"), name), path


@step
def paths_of_metrics(kit: Kit):
    assert callable(kit.module("metrics.keras_metrics").fbeta)


@step
def names_of_autom8(kit: Kit):
    for name in ("AutoModel", "AutoParams", "AutoPredict", "AutoScan"):
        assert callable(getattr(kit.talos.autom8, name))


@step
def names_of_callbacks(kit: Kit):
    for name in ("ExperimentLog", "PowerDraw"):
        assert callable(getattr(kit.talos.callbacks, name))


@step
def errors_have_talos_names(kit: Kit):
    found = kit.module("utils.exceptions")
    for kind in ("Return", "Params", "Type", "Model", "Data"):
        assert issubclass(getattr(found, f"Talos{kind}Error"), Exception)


# -- spaces ----------------------------------------------------------------------------------------


def space(kit: Kit, *arguments, **options):
    return kit.module("parameters.ParamSpace").ParamSpace(*arguments, **options)


def left(found) -> list:
    return [list(found.param_space[i]) for i in found.param_index]


@step
def ranges_of_whole_numbers(kit: Kit):
    assert list(space(kit, {"a": (0, 3, 6)}).p["a"]) == [0, 1, 2]


@step
def ranges_of_fractions(kit: Kit):
    assert list(space(kit, {"a": (0.0, 1.0, 4)}).p["a"]) == [0.0, 0.25, 0.5, 0.75]


@step
def dimensions_are_counted(kit: Kit):
    assert space(kit, {"a": [1, 2, 3], "b": [1, 2]}).dimensions == 6


@step
def permutations_are_handed_out(kit: Kit):
    found = space(kit, {"a": [1], "b": ["x", "y"]})
    rounds = [found.round_parameters() for _ in range(3)]
    assert rounds == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, False]


@step
def values_are_removed(kit: Kit):
    found = space(kit, {"a": [1, 2, 3]})
    found.remove_is("a", 2)
    assert left(found) == [[1], [3]]


@step
def other_values_are_removed(kit: Kit):
    found = space(kit, {"a": [1, 2, 3]})
    found.remove_is_not("a", 2)
    assert left(found) == [[2]]


@step
def values_above_and_below_are_removed(kit: Kit):
    found = space(kit, {"a": [1, 2, 3, 4]})
    found.remove_ge("a", 4)
    found.remove_le("a", 1)
    assert left(found) == [[2], [3]]


@step
def permutations_are_removed_by_a_function(kit: Kit):
    found = space(kit, {"a": [1, 2, 3], "b": [1, 2]})
    found.remove_lambda(lambda params: params["a"] == params["b"])
    assert left(found) == [[1, 1], [2, 2]]


@step
def a_limit_below_one_permutation(kit: Kit):
    raises(
        kit.module("utils.exceptions").TalosDataError,
        lambda: space(kit, {"a": [1, 2]}, fraction_limit=0.1),
    )


@step
def machines_share_a_space(kit: Kit):
    kind = kit.module("parameters.DistributeParamSpace").DistributeParamSpace
    parts = kind({"a": list(range(10))}, machines=3, seed=5).param_spaces
    assert [len(part.param_index) for part in parts.values()] == [4, 3, 3]
    assert sorted(row[0] for part in parts.values() for row in left(part)) == list(range(10))


#: What Talos 2.0.10 draws: 5 of 50 with seed 3, in its order.
DRAWN = {
    "korobov_matrix": [0, 31, 12, 43, 24],
    "sobol": [0, 31, 32, 15, 48],
    "halton": [0, 32, 16, 48, 8],
    "latin_matrix": [39, 13, 36, 35, 30],
    "latin_sudoku": [39, 13, 36, 35, 30],
    "latin_improved": [40, 15, 28, 3, 34],
    # Parts of 10 for three machines, with seed 5.
    "machines": [[2, 3, 1, 0], [8, 7, 6], [5, 4, 9]],
}


def drawn(kit: Kit, method: str) -> list[int]:
    values = list(range(50))
    found = space(kit, {"a": values}, random_method=method, round_limit=5, seed=3)
    return [int(row[0]) for row in left(found)]


@step
def korobov_draws_the_same(kit: Kit):
    assert drawn(kit, "korobov_matrix") == DRAWN["korobov_matrix"]


@step
def sobol_draws_the_same(kit: Kit):
    assert drawn(kit, "sobol") == DRAWN["sobol"]


@step
def halton_draws_the_same(kit: Kit):
    assert drawn(kit, "halton") == DRAWN["halton"]


@step
def latin_methods_draw_the_same(kit: Kit):
    for method in ("latin_matrix", "latin_sudoku", "latin_improved"):
        assert drawn(kit, method) == DRAWN[method], method


@step
def parts_of_machines_are_the_same(kit: Kit):
    kind = kit.module("parameters.DistributeParamSpace").DistributeParamSpace
    parts = kind({"a": list(range(10))}, machines=3, seed=5).param_spaces
    assert [[int(row[0]) for row in left(part)] for part in parts.values()] == DRAWN["machines"]


# -- reports ---------------------------------------------------------------------------------------

TABLE = pd.DataFrame(
    {
        "round_epochs": [3, 3, 3, 3],
        "val_acc": [0.1, 0.4, 0.3, 0.4],
        "val_loss": [0.9, 0.2, 0.5, 0.1],
        "lr": [1.0, 4.0, 3.0, 4.0],
        "units": [8, 8, 4, 4],
        "activation": ["relu", "elu", "relu", "elu"],
    }
)


@step
def high_and_low(kit: Kit):
    report = kit.talos.Analyze(TABLE)
    assert (report.high("val_acc"), report.low("val_acc")) == (0.4, 0.1)


@step
def rounds_are_counted(kit: Kit):
    report = kit.talos.Analyze(TABLE)
    assert (report.rounds(), report.rounds2high("val_acc")) == (4, 1)


@step
def correlations(kit: Kit):
    found = kit.talos.Analyze(TABLE).correlate("val_acc", ["round_epochs", "activation"])
    assert abs(found["lr"] - 1) < 1e-9
    assert set(found.index) == {"lr", "units", "val_loss"}


@step
def tables_are_sorted(kit: Kit):
    found = kit.talos.Analyze(TABLE).table("val_loss", ["round_epochs"], ascending=True)
    assert found.index.tolist() == [3, 1, 2, 0]
    assert next(iter(found)) == "val_loss"
    assert "round_epochs" not in found


@step
def tables_are_sorted_by_another_column(kit: Kit):
    found = kit.talos.Analyze(TABLE).table(["val_acc"], [], sort_by="val_loss")
    assert found.index.tolist() == [0, 2, 1, 3]


@step
def best_params_of_a_table(kit: Kit):
    exclude = ["round_epochs", "activation", "val_loss"]
    found = kit.talos.Analyze(TABLE).best_params("val_acc", exclude, n=2)
    assert sorted(found.tolist()) == [[4.0, 4.0, 1.0], [4.0, 8.0, 0.0]]


@step
def best_params_of_a_scan(kit: Kit):
    found = kit.talos.Analyze(kit.sklearn).best_params("val_loss", [], n=1, ascending=True)
    row = int(kit.sklearn.data["val_loss"].idxmin())
    assert found.tolist() == [[kit.sklearn.data["c"][row], 0]]


@step
def best_params_know_a_parameter_called_like_a_metric(kit: Kit):
    found = kit.talos.Analyze(kit.odd).best_params("val_acc", ["optimizer", "size"], n=1)
    assert found.tolist() == [[0.25, 0.1, 0]]


@step
def reports_of_a_file(kit: Kit):
    path = kit.new("log").with_suffix(".csv")
    TABLE.to_csv(path, index=False)
    assert kit.talos.Reporting(str(path)).high("lr") == 4.0


@step
def reports_of_a_scans_file(kit: Kit):
    report = kit.talos.Reporting(kit.sklearn.run_dir / "results.csv")
    assert report.rounds() == 2
    assert report.best_params("val_loss", [], n=2).shape == (2, 2)


# -- Evaluate, Predict -----------------------------------------------------------------------------


@step
def a_model_is_scored_on_parts(kit: Kit):
    found = kit.talos.Evaluate(kit.trained).evaluate(
        X, Y, "multi_class", "val_loss", folds=3, shuffle=False, asc=True
    )
    model = kit.trained.best_model("val_loss", asc=True)
    parts = np.array_split(np.arange(len(X)), 3)
    want = [
        sk.f1_score(Y[p], model.predict(X[p], verbose=0).argmax(-1), average="macro") for p in parts
    ]
    np.testing.assert_allclose(found, want)


@step
def parts_are_shuffled_by_a_seed(kit: Kit):
    evaluate = kit.talos.Evaluate(kit.trained).evaluate
    arguments = {"task": "multi_class", "metric": "val_loss", "folds": 3, "asc": True}
    assert evaluate(X, Y, seed=1, **arguments) == evaluate(X, Y, seed=1, **arguments)


@step
def a_row_is_scored(kit: Kit):
    evaluate = kit.talos.Evaluate(kit.trained).evaluate
    assert len(evaluate(X, Y, "multi_class", "val_loss", model_id=2, folds=2)) == 2


@step
def an_unknown_task(kit: Kit):
    evaluate = kit.talos.Evaluate(kit.trained).evaluate
    raises(ValueError, lambda: evaluate(X, Y, "guess", "val_loss", asc=True))


@step
def more_parts_than_rows(kit: Kit):
    evaluate = kit.talos.Evaluate(kit.sklearn).evaluate
    raises(ValueError, lambda: evaluate(X, Y, "multi_class", "val_loss", folds=91, asc=True))


@step
def models_are_scored_into_the_table(kit: Kit):
    scan = kit.trained
    scan.evaluate_models(X, Y, "multi_class", n_models=2, metric="val_loss", folds=2, asc=True)
    assert scan.data["eval_f1score_mean"].notna().sum() == 2
    assert scan.data["eval_f1score_std"].notna().sum() == 2


@step
def scores_of_one_column_of_outputs(kit: Kit):
    score = kit.module("commands.evaluate").score
    assert score(np.array([0, 1, 1]), np.array([[0.2], [0.9], [0.6]]), "binary") == 1.0


@step
def scores_of_labels_in_columns(kit: Kit):
    score = kit.module("commands.evaluate").score
    found = score(np.eye(2), np.array([[0.9, 0.1], [0.6, 0.4]]), "multi_label")
    assert abs(found - 1 / 3) < 1e-9


@step
def scores_of_numbers(kit: Kit):
    score = kit.module("commands.evaluate").score
    assert score(np.array([1.0, 3.0]), np.array([[2.0], [3.5]]), "continuous") == 0.75


@step
def outputs_are_predicted(kit: Kit):
    found = kit.talos.Predict(kit.trained).predict(X, "val_loss", True)
    want = kit.trained.best_model("val_loss", asc=True).predict(X, verbose=0)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


@step
def classes_are_predicted(kit: Kit):
    predict = kit.talos.Predict(kit.trained)
    found = predict.predict_classes(X, "val_loss", True, "multi_class")
    np.testing.assert_array_equal(found, predict.predict(X, "val_loss", True).argmax(-1))


@step
def the_old_functions_of_scan_addon(kit: Kit):
    addon = kit.module("scan.scan_addon")
    model = addon.func_best_model(kit.sklearn, metric="val_loss", asc=True)
    assert model is kit.sklearn.best_model("val_loss", asc=True)


@step
def the_old_functions_of_best_model(kit: Kit):
    found = kit.module("utils.best_model")
    row = found.best_model(kit.sklearn, "val_loss", True)
    assert row == kit.sklearn.data["val_loss"].idxmin()
    assert found.activate_model(kit.sklearn, row).predict(X).shape == (90,)


@step
def load_model_reads_a_file(kit: Kit):
    path = kit.new("model").with_suffix(".keras")
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])
    model.save(path)
    found = kit.module("utils.load_model").load_model(str(path), backend="keras")
    np.testing.assert_allclose(found.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-6)


# -- Deploy, Restore -------------------------------------------------------------------------------


@step
def deploy_writes_an_archive(kit: Kit):
    found = kit.talos.Deploy(kit.trained, kit.new("deploy"), "val_acc")
    assert str(found.path).endswith(".zip")


@step
def restore_gives_the_model(kit: Kit):
    want = kit.trained.best_model("val_acc").predict(X, verbose=0)
    np.testing.assert_allclose(kit.restored.model.predict(X, verbose=0), want, rtol=1e-5)


@step
def restore_gives_the_results(kit: Kit):
    assert kit.restored.results["lr"].tolist() == [0.001, 0.03, 0.001, 0.03]
    assert kit.restored.data is kit.restored.results


@step
def restore_gives_params_with_tuples(kit: Kit):
    assert kit.restored.params["dropout"] == (0.1, 0.5, 2)
    assert kit.restored.params["lr"] == [0.001, 0.03]


@step
def restore_gives_optimizers(kit: Kit):
    params = {"optimizer": [ADAM, ADAGRAD], "size": [(3, 3)]}
    scan = kit.scan(params, kit_dense, seed=4)
    path = kit.talos.Deploy(scan, kit.new("deploy"), "val_loss", asc=True).path
    assert kit.talos.Restore(path).params == params


def kit_dense(x_train, y_train, x_val, y_val, params):
    """A small model, with a metric of the user's own."""
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=[my_metric])
    history = model.fit(x_train, y_train, validation_data=(x_val, y_val), epochs=1, verbose=0)
    return history, model


@step
def restore_gives_a_model_with_own_metrics(kit: Kit):
    scan = kit.scan({"a": [1]}, kit_dense, seed=4)
    path = kit.talos.Deploy(scan, kit.new("deploy"), "val_loss", asc=True).path
    outputs = kit.talos.Restore(path).model.predict(X, verbose=0)
    want = scan.best_model("val_loss", asc=True).predict(X, verbose=0)
    np.testing.assert_allclose(outputs, want, rtol=1e-5)


@step
def restore_gives_details(kit: Kit):
    assert kit.restored.details["experiment_name"] == kit.trained.details["experiment_name"]


@step
def restore_gives_examples(kit: Kit):
    np.testing.assert_array_equal(kit.restored.x, X[:100])
    np.testing.assert_array_equal(kit.restored.y, Y[:100])


@step
def restore_gives_histories(kit: Kit):
    assert kit.restored.round_history == kit.trained.round_history


@step
def a_restored_model_is_evaluated(kit: Kit):
    found = kit.talos.Evaluate(kit.restored).evaluate(X, Y, "multi_class", "val_acc", folds=2)
    assert len(found) == 2


@step
def a_restored_scan_is_reported(kit: Kit):
    assert kit.talos.Analyze(kit.restored).rounds() == 4


@step
def deploy_packs_a_model_of_sklearn(kit: Kit):
    path = kit.talos.Deploy(kit.sklearn, kit.new("deploy"), "val_loss", asc=True).path
    assert kit.talos.Restore(path).model.predict(X).shape == (90,)


@step
def restore_gives_functions_of_the_users_own(kit: Kit):
    scan = kit.scan({"function": [my_metric]}, kit_dense, seed=4)
    path = kit.talos.Deploy(scan, kit.new("deploy"), "val_loss", asc=True).path
    assert kit.talos.Restore(path).params["function"] == [my_metric]


# -- metrics by hand -------------------------------------------------------------------------------

TRUTH = np.array([0, 1, 1, 0, 1, 1])
OUTPUTS = np.array([[0.2], [0.9], [0.3], [0.7], [0.8], [0.6]], "float32")
FOUND = (OUTPUTS[:, 0] >= 0.5).astype(int)
PAIRS = np.hstack([1 - OUTPUTS, OUTPUTS])


def metrics(kit: Kit):
    return kit.talos.utils.metrics


def near(value, want) -> bool:
    return bool(np.allclose(np.asarray(value), want, atol=1e-6))


@step
def f1score_by_hand(kit: Kit):
    assert near(metrics(kit).f1score(TRUTH, OUTPUTS), sk.f1_score(TRUTH, FOUND))


@step
def precision_by_hand(kit: Kit):
    assert near(metrics(kit).precision(TRUTH, OUTPUTS), sk.precision_score(TRUTH, FOUND))


@step
def recall_by_hand(kit: Kit):
    assert near(metrics(kit).recall(TRUTH, OUTPUTS), sk.recall_score(TRUTH, FOUND))


@step
def matthews_by_hand(kit: Kit):
    assert near(metrics(kit).matthews(TRUTH, OUTPUTS), sk.matthews_corrcoef(TRUTH, FOUND))


@step
def fbeta_by_hand(kit: Kit):
    assert near(metrics(kit).fbeta(TRUTH, OUTPUTS), sk.fbeta_score(TRUTH, FOUND, beta=1))
    assert near(metrics(kit).fbeta(TRUTH, OUTPUTS, 2), sk.fbeta_score(TRUTH, FOUND, beta=2))


@step
def fbeta_by_hand_with_a_name(kit: Kit):
    found = metrics(kit).fbeta(TRUTH, OUTPUTS, beta=0.5)
    assert near(found, sk.fbeta_score(TRUTH, FOUND, beta=0.5))


@step
def a_negative_beta(kit: Kit):
    raises(ValueError, lambda: metrics(kit).fbeta(TRUTH, OUTPUTS, beta=-1))


@step
def two_columns_are_two_classes(kit: Kit):
    want = sk.f1_score(TRUTH, FOUND, average="macro")
    assert near(metrics(kit).f1score(TRUTH, PAIRS), want)


@step
def metrics_count_over_batches(kit: Kit):
    metric = metrics(kit).classification_metric("f1score")
    for start in (0, 2, 4):
        metric.update_state(TRUTH[start : start + 2], OUTPUTS[start : start + 2])
    assert near(metric.result(), sk.f1_score(TRUTH, FOUND))


@step
def metrics_of_numbers_by_hand(kit: Kit):
    truth, found = np.array([[1.0], [2.0]], "float32"), np.array([[1.5], [4.0]], "float32")
    m = metrics(kit)
    assert near(m.mae(truth, found), [0.5, 2.0])
    assert near(m.mse(truth, found), [0.25, 4.0])
    assert near(m.mape(truth, found), [50, 100])


@step
def roots_of_metrics_by_hand(kit: Kit):
    truth, found = np.array([[1.0], [2.0]], "float32"), np.array([[1.5], [4.0]], "float32")
    m = metrics(kit)
    assert near(m.rmae(truth, found), np.sqrt([0.5, 2.0]))
    assert near(m.rmse(truth, found), [0.5, 2.0])
    assert near(m.rmsle(truth, found), np.abs(np.log1p([1.5, 4.0]) - np.log1p([1.0, 2.0])))


@step
def metrics_in_a_model(kit: Kit):
    m = metrics(kit)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=[m.f1score, m.fbeta])
    history = model.fit(X, Y, epochs=1, verbose=0).history
    assert set(history) == {"loss", "f1score", "fbeta"}


# -- utils -----------------------------------------------------------------------------------------


@step
def data_are_split(kit: Kit):
    found = kit.talos.utils.val_split(X, Y, 0.2)
    assert [len(part) for part in found] == [72, 72, 18, 18]


@step
def data_are_split_in_order(kit: Kit):
    found = kit.talos.utils.val_split(X, Y, 0.2, shuffled=False)
    np.testing.assert_array_equal(found[2], X[72:])


@step
def splits_follow_a_seed(kit: Kit):
    one, other = (kit.talos.utils.val_split(X, Y, 0.2, seed=3)[2] for _ in range(2))
    np.testing.assert_array_equal(one, other)


@step
def columns_are_rescaled(kit: Kit):
    found = kit.talos.utils.rescale_meanzero(np.array([[1.0, 5.0], [3.0, 5.0]]))
    assert near(found, [[-(0.5**0.5), 0], [0.5**0.5, 0]])


@step
def generators_give_batches(kit: Kit):
    batches = kit.talos.utils.generator(X, Y, 50)
    assert [len(next(batches)[0]) for _ in range(3)] == [50, 40, 50]


@step
def early_stoppers_have_presets(kit: Kit):
    made = [kit.talos.utils.early_stopper(30, mode=m) for m in ("lazy", "moderate", "strict")]
    assert [each.patience for each in made] == [10, 3, 2]


@step
def early_stoppers_take_numbers(kit: Kit):
    made = kit.talos.utils.early_stopper(30, mode=[0.1, 7])
    assert (made.patience, abs(made.min_delta)) == (7, 0.1)


@step
def early_stoppers_refuse_other_modes(kit: Kit):
    raises(ValueError, lambda: kit.talos.utils.early_stopper(30, mode="calm"))


@step
def learning_rates_are_normalized(kit: Kit):
    assert kit.talos.utils.lr_normalizer(2, ADAM) == 0.002


@step
def learning_rates_of_unknown_optimizers(kit: Kit):
    kind = kit.module("utils.exceptions").TalosModelError
    raises(kind, lambda: kit.talos.utils.lr_normalizer(1, "test"))


@step
def hidden_layers_are_added(kit: Kit):
    params = {"hidden_layers": 2, "first_neuron": 8, "shapes": "brick", "dropout": 0.3}
    model = keras.Sequential([keras.Input((4,))])
    kit.talos.utils.hidden_layers(model, params | {"activation": "elu"}, 1)
    assert [type(layer).__name__ for layer in model.layers] == ["Dense", "Dropout"] * 2


@step
def torch_is_not_imported(kit: Kit):
    history = kit.talos.utils.TorchHistory()
    history.append_metric(1.0)
    history.append_val_metric(2.0)
    assert history.history == {"metric": [1.0], "val_metric": [2.0]}
    history.init_history()
    assert history.history == {}
    assert "torch" not in sys.modules


@step
def a_space_of_a_log(kit: Kit):
    found = kit.module("utils.test_utils").create_param_space(TABLE, 3)
    assert found.p["units"] == [8, 4]


@step
def models_are_recovered(kit: Kit):
    table, models = kit.module("utils.recover_best_model").recover_best_model(
        X,
        Y,
        X,
        Y,
        kit.sklearn.run_dir / "results.csv",
        logistic,
        "val_loss",
        n_models=1,
        task="multi_class",
        folds=3,
    )
    assert len(models) == 1
    assert 0 <= table["crossval_mean_f1score"].iloc[0] <= 1


@step
def recovered_params_are_those_of_the_scan(kit: Kit):
    seen = []

    def function(x_train, y_train, x_val, y_val, params):
        seen.append(params)
        return SimpleNamespace(history={"loss": [1.0]}), kit.sklearn.best_model("val_loss", True)

    kit.module("utils.recover_best_model").recover_best_model(
        X,
        Y,
        X,
        Y,
        kit.odd.run_dir / "results.csv",
        function,
        "val_acc",
        n_models=1,
        task="multi_class",
        folds=2,
    )
    assert seen == [{"loss": 0.25, "optimizer": ADAM, "size": (3, 3), "rate": 0.1}]


@step
def logs_of_epochs(kit: Kit):
    log = kit.talos.callbacks.ExperimentLog(str(kit.new("epochs")), {"units": 3})
    log.on_train_begin()
    log.on_epoch_end(0, {"loss": 1.0})
    assert pd.read_csv(log.name)["loss"].tolist() == [1.0]


@step
def power_is_noted(kit: Kit):
    draw = kit.talos.callbacks.PowerDraw(provider=lambda: 5.0)
    draw.on_train_begin()
    draw.on_epoch_begin(0)
    draw.on_epoch_end(0)
    history = SimpleNamespace(history={})
    found = kit.talos.utils.power_draw_append(history, draw).history
    assert (found["watts_min"], found["watts_max"]) == ([5.0], [5.0])


@step
def params_of_templates(kit: Kit):
    found = kit.talos.templates.params.titanic(debug=True)
    assert found["first_neuron"] == [4, 8]
    assert set(kit.talos.templates.params.cervical_cancer()) >= {"lr", "dropout", "losses"}


@step
def auto_params(kit: Kit):
    params = kit.talos.autom8.AutoParams(task="continuous").params
    assert params["losses"] == ["mae"]


@step
def results_are_json(kit: Kit):
    scan = kit.scan({"a": [1]}, numbers)
    assert json.loads(json.dumps(scan.round_history)) == scan.round_history
