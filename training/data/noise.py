"""Noise and room impulse responses from a manifest, as the banks that alterations mix in.

A line of the manifest is a clip of ../data/manifests.py with two more fields: `kind` ("rir" for an impulse
response, anything else is noise) and `split` (only "train" is taken; tests keep the rest for themselves).
"""

import json
from pathlib import Path

import numpy as np
import torch

from acoustic.constants import SAMPLE_RATE
from training.augment import NoiseBanks
from training.data.audio import Samples, read_clip
from training.errors import TrainingError

MAX_RESPONSE_S = 1.0


def read_noise_banks(manifest: Path, device: torch.device) -> NoiseBanks:
    """All noise of the training split in one row at equal loudness, and the impulse responses."""
    file = manifest / "manifest.jsonl" if manifest.is_dir() else manifest
    noise: list[Samples] = []
    responses: list[Samples] = []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise TrainingError(
            f"There is no noise manifest {file}: name one in data.noise, or none at all."
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
        audio = read_clip(file.parent / name)
        if kind == "rir":
            responses.append(_response(audio))
        else:
            noise.append(audio / max(1e-6, float(np.sqrt(np.mean(np.square(audio))))))
    if not noise:
        raise TrainingError(f'{file} names no noise with `split` "train".')
    bank = torch.from_numpy(np.concatenate(noise)).to(device)
    return NoiseBanks(bank, torch.from_numpy(np.stack(responses)).to(device) if responses else None)


def _response(audio: Samples) -> Samples:
    """From its peak on, one second long, of unit energy: it then changes neither delay nor level."""
    longest = int(MAX_RESPONSE_S * SAMPLE_RATE)
    tail = audio[int(np.argmax(np.abs(audio))) :][:longest]
    padded = np.zeros(longest, np.float32)
    padded[: len(tail)] = tail / max(1e-9, float(np.sqrt(np.sum(np.square(tail)))))
    return padded
