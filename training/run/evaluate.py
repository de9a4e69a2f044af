"""Word error rate of a model on a development set: greedy, without a language model, whole utterances."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from acoustic.config import ModelConfig
from acoustic.features.front_end import FrontEnd
from lm.decoders import open_decoder
from lm.score import ErrorCounts, character_errors, word_errors
from training.data.features import batch_features
from training.data.loader import Loader
from training.data.manifests import Clip
from training.data.sampler import Budget, plan_epoch
from training.run.distributed import World


@dataclass(frozen=True)
class Score:
    """Errors over a set, and one utterance of it with what was heard."""

    words: ErrorCounts
    characters: ErrorCounts
    example: tuple[str, str] | None


class Evaluation:
    """A development set, ready to be heard again and again."""

    def __init__(
        self, clips: Sequence[Clip], config: ModelConfig, world: World, *, batch_duration_s: float = 160.0
    ) -> None:
        self.config = config
        self.world = world
        self.front_end = FrontEnd(config.features).to(world.device)
        self.decoder = open_decoder("greedy", config.alphabet)
        self.clips = list(clips)
        # Transcripts stay text here: a character that the model does not know is an error of the model.
        self._feed = Loader(
            [Clip(clip.audio, clip.duration_s) for clip in clips], "", batch_duration_s=batch_duration_s
        )
        longest = max((clip.duration_s for clip in clips), default=0.0)
        budget = Budget(max(batch_duration_s, longest))
        self._batches = plan_epoch([clip.duration_s for clip in clips], budget, 0, 0, shuffle=False)

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> Score:
        """Hear the whole set; processes share the work and all get the sum. The model is left as it was."""
        was_training = model.training
        model.eval()
        words = characters = ErrorCounts()
        example = None
        try:
            for batch in self._batches[self.world.rank :: self.world.size]:
                for row, heard in self._hear(model, batch):
                    said = self.clips[row].text or ""
                    words += word_errors(said, heard)
                    characters += character_errors(said, heard)
                    if example is None:
                        example = (said, heard)
        finally:
            model.train(was_training)
        return Score(_sum(words, self.world), _sum(characters, self.world), example)

    def _hear(self, model: nn.Module, rows: Sequence[int]) -> list[tuple[int, str]]:
        """What is heard in each row; a clip that cannot be read, in whose place the feed puts another, has no part."""
        batch = self._feed.load(0, rows)[0].to(self.world.device)
        features, frames = batch_features(self.front_end, batch.audio, batch.lengths)
        log_probs, outputs = model(features, frames)
        texts = []
        answers = log_probs.float().cpu().numpy()
        for row, name, answer, length in zip(rows, batch.names, answers, outputs.tolist(), strict=True):
            if name != str(self.clips[row].audio):
                continue
            utterance = self.decoder.start()
            utterance.push(answer[:length])
            texts.append((row, utterance.finish()[0].text))
        return texts


def _sum(counts: ErrorCounts, world: World) -> ErrorCounts:
    values = [counts.words, counts.substitutions, counts.insertions, counts.deletions]
    return ErrorCounts(*(round(value) for value in world.sum([float(value) for value in values])))
