"""A Transformer-XL on disk: its weights, with its shape and its words in the card."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lm.transformer_xl.model import TransformerConfig, TransformerXL
from lm.transformer_xl.vocabulary import Vocabulary
from lm.weights import Form, read_weights, write_weights

FORM = Form("silica transformer-xl 1", "Transformer-XL", "silica train-lm TEXT --out FOLDER")


def save(path: Path, network: TransformerXL, vocabulary: Vocabulary) -> None:
    """Write the file whole or not at all."""
    card = {
        "config": json.dumps(asdict(network.config)),
        "words": " ".join(vocabulary.words),
        "unknown_kinds": str(vocabulary.unknown_kinds),
    }
    write_weights(path, FORM, network.state_dict(), card)


def load(path: Path) -> tuple[TransformerXL, Vocabulary]:
    """The network, ready to score, and its words."""
    import torch

    weights, card = read_weights(path, FORM)
    shape: dict[str, Any] = json.loads(card["config"])
    network = TransformerXL(TransformerConfig(**{**shape, "cutoffs": tuple(shape["cutoffs"])}))
    network.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    network.eval()
    return network, Vocabulary(card["words"].split(" "), int(card["unknown_kinds"]))
