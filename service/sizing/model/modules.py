"""The weight-bearing parts of a model, as the engine builds them.

A module knows its whole size and how it is split over ranks; `weights.py` turns both into bytes. Names are dotted paths
relative to the layer (or to the model, outside layers), for people; ignore lists have been applied by then.
"""

from dataclasses import dataclass
from enum import StrEnum

from service.sizing.errors import Indivisible
from service.sizing.model.schemes import UNQUANTISED, Scheme
from service.sizing.quantities import ceil_div


class TensorClass(StrEnum):
    """What a weight is for."""

    EMBEDDING = "embedding"
    POSITIONS = "positions"
    HEAD = "head"
    ATTENTION = "attention"
    STATE = "state"
    MLP = "mlp"
    ROUTER = "router"
    EXPERTS = "experts"
    SHARED_EXPERTS = "shared_experts"
    NORM = "norm"
    INDEXER = "indexer"
    TOWER = "tower"
    PROJECTOR = "projector"
    OTHER = "other"


class Split(StrEnum):
    """How a linear layer is divided over tensor parallel ranks."""

    COLUMN = "column"
    ROW = "row"
    REPLICATED = "replicated"


class Whole(StrEnum):
    """When every rank holds a split layer whole, because tensor ranks then split the tokens of expert layers.

    `ONE_STAGE` marks layers for which the engine does so only without pipeline stages.
    """

    NEVER = "never"
    TOKENS_SPLIT = "tokens_split"
    TOKENS_SPLIT_ONE_STAGE = "tokens_split_one_stage"


@dataclass(frozen=True, slots=True)
class Units:
    """`count` indivisible units (heads, groups, single features) of `size` elements each.

    With `replicated`, ranks beyond the count share copies: each keeps at least one whole unit, as KV heads do. With
    `padded`, units are added until the ranks divide them.
    """

    count: int
    size: int = 1
    replicated: bool = False
    padded: bool = False

    @property
    def total(self) -> int:
        """Elements over all ranks, counted once."""
        return self.count * self.size

    def per_rank(self, ranks: int) -> int:
        """Elements on one rank.

        Raises
        ------
        Indivisible
            When the units do not divide: the engine asserts the same.
        """
        if self.count % ranks == 0:
            return self.count // ranks * self.size
        if self.replicated and ranks > self.count:
            if ranks % self.count:
                raise Indivisible(ranks, self.count)
            return self.size
        if self.padded:
            return ceil_div(self.count, ranks) * self.size
        raise Indivisible(self.count if self.replicated else self.total, ranks)


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix multiplication: `sum(outputs) x inputs` weights.

    `outputs` lists the matrices the engine fuses into one (query, key, value; gate, up).
    """

    name: str
    tensor_class: TensorClass
    inputs: Units
    outputs: tuple[Units, ...]
    split: Split
    bias: bool = False
    scheme: Scheme = UNQUANTISED
    element_bytes: int | None = None
    """Bytes of an unquantised element; None: the model's own."""
    whole: Whole = Whole.NEVER
    float32_without_router_kernels: bool = False
    """A router that cards without the engine's router kernels keep in float32."""
    split_units: int | None = None
    """Where set, the layer is split only if the ranks divide this number (a tower's heads); otherwise held whole."""
    output_multiple: int = 1
    """What a rank's outputs are padded up to a multiple of, with rows of its own."""
    unpublished: int = 0
    """Elements that the engine builds and the published checkpoint does not hold."""
    one_beyond_units: bool = False
    """Whether ranks beyond replicated units hold the fused matrices as one, with the scales of one."""
    joined: Units | None = None
    """What the outputs after the first become on fewer ranks that divide its count."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of one layer: `count` MLPs, of which a token visits `active`.

    `least_width` is the width that tensor parallel without expert parallel pads a rank's share of an expert up to.
    `spread` is false for classes that know tensor parallelism only: they split each expert over its ranks alone.
    `filled` is true for classes that add empty experts until the ranks divide them.
    """

    name: str
    count: int
    active: int
    hidden: int
    intermediate: int
    gated: bool = True
    bias: bool = False
    scheme: Scheme = UNQUANTISED
    least_width: int = 0
    tensor_class: TensorClass = TensorClass.EXPERTS
    spread: bool = True
    filled: bool = False


@dataclass(frozen=True, slots=True)
class Embedding:
    """A vocabulary table, split by rows padded to a multiple of 64; also the output head.

    `bias` adds one element a row. `counted` is false for a head that the engine builds and the checkpoint lacks.
    """

    name: str
    tensor_class: TensorClass
    vocabulary: int
    hidden: int
    bias: bool = False
    scheme: Scheme = UNQUANTISED
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Tensor:
    """Any other parameter: norms, convolution filters, per-head vectors.

    `rows x columns` elements; `split` divides the rows over tensor ranks, and a rank pads its own up to a multiple of
    `row_multiple`. A `buffer` is computed by the engine, not read from the checkpoint. `counted` is false for what
    published parameter counts leave out (routing biases); `built` is false for what the checkpoint holds but the
    engine's class does not build.
    """

    name: str
    tensor_class: TensorClass
    rows: tuple[Units, ...]
    columns: int = 1
    split: bool = False
    element_bytes: int | None = None
    """Bytes of an element; None: the model's own."""
    buffer: bool = False
    counted: bool = True
    built: bool = True
    row_multiple: int = 1


Module = Linear | Experts | Embedding | Tensor
