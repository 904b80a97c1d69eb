"""Steps on scans: what is tried, the results, the models, going on."""

from __future__ import annotations

import json
from types import SimpleNamespace

import keras
import numpy as np
import pandas as pd

from compat.talos.notebook import X, Y
from compat.talos.steps import (
    ADAM,
    Kit,
    logistic,
    my_loss,
    my_metric,
    numbers,
    raises,
    step,
)

# -- what is tried ---------------------------------------------------------------------------------


@step
def all_permutations_in_order(kit: Kit):
    found = kit.scan({"a": [1, 2], "b": [3, 4]}).data
    assert found[["a", "b"]].to_numpy().tolist() == [[1, 3], [1, 4], [2, 3], [2, 4]]


@step
def tuples_are_ranges(kit: Kit):
    assert kit.scan({"a": (0, 10, 5), "b": [1]}).data["a"].tolist() == [0, 2, 4, 6, 8]


@step
def round_limit_limits(kit: Kit):
    assert len(kit.scan({"a": list(range(20))}, round_limit=3).data) == 3


@step
def fraction_limit_limits(kit: Kit):
    assert len(kit.scan({"a": list(range(20))}, fraction_limit=0.25).data) == 5


@step
def boolean_limit_limits(kit: Kit):
    found = kit.scan({"a": [1, 2, 3]}, boolean_limit=lambda params: params["a"] != 2)
    assert found.data["a"].tolist() == [1, 3]


@step
def time_limit_of_the_past_trains_nothing(kit: Kit):
    found = kit.scan({"a": [1, 2]}, time_limit="2020-01-01 00:00")
    assert len(found.data) == 0
    assert found.status == "paused"


@step
def time_limit_of_the_future_trains_all(kit: Kit):
    assert len(kit.scan({"a": [1, 2]}, time_limit="2999-01-01 00:00").data) == 2


@step
def seed_draws_pythons_sample(kit: Kit):
    import random

    found = kit.scan({"a": list(range(50))}, round_limit=5, seed=3).data["a"].tolist()
    assert found == random.Random(3).sample(range(50), 5)


@step
def a_param_space_is_taken(kit: Kit):
    space = kit.module("parameters.ParamSpace").ParamSpace({"a": [1, 2, 3]}, ["a"])
    space.remove_is("a", 2)
    assert kit.scan(space).data["a"].tolist() == [1, 3]


@step
def a_part_for_one_machine_is_taken(kit: Kit):
    kind = kit.module("parameters.DistributeParamSpace").DistributeParamSpace
    parts = kind({"a": list(range(6))}, machines=3, seed=1).param_spaces
    assert len(kit.scan(parts[1]).data) == 2


@step
def a_parameter_called_like_a_metric(kit: Kit):
    assert kit.odd.data["param__loss"].tolist() == [0.5, 0.5, 0.25, 0.25]
    assert kit.odd.parameter_columns["loss"] == "param__loss"


@step
def a_metric_keeps_its_column(kit: Kit):
    assert kit.odd.data["loss"].tolist() == [h["loss"][-1] for h in kit.odd.round_history]


@step
def a_parameter_called_like_a_time(kit: Kit):
    assert kit.scan({"start": [9]}).data["param__start"].tolist() == [9]


@step
def classes_stay_classes(kit: Kit):
    assert kit.odd.data["optimizer"].tolist() == [ADAM] * 4
    assert kit.odd.data["size"].tolist() == [(3, 3)] * 4


@step
def validation_data_may_be_given(kit: Kit):
    def function(x_train, y_train, x_val, y_val, params):
        return {"loss": [float(len(x_train) + len(x_val))]}, None

    found = kit.scan({"a": [1]}, function, x_val=X[:7], y_val=Y[:7])
    assert found.data["loss"].tolist() == [97.0]


@step
def a_share_validates(kit: Kit):
    def function(x_train, y_train, x_val, y_val, params):
        return {"loss": [float(len(x_val))]}, None

    assert kit.scan({"a": [1]}, function, val_split=0.2).data["loss"].tolist() == [18.0]


@step
def seed_decides_the_split(kit: Kit):
    order = np.random.default_rng(4).permutation(len(X))
    np.testing.assert_array_equal(kit.sklearn.x_train, X[order[:62]])
    np.testing.assert_array_equal(kit.sklearn.y_val, Y[order[62:]])


@step
def several_inputs(kit: Kit):
    def function(x_train, y_train, x_val, y_val, params):
        return {"loss": [float(len(x_train))]}, None

    found = kit.talos.Scan(
        [X, X[:, :2]],
        Y,
        {"a": [1]},
        function,
        str(kit.new()),
        multi_input=True,
        disable_progress_bar=True,
    )
    assert found.data["loss"].tolist() == [2.0]
    assert found.details["x_shape"] == "multi-input"


# -- errors ----------------------------------------------------------------------------------------


@step
def model_must_be_a_function(kit: Kit):
    raises(TypeError, lambda: kit.scan({"a": [1]}, "model"))


@step
def params_must_be_a_dictionary(kit: Kit):
    raises(TypeError, lambda: kit.scan([1, 2]))


@step
def values_must_be_a_list(kit: Kit):
    raises(TypeError, lambda: kit.scan({"a": 3}))


@step
def a_range_needs_three_numbers(kit: Kit):
    raises(ValueError, lambda: kit.scan({"a": (1, 2)}))


@step
def validation_data_come_in_pairs(kit: Kit):
    raises(ValueError, lambda: kit.scan({"a": [1]}, x_val=X))


@step
def val_split_is_a_share(kit: Kit):
    raises(ValueError, lambda: kit.scan({"a": [1]}, val_split=1.5))


@step
def lists_need_multi_input(kit: Kit):
    def scan():
        kit.talos.Scan([X, X], Y, {"a": [1]}, numbers, str(kit.new()), disable_progress_bar=True)

    raises(TypeError, scan)


@step
def random_method_must_be_known(kit: Kit):
    raises(ValueError, lambda: kit.scan({"a": [1, 2]}, round_limit=1, random_method="dice"))


@step
def a_result_of_another_kind(kit: Kit):
    raises(TypeError, lambda: kit.scan({"a": [1]}, lambda *arguments: 3))


@step
def a_history_without_numbers(kit: Kit):
    raises(TypeError, lambda: kit.scan({"a": [1]}, lambda *arguments: ({"loss": ["high"]}, None)))


@step
def the_users_error_keeps_its_type(kit: Kit):
    def function(x_train, y_train, x_val, y_val, params):
        raise ZeroDivisionError(f"number {params['a']}")

    raises(ZeroDivisionError, lambda: kit.scan({"a": [1, 2]}, function), "number 1")


# -- results ---------------------------------------------------------------------------------------


@step
def columns_of_times(kit: Kit):
    assert {"start", "end", "duration", "round_epochs"} <= set(kit.trained.data)


@step
def columns_of_metrics_and_params(kit: Kit):
    names = {"loss", "acc", "val_loss", "val_acc", "first_neuron", "dropout", "lr", "epochs"}
    assert names <= set(kit.trained.data)


@step
def rows_are_in_order(kit: Kit):
    assert kit.trained.data["lr"].tolist() == [0.001, 0.03, 0.001, 0.03]


@step
def epochs_are_counted(kit: Kit):
    assert kit.trained.data["round_epochs"].tolist() == [2] * 4


@step
def data_have_the_last_epoch(kit: Kit):
    last = [history["val_loss"][-1] for history in kit.trained.round_history]
    assert kit.trained.data["val_loss"].tolist() == last


@step
def histories_have_all_epochs(kit: Kit):
    assert [len(history["loss"]) for history in kit.trained.round_history] == [2] * 4


@step
def times_of_rounds(kit: Kit):
    assert list(kit.trained.round_times) == ["start", "end", "duration"]
    assert len(kit.trained.round_times) == 4


@step
def entropies(kit: Kit):
    assert set(kit.trained.learning_entropy) == {"loss", "acc"}
    assert len(kit.trained.learning_entropy) == 4


@step
def details_name_the_settings(kit: Kit):
    details = kit.trained.details
    assert details["random_method"] == "uniform_mersenne"
    assert details["reduction_method"] is None
    assert details["x_shape"] == (90, 6)
    assert details["rounds"] == 4


@step
def x_and_params_are_as_given(kit: Kit):
    assert kit.trained.x is X
    assert kit.trained.params["lr"] == [0.001, 0.03]


@step
def models_as_json(kit: Kit):
    found = [json.loads(text)["class_name"] for text in kit.trained.saved_models]
    assert found == ["Sequential"] * 4


@step
def weights_of_models(kit: Kit):
    assert [len(weights) for weights in kit.trained.saved_weights] == [4] * 4


@step
def results_may_be_a_dictionary(kit: Kit):
    def function(x_train, y_train, x_val, y_val, params):
        return {"val_loss": 1.0 * params["a"], "history": {"loss": [3.0, 2.0]}}

    found = kit.scan({"a": [1, 2]}, function)
    assert found.data["val_loss"].tolist() == [1.0, 2.0]
    assert found.data["loss"].tolist() == [2.0, 2.0]


@step
def a_torch_module_may_hold_the_history(kit: Kit):
    class Module(kit.talos.utils.TorchHistory):
        def state_dict(self):
            return {}

    def function(x_train, y_train, x_val, y_val, params):
        module = Module()
        module.init_history()
        module.append_loss(2.0)
        module.append_val_loss(1.5)
        return module, iter(())

    arguments = {"save_weights": False, "clear_session": False}
    found = kit.scan({"a": [1]}, function, **arguments)
    assert found.data[["loss", "val_loss"]].to_numpy().tolist() == [[2.0, 1.5]]


@step
def a_target_is_reached(kit: Kit):
    found = kit.scan({"a": [3, 2, 1, 0]}, performance_target=["loss", 1.5, True])
    assert found.data["loss"].min() <= 1.5


# -- models ----------------------------------------------------------------------------------------


@step
def best_model_is_compiled(kit: Kit):
    model = kit.trained.best_model("val_loss", asc=True)
    assert len(model.evaluate(X, Y, verbose=0)) == 2


@step
def best_model_is_the_best(kit: Kit):
    row = int(kit.trained.data["val_loss"].idxmin())
    model = kit.trained.best_model("val_loss", asc=True)
    for got, want in zip(model.get_weights(), kit.trained.saved_weights[row], strict=True):
        np.testing.assert_array_equal(got, want)


@step
def best_model_without_metric_takes_the_objective(kit: Kit):
    found = kit.scan({"c": [0.1, 1.0]}, logistic, reduction_metric="loss", minimize_loss=True)
    row = int(found.data["loss"].idxmin())
    best = found.best_model(metric=None, asc=None)
    assert found.data["c"][row] == best.C


@step
def best_model_with_own_objects(kit: Kit):
    model = kit.own.best_model("val_loss", asc=True)
    assert model.predict(X, verbose=0).shape == (90, 3)


@step
def best_model_with_own_objects_is_compiled(kit: Kit):
    model = kit.own.best_model("val_loss", asc=True)
    names = set(model.evaluate(X, Y, verbose=0, return_dict=True))
    assert names == {"loss", "acc", "my_metric"}


@step
def own_objects_are_evaluated(kit: Kit):
    found = kit.talos.Evaluate(kit.own).evaluate(X, Y, "multi_class", "val_loss", folds=3, asc=True)
    assert len(found) == 3


@step
def own_objects_predict(kit: Kit):
    assert kit.talos.Predict(kit.own).predict(X, "val_loss", True).shape == (90, 3)


@step
def models_of_own_objects_are_scored_into_the_table(kit: Kit):
    kit.own.evaluate_models(X, Y, "multi_class", n_models=1, metric="val_loss", folds=2, asc=True)
    assert kit.own.data["eval_f1score_mean"].notna().sum() == 1


@step
def best_model_from_its_file(kit: Kit):
    found = kit.scan(
        {"first_neuron": [3], "dropout": [0.1], "lr": [0.01], "epochs": [1]},
        kit_classifier,
        save_models=True,
    )
    outputs = found.best_model("val_loss", asc=True, saved=True).predict(X, verbose=0)
    again = kit.talos.Predict(found).predict(X, "val_loss", True, saved=True)
    np.testing.assert_allclose(outputs, again, rtol=1e-5, atol=1e-6)


def kit_classifier(x_train, y_train, x_val, y_val, params):
    """A model with a metric of the user's own."""
    model = keras.Sequential([keras.layers.Dense(3, "softmax")])
    model.compile("sgd", my_loss, metrics=[my_metric])
    history = model.fit(x_train, y_train, validation_data=(x_val, y_val), epochs=1, verbose=0)
    return history, model


@step
def models_that_were_not_kept(kit: Kit):
    found = kit.scan({"c": [1.0]}, logistic, save_weights=False)
    raises(ValueError, lambda: found.best_model("val_loss", asc=True))


@step
def a_model_of_sklearn_is_kept(kit: Kit):
    assert kit.sklearn.best_model("val_loss", asc=True).predict(X).shape == (90,)


@step
def a_model_of_sklearn_has_no_weights(kit: Kit):
    assert kit.sklearn.saved_models == kit.sklearn.saved_weights == [None, None]


@step
def a_model_of_sklearn_predicts(kit: Kit):
    found = kit.talos.Predict(kit.sklearn).predict(X, "val_loss", True)
    want = kit.sklearn.best_model("val_loss", asc=True).predict(X)
    np.testing.assert_array_equal(found, want)


@step
def a_model_of_sklearn_predicts_classes(kit: Kit):
    found = kit.talos.Predict(kit.sklearn).predict_classes(X, "val_loss", True, "multi_class")
    assert set(np.unique(found)) <= {0, 1, 2}


@step
def a_model_of_sklearn_is_evaluated(kit: Kit):
    evaluate = kit.talos.Evaluate(kit.sklearn).evaluate
    found = evaluate(X, Y, "multi_class", "val_loss", folds=4, asc=True, seed=1)
    assert len(found) == 4
    assert all(0 <= value <= 1 for value in found)


@step
def a_table_of_sklearn_is_scored(kit: Kit):
    scan = kit.sklearn
    scan.evaluate_models(X, Y, "multi_class", metric="val_loss", folds=2, asc=True, seed=1)
    assert scan.data["eval_f1score_mean"].notna().all()


# -- folders and going on --------------------------------------------------------------------------


def run(kit: Kit, folder, **options):
    params = {"c": [0.1, 1.0, 10.0]}
    return kit.scan(params, logistic, seed=3, experiment_dir=folder, **options)


@step
def a_folder_has_results(kit: Kit):
    found = run(kit, kit.new("run"))
    table = pd.read_csv(found.run_dir / "results.csv")
    assert table["c"].tolist() == [0.1, 1.0, 10.0]
    assert found.status == "complete"


@step
def a_folder_has_metadata(kit: Kit):
    found = run(kit, kit.new("run"))
    metadata = json.loads((found.run_dir / "metadata.json").read_text())
    assert metadata["params"] == {"c": [0.1, 1.0, 10.0]}
    assert metadata["details"]["status"] == "complete"
    assert len(metadata["identity_hash"]) == 64


@step
def a_folder_has_a_line_for_each_round(kit: Kit):
    found = run(kit, kit.new("run"))
    text = (found.run_dir / "round_data.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["round_index"] for line in lines] == [0, 1, 2]
    assert [line["history"] for line in lines] == found.round_history


@step
def a_scan_without_a_folder_makes_one(kit: Kit):
    assert (kit.sklearn.run_dir / "results.csv").is_file()
    assert kit.sklearn.run_dir.is_absolute()


@step
def a_folder_must_be_empty(kit: Kit):
    folder = kit.new("run")
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    raises(FileExistsError, lambda: run(kit, folder))


@step
def stop_after_pauses(kit: Kit):
    found = run(kit, kit.new("run"), stop_after=1)
    assert found.status == "paused"
    assert found.data["c"].tolist() == [0.1]


@step
def a_paused_scan_goes_on(kit: Kit):
    folder, whole = kit.new("run"), run(kit, kit.new("run"))
    run(kit, folder, stop_after=1)
    found = run(kit, folder, resume=True)
    assert found.status == "complete"
    assert found.round_history == whole.round_history
    assert found.data["c"].tolist() == [0.1, 1.0, 10.0]


@step
def stop_after_counts_what_was_before(kit: Kit):
    folder = kit.new("run")
    run(kit, folder, stop_after=1)
    assert len(run(kit, folder, resume=True, stop_after=2).data) == 2


@step
def a_complete_scan_may_go_on(kit: Kit):
    folder = kit.new("run")
    run(kit, folder)
    assert len(run(kit, folder, resume=True).data) == 3


@step
def another_seed_may_not_go_on(kit: Kit):
    folder = kit.new("run")
    run(kit, folder, stop_after=1)
    arguments = {"seed": 9, "experiment_dir": folder, "resume": True}
    raises(ValueError, lambda: kit.scan({"c": [0.1, 1.0, 10.0]}, logistic, **arguments), "hash")


@step
def other_data_may_not_go_on(kit: Kit):
    folder = kit.new("run")
    run(kit, folder, stop_after=1)

    def scan():
        return kit.talos.Scan(
            X + 1,
            Y,
            {"c": [0.1, 1.0, 10.0]},
            logistic,
            str(kit.new()),
            seed=3,
            experiment_dir=folder,
            resume=True,
            disable_progress_bar=True,
        )

    raises(ValueError, scan, "hash")


@step
def going_on_needs_a_folder(kit: Kit):
    raises(ValueError, lambda: kit.scan({"a": [1]}, resume=True), "experiment_dir")


@step
def drawn_permutations_stay_the_same(kit: Kit):
    folder, params = kit.new("run"), {"a": list(range(30))}
    arguments = {"round_limit": 4, "experiment_dir": folder, "seed": 2}
    before = kit.scan(params, stop_after=2, **arguments).data["a"].tolist()
    found = kit.scan(params, resume=True, **arguments).data["a"].tolist()
    assert found[:2] == before
    assert len(set(found)) == 4


@step
def going_on_after_an_error(kit: Kit):
    state = SimpleNamespace(broken=True)

    def function(x_train, y_train, x_val, y_val, params):
        if state.broken:
            raise RuntimeError("broken")
        return {"loss": [1.0 * params["a"]]}, None

    folder = kit.new("run")
    arguments = {"experiment_dir": folder, "seed": 2}
    raises(RuntimeError, lambda: kit.scan({"a": [1, 2]}, function, **arguments), "broken")
    state.broken = False
    found = kit.scan({"a": [1, 2]}, function, resume=True, **arguments)
    assert found.data["loss"].tolist() == [1.0, 2.0]


# -- reductions ------------------------------------------------------------------------------------


@step
def a_reducer_of_the_users_own(kit: Kit):
    arguments = {"reduction_method": lambda scan: ("a", 4), "reduction_interval": 2}
    assert kit.scan({"a": [1, 2, 3, 4]}, **arguments).data["a"].tolist() == [1, 2, 3]


@step
def reductions_by_correlation_and_by_trees(kit: Kit):
    for method in ("correlation", "spearman", "pearson", "kendall", "trees", "forrest"):
        found = kit.scan(
            {"bad": [0, 100], "other": list(range(6))},
            reduction_method=method,
            reduction_interval=8,
            reduction_metric="loss",
            minimize_loss=True,
            seed=4,
        )
        assert found.data["bad"].tolist().count(0) == 6, method


@step
def gamify_writes_its_file(kit: Kit):
    found = kit.scan({"a": [1, 2]}, reduction_method="gamify")
    assert len(found.data) == 2
