"""Decoders with routed experts in some or all layers.

Source: vLLM 0.33 `model_executor/models/` (`mixtral.py`, `qwen2_moe.py`, `qwen3_moe.py`, `olmoe.py`, `phimoe.py`,
`dbrx.py`, `glm4_moe.py`, `ernie45_moe.py`, `granitemoe.py`, `granitemoeshared.py`, `minimax_m2.py`, `bailing_moe.py`,
`exaone_moe.py`, `openpangu.py`, `param2moe.py`, `sarvam.py`); transformers 5.20 for what vLLM runs through its
Transformers backend; vLLM 0.23's `grok1.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from service.sizing.model import blocks
from service.sizing.model.families.dense import (
    EVERYWHERE,
    RECIPES,
    TRANSFORMERS,
    has_sinks,
    sinks,
    switched_window,
    window_layers,
)
from service.sizing.model.families.llama import (
    FLOAT32_BYTES,
    HeadNorms,
    Names,
    Recipe,
    Spelling,
    has_bias,
    read,
    read_attention,
    reader,
)
from service.sizing.model.modules import Linear, Module, Split, Tensor, TensorClass, Units, Whole
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source
from service.sizing.quantities import round_up

VOCABULARY_PADDING = 64
"""Rows of a vocabulary table are padded to a multiple of this."""


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


def mixtral(source: Source) -> Mixture:
    """Mixtral: the MLP width is the expert's."""
    text = source.text
    return Mixture(
        places=everywhere(source),
        count=text.integer("num_local_experts", default=8),
        active=text.integer("num_experts_per_tok", default=2),
        width=text.integer("intermediate_size"),
        path="block_sparse_moe",
        projections=("w1", "w3", "w2"),
    )


def qwen(source: Source, *, always_gated: bool) -> Mixture:
    """Qwen: every `decoder_sparse_step`-th layer but those of `mlp_only_layers`; a gated shared expert."""
    text = source.text
    count = text.integer("num_experts", "num_local_experts", minimum=0)
    every = text.integer("decoder_sparse_step", default=1)
    dense = set(text.integers("mlp_only_layers") or ())
    shared = text.integer("shared_expert_intermediate_size", default=0, minimum=0)
    return Mixture(
        places=tuple(
            count > 0 and index not in dense and (index + 1) % every == 0 for index in range(layer_count(source))
        ),
        count=count,
        active=text.integer("num_experts_per_tok"),
        width=text.integer("moe_intermediate_size"),
        quantised_router=not always_gated,
        shared_width=shared,
        shared="mlp.shared_expert",
        shared_gate=always_gated or shared > 0,
    )


def olmoe(source: Source) -> Mixture:
    """OLMoE and FlexOlmo: the MLP width is the expert's."""
    text = source.text
    return Mixture(
        places=everywhere(source),
        count=text.integer("num_experts"),
        active=text.integer("num_experts_per_tok"),
        width=text.integer("intermediate_size"),
    )


def dbrx(source: Source) -> Mixture:
    """DBRX: fields that `dbrx_sizes` lays flat."""
    return replace(
        mixtral(source),
        path="ffn",
        router="router.layer",
        projections=("w1", "v1", "w2"),
    )


def glm4(source: Source) -> Mixture:
    """GLM-4.5: float32 routers with a correction; shared experts as one."""
    text = source.text
    count = text.integer("n_routed_experts")
    width = text.integer("moe_intermediate_size")
    return Mixture(
        places=after_dense(source, count),
        count=count,
        active=text.integer("num_experts_per_tok", default=8),
        width=width,
        router_bytes=FLOAT32_BYTES,
        correction=blocks.routing_bias(count),
        shared_width=width * text.integer("n_shared_experts", default=0, minimum=0),
    )


def dots(source: Source) -> Mixture:
    """dots.llm1: a correction that is a buffer; shared experts as one."""
    text = source.text
    count = text.integer("n_routed_experts")
    width = text.integer("moe_intermediate_size")
    return Mixture(
        places=after_dense(source, count, first=0),
        count=count,
        active=text.integer("num_experts_per_tok"),
        width=width,
        correction=replace(blocks.routing_bias(count), buffer=True),
        shared_width=width * text.integer("n_shared_experts", default=0, minimum=0),
    )


def ernie(source: Source) -> Mixture:
    """ERNIE 4.5: every `moe_layer_interval`-th layer between two bounds; float32 routers with a correction."""
    text, layers = source.text, layer_count(source)
    count = text.integer("moe_num_experts", "num_experts", default=64, minimum=0)
    start = text.integer("moe_layer_start_index", default=0, minimum=0)
    end = text.integer("moe_layer_end_index", default=-1, minimum=-1)
    every = text.integer("moe_layer_interval", default=1)
    wanted = text.flag("use_moe", default=count > 0)
    width = text.integer("moe_intermediate_size", default=1536)
    last = layers - 1 if end < 0 else end
    return Mixture(
        places=tuple(wanted and (index + 1) % every == 0 and start <= index <= last for index in range(layers)),
        count=count,
        active=text.integer("moe_k", "num_experts_per_tok", default=6),
        width=width,
        router_bytes=FLOAT32_BYTES,
        correction=replace(blocks.routing_bias(count), counted=True),
        shared_width=width * text.integer("moe_num_shared_experts", default=0, minimum=0),
    )


def granite(source: Source) -> Mixture:
    """Granite: the MLP width is the expert's; a shared MLP beside the block where its width is given."""
    return replace(
        mixtral(source),
        router="router.layer",
        projections=("input_linear", "input_linear", "output_linear"),
        experts="block_sparse_moe",
        shared_width=source.text.integer("shared_intermediate_size", default=0, minimum=0),
        shared="shared_mlp",
        shared_projections=("input_linear", "input_linear", "output_linear"),
    )


def minimax(source: Source) -> Mixture:
    """MiniMax M2: float32 routers, with a correction where the configuration asks for it."""
    corrected = source.text.flag("use_routing_bias", default=False)
    mixture = mixtral(source)
    return replace(
        mixture,
        router_bytes=FLOAT32_BYTES,
        correction=blocks.routing_bias(mixture.count) if corrected else None,
    )


def bailing(source: Source) -> Mixture:
    """Ling: routers in the type the configuration names; shared experts as one, with their own width if given."""
    text = source.text
    count, width = text.integer("num_experts"), text.integer("moe_intermediate_size")
    router = text.text("router_dtype", default="")
    shared_width = text.integer("moe_shared_expert_intermediate_size", default=width)
    corrected = text.flag("moe_router_enable_expert_bias", default=False)
    return Mixture(
        places=after_dense(source, count),
        count=count,
        active=text.integer("num_experts_per_tok"),
        width=width,
        router_bytes=FLOAT32_BYTES if router == "fp32" else 2 if router else None,
        correction=blocks.routing_bias(count) if corrected else None,
        shared_width=shared_width * text.integer("num_shared_experts", minimum=0),
        shared_bias=text.flag("use_bias", default=False),
    )


def exaone(source: Source) -> Mixture:
    """K-EXAONE: layers that `mlp_layer_types` calls sparse, by default all but the first few."""
    text, layers = source.text, layer_count(source)
    count, width = text.integer("num_experts", default=64), text.integer("moe_intermediate_size", default=1024)
    kinds = text.texts("mlp_layer_types")
    if kinds is not None and len(kinds) < layers:
        raise source.invalid("mlp_layer_types", f"mlp_layer_types must name {layers} layers, not {len(kinds)}")
    return Mixture(
        places=tuple(kind == "sparse" for kind in kinds[:layers]) if kinds else after_dense(source, count),
        count=count,
        active=text.integer("num_experts_per_tok", default=8),
        width=width,
        correction=blocks.routing_bias(count),
        shared_width=width * text.integer("num_shared_experts", default=0, minimum=0),
    )


def pangu(source: Source) -> Mixture:
    """openPangu: a correction where the configuration asks for it; shared experts as one."""
    text = source.text
    count, width = text.integer("n_routed_experts"), text.integer("moe_intermediate_size")
    corrected = text.flag("router_enable_expert_bias", default=False)
    return Mixture(
        places=after_dense(source, count),
        count=count,
        active=text.integer("num_experts_per_tok"),
        width=width,
        correction=blocks.routing_bias(count) if corrected else None,
        shared_width=width * text.integer("n_shared_experts", default=0, minimum=0),
        shared_whole=Whole.TOKENS_SPLIT,
    )


def param2(source: Source) -> Mixture:
    """Param2: float32 routers; the shared expert's width is either given or that of its experts together."""
    text = source.text
    count, width = text.integer("num_experts"), text.integer("moe_intermediate_size")
    shared = text.integer("num_shared_experts", default=1, minimum=0)
    corrected = text.flag("moe_router_enable_expert_bias", default=True)
    together = text.integer("moe_shared_expert_intermediate_size", default=width * max(shared, 1))
    return Mixture(
        places=after_dense(source, count, first=1),
        count=count,
        active=text.integer("num_experts_per_tok"),
        width=width,
        router_bytes=FLOAT32_BYTES,
        correction=blocks.routing_bias(count) if corrected else None,
        shared_width=together if shared else 0,
    )


def hunyuan(source: Source) -> Mixture:
    """Hunyuan: one shared MLP of the dense width; sizes may be lists, equal for all layers."""
    text = source.text
    width = same_everywhere(source, "moe_intermediate_size", default=text.integer("intermediate_size"))
    return Mixture(
        places=everywhere(source),
        count=same_everywhere(source, "num_experts", default=1),
        active=same_everywhere(source, "moe_topk", default=1),
        width=width,
        router="gate.wg",
        shared_width=text.integer("intermediate_size"),
        shared="mlp.shared_mlp",
    )


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


def grok(source: Source) -> Mixture:
    """Grok: experts of their own width where one is given."""
    text = source.text
    return Mixture(
        places=everywhere(source),
        count=text.integer("num_local_experts", "num_experts"),
        active=text.integer("num_experts_per_tok"),
        width=text.integer("moe_intermediate_size", "intermediate_size"),
        path="block_sparse_moe",
        projections=("w1", "w3", "w2"),
    )


def residual_mlp(source: Source, path: str) -> tuple[Module, ...]:
    """Grok 2's dense MLP beside the experts."""
    if not source.text.flag("residual_moe", default=False):
        return ()
    hidden, intermediate = source.text.integer("hidden_size"), source.text.integer("intermediate_size")
    return blocks.gated_mlp(source.quantization, f"{path}.mlp", hidden, intermediate)


def dbrx_sizes(source: Source) -> Source:
    """DBRX's nested fields, laid flat."""
    text = source.text
    attention, experts = text.child("attn_config"), text.child("ffn_config")
    if attention is None or experts is None:
        name = "attn_config" if attention is None else "ffn_config"
        raise source.invalid(name, f"{name} is missing: give an object")
    if text.flag("tie_word_embeddings", default=False):
        raise source.invalid("tie_word_embeddings", "tie_word_embeddings must be false: DBRX has a head of its own")
    return source.overridden(
        {
            "hidden_size": text.integer("d_model", "hidden_size"),
            "num_attention_heads": text.integer("n_heads", "num_attention_heads"),
            "num_hidden_layers": text.layers("n_layers", "num_hidden_layers"),
            "num_key_value_heads": attention.integer("kv_n_heads", default=1),
            "intermediate_size": experts.integer("ffn_hidden_size", default=3584),
            "num_local_experts": experts.integer("moe_num_experts", default=4),
            "num_experts_per_tok": experts.integer("moe_top_k", default=1),
            "max_position_embeddings": text.integer("max_seq_len", "max_position_embeddings", default=2048),
        }
    )


def rotated_part(source: Source) -> Source:
    """A rotated part of the head that is given in elements."""
    text = source.text
    rotated = text.optional_integer("rotary_dim")
    rope = source.rope()
    if rotated is None or (rope and "partial_rotary_factor" in rope):
        return source
    return source.overridden({"partial_rotary_factor": rotated / read_attention(source).head_size})


def original_context(source: Source) -> Source:
    """PhiMoE takes the context before scaling from its rotary settings."""
    rope = source.rope()
    original = rope.optional_integer("original_max_position_embeddings") if rope else None
    return source.overridden({"original_max_position_embeddings": original}) if original else source


def tensor_parallel_norms(source: Source, path: str) -> tuple[Module, ...]:
    """MiniMax M2's norms over all heads, split by heads."""
    sizes = read_attention(source)
    return (
        Tensor("q_norm", TensorClass.NORM, (Units(sizes.heads, sizes.head_size),), split=True),
        Tensor("k_norm", TensorClass.NORM, (Units(sizes.kv_heads, sizes.head_size, replicated=True),), split=True),
    )


def optional_head_norms(source: Source, path: str) -> tuple[Module, ...]:
    """Ling's norms on queries and keys, where wanted: layer norms unless the configuration says otherwise."""
    text = source.text
    if not text.flag("use_qk_norm", default=False):
        return ()
    size, bias = read_attention(source).head_size, not text.flag("use_rmsnorm", default=False)
    return (blocks.norm("query_layernorm", size, bias=bias), blocks.norm("key_layernorm", size, bias=bias))


def unpublished_biases(source: Source, path: str) -> tuple[Module, ...]:
    """Biases that PhiMoE's class builds even where the checkpoint has none."""
    if has_bias(source.text, PHIMOE.query_bias):
        return ()
    sizes, hidden = read_attention(source), source.text.integer("hidden_size")
    kv_heads = Units(sizes.kv_heads, sizes.head_size, replicated=True)
    rows = (Units(sizes.heads, sizes.head_size), kv_heads, kv_heads)
    return (
        Tensor("qkv_bias", TensorClass.ATTENTION, rows, split=True, counted=False),
        Tensor("o_bias", TensorClass.ATTENTION, (Units(hidden),), counted=False),
    )


QWEN_MOE = Recipe(query_bias=True, refused=("dual_chunk_attention_config",), everywhere=EVERYWHERE)
PHIMOE = Recipe(
    query_bias=("attention_bias",),
    output_bias=("attention_bias",),
    norm_bias=True,
    head_bias=("lm_head_bias",),
    reads_tied=False,
    quantised_embedding=False,
    quantised_head=False,
    prepare=original_context,
    extra=unpublished_biases,
    experts=mixtral,
    everywhere=EVERYWHERE,
)
GRANITE = Recipe(
    spelling=Spelling(head_size=()),
    quantised_embedding=False,
    mixed_windows=True,
    extra=sinks,
    experts=granite,
    everywhere=EVERYWHERE,
)
BAILING = Recipe(
    names=Names(embedding="model.word_embeddings", attention="attention", queries=("query_key_value",), output="dense"),
    query_bias=("use_bias", "use_qkv_bias"),
    output_bias=("use_bias",),
    mlp_bias=("use_bias",),
    windows=False,
    prepare=rotated_part,
    extra=optional_head_norms,
    experts=bailing,
)
EXAONE = replace(RECIPES["Exaone4ForCausalLM"], norms=Recipe().norms, experts=exaone)
GROK = Recipe(
    names=Names(attention="attn"),
    norms=("pre_attn_norm", "post_attn_norm", "pre_moe_norm", "post_moe_norm"),
    tied=True,
    extra=residual_mlp,
    experts=grok,
    everywhere=EVERYWHERE,
)

MIXTURES: dict[str, Recipe] = {
    "MixtralForCausalLM": Recipe(quantised_embedding=False, experts=mixtral, everywhere=EVERYWHERE),
    "Qwen2MoeForCausalLM": replace(
        QWEN_MOE,
        spelling=Spelling(head_size=()),
        prepare=window_layers,
        experts=partial(qwen, always_gated=True),
    ),
    "Qwen3MoeForCausalLM": replace(
        QWEN_MOE,
        query_bias=("attention_bias",),
        head_norms=HeadNorms.HEAD,
        prepare=switched_window,
        experts=partial(qwen, always_gated=False),
    ),
    "OlmoeForCausalLM": Recipe(
        spelling=Spelling(head_size=()),
        head_norms=HeadNorms.ALL_HEADS,
        reads_tied=False,
        experts=olmoe,
        everywhere=EVERYWHERE,
    ),
    "DbrxForCausalLM": Recipe(
        names=Names(
            layers="transformer.blocks",
            embedding="transformer.wte",
            norm="transformer.norm_f",
            attention="norm_attn_norm.attn",
            queries=("Wqkv",),
            output="out_proj",
        ),
        quantised_embedding=False,
        handoff_tensors=1,
        prepare=dbrx_sizes,
        experts=dbrx,
        everywhere=EVERYWHERE,
    ),
    "Glm4MoeForCausalLM": Recipe(
        query_bias=("attention_bias",),
        head_norms=HeadNorms.HEAD,
        head_norms_field="use_qk_norm",
        reads_tied=False,
        quantised_embedding=False,
        experts=glm4,
    ),
    "Ernie4_5_MoeForCausalLM": Recipe(
        query_bias=("use_bias",),
        mlp_bias=("use_bias",),
        tied=True,
        experts=ernie,
    ),
    "MiniMaxM2ForCausalLM": Recipe(
        query_bias=("attention_bias",),
        reads_tied=False,
        prepare=rotated_part,
        extra=tensor_parallel_norms,
        experts=minimax,
    ),
    **dict.fromkeys(("BailingMoeForCausalLM", "BailingMoeV2ForCausalLM", "SarvamMoEForCausalLM"), BAILING),
    **dict.fromkeys(("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"), EXAONE),
    "PanguProMoEV2ForCausalLM": replace(
        RECIPES["PanguEmbeddedForCausalLM"],
        refused=("interleaved_sliding_window", "param_sink_number", "kv_lora_rank"),
        experts=pangu,
    ),
    "Param2MoEForCausalLM": Recipe(
        query_bias=("use_qkv_bias",),
        output_bias=("use_bias",),
        head_norms=HeadNorms.HEAD,
        head_norms_field="use_qk_norm",
        experts=param2,
    ),
    "FlexOlmoForCausalLM": replace(RECIPES["Olmo2ForCausalLM"], experts=olmoe),
    "HunYuanMoEV1ForCausalLM": replace(TRANSFORMERS, head_norms=HeadNorms.HEAD, experts=hunyuan),
    "Dots1ForCausalLM": replace(TRANSFORMERS, head_norms=HeadNorms.HEAD, experts=dots),
    **dict.fromkeys(("Grok1ForCausalLM", "Grok1ModelForCausalLM"), GROK),
}


def read_phimoe(source: Source) -> ModelShape:
    """PhiMoE: a head bias that the class builds even where the checkpoint has none."""
    model = read(source, PHIMOE)
    if source.text.flag("lm_head_bias", default=False):
        return model
    rows = (Units(round_up(model.vocab_size, VOCABULARY_PADDING)),)
    unpublished = Tensor("lm_head_bias", TensorClass.HEAD, rows, split=True, counted=False)
    return replace(model, every_stage=(*model.every_stage, unpublished))


def read_dbrx(source: Source) -> ModelShape:
    """DBRX: the engine does not find its nested number of experts and takes it for a dense model."""
    return replace(read(source, MIXTURES["DbrxForCausalLM"]), experts=0)


def read_granite(source: Source, recipe: Recipe = GRANITE) -> ModelShape:
    """Granite: attention sinks in models that mix in sliding layers."""
    return replace(read(source, recipe), attention_sinks=has_sinks(source))


READERS: dict[str, Callable[[Source], ModelShape]] = {
    **{architecture: reader(recipe) for architecture, recipe in MIXTURES.items()},
    "DbrxForCausalLM": read_dbrx,
    "PhiMoEForCausalLM": read_phimoe,
    "GraniteMoeForCausalLM": read_granite,
    "GraniteMoeSharedForCausalLM": partial(read_granite, recipe=replace(GRANITE, quantised_embedding=True)),
    "GraniteMoeSWAForCausalLM": partial(read_granite, recipe=replace(GRANITE, quantised_embedding=True)),
}
