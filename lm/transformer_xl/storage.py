"""A Transformer-XL on disk: one safetensors file, with its shape and its words in the metadata."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lm.errors import LanguageError
from lm.transformer_xl.model import TransformerConfig, TransformerXL
from lm.transformer_xl.vocabulary import Vocabulary

FORM = "silica transformer-xl 1"


def save(path: Path, network: TransformerXL, vocabulary: Vocabulary, half: bool = False) -> None:
    """Write the file whole or not at all; `half` stores the weights in 16 bits."""
    import torch
    from safetensors.torch import save_file

    metadata = {
        "form": FORM,
        "config": json.dumps(asdict(network.config)),
        "words": " ".join(vocabulary.words),
        "unknown_kinds": str(vocabulary.unknown_kinds),
    }
    weights = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    if half:
        weights = {name: tensor.to(torch.float16) for name, tensor in weights.items()}
    fresh = path.with_name(path.name + ".fresh")
    save_file(weights, fresh, metadata)
    fresh.replace(path)


def load(path: Path) -> tuple[TransformerXL, Vocabulary]:
    """The network, ready to score, and its words."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise LanguageError(
            f"there is no Transformer-XL {path}; `silica train-lm TEXT --out FOLDER` makes one"
        )
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            weights = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise LanguageError(f"{path} is no safetensors file: {error}") from None
    if metadata.get("form") != FORM:
        raise LanguageError(
            f"{path} is no Transformer-XL of ours: expected form {FORM!r}, found {metadata.get('form')!r}"
        )
    shape: dict[str, Any] = json.loads(metadata["config"])
    network = TransformerXL(TransformerConfig(**{**shape, "cutoffs": tuple(shape["cutoffs"])}))
    network.load_state_dict(weights)
    network.eval()
    return network, Vocabulary(metadata["words"].split(" "), int(metadata["unknown_kinds"]))
