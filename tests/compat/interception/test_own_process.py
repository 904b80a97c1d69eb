"""Fits of a session whose Keras does not run on JAX; NumPy's backend stands for all others.

Keras cannot train on NumPy, so whatever is trained was trained in the session's process.
``tests/sessions`` has TensorFlow and PyTorch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline.compat.interception import own_process
from paceline.compat.interception.fit_server import ExecutorFacts, FitServer
from paceline.compat.interception.own_process import ProcessExecutor, ProcessPool
from paceline.data.arrays import prepare
from paceline.errors import TrialCrashError
from paceline.executor.base import PackOptions, SearchData
from paceline.executor.session.messages import ProcessCall, Told
from paceline.executor.session.process import ProcessDiedError
from paceline.executor.training import memory
from paceline.program.canonical import Unpackable
from session_scripts import run_script

CODE = """
import signal, subprocess


def network(i):
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, activation="softmax")])
    weights = np.random.default_rng(i)
    model.set_weights([weights.normal(size=part.shape) for part in model.get_weights()])
    model.compile(keras.optimizers.Adam(0.01 * (i + 1)), "sparse_categorical_crossentropy")
    return model


class Norms(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.norms = []

    def on_epoch_end(self, epoch, logs=None):
        self.norms.append(float(np.linalg.norm(self.model.get_weights()[0])))
        if epoch == 0:
            self.model.layers[0].bias.assign([0.0, 0.0, 0.0])
            self.model.optimizer.learning_rate = 0.5


def train(i):
    model, norms = network(i), Norms()
    told = {"callbacks": [norms] * (i % 2), "verbose": 0}
    history = model.fit(X[:40], Y[:40], epochs=3, batch_size=16, **told)
    return history.history["loss"], norms.norms, np.asarray(model.predict(X, verbose=0)).tolist()


class Interrupt(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        os.kill(os.getpid(), signal.SIGINT)


def interrupted(i):
    network(i).fit(X, Y, epochs=99, callbacks=[Interrupt()], verbose=0)


def children():
    status = [open(f"/proc/{each}/status").read() for each in os.listdir("/proc") if each.isdigit()]
    return sum(f"PPid:\\t{os.getpid()}\\n" in text for text in status)


notes = []
first = list(paceline.map(train, range(4), seeds=1, notes=notes.append, progress=False))
n = [children()]
try:
    list(paceline.map(interrupted, range(2), notes=notes.append, progress=False))
    n.append("not interrupted")
except KeyboardInterrupt:
    n.append(children())
second = list(paceline.map(train, range(4), seeds=1, notes=notes.append, progress=False))
n.append(children())
print("FOUND" + json.dumps({"first": first, "second": second, "notes": notes, "children": n}))
"""


@pytest.mark.slow
def test_functions_return_what_they_return_in_a_session_on_jax() -> None:
    there, here = run_script(CODE, "numpy"), run_script(CODE, "jax")
    assert there["children"] == [1, 0, 1]  # kept for the next call; ended by Ctrl-C
    assert here["children"] == [0, 0, 0]
    assert there["first"] == there["second"] and there["notes"] == here["notes"] == []
    for (losses, norms, outputs), (its_losses, its_norms, its_outputs) in zip(
        there["first"], here["first"], strict=True
    ):
        assert losses == its_losses and len(losses) == 3
        np.testing.assert_allclose(norms, its_norms, rtol=1e-6)
        np.testing.assert_allclose(outputs, its_outputs, atol=1e-5)


def test_data_without_memory_refuse_their_own_fits_alone(monkeypatch):
    """Else no fit of the session would train in the process any more."""
    told = []
    link = SimpleNamespace(tell=lambda *message: told.append(message))
    server = FitServer(link, PackOptions())
    both = [prepare(np.ones((60, 4), "float32"), np.ones(60, "int32")) for _ in range(2)]
    monkeypatch.setenv(memory.LIMIT, "1000")
    server.open(1, SearchData(*both))
    server.submit(SimpleNamespace(executor=1, number=7))
    name, executor, facts, number, why = told[0]
    assert (name, executor, facts.busy, number) == ("submitted", 1, False, 7)
    assert why.startswith("validation_data:") and "do not fit" in why
    server.close(1)
    monkeypatch.delenv(memory.LIMIT)
    server.open(2, SearchData(*both))
    server.close_all()
    assert len(told) == 1


DEATHS = """
import functools, signal


def loss(y, p, name, fatal):
    if fatal and keras.backend.backend() == "jax":
        if not os.path.exists(name):
            os.kill(os.getpid(), signal.SIGSEGV)
    return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y, p))


def train(i):
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, activation="softmax")])
    weights = np.random.default_rng(i)
    model.set_weights([weights.normal(size=part.shape) for part in model.get_weights()])
    name = os.path.abspath("harmless")

    def own(y, p):
        return loss(y, p, name, i in (2, 5))

    model.compile(keras.optimizers.SGD(0.01 * (i + 1)), own)
    return model.fit(X[:40], Y[:40], epochs=2, batch_size=16, verbose=0).history["loss"]


def safely(i):
    try:
        return train(i)
    except paceline.TrialCrashError as error:
        return str(error)


notes = []
losses = list(paceline.map(safely, range(7), seeds=1, notes=notes.append, progress=False))
print("FOUND" + json.dumps({"losses": losses, "notes": notes}))
"""


@pytest.mark.slow
def test_a_fit_that_kills_its_process_fails_alone(fresh_folder: Path) -> None:
    """In the session it would kill the notebook. The other fits are as without it."""
    there = run_script(DEATHS, "numpy")
    Path("harmless").touch()
    here = run_script(DEATHS, "jax")
    for i, (its, expected) in enumerate(zip(there["losses"], here["losses"], strict=True)):
        if i in (2, 5):
            assert "crashed (SIGSEGV). This happened twice with only this fit" in its
        else:
            assert its == expected
    assert "continue in another one with one fit at a time" in there["notes"][0]
    assert there["notes"][1].endswith("the fit that was alone in it fails")


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessPool]:
    """A pool whose process takes fits in, and dies when ``died`` is set."""
    messages: deque[Told] = deque()

    def send(told: Told) -> None:
        if told.name == "submit":
            (fit,) = told.arguments
            facts = ExecutorFacts(busy=True, max_slots=16)
            messages.append(Told("submitted", (fit.executor, facts, fit.number, None)))

    def receive(seconds: float) -> Told:
        if not messages:
            raise ProcessDiedError(-11)
        return messages.popleft()

    def begin(call: ProcessCall) -> None:
        begun.append(call.arguments["options"].most)

    process = SimpleNamespace(begin=begin, send=send, receive=receive, close=lambda: None)
    monkeypatch.setattr(own_process, "process_of_session", lambda: nullcontext(process))
    begun: list[int | None] = []
    options, take = PackOptions(), lambda *known: died.append(known[1])
    found = ProcessPool(lambda text: None, options, lambda *_: None, take, lambda *_: False)
    died: list[Mapping[int, BaseException]] = []
    vars(found).update(begun=begun, died=died)
    yield found
    found.close()


def submit(pool: ProcessPool, numbers: Iterable[int], data: str = "x") -> ProcessExecutor:
    """Sends fits on the same data, and waits until the process has them."""
    arguments: Any = SimpleNamespace(key=lambda: (data,), search_data=lambda: data)
    for number in numbers:
        executor = pool.of(arguments, None)
        fit: Any = SimpleNamespace(number=number, executor=executor.number)
        executor.submit(fit)
    pool.settle()
    return executor


def test_fewer_fits_train_at_once_after_each_death(pool: ProcessPool) -> None:
    for _ in range(2):
        submit(pool, range(20))
        assert pool.next(lambda: False) is None  # it died
    executor = submit(pool, range(20))
    assert vars(pool)["begun"] == [None, 4, 1] and vars(pool)["died"] == [{}, {}]
    # Now each is alone in the process, and no other comes meanwhile.
    assert pool.full and not pool.settle()
    pool.over([0])
    assert pool.settle()
    assert pool.next(lambda: False) is None
    submit(pool, range(1, 20))
    assert pool.next(lambda: False) is None
    assert vars(pool)["died"][-2] == {}
    ((number, error),) = vars(pool)["died"][-1].items()
    assert number == 1 and isinstance(error, TrialCrashError)
    assert executor.number != submit(pool, [2, 3]).number
    assert vars(pool)["begun"][-1] is None  # it was the only one, as far as one knows


def test_there_is_a_limit_of_deaths(pool: ProcessPool) -> None:
    """Of fits that have begun: they fail, since the session would die, too."""
    for n in range(0, 48, 4):
        submit(pool, range(n, n + 4))
        assert pool.next(lambda: False) is None
    with pytest.raises(TrialCrashError, match=r"died 12 times.*Use a smaller model"):
        submit(pool, [99])


def test_a_process_that_dies_before_any_fit_serves_none(pool: ProcessPool) -> None:
    for _ in range(2):
        pool.send("open")
        assert pool.next(lambda: False) is None
    with pytest.raises(Unpackable, match="2 times"):
        submit(pool, [1])
