"""Channels of like ranges: another file, the same network, and INT8 that is nearer to it."""

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
from acoustic.quantization.smoothquant import FARTHEST, apply_smoothquant, shared_factors
from acoustic.runtime.cpu import CpuBackend
from tests.acoustic.signals import enlivened, audio
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
    """One channel in eight reaches thirty times as far as the others, and is heard a thirtieth as well."""
    checkpoint = enlivened(untrained(NETWORK))
    state = dict(checkpoint.state)
    for name in [name for name in state if name.endswith("depthwise.weight")]:
        weights = name.replace("depthwise", "conv")
        factors = torch.ones(len(state[name]))
        factors[::8] = 30.0
        state[name] = state[name] * factors[:, None, None]
        state[weights] = state[weights] / factors[None, :, None]
    return replace(checkpoint, state=state)


def test_the_network_is_the_same_and_its_int8_nearer(uneven: Checkpoint) -> None:
    even = apply_smoothquant(uneven, [audio(12)])
    assert sum(not torch.equal(even.state[name], value) for name, value in uneven.state.items()) == 10
    exact = CpuBackend(fold(uneven), "fp32").recording_log_probs(audio(9, 3))
    np.testing.assert_allclose(CpuBackend(fold(even), "fp32").recording_log_probs(audio(9, 3)), exact, atol=1e-3)
    apart = []
    for checkpoint in (uneven, even):
        ranges = calibrate(checkpoint, [audio(70)], keep=False)
        heard = CpuBackend(with_ranges(checkpoint, ranges), "int8").recording_log_probs(audio(9, 3))
        apart.append(np.abs(np.exp(heard) - np.exp(exact)).mean())
    assert apart[1] < 0.7 * apart[0]


def test_a_channel_that_says_nothing_stays_within_bounds() -> None:
    reach, weights = torch.tensor([1.0, 1.0, 2.0, 0.0, 1e9]), torch.ones(4, 5)
    weights[:, 1] = 0.0
    factors = shared_factors(reach, weights)
    assert float(factors.min()) == 1 / FARTHEST and float(factors.max()) == FARTHEST


def test_networks_without_depthwise_taps_stay_as_they_are() -> None:
    plain = untrained(replace(NETWORK, blocks=NETWORK.blocks[:1]))
    assert apply_smoothquant(plain, [audio(2)]).state.keys() == plain.state.keys()
    assert all(
        torch.equal(value, plain.state[name])
        for name, value in apply_smoothquant(plain, [audio(2)]).state.items()
    )
