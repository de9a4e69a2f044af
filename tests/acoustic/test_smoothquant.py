"""SmoothQuant leaves the network's output unchanged and makes INT8 more accurate."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from acoustic.catalogue import untrained
from acoustic.checkpoint import Checkpoint
from acoustic.config import BlockConfig, ModelConfig
from acoustic.network.folding import fold
from acoustic.quantization.calibration import calibrate
from acoustic.quantization.ranges import with_ranges
from acoustic.quantization.smoothquant import MAX_FACTOR, apply_smoothquant, channel_factors
from acoustic.runtime.cpu import CpuBackend
from tests.acoustic.signals import audio
from tests.acoustic.test_stream_state import FEATURES

NETWORK = ModelConfig(
    "s",
    FEATURES,
    (
        BlockConfig(5, 16, stride=2, look_ahead=1),
        BlockConfig(7, 24, 3, separable=True, residual="residual", look_ahead=(1, 0, 0)),
        BlockConfig(7, 24, 2, separable=True, look_ahead=0),
    ),
)


@pytest.fixture(scope="module")
def uneven() -> Checkpoint:
    """One depthwise channel in eight is thirty times larger than the others, with smaller pointwise weights."""
    checkpoint = untrained(NETWORK)
    state = dict(checkpoint.state)
    for name in [name for name in state if name.endswith("depthwise.weight")]:
        weights = name.replace("depthwise", "conv")
        factors = torch.ones(len(state[name]))
        factors[::8] = 30.0
        state[name] = state[name] * factors[:, None, None]
        state[weights] = state[weights] / factors[None, :, None]
    return replace(checkpoint, state=state)


def test_the_network_is_unchanged_and_int8_more_accurate(uneven: Checkpoint) -> None:
    equalized = apply_smoothquant(uneven, [audio(12)])
    assert sum(not torch.equal(equalized.state[name], value) for name, value in uneven.state.items()) == 10
    exact = CpuBackend(fold(uneven), "fp32").recording_log_probs(audio(9, 3))
    actual = CpuBackend(fold(equalized), "fp32").recording_log_probs(audio(9, 3))
    np.testing.assert_allclose(actual, exact, atol=1e-3)
    errors = []
    for checkpoint in (uneven, equalized):
        ranges = calibrate(checkpoint, [audio(70)], store=False)
        actual = CpuBackend(with_ranges(checkpoint, ranges), "int8").recording_log_probs(audio(9, 3))
        errors.append(np.abs(np.exp(actual) - np.exp(exact)).mean())
    assert errors[1] < 0.7 * errors[0]


def test_factors_are_bounded() -> None:
    maxima, weights = torch.tensor([1.0, 1.0, 2.0, 0.0, 1e9]), torch.ones(4, 5)
    weights[:, 1] = 0.0
    factors = channel_factors(maxima, weights)
    assert float(factors.min()) == 1 / MAX_FACTOR and float(factors.max()) == MAX_FACTOR


def test_networks_without_depthwise_convolutions_are_unchanged() -> None:
    checkpoint = untrained(replace(NETWORK, blocks=NETWORK.blocks[:1]))
    assert apply_smoothquant(checkpoint, [audio(2)]).state.keys() == checkpoint.state.keys()
    assert all(
        torch.equal(value, checkpoint.state[name])
        for name, value in apply_smoothquant(checkpoint, [audio(2)]).state.items()
    )
