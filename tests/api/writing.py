"""A service that tests may write to, and keys for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import sqlalchemy as sa
from litestar import Litestar
from litestar.testing import TestClient

from service.app import build_app
from service.catalogue.snapshot import Snapshot
from service.settings import Settings
from service.storage import keys
from service.storage.catalogue import load_snapshot
from service.storage.engine import create_engine

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
SMALL_CACHE = LLAMA | {"num_key_value_heads": 4}
NAME = "example/llama-8b"
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Writing:
    """A running service with a key of the role curator."""

    client: TestClient[Litestar]
    engine: sa.Engine
    settings: Settings
    key: str

    def bearer(self, key: str | None = None) -> dict[str, str]:
        """The header that carries a key."""
        return {"Authorization": f"Bearer {key or self.key}"}

    def make_key(self, role: str) -> str:
        """Another key."""
        with self.engine.begin() as connection:
            return keys.create(connection, "test", role)

    def post(self, config: dict[str, Any] | None = None, name: str = NAME, **fields: Any) -> httpx.Response:
        """A model, given with the key."""
        body = {"name": name, "config": LLAMA if config is None else config} | fields
        return self.client.post("/models", json=body, headers=self.bearer())

    def held(self) -> Snapshot:
        """The catalogue as the database has it."""
        with self.engine.connect() as connection:
            return load_snapshot(connection)

    def revision(self) -> int:
        """The newest revision, as the database has it."""
        return self.client.get("/catalogue/revisions").json()["catalogue_revision"]


@contextmanager
def writing(settings: Settings) -> Iterator[Writing]:
    """A service on a database that the test may change."""
    engine = create_engine(settings, pooled=False)
    with engine.begin() as connection:
        key = keys.create(connection, "ana", "curator")
    with TestClient(build_app(settings)) as client:
        yield Writing(client, engine, settings, key)
    engine.dispose()
