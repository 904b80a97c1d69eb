"""What follows from hand-made cells."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import bench_records
from bench_records import measurement, run
from paceline.benchmark.presentation.advice import advise, clearly_faster, explain, fastest, way
from paceline.benchmark.records import CellConfig, Measurement


def said(*runs, topic):
    texts = [advice.text for advice in advise(runs) if advice.topic == topic]
    return " ".join(texts)


def test_nothing_measured_nothing_said():
    assert advise([run(Measurement(CellConfig(32), "failed", "no"))]) == []
    assert fastest([run()]) is None


def test_the_fastest_cell_wins():
    text = said(
        run(measurement(32, 1000.0), measurement(64, 5000.0, 16, "vectorized")), topic="fastest"
    )
    assert text.startswith("Fastest: batch 64, vectorized, 16 trials at once: 5,000 examples/s.")
    assert "epoch of 10,000 examples takes 2.00 s as its share" in text


def test_of_a_single_cell_it_is_said_that_nothing_was_compared():
    alone = said(run(measurement(32, 1000.0)), topic="fastest")
    assert alone.endswith("Nothing else was measured to compare it with.")
    on_two = (run(measurement(32, 1000.0)), run(measurement(64, 900.0)))
    assert "Nothing else" not in said(*on_two, topic="fastest")


def test_a_difference_within_the_spread_is_none():
    text = said(
        run(measurement(32, 1000.0, spread=0.1), measurement(64, 1100.0, spread=0.1)),
        topic="fastest",
    )
    assert (
        "Batch 32, sequential, one trial, is equally fast within the accuracy of this measurement"
        in text
    )


@pytest.mark.parametrize(
    ("a", "b", "spread", "clear"),
    [(1.04, 1, 0, False), (1.06, 1, 0, True), (1.15, 1, 0.1, False), (1.25, 1, 0.1, True)],
)
def test_faster_is_more_than_what_timings_scatter(a, b, spread, clear):
    assert (
        clearly_faster(measurement(32, a, spread=spread), measurement(32, b, spread=spread))
        is clear
    )


def rates(**by_size: float):
    return [measurement(int(size[1:]), rate) for size, rate in by_size.items()]


def test_where_a_larger_batch_stops_paying():
    text = said(run(*rates(b32=1000, b64=1800, b128=3000, b256=3100, b512=3050)), topic="batch")
    assert text.startswith("A batch larger than 128 isn't worth it. 128 trains 3.0 times")
    assert "up to 512 there is at most 3% more (sequential, one trial)" in text


def test_a_batch_beyond_which_it_gets_slower():
    text = said(run(*rates(b32=1000, b64=3000, b128=2000)), topic="batch")
    assert "up to 128 there is no more" in text


def test_a_larger_batch_that_still_pays():
    text = said(run(*rates(b32=1000, b64=2000)), topic="batch")
    assert text.startswith("The largest batch is still faster: batch 64 trains 2.0")


def test_a_larger_batch_that_never_pays():
    text = said(run(*rates(b32=1000, b64=1050, b128=900)), topic="batch")
    assert text.startswith(
        "A batch larger than 32 isn't worth it: up to batch 128 the gain is at most"
    )
    assert "5%" in text


def test_one_batch_size_says_nothing_of_others():
    assert said(run(measurement(32, 1000.0)), topic="batch") == ""


def test_packing_that_pays():
    text = said(
        run(
            measurement(32, 1000.0),
            measurement(32, 3900.0, 4, "vectorized"),
            measurement(32, 4000.0, 16, "vectorized"),
            measurement(32, 500.0, plan="fit"),
        ),
        topic="slots",
    )
    assert "vectorized, 4 trials at once, train 3.9 times" in text
    assert "(3,900 and 1,000). More trials at once gain less than 5 %." in text


def test_packing_that_does_not_pay():
    text = said(
        run(measurement(32, 1000.0), measurement(32, 1040.0, 4, "vectorized")), topic="slots"
    )
    assert text.startswith("Training several trials at once isn't faster at batch 32: 1,040")


def test_fit_is_not_what_packing_is_measured_against():
    assert (
        said(
            run(measurement(32, 1.0, plan="fit"), measurement(32, 9.0, 4, "vectorized")),
            topic="slots",
        )
        == ""
    )


def test_the_crossover_between_devices():
    cpu = run(*rates(b32=1000, b128=1200, b512=1300), platform="cpu")
    tpu = run(*rates(b32=500, b128=1190, b512=5200), platform="tpu")
    text = said(cpu, tpu, topic="devices")
    assert text == (
        "cpu is faster up to batch 32 (2.0 times at batch 32), tpu from batch 512 on (4.0 times at "
        "batch 512)."
    )


def test_a_device_that_is_always_faster():
    cpu, gpu = run(*rates(b32=1000, b64=1000)), run(*rates(b32=3000, b64=9000), platform="gpu")
    assert said(cpu, gpu, topic="devices") == (
        "gpu is faster than cpu at every batch size measured: 3.0 times at batch 32, 9.0 times at "
        "batch 64."
    )


def test_devices_that_are_alike():
    a, b = run(measurement(32, 1000.0)), run(measurement(32, 1010.0), platform="gpu")
    assert "equally fast at every batch size" in said(a, b, topic="devices")


def test_devices_without_a_batch_size_in_common():
    a, b = run(measurement(32, 1000.0)), run(measurement(64, 1000.0), platform="gpu")
    assert said(a, b, topic="devices") == ""


def test_backends_are_compared_by_what_both_have():
    jax = run(measurement(32, 9000.0, 16, "vectorized"), measurement(32, 1000.0, plan="fit"))
    tensorflow = run(measurement(32, 2000.0, plan="fit"), backend="tensorflow")
    assert said(jax, tensorflow, topic="backends") == (
        "cpu tensorflow is faster than cpu at every batch size measured: 2.0 times at batch 32."
    )


def test_scaling_over_devices():
    text = said(
        run(
            measurement(32, 1000.0),
            measurement(32, 6000.0, 8, "vectorized", trial_devices=8),
            measurement(32, 2000.0, 1, "vectorized", data_devices=8),
        ),
        topic="scaling",
    )
    assert "8 devices, trials spread over them: 6.0 times one device at batch 32" in text
    assert "(scaling efficiency 75%)" in text
    assert "each batch split over them: 2.0 times one device" in text
    assert "(scaling efficiency 25%)" in text


def test_what_does_not_fit_is_said():
    text = said(
        run(
            measurement(32, 1.0),
            Measurement(CellConfig(512, 16, "vectorized"), "failed", "no", fits=False),
        ),
        topic="memory",
    )
    assert text == "Batch 512, vectorized, 16 trials at once, does not fit into the memory."


def test_each_device_is_named_where_there_are_several():
    a, b = run(*rates(b32=1000, b64=1800)), run(*rates(b32=3000, b64=9000), platform="gpu")
    texts = [advice.text for advice in advise([a, b]) if advice.topic == "batch"]
    assert [text.partition(":")[0] for text in texts] == ["On cpu", "On gpu"]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (CellConfig(32), "sequential, one trial"),
        (CellConfig(32, plan="fit"), "Keras' fit"),
        (CellConfig(32, 1, "sequential", packs=2), "sequential, 2 trials at once"),
        (CellConfig(32, 8, "vectorized", packs=2), "vectorized, 2 x 8 trials at once"),
        (CellConfig(32, 8, "vectorized", 1, 8), "vectorized, 8 trials at once over 8 devices"),
        (
            CellConfig(32, 1, "vectorized", 1, 1, 4),
            "vectorized, one trial, each batch split over 4 devices",
        ),
    ],
)
def test_ways_have_names(config, text):
    assert way(config) == text


def test_the_first_epoch_is_explained_in_parts():
    head, shares, _ = explain(bench_records.FIRST_EPOCH, 10_000)
    assert head == (
        "The first epoch of Keras' fit takes 5.00 s, a later one 1.00 s: batch 32, 313 steps. The "
        "difference of 4.00 s is a cost that occurs once:"
    )
    assert [(seconds, share, what.split()[0]) for seconds, share, what in shares] == [
        ("0.40 s", "10%", "tracing:"),
        ("0.30 s", "8%", "lowering:"),
        ("3.00 s", "75%", "compiling:"),
        ("0.25 s", "6%", "starting"),
    ]
    assert "2 programs" in shares[2][2]


def test_what_the_parts_do_not_make_up_is_said():
    _, shares, _ = explain(replace(bench_records.FIRST_EPOCH, compile=2.0), 10_000)
    assert shares[-1] == ("1.05 s", "26%", "unexplained (times vary)")


def test_a_part_of_the_data_is_said_to_be_one():
    head, _, _ = explain(bench_records.FIRST_EPOCH, 100_000)
    assert "(a part of the data; all data take 3,125 steps)" in head


def test_another_backend_does_not_tell_the_parts():
    parts = {"trace": None, "lower": None, "compile": None, "programs": None, "startup": 3.9}
    _, shares, _ = explain(replace(bench_records.FIRST_EPOCH, **parts), 10_000)
    assert shares[0][:2] == ("3.90 s", "98%")
    assert "until the end of the first step" in shares[0][2]
