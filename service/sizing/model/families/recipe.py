"""What a recipe says: how one architecture differs from the plainest Llama."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from service.sizing.model.modules import Module, Tensor
from service.sizing.model.shape import AttentionCache
from service.sizing.model.source import Source

Bias = bool | tuple[str, ...]
"""Whether layers have a bias: never, always, or where one of the named fields is true."""

LayerParts = tuple[tuple[AttentionCache, ...], tuple[Module, ...]]
"""What one layer's attention keeps, and its weights."""


class HeadNorms(StrEnum):
    """Norms on queries and keys, replicated: none, one weight for each element of a head, or of all heads together."""

    NONE = "none"
    HEAD = "head"
    ALL_HEADS = "all_heads"


class Part(StrEnum):
    """What stands outside the layers."""

    EMBEDDING = "embedding"
    NORM = "norm"
    HEAD = "head"


class ExpertLayers(Protocol):
    """The expert layers of one model."""

    @property
    def count(self) -> int:
        """Routed experts of a layer."""
        ...

    def at(self, index: int) -> bool:
        """Whether the layer at `index` has experts instead of a dense MLP."""
        ...

    def modules(self, source: Source, path: str, hidden: int) -> tuple[Module, ...]:
        """Router, routed and shared experts of the layer at `path`."""
        ...


@dataclass(frozen=True, slots=True)
class Spelling:
    """Fields that hold the sizes."""

    layers: tuple[str, ...] = ("num_hidden_layers",)
    heads: tuple[str, ...] = ("num_attention_heads",)
    kv_heads: tuple[str, ...] = ("num_key_value_heads",)
    head_size: tuple[str, ...] = ("head_dim",)
    intermediate: tuple[str, ...] = ("intermediate_size",)
    vocabulary: tuple[str, ...] = ("vocab_size",)
    positions: tuple[str, ...] = ("max_position_embeddings",)


@dataclass(frozen=True, slots=True)
class Names:
    """Names of modules in the checkpoint: the first four from the root, the others from the layer.

    `mlp` lists gate, up and down projections; without a gate, up and down.
    """

    layers: str = "model.layers"
    embedding: str = "model.embed_tokens"
    norm: str = "model.norm"
    head: str = "lm_head"
    attention: str = "self_attn"
    queries: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    output: str = "o_proj"
    feed_forward: str = "mlp"
    mlp: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """How one architecture differs from the plainest Llama.

    Attributes
    ----------
    spelling, names
        Where sizes stand in the configuration and what modules are called in the checkpoint.
    query_bias, output_bias, mlp_bias : Bias
        Biases of the fused query-key-value projection, of the output projection and of the MLP.
    query_bias_field : str, optional
        A field that, where present, decides `query_bias` alone.
    down_bias : Bias, optional
        Bias of the MLP's last projection, where it differs from `mlp_bias`.
    head_norms, head_norms_field
        Norms on queries and keys; only where the field, if named, is true.
    norms : tuple of str
        Norms of the residual stream in each layer; `norm_bias` and `has_final_norm` describe them.
    head_bias, loaded_head_bias : Bias, bool
        Whether the head has a bias; whether it has one that the class adds only while loading.
    published_head : bool
        Whether the checkpoint has the head that the class builds.
    tied, reads_tied : bool
        Whether the head is the embedding by default, and whether the class looks at the configuration for it.
    everywhere : frozenset of Part
        What the class builds on every pipeline stage.
    quantised_embedding, quantised_head : bool
        Whether the class hands the checkpoint's quantisation to the embedding and the head.
    rotary, partial : bool, float or None
        Whether positions are rotary, and the share of a head that is rotated where the class fixes it.
    section_factor : int
        Positions that the rotary table covers for each of the context where the rope has sections, as vision needs.
    windows, mixed_windows : bool
        Whether the class looks at sliding windows at all, and at `layer_types`.
    may_encode : bool
        Whether `is_causal: false` turns the decoder into an encoder, which keeps no cache.
    transformers : bool
        Whether vLLM runs transformers' own class.
    prepare : callable, optional
        Changes to the configuration that its class makes.
    extra : callable, optional
        Further weights of a layer.
    buffers : tuple of Tensor
        Further buffers, on every stage.
    attention : callable, optional
        Builds the attention of a layer, given its path and window, where it is not grouped-query attention.
    experts : callable, optional
        Reads the expert layers.
    refusal : callable, optional
        What the engine meets while it builds such a configuration, in its words; None: nothing.
    refused : tuple of str
        Fields which the class does not support when they are true or given.
    """

    spelling: Spelling = Spelling()
    names: Names = Names()
    query_bias: Bias = False
    output_bias: Bias = False
    mlp_bias: Bias = False
    query_bias_field: str | None = None
    down_bias: Bias | None = None
    head_norms: HeadNorms = HeadNorms.NONE
    head_norms_field: str | None = None
    head_norm_bias: bool = False
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    norm_bias: Bias = False
    has_final_norm: Bias = True
    head_bias: Bias = False
    loaded_head_bias: bool = False
    published_head: bool = True
    tied: bool = False
    reads_tied: bool = True
    everywhere: frozenset[Part] = frozenset()
    quantised_embedding: bool = True
    quantised_head: bool = True
    rotary: bool = True
    partial: float | None = None
    positions: int = 8192
    section_factor: int = 4
    windows: bool = True
    mixed_windows: bool = False
    may_encode: bool = False
    transformers: bool = False
    handoff_tensors: int = 2
    prepare: Callable[[Source], Source] | None = None
    extra: Callable[[Source, str], tuple[Module, ...]] | None = None
    buffers: tuple[Tensor, ...] = ()
    attention: Callable[[Source, str, int | None], LayerParts] | None = None
    experts: Callable[[Source], ExpertLayers] | None = None
    refusal: Callable[[Source], str | None] | None = None
    refused: tuple[str, ...] = ()
