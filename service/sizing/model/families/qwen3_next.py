"""Qwen3-Next, Qwen3.5 to Qwen3.8: gated delta nets with gated attention every few layers, dense or with experts.

Source: vLLM 0.33 `model_executor/models/qwen3_next.py`, `qwen3_5.py`, `layers/mamba/gdn/qwen_gdn_linear_attn.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, build_layers, counted_kinds, ends, layer_kinds, with_defaults
from service.sizing.model.modules import Linear, Module, Split, Tensor, TensorClass, Units, Whole
from service.sizing.model.quantization import Quantization
from service.sizing.model.rope import rotary_table
from service.sizing.model.shape import AttentionCache, Cache, LayerShape, ModelShape
from service.sizing.model.source import Source
from service.sizing.model.state import DeltaNet, read_delta_net, state_bytes
from service.sizing.model.towers import qwen3_vl_tower

COMMON: Mapping[str, Any] = {
    "max_position_embeddings": 32768,
    "num_attention_heads": 16,
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "qwen3_next": {
        **COMMON,
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 48,
        "num_key_value_heads": 2,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts_per_tok": 10,
        "num_experts": 512,
    },
    "qwen3_5_text": {
        **COMMON,
        "vocab_size": 248320,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 32,
        "num_key_value_heads": 4,
    },
    "qwen3_5_moe_text": {
        **COMMON,
        "vocab_size": 248320,
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts_per_tok": 8,
        "num_experts": 256,
    },
}
VISION: Mapping[str, Any] = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 3584,
    "num_position_embeddings": 2304,
}
TEXT_TYPES = {"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}
"""Model types of a whole configuration, and of the language model inside."""

KINDS = frozenset({"linear_attention", "full_attention"})

REPLICATED_BETA = frozenset({"auto_awq", "auto_gptq", "inc"})
"""Quantisations under which the narrow projection of decay and step is held whole."""


def delta_net(
    quantization: Quantization, path: str, hidden: int, sizes: DeltaNet, *, interleaved: bool
) -> tuple[Module, ...]:
    """A gated delta net; `interleaved` checkpoints fuse its projections by key head, as Qwen3-Next does."""
    keys, values, heads = Units(sizes.keys), Units(sizes.values), Units(sizes.value_heads)
    names = ("in_proj_qkvz",) if interleaved else ("in_proj_qkv", "in_proj_z")
    narrow = ("in_proj_ba",) if interleaved else ("in_proj_b", "in_proj_a")
    whole = not interleaved and quantization.method in REPLICATED_BETA
    return (
        Linear(
            "in_proj_qkvz",
            TensorClass.STATE,
            Units(hidden),
            (Units(2 * (sizes.keys + sizes.values)),) if interleaved else (keys, keys, values, values),
            Split.COLUMN,
            scheme=quantization.linear(*(f"{path}.{name}" for name in names)),
        ),
        Linear(
            "in_proj_ba",
            TensorClass.STATE,
            Units(hidden),
            (Units(2 * sizes.value_heads),) if interleaved else (heads, heads),
            Split.REPLICATED if whole else Split.COLUMN,
            scheme=quantization.linear(*(f"{path}.{name}" for name in narrow)),
        ),
        *sizes.inner_tensors(),
        blocks.norm("norm", sizes.value_size),
        blocks.row(quantization, path, "out_proj", values, hidden, tensor_class=TensorClass.STATE),
    )


def expert_mlp(source: Source, path: str) -> tuple[Module, ...]:
    """Routed experts and one shared expert behind a gate of its own, which is built even without the expert."""
    text, quantization = source.text, source.quantization
    hidden, experts = text.integer("hidden_size"), text.integer("num_experts")
    shared = text.integer("shared_expert_intermediate_size", default=0, minimum=0)
    return (
        blocks.plain_router(hidden, experts),
        blocks.plain_router(hidden, 1, name="shared_expert_gate"),
        *(
            blocks.gated_mlp(
                quantization,
                f"{path}.shared_expert",
                hidden,
                shared,
                tensor_class=TensorClass.SHARED_EXPERTS,
                whole=Whole.TOKENS_SPLIT,
            )
            if shared
            else ()
        ),
        blocks.routed_experts(
            quantization,
            path,
            count=experts,
            active=text.integer("num_experts_per_tok"),
            hidden=hidden,
            intermediate=text.integer("moe_intermediate_size"),
        ),
    )


def read_kinds(source: Source) -> list[str]:
    """The kind of every layer; without a list, attention closes every group of `full_attention_interval`."""
    kinds = layer_kinds(source, "layer_types", known=KINDS)
    if kinds is None:
        interval = source.text.integer("full_attention_interval")
        kinds = [
            "linear_attention" if (index + 1) % interval else "full_attention"
            for index in range(source.text.layers("num_hidden_layers"))
        ]
    return counted_kinds(source, kinds)


def decoder(
    source: Source,
    *,
    sparse: list[bool],
    interleaved: bool,
    temporal_bytes: int,
    prefix: str = "model",
    tower: tuple[Module, ...] = (),
) -> ModelShape:
    """The decoder; every stage builds the embedding, and Qwen3-Next (`interleaved`) an untied head too.

    Parameters
    ----------
    sparse : list of bool
        Which layers have experts.
    interleaved : bool
        Whether this is Qwen3-Next.
    temporal_bytes : int
        Bytes of an element of the recurrent state.
    prefix : str
        Checkpoint name of the decoder.
    tower : tuple of Module
        Weights of a vision tower in front.
    """
    text, quantization = source.text, source.quantization
    if text.child("dual_chunk_attention_config"):
        raise source.refuse("dual_chunk_attention_config", because="attention in dual chunks is not known")
    hidden, vocabulary = text.integer("hidden_size"), text.integer("vocab_size")
    heads = text.integer("num_attention_heads")
    kv_heads, size = text.integer("num_key_value_heads"), text.integer("head_dim")
    gated, bias = text.flag("attn_output_gate", default=True), text.flag("qkv_bias", default=False)
    scaled = text.flag("layer_scale", default=False)
    net = read_delta_net(source, temporal_bytes)
    kinds = read_kinds(source)

    def layer(index: int) -> LayerShape:
        path = f"{prefix}.layers.{index}"
        cache: Cache
        mixing: tuple[Module, ...]
        if kinds[index] == "full_attention":
            cache = AttentionCache(heads, kv_heads, size, size)
            mixing = (
                blocks.query_key_value(
                    quantization, f"{path}.self_attn", hidden, heads * (1 + gated), kv_heads, size, bias=bias
                ),
                blocks.row(quantization, f"{path}.self_attn", "o_proj", Units(heads, size), hidden),
                blocks.norm("q_norm", size),
                blocks.norm("k_norm", size),
            )
        else:
            cache = net.cache()
            mixing = delta_net(quantization, f"{path}.linear_attn", hidden, net, interleaved=interleaved)
        mlp = (
            expert_mlp(source, f"{path}.mlp")
            if sparse[index]
            else blocks.gated_mlp(quantization, f"{path}.mlp", hidden, text.integer("intermediate_size"))
        )
        norms = (blocks.norm("input_layernorm", hidden), blocks.norm("post_attention_layernorm", hidden))
        scales = (Tensor("layer_scale", TensorClass.NORM, (Units(hidden),), columns=2),) if scaled else ()
        return LayerShape((cache,), (*mixing, *mlp, *norms, *scales))

    table = rotary_table(source, size, section_factor=1)
    return assemble(
        source,
        build_layers(source, list(zip(kinds, sparse, strict=True)), layer),
        ends(
            source,
            hidden,
            vocabulary,
            tied=not interleaved and text.flag("tie_word_embeddings", default=False),
            embedding=f"{prefix}.embed_tokens",
            norm=f"{prefix}.norm",
            embedding_everywhere=True,
            head_everywhere=interleaved,
            quantised=False,
            quantised_head=not interleaved,
        ),
        hidden=hidden,
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=kv_heads,
        experts=text.integer("num_experts") if any(sparse) else 0,
        rope_tables=(table,) if table else (),
        tower=tower,
    )


def read_qwen3_next(source: Source) -> ModelShape:
    """Qwen3-Next: experts in every layer unless the configuration says otherwise."""
    source = with_defaults(source, DEFAULTS["qwen3_next"])
    text = source.text
    experts, step = text.integer("num_experts", minimum=0), text.integer("decoder_sparse_step", default=1)
    dense = text.integers("mlp_only_layers") or []
    sparse = [
        experts > 0 and index not in dense and (index + 1) % step == 0
        for index in range(text.layers("num_hidden_layers"))
    ]
    return decoder(source, sparse=sparse, interleaved=True, temporal_bytes=2)


def read_qwen3_5(source: Source, *, prefix: str = "model", tower: tuple[Module, ...] = ()) -> ModelShape:
    """Qwen3.5 and later: dense or with experts in every layer; the recurrent state in the type the model names."""
    kind = TEXT_TYPES.get(source.model_type, source.model_type)
    if kind not in DEFAULTS or kind == "qwen3_next":
        raise source.refuse("model_type", because=f"layers of model_type {kind!r} are not known")
    source = with_defaults(source, DEFAULTS[kind])
    return decoder(
        source,
        sparse=[kind == "qwen3_5_moe_text"] * source.text.layers("num_hidden_layers"),
        interleaved=False,
        temporal_bytes=state_bytes(source, "mamba_ssm_dtype", "auto"),
        prefix=prefix,
        tower=tower,
    )


def read_qwen3_5_vision(source: Source) -> ModelShape:
    """Qwen3.5 and later with a vision tower in front."""
    vision = source.root.child("vision_config")
    if vision is None:
        raise source.invalid("vision_config", "vision_config is missing: give the vision tower's configuration")
    tower = qwen3_vl_tower(source.quantization, vision, VISION)
    return read_qwen3_5(source, prefix="model.language_model", tower=tower)


READERS = {
    "Qwen3NextForCausalLM": read_qwen3_next,
    "Qwen3_5ForCausalLM": read_qwen3_5,
    "Qwen3_5MoeForCausalLM": read_qwen3_5,
    "Qwen3_5ForConditionalGeneration": read_qwen3_5_vision,
    "Qwen3_5MoeForConditionalGeneration": read_qwen3_5_vision,
    "InternS2PreviewForConditionalGeneration": read_qwen3_5_vision,
}
