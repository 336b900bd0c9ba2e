"""MiMo V2: sliding layers with heads of their own, values narrower than keys, experts; with towers, MiMo V2 Omni.

Source: vLLM 0.33 `model_executor/models/mimo_v2.py`, `mimo_v2_omni.py`,
`transformers_utils/model_arch_config_convertor.py`.
"""

from dataclasses import dataclass, replace

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, build_layers, ends
from service.sizing.model.modules import Module, Tensor, TensorClass, Units
from service.sizing.model.rope import rotary_size, used_by
from service.sizing.model.shape import AttentionCache, LayerShape, ModelShape, RopeTable
from service.sizing.model.source import Source
from service.sizing.model.towers.mimo import mimo_audio, mimo_vision
from service.sizing.quantities import round_up

ROUTER_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

FUSED_BLOCK = 128
"""Rows of a block of a checkpoint in 8-bit blocks."""

ROTARY_BASE = 1_000_000.0
"""Rotary base where a configuration names none."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads of one kind of layer."""

    heads: int
    kv_heads: int
    size: int
    value_size: int


def read_heads(source: Source, prefix: str) -> Heads:
    """Heads of the sliding layers (`swa_`) or of the full ones."""
    text = source.text
    size = text.integer(f"{prefix}head_dim")
    return Heads(
        text.integer(f"{prefix}num_attention_heads"),
        text.integer(f"{prefix}num_key_value_heads"),
        size,
        text.integer(f"{prefix}v_head_dim", default=size),
    )


def layer_marks(source: Source, name: str, layers: int) -> list[bool]:
    """A list of ones and zeros, one a layer."""
    marks = source.text.integers(name)
    if marks is None or len(marks) < layers:
        field = source.text.named(name)
        raise source.invalid(field, f"{field} must list {layers} ones and zeros")
    return [mark == 1 for mark in marks[:layers]]


def expert_marks(source: Source, layers: int) -> list[bool]:
    """Which layers have experts: none unless they are listed."""
    if isinstance(source.text.values.get("moe_layer_freq"), list | tuple):
        return layer_marks(source, "moe_layer_freq", layers)
    source.text.ignore("moe_layer_freq")
    return [False] * layers


def joined_rows(own: Heads, chunks: int) -> Units | None:
    """Keys and values of the chunks that a checkpoint in 8-bit blocks fuses, padded to whole blocks.

    None where the rows of queries, keys and values span whole blocks already, or the queries' do not.
    """
    if own.heads % chunks or own.kv_heads % chunks:
        return None
    queries, keys, values = (
        rows // chunks for rows in (own.heads * own.size, own.kv_heads * own.size, own.kv_heads * own.value_size)
    )
    if queries % FUSED_BLOCK or not (keys % FUSED_BLOCK or values % FUSED_BLOCK):
        return None
    return Units(chunks, round_up(keys + values, FUSED_BLOCK))


def attention(
    source: Source, path: str, hidden: int, own: Heads, *, bias: bool, sinks: bool, chunks: int | None
) -> tuple[Module, ...]:
    """Projections, fused in `chunks` or not, and one sink logit a head where there are sinks."""
    quantization = source.quantization
    projection = blocks.query_key_value(
        quantization,
        path,
        hidden,
        own.heads,
        own.kv_heads,
        own.size,
        value_head_size=own.value_size,
        bias=bias,
        names=("q_proj", "k_proj", "v_proj") if chunks is None else ("qkv_proj",),
    )
    if chunks is not None and quantization.method is not None:
        projection = replace(projection, joined=joined_rows(own, chunks))
    return (
        projection,
        blocks.row(quantization, path, "o_proj", Units(own.heads, own.value_size), hidden),
        *((Tensor("attention_sink_bias", TensorClass.ATTENTION, (Units(own.heads),), split=True),) if sinks else ()),
    )


def expert_block(source: Source, path: str, hidden: int) -> tuple[Module, ...]:
    """Router in the type the configuration names, float32 by default, its correction, and the experts."""
    text = source.text
    experts, dtype = text.integer("n_routed_experts"), text.text("moe_router_dtype", default="float32")
    if dtype not in ROUTER_BYTES:
        raise source.invalid("moe_router_dtype", f"moe_router_dtype must be one of {', '.join(ROUTER_BYTES)}")
    return (
        blocks.plain_router(hidden, experts, element_bytes=ROUTER_BYTES[dtype]),
        blocks.routing_bias(experts),
        blocks.routed_experts(
            source.quantization,
            path,
            count=experts,
            active=text.integer("num_experts_per_tok"),
            hidden=hidden,
            intermediate=text.integer("moe_intermediate_size"),
        ),
    )


def rotary_tables(source: Source, kinds: list[bool], full: Heads, sliding: Heads) -> tuple[RopeTable, ...]:
    """One table for each kind of layer, unless heads and bases are the same; the scaling is never used."""
    text = source.text
    positions, base = text.integer("max_position_embeddings"), text.number("rope_theta", default=ROTARY_BASE)
    tables = dict[bool, tuple[object, RopeTable]]()
    for slides in dict.fromkeys(kinds):
        size = (sliding if slides else full).size
        own_base = text.number("swa_rope_theta", default=base) if slides else base
        tables[slides] = (size, own_base), RopeTable(positions, rotary_size(source, size), 2)
    return used_by(kinds, tables)


def read_mimo_v2(source: Source) -> ModelShape:
    """MiMo V2 and MiMo V2 Flash; the head is never the embedding."""
    text, quantization = source.text, source.quantization
    fused = text.text("attention_projection_layout", default="") == "fused_qkv"
    if fused and quantization.method not in (None, "fp8"):
        raise source.refuse(
            "attention_projection_layout",
            because=f"fused projections of a checkpoint quantised as {quantization.method} are not known",
        )
    text.ignore("sliding_window", "attention_chunk_size", "layer_types", "v_head_dim")
    layers, hidden, vocabulary = (
        text.layers("num_hidden_layers"),
        text.integer("hidden_size"),
        text.integer("vocab_size"),
    )
    slides = layer_marks(source, "hybrid_layer_pattern", layers)
    sparse = expert_marks(source, layers)
    full = read_heads(source, "")
    sliding = read_heads(source, "swa_") if any(slides) else full
    window = text.integer("sliding_window_size") if any(slides) else None
    bias = text.flag("attention_bias", default=False)
    sinks = text.flag("add_swa_attention_sink_bias", default=False)
    chunks = full.kv_heads if fused else None

    def layer(index: int) -> LayerShape:
        path, slide = f"model.layers.{index}", slides[index]
        own = sliding if slide else full
        cache = AttentionCache(own.heads, own.kv_heads, own.size, own.value_size, window if slide else None)
        return LayerShape(
            (cache,),
            (
                *attention(source, f"{path}.self_attn", hidden, own, bias=bias, sinks=sinks and slide, chunks=chunks),
                *(
                    expert_block(source, f"{path}.mlp", hidden)
                    if sparse[index]
                    else blocks.gated_mlp(quantization, f"{path}.mlp", hidden, text.integer("intermediate_size"))
                ),
                Tensor("norms", TensorClass.NORM, (Units(2 * hidden),)),
            ),
        )

    around = replace(ends(source, hidden, vocabulary, tied=False), tied=source.tied(default=False))
    model = assemble(
        source,
        build_layers(source, list(zip(slides, sparse, strict=True)), layer),
        around,
        hidden=hidden,
        vocabulary=vocabulary,
        heads=full.heads,
        kv_heads=full.kv_heads,
        experts=text.integer("n_routed_experts") if any(sparse) else 0,
        rope_tables=rotary_tables(source, slides, full, sliding),
        tower=towers(source),
    )
    return replace(model, attention_sinks=sinks and any(slides))


def towers(source: Source) -> tuple[Module, ...]:
    """What sees and what hears, never quantised: the engine takes any configuration with a tower for an omni one."""
    vision, audio = source.root.child("vision_config"), source.root.child("audio_config")
    if vision is None or not vision.values:
        if source.architecture == OMNI:
            raise source.invalid("vision_config", "vision_config is missing: give an object")
        return ()
    return (*mimo_vision(vision), *(mimo_audio(audio) if audio else ()))


OMNI = "MiMoV2OmniForCausalLM"
READERS = dict.fromkeys(("MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM", OMNI), read_mimo_v2)
