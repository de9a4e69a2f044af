"""flashlight-text with the settings of torchaudio's CTC decoder, as a baseline for benchmarks/decoding.py."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm.ngram.trie import NGram
from lm.search.settings import SearchSettings


class Flashlight:
    """Lexicon beam search with KenLM, maximum smearing and log-addition of alignments."""

    def __init__(self, alphabet: str, ngram: NGram) -> None:
        from flashlight.lib.text.decoder import KenLM, SmearingMode, Trie
        from flashlight.lib.text.dictionary import Dictionary

        self.classes = len(alphabet) + 1
        self.space = alphabet.index(" ")
        words = [word.decode() for word in ngram.vocabulary().tolist()]
        self.words = Dictionary()
        for word in words:
            self.words.add_entry(word)
        self.model = KenLM(str(ngram.path), self.words)
        self.trie = Trie(self.classes, self.space)
        start = self.model.start(False)
        for number, word in enumerate(words):
            if word and set(word) <= set(alphabet):
                _, score = self.model.score(start, number)
                self.trie.insert([*map(alphabet.index, word), self.space], number, score)
        self.trie.smear(SmearingMode.MAX)
        self.unknown = self.words.get_index("<unk>")
        self.decoders: dict[SearchSettings, Any] = {}

    def decoder(self, settings: SearchSettings) -> Any:
        """The decoder for these settings, from a cache."""
        from flashlight.lib.text.decoder import CriterionType, LexiconDecoder, LexiconDecoderOptions

        if settings not in self.decoders:
            options = LexiconDecoderOptions(
                beam_size=settings.width,
                beam_size_token=10,  # it limits the number of labels per frame, not their probability
                beam_threshold=settings.beam_spread,
                lm_weight=settings.lm_weight * math.log(10.0),  # it adds KenLM's log10 scores unconverted
                word_score=settings.word_bonus,
                unk_score=-math.inf,
                sil_score=0.0,
                log_add=True,
                criterion_type=CriterionType.CTC,
            )
            self.decoders[settings] = LexiconDecoder(
                options, self.trie, self.model, self.space, self.classes - 1, self.unknown, [], False
            )
        return self.decoders[settings]

    def transcribe(self, frames: NDArray[np.float32], settings: SearchSettings) -> str:
        """The best hypothesis of the log-probabilities `[frames, classes]`."""
        results = self.decoder(settings).decode(frames.ctypes.data, len(frames), self.classes)
        return " ".join(self.words.get_entry(word) for word in results[0].words if word >= 0)
