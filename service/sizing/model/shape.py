"""A model as the sizing rules see it: a list of layers, not averages."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from service.sizing.model.modules import Module, Units


@dataclass(frozen=True, slots=True)
class AttentionCache:
    """Keys and values of one attention: full, or limited to a sliding `window` or a local `chunk` of tokens.

    `heads` are the query heads (they decide compute, not memory). `sparse` marks a layer whose indexer picks the blocks
    that attend (MiniMax M3), `summarised` one that picks regions by summaries of them (Step 5). A `relative` one adds
    logits by distance in an operator of its own (Inkling): it stores as FlashAttention does on every card, and keeps
    two scales instead of four.
    """

    heads: int
    kv_heads: int
    head_size: int
    value_head_size: int
    window: int | None = None
    chunk: int | None = None
    sparse: bool = False
    relative: bool = False
    summarised: bool = False


@dataclass(frozen=True, slots=True)
class LatentCache:
    """The compressed key/value of latent attention (MLA): `latent_size + rope_size` elements a token, never split.

    `sparse` marks a model with an indexer that picks which tokens attend.
    """

    heads: int
    latent_size: int
    rope_size: int
    key_head_size: int
    value_head_size: int
    sparse: bool = False
    window: int | None = None


@dataclass(frozen=True, slots=True)
class IndexerCache:
    """Keys of the sparse-attention indexer: one head of `head_size` elements for each `tokens_per_key` tokens.

    `element_bytes` is 1 for 8-bit elements, which carry a 4-byte scale each 128 (DeepSeek V3.2) unless they are not
    `scaled` (Step 5), and 2 for plain 16-bit ones (MiniMax M3).
    """

    head_size: int
    element_bytes: int = 1
    tokens_per_key: int = 1
    scaled: bool = True


@dataclass(frozen=True, slots=True)
class RingCache:
    """Tokens not yet pooled into an index key, once a sequence: `slots` of `slot_bytes` each (GLM-5.3 Flash).

    Without `slots` there are as many as a page of the attention beside it holds (Step 5).
    """

    slots: int
    slot_bytes: int


@dataclass(frozen=True, slots=True)
class InputsCache:
    """Inputs of short convolutions over the last `tokens` tokens: `width` 16-bit elements for each of `heads` heads."""

    heads: int
    width: int
    tokens: int


class PackedRole(StrEnum):
    """Caches of compressed attention, whose pages are laid out for its own kernels."""

    LATENT = "compressed latent"
    INDEXER = "compressed indexer keys"
    PARTIAL = "partial sums"


@dataclass(frozen=True, slots=True)
class PackedCache:
    """One of the caches of compressed attention (DeepSeek V4): a vector for each `tokens_per_vector` tokens.

    `vector_bytes` are stored for each, whatever `--kv-cache-dtype` says; a page is padded to a multiple of
    `page_multiple` bytes. A cache with a `window` keeps those tokens only, in blocks of `block_size` tokens; others
    keep every token, in blocks of the engine's size.
    """

    role: PackedRole
    head_size: int
    vector_bytes: int
    tokens_per_vector: int = 1
    window: int | None = None
    block_size: int | None = None
    page_multiple: int = 576


class StateKind(StrEnum):
    """Recurrent layers, which keep a state a sequence instead of a cache a token."""

    MAMBA1 = "mamba1"
    MAMBA2 = "mamba2"
    GATED_DELTA_NET = "gated_delta_net"
    KIMI_DELTA_ATTENTION = "kimi_delta_attention"
    LINEAR_ATTENTION = "linear_attention"
    SHORT_CONVOLUTION = "short_convolution"


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One tensor of a state: `sum(rows) x columns` elements, rows split over tensor ranks."""

    rows: tuple[Units, ...]
    columns: int
    element_bytes: int


@dataclass(frozen=True, slots=True)
class StateCache:
    """The state a recurrent layer keeps for each sequence.

    With `exports_checkpoints` its prefill can write the state out midway, where the kernel of that kind does so at all
    (Mamba-2; gated delta net on some GPUs). The last tensor of a gated delta net has a key head's size as its columns.
    """

    kind: StateKind
    tensors: tuple[StateTensor, ...]
    exports_checkpoints: bool = True


@dataclass(frozen=True, slots=True)
class CrossCache:
    """Keys and values of the encoder's output, kept once a sequence."""

    heads: int
    kv_heads: int
    head_size: int
    source_tokens: int


Cache = AttentionCache | LatentCache | IndexerCache | RingCache | InputsCache | PackedCache | StateCache | CrossCache


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One decoder layer: what it keeps while serving, and its weights.

    `caches` is empty where a layer reuses another's cache (`cache_of`: the number of that layer) or keeps nothing.
    """

    caches: tuple[Cache, ...]
    modules: tuple[Module, ...]
    cache_of: int | None = None


@dataclass(frozen=True, slots=True)
class RopeTable:
    """A table of rotary sines and cosines, replicated on every rank that has a layer using it.

    `layers` are the indices of those layers; None: whichever attend.
    """

    positions: int
    rotary_size: int
    element_bytes: int
    layers: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class AttentionScales:
    """Cache scales that a quantised checkpoint adds to attention operators, as parameters until they are loaded.

    `attention_bytes` for each attention over keys and values (for each KV head on the rank with `per_kv_head`),
    `latent_bytes` for each latent attention.
    """

    attention_bytes: int = 0
    latent_bytes: int = 0
    per_kv_head: bool = False


class Status(StrEnum):
    """How far the sizing of a model can be trusted."""

    EXACT = "exact"
    ESTIMATED = "estimated"


@dataclass(frozen=True, eq=False)
class ModelShape:
    """A model's structure; compared by identity.

    Attributes
    ----------
    name, architecture, model_type : str
        Name given by the caller; the engine's model class; `model_type` of the (text) configuration.
    dtype : str
        "bfloat16" or "float16": the type of unquantised weights and activations.
    hidden_size, vocab_size : int
        Width of the residual stream; rows of the vocabulary before padding.
    attention_heads, kv_heads : int
        The totals the engine checks a layout against.
    layers : tuple of LayerShape
        In the order the engine splits over pipeline stages. Equal layers are one object.
    first_stage, last_stage : tuple of Module
        Weights outside the layers: embedding and towers; final norm and output head. A tied head is in neither
        (`tied_head` puts a copy of the embedding on the last of several stages).
    every_stage : tuple of Module
        Weights outside the layers that every pipeline stage holds.
    rope_tables : tuple of RopeTable
        Distinct rotary tables.
    max_context_tokens, default_context_tokens : int
        The longest context the engine accepts, and what it takes when none is given.
    context_field : str or None
        The field of the configuration that decides it.
    experts : int
        Routed experts of a layer (0: dense).
    quantization, quantization_refusal : str or None
        The engine's name of the weight quantisation; why vLLM 0.33 does not load such a checkpoint, in its words.
    attention_scales : AttentionScales
        Parameters that quantisation adds to attention operators.
    kv_cache_dtype : str or None
        What a checkpoint asks for when the caller says "auto"; None: the model's own type.
    architecture_refusal : str or None
        Why vLLM 0.33 does not serve the architecture, in its words; sizes are then those of the versions that did.
    build_refusal : str or None
        What vLLM 0.33 meets while it builds the model, in its words; None: nothing.
    supports_pipeline : bool
        Whether the engine can split this architecture into stages.
    handoff_tensors : int
        Tensors of `hidden_size` passed between stages for each token (2: hidden state and residual).
    attention_sinks, logit_softcap : bool
        Whether attention has sink logits, or caps its logits.
    image_prefix : bool
        Whether the tokens of an image attend to each other both ways (the engine's `is_mm_prefix_lm`).
    largest_item_tokens : int or None
        Tokens of the largest image, video or sound clip, which one batch must hold if `image_prefix` or
        `is_encoder_decoder`.
    status, notes
        Whether every rule used is restated and proved; what a reader should know.
    """

    name: str
    architecture: str
    model_type: str
    dtype: str
    hidden_size: int
    vocab_size: int
    attention_heads: int
    kv_heads: int
    layers: tuple[LayerShape, ...]
    first_stage: tuple[Module, ...]
    last_stage: tuple[Module, ...]
    tied_head: bool
    rope_tables: tuple[RopeTable, ...]
    max_context_tokens: int
    default_context_tokens: int
    context_field: str | None
    experts: int = 0
    every_stage: tuple[Module, ...] = ()
    quantization: str | None = None
    quantization_refusal: str | None = None
    attention_scales: AttentionScales = AttentionScales()
    kv_cache_dtype: str | None = None
    architecture_refusal: str | None = None
    build_refusal: str | None = None
    supports_pipeline: bool = True
    handoff_tensors: int = 2
    is_encoder_decoder: bool = False
    attention_sinks: bool = False
    logit_softcap: bool = False
    image_prefix: bool = False
    largest_item_tokens: int | None = None
    status: Status = Status.EXACT
    notes: tuple[str, ...] = ()
    distinct: tuple[LayerShape, ...] = field(init=False)
    pattern: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        numbers: dict[LayerShape, int] = {}
        seen: dict[int, int] = {}
        for layer in self.layers:
            if id(layer) not in seen:
                seen[id(layer)] = numbers.setdefault(layer, len(numbers))
        pattern = tuple(seen[id(layer)] for layer in self.layers)
        object.__setattr__(self, "pattern", pattern)
        object.__setattr__(self, "distinct", tuple(numbers))

    @property
    def element_bytes(self) -> int:
        """Bytes of an unquantised element."""
        return 2

    def counted(self, start: int = 0, end: int | None = None) -> list[tuple[LayerShape, int]]:
        """The distinct layers of `layers[start:end]` with how often each occurs."""
        return [(self.distinct[number], count) for number, count in Counter(self.pattern[start:end]).items()]
