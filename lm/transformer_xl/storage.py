"""A Transformer-XL on disk: its weights, with its shape and its words in the card."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lm.transformer_xl.shape import TransformerConfig
from lm.transformer_xl.vocabulary import Vocabulary
from lm.weights import Form, in_eight_bits, read_weights, write_weights

if TYPE_CHECKING:
    from lm.transformer_xl.model import TransformerXL

FORM = Form("silica transformer-xl 1", "Transformer-XL", "silica train-lm TEXT --out FOLDER")


def save(path: Path, network: "TransformerXL", vocabulary: Vocabulary, eight_bits: bool = False) -> None:
    """Write the file whole or not at all."""
    card = {
        "config": json.dumps(asdict(network.config)),
        "words": " ".join(vocabulary.words),
        "unknown_kinds": str(vocabulary.unknown_kinds),
    }
    weights = network.state_dict()
    write_weights(path, FORM, in_eight_bits(weights) if eight_bits else weights, card)


def read(path: Path) -> tuple[dict[str, NDArray[np.float32]], TransformerConfig, Vocabulary]:
    """Weights, shape and words, without PyTorch."""
    weights, card = read_weights(path, FORM)
    shape: dict[str, Any] = json.loads(card["config"])
    config = TransformerConfig(**{**shape, "cutoffs": tuple(shape["cutoffs"])})
    return weights, config, Vocabulary(card["words"].split(" "), int(card["unknown_kinds"]))


def load(path: Path) -> "tuple[TransformerXL, Vocabulary]":
    """The network as PyTorch knows it, ready to be measured or trained on, and its words."""
    import torch

    from lm.transformer_xl.model import TransformerXL

    weights, config, vocabulary = read(path)
    network = TransformerXL(config)
    network.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    network.eval()
    return network, vocabulary
