"""GPTQ: INT8 files store its weights exactly, and its outputs are closer than those of plain rounding."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from acoustic.catalogue import untrained
from acoustic.checkpoint import MAX_WEIGHT, Checkpoint, load, quantize_checkpoint, save
from acoustic.network.folding import fold
from acoustic.quantization.gptq import apply_gptq, gptq_round
from acoustic.runtime.cpu import CpuBackend
from tests.acoustic.signals import audio
from tests.acoustic.test_smoothquant import NETWORK

ORIGINAL = untrained(NETWORK)


def log_probs(checkpoint: Checkpoint) -> np.ndarray:
    return CpuBackend(fold(checkpoint), "fp32").recording_log_probs(audio(9, 3))


def test_int8_files_keep_the_weights_and_are_more_accurate(tmp_path: Path) -> None:
    messages: list[str] = []
    quantized = apply_gptq(ORIGINAL, [audio(12)], messages.append)
    assert messages[0] == "gptq: recording 1 of 1" and messages[1].startswith("gptq: layer 1 of ")
    file = save(tmp_path, quantized.config, quantized.state, dtype="int8")
    for name, weight in load(file).state.items():
        if weight.dim() > 1:
            torch.testing.assert_close(weight, quantized.state[name], rtol=1e-6, atol=0)
            assert not torch.equal(weight, ORIGINAL.state[name])
    exact = log_probs(ORIGINAL)
    plain_error, gptq_error = (
        np.abs(np.exp(log_probs(quantize_checkpoint(checkpoint))) - np.exp(exact)).mean()
        for checkpoint in (ORIGINAL, quantized)
    )
    assert gptq_error < 0.7 * plain_error
    # With folded batch norms the mean errors go into the biases instead.
    np.testing.assert_allclose(
        log_probs(apply_gptq(fold(ORIGINAL), [audio(12)])), log_probs(quantized), atol=2e-3
    )


def test_outputs_for_correlated_inputs_are_close() -> None:
    draw = torch.Generator().manual_seed(1)
    weights = torch.randn(40, 24, generator=draw, dtype=torch.float64)
    inputs = torch.randn(24, 6, generator=draw, dtype=torch.float64) @ torch.randn(
        6, 900, generator=draw, dtype=torch.float64
    ) + 0.1 * torch.randn(24, 900, generator=draw, dtype=torch.float64)
    quantized = gptq_round(weights, (inputs @ inputs.mT / 900)[None])
    steps = quantized.abs().amax(1, keepdim=True) / MAX_WEIGHT
    torch.testing.assert_close(quantized / steps, (quantized / steps).round())
    plain_steps = weights.abs().amax(1, keepdim=True) / MAX_WEIGHT
    plain = (weights / plain_steps).round() * plain_steps
    error, plain_error = (((one - weights) @ inputs).square().mean() for one in (quantized, plain))
    assert error < 0.2 * plain_error
    per_row = gptq_round(weights, torch.eye(24, dtype=torch.float64).expand(40, 24, 24))
    assert (per_row - weights).abs().max() <= weights.abs().max() * 0.25  # only the largest are clipped


def test_silent_recordings_and_zero_rows() -> None:
    state = dict(ORIGINAL.state)
    name = "blocks.1.units.0.conv.weight"
    state[name] = state[name].clone()
    state[name][3] = 0.0
    result = apply_gptq(replace(ORIGINAL, state=state), [np.zeros(16_000, np.float32)])
    assert all(torch.isfinite(value).all() for value in result.state.values())
    assert (result.state[name][3] == 0).all()
    torch.testing.assert_close(quantize_checkpoint(result).state[name], result.state[name])


def test_layers_without_a_bias_are_left_unchanged() -> None:
    checkpoint = untrained(replace(NETWORK, norm="layer"))
    result = apply_gptq(checkpoint, [audio(3)])
    changed = {name for name, value in checkpoint.state.items() if not torch.equal(value, result.state[name])}
    assert changed == {"output.weight", "output.bias"}
