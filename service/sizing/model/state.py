"""Recurrent mixers: layers that keep a state of fixed size for each sequence instead of keys and values.

Source: vLLM 0.33 `model_executor/layers/mamba/mamba_mixer.py`, `mamba_mixer2.py`, `short_conv.py`,
`gdn/qwen_gdn_linear_attn.py`, `mamba_utils.py`.
"""

from dataclasses import dataclass

from service.sizing.model import blocks
from service.sizing.model.modules import Linear, Module, Split, Tensor, TensorClass, Units
from service.sizing.model.quantization import Quantization
from service.sizing.model.shape import StateCache, StateKind, StateTensor
from service.sizing.model.source import Source

MODEL_BYTES = 2
"""Bytes of a state element kept in the model's own type."""

STATE_BYTES = {"auto": MODEL_BYTES, "float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of a recurrent state element by the name of its type."""

STATE = TensorClass.STATE


def state_bytes(source: Source, field: str, default: str) -> int:
    """Bytes of a recurrent state element, from a field that names its type."""
    name = source.text.text(field, default=default)
    if name not in STATE_BYTES:
        raise source.refuse(source.text.named(field), because=f"a recurrent state of type {name!r} is not known")
    return STATE_BYTES[name]


@dataclass(frozen=True, slots=True)
class Mamba1:
    """Sizes of a Mamba mixer."""

    inner: int
    state: int
    kernel: int
    step_rank: int
    conv_bias: bool
    bias: bool
    norms: bool

    def cache(self) -> StateCache:
        """Convolution window and recurrent state."""
        channels = (Units(self.inner),)
        return StateCache(
            StateKind.MAMBA1,
            (
                StateTensor(channels, self.kernel - 1, MODEL_BYTES),
                StateTensor(channels, self.state, MODEL_BYTES),
            ),
        )

    def modules(self, hidden: int) -> tuple[Module, ...]:
        """Weights; the engine never quantises them."""
        inner = Units(self.inner)
        chosen = Units(self.step_rank + 2 * self.state)
        norms = (self.step_rank, self.state, self.state) if self.norms else ()
        return (
            Tensor("conv1d", STATE, (inner,), columns=self.kernel + self.conv_bias, split=True),
            Linear("in_proj", STATE, Units(hidden), (inner, inner), Split.COLUMN, self.bias),
            Linear("x_proj", STATE, inner, (chosen,), Split.ROW),
            Linear("dt_proj", STATE, Units(self.step_rank), (inner,), Split.COLUMN, bias=True),
            Tensor("A", STATE, (inner,), columns=self.state, split=True, element_bytes=4),
            Tensor("D", STATE, (inner,), split=True),
            Linear("out_proj", STATE, inner, (Units(hidden),), Split.ROW, self.bias),
            *(blocks.norm("layernorm", size) for size in norms),
        )


@dataclass(frozen=True, slots=True)
class Mamba2:
    """Sizes of a Mamba-2 mixer; `temporal_bytes` is the size of an element of the recurrent state."""

    inner: int
    state: int
    kernel: int
    heads: int
    head_size: int
    groups: int
    conv_bias: bool
    bias: bool
    norm: bool = True
    temporal_bytes: int = MODEL_BYTES

    @property
    def group_units(self) -> Units:
        """State channels by group; a single group is copied to every rank, several must divide."""
        return Units(self.groups, self.state, replicated=self.groups == 1)

    def cache(self) -> StateCache:
        """Convolution window over inputs and groups, and the recurrent state by heads."""
        groups = self.group_units
        return StateCache(
            StateKind.MAMBA2,
            (
                StateTensor((Units(self.inner), groups, groups), self.kernel - 1, MODEL_BYTES),
                StateTensor((Units(self.heads, self.head_size),), self.state, self.temporal_bytes),
            ),
        )

    def modules(self, quantization: Quantization, path: str, hidden: int) -> tuple[Module, ...]:
        """Weights; only the projections in and out follow the checkpoint's quantisation."""
        inner, heads, groups = Units(self.inner), Units(self.heads), self.group_units
        convolved = (inner, groups, groups)
        return (
            Linear(
                "in_proj",
                STATE,
                Units(hidden),
                (inner, *convolved, heads),
                Split.COLUMN,
                self.bias,
                quantization.linear(f"{path}.in_proj"),
                one_beyond_units=True,
            ),
            Tensor("conv1d", STATE, convolved, columns=self.kernel + self.conv_bias, split=True),
            Tensor("conv_weights", STATE, convolved, columns=self.kernel, split=True, buffer=True),
            Tensor("A", STATE, (heads,), split=True, element_bytes=4),
            Tensor("D", STATE, (heads,), split=True),
            Tensor("dt_bias", STATE, (heads,), split=True),
            *((Tensor("norm", STATE, (inner,), split=True),) if self.norm else ()),
            blocks.row(quantization, path, "out_proj", inner, hidden, bias=self.bias, tensor_class=STATE),
        )


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Sizes of a gated delta net; `exports` is whether its prefill may write states out midway."""

    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    kernel: int
    temporal_bytes: int = MODEL_BYTES
    exports: bool = True

    @property
    def keys(self) -> int:
        """Width of all key heads."""
        return self.key_heads * self.key_size

    @property
    def values(self) -> int:
        """Width of all value heads."""
        return self.value_heads * self.value_size

    @property
    def convolved(self) -> Units:
        """Channels of the convolution: queries, keys and values."""
        return Units(2 * self.keys + self.values)

    def cache(self) -> StateCache:
        """Convolution window and the recurrent state by value heads."""
        return StateCache(
            StateKind.GATED_DELTA_NET,
            (
                StateTensor((self.convolved,), self.kernel - 1, MODEL_BYTES),
                StateTensor((Units(self.value_heads, self.value_size),), self.key_size, self.temporal_bytes),
            ),
            exports_checkpoints=self.exports,
        )

    def inner_tensors(self) -> tuple[Module, ...]:
        """Convolution, step bias and decay, which the engine never quantises."""
        heads = Units(self.value_heads)
        return (
            Tensor("conv1d", STATE, (self.convolved,), columns=self.kernel, split=True),
            Tensor("dt_bias", STATE, (heads,), split=True),
            Tensor("A_log", STATE, (heads,), split=True, element_bytes=4),
        )


def read_delta_net(source: Source, temporal_bytes: int) -> DeltaNet:
    """Sizes from the `linear_*` fields."""
    text = source.text
    return DeltaNet(
        key_heads=text.integer("linear_num_key_heads"),
        value_heads=text.integer("linear_num_value_heads"),
        key_size=text.integer("linear_key_head_dim"),
        value_size=text.integer("linear_value_head_dim"),
        kernel=text.integer("linear_conv_kernel_dim"),
        temporal_bytes=temporal_bytes,
    )


def short_convolution(
    quantization: Quantization, path: str, width: int, kernel: int, *, bias: bool
) -> tuple[Module, ...]:
    """A gated convolution over the last `kernel` tokens."""
    channels = Units(width)
    return (
        Tensor("conv", STATE, (channels,), columns=kernel + bias, split=True),
        Linear(
            "in_proj",
            STATE,
            channels,
            (channels, channels, channels),
            Split.COLUMN,
            bias,
            quantization.linear(f"{path}.in_proj"),
        ),
        blocks.row(quantization, path, "out_proj", channels, width, bias=bias, tensor_class=STATE),
    )


def short_convolution_cache(width: int, kernel: int) -> StateCache:
    """The window of a gated convolution."""
    return StateCache(StateKind.SHORT_CONVOLUTION, (StateTensor((Units(width),), kernel - 1, MODEL_BYTES),))
