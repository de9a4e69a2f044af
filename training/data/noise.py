"""Noise and room impulse responses for augmentation, read from a manifest.

A line of the manifest is a clip (manifests.py) with two more fields: `kind` ("rir": an impulse response; anything else:
noise) and `split` (only "train" is used; the rest is for tests).
"""

import json
from pathlib import Path

import numpy as np
import torch

from acoustic.constants import SAMPLE_RATE
from training.augment.chain import NoiseBanks
from training.data.audio import Samples, read_clip
from training.errors import TrainingError

MAX_RESPONSE_S = 1.0


def read_noise_banks(manifest: Path, device: torch.device) -> NoiseBanks:
    """The noise of the training split as one row, each recording at unit power, and the impulse responses."""
    file = manifest / "manifest.jsonl" if manifest.is_dir() else manifest
    noise: list[Samples] = []
    responses: list[Samples] = []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise TrainingError(
            f"There is no noise manifest {file}: name one in data.noise, or leave data.noise empty."
        ) from None
    except UnicodeDecodeError as error:
        raise TrainingError(f"{file} is not UTF-8 text (byte {error.start}): is it a manifest?") from None
    for number, line in enumerate(lines, start=1):
        try:
            values = json.loads(line)
            name, kind, split = values["audio"], values["kind"], values["split"]
        except (ValueError, KeyError, TypeError):
            raise TrainingError(
                f"{file} line {number}: expected an object with `audio`, `kind` and `split`."
            ) from None
        if split != "train":
            continue
        samples = read_clip(file.parent / name)
        if kind == "rir":
            responses.append(_response(samples))
        else:
            noise.append(samples / max(1e-6, float(np.sqrt(np.mean(np.square(samples))))))
    if not noise:
        raise TrainingError(f'{file} has no noise with `split` "train".')
    bank = torch.from_numpy(np.concatenate(noise)).to(device)
    return NoiseBanks(bank, torch.from_numpy(np.stack(responses)).to(device) if responses else None)


def _response(samples: Samples) -> Samples:
    """One second of the response from its peak on, at unit energy, so that it changes neither delay nor level."""
    longest = int(MAX_RESPONSE_S * SAMPLE_RATE)
    tail = samples[int(np.argmax(np.abs(samples))) :][:longest]
    padded = np.zeros(longest, np.float32)
    padded[: len(tail)] = tail / max(1e-9, float(np.sqrt(np.sum(np.square(tail)))))
    return padded
