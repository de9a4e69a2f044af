"""Corpora to manifests, manifests to batches; whatever is wrong in them is named and nothing else is lost."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from acoustic.architectures import FIXED, published
from acoustic.constants import SAMPLE_RATE
from acoustic.features.front_end import FrontEnd
from acoustic.features.normalization import normalize_whole
from tests.full_disk import full_disk
from training.data import corpora
from training.data.audio import ClipError, read_clip
from training.data.features import batch_features, heard_before, known_of
from training.data.loader import Loader, Share, encode, usable
from training.data.manifests import Clip, read_manifest, write_manifest
from training.data.prepare import PrepareOptions, prepare
from training.data.sampler import Budget, plan_epoch
from training.errors import TrainingError

ALPHABET = published["tiny"].alphabet


def tone(
    path: Path, seconds: float = 1.0, rate: int = SAMPLE_RATE, channels: int = 1, form: str | None = None
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    audio = 0.3 * np.sin(2 * np.pi * 440 * np.arange(int(seconds * rate)) / rate)
    soundfile.write(path, np.repeat(audio[:, None], channels, axis=1), rate, format=form, subtype="PCM_16")
    return path


def test_a_clip_of_another_rate_and_two_channels_is_heard_as_mono_at_16_khz(tmp_path: Path) -> None:
    audio = read_clip(tone(tmp_path / "a.wav", 0.5, 44_100, 2))
    assert audio.dtype == np.float32
    assert len(audio) == pytest.approx(8000, abs=2)
    assert float(np.abs(audio).max()) == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize(
    ("content", "words"), [(b"", "cannot be decoded|no sound"), (b"noise" * 99, "cannot be dec")]
)
def test_a_corrupt_clip_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "broken.flac"
    path.write_bytes(content)
    with pytest.raises(ClipError, match=rf"broken\.flac.*({words})"):
        read_clip(path)
    with pytest.raises(ClipError, match=r"absent\.wav does not exist"):
        read_clip(tmp_path / "absent.wav")


def test_nan_in_a_clip_is_named(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "nan.wav", np.array([0.0, np.nan, 0.1]), SAMPLE_RATE, subtype="FLOAT")
    with pytest.raises(ClipError, match=r"nan\.wav holds samples that are no numbers"):
        read_clip(tmp_path / "nan.wav")


def test_a_manifest_comes_back_as_it_was_written(tmp_path: Path) -> None:
    clips = [Clip(tmp_path / "a.wav", 1.5, "it's so", "s1", "c", "CC0", "x"), Clip(Path("/far/b.wav"), 2.25)]
    write_manifest(tmp_path / "manifest.jsonl", clips)
    assert read_manifest(tmp_path) == clips
    assert json.loads((tmp_path / "manifest.jsonl").read_text().splitlines()[0])["audio"] == "a.wav"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"audio": "a.wav", "duration": 1', "no JSON"),
        ("[1]", "a list, no object"),
        ('{"duration": 1}', "`audio` must name a file"),
        ('{"audio": "a.wav", "duration": -1}', "seconds above 0, not -1"),
        ('{"audio": "a.wav", "duration": true}', "seconds above 0, not True"),
        ('{"audio": "a.wav", "duration": 1, "text": 5}', "`text` must be a string or null"),
    ],
)
def test_a_wrong_manifest_line_is_named_with_its_number(tmp_path: Path, line: str, words: str) -> None:
    good = '{"audio": "a.wav", "duration": 1.0, "text": null}'
    (tmp_path / "m.jsonl").write_text(f"{good}\n\n{line}\n{good}\n")
    with pytest.raises(TrainingError, match=rf"m\.jsonl line 3: .*{words}"):
        read_manifest(tmp_path / "m.jsonl")


def test_a_transcript_with_foreign_characters_is_named() -> None:
    with pytest.raises(TrainingError, match=r"x\.wav has characters that the model does not know: 'é'"):
        encode(Clip(Path("x.wav"), 1.0, "café"), ALPHABET)
    assert encode(Clip(Path("x.wav"), 1.0, "ab' "), ALPHABET) == [1, 2, 27, 0]


def test_clips_that_cannot_be_learnt_are_left_out_and_counted() -> None:
    clips = [
        Clip(Path("a"), 1.0, "hello"),
        Clip(Path("b"), 0.05, "x"),
        Clip(Path("c"), 99.0, "x"),
        Clip(Path("d"), 1.0, None),
        Clip(Path("e"), 0.2, "aabbaabbaa"),
    ]
    kept, left_out = usable(clips, min_duration_s=0.1, max_duration_s=20, seconds_per_output=0.02)
    assert [clip.audio.name for clip in kept] == ["a"]
    assert left_out == {"too short": 1, "too long": 1, "no transcript": 1, "more characters than outputs": 1}


def librispeech(root: Path) -> Path:
    chapter = root / "84" / "121123"
    tone(chapter / "84-121123-0000.flac", 1.2)
    tone(chapter / "84-121123-0001.flac", 2.0)
    (chapter / "84-121123.trans.txt").write_text(
        "84-121123-0000 GO DO YOU HEAR\n84-121123-0001 BUT IN LESS\n"
    )
    return root


def common_voice(root: Path) -> Path:
    tone(root / "clips" / "one.wav", 1.2)
    rows = ["client_id\tpath\tsentence\tup_votes", 'abc\tone.wav\tHe said "yes".\t2']
    (root / "validated.tsv").write_text("\n".join(rows) + "\n")
    return root


def an4(root: Path) -> Path:
    tone(root / "wav" / "an4_clstk" / "fash" / "an251-fash-b.sph", 1.0, form="NIST")
    (root / "etc").mkdir()
    (root / "etc" / "an4_train.transcription").write_text("<s> YES </s> (an251-fash-b)\n")
    return root


def speechocean(root: Path) -> Path:
    tone(root / "WAVE" / "SPEAKER0001" / "000010011.WAV", 1.0, form="WAV")
    (root / "train").mkdir()
    (root / "train" / "text").write_text("000010011\tWE CALL IT BEAR\n")
    (root / "train" / "wav.scp").write_text("000010011\tWAVE/SPEAKER0001/000010011.WAV\n")
    (root / "train" / "utt2spk").write_text("000010011\t0001\n")
    return root


def ljspeech(root: Path) -> Path:
    tone(root / "wavs" / "LJ001-0001.wav", 1.0)
    (root / "metadata.csv").write_text("LJ001-0001|In 1971|In nineteen seventy-one\n")
    return root


def wsj(root: Path) -> Path:
    tone(root / "11-1.1" / "wsj0" / "si_tr_s" / "011" / "011c0201.wv1", 2.0, form="NIST")
    (root / "11-4.1").mkdir(parents=True)
    transcript = "The sale [loud_breath] of *the* hotels ,COMMA is part (011c0201)\n"
    (root / "11-4.1" / "011c0200.dot").write_text(transcript)
    return root


def manifest(root: Path) -> Path:
    write_manifest(
        root / "manifest.jsonl", [Clip(tone(root / "a.wav", 1.0), 7.0, "It's one.", "s", "mine", "CC0")]
    )
    return root


def folder(root: Path) -> Path:
    tone(root / "a.wav", 1.0)
    (root / "a.txt").write_text("Dr. Who, 21 times!")
    return root


@pytest.mark.parametrize(
    ("make", "kind", "first"),
    [
        (librispeech, "librispeech", ("go do you hear", "ls-84")),
        (common_voice, "commonvoice", ("he said yes", "cv-abc")),
        (an4, "an4", ("yes", "an4-fash")),
        (speechocean, "speechocean", ("we call it bear", "so-0001")),
        (ljspeech, "ljspeech", ("in nineteen seventy one", "lj")),
        (wsj, "wsj", ("the sale of the hotels comma is part", "wsj-011")),
        (manifest, "manifest", ("it's one", "s")),
        (folder, "folder", ("doctor who twenty one times", None)),
    ],
)
def test_each_corpus_is_known_and_prepared(
    tmp_path: Path, make, kind: str, first: tuple[str, str | None]
) -> None:  # type: ignore[no-untyped-def]
    root = make(tmp_path / "corpus")
    assert corpora.detect(root) == kind
    told = prepare(corpora.CORPORA[kind](root), PrepareOptions(tmp_path / "out", kind))
    clips = read_manifest(tmp_path / "out")
    assert (clips[0].text, clips[0].speaker) == first
    assert clips[0].duration_s == pytest.approx(soundfile.info(clips[0].audio).duration, abs=0.01)
    assert told.clips == len(clips)
    assert told.refused == {}


def test_what_is_wrong_in_a_corpus_is_refused_with_its_reason_and_the_rest_is_kept(tmp_path: Path) -> None:
    root = librispeech(tmp_path / "corpus")
    chapter = root / "84" / "121123"
    (chapter / "84-121123-0002.flac").write_bytes(b"fLaC and then nothing")
    soundfile.write(chapter / "84-121123-0003.flac", np.zeros(16000), SAMPLE_RATE)
    tone(chapter / "84-121123-0004.flac", 0.5)
    with (chapter / "84-121123.trans.txt").open("a") as file:
        file.write(
            "84-121123-0002 BROKEN\n84-121123-0003 SILENCE\n84-121123-0004 "
            + "FAR TOO MANY WORDS " * 3
            + "\n"
        )
        file.write("84-121123-0005 NOBODY RECORDED THIS\n")
    told: list[str] = []
    done = prepare(
        corpora.librispeech(root), PrepareOptions(tmp_path / "out", "librispeech"), report=told.append
    )
    assert done.clips == 2
    assert done.refused == {"unreadable": 2, "silent": 1, "transcript too long for its clip": 1}
    assert any("0002.flac" in line and "cannot be decoded" in line for line in told)
    reasons = [
        json.loads(line)["reason"] for line in (tmp_path / "out" / "refused.jsonl").read_text().splitlines()
    ]
    assert len(reasons) == 4


def test_a_transcript_that_would_lose_letters_is_refused_and_named(tmp_path: Path) -> None:
    texts = ("hello 日本 world".encode(), b"caf\xe9 au lait", "it\u02bcs naïve, Straße".encode())
    for number, text in enumerate(texts):
        tone(tmp_path / "in" / f"{number}.wav", 2.0)
        (tmp_path / "in" / f"{number}.txt").write_bytes(text)
    told: list[str] = []
    done = prepare(
        corpora.any_folder(tmp_path / "in"), PrepareOptions(tmp_path / "out", "folder"), report=told.append
    )
    assert done.refused == {"foreign characters": 2}
    assert "0.wav: foreign characters: 日 本 in 'hello 日本 world'" in told[0]
    assert "1.wav: foreign characters: \ufffd" in told[1]
    assert [clip.text for clip in read_manifest(tmp_path / "out")] == ["it's naive strasse"]


def test_a_full_disk_while_preparing_is_named_and_what_was_done_stays(tmp_path: Path) -> None:
    root = librispeech(tmp_path / "corpus")
    plan = PrepareOptions(tmp_path / "out", "librispeech", convert=True)
    with full_disk(), pytest.raises(TrainingError, match=r"flac cannot be written .* is the disk full\?"):
        prepare(corpora.librispeech(root), plan)
    assert not [*plan.out.rglob(".*.part")]
    assert prepare(corpora.librispeech(root), plan).clips == 2


def test_preparation_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    root = librispeech(tmp_path / "corpus")
    plan = PrepareOptions(tmp_path / "out", "librispeech")
    prepare(corpora.librispeech(root), plan)
    journal = tmp_path / "out" / "done.jsonl"
    first, second = journal.read_text().splitlines()
    journal.write_bytes(f"{first}\n{second[: len(second) // 2]}é".encode()[:-1])  # even inside a letter
    told: list[str] = []
    assert prepare(corpora.librispeech(root), plan, report=told.append).clips == 2
    assert told == ["1 of 2 clips are done already"]
    assert len(journal.read_text().splitlines()) == 2
    tone(root / "84" / "121123" / "84-121123-0001.flac", 2.5)
    assert prepare(corpora.librispeech(root), plan).hours * 3600 == pytest.approx(1.2 + 2.5, abs=0.02)


def test_offline_speed_makes_copies_of_other_lengths_and_speakers(tmp_path: Path) -> None:
    root = librispeech(tmp_path / "corpus")
    plan = PrepareOptions(tmp_path / "out", "librispeech", speeds=(0.9, 1.0, 1.1))
    prepare(corpora.librispeech(root), plan, workers=2)
    clips = read_manifest(tmp_path / "out")
    assert [round(clip.duration_s, 2) for clip in clips[:3]] == [1.33, 1.2, 1.09]
    assert [clip.speaker for clip in clips[:3]] == ["ls-84-0.9", "ls-84", "ls-84-1.1"]
    assert len(read_clip(clips[0].audio)) / SAMPLE_RATE == pytest.approx(clips[0].duration_s, abs=1e-3)


def test_batches_keep_their_budget_and_take_each_clip_once() -> None:
    durations = np.random.default_rng(1).uniform(0.5, 16.0, 500).tolist()
    batches = plan_epoch(durations, Budget(64.0, max_batch_size=24), seed=3, epoch=0)
    rows = [row for batch in batches for row in batch]
    assert sorted(rows) == list(range(500))
    padded = [len(batch) * max(durations[row] for row in batch) for batch in batches]
    assert max(padded) <= 64.0
    assert max(map(len, batches)) <= 24
    assert sum(durations) / sum(padded) > 0.85
    assert batches == plan_epoch(durations, Budget(64.0, max_batch_size=24), seed=3, epoch=0)
    assert batches != plan_epoch(durations, Budget(64.0, max_batch_size=24), seed=3, epoch=1)


def test_batches_for_several_processes_divide_evenly_and_miss_few_clips() -> None:
    durations = np.random.default_rng(2).uniform(1.0, 10.0, 203).tolist()
    batches = plan_epoch(durations, Budget(200.0, rows_multiple=4), seed=0, epoch=0)
    assert all(len(batch) % 4 == 0 for batch in batches)
    rows = [row for batch in batches for row in batch]
    assert len(rows) == len(set(rows)) >= 200
    with pytest.raises(TrainingError, match="raise data.batch_duration_s"):
        plan_epoch([30.0], Budget(10.0), 0, 0)


def make_clips(folder: Path, count: int = 6) -> list[Clip]:
    return [
        Clip(tone(folder / f"{number}.wav", 0.5 + number / 10), 0.5 + number / 10, "ab")
        for number in range(count)
    ]


def test_a_feed_begins_at_any_step_and_splits_steps_without_rest(tmp_path: Path) -> None:
    clips = make_clips(tmp_path)
    feed = Loader(clips, ALPHABET, batch_duration_s=2.0, seed=5)
    steps = feed.from_step(0)
    seen = [next(steps)[0] for _ in range(9)]
    later = feed.from_step(6)
    again = [next(later)[0] for _ in range(3)]
    assert [batch.names for batch in seen[6:]] == [batch.names for batch in again]
    assert [batch.seed for batch in seen[6:]] == [batch.seed for batch in again]
    assert len({batch.seed for batch in seen}) == 9
    steps.close()  # type: ignore[attr-defined]
    later.close()  # type: ignore[attr-defined]
    whole = Loader(clips, ALPHABET, batch_duration_s=60.0).load(0, range(6))[0]
    halves = [
        Loader(clips, ALPHABET, batch_duration_s=30.0, share=Share(rank, 2)).load(0, range(6))[0]
        for rank in (0, 1)
    ]
    assert [half.audio.shape[1] for half in halves] == [whole.audio.shape[1]] * 2
    assert sorted(name for half in halves for name in half.names) == sorted(whole.names)


def test_a_clip_that_breaks_while_training_is_named_once_and_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clips = make_clips(tmp_path)
    feed = Loader(clips, ALPHABET, batch_duration_s=60.0)
    clips[2].audio.write_bytes(b"gone")
    for _ in range(2):
        batch = feed.load(0, range(6))[0]
        assert len(batch) == 6
        assert not any(name.endswith("2.wav") for name in batch.names)
    assert sum("2.wav cannot be decoded" in record.message for record in caplog.records) == 1


def test_resident_sound_is_the_same_sound(tmp_path: Path) -> None:
    clips = make_clips(tmp_path)
    read = Loader(clips, ALPHABET, batch_duration_s=60.0).load(0, range(6))[0]
    clips[5].audio.write_bytes(b"gone")
    kept = Loader(clips, ALPHABET, batch_duration_s=60.0, resident=True)
    assert list(kept.broken) == [5]
    for clip in clips:
        clip.audio.unlink()
    again = kept.load(0, range(6))[0]
    assert torch.allclose(again.audio[:5], read.audio[:5], atol=1e-4)
    assert again.lengths.tolist() == [*read.lengths.tolist()[:5], int(read.lengths[0])]


def test_features_on_the_device_are_those_of_the_front_end() -> None:
    config = published["quartznet5x5"].features
    front_end = FrontEnd(config)
    lengths = [4001, 8000, 161, 16000]
    sounds = [
        np.random.default_rng(index).normal(0, 0.1, size).astype(np.float32)
        for index, size in enumerate(lengths)
    ]
    padded = torch.zeros(4, 16000)
    for row, audio in zip(padded, sounds, strict=True):
        row[: len(audio)] = torch.from_numpy(audio)
    features, frames = batch_features(front_end, padded, torch.tensor(lengths))
    expected, counts = front_end.batch(sounds)
    assert frames.tolist() == counts.tolist()
    assert torch.allclose(features, normalize_whole(config, expected, counts), atol=2e-3)


def test_a_share_of_the_rows_comes_in_a_stream_that_has_heard_something_before() -> None:
    config = replace(FIXED, normalize="causal", memory_frames=900, prior_frames=50)
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(40, 64, 120, generator=generator) - 11.0
    features[:, :, 60:] += 5.0  # speech, after what is quiet
    frames = torch.full((40,), 120)
    assert heard_before(config, features, frames, 0.0, generator) == [None] * 40
    memories = heard_before(config, features, frames, 0.5, generator)
    known = [memory for memory in memories if memory]
    assert 10 <= len(known) <= 30
    assert all(100 <= memory.frames < 900 for memory in known)
    longest = [memory.mean_and_deviation()[0].mean() for memory in known if memory.frames > 400]
    assert any(abs(mean + 11.0) < 0.7 for mean in longest)  # nothing but what is quiet
    assert any(abs(mean + 8.5) < 0.7 for mean in longest)  # another row


def test_what_was_heard_before_is_a_row_as_far_as_it_reaches_or_its_quietest_eighth() -> None:
    features = torch.randn(3, 64, 80, generator=torch.Generator().manual_seed(9))
    features[1, :, ::8] -= 20.0
    frames = torch.tensor([50, 80, 0])
    means, squares, there = known_of(
        features, frames, torch.tensor([0, 1, 1, 2]), torch.tensor([False, True, False, True])
    )
    assert list(there) == [True, True, True, False]
    wanted = [features[0, :, :50].double(), features[1, :, ::8].double(), features[1].double()]
    for mean, square, heard in zip(means, squares, wanted, strict=False):
        np.testing.assert_allclose(mean, heard.mean(1))
        np.testing.assert_allclose(square, heard.square().mean(1))
