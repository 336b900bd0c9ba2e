"""The expert layers of a decoder: which layers have them, and the router, routed and shared experts of one."""

from dataclasses import dataclass

from service.sizing.model import blocks
from service.sizing.model.modules import Linear, Module, Split, Tensor, TensorClass, Units, Whole
from service.sizing.model.source import Source


@dataclass(frozen=True, slots=True)
class Mixture:
    """The expert layers of one model.

    Attributes
    ----------
    places : tuple of bool
        Which layers have experts.
    count, active, width : int
        Routed experts of a layer, those a token visits, and the width of each.
    path, experts, projections
        Names in the checkpoint: the block within the layer, the experts within the block, an expert's matrices.
    router : str
        Name of the router; `router_bytes` its element where it is not the model's own; `quantised_router` whether the
        class hands it the checkpoint's quantisation.
    correction : Tensor, optional
        A bias on the choice of experts.
    shared_width : int
        Width of the shared expert (0: none), under the names `shared` and `shared_projections`.
    shared_gate : bool
        Whether a single output gates the shared expert.
    """

    places: tuple[bool, ...]
    count: int
    active: int
    width: int
    path: str = "mlp"
    experts: str = "experts"
    projections: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    router: str = "gate"
    router_bytes: int | None = None
    quantised_router: bool = False
    correction: Tensor | None = None
    shared_width: int = 0
    shared: str = "mlp.shared_experts"
    shared_projections: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    shared_bias: bool = False
    shared_gate: bool = False
    shared_whole: Whole = Whole.NEVER

    def at(self, index: int) -> bool:
        """Whether the layer at `index` has experts instead of a dense MLP."""
        return self.places[index]

    def modules(self, source: Source, path: str, hidden: int) -> tuple[Module, ...]:
        """Router, routed and shared experts of the layer at `path`."""
        quantization, block = source.quantization, f"{path}.{self.path}"
        modules: list[Module] = [
            blocks.router(quantization, block, hidden, self.count, name=self.router)
            if self.quantised_router
            else blocks.plain_router(hidden, self.count, name=self.router, element_bytes=self.router_bytes),
            blocks.routed_experts(
                quantization,
                block,
                count=self.count,
                active=self.active,
                hidden=hidden,
                intermediate=self.width,
                name=self.experts,
                projections=self.projections,
            ),
        ]
        if self.correction:
            modules.append(self.correction)
        if self.shared_width:
            modules += blocks.gated_mlp(
                quantization,
                f"{path}.{self.shared}",
                hidden,
                self.shared_width,
                bias=self.shared_bias,
                tensor_class=TensorClass.SHARED_EXPERTS,
                names=self.shared_projections,
                whole=self.shared_whole,
            )
        if self.shared_gate:
            modules.append(
                Linear("shared_expert_gate", TensorClass.SHARED_EXPERTS, Units(hidden), (Units(1),), Split.REPLICATED)
            )
        return tuple(modules)


def layer_count(source: Source) -> int:
    """Layers of the decoder."""
    return source.text.layers("num_hidden_layers")


def everywhere(source: Source) -> tuple[bool, ...]:
    """Experts in every layer."""
    return (True,) * layer_count(source)


def after_dense(source: Source, count: int | None, *, first: int | None = None) -> tuple[bool, ...]:
    """Experts from layer `first_k_dense_replace` up; none where no experts are named."""
    start = source.text.integer("first_k_dense_replace", default=first, minimum=0)
    return tuple(bool(count) and index >= start for index in range(layer_count(source)))


def same_everywhere(source: Source, name: str, *, default: int) -> int:
    """A size that may be listed for each layer.

    Raises
    ------
    NotUnderstood
        When the layers differ.
    """
    if not isinstance(source.text.values.get(name), list):
        return source.text.integer(name, default=default)
    values = set(source.text.integers(name, minimum=1) or ())
    if len(values) != 1:
        raise source.refuse(name, because=f"{name} differs between layers")
    return values.pop()
