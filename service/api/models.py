"""Models given to the service: read, shown and, with a key, kept."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from litestar import Request, Response
from pydantic import ConfigDict, Field

from service.api import responding
from service.api.contract import INTEGRAL, MAX_BYTES, Contract, InlineModel, Text
from service.api.operation import Operation
from service.api.plans import model_problem
from service.api.problems import FieldError, invalid
from service.api.reading import read_body, read_bytes, require_json
from service.catalogue.records.model import ModelRecord, unkept_text
from service.catalogue.snapshot import Snapshot
from service.sizing.checkpoint import WeightsCheck, explain_weights_difference
from service.sizing.errors import SizingError
from service.sizing.inspection import ModelReading, reading
from service.sizing.model.shape import ModelShape
from service.sizing.quantities import Doc
from service.storage.engine import Engine, transaction
from service.storage.keys import ApiKey
from service.storage.models import StoredModel, store_models

MODEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)?$"


class PublishedFile(Contract):
    """A file that others publish: fields beside those read are let through."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", strict=True, frozen=True)


class IndexMetadata(PublishedFile):
    """`metadata` of a safetensors index."""

    total_size: Annotated[int, Field(ge=1, le=MAX_BYTES), INTEGRAL] = Field(
        description="sum of the tensors (bytes)", examples=[141107412992]
    )


class WeightsIndex(PublishedFile):
    """`model.safetensors.index.json`, whole or its metadata alone."""

    metadata: IndexMetadata = Field(description="what the file says of all tensors")


class ModelUpload(InlineModel):
    """A model by its published files."""

    name: Annotated[str, Field(min_length=1, max_length=200, pattern=MODEL_NAME)] = Field(
        description="as its hub names it: owner/name", examples=["my-org/my-model"]
    )
    weights_index: WeightsIndex | None = Field(
        default=None, description="model.safetensors.index.json: its total size is checked as weights_bytes is"
    )
    revision: Text | None = Field(
        default=None,
        description="commit of the model's repository that the files were read at",
        examples=["70d244cc86ccca08cf5af4e1e306ecf908b1ad5e"],
    )
    source: Text | None = Field(
        default=None, description="where the files come from; null: who gave them", examples=["our own training run"]
    )

    @property
    def given_bytes(self) -> int | None:
        """Size of the weights as given, either way."""
        return self.weights_bytes or (self.weights_index.metadata.total_size if self.weights_index else None)


class Outcome(StrEnum):
    """What became of a model that was given."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class SizingChange:
    """A figure that a new configuration changes."""

    figure: Annotated[str, Doc("name of the figure, as in `reading`", example="kv_bytes_per_token")]
    before: Annotated[int | str | None, Doc("as the catalogue held it", example=163840)]
    after: Annotated[int | str | None, Doc("as it is now", example=131072)]


@dataclass(frozen=True, slots=True)
class Inspection:
    """A model as it was read; nothing is kept."""

    name: Annotated[str, Doc("name as given", example="my-org/my-model")]
    reading: Annotated[ModelReading, Doc("what the configuration was read as")]
    weights_check: Annotated[WeightsCheck | None, Doc("the given size beside the counted one; null: none is given")]


@dataclass(frozen=True, slots=True)
class ModelTaken:
    """A model as the catalogue holds it now."""

    catalogue_revision: Annotated[int, Doc("newest catalogue revision, which holds the model", example=2)]
    outcome: Annotated[Outcome, Doc("created, changed, or unchanged where it was held already", example="created")]
    name: Annotated[str, Doc("as the catalogue spells it", example="my-org/my-model")]
    reading: Annotated[ModelReading, Doc("what the configuration was read as")]
    weights_check: Annotated[WeightsCheck | None, Doc("the size of the weights beside the counted one; null: unknown")]
    changes: Annotated[tuple[SizingChange, ...], Doc("figures that differ from what the catalogue held before")]


def record_of(given: ModelUpload, given_by: str, today: date) -> ModelRecord:
    """The catalogue record of a model that is given.

    Raises
    ------
    Problem
        400: two sizes contradict each other, or a configuration holds text that cannot be kept.
    """
    index = given.weights_index
    if index is not None and given.weights_bytes not in (None, index.metadata.total_size):
        message = f"{given.weights_bytes} contradicts weights_index.metadata.total_size ({index.metadata.total_size})"
        raise invalid((FieldError("weights_bytes", message),))
    for field, value in (("config", given.config), ("hf_quant_config", given.hf_quant_config)):
        if place := unkept_text(value, field):
            raise invalid((FieldError(place, "holds a NUL or half of a surrogate pair, which no text may"),))
    return ModelRecord(
        name=given.name,
        config=given.config,
        hf_quant_config=given.hf_quant_config,
        weights_bytes=given.given_bytes,
        fidelity="ingested",
        source=given.source or given_by,
        as_of=today,
        revision=given.revision,
    )


def shape_of(record: ModelRecord) -> ModelShape:
    """The structure of a model that is given.

    Raises
    ------
    Problem
        400 for a faulty configuration, 409 for one that is not understood.
    """
    try:
        return record.shape
    except SizingError as error:
        raise model_problem(error, "config") from None


def weights_check(record: ModelRecord) -> WeightsCheck | None:
    """The size of a readable record's weights beside the counted one; None: it has none."""
    if record.weights_bytes is None:
        return None
    return explain_weights_difference(record.shape, record.config, record.weights_bytes)


def sizing_changes(stored: StoredModel) -> tuple[SizingChange, ...]:
    """Figures in which what is held now differs from what was held before."""
    if stored.before is None or not stored.is_changed:
        return ()
    before, after = figures(stored.before), figures(stored.after)
    return tuple(
        SizingChange(figure, before.get(figure), value)
        for figure, value in after.items()
        if before.get(figure) != value
    )


def figures(record: ModelRecord) -> dict[str, int | str | None]:
    """The figures of a record that a reader compares; of one that cannot be sized, why."""
    size = {"given_weights_bytes": record.weights_bytes}
    shape = record.reading
    if isinstance(shape, SizingError):
        return {**size, "status": f"refused: {shape}"}
    read = reading(shape)
    return {
        **size,
        "status": read.status,
        "architecture": read.architecture,
        "parameters": read.parameters,
        "active_parameters": read.active_parameters,
        "checkpoint_bytes": read.checkpoint_bytes,
        "weights_bytes": read.weights_bytes,
        "kv_bytes_per_token": read.kv_bytes_per_token,
        "max_context_tokens": read.max_context_tokens,
        "attention": "; ".join(read.attention),
        "quantization": read.quantization,
    }


async def inspect_model(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Read a model that is given, and keep nothing."""
    require_json(request)
    snapshot: Snapshot = request.app.state.snapshot
    record = record_of(read_body(await read_bytes(request), ModelUpload), "the caller", _today())
    answer = Inspection(record.name, reading(shape_of(record)), weights_check(record))
    return responding.answer(responding.ENCODER.encode(answer), snapshot.revision)


async def post_model(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Read a model that is given, and keep it."""
    require_json(request)
    key: ApiKey = request.state.key
    given_by = f"{key.name} ({key.prefix})"
    record = record_of(read_body(await read_bytes(request), ModelUpload), f"given by {given_by}", _today())
    shape_of(record)
    revision, stored = await asyncio.to_thread(_store, request.app.state.engine, record, given_by)
    if request.app.state.snapshot.revision < revision:
        await request.app.state.refresh()
    outcome = Outcome.UNCHANGED if not stored.is_changed else Outcome.CHANGED if stored.before else Outcome.CREATED
    answer = ModelTaken(
        catalogue_revision=revision,
        outcome=outcome,
        name=stored.after.name,
        reading=reading(stored.after.shape),
        weights_check=weights_check(stored.after),
        changes=sizing_changes(stored),
    )
    created = outcome is Outcome.CREATED
    return responding.answer(
        responding.ENCODER.encode(answer),
        revision,
        status=201 if created else 200,
        headers={"Location": f"/models/{stored.after.name}"} if created else None,
    )


def _store(engine: Engine, record: ModelRecord, author: str) -> tuple[int, StoredModel]:
    with transaction(engine) as connection:
        revision, (stored,) = store_models(connection, [record], author=author, summary=f"Model {record.name}")
    return revision, stored


def _today() -> date:
    return datetime.now(UTC).date()


EXAMPLES = {
    "A Llama of 8 billion parameters": {
        "name": "my-org/my-llama-8b",
        "config": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "torch_dtype": "bfloat16",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
            "max_position_embeddings": 131072,
        },
        "weights_bytes": 16060522496,
    }
}

OPERATIONS = (
    Operation(
        method="POST",
        path="/models",
        name="add_model",
        summary="Add a model",
        description="Reads a model's published files and keeps them in a new catalogue revision. A model that is held "
        "with the same files and size is left as it is; other files under the same name replace it, and the answer "
        "shows which figures that changes. What cannot be read is refused, and nothing is kept.",
        tag="models",
        handler=post_model,
        answer=ModelTaken,
        other_statuses=(201,),
        body=ModelUpload,
        problems=(400, 409, 413, 415),
        examples=EXAMPLES,
        role="curator",
    ),
    Operation(
        method="POST",
        path="/models/inspect",
        name="inspect_model",
        summary="Inspect a model",
        description="Reads a model's published files as `POST /models` does and keeps nothing: parameters by tensor "
        "class, bytes by tensor parallel size, cache per token, attention, context, quantisation, and why a given "
        "size of the weights differs from the count.",
        tag="models",
        handler=inspect_model,
        answer=Inspection,
        body=ModelUpload,
        problems=(400, 409, 413, 415),
        examples=EXAMPLES,
    ),
)
