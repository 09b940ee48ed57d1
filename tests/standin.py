"""A stand-in for the hub: directories laid out like FineWeb and FineWeb2, with their columns, of the embedded text."""

import hashlib
import json
import lzma
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from experiment.config.compose import PACKAGE

STUDY = {"de": "deu_Latn", "fr": "fra_Latn", "ar": "arb_Arab", "zh": "cmn_Hani"}
OTHERS = 26
FILES = 4
PIECE = 1500  # characters of a document
INVALID = b"not \xff UTF-8"
COLUMNS = ("dump", "url", "date", "file_path", "language", "language_script")


def make_hub(root: Path) -> Path:
    """`root/fineweb` (English, config default) and `root/fineweb-2` (30 configs, and one of removed documents)."""
    configs = {name: list(pieces(lang)) for lang, name in STUDY.items()} | others(OTHERS)
    _repository(root / "fineweb", {"default": list(pieces("en"))})
    _repository(root / "fineweb-2", configs | {"deu_Latn_removed": ["removed"] * 40})
    return root


def hub_settings(root: Path, name: str = "fineweb") -> list[str]:
    """Overrides that point data=fineweb at the stand-in."""
    hub = ",".join(f"{lang}:[{root}/{name}-2/{config}]" for lang, config in STUDY.items())
    return [
        "data=fineweb",
        f"data.hub={{en:[{root}/{name}/default],{hub}}}",
        f"data.world_hub={root}/fineweb-2",
        "data.world_languages=24",
        "data.sample_bytes=600e3",
        "data.holdout_fraction=0.05",
        "data.flores=false",
        f"data.parallel={PACKAGE}/assets/corpus/parallel.jsonl.xz",
    ]


def pieces(lang: str) -> Iterator[str]:
    with lzma.open(PACKAGE / "assets" / "corpus" / f"{lang}.jsonl.xz", "rt", encoding="utf-8") as file:
        for line in file:
            text = json.loads(line)["text"]
            yield from (text[i : i + PIECE] for i in range(0, len(text), PIECE))


def others(count: int) -> dict[str, list[str]]:
    """Config -> documents of the languages that have most text in the embedded world corpus."""
    texts: dict[str, list[str]] = {}
    with lzma.open(PACKAGE / "assets" / "corpus" / "world.jsonl.xz", "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            if row["lang"][:2] not in ("en", "de", "fr", "ar", "zh"):
                text = row["text"]
                texts.setdefault(row["lang"], []).extend(text[i : i + 400] for i in range(0, len(text), 400))
    largest = sorted(texts, key=lambda lang: -sum(map(len, texts[lang])))[:count]
    return {f"{lang}_Xxxx": texts[lang] for lang in largest}


def _repository(place: Path, configs: dict[str, list[str]]) -> None:
    lines = ["---", "license: odc-by", "configs:"]
    for name, texts in configs.items():
        directory = place / "data" / name / "train"
        directory.mkdir(parents=True)
        for number in range(FILES):
            write_file(directory / f"{number:03d}_00000.parquet", texts[number::FILES], name)
        lines += [f"- config_name: {name}", "  data_files:", "  - split: train", f"    path: data/{name}/train/*"]
    (place / "README.md").write_text("\n".join([*lines, "---", ""]))


def write_file(path: Path, texts: list[str | bytes | None], name: str) -> None:
    """A parquet file with FineWeb's columns; bytes are put into the text column as they are."""
    content = [text.encode("utf-8") if isinstance(text, str) else text for text in texts]
    text = pa.array(content, pa.binary()).view(pa.string())  # nothing checks that it is UTF-8
    rows = len(texts)
    columns = {"text": text, "id": [f"<urn:uuid:{path.stem}-{i}>" for i in range(rows)]}
    columns |= {column: [f"{column} of {name}"] * rows for column in COLUMNS}
    columns |= {"language_score": [0.9] * rows, "token_count": [0] * rows}
    pq.write_table(pa.table(columns), path, row_group_size=100)


class Hub:
    """The stand-in over HTTP, with the part of the hub's interface that `datasets` asks for when it streams.

    `busy(path)` may say that a request gets a status other than 200.
    """

    COMMIT = "0123456789abcdef0123456789abcdef01234567"

    def __init__(self, root: Path, busy: Callable[[str], int | None] = lambda path: None):
        self.root, self.busy, self.requests = root, busy, Counter[str]()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                hub.answer(self)

            def do_GET(self) -> None:
                hub.answer(self)

            def do_POST(self) -> None:
                hub.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> "Hub":
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(request.path).path)
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        self.requests[f"{request.command} {path.split('/')[1]}"] += 1
        if (status := self.busy(path)) is not None:
            return self._send(request, status, b"busy", {"Retry-After": "0"})
        if found := re.fullmatch(r"/api/datasets/owner/([^/]+)(?:/revision/[^/]+)?", path):
            info = {"id": f"owner/{found[1]}", "sha": self.COMMIT, "siblings": [], "tags": [], "private": False}
            return self._json(request, info)
        if found := re.fullmatch(r"/api/datasets/owner/([^/]+)/tree/[^/]+(?:/(.*))?", path):
            place = self.root / found[1] / (found[2] or "")
            if not place.is_dir():
                return self._missing(request)
            recursive = "recursive=true" in request.path.lower()
            entries = sorted(place.rglob("*") if recursive else place.iterdir())
            return self._json(request, [self._entry(found[1], entry) for entry in entries])
        if found := re.fullmatch(r"/api/datasets/owner/([^/]+)/paths-info/[^/]+", path):
            asked = json.loads(body)["paths"] if body.startswith(b"{") else parse_qs(body.decode())["paths"]
            places = [self.root / found[1] / name for name in asked]
            return self._json(request, [self._entry(found[1], place) for place in places if place.exists()])
        if found := re.fullmatch(r"/datasets/owner/([^/]+)/resolve/[^/]+/(.*)", path):
            place = self.root / found[1] / found[2]
            return self._file(request, place) if place.is_file() else self._missing(request)
        return self._missing(request)

    def _entry(self, repository: str, place: Path) -> dict[str, Any]:
        kind = "directory" if place.is_dir() else "file"
        name = str(place.relative_to(self.root / repository))
        return {"type": kind, "path": name, "oid": _oid(name), "size": place.stat().st_size if kind == "file" else 0}

    def _file(self, request: BaseHTTPRequestHandler, place: Path) -> None:
        content = place.read_bytes()
        headers = {"X-Repo-Commit": self.COMMIT, "ETag": f'"{_oid(place.name)}"', "Accept-Ranges": "bytes"}
        status = 200
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range") or ""):
            first, last = int(found[1]), min(int(found[2] or len(content) - 1), len(content) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            content, status = content[first : last + 1], 206
        self._send(request, status, content, headers)

    def _missing(self, request: BaseHTTPRequestHandler) -> None:
        self._send(request, 404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": self.COMMIT})

    def _json(self, request: BaseHTTPRequestHandler, value: Any) -> None:
        self._send(request, 200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    @staticmethod
    def _send(request: BaseHTTPRequestHandler, status: int, content: bytes, headers: dict[str, str]) -> None:
        request.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | headers).items():
            request.send_header(name, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(content)


def _oid(name: str) -> str:
    return hashlib.sha1(name.encode("utf-8")).hexdigest()
