"""What is known: GPUs and models, every figure with its source."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from litestar import Request, Response
from pydantic import Field

from service.api import responding
from service.api.contract import Text
from service.api.operation import Operation
from service.api.paging import NoQuery, PageQuery, page, read_parameters
from service.api.problems import unknown
from service.catalogue.records.gpu import FIGURES, GpuRecord
from service.catalogue.records.model import ModelRecord
from service.catalogue.snapshot import Snapshot, UnknownName
from service.sizing.errors import SizingError
from service.sizing.model.summary import attention_kinds
from service.sizing.quantities import Doc
from service.sizing.weights import total_active_parameters, total_parameters


class ModelQuery(PageQuery):
    """Which models."""

    q: Text | None = Field(default=None, description="part of the name or of the architecture, in any case")
    status: Literal["exact", "estimated", "refused"] | None = Field(
        default=None, description="how far the sizing can be trusted; refused: it cannot be sized"
    )

    def finds(self, record: ModelRecord) -> bool:
        """Whether a model is asked for."""
        named = f"{record.name} {record.config.get('architectures', '')}".casefold()
        if self.q is not None and self.q.casefold() not in named:
            return False
        return self.status is None or self.status == model_status(record)


def model_status(record: ModelRecord) -> str:
    """exact, estimated or refused."""
    return "refused" if isinstance(record.reading, SizingError) else record.reading.status.value


@dataclass(frozen=True, slots=True)
class FigureView:
    """A catalogue figure."""

    name: Annotated[str, Doc("figure and unit", example="memory_bandwidth_gb_per_s")]
    description: Annotated[str, Doc("what it is")]
    value: Annotated[float, Doc("the value, in the unit of the name", example=3350)]
    source: Annotated[str, Doc("where it was read")]
    level: Annotated[str, Doc("how well it is known", example="vendor")]


@dataclass(frozen=True, slots=True)
class GpuView:
    """A GPU of the catalogue."""

    slug: Annotated[str, Doc("catalogue key", example="h100-sxm")]
    name: Annotated[str, Doc("full name", example="NVIDIA H100 SXM5 80GB")]
    aliases: Annotated[tuple[str, ...], Doc("other names it is found by")]
    vendor: Annotated[str, Doc("who makes it", example="nvidia")]
    architecture: Annotated[str, Doc("generation", example="Hopper")]
    compute_capability: Annotated[str | None, Doc("what CUDA calls it", example="9.0")]
    form_factor: Annotated[str, Doc("how it is built in")]
    link: Annotated[str, Doc("what joins the cards of the usual node", example="nvlink")]
    gpus_per_domain: Annotated[int, Doc("cards joined at full speed", example=8)]
    gpus_per_node: Annotated[int, Doc("cards of the usual node", example=8)]
    has_rules: Annotated[bool, Doc("whether plans are made for it")]
    vllm_support: Annotated[str, Doc("how vLLM supports it", example="yes")]
    figures: Annotated[tuple[FigureView, ...], Doc("every figure with its source")]
    disagreements: Annotated[tuple[str, ...], Doc("other values in print")]
    notes: Annotated[str | None, Doc("what else to know")]
    as_of: Annotated[str, Doc("when the record was collected", example="2026-11-30")]


@dataclass(frozen=True, slots=True)
class GpuPage:
    """GPUs in the order of their slugs."""

    catalogue_revision: Annotated[int, Doc("catalogue revision answered from", example=1)]
    items: Annotated[tuple[GpuView, ...], Doc("GPUs")]
    next: Annotated[str | None, Doc("give it as `after` for the next page; null at the end")]


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """A model of the catalogue, in a line."""

    name: Annotated[str, Doc("as its hub names it", example="meta-llama/Llama-3.1-70B-Instruct")]
    architecture: Annotated[str | None, Doc("the engine's model class", example="LlamaForCausalLM")]
    status: Annotated[str, Doc("exact, estimated, or refused")]
    refusal: Annotated[str | None, Doc("why it cannot be sized, where it is refused")]
    parameters: Annotated[int | None, Doc("parameters of the checkpoint", "elements", 70553706496)]
    max_context_tokens: Annotated[int | None, Doc("longest context", "tokens", 131072)]
    quantization: Annotated[str | None, Doc("the engine's name of the weight quantisation")]
    source: Annotated[str, Doc("where the configuration comes from")]
    as_of: Annotated[str, Doc("when it was collected", example="2026-11-30")]


@dataclass(frozen=True, slots=True)
class ModelView:
    """A model of the catalogue."""

    catalogue_revision: Annotated[int, Doc("catalogue revision answered from", example=1)]
    summary: Annotated[ModelSummary, Doc("the model in a line")]
    active_parameters: Annotated[int | None, Doc("parameters one token visits", "elements")]
    attention: Annotated[tuple[str, ...], Doc("what the layers keep, and how many of each")]
    notes: Annotated[tuple[str, ...], Doc("what a reader should know")]
    fidelity: Annotated[str, Doc("how close the configuration is to the published file")]
    sha256: Annotated[str, Doc("of the configuration's canonical JSON")]
    config: Annotated[dict[str, Any], Doc('config.json; numbers that JSON lacks as text, such as "Infinity"')]
    hf_quant_config: Annotated[dict[str, Any] | None, Doc("hf_quant_config.json, where the checkpoint has one")]


@dataclass(frozen=True, slots=True)
class ModelPage:
    """Models in the order of their names."""

    catalogue_revision: Annotated[int, Doc("catalogue revision answered from", example=1)]
    items: Annotated[tuple[ModelSummary, ...], Doc("models")]
    next: Annotated[str | None, Doc("give it as `after` for the next page; null at the end")]


def gpu_view(record: GpuRecord, snapshot: Snapshot) -> GpuView:
    """A GPU with its sources spelled out."""
    return GpuView(
        slug=record.slug,
        name=record.name,
        aliases=record.aliases,
        vendor=record.vendor.value,
        architecture=record.architecture,
        compute_capability=record.compute_capability,
        form_factor=record.form_factor,
        link=record.link.value,
        gpus_per_domain=record.gpus_per_domain,
        gpus_per_node=record.gpus_per_node,
        has_rules=record.has_rules,
        vllm_support=record.vllm_support,
        figures=tuple(
            FigureView(name, FIGURES[name], figure.value, snapshot.spelled_out(figure.source), figure.level.value)
            for name, figure in record.figures.items()
        ),
        disagreements=tuple(
            f"{entry.figure}: {entry.value:g} ({snapshot.spelled_out(entry.source)})" for entry in record.disagreements
        ),
        notes=record.notes,
        as_of=record.as_of.isoformat(),
    )


def model_summary(record: ModelRecord) -> ModelSummary:
    """A model in a line, refused ones included."""
    shape = record.reading
    architectures = record.config.get("architectures") or [None]
    if isinstance(shape, SizingError):
        return ModelSummary(
            record.name,
            architectures[0],
            "refused",
            str(shape),
            None,
            None,
            None,
            record.source,
            record.as_of.isoformat(),
        )
    return ModelSummary(
        record.name,
        shape.architecture,
        shape.status.value,
        None,
        total_parameters(shape),
        shape.max_context_tokens,
        shape.quantization,
        record.source,
        record.as_of.isoformat(),
    )


def model_view(record: ModelRecord, revision: int) -> ModelView:
    """A model with all that is known of it."""
    shape = record.reading
    refused = isinstance(shape, SizingError)
    return ModelView(
        catalogue_revision=revision,
        summary=model_summary(record),
        active_parameters=None if refused else total_active_parameters(shape),
        attention=() if refused else tuple(f"{kind.layers} {kind.text}" for kind in attention_kinds(shape)),
        notes=() if refused else shape.notes,
        fidelity=record.fidelity,
        sha256=record.sha256,
        config=responding.loose_json(record.config),
        hf_quant_config=None if record.hf_quant_config is None else responding.loose_json(record.hf_quant_config),
    )


def list_gpus(request: Request[Any, Any, Any]) -> Response[bytes]:
    """A page of GPUs."""
    snapshot: Snapshot = request.app.state.snapshot
    chosen, following = page(snapshot.gpus, lambda record: record.slug, read_parameters(request, PageQuery))
    views = tuple(gpu_view(record, snapshot) for record in chosen)
    return responding.conditional(request, GpuPage(snapshot.revision, views, following), snapshot.revision)


def get_gpu(request: Request[Any, Any, Any]) -> Response[bytes]:
    """One GPU."""
    snapshot: Snapshot = request.app.state.snapshot
    read_parameters(request, NoQuery)
    try:
        record = snapshot.gpu(request.path_params["slug"])
    except UnknownName as error:
        raise unknown("gpu", error.name, error.nearest) from None
    return responding.conditional(request, gpu_view(record, snapshot), snapshot.revision)


def list_models(request: Request[Any, Any, Any]) -> Response[bytes]:
    """A page of models."""
    snapshot: Snapshot = request.app.state.snapshot
    query = read_parameters(request, ModelQuery)
    wanted = [record for record in snapshot.models if query.finds(record)]
    chosen, following = page(wanted, lambda record: record.name, query)
    views = tuple(model_summary(record) for record in chosen)
    return responding.conditional(request, ModelPage(snapshot.revision, views, following), snapshot.revision)


def get_model(request: Request[Any, Any, Any]) -> Response[bytes]:
    """One model."""
    snapshot: Snapshot = request.app.state.snapshot
    read_parameters(request, NoQuery)
    try:
        record = snapshot.model(str(request.path_params["name"]).strip("/"))
    except UnknownName as error:
        raise unknown("model", error.name, error.nearest) from None
    return responding.conditional(request, model_view(record, snapshot.revision), snapshot.revision)


OPERATIONS = (
    Operation(
        method="GET",
        path="/gpus",
        name="list_gpus",
        summary="List GPUs",
        description="The accelerators of the catalogue with every figure, its source and how well it is known.",
        tag="catalogue",
        handler=list_gpus,
        answer=GpuPage,
        query=PageQuery,
        problems=(400,),
        cacheable=True,
    ),
    Operation(
        method="GET",
        path="/gpus/{slug}",
        name="get_gpu",
        summary="Get a GPU",
        description="One accelerator, by slug, name or alias.",
        tag="catalogue",
        handler=get_gpu,
        answer=GpuView,
        path_parameters={"slug": "slug, name or alias, such as h100-sxm"},
        problems=(400, 404),
        cacheable=True,
    ),
    Operation(
        method="GET",
        path="/models",
        name="list_models",
        summary="List models",
        description="The models of the catalogue, those that cannot be sized with the reason.",
        tag="catalogue",
        handler=list_models,
        answer=ModelPage,
        query=ModelQuery,
        problems=(400,),
        cacheable=True,
    ),
    Operation(
        method="GET",
        path="/models/{name}",
        name="get_model",
        summary="Get a model",
        description="One model with its configuration; the slash of its name may be written raw or as %2F.",
        tag="catalogue",
        handler=get_model,
        answer=ModelView,
        path_parameters={"name": "name as its hub writes it, such as Qwen/Qwen3-32B"},
        problems=(400, 404),
        cacheable=True,
    ),
)
