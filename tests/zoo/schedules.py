"""Learning-rate schedules: their numbers are constants of the step, lengths included."""

from __future__ import annotations

import keras
from keras import ops
from keras.optimizers import schedules as S

from zoo.base import case, vary
from zoo.layers import classifier
from zoo.optimizers import network
from zoo.samples import vectors

PEAKS = [3e-3, 1e-2, 3e-2]
# Shorter and longer than the 8 steps that two epochs have.
LENGTHS = [6.0, 8.0, 20.0]


def _adam(schedule) -> keras.Model:
    return classifier(network(), keras.optimizers.Adam(schedule))


def _peak(hp) -> float:
    return hp.Float("peak", 1e-4, 1e-1, sampling="log")


def _length(hp) -> float:
    return hp.Float("length", 2.0, 50.0)


@case(
    vectors, hparams=vary(peak=PEAKS, length=LENGTHS, alpha=[0.01, 0.1, 0.2]), float64_exact=False
)
def cosine_decay(hp):
    return _adam(S.CosineDecay(_peak(hp), _length(hp), alpha=hp.Float("alpha", 0.0, 0.5)))


@case(vectors, hparams=vary(peak=PEAKS, length=LENGTHS, warm=[2.0, 3.0, 5.0]), float64_exact=False)
def cosine_warm_up(hp):
    """Linear warm-up, then cosine: both branches of a cond depend on constants."""
    return _adam(
        S.CosineDecay(
            1e-4,
            _length(hp),
            warmup_target=_peak(hp),
            warmup_steps=hp.Float("warm", 1.0, 10.0),
        )
    )


@case(
    vectors,
    hparams=vary(peak=PEAKS, length=[3.0, 4.0, 6.0], m=[0.5, 0.7, 0.9]),
    float64_exact=False,
)
def cosine_restarts(hp):
    return _adam(
        S.CosineDecayRestarts(_peak(hp), _length(hp), t_mul=1.5, m_mul=hp.Float("m", 0.1, 1.0))
    )


@case(vectors, hparams=vary(peak=PEAKS, length=LENGTHS, rate=[0.5, 0.8, 0.95]))
def exponential_decay(hp):
    return _adam(S.ExponentialDecay(_peak(hp), _length(hp), hp.Float("rate", 0.1, 0.99)))


@case(
    vectors,
    hparams=vary(peak=PEAKS, length=[2.0, 3.0, 4.0], rate=[0.5, 0.8, 0.95]),
    float64_exact=False,
)
def exponential_staircase(hp):
    return _adam(
        S.ExponentialDecay(_peak(hp), _length(hp), hp.Float("rate", 0.1, 0.99), staircase=True)
    )


@case(vectors, hparams=vary(peak=PEAKS, length=[9.0, 12.0, 20.0], power=[0.5, 1.0, 2.0]))
def polynomial_decay(hp):
    """Longer than the run: at its end a power of 0.5 takes the root of a rounding error (NaN)."""
    return _adam(S.PolynomialDecay(_peak(hp), _length(hp), power=hp.Float("power", 0.1, 3.0)))


@case(vectors, hparams=vary(peak=PEAKS, length=LENGTHS, rate=[0.5, 1.0, 2.0]))
def inverse_time_decay(hp):
    return _adam(S.InverseTimeDecay(_peak(hp), _length(hp), hp.Float("rate", 0.1, 5.0)))


@case(vectors, hparams=vary(first=PEAKS, second=[1e-3, 2e-3, 5e-3]))
def piecewise_constant(hp):
    """The boundaries are integers and equal; the rates differ."""
    values = [_first(hp), hp.Float("second", 1e-4, 1e-1), 1e-3]
    return _adam(S.PiecewiseConstantDecay([3, 6], values))


def _first(hp) -> float:
    return hp.Float("first", 1e-4, 1e-1)


class WarmUp(S.LearningRateSchedule):
    """A schedule of the user's own: linear to the peak, then constant."""

    def __init__(self, peak: float, steps: float) -> None:
        self.peak = peak
        self.steps = steps

    def __call__(self, step):
        step = ops.cast(step, keras.config.floatx())
        return self.peak * ops.minimum(1.0, (step + 1.0) / self.steps)

    def get_config(self):
        return {"peak": self.peak, "steps": self.steps}


@case(vectors, hparams=vary(peak=PEAKS, length=[3.0, 5.0, 12.0]))
def warm_up(hp):
    return _adam(WarmUp(_peak(hp), _length(hp)))
