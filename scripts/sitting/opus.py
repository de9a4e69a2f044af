"""Raw Opus packets by libopus, through ctypes: a clip as one row of packets of 60 ms, each behind its length.

PyAV would want a container for each clip, and the machine that a sitting is lent seldom has it. What lies in a file
with many clips is in `sitting.parts`.
"""

import ctypes
import ctypes.util
import functools
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acoustic.constants import SAMPLE_RATE
from training.errors import TrainingError

PACKET_SAMPLES = 960
MAX_PACKET = 4000
CARRIED = "libopus.so.0"
"""What the library is called beside the parts, where it came along."""
VOICE = 2048
RESET, BITRATE, VARIABLE, COMPLEXITY, SIGNAL, DELAY = 4028, 4002, 4006, 4010, 4024, 4027
SPEECH = 3001
Samples = NDArray[np.int16]


@functools.cache
def library(folder: Path | None = None) -> Any:
    """The system's libopus, else the one that lies in the folder."""
    carried = [] if folder is None else [str((folder / CARRIED).resolve())]
    for name in (ctypes.util.find_library("opus"), CARRIED, *carried):
        try:
            opened = ctypes.CDLL(name) if name else None
        except OSError:
            continue
        if opened is not None:
            return _described(opened)
    raise TrainingError(
        "There is no libopus, which packs and unpacks the sound: install it (on Debian the package libopus0), or put "
        f"one beside the parts as {folder / CARRIED if folder else CARRIED}."
    )


def where() -> Path | None:
    """The file of the library that this process has opened; None where the system does not say."""
    library()
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    return next((Path(line.split(maxsplit=5)[5]) for line in lines if "/libopus.so" in line), None)


def _described(opened: Any) -> Any:
    """With the types of what is called."""
    pointer, number = ctypes.c_void_p, ctypes.c_int32
    opened.opus_encoder_create.restype = opened.opus_decoder_create.restype = pointer
    opened.opus_encoder_create.argtypes = [number, ctypes.c_int, ctypes.c_int, pointer]
    opened.opus_decoder_create.argtypes = [number, ctypes.c_int, pointer]
    opened.opus_encode.argtypes = [pointer, pointer, ctypes.c_int, ctypes.c_char_p, number]
    opened.opus_decode.argtypes = [pointer, ctypes.c_char_p, number, pointer, ctypes.c_int, ctypes.c_int]
    return opened


class Encoder:
    """Makes packets; lives as long as its process."""

    def __init__(self, bits_per_second: int, complexity: int = 2) -> None:
        self._opus = library()
        wrong, delay = ctypes.c_int(), ctypes.c_int32()
        self._state = ctypes.c_void_p(
            self._opus.opus_encoder_create(SAMPLE_RATE, 1, VOICE, ctypes.byref(wrong))
        )
        if wrong.value:
            raise TrainingError(f"libopus makes no encoder (its error {wrong.value}).")
        for request, value in (
            (BITRATE, bits_per_second),
            (COMPLEXITY, complexity),
            (VARIABLE, 1),
            (SIGNAL, SPEECH),
        ):
            if self._opus.opus_encoder_ctl(self._state, ctypes.c_int(request), ctypes.c_int32(value)):
                raise TrainingError(f"libopus cannot encode {bits_per_second} bits a second.")
        self._opus.opus_encoder_ctl(self._state, ctypes.c_int(DELAY), ctypes.byref(delay))
        self.delay_samples = delay.value
        """What comes out is so much late; decoders leave it out."""
        self._packet = ctypes.create_string_buffer(MAX_PACKET)

    def encode(self, samples: Samples) -> bytes:
        """A whole clip."""
        self._opus.opus_encoder_ctl(self._state, ctypes.c_int(RESET))
        count = -(-(len(samples) + self.delay_samples) // PACKET_SAMPLES)
        padded = np.zeros(count * PACKET_SAMPLES, np.int16)
        padded[: len(samples)] = samples
        made = []
        for piece in padded.reshape(count, PACKET_SAMPLES):
            size = self._opus.opus_encode(
                self._state, piece.ctypes.data, PACKET_SAMPLES, self._packet, MAX_PACKET
            )
            if size <= 0:
                raise TrainingError(f"libopus could not encode (its error {size}).")
            made.append(struct.pack("<H", size) + self._packet.raw[:size])
        return b"".join(made)


class Decoder:
    """Makes samples of packets."""

    def __init__(self, folder: Path | None = None) -> None:
        self._opus = library(folder)
        wrong = ctypes.c_int()
        self._state = ctypes.c_void_p(self._opus.opus_decoder_create(SAMPLE_RATE, 1, ctypes.byref(wrong)))
        if wrong.value:
            raise TrainingError(f"libopus makes no decoder (its error {wrong.value}).")

    def decode(self, packets: bytes, samples: int, delay_samples: int) -> Samples:
        """A clip of so many samples, its encoder's delay left out."""
        self._opus.opus_decoder_ctl(self._state, ctypes.c_int(RESET))
        count, at = -(-(samples + delay_samples) // PACKET_SAMPLES), 0
        made = np.empty((count, PACKET_SAMPLES), np.int16)
        for row in made:
            (size,) = struct.unpack_from("<H", packets, at)
            packet = packets[at + 2 : at + 2 + size]
            got = self._opus.opus_decode(self._state, packet, len(packet), row.ctypes.data, PACKET_SAMPLES, 0)
            if got != PACKET_SAMPLES:
                raise TrainingError(f"A packet of Opus cannot be decoded (libopus says {got}).")
            at += 2 + size
        return made.reshape(-1)[delay_samples : delay_samples + samples]
