"""Parts that towers are made of. A tower and its projector sit on the first pipeline stage.

Source: vLLM 0.33 `model_executor/models/vision.py`, `layers/linear.py`.
"""

from service.sizing.errors import InvalidConfig
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Linear, Module, Split, Tensor, TensorClass, Units
from service.sizing.model.quantization import Quantization
from service.sizing.weights import parameters

TOWER, PROJECTOR = TensorClass.TOWER, TensorClass.PROJECTOR

LONG_BYTES = 8
"""Bytes of a position number (int64)."""


def left_out(modules: tuple[Module, ...]) -> tuple[Tensor, ...]:
    """Weights of a checkpoint that the engine does not build."""
    count = sum(parameters(module) for module in modules)
    return (Tensor("left_out", TOWER, (Units(count),), built=False),) if count else ()


def even_head_size(vision: Fields, hidden: int, heads: int) -> int:
    """Hidden size by heads.

    Raises
    ------
    InvalidConfig
        When the heads do not divide it.
    """
    if hidden % heads:
        field = vision.named("num_attention_heads")
        raise InvalidConfig(field, f"{field} ({heads}) must divide hidden_size ({hidden})")
    return hidden // heads


def tower_query_key_value(
    quantization: Quantization,
    path: str,
    name: str,
    hidden: int,
    heads: int,
    head_size: int,
    *,
    bias: bool,
    parts: tuple[str, ...] = (),
    split_units: int | None = None,
    kv_heads: int | None = None,
) -> Linear:
    """Fused query, key and value projection of a tower, by default with as many key as query heads."""
    units = Units(heads, head_size)
    keys = Units(kv_heads, head_size, replicated=True) if kv_heads else units
    return Linear(
        name,
        TOWER,
        Units(hidden),
        (units, keys, keys),
        Split.COLUMN,
        bias,
        quantization.linear(*(f"{path}.{part}" for part in parts or (name,))),
        split_units=split_units,
    )


def tower_linear(
    quantization: Quantization,
    path: str,
    name: str,
    inputs: Units | int,
    outputs: Units | int,
    split: Split,
    *,
    bias: bool,
    tensor_class: TensorClass = TOWER,
    split_units: int | None = None,
) -> Linear:
    """One linear layer of a tower or projector."""
    inward, outward = (units if isinstance(units, Units) else Units(units) for units in (inputs, outputs))
    scheme = quantization.linear(f"{path}.{name}")
    return Linear(name, tensor_class, inward, (outward,), split, bias, scheme, split_units=split_units)


def whole_linear(
    name: str, inputs: int, outputs: int, *, bias: bool = True, tensor_class: TensorClass = TOWER
) -> Linear:
    """A linear layer that every rank holds whole, never quantised."""
    return Linear(name, tensor_class, Units(inputs), (Units(outputs),), Split.REPLICATED, bias)


def convolution(
    name: str, inputs: int, outputs: int, taps: int, *, bias: bool = True, tensor_class: TensorClass = TOWER
) -> Tensor:
    """A convolution: `taps` weights of each of the `inputs` that every output sees."""
    return Tensor(name, tensor_class, (Units(outputs),), columns=inputs * taps + bias)


def layer_norm(name: str, size: int, *, bias: bool = True, tensor_class: TensorClass = TOWER) -> Tensor:
    """A norm's weight and, for most towers, its bias."""
    return Tensor(name, tensor_class, (Units(size),), columns=2 if bias else 1)
