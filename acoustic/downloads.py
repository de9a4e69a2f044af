"""Where published weights can be fetched from, and fetching them: size limit, checksum, then the importer.

A download that broke off goes on where it stopped, if the publisher says that the file is still the same one.
NVIDIA's files are downloaded by the user from NVIDIA, under NVIDIA's terms; Silica carries none of them.
"""

import errno
import hashlib
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from acoustic import catalogue, importers
from acoustic.checkpoint import Checkpoint
from acoustic.errors import AcousticError
from acoustic.files import cache_folder, write_file

NGC = "https://api.ngc.nvidia.com/v2/models/nvidia"
TIMEOUT_S = 30.0
MAX_BYTES = 4 * 1024**3
CHUNK_BYTES = 1 << 20
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""What only writing here answers; whatever else goes wrong on the way is the network's."""

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class Publication:
    """One published model. `sha256` is None where its maker names no checksum: pulling reports its own."""

    name: str
    title: str
    address: str
    terms: str
    sha256: str | None = None


def _nemo(name: str, title: str, path: str) -> Publication:
    return Publication(name, title, f"{NGC}/{path}", "NVIDIA NGC; read the model's page before using it")


def _language(code: str, language: str) -> Publication:
    path = f"nemo/stt_{code}_quartznet15x5/versions/1.0.0rc1/files/stt_{code}_quartznet15x5.nemo"
    return _nemo(f"quartznet15x5-{code}", f"QuartzNet 15x5, {language}", path)


PUBLICATIONS: dict[str, Publication] = {
    publication.name: publication
    for publication in (
        _nemo(
            "quartznet15x5-en",
            "QuartzNet 15x5, English, six corpora (QuartzNet15x5Base-En)",
            "nemospeechmodels/versions/1.0.0a5/files/QuartzNet15x5Base-En.nemo",
        ),
        Publication(
            "quartznet15x5-en-2020",
            "QuartzNet 15x5, English, six corpora, as Intel's Open Model Zoo fetches it",
            f"{NGC}/multidataset_quartznet15x5/versions/2/files/QuartzNet15x5-En-Base.nemo",
            "NVIDIA NGC; Intel's Open Model Zoo names Apache-2.0 for it",
            "99020d0d844054c467f8107e1c6fb77db5cd4c5a0499b577031e62095e391082",
        ),
        _nemo(
            "jasper10x5dr-en",
            "Jasper 10x5 dense residual, English (stt_en_jasper10x5dr)",
            "nemo/stt_en_jasper10x5dr/versions/1.0.0rc1/files/stt_en_jasper10x5dr.nemo",
        ),
        _language("ca", "Catalan"),
        _language("it", "Italian"),
        _language("fr", "French"),
        _language("es", "Spanish"),
        _language("de", "German"),
        _language("pl", "Polish"),
        _language("ru", "Russian"),
    )
}


def publication(name: str) -> Publication:
    """The publication of that name."""
    if name not in PUBLICATIONS:
        raise AcousticError(
            f"No address is known for {name!r}. Known: {', '.join(PUBLICATIONS)}. "
            "Any other file can be downloaded by hand and brought in with `silica models import FILE`."
        )
    return PUBLICATIONS[name]


def pull(wanted: Publication, progress: Progress = lambda done, total: None) -> tuple[Path, str]:
    """Fetch, check, import and install; where it lies now, and the checksum of what was fetched."""
    catalogue.check_name(wanted.name)
    file_name = PurePosixPath(urlsplit(wanted.address).path).name or "weights"
    download = Download(cache_folder() / "downloads" / wanted.name / file_name)
    digest = fetch(wanted, download, progress)
    try:
        model = importers.read(download.file)
    finally:
        download.forget()
    card = {**model.card, "title": wanted.title, "source": wanted.address, "terms": wanted.terms}
    card["sha256"] = digest
    return catalogue.install(wanted.name, Checkpoint(model.config, model.state, card)), digest


@dataclass(frozen=True)
class Download:
    """A file on its way here, alone in its folder with a note of which file it is a part of."""

    file: Path

    @property
    def note(self) -> Path:
        """Beside the file."""
        return self.file.with_name("part-of.json")

    def begun(self, address: str) -> dict[str, str]:
        """The headers that ask for the rest; none where there is no part, or nothing to know it again by."""
        try:
            note = json.loads(self.note.read_text())
            size = self.file.stat().st_size
            if note["address"] == address and note["version"] and size:
                return {"Range": f"bytes={size}-", "If-Range": str(note["version"])}
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return {}

    def begin(self, address: str, headers: http.client.HTTPMessage) -> None:
        """From the start, with what the publisher calls this version of the file."""
        self.forget()
        self.file.parent.mkdir(parents=True, exist_ok=True)
        tag = headers.get("ETag", "")
        version = headers.get("Last-Modified", "") if not tag or tag.startswith("W/") else tag
        write_file(self.note, json.dumps({"address": address, "version": version}))

    def forget(self) -> None:
        """Leave nothing behind."""
        self.file.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)
        for folder in (self.file.parent, self.file.parent.parent):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def fetch(wanted: Publication, download: Download, progress: Progress) -> str:
    """Download the file, or what is still missing of it; its SHA-256. Refuses what is too large or not what was
    published."""
    host = urlsplit(wanted.address).netloc
    if urlsplit(wanted.address).scheme not in ("http", "https") or not host:
        raise AcousticError(f"{wanted.address!r} is no http or https address.")
    headers = download.begun(wanted.address)
    try:
        done, total = _receive(wanted.address, headers, download, progress)
    except urllib.error.HTTPError as error:
        if error.code == 416 and headers:  # nothing is missing, or the part is longer than the file
            download.forget()
            return fetch(wanted, download, progress)
        raise AcousticError(
            f"{host} answers {error.code} ({error.reason}) for {wanted.address}. The file may have moved or "
            f"need a login: download it in a browser, then `silica models import FILE --name {wanted.name}`."
        ) from error
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        if isinstance(error, OSError) and (error.errno in DISK_ERRORS or error.filename):
            raise AcousticError(
                f"The download cannot be written to {download.file.parent} ({error.strerror}). Make room there or set "
                "SILICA_HOME to a folder elsewhere; the same command goes on from what is here already."
            ) from error
        reason = getattr(error, "reason", error)
        raise AcousticError(
            f"{host} cannot be reached ({reason}). Pulling needs a network, nothing else does: fetch "
            f"{wanted.address} on a machine that has one, then "
            f"`silica models import FILE --name {wanted.name}`."
        ) from error
    if total is not None and done != total:
        raise AcousticError(
            f"The download broke off after {done} of {total} bytes. The same command again goes on from there."
        )
    with download.file.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if wanted.sha256 is not None and digest != wanted.sha256:
        download.forget()
        raise AcousticError(
            f"{wanted.address} is not the file it was: its SHA-256 is {digest}, "
            f"expected {wanted.sha256}. Nothing was kept."
        )
    return digest


def _receive(
    address: str, headers: dict[str, str], download: Download, progress: Progress
) -> tuple[int, int | None]:
    """Bytes that are here afterwards, and how many there should be, where the publisher says so."""
    request = urllib.request.Request(address, headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        length = answer.headers.get("Content-Length")
        missing = int(length) if length and length.isdigit() else None
        done = 0
        if answer.status == 206 and headers:
            done = download.file.stat().st_size
            if not answer.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
                download.forget()
                raise AcousticError(f"{address} sent another part of the file than asked for. Try again.")
        else:
            download.begin(address, answer.headers)
        total = None if missing is None else done + missing
        with download.file.open("ab" if done else "wb") as out:
            while chunk := answer.read(CHUNK_BYTES):
                done += len(chunk)
                if done > MAX_BYTES:
                    download.forget()
                    raise AcousticError(f"{address} sends more than {MAX_BYTES} bytes: refused.")
                out.write(chunk)
                progress(done, total)
        return done, total
