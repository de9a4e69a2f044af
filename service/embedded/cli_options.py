"""Recognition options shared by `transcribe`, `evaluate` and `bench`, and the backend and decoder they select."""

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acoustic.runtime import Backend
    from lm.language_model import LanguageModel
    from lm.search.settings import SearchSettings
    from service.embedded.recognizer import EmbeddedRecognizer

DECODERS = ("beam", "greedy", "pyctcdecode")


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --model, --device and --precision."""
    group = parser.add_argument_group("acoustic model")
    group.add_argument(
        "--model", metavar="NAME", help="name or path of the acoustic model (default: the shipped model)"
    )
    group.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="device of the acoustic model (default: %(default)s)",
    )
    group.add_argument(
        "--precision",
        choices=("fp32", "int8", "fp16"),
        help="precision of the acoustic model (default: the fastest available for the device)",
    )


def add_recognition_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model and decoder options."""
    add_model_arguments(parser)
    group = parser.add_argument_group("decoder")
    group.add_argument(
        "--decoder", choices=DECODERS, default="beam", help="CTC decoder (default: %(default)s)"
    )
    group.add_argument(
        "--language-model",
        default="shipped",
        metavar="FILE",
        help="KenLM file, output of `silica lm rescore --out`, `shipped` or `none` (default: %(default)s)",
    )
    default = "default: from the model's card"
    group.add_argument("--width", type=int, metavar="N", help=f"beam width in hypotheses ({default})")
    group.add_argument(
        "--lm-weight", type=float, metavar="W", help=f"weight of the language model ({default})"
    )
    group.add_argument("--word-bonus", type=float, metavar="W", help=f"score added per word ({default})")
    group.add_argument(
        "--unknown-penalty",
        type=float,
        metavar="W",
        help=f"score subtracted per word unknown to the language model ({default})",
    )
    group.add_argument(
        "--blank-penalty",
        type=float,
        metavar="W",
        help=f"score subtracted per blank frame of 20 ms ({default})",
    )
    group.add_argument(
        "--hotword",
        action="append",
        default=[],
        metavar="PHRASE[:WEIGHT]",
        help="phrase to recognize more readily; repeatable (default weight: 5)",
    )


def recognizer_from_arguments(arguments: argparse.Namespace) -> "EmbeddedRecognizer":
    """Open the selected backend and decoder. Warns when the beam search has no language model."""
    from acoustic import catalogue
    from lm.search.settings import settings_from_card
    from service.embedded.recognizer import EmbeddedRecognizer

    backend = backend_from_arguments(arguments)
    language, name = _load_language_model(arguments)
    decoder = language.decoder(arguments.decoder, backend.config.alphabet)
    search = _search_settings(
        arguments, settings_from_card(catalogue.find_description(model_name(arguments))[1])
    )
    return EmbeddedRecognizer(backend, decoder, search, name)


def backend_from_arguments(arguments: argparse.Namespace) -> "Backend":
    """The selected acoustic model."""
    import torch

    from acoustic.runtime import open_backend

    if arguments.device == "cpu":
        torch.set_num_threads(1)  # one thread per process is the most efficient
    return open_backend(model_name(arguments), arguments.device, arguments.precision)


def model_name(arguments: argparse.Namespace) -> str:
    """The selected or the shipped acoustic model."""
    from acoustic import catalogue

    return arguments.model or catalogue.default_name()


def _load_language_model(arguments: argparse.Namespace) -> "tuple[LanguageModel, str]":
    from lm.language_model import LanguageModel

    name = "none" if arguments.decoder == "greedy" else str(arguments.language_model)
    language = LanguageModel.load(name)
    if language.ngram is None and name != "none":
        sys.stderr.write(
            "silica: no language model is shipped with this build; the beam search runs without one\n"
        )
        name = "none"
    return language, name


def _search_settings(arguments: argparse.Namespace, settings_from_card: "SearchSettings") -> "SearchSettings":
    from lm.search.hotwords import Hotword
    from lm.text.normalize import normalize
    from service.errors import ErrorCode, ServiceError

    overrides: dict[str, Any] = {
        name: getattr(arguments, name)
        for name in ("width", "lm_weight", "word_bonus", "unknown_penalty", "blank_penalty")
        if getattr(arguments, name) is not None
    }
    hotwords = []
    for text in arguments.hotword:
        phrase, _, weight = text.rpartition(":") if ":" in text else (text, "", "5")
        try:
            phrase = normalize(phrase)
            if not phrase:
                raise ValueError("it has no characters a to z")
            hotwords.append(Hotword(phrase, float(weight)))
        except ValueError as error:
            raise ServiceError(
                ErrorCode.HOTWORD,
                f"{text!r} is not a valid hotword.",
                "Expected PHRASE or PHRASE:WEIGHT with characters a to z, such as kubernetes:6.",
            ) from error
    return replace(settings_from_card, **overrides, hotwords=tuple(hotwords))
