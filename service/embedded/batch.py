"""A whole recording to words in this very process: a backend, a decoder, and the segmenter that the service has too.

For `silica transcribe`. Live sound and many streams at once are `service.recognizer`.
"""

from collections.abc import Callable, Iterable, Iterator

from acoustic.architectures import ModelConfig
from acoustic.constants import OUTPUT_SAMPLES, SAMPLE_RATE
from acoustic.features.framing import Samples
from acoustic.windows import LogProbs, WindowPlan
from lm.decoders import Decoder, Utterance
from lm.hypothesis import Hypothesis
from lm.search.settings import SearchSettings
from service.session.endpoint import EndpointRule, EndpointSignal
from service.session.energy import SilenceDetector, SilenceTracker
from service.session.events import Final
from service.session.segmenter import Segmenter
from service.session.transcript import Transcript

Network = Callable[[Iterable[Samples]], Iterable[LogProbs]]
"""Sound block by block to log-probabilities, in pieces."""


class _Measured:
    """Sound that is measured as the network reads it; a network that reads it twice measures it anew."""

    def __init__(self, sound: Iterable[Samples]) -> None:
        self._sound = sound
        self.samples = 0
        self.quiet = SilenceTracker(SilenceDetector())

    def __iter__(self) -> Iterator[Samples]:
        self.samples, self.quiet = 0, SilenceTracker(SilenceDetector())
        for block in self._sound:
            self.samples += block.size
            self.quiet.push(block)
            yield block


def utterances_of(
    sound: Iterable[Samples],
    network: Network,
    decoder: Decoder,
    settings: SearchSettings,
    config: ModelConfig,
    plan: WindowPlan,
    rule: EndpointRule,
    on_partial: Callable[[Hypothesis], None] | None = None,
) -> Iterator[Final]:
    """Each utterance as it ends, as a stream of this plan gives it; `on_partial` gets the best hypothesis meanwhile."""
    measured, segmenter, transcript = _Measured(sound), Segmenter(rule, config, plan), Transcript()
    utterance: Utterance | None = None
    start = done = 0

    def final(ended: Utterance, frames: int, speech_final: bool) -> Final:
        begin, end = start * OUTPUT_SAMPLES, min(frames * OUTPUT_SAMPLES, measured.samples)
        alternatives = transcript.final(ended.finish(), begin, end)
        return Final(0, begin / SAMPLE_RATE, end / SAMPLE_RATE, alternatives, speech_final)

    for log_probs in network(measured):
        for step in segmenter.walk(log_probs, measured.quiet):
            if utterance is None:  # the first step of each utterance is STARTED
                utterance, start = decoder.start(settings), done + step.frame - 1 - step.preroll
                continue
            utterance.push(step.log_probs)
            if step.signal in (EndpointSignal.ENDED, EndpointSignal.CUT):
                yield final(utterance, done + step.frame, step.signal is EndpointSignal.ENDED)
                utterance = None
            elif on_partial is not None:
                on_partial(utterance.best())
        done += len(log_probs)
    if utterance is not None:
        yield final(utterance, done, speech_final=False)
