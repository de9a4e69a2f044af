"""MP4 files with their index at the end can be decoded from a stream once it has been moved to the front."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from service.audio.faststart import index_first, shift, top_boxes


def write_m4a(path: Path) -> Path:
    with av.open(str(path), "w", format="mp4") as target:
        stream = target.add_stream("aac", rate=16000, layout="mono")
        rng = np.random.default_rng(0)
        for _ in range(40):
            sound = rng.normal(0, 0.1, (1, 1024)).astype(np.float32)
            frame = av.AudioFrame.from_ndarray(sound, format="fltp", layout="mono")
            frame.sample_rate = 16000
            target.mux(stream.encode(frame))
        target.mux(stream.encode(None))
    return path


def decoded(path: Path) -> np.ndarray:
    with av.open(str(path)) as source:
        return np.concatenate([frame.to_ndarray()[0] for frame in source.decode(audio=0)])


def test_the_index_moves_to_the_front_and_the_sound_stays(tmp_path: Path) -> None:
    path = write_m4a(tmp_path / "memo.m4a")
    before = decoded(path)
    with path.open("rb") as file:
        kinds = [box.kind for box in top_boxes(file, path.stat().st_size)]
    assert kinds.index(b"mdat") < kinds.index(b"moov")
    assert index_first(path)
    with path.open("rb") as file:
        kinds = [box.kind for box in top_boxes(file, path.stat().st_size)]
    assert kinds.index(b"moov") < kinds.index(b"mdat")
    np.testing.assert_array_equal(decoded(path), before)
    assert not index_first(path)


def test_what_is_no_mp4_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    for text in (b"", b"dear sir", b"\0\0\0\x08moov\0\0\0\x09mdat" + b"x" * 20):
        path.write_bytes(text)
        assert not index_first(path)
        assert path.read_bytes() == text


@given(st.binary(max_size=300))
def test_a_wild_index_is_never_an_exception(data: bytes) -> None:
    for kind in (b"stco", b"co64", b"trak"):
        index = bytearray(len(data).to_bytes(4, "big") + kind + data)
        shift(index, 1000, 0, 1 << 40)
        assert len(index) == len(data) + 8
