"""Gemma 4: full layers with wider heads of their own, layers that reuse earlier caches, inputs for every layer.

Source: vLLM 0.33 `model_executor/models/gemma4.py`, `gemma4_mm.py`, `gemma4_unified.py`; transformers 5.20 for the
towers, which the engine runs as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, build_layers, counted_kinds, ends, layer_kinds
from service.sizing.model.families.multimodal import Tied, behind
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Embedding, Module, Tensor, TensorClass, Units
from service.sizing.model.quantization import Quantization
from service.sizing.model.rope import rotary_table, settings_key, used_by
from service.sizing.model.shape import AttentionCache, LayerShape, ModelShape, RopeTable
from service.sizing.model.source import SLIDING_ATTENTION, Source
from service.sizing.model.towers.gemma4 import audio_tower, unified_embedders, vision_tower

FULL_ATTENTION = "full_attention"

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 262144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "sliding_window": 512,
    "vocab_size_per_layer_input": 262144,
    "hidden_size_per_layer_input": 256,
}
UNIFIED_DEFAULTS: Mapping[str, Any] = {
    **DEFAULTS,
    "max_position_embeddings": 262144,
    "sliding_window": 1024,
    "hidden_size_per_layer_input": 0,
    "use_bidirectional_attention": "vision",
}
ROPE: Mapping[str, Any] = {
    SLIDING_ATTENTION: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL_ATTENTION: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}
"""Rotary settings where a configuration gives none."""

LOCAL_BASE = 10_000.0
"""Rotary base of sliding layers where settings for both kinds name none."""

PATTERN = 6
"""Every how many layers a full one stands where a configuration names no kinds."""

WIDE_HEAD = 512
"""Head size of full layers where a configuration names none."""

VIDEO_TOKENS = 32 * (70 + 2 + 6)
"""Tokens of the longest video: 32 frames of at most 70, each with two marks and about six of a timestamp."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads of one layer's attention."""

    kv_heads: int
    size: int


def read_kinds(source: Source) -> list[str]:
    """The kind of every layer; the last is always full."""
    kinds = layer_kinds(source, "layer_types", known=frozenset({SLIDING_ATTENTION, FULL_ATTENTION}))
    if kinds is None:
        layers = range(source.text.layers("num_hidden_layers"))
        kinds = [SLIDING_ATTENTION if (index + 1) % PATTERN else FULL_ATTENTION for index in layers]
    return [*counted_kinds(source, kinds)[:-1], FULL_ATTENTION]


def read_heads(source: Source, kinds: list[str], *, gated: bool) -> list[Heads]:
    """Heads of every layer.

    Full layers have their own, unless `per_layer_config` lists what differs. KV heads of their own count only with
    `attention_k_eq_v` where the configuration class has that field (`gated`).
    """
    text = source.text
    kv_heads, size = text.integer("num_key_value_heads"), text.integer("head_dim")
    listed = text.child("per_layer_config")
    if listed is None:
        wide = text.integer("global_head_dim", default=WIDE_HEAD)
        own = text.optional_integer("num_global_key_value_heads")
        equal = text.flag("attention_k_eq_v", default=not gated)
        full = Heads(own if own and equal else kv_heads, wide)
        return [full if kind == FULL_ATTENTION else Heads(kv_heads, size) for kind in kinds]
    text.ignore("global_head_dim", "num_global_key_value_heads")
    heads = list[Heads]()
    for index in range(len(kinds)):
        layer = listed.child(str(index)) or Fields({})
        strange = sorted(set(layer.values) - {"head_dim", "num_key_value_heads"})
        if strange:
            raise source.refuse(*(layer.named(name) for name in strange), because="it is not known to differ by layer")
        heads.append(
            Heads(layer.integer("num_key_value_heads", default=kv_heads), layer.integer("head_dim", default=size))
        )
    return heads


def rotary_tables(source: Source, kinds: list[str], heads: list[Heads]) -> tuple[RopeTable, ...]:
    """The tables of sliding and of full layers; settings that name no kinds hold for both, with a base for each."""
    text = source.text
    given = text.child("rope_parameters") or Fields(ROPE, "rope_parameters")
    tables = dict[tuple[str, int], tuple[object, RopeTable]]()
    layers = list(zip(kinds, (each.size for each in heads), strict=True))
    for kind, size in dict.fromkeys(layers):
        settings = given.child(kind)
        if settings is None:
            local = {"rope_theta": text.number("rope_local_base_freq", default=LOCAL_BASE)}
            settings = given.overridden(local) if kind == SLIDING_ATTENTION else given
        table = rotary_table(source, size, settings=settings)
        if table is None:
            raise source.refuse(given.path, because="its rotary scaling is not understood")
        tables[kind, size] = (size, settings_key(settings)), table
    return used_by(layers, tables)


def attention(
    quantization: Quantization, path: str, hidden: int, heads: int, own: Heads, *, shared: bool, equal: bool, bias: bool
) -> tuple[Module, ...]:
    """Projections and norms of attention.

    A layer that reuses another's cache (`shared`) has queries only; where keys and values are `equal` the checkpoint
    holds one projection for both, of which the engine makes two.
    """
    queries = Units(heads, own.size)
    projection: Module
    if shared:
        projection = blocks.column(quantization, path, "q_proj", hidden, queries, bias=bias)
    else:
        names = ("q_proj", "k_proj") if equal else ("q_proj", "k_proj", "v_proj")
        projection = replace(
            blocks.query_key_value(quantization, path, hidden, heads, own.kv_heads, own.size, bias=bias, names=names),
            unpublished=own.kv_heads * own.size * (hidden + bias) if equal else 0,
        )
    return (
        projection,
        blocks.row(quantization, path, "o_proj", queries, hidden, bias=bias),
        blocks.norm("q_norm", own.size),
        *(() if shared else (blocks.norm("k_norm", own.size),)),
    )


def expert_modules(source: Source, path: str, hidden: int) -> tuple[Module, ...]:
    """Router and experts beside the dense MLP, with three more norms."""
    text = source.text
    count = text.integer("num_experts")
    return (
        Tensor("router.scale", TensorClass.ROUTER, (Units(hidden + count),)),
        Tensor("router.root_size", TensorClass.ROUTER, (Units(1),), buffer=True),
        blocks.plain_router(hidden, count, name="router.proj"),
        blocks.routed_experts(
            source.quantization,
            path,
            count=count,
            active=text.integer("top_k_experts"),
            hidden=hidden,
            intermediate=text.integer("moe_intermediate_size", "expert_intermediate_size"),
        ),
        Tensor("expert_norms", TensorClass.NORM, (Units(3 * hidden),)),
    )


def layer_input_modules(quantization: Quantization, path: str, hidden: int, width: int) -> tuple[Module, ...]:
    """What brings a layer's own input in."""
    return (
        blocks.replicated(
            quantization, path, "per_layer_input_gate", hidden, width, tensor_class=TensorClass.EMBEDDING
        ),
        blocks.replicated(
            quantization, path, "per_layer_projection", width, hidden, tensor_class=TensorClass.EMBEDDING
        ),
        blocks.norm("post_per_layer_input_norm", hidden),
    )


def per_layer_inputs(source: Source, hidden: int, width: int, layers: int, vocabulary: int) -> tuple[Module, ...]:
    """The table of inputs for every layer, and what mixes the embedding into them."""
    quantization, name = source.quantization, "model.embed_tokens_per_layer"
    return (
        Embedding(name, TensorClass.EMBEDDING, vocabulary, width * layers, scheme=quantization.embedding(name)),
        blocks.column(
            quantization,
            "model",
            "per_layer_model_projection",
            hidden,
            width * layers,
            tensor_class=TensorClass.EMBEDDING,
        ),
        blocks.norm("per_layer_projection_norm", width),
        Tensor("per_layer_scales", TensorClass.OTHER, (Units(3),), buffer=True),
    )


def first_shared(source: Source, kinds: list[str]) -> int:
    """The first of the layers at the end that reuse the cache of the last layer of their kind before them."""
    shared = source.text.integer("num_kv_shared_layers", default=0, minimum=0)
    first = len(kinds) - shared
    lost = sorted(set(kinds[first:]) - set(kinds[:first])) if shared else []
    if first < 0 or lost:
        field = source.text.named("num_kv_shared_layers")
        raise source.invalid(field, f"{field} ({shared}) leaves no layer whose cache the others could share")
    return first


def read_gemma4(source: Source) -> ModelShape:
    """Gemma 4, text only."""
    unified = source.model_type == "gemma4_unified_text"
    source = source.with_defaults(UNIFIED_DEFAULTS if unified else DEFAULTS)
    text, quantization = source.text, source.quantization
    both_ways = text.text("use_bidirectional_attention", default="")
    if both_ways not in ("", "vision"):
        raise source.refuse(
            text.named("use_bidirectional_attention"), because=f"attention both ways over {both_ways!r} is not known"
        )
    hidden, vocabulary = text.integer("hidden_size"), text.integer("vocab_size")
    heads, intermediate = text.integer("num_attention_heads"), text.integer("intermediate_size")
    window, bias = text.integer("sliding_window"), text.flag("attention_bias", default=False)
    width = text.integer("hidden_size_per_layer_input", default=0, minimum=0)
    kinds = read_kinds(source)
    own = read_heads(source, kinds, gated=True)
    shared_from = first_shared(source, kinds)
    wide = text.flag("use_double_wide_mlp", default=False) and shared_from > 0
    equal = text.flag("attention_k_eq_v", default=False)
    experts = text.optional_integer("num_experts")
    text.ignore("enable_moe_block")

    def layer(index: int) -> LayerShape:
        path, full, shared = f"model.layers.{index}", kinds[index] == FULL_ATTENTION, index >= shared_from
        sizes = own[index]
        cache = AttentionCache(heads, sizes.kv_heads, sizes.size, sizes.size, None if full else window)
        return LayerShape(
            () if shared else (cache,),
            (
                *attention(
                    quantization,
                    f"{path}.self_attn",
                    hidden,
                    heads,
                    sizes,
                    shared=shared,
                    equal=equal and full,
                    bias=bias,
                ),
                *blocks.gated_mlp(quantization, f"{path}.mlp", hidden, intermediate * (1 + (wide and shared))),
                Tensor("norms", TensorClass.NORM, (Units(4 * hidden),)),
                *(expert_modules(source, path, hidden) if experts else ()),
                *(layer_input_modules(quantization, path, hidden, width) if width else ()),
                Tensor("layer_scalar", TensorClass.OTHER, (Units(1),), buffer=True),
                *((SHARED_SCALES,) if shared else ()),
            ),
            cache_of=shared_from - 1 - kinds[shared_from - 1 :: -1].index(kinds[index]) if shared else None,
        )

    around = ends(
        source,
        hidden,
        vocabulary,
        tied=source.tied(default=True),
        embedding_everywhere=True,
        norm_everywhere=True,
        head_everywhere=True,
    )
    inputs = per_layer_inputs(
        source, hidden, width, len(kinds), text.integer("vocab_size_per_layer_input", default=vocabulary)
    )
    normalizer = Tensor("normalizer", TensorClass.OTHER, (Units(1),), buffer=True)
    model = assemble(
        source,
        build_layers(source, [(kind, own[index], index >= shared_from) for index, kind in enumerate(kinds)], layer),
        replace(around, every=(*around.every, normalizer, *(inputs if width else ()))),
        hidden=hidden,
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=max(each.kv_heads for each in own),
        experts=experts or 0,
        rope_tables=rotary_tables(source, kinds, own),
        handoff_tensors=1,
    )
    return replace(model, image_prefix=both_ways == "vision")


SHARED_SCALES = Tensor("attn", TensorClass.OTHER, (Units(4),), element_bytes=4, buffer=True)
"""The four float32 scales of an attention operator without a cache of its own."""


def towers(source: Source) -> tuple[Module, ...]:
    """The vision tower, an audio tower where the configuration has one, and their ways into the language model."""
    quantization, root = source.quantization, source.root
    hidden = source.text.integer("hidden_size", default=DEFAULTS["hidden_size"])
    vision = root.child("vision_config")
    if vision is None:
        raise source.invalid("vision_config", "vision_config is missing: the engine builds no Gemma 4 without one")
    audio = root.child("audio_config")
    return (
        *vision_tower(quantization, vision, hidden),
        *(audio_tower(quantization, audio, hidden) if audio else ()),
    )


def read_unified(source: Source) -> ModelShape:
    """Gemma 4 Unified: images and sound enter through a few layers, which every stage builds."""
    root = source.root
    vision, audio = root.child("vision_config"), root.child("audio_config")
    if vision is None:
        raise source.invalid("vision_config", "vision_config is missing: the engine builds no Gemma 4 without one")
    hidden = source.text.integer("hidden_size", default=DEFAULTS["hidden_size"])
    model = with_video(behind(lambda _: (), read_gemma4, tied=Tied.ROOT_ELSE_TIED)(source), vision)
    return replace(
        model, every_stage=(*model.every_stage, *unified_embedders(source.quantization, vision, audio, hidden))
    )


def read_multimodal(source: Source) -> ModelShape:
    """Gemma 4 behind its towers."""
    model = behind(towers, read_gemma4, tied=Tied.ROOT_ELSE_TIED)(source)
    return with_video(model, source.root.child("vision_config"))


def with_video(model: ModelShape, vision: Fields | None) -> ModelShape:
    """The model with the tokens of its largest input: a video, or an image of more tokens."""
    image = vision.integer("default_output_length", default=280) if vision else 0
    return replace(model, largest_item_tokens=max(VIDEO_TOKENS, image))


READERS = {
    "Gemma4ForCausalLM": read_gemma4,
    "Gemma4ForConditionalGeneration": read_multimodal,
    "Gemma4UnifiedForConditionalGeneration": read_unified,
}
