"""How many sessions a search is, and where to stop."""

from __future__ import annotations

import pytest

from paceline.benchmark.presentation.quota import check_quota, most_trials, sentences, sessions
from paceline.benchmark.records import PlannedSearch
from paceline.cli.arguments import timeout_seconds
from paceline.errors import UsageError
from paceline.report.forecast import Costs, Pace, predict

HOUR = 3600.0
#: 100 trials of 10 epochs take 10 hours and 6 minutes.
COSTS = Costs(32, ready=300.0, pace=Pace(10, 360.0), finish=60.0)


def test_a_quota_is_read():
    assert check_quota("gpu=30h, tpu=20h,session=9h30m") == {
        "gpu": 30 * HOUR,
        "tpu": 20 * HOUR,
        "session": 9.5 * HOUR,
    }
    assert check_quota({"session": 60}) == {"session": 60.0}
    assert check_quota(None) == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("npu=3h", "quota must be for cpu, gpu, tpu, session, such as gpu=30h, got 'npu'"),
        ("gpu=often", "quota: gpu must be a time above 0, such as gpu=9h or 90m, got often"),
        ("gpu", "quota: gpu must be a time above 0, such as gpu=9h or 90m, got "),
        ("gpu=0h", "gpu=9h or 90m, got 0h"),
        ({"session": -1}, "session=9h or 90m, got -1"),
        ("gpu=30", "gpu=9h or 90m, got 30"),
        ("gpu=30h, gpu=1h", "quota: gpu appears twice. Use each name once"),
        ({"gpu": 1e13}, r"quota: gpu must be at most 1e\+12 seconds, got 10000000000000\.0"),
    ],
)
def test_a_quota_that_cannot_be(given, message):
    with pytest.raises(UsageError, match=message):
        check_quota(given)


def plan(n_trials=100, **quota):
    return sessions(COSTS, "tpu", PlannedSearch(n_trials, 10, quota=quota))


def test_what_fits_into_a_session_is_one():
    found = plan(session=11 * HOUR)
    assert (found.count, found.stop_after, found.within_quota) == (1, None, None)


def test_what_does_not_fit_is_stopped_in_time():
    found = plan(session=9 * HOUR)
    assert found.count == 2
    assert found.stop_after == pytest.approx(0.95 * 9 * HOUR)
    # 10 trials take an hour: 8 rounds of 10 within 8.55 h less the 5 minutes to get ready
    assert found.trials_first == 80
    assert predict(COSTS, 80, 10).total <= found.stop_after < predict(COSTS, 90, 10).total


def test_the_hours_of_a_week():
    assert plan(tpu=20 * HOUR, session=9 * HOUR).within_quota is True
    found = plan(n_trials=300, tpu=20 * HOUR, session=9 * HOUR)
    assert found.within_quota is False
    assert found.trials_within == 190
    assert found.count == 4


def test_another_platforms_hours_do_not_matter():
    assert plan(gpu=1 * HOUR).within_quota is None


def test_a_session_too_short_to_begin():
    assert plan(session=200.0).count == 0


def test_getting_ready_counts_once_per_session_in_both_figures_of_a_week():
    slow = Costs(32, ready=HOUR, pace=Pace(8, 787.5))  # 64 trials: 17.5 h and an hour per session
    quota = {"gpu": 20 * HOUR, "session": 9 * HOUR}
    found = sessions(slow, "gpu", PlannedSearch(64, 10, quota=quota))
    assert (found.count, found.within_quota) == (3, False)
    assert found.trials_within < 64


def test_a_session_ends_a_whole_number_of_rounds():
    long = Costs(32, ready=1.0, pace=Pace(4, 1000.0))  # a session of 30 minutes: stopped after 28
    found = sessions(long, "gpu", PlannedSearch(8, 10, quota={"session": 0.5 * HOUR}))
    assert found.count == 20  # a round each


def test_a_session_too_short_for_a_round():
    long = Costs(32, ready=1.0, pace=Pace(4, 3000.0))
    assert sessions(long, "gpu", PlannedSearch(8, 10, quota={"session": 0.5 * HOUR})).count == 0


def test_rounds_that_take_no_time():
    still = Costs(32, ready=30.0, pace=Pace(4, 0.0), finish=200.0)
    assert sessions(still, "gpu", PlannedSearch(8, 10, quota={"session": 200.0})).count == 3


def test_the_most_trials_in_a_time():
    assert most_trials(COSTS, 100, 10, 1.0, 2 * HOUR + 360) == 20
    assert most_trials(COSTS, 100, 10, 1.0, 10.0) == 0
    assert most_trials(COSTS, 100, 10, 1.0, 0.0) == 0
    assert most_trials(COSTS, 100, 10, 1.0, None) == 100


def said(pruner=None, n_trials=100, costs=COSTS, **quota):
    return sentences(costs, "tpu", "tpu", PlannedSearch(n_trials, 10, pruner, quota))


def test_the_parts_are_named():
    (text,) = said()
    assert text == (
        "100 trials of 10 epochs at batch 32 take about 10:06:00 on tpu: 5:00 until trials "
        "train (building, tracing, compiling); 10:00:00 in 100 rounds of 360 s, 10 trials "
        "at once; 1:00 at the end."
    )


def test_sessions_are_explained():
    text = " ".join(said(session=9 * HOUR, tpu=20 * HOUR))
    assert (
        "That is 2 sessions on tpu: stop each with --timeout 8h33m, the first after about 80 "
        "trials, and continue with `paceline resume`."
    ) in text
    assert "It fits into a week's 20:00:00 of tpu." in text
    text = " ".join(said(n_trials=300, session=9 * HOUR, tpu=20 * HOUR))
    assert "It does not fit into a week's 20:00:00 of tpu: about 190 trials fit." in text
    assert "That fits into one session" in " ".join(said(session=11 * HOUR))
    assert "too short to get ready" in " ".join(said(session=200.0))


@pytest.mark.parametrize(
    ("session", "timeout"),
    [(100.0, "50s"), (190.5, "95s"), (30 * 60.0, "28m"), (2 * HOUR + 30, "1h54m")],
)
def test_the_timeout_that_is_printed_is_the_one_that_was_counted_with(session, timeout):
    quick = Costs(32, ready=1.0, pace=Pace(1, 10.0))
    found = sessions(quick, "tpu", PlannedSearch(1000, 10, quota={"session": session}))
    assert found.stop_after == timeout_seconds(timeout)
    text = said(costs=quick, n_trials=1000, session=session)[1]
    assert f"stop each with --timeout {timeout}, the first after" in text


def test_a_platform_without_a_limit_is_said_to_have_none():
    assert said(gpu=1 * HOUR)[1:] == ["The quota has no limit for tpu."]


def test_what_is_not_known_of_a_pruner_is_said():
    assert "an upper limit without any pruning" in " ".join(said("median"))
    assert "counted with 24% of all epochs" in " ".join(said("asha"))


def test_further_programs_are_said():
    costs = Costs(32, 10.0, Pace(10, 1.0), programs=4.0, compile=5.0)
    assert "15.0 s compiling about 3 further programs" in said(costs=costs)[0]
    assert "5.0 s compiling about 1 further program" in said(costs=costs, n_trials=2)[0]
