"""Weights rounded in turn: what an INT8 file keeps as it is, and sums that are nearer than plain rounding's."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from acoustic.catalogue import untrained
from acoustic.checkpoint import MAX_WEIGHT, Checkpoint, load, quantize_checkpoint, save
from acoustic.network.folding import fold
from acoustic.quantization.gptq import apply_gptq, gptq_round
from acoustic.runtime.cpu import CpuBackend
from tests.acoustic.signals import enlivened, audio
from tests.acoustic.test_smoothquant import NETWORK


@pytest.fixture(scope="module")
def trained() -> Checkpoint:
    return enlivened(untrained(NETWORK))


def test_a_file_keeps_the_weights_and_hears_more_nearly(trained: Checkpoint, tmp_path) -> None:
    told: list[str] = []
    better = apply_gptq(trained, [audio(12)], told.append)
    assert told[0] == "rounding: hearing recording 1 of 1" and told[1].startswith("rounding: weight 1 of ")
    file = save(tmp_path, better.config, better.state, dtype="int8")
    for name, weight in load(file).state.items():
        if weight.dim() > 1:
            torch.testing.assert_close(weight, better.state[name], rtol=1e-6, atol=0)
            assert not torch.equal(weight, trained.state[name])
    other = audio(9, 3)
    exact = CpuBackend(fold(trained), "fp32").recording_log_probs(other)
    plain, turned = (
        np.abs(np.exp(CpuBackend(fold(quantize_checkpoint(one)), "fp32").recording_log_probs(other)) - np.exp(exact)).mean()
        for one in (trained, better)
    )
    assert turned < 0.7 * plain
    # Folded first it comes to the same: the means that were lost go into the biases.
    folded = CpuBackend(apply_gptq(fold(trained), [audio(12)]), "fp32").recording_log_probs(other)
    np.testing.assert_allclose(folded, CpuBackend(fold(better), "fp32").recording_log_probs(other), atol=2e-3)


def test_sums_of_inputs_that_go_together_stay_near() -> None:
    draw = torch.Generator().manual_seed(1)
    weights = torch.randn(40, 24, generator=draw, dtype=torch.float64)
    heard = torch.randn(24, 6, generator=draw, dtype=torch.float64) @ torch.randn(
        6, 900, generator=draw, dtype=torch.float64
    ) + 0.1 * torch.randn(24, 900, generator=draw, dtype=torch.float64)
    made = gptq_round(weights, (heard @ heard.mT / 900)[None])
    steps = made.abs().amax(1, keepdim=True) / MAX_WEIGHT
    torch.testing.assert_close(made / steps, (made / steps).round())
    plain_steps = weights.abs().amax(1, keepdim=True) / MAX_WEIGHT
    plain = (weights / plain_steps).round() * plain_steps
    apart, plain_apart = (((one - weights) @ heard).square().mean() for one in (made, plain))
    assert apart < 0.2 * plain_apart
    each = gptq_round(weights, torch.eye(24, dtype=torch.float64).expand(40, 24, 24))
    assert (each - weights).abs().max() <= weights.abs().max() * 0.25  # only the largest are cut off


def test_silence_and_rows_of_noughts_are_rounded_as_ever(trained: Checkpoint) -> None:
    state = dict(trained.state)
    name = "blocks.1.units.0.conv.weight"
    state[name] = state[name].clone()
    state[name][3] = 0.0
    deaf = apply_gptq(replace(trained, state=state), [np.zeros(16_000, np.float32)])
    assert all(torch.isfinite(value).all() for value in deaf.state.values())
    assert (deaf.state[name][3] == 0).all()
    torch.testing.assert_close(quantize_checkpoint(deaf).state[name], deaf.state[name])


def test_what_has_nowhere_to_put_the_mean_is_left(trained: Checkpoint) -> None:
    normed = replace(trained.config, norm="layer")
    left = enlivened(untrained(normed))
    same = apply_gptq(left, [audio(3)])
    changed = {name for name, value in left.state.items() if not torch.equal(value, same.state[name])}
    assert changed == {"output.weight", "output.bias"}
