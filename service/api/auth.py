"""Who is asking: API keys in the Authorization header."""

import asyncio
from typing import Any

from litestar import Request

from service.api.problems import forbidden, unauthenticated
from service.storage import keys
from service.storage.engine import Engine, transaction
from service.storage.keys import ApiKey

SCHEME = "bearer"


async def require(request: Request[Any, Any, Any], role: str) -> ApiKey:
    """The key of a request, looked up now, so that a revoked one stops at once.

    Raises
    ------
    Problem
        401 without a valid key, 403 where its role is too small.
    """
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if not scheme:
        raise unauthenticated("this needs an API key: send Authorization: Bearer KEY")
    if scheme.lower() != SCHEME:
        raise unauthenticated(f"the Authorization header takes Bearer and an API key, not {scheme[:40]!r}")
    key = await asyncio.to_thread(_find, request.app.state.engine, given.strip())
    if key is None:
        raise unauthenticated("this API key is not known here, or it was revoked")
    if not key.may(role):
        raise forbidden(f"this takes a key of the role {role}; {key.prefix} ({key.name}) has the role {key.role}")
    return key


def _find(engine: Engine, given: str) -> ApiKey | None:
    with transaction(engine) as connection:
        return keys.find(connection, given)
