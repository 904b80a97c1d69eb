"""Too little memory: fewer slots, no epoch lost, and a word about it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import pytest

import paceline
import toys
from paceline.executor.process import host_bytes
from paceline.executor.training import memory, planner
from paceline.pack.plan import VectorizedProgram
from paceline.program.compile import Executable

X, Y = toys.data()
CALL: dict[str, Any] = {"validation_data": toys.data(23, seed=1), "epochs": 3, "verbose": 0}
N = 10


def wide(hp: Any) -> keras.Model:
    """One trial's variables take about 240 kB with Adam's."""
    model = keras.Sequential(
        [
            keras.Input((toys.FEATURES,)),
            keras.layers.Dense(2000, activation="relu"),
            keras.layers.Dropout(hp.Float("dropout", 0.1, 0.5)),
            keras.layers.Dense(toys.CLASSES, activation="softmax"),
        ]
    )
    return toys.compiled(model, hp.Float("lr", 1e-4, 1e-2, sampling="log"))


@pytest.fixture
def make(fresh_folder: Path):
    def tuner(notes: list[str], **arguments: Any) -> paceline.Tuner:
        return paceline.Tuner(wide, study="s", sampler="random", on_note=notes.append, **arguments)

    return tuner


@pytest.fixture(scope="module")
def plenty(tmp_path_factory) -> list[dict[str, list[float]]]:
    """Histories of the same trials where memory is no matter."""
    folder = tmp_path_factory.mktemp("plenty")
    tuner = paceline.Tuner(
        wide,
        study="s",
        sampler="random",
        plan="vectorized",
        directory=folder,
        on_note=lambda text: None,
    )
    tuner.search(X, Y, n_trials=N, **CALL)
    return [tuner.history(n) for n in range(N)]


def same_histories(tuner: paceline.Tuner, expected: list[dict[str, list[float]]]) -> None:
    assert set(tuner.results()["state"]) == {"complete"}
    for number, history in enumerate(expected):
        for name, values in history.items():
            # Other slot counts change the order of sums: 1e-6 seen.
            np.testing.assert_allclose(tuner.history(number)[name], values, rtol=1e-4, atol=1e-5)


@pytest.fixture
def compiled_slots(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Slots of every stacked program, in the order they were compiled."""
    seen: list[int] = []
    init = VectorizedProgram.__init__

    def counted(self: VectorizedProgram, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        seen.append(self.n_slots)

    monkeypatch.setattr(VectorizedProgram, "__init__", counted)
    return seen


@pytest.mark.slow
def test_a_small_device_gets_as_many_slots_as_it_holds(
    make, plenty, compiled_slots, monkeypatch
) -> None:
    monkeypatch.setenv(memory.LIMIT, str(5_000_000))
    notes: list[str] = []
    tuner = make(notes)
    tuner.search(X, Y, n_trials=N, **CALL)
    assert len(compiled_slots) == 2 and compiled_slots[1] < compiled_slots[0]
    assert compiled_slots[1] & (compiled_slots[1] - 1) == 0
    assert any("memory holds" in note for note in notes)
    same_histories(tuner, plenty)


def test_slots_that_do_not_fit_are_refused_before_anything_trains(make, monkeypatch) -> None:
    monkeypatch.setenv(memory.LIMIT, str(3_000_000))
    with pytest.raises(
        paceline.UsageError, match=r"parallel_trials: 32 slots need .* Use at most [1-9]"
    ):
        make([], parallel_trials=32).search(X, Y, n_trials=32, **CALL)


def test_a_trial_that_does_not_fit_fails_with_the_sizes(make, monkeypatch) -> None:
    monkeypatch.setenv(memory.LIMIT, str(100_000))
    with pytest.raises(paceline.BuildError, match=r"one trial needs .* next to the data"):
        make([]).search(X, Y, n_trials=N, **CALL)


def test_a_limit_that_is_no_number(monkeypatch) -> None:
    monkeypatch.setenv(memory.LIMIT, "2GB")
    with pytest.raises(paceline.UsageError, match="number of bytes, an integer"):
        memory.free_bytes()


@pytest.mark.slow
def test_running_out_in_the_middle_halves_the_slots(
    make, plenty, compiled_slots, monkeypatch
) -> None:
    """As XLA fails: the memory of the state it was given is gone."""
    train, calls = VectorizedProgram.train, []

    def failing(self: VectorizedProgram, state: Any, *args: Any) -> Any:
        calls.append(self.n_slots)
        if self.n_slots > 2:
            for array in jax.tree.leaves(list(state)[:3]):
                array.delete()
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating")
        return train(self, state, *args)

    monkeypatch.setattr(VectorizedProgram, "train", failing)
    # On a busy machine the last epochs take longer than a compile, and packs would shrink further.
    monkeypatch.setattr(planner, "_compile_seconds", lambda program: 1e9)
    notes: list[str] = []
    tuner = make(notes)
    tuner.search(X, Y, n_trials=N, **CALL)
    assert compiled_slots[-1] == 2 and max(compiled_slots) > 2
    assert any("memory holds 2 slots" in note for note in notes)
    same_histories(tuner, plenty)


@pytest.mark.slow
def test_another_error_in_a_pack_fails_its_trials_only(make, monkeypatch) -> None:
    train, calls = VectorizedProgram.train, []

    def failing(self: VectorizedProgram, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise jax.errors.JaxRuntimeError("INTERNAL: something broke")
        return train(self, *args)

    monkeypatch.setattr(VectorizedProgram, "train", failing)
    tuner = make([], parallel_trials=2)
    tuner.search(X, Y, n_trials=N, **CALL)
    states = tuner.results()["state"].tolist()
    assert states.count("failed") == 2 and states.count("complete") == N - 2
    failed = tuner.trial(states.index("failed"))
    assert str(failed.error).endswith("RuntimeError: INTERNAL: something broke")


def test_what_a_program_takes() -> None:
    function = jax.jit(lambda x: x @ x)
    compiled = function.lower(jax.ShapeDtypeStruct((100, 100), np.float32)).compile()
    assert Executable(compiled, 0.0, False).memory >= 80_000
    assert memory.slot_bytes([Executable(compiled, 0.0, False)], 4, 40_000) >= 10_000
    assert Executable(lambda: None, 0.0, False).memory is None


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits memory as Linux does")
def test_really_running_out(tmp_path: Path) -> None:
    """XLA's own error, provoked by a limit on the process's memory."""
    script = """
        import resource
        import numpy as np, keras, paceline
        from paceline.executor.training import memory
        from paceline.pack.pack import Pack

        def build(hp):
            model = keras.Sequential([
                keras.Input((2000,)),
                keras.layers.Dense(3000, activation="relu"),
                keras.layers.Dropout(hp.Float("dropout", 0.1, 0.5)),
                keras.layers.Dense(3),
            ])
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile("adam", loss, metrics=["accuracy"])
            return model

        memory.free_bytes = lambda: float("inf")  # nothing is known beforehand
        begin = Pack.run_epoch

        def limited(pack):
            if pack.program.n_slots > 2:
                used = int(open("/proc/self/statm").read().split()[0]) * 4096
                resource.setrlimit(resource.RLIMIT_AS, (used + 600_000_000, -1))
            else:
                resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
            return begin(pack)

        Pack.run_epoch = limited
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(256, 2000)).astype("float32"), rng.integers(0, 3, 256)
        settings = {"study": "s", "sampler": "random", "plan": "vectorized"}
        tuner = paceline.Tuner(build, parallel_trials=8, **settings)
        tuner.search(x, y, validation_data=(x[:64], y[:64]), epochs=2, n_trials=8)
        print(sorted(set(tuner.results()["state"])), tuner.results()["epochs"].tolist())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert "['complete'] [2, 2, 2, 2, 2, 2, 2, 2]" in done.stdout, done.stderr[-3000:]
    assert "memory holds" in done.stderr


# -- the host's memory -----------------------------------------------------------------------------


def system(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


MEMINFO = "MemTotal: 9000 kB\nMemAvailable:  8000 kB\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, float("inf")),
        ({"proc/meminfo": MEMINFO}, 8_192_000),
        (  # version 2: the group and those around it
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/memory.max": "5000",
                "sys/fs/cgroup/a/memory.current": "3000",
                "sys/fs/cgroup/a/memory.stat": "anon 1000\ninactive_file 500\n",
                "sys/fs/cgroup/a/b/memory.max": "max",
            },
            2500,
        ),
        (  # version 1, in a container, where the group's path is the host's
            {
                "proc/self/cgroup": "9:cpu:/x\n8:memory:/docker/0a1b\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "6000",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000",
                "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 250\n",
            },
            5250,
        ),
    ],
)
def test_the_limit_of_a_container_counts(tmp_path, files, expected):
    assert host_bytes(system(tmp_path, **files)) == expected


def test_a_model_too_large_for_the_host_fails_its_trial_before_it_is_made(monkeypatch, tmp_path):
    """The kernel would end the process: Linux lends more memory than there is."""
    from paceline.executor import model_builder

    def build(hp: Any) -> keras.Model:
        units = hp.Choice("units", [8, 40_000_000])  # 960 MB of weights
        layers = [keras.layers.Dense(units), keras.layers.Dense(toys.CLASSES)]
        if hp.Boolean("now"):
            layers.insert(0, keras.Input((toys.FEATURES,)))
        return toys.compiled(keras.Sequential(layers))

    monkeypatch.setattr(model_builder, "host_bytes", lambda: 1e9)
    tuner = paceline.Tuner(
        build, study="s", sampler="grid", directory=tmp_path, on_note=lambda text: None
    )
    tuner.search(*toys.data(), n_trials=4, **{**toys.CALL, "epochs": 1})
    results = tuner.results()
    assert (results["state"] == "failed").tolist() == (results["units"] > 8).tolist()
    errors = results["reason"].dropna().tolist()
    assert len(errors) == 2
    for error in errors:
        assert "variables of the model need 0.96 GB more" in error
        assert "but only 1 GB are free. Make the model smaller" in error
        assert "Its largest hyperparameters: units=40,000,000" in error
