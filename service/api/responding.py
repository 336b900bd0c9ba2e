"""Writing responses: bytes, validators, and the catalogue they were answered from."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from litestar import Request, Response

from service import RULES_VERSION, __version__

ENCODER = msgspec.json.Encoder(decimal_format="string", order=None)


@dataclass(frozen=True, slots=True)
class Tagged:
    """Bytes with the validator that names them."""

    content: bytes
    etag: str


def loose_json(value: Mapping[str, Any]) -> Any:
    """JSON as Python reads it, as strict JSON: `Infinity` and `NaN` as text, whole numbers of any size."""
    return msgspec.Raw(json.dumps(_strict(value)).encode())


def _strict(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return json.dumps(value)
        case Mapping():
            return {key: _strict(item) for key, item in cast("Mapping[str, Any]", value).items()}
        case list():
            return [_strict(item) for item in cast("list[Any]", value)]
        case _:
            return value


def tag(revision: int, question: bytes) -> str:
    """Weak validator of an answer: catalogue revision, software version and the question."""
    digest = hashlib.blake2b(question, digest_size=16, key=f"{revision}:{__version__}:{RULES_VERSION}".encode())
    return f'W/"{digest.hexdigest()}"'


def matches(request: Request[Any, Any, Any], etag: str) -> bool:
    """Whether If-None-Match names this answer already."""
    given = request.headers.get("if-none-match", "")
    return given.strip() == "*" or etag.removeprefix("W/") in {
        candidate.strip().removeprefix("W/") for candidate in given.split(",")
    }


def answer(
    content: bytes,
    revision: int,
    *,
    status: int = 200,
    media_type: str = "application/json",
    etag: str | None = None,
    headers: dict[str, str] | None = None,
) -> Response[bytes]:
    """A response that names the catalogue revision and the rules it was answered from."""
    named = {"X-Catalogue-Revision": str(revision), "X-Rules-Version": str(RULES_VERSION), **(headers or {})}
    if etag is not None:
        named["ETag"] = etag
    return Response(content, status_code=status, media_type=media_type, headers=named)


def conditional(request: Request[Any, Any, Any], value: object, revision: int) -> Response[bytes]:
    """The answer to a GET: 304 where the caller has it already."""
    etag = tag(revision, str(request.scope["path"]).encode() + b"?" + request.scope["query_string"])
    if matches(request, etag):
        return answer(b"", revision, status=304, etag=etag)
    return answer(ENCODER.encode(value), revision, etag=etag, headers={"Cache-Control": "no-cache"})
