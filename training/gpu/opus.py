"""Raw Opus packets by libopus, through ctypes: a clip is a row of 60 ms packets, each behind its length.

PyAV would need a container for every clip, and a borrowed machine seldom has it. Files of many clips: `parts.py`.
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
MAX_PACKET_BYTES = 4000
LIBRARY_FILE = "libopus.so.0"
"""The copy of the library that a packed folder carries."""

APPLICATION_VOIP = 2048
SIGNAL_VOICE = 3001
RESET_STATE, SET_BITRATE, SET_VBR, SET_COMPLEXITY, SET_SIGNAL, GET_LOOKAHEAD = (
    4028, 4002, 4006, 4010, 4024, 4027,
)  # fmt: skip

Samples = NDArray[np.int16]


@functools.cache
def library(folder: Path | None = None) -> Any:
    """The system's libopus, else the copy in `folder`."""
    copies = [] if folder is None else [str((folder / LIBRARY_FILE).resolve())]
    for name in (ctypes.util.find_library("opus"), LIBRARY_FILE, *copies):
        try:
            opened = ctypes.CDLL(name) if name else None
        except OSError:
            continue
        if opened is not None:
            return _declare(opened)
    raise TrainingError(
        "libopus, which encodes and decodes packed audio, is missing: install it (Debian: the package libopus0), or "
        f"put a copy beside the parts as {folder / LIBRARY_FILE if folder else LIBRARY_FILE}."
    )


def library_path() -> Path | None:
    """The file of the library that this process has loaded; None where the system does not tell."""
    library()
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    return next((Path(line.split(maxsplit=5)[5]) for line in lines if "/libopus.so" in line), None)


def _declare(opened: Any) -> Any:
    """Set the C types of the functions that are called."""
    pointer, number = ctypes.c_void_p, ctypes.c_int32
    opened.opus_encoder_create.restype = opened.opus_decoder_create.restype = pointer
    opened.opus_encoder_create.argtypes = [number, ctypes.c_int, ctypes.c_int, pointer]
    opened.opus_decoder_create.argtypes = [number, ctypes.c_int, pointer]
    opened.opus_encode.argtypes = [pointer, pointer, ctypes.c_int, ctypes.c_char_p, number]
    opened.opus_decode.argtypes = [pointer, ctypes.c_char_p, number, pointer, ctypes.c_int, ctypes.c_int]
    return opened


class Encoder:
    """Encodes clips; lives as long as its process."""

    def __init__(self, bits_per_second: int, complexity: int = 2) -> None:
        self._opus = library()
        error, delay = ctypes.c_int(), ctypes.c_int32()
        self._state = ctypes.c_void_p(
            self._opus.opus_encoder_create(SAMPLE_RATE, 1, APPLICATION_VOIP, ctypes.byref(error))
        )
        if error.value:
            raise TrainingError(f"libopus could not create an encoder (error {error.value}).")
        for request, value in (
            (SET_BITRATE, bits_per_second),
            (SET_COMPLEXITY, complexity),
            (SET_VBR, 1),
            (SET_SIGNAL, SIGNAL_VOICE),
        ):
            if self._opus.opus_encoder_ctl(self._state, ctypes.c_int(request), ctypes.c_int32(value)):
                raise TrainingError(f"libopus cannot encode at {bits_per_second} bit/s.")
        self._opus.opus_encoder_ctl(self._state, ctypes.c_int(GET_LOOKAHEAD), ctypes.byref(delay))
        self.delay_samples = delay.value
        """Decoded audio starts this late; `Decoder` cuts the delay off."""
        self._packet = ctypes.create_string_buffer(MAX_PACKET_BYTES)

    def encode(self, samples: Samples) -> bytes:
        """The packets of one clip, from a reset encoder."""
        self._opus.opus_encoder_ctl(self._state, ctypes.c_int(RESET_STATE))
        count = -(-(len(samples) + self.delay_samples) // PACKET_SAMPLES)
        padded = np.zeros(count * PACKET_SAMPLES, np.int16)
        padded[: len(samples)] = samples
        packets = []
        for frame in padded.reshape(count, PACKET_SAMPLES):
            size = self._opus.opus_encode(
                self._state, frame.ctypes.data, PACKET_SAMPLES, self._packet, MAX_PACKET_BYTES
            )
            if size <= 0:
                raise TrainingError(f"libopus could not encode a clip (error {size}).")
            packets.append(struct.pack("<H", size) + self._packet.raw[:size])
        return b"".join(packets)


class Decoder:
    """Decodes clips."""

    def __init__(self, folder: Path | None = None) -> None:
        self._opus = library(folder)
        error = ctypes.c_int()
        self._state = ctypes.c_void_p(self._opus.opus_decoder_create(SAMPLE_RATE, 1, ctypes.byref(error)))
        if error.value:
            raise TrainingError(f"libopus could not create a decoder (error {error.value}).")

    def decode(self, packets: bytes, samples: int, delay_samples: int) -> Samples:
        """A clip of so many samples, without the encoder's delay."""
        self._opus.opus_decoder_ctl(self._state, ctypes.c_int(RESET_STATE))
        count, at = -(-(samples + delay_samples) // PACKET_SAMPLES), 0
        decoded = np.empty((count, PACKET_SAMPLES), np.int16)
        for frame in decoded:
            (size,) = struct.unpack_from("<H", packets, at)
            packet = packets[at + 2 : at + 2 + size]
            got = self._opus.opus_decode(
                self._state, packet, len(packet), frame.ctypes.data, PACKET_SAMPLES, 0
            )
            if got != PACKET_SAMPLES:
                raise TrainingError(f"An Opus packet cannot be decoded (libopus returned {got}).")
            at += 2 + size
        return decoded.reshape(-1)[delay_samples : delay_samples + samples]
