"""A trial within a step of several variants is the trial alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
import pytest
from keras import layers

import zoo
from marks import slow_where
from paceline.program.padding.widths import Embedding, PaddedRole, embedding_of
from paceline.program.trace import State
from paceline.program.variants import NotMergeable, Variants, lay_out
from program.padding.test_widths import CLASSES, batches, compiled, stack, traced, train
