"""The text that ends a search."""

from __future__ import annotations

from paceline.report import summary

RESULT = {
    "study": "digits",
    "n_trials": {"complete": 31, "pruned": 0, "failed": 1, "running": 0},
    "best": {
        "number": 17,
        "value": 0.97222,
        "hparams": {"dropout": 0.2131231, "lr": 0.004},
        "epochs": 10,
    },
    "seconds": {"total": 4.21, "train": 2.5},
    "programs": {"distinct": 1, "compiled": 2, "from_cache": 0},
    "plans": ["vectorized"],
}


def test_a_summary_says_how_it_went_what_is_best_and_what_is_next():
    steps = [("paceline best digits", "this again"), ("paceline trials digits", "every trial")]
    assert summary.search_summary(RESULT, "val_accuracy", steps) == (
        "digits: 32 trials (31 complete, 1 failed) in 4.2 s, 1 program (2 steps compiled, 0 from "
        "the cache)\n"
        "\n"
        "Best: val_accuracy 0.9722, trial 17, 10 epochs\n"
        "  dropout  0.213123\n"
        "  lr       0.004\n"
        "\n"
        "Next:\n"
        "  paceline best digits    this again\n"
        "  paceline trials digits  every trial"
    )


def test_structures_that_share_programs_are_counted():
    result = {**RESULT, "programs": {**RESULT["programs"], "structures": 31}}
    text = summary.search_summary(result, "val_accuracy", [])
    assert ", 1 program for 31 structures (2 steps compiled, 0 from the cache)" in text
    result["programs"]["structures"] = 1
    assert ", 1 program (2 steps" in summary.search_summary(result, "val_accuracy", [])


def test_a_search_without_a_value_says_so():
    result = {**RESULT, "best": None, "n_trials": {"complete": 0, "running": 0}}
    text = summary.search_summary(result, "val_loss", [("paceline trials d", "every trial")])
    assert text.startswith("digits: 0 trials (none) in 4.2 s")
    assert "No trial is validated for an epoch yet, so there is no best val_loss." in text
    best = {**RESULT["best"], "state": "running", "epochs": 8, "best_epoch": 7}
    text = summary.search_summary({**RESULT, "best": best}, "val_accuracy", [])
    assert f"trial {best['number']}, epoch 7 of 8, unfinished" in text


def test_a_finished_study_shown_again_took_no_time():
    result = {**RESULT, "seconds": {"total": 0.7, "train": 0.0}, "programs": {"distinct": 0}}
    text = summary.search_summary(result, "val_accuracy", [])
    assert text.startswith("digits: 32 trials (31 complete, 1 failed)\n")


def test_a_model_without_hyperparameters_has_a_best_too():
    best = {"number": 0, "value": 0.5, "hparams": {}, "epochs": 1}
    assert summary.best_text(best, "val_loss") == "Best: val_loss 0.5000, trial 0, 1 epoch"


def test_the_best_value_is_of_an_epoch_and_ties_are_named():
    best = {"number": 4, "value": 0.5, "hparams": {}, "epochs": 200, "best_epoch": 17}
    assert summary.best_text(best, "val_loss") == "Best: val_loss 0.5000, trial 4, epoch 17 of 200"
    text = summary.best_text({**best, "ties": [7]}, "val_loss")
    assert text.endswith("epoch 17 of 200; 1 other trial reached the same (7)")
    text = summary.best_text({**best, "ties": [7, 8, 9, 10]}, "val_loss")
    assert text.endswith("; 4 other trials reached the same (7, 8, 9, ...)")


def test_at_the_end_no_trial_runs_any_more():
    result = {**RESULT, "n_trials": {"complete": 2, "running": 3}}
    text = summary.search_summary(result, "val_accuracy", [])
    assert text.startswith("digits: 5 trials (2 complete, 3 unfinished) in ")


def test_trials_that_a_pruner_ended_are_said_to_have_stopped_early():
    result = {**RESULT, "n_trials": {"complete": 2, "pruned": 198}}
    text = summary.search_summary(result, "val_accuracy", [])
    assert text.startswith("digits: 200 trials (2 complete, 198 stopped early) in ")
