"""Ling and Ring 2.5 and 3: linear or Kimi delta attention, latent attention at the end of every group, and experts.

Source: vLLM 0.33 `model_executor/models/bailing_moe_linear.py`, `bailing_moe_v3.py`, `bailing_moe_v3_vl.py`,
`layers/mamba/linear/bailing_linear_attn.py`, `transformers_utils/configs/bailing_moe_v3_vl.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, build_layers, ends, with_defaults
from service.sizing.model.families.multimodal import tower_config
from service.sizing.model.latent import Latent, latent_attention, latent_cache, nullable
from service.sizing.model.modules import Linear, Module, Split, Tensor, TensorClass, Units
from service.sizing.model.rope import rotary_size, rotary_table
from service.sizing.model.shape import Cache, LayerShape, ModelShape, StateCache, StateKind, StateTensor, Status
from service.sizing.model.source import Source
from service.sizing.model.towers.parts import PROJECTOR, tower_linear
from service.sizing.model.towers.qwen import qwen3_vl_tower

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 157184,
    "hidden_size": 2560,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 42,
    "num_attention_heads": 32,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "first_k_dense_replace": 2,
    "layer_group_size": 6,
    "short_conv_kernel_size": 4,
}
VL_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 157184,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "moe_shared_expert_intermediate_size": 512,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "head_dim": 128,
    "num_experts": 256,
    "num_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 1,
    "layer_group_size": 5,
    "max_position_embeddings": 32768,
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
SECTION_FACTOR = 4
"""Positions that a rotary table with sections covers for each of the context."""

STATE = TensorClass.STATE

HEAD_NOTE = (
    "The configuration class of this model type replaces head_dim by qk_rope_head_dim, and the engine sizes recurrent "
    "layers with it; the repository's own code keeps head_dim."
)


def read_latent(source: Source) -> Latent:
    """Sizes of latent attention."""
    text = source.text
    return Latent(
        heads=text.integer("num_attention_heads"),
        query_rank=nullable(text, "q_lora_rank", None),
        latent_size=text.integer("kv_lora_rank"),
        rope_size=text.integer("qk_rope_head_dim"),
        plain_size=text.integer("qk_nope_head_dim"),
        value_size=text.integer("v_head_dim"),
    )


def linear_attention(source: Source, path: str, head_size: int) -> tuple[Module, ...]:
    """Linear attention with a gated group norm, which ranks must divide."""
    text, quantization = source.text, source.quantization
    hidden, heads = text.integer("hidden_size"), text.integer("num_attention_heads")
    bias, groups = text.flag("use_bias", default=False), text.integer("group_norm_size", default=1)
    wide = Units(heads, head_size)
    query = blocks.query_key_value(
        quantization,
        path,
        hidden,
        heads,
        heads,
        head_size,
        bias=bias or text.flag("use_qkv_bias", default=False),
        names=("query_key_value",),
    )
    norms = (
        (blocks.norm("query_layernorm", head_size), blocks.norm("key_layernorm", head_size))
        if text.flag("use_qk_norm", default=False)
        else ()
    )
    return (
        query,
        *norms,
        blocks.column(quantization, path, "g_proj", hidden, wide, tensor_class=STATE),
        blocks.row(quantization, path, "dense", wide, hidden, bias=bias, tensor_class=STATE),
        Tensor("g_norm", STATE, (Units(groups, heads * head_size // groups),), split=True),
    )


def delta_attention(source: Source, path: str, head_size: int) -> tuple[Module, ...]:
    """Kimi delta attention with decay and gate of full rank."""
    text, quantization = source.text, source.quantization
    hidden, heads = text.integer("hidden_size"), Units(text.integer("num_attention_heads"))
    width = Units(heads.count, head_size)
    return (
        Linear(
            "qkvb_proj",
            STATE,
            Units(hidden),
            (width, width, width, heads),
            Split.COLUMN,
            scheme=quantization.linear(*(f"{path}.{name}_proj" for name in "qkvb")),
        ),
        blocks.column(quantization, path, "f_proj", hidden, width, tensor_class=STATE),
        Tensor("dt_bias", STATE, (width,), split=True, element_bytes=4),
        Tensor(
            "conv1d",
            STATE,
            (width, width, width),
            columns=text.integer("short_conv_kernel_size"),
            split=True,
            element_bytes=4,
        ),
        Tensor("A_log", STATE, (heads,), split=True, element_bytes=4),
        blocks.column(quantization, path, "g_proj", hidden, width, tensor_class=STATE),
        blocks.norm("o_norm", head_size),
        blocks.row(quantization, path, "o_proj", width, hidden, tensor_class=STATE),
    )


def expert_layer(source: Source, path: str, *, count: int, corrected: bool, router_bytes: int) -> tuple[Module, ...]:
    """Router, routed experts and the shared expert, which is always split."""
    text, quantization = source.text, source.quantization
    hidden, width = text.integer("hidden_size"), text.integer("moe_intermediate_size")
    shared = text.integer("num_shared_experts", "n_shared_experts", default=1, minimum=0)
    shared_width = shared * text.integer("moe_shared_expert_intermediate_size", default=width)
    return (
        blocks.plain_router(hidden, count, element_bytes=router_bytes),
        *((blocks.routing_bias(count),) if corrected else ()),
        *(
            blocks.gated_mlp(
                quantization,
                f"{path}.shared_experts",
                hidden,
                shared_width,
                bias=text.flag("use_bias", default=False),
                tensor_class=TensorClass.SHARED_EXPERTS,
            )
            if shared_width
            else ()
        ),
        blocks.routed_experts(
            quantization,
            path,
            count=count,
            active=text.integer("num_experts_per_tok", "num_experts_per_token", default=8),
            hidden=hidden,
            intermediate=width,
        ),
    )


def recurrent_layers(source: Source, *, tail_attends: bool) -> list[bool]:
    """Which layers are recurrent: all but the last of every group, and with `tail_attends` an incomplete group."""
    layers, group = source.text.layers("num_hidden_layers"), source.text.integer("layer_group_size")
    whole = layers // group * group if tail_attends else layers
    return [(index + 1) % group != 0 and index < whole for index in range(layers)]


def decoder(
    source: Source,
    *,
    recurrent: list[bool],
    cache: StateCache,
    mix: Callable[[str], tuple[Module, ...]],
    gate: Linear | None,
    corrected: bool,
    router_bytes: int,
    rotates: int,
) -> ModelShape:
    """The decoder both generations share.

    Parameters
    ----------
    recurrent : list of bool
        Which layers are recurrent; they keep `cache`, and `mix` gives the weights under a checkpoint name.
    gate : Linear, optional
        Output gate of latent attention.
    corrected, router_bytes : bool, int
        Whether routers have a bias, and the bytes of their elements.
    rotates : int
        Rotated elements of a head of a recurrent layer (0: none).
    """
    text, quantization = source.text, source.quantization
    hidden, vocabulary = text.integer("hidden_size"), text.integer("vocab_size")
    latent, width = read_latent(source), text.integer("intermediate_size")
    count = text.integer("num_experts", "num_local_experts", default=512)
    first = text.integer("first_k_dense_replace", minimum=0)
    kinds = [(state, index >= first and count > 1) for index, state in enumerate(recurrent)]

    def layer(index: int) -> LayerShape:
        path = f"model.layers.{index}"
        attention: Cache
        if kinds[index][0]:
            attention, mixing = cache, mix(f"{path}.attention")
        else:
            attention = latent_cache(latent)
            mixing = latent_attention(quantization, f"{path}.attention", hidden, latent, out="dense")
            if gate:
                mixing += (replace(gate, scheme=quantization.linear(f"{path}.attention.g_proj")),)
        mlp = (
            expert_layer(source, f"{path}.mlp", count=count, corrected=corrected, router_bytes=router_bytes)
            if kinds[index][1]
            else blocks.gated_mlp(quantization, f"{path}.mlp", hidden, width, bias=text.flag("use_bias", default=False))
        )
        norms = (blocks.norm("input_layernorm", hidden), blocks.norm("post_attention_layernorm", hidden))
        return LayerShape((attention,), (*mixing, *mlp, *norms))

    tables = [rotary_table(source, latent.rope_size, partial=1.0)]
    if rotates:
        tables.append(rotary_table(source, rotates, partial=1.0))
    model = assemble(
        source,
        build_layers(source, kinds, layer),
        ends(
            source,
            hidden,
            vocabulary,
            tied=False,
            embedding="model.word_embeddings",
            quantised=False,
            quantised_head=True,
        ),
        hidden=hidden,
        vocabulary=vocabulary,
        heads=latent.heads,
        kv_heads=1,
        experts=count,
        rope_tables=tuple(table for table in tables if table),
    )
    return replace(model, status=Status.ESTIMATED, notes=(*model.notes, HEAD_NOTE))


def read_linear(source: Source) -> ModelShape:
    """Ling and Ring 2.5."""
    source = with_defaults(source, DEFAULTS)
    text = source.text
    heads, size = text.integer("num_attention_heads"), text.integer("qk_rope_head_dim")
    state = StateTensor((Units(heads, size),), size, 2)
    return decoder(
        source,
        recurrent=recurrent_layers(source, tail_attends=False),
        cache=StateCache(StateKind.LINEAR_ATTENTION, (state,)),
        mix=lambda path: linear_attention(source, path, size),
        gate=None,
        corrected=text.flag("moe_router_enable_expert_bias", default=False),
        router_bytes=4 if text.text("router_dtype", default="fp32") == "fp32" else 2,
        rotates=rotary_size(source, size),
    )


def read_delta(source: Source, size_field: str = "qk_rope_head_dim") -> ModelShape:
    """Ling and Ring 3; `size_field` holds the size of a recurrent head."""
    source = with_defaults(source, DEFAULTS)
    text = source.text
    if not text.flag("no_kda_lora", default=False):
        raise source.refuse("no_kda_lora", because="delta attention with low-rank projections is not known")
    if source.quantization.method == "fp8":
        raise source.refuse("quantization_config", because="FP8 blocks in this class are not known")
    hidden, heads = text.integer("hidden_size"), text.integer("num_attention_heads")
    size, kernel = text.integer(size_field), text.integer("short_conv_kernel_size")
    kind = text.text("gated_attention_proj_granularity_type", default="")
    gate_sizes = {"": 0, "head_wise": 1, "element_wise": text.integer("v_head_dim")}
    if kind not in gate_sizes:
        raise source.refuse("gated_attention_proj_granularity_type", because=f"an output gate {kind!r} is not known")
    gate = Linear("g_proj", TensorClass.ATTENTION, Units(hidden), (Units(heads, gate_sizes[kind]),), Split.COLUMN)
    state = StateCache(
        StateKind.KIMI_DELTA_ATTENTION,
        (
            StateTensor((Units(3 * heads * size),), kernel - 1, 2),
            StateTensor((Units(heads, size),), size, 4),
        ),
        exports_checkpoints=False,
    )
    return decoder(
        source,
        recurrent=recurrent_layers(source, tail_attends=True),
        cache=state,
        mix=lambda path: delta_attention(source, path, size),
        gate=gate if kind else None,
        corrected=True,
        router_bytes=4,
        rotates=0,
    )


def vision_tower(source: Source) -> tuple[Module, ...]:
    """The tower of Qwen3-VL, whose merger only puts patches beside each other, and a projector."""
    vision, quantization = tower_config(source).completed(VISION), source.quantization
    merged = vision.integer("hidden_size") * vision.integer("spatial_merge_size") ** 2
    width = source.text.integer("hidden_size", default=VL_DEFAULTS["hidden_size"])
    vision.ignore("out_hidden_size", "deepstack_visual_indexes", "disable_merger_proj")
    projector = [
        tower_linear(quantization, "model.linear_proj", name, inputs, width, split, bias=True, tensor_class=PROJECTOR)
        for name, inputs, split in (("0", merged, Split.COLUMN), ("2", width, Split.ROW))
    ]
    return (*qwen3_vl_tower(quantization, vision, VISION, projects=False), *projector)


def read_delta_behind_tower(source: Source) -> ModelShape:
    """Ling 3 VL, whose configuration class keeps the size of a head and gives the rotary settings their sections."""
    source = with_defaults(source, VL_DEFAULTS)
    model, kind = read_delta(source, "head_dim"), source.rope_type()
    return replace(
        model,
        first_stage=model.first_stage + vision_tower(source),
        rope_tables=tuple(replace(table, positions=SECTION_FACTOR * table.positions) for table in model.rope_tables),
        build_refusal=None if kind == "default" else f"Bailing M-RoPE only supports rope_type='default', got {kind!r}",
        status=Status.EXACT,
        notes=tuple(note for note in model.notes if note != HEAD_NOTE),
    )


READERS = {
    "BailingMoeV2_5ForCausalLM": read_linear,
    "BailingMoeV3ForCausalLM": read_delta,
    "BailingMoeV3VLForConditionalGeneration": read_delta_behind_tower,
}
