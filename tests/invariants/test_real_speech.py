"""Real speech through QuartzNet 15x5, served: the words are those of the plain loop, with a low WER."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from acoustic.checkpoint import save
from acoustic.runtime import open_backend
from acoustic.windows import with_hop
from lm.score import word_errors
from service.audio.files import read_file
from service.recognizer import StreamSettings
from service.scheduling.decode_worker import UtteranceTable
from tests.invariants.streaming import make_recognizer, results, stream_through, texts
from tests.session.synchronous_driver import transcribe

SHARED = Path(__file__).parents[3] / "shared"
TEACHER = SHARED / "models" / "quartznet15x5-en"
DEV = SHARED / "speech" / "dev"


@pytest.mark.shared
@pytest.mark.skipif(
    not TEACHER.is_dir() or not DEV.is_dir(), reason="needs ../shared: QuartzNet 15x5 and real speech"
)
@pytest.mark.timeout(300)
async def test_the_teacher_gives_the_same_with_other_streams(tmp_path: Path) -> None:
    """With running normalization each window waits for the previous one. The hop is fixed."""
    from acoustic.importers import folded

    checkpoint = folded.read(TEACHER)
    model = save(tmp_path / "teacher.safetensors", checkpoint.config, checkpoint.state, checkpoint.card)
    lines = [json.loads(line) for line in (DEV / "manifest.jsonl").read_text().splitlines()]
    clips = [line for line in lines if 4 < line["duration"] < 7][:3]
    recordings = [read_file(DEV / clip["audio"]).astype(np.float32) for clip in clips]
    recognizer = make_recognizer(model, tmp_path, hops_s=(0.64,))
    await recognizer.start()
    settings = StreamSettings()
    streams = await asyncio.gather(
        *(stream_through(recognizer, audio, settings, range(4000, 60_000, 4000)) for audio in recordings)
    )
    await recognizer.stop()
    backend = open_backend(model)
    utterances = UtteranceTable(backend.config.alphabet, None)
    plan = with_hop(backend.config, backend.plan, 0.64)
    errors = words = 0
    for clip, audio, events in zip(clips, recordings, streams, strict=True):
        alone = transcribe(
            lambda w: backend.forward([w])[0], audio, settings, backend.config, plan, utterances
        )
        assert results(events) == results(alone)
        counts = word_errors(clip["text"], " ".join(texts(events)))
        words += counts.words
        errors += counts.substitutions + counts.insertions + counts.deletions
    assert errors <= 0.2 * words
