"""The options that `transcribe`, `evaluate` and `bench` share, and the backend and decoder they open with them."""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acoustic.features.framing import Samples
    from acoustic.runtime import Backend
    from acoustic.windows import LogProbs
    from lm.decoders import Decoder
    from lm.hypothesis import Hypothesis
    from lm.language_model import LanguageModel
    from lm.search.settings import SearchSettings
    from service.embedded.batch import Network
    from service.session.events import Final
    from service.session.stream_settings import StreamSettings

DECODERS = ("beam", "greedy", "pyctcdecode")


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model, on what."""
    parser.add_argument("--model", help="name or path of the acoustic model (default: the one in the box)")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where the network runs (default: cpu)"
    )
    parser.add_argument(
        "--precision",
        choices=("fp32", "int8", "fp16"),
        help="its arithmetic (default: the fastest it is ready for)",
    )


def add_recognition_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model and which decoder."""
    add_model_arguments(parser)
    parser.add_argument(
        "--decoder", choices=DECODERS, default="beam", help="how words are searched (default: beam)"
    )
    parser.add_argument(
        "--language-model",
        default="shipped",
        metavar="FILE",
        help="KenLM binary, or what `silica lm rescore --out` wrote; `shipped` or `none`",
    )
    default = "default: what the model's card says suits it"
    parser.add_argument("--width", type=int, help=f"how many readings the beam keeps ({default})")
    parser.add_argument("--lm-weight", type=float, help=f"how much the language model counts ({default})")
    parser.add_argument("--word-bonus", type=float, help=f"what each word adds ({default})")
    parser.add_argument(
        "--unknown-penalty", type=float, help=f"what a word costs that the language model lacks ({default})"
    )
    parser.add_argument(
        "--blank-penalty", type=float, help=f"what each 20 ms costs in which nothing is written ({default})"
    )
    parser.add_argument(
        "--hotword",
        action="append",
        default=[],
        metavar="PHRASE[:WEIGHT]",
        help="a phrase to expect; repeatable",
    )


@dataclass(frozen=True)
class EmbeddedRecognizer:
    """A backend and a decoder, ready for recordings."""

    backend: "Backend"
    decoder: "Decoder"
    settings: "SearchSettings"
    language_model: str

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> "EmbeddedRecognizer":
        """Open what the line asks for; says on stderr when a beam has to do without a language model."""
        from acoustic import catalogue
        from lm.search.settings import settings_from_card

        backend = backend_from_arguments(arguments)
        language, name = _load_language_model(arguments)
        decoder = language.decoder(arguments.decoder, backend.config.alphabet)
        search = _search_settings(
            arguments, settings_from_card(catalogue.find_description(model_name(arguments))[1])
        )
        return cls(backend, decoder, search, name)

    def utterances(
        self,
        audio: "Iterable[Samples]",
        network: "Network",
        preset: "StreamSettings",
        on_partial: "Callable[[Hypothesis], None] | None" = None,
    ) -> "Iterator[Final]":
        """The utterances of one recording, which end as those of a stream with these settings do."""
        from service.embedded.batch import iter_utterances

        backend, rule = self.backend, preset.endpoint_rule
        return iter_utterances(
            audio, network, self.decoder, self.settings, backend.config, backend.plan, rule, on_partial
        )

    def text(self, log_probs: "LogProbs") -> str:
        """The words of log-probabilities that are one utterance from end to end."""
        if not len(log_probs):
            return ""
        utterance = self.decoder.start(self.settings)
        utterance.push(log_probs)
        return " ".join(word.text for word in utterance.finish()[0].words)


def backend_from_arguments(arguments: argparse.Namespace) -> "Backend":
    """The acoustic model that the line names, on one thread."""
    import torch

    from acoustic.runtime import open_backend

    if arguments.device == "cpu":
        torch.set_num_threads(1)  # more threads in one process are slower than more processes
    return open_backend(model_name(arguments), arguments.device, arguments.precision)


def model_name(arguments: argparse.Namespace) -> str:
    """The acoustic model that the line names, or the one in the box."""
    from acoustic import catalogue

    return arguments.model or catalogue.default_name()


def _load_language_model(arguments: argparse.Namespace) -> "tuple[LanguageModel, str]":
    from lm.language_model import LanguageModel

    name = "none" if arguments.decoder == "greedy" else str(arguments.language_model)
    language = LanguageModel.load(name)
    if language.ngram is None and name != "none":
        sys.stderr.write("silica: no language model is in the box: the beam searches without one\n")
        name = "none"
    return language, name


def _search_settings(arguments: argparse.Namespace, settings_from_card: "SearchSettings") -> "SearchSettings":
    from dataclasses import replace

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
                raise ValueError("nothing is left of it in the letters a to z")
            hotwords.append(Hotword(phrase, float(weight)))
        except ValueError as error:
            raise ServiceError(
                ErrorCode.HOTWORD,
                f"{text!r} is no hotword.",
                "Expected PHRASE or PHRASE:WEIGHT in the letters a to z, such as kubernetes:6.",
            ) from error
    return replace(settings_from_card, **overrides, hotwords=tuple(hotwords))
