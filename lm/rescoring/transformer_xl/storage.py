"""Reads and writes Transformer-XL weight files. Hyperparameters and vocabulary are in the metadata."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lm.errors import LanguageError
from lm.rescoring.transformer_xl.config import TransformerConfig
from lm.rescoring.transformer_xl.vocabulary import Vocabulary
from lm.weight_files import FileFormat, quantize_to_8_bits, read_weights, write_weights

if TYPE_CHECKING:
    from lm.rescoring.transformer_xl.model import TransformerXL

FILE_FORMAT = FileFormat("silica transformer-xl 1", "Transformer-XL", "silica train-lm TEXT --out FOLDER")


def save_model(
    path: Path, network: "TransformerXL", vocabulary: Vocabulary, eight_bits: bool = False
) -> None:
    """Write the file atomically."""
    metadata = {
        "config": json.dumps(asdict(network.config)),
        "words": " ".join(vocabulary.words),
        "unknown_kinds": str(vocabulary.unknown_kinds),
    }
    weights = network.state_dict()
    write_weights(path, FILE_FORMAT, quantize_to_8_bits(weights) if eight_bits else weights, metadata)


def read_model(path: Path) -> tuple[dict[str, NDArray[np.float32]], TransformerConfig, Vocabulary]:
    """Weights, hyperparameters and vocabulary, without PyTorch. Raises LanguageError if they do not match."""
    weights, metadata = read_weights(path, FILE_FORMAT)
    try:
        shape: dict[str, Any] = json.loads(metadata["config"])
        config = TransformerConfig(**{**shape, "cutoffs": tuple(shape["cutoffs"])})
        vocabulary = Vocabulary(metadata["words"].split(" "), int(metadata["unknown_kinds"]))
    except (KeyError, TypeError, ValueError) as error:
        raise LanguageError(
            f"{path} has no metadata of a Transformer-XL ({error!r}): copy it again"
        ) from None
    wrong = [
        name
        for name, shape in config.tensors().items()
        if name not in weights or weights[name].shape != shape
    ]
    if wrong or len(vocabulary) != config.vocabulary:
        what = wrong[0] if wrong else f"{len(vocabulary)} words instead of {config.vocabulary}"
        raise LanguageError(f"{path} is incomplete or does not match its metadata ({what}): copy it again")
    return weights, config, vocabulary


def load_model(path: Path) -> "tuple[TransformerXL, Vocabulary]":
    """The PyTorch network in evaluation mode, and its vocabulary."""
    import torch

    from lm.rescoring.transformer_xl.model import TransformerXL

    weights, config, vocabulary = read_model(path)
    network = TransformerXL(config)
    network.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    network.eval()
    return network, vocabulary
