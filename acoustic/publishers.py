"""Where published weights can be fetched from, and fetching them: size limit, checksum, then the importer.

NVIDIA's files are downloaded by the user from NVIDIA, under NVIDIA's terms; Silica carries none of them.
"""

import hashlib
import http.client
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from acoustic import catalogue, importers
from acoustic.checkpoint import Checkpoint
from acoustic.errors import AcousticError

NGC = "https://api.ngc.nvidia.com/v2/models/nvidia"
TIMEOUT_S = 30.0
LARGEST_BYTES = 4 * 1024**3
CHUNK_BYTES = 1 << 20

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
    with tempfile.TemporaryDirectory(prefix="silica-pull-") as folder:
        file = Path(folder) / (PurePosixPath(urlsplit(wanted.address).path).name or "weights")
        digest = fetch(wanted, file, progress)
        model = importers.read(file)
    card = {**model.card, "title": wanted.title, "source": wanted.address, "terms": wanted.terms}
    card["sha256"] = digest
    return catalogue.install(wanted.name, Checkpoint(model.config, model.state, card)), digest


def fetch(wanted: Publication, file: Path, progress: Progress) -> str:
    """Download into `file`; its SHA-256. Refuses what is too large or not what was published."""
    host = urlsplit(wanted.address).netloc
    if urlsplit(wanted.address).scheme not in ("http", "https") or not host:
        raise AcousticError(f"{wanted.address!r} is no http or https address.")
    digest = hashlib.sha256()
    done = 0
    try:
        with urllib.request.urlopen(wanted.address, timeout=TIMEOUT_S) as answer, file.open("wb") as out:
            length = answer.headers.get("Content-Length")
            total = int(length) if length and length.isdigit() else None
            while chunk := answer.read(CHUNK_BYTES):
                done += len(chunk)
                if done > LARGEST_BYTES:
                    raise AcousticError(f"{wanted.address} sends more than {LARGEST_BYTES} bytes: refused.")
                digest.update(chunk)
                out.write(chunk)
                progress(done, total)
    except urllib.error.HTTPError as error:
        raise AcousticError(
            f"{host} answers {error.code} ({error.reason}) for {wanted.address}. The file may have moved or "
            f"need a login: download it in a browser, then `silica models import FILE --name {wanted.name}`."
        ) from error
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", error)
        raise AcousticError(
            f"{host} cannot be reached ({reason}). Pulling needs a network, nothing else does: fetch "
            f"{wanted.address} on a machine that has one, then "
            f"`silica models import FILE --name {wanted.name}`."
        ) from error
    if total is not None and done != total:
        raise AcousticError(f"The download broke off after {done} of {total} bytes. Try again.")
    if wanted.sha256 is not None and digest.hexdigest() != wanted.sha256:
        raise AcousticError(
            f"{wanted.address} is not the file it was: its SHA-256 is {digest.hexdigest()}, "
            f"expected {wanted.sha256}. Nothing was kept."
        )
    return digest.hexdigest()
