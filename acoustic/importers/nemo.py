"""Imports NVIDIA NeMo's `.nemo` archives of Jasper and QuartzNet: a tar of a YAML configuration and saved weights.

Since NeMo 1.0 these are `model_config.yaml` and `model_weights.ckpt`; earlier archives have `module.yaml` and one file
each for encoder and decoder.
"""

import io
import math
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from acoustic.architectures import ALPHABET, FEATURES, SPEECH_DEVIATION, SPEECH_MEAN
from acoustic.checkpoint import Checkpoint
from acoustic.config import BlockConfig, FeatureConfig, ModelConfig
from acoustic.errors import AcousticError
from acoustic.importers.jasper_layout import BlockShape, convert, group_tensors, shape_of
from acoustic.importers.untrusted import load_tensors, read_archive

CONFIG, WEIGHTS = "model_config.yaml", "model_weights.ckpt"
OLD_CONFIG, OLD_WEIGHTS = "module.yaml", {"encoder": "JasperEncoder.pt", "decoder": "JasperDecoderForCTC.pt"}


def recognizes(path: Path) -> bool:
    """Whether the path may be such an archive."""
    return path.is_file() and (path.suffix == ".nemo" or tarfile.is_tarfile(path))


def read(path: Path) -> Checkpoint:
    """Read the archive."""
    members = read_archive(path, {CONFIG, WEIGHTS, OLD_CONFIG, *OLD_WEIGHTS.values()})
    old = OLD_CONFIG in members
    missing = {OLD_CONFIG, *OLD_WEIGHTS.values()} - set(members) if old else {CONFIG, WEIGHTS} - set(members)
    if missing:
        raise AcousticError(f"{path} lacks {', '.join(sorted(missing))}: it is not a complete NeMo archive.")
    config_name = OLD_CONFIG if old else CONFIG
    table = _table(f"{path}:{config_name}", members[config_name])
    state: dict[str, Any] = {}
    for prefix, name in OLD_WEIGHTS.items() if old else [("", WEIGHTS)]:
        tensors = load_tensors(io.BytesIO(members[name]), f"{path}:{name}")
        if not isinstance(tensors, Mapping):
            raise AcousticError(f"{path}:{name} is not a mapping of names to tensors.")
        state |= {f"{prefix}.{key}" if prefix else str(key): tensor for key, tensor in tensors.items()}
    blocks, decoder = group_tensors(state)
    try:
        config = _config(path.stem, table, [shape_of(block) for block in blocks])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise AcousticError(f"{path}:{config_name} has a missing or invalid entry: {error!r}.") from error
    card = {"title": path.stem, "imported_from": "NVIDIA NeMo archive"}
    checkpoint = Checkpoint(config, convert(blocks, decoder), card)
    checkpoint.network()  # raises if shapes do not fit
    return checkpoint


def _table(name: str, text: bytes) -> Mapping[str, Any]:
    """The sections `preprocessor`, `encoder` and `decoder`, wherever the NeMo version stores them."""
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError as error:
        raise AcousticError("Reading .nemo archives needs PyYAML: `pip install pyyaml`.") from error
    try:
        table = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise AcousticError(f"{name} is not valid YAML: {error}.") from error
    if not isinstance(table, dict):
        raise AcousticError(f"{name} is not a YAML mapping.")
    if isinstance(old := table.get("init_params"), dict):
        return {str(key).removesuffix("_params"): section for key, section in old.items()}
    return cast("Mapping[str, Any]", table.get("model", table))


def _config(name: str, table: Mapping[str, Any], shapes: list[BlockShape]) -> ModelConfig:
    encoder = _settings(table["encoder"])
    rows = encoder["jasper"]
    if len(rows) != len(shapes):
        raise AcousticError(f"{CONFIG} has {len(rows)} blocks, the weights have {len(shapes)}.")
    if encoder.get("activation", "relu") != "relu":
        raise AcousticError(
            f"The activation {encoder['activation']!r} is not supported; published networks use relu."
        )
    decoder = _settings(table["decoder"])
    dense = any(shape.projections > 1 for shape in shapes)
    return ModelConfig(
        name=name,
        features=_features(_settings(table["preprocessor"])),
        blocks=tuple(_block(row, shape, dense) for row, shape in zip(rows, shapes, strict=True)),
        # The oldest files are English and have no vocabulary; a wrong number of outputs is rejected later.
        alphabet="".join(decoder.get("vocabulary") or table.get("labels") or ALPHABET),
        masks="conv" if encoder.get("conv_mask", True) else "none",
    )


def _settings(section: Mapping[str, Any]) -> Mapping[str, Any]:
    """Some NeMo versions nest the settings in `params` or `init_params`."""
    return cast("Mapping[str, Any]", section.get("init_params") or section.get("params") or section)


def _block(row: Mapping[str, Any], shape: BlockShape, dense: bool) -> BlockConfig:
    stride, dilation = _single(row.get("stride", 1)), _single(row.get("dilation", 1))
    if stride > 1 and shape.repeat > 1:
        raise AcousticError(
            f"A block of {shape.repeat} sub-blocks with stride {stride}: NeMo applies the stride in each sub-block, "
            "which Silica does not support."
        )
    if _single(row["kernel"]) != shape.kernel or row["filters"] != shape.channels:
        raise AcousticError(f"{CONFIG} and the weights disagree on a block: {dict(row)}, {shape}.")
    residual = "dense_residual" if dense else "residual"
    return BlockConfig(
        kernel=shape.kernel,
        channels=shape.channels,
        repeat=shape.repeat,
        stride=stride,
        dilation=dilation,
        separable=shape.separable,
        residual=cast(Any, residual if shape.projections else "none"),
        groups=shape.groups,
        dropout=float(row.get("dropout", 0.0)),
    )


def _single(value: Any) -> int:
    """NeMo writes one-dimensional sizes as `[33]` or `33`."""
    return int(value[0]) if isinstance(value, list) else int(value)


def _features(settings: Mapping[str, Any]) -> FeatureConfig:
    normalize = settings.get("normalize", "per_feature")
    if normalize != "per_feature":
        raise AcousticError(
            f"The front end's normalization is {normalize!r}; only 'per_feature' is supported."
        )
    if int(settings.get("frame_splicing", 1)) != 1 or settings.get("window", "hann") != "hann":
        raise AcousticError("The front end uses frame splicing or a window other than Hann: not supported.")
    rate = int(settings.get("sample_rate", 16_000))
    mels = int(settings.get("features", 64))
    window = round(float(settings.get("window_size", 0.02)) * rate)
    priors = mels == FEATURES.mels
    return replace(
        FEATURES,
        sample_rate=rate,
        mels=mels,
        window_samples=window,
        hop_samples=round(float(settings.get("window_stride", 0.01)) * rate),
        fft_samples=int(settings.get("n_fft") or 2 ** math.ceil(math.log2(window))),
        high_hz=rate / 2,
        mean=SPEECH_MEAN if priors else None,
        deviation=SPEECH_DEVIATION if priors else None,
    )
