"""Nemotron-H and Nemotron 3: Mamba-2, attention, MLP and expert layers in any order, one mixer a layer.

Models that were pruned layer by layer (Puzzle) describe every layer in `block_configs`.

Source: vLLM 0.33 `model_executor/models/nemotron_h.py`.
"""

from collections.abc import Mapping
from typing import Any

from service.sizing.model import blocks
from service.sizing.model.assembly import assemble, build_layers, ends, layer_kinds, with_defaults
from service.sizing.model.families.llama import even_head_size
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, TensorClass, Units, Whole
from service.sizing.model.quantization import Quantization
from service.sizing.model.shape import AttentionCache, Cache, LayerShape, ModelShape
from service.sizing.model.source import Source
from service.sizing.model.state import Mamba2, state_bytes

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 131072,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "intermediate_size": 21504,
    "ssm_state_size": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "conv_kernel": 4,
    "mamba_ssm_cache_dtype": "float32",
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 7688,
    "moe_shared_expert_intermediate_size": 7688,
    "num_experts_per_tok": 2,
}
LETTERS = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}
"""Layer kinds of `hybrid_override_pattern`."""

BLOCKS = {"mamba": "linear_attention", "attention": "full_attention", "moe": "moe", "mlp": "mlp"}
"""Layer kinds of `block_configs`."""

OWN_FIELDS: Mapping[str, frozenset[str]] = {
    "mamba": frozenset(),
    "attention": frozenset({"num_attention_heads", "num_key_value_heads", "head_dim", "sliding_window"}),
    "moe": frozenset(
        {
            "n_routed_experts",
            "n_shared_experts",
            "num_experts_per_tok",
            "moe_intermediate_size",
            "moe_shared_expert_intermediate_size",
            "moe_latent_size",
        }
    ),
    "mlp": frozenset({"intermediate_size"}),
}
"""What a layer of `block_configs` may say of itself, by its kind."""

UNNAMED = ["linear_attention", "moe", "full_attention", "mlp"]
"""The layers of a configuration that names none."""


def read_blocks(source: Source) -> list[Fields] | None:
    """What every layer says of itself; None where the layers are all alike."""
    listed = source.text.items("block_configs")
    if listed is None:
        return None
    whole = Fields({str(index): block for index, block in enumerate(listed)}, source.text.named("block_configs"))
    blocks_read = [whole.child(str(index)) or Fields({}, whole.named(str(index))) for index in range(len(listed))]
    for block in blocks_read:
        kind = block.text("block_type")
        if kind not in BLOCKS:
            raise source.refuse(block.named("block_type"), because=f"layers of kind {kind!r} are not known")
        strange = sorted(
            name for name in block.values if name not in {*OWN_FIELDS[kind], "block_type"} and name in block
        )
        if strange:
            fields = [block.named(name) for name in strange]
            raise source.refuse(*fields, because=f"{', '.join(fields)} of a layer of kind {kind!r} is not known")
    return blocks_read


def own_fields(block: Fields) -> dict[str, int]:
    """The sizes that a layer of `block_configs` names."""
    return {name: block.integer(name, minimum=0) for name in block.values if name != "block_type" and name in block}


def read_heads(source: Source) -> tuple[int, int, int]:
    """Query heads, KV heads and head size of attention."""
    text = source.text
    heads, size = text.integer("num_attention_heads"), text.integer("head_dim", default=0, minimum=0)
    return heads, text.integer("num_key_value_heads", default=heads), size or even_head_size(source, heads)


def read_kinds(source: Source) -> list[str]:
    """The kind of every layer, from the list or from the pattern of letters; `num_hidden_layers` has no say."""
    kinds = layer_kinds(source, "layers_block_type", "layer_types", known=frozenset(LETTERS.values()))
    if kinds is not None:
        return kinds
    pattern = source.text.text("hybrid_override_pattern", default="")
    strange = sorted(set(pattern) - set(LETTERS))
    if strange:
        raise source.refuse("hybrid_override_pattern", because=f"layers {', '.join(strange)} are not known")
    return [LETTERS[letter] for letter in pattern] or UNNAMED


def expert_mixer(source: Source, quantization: Quantization, path: str) -> tuple[Module, ...]:
    """Experts without a gate, fed from a narrower latent where the configuration has one."""
    text = source.text
    hidden, experts = text.integer("hidden_size"), text.integer("n_routed_experts")
    latent, bias = text.optional_integer("moe_latent_size"), text.flag("mlp_bias", default=False)
    modules: list[Module] = [
        blocks.plain_router(hidden, experts, float32_without_router_kernels=True),
        blocks.routing_bias(experts),
    ]
    shared = text.integer("n_shared_experts", default=0, minimum=0)
    if shared:
        modules += blocks.plain_mlp(
            quantization,
            f"{path}.shared_experts",
            hidden,
            shared * text.integer("moe_shared_expert_intermediate_size"),
            bias=False,
            names=("up_proj", "down_proj"),
            tensor_class=TensorClass.SHARED_EXPERTS,
            whole=Whole.TOKENS_SPLIT,
        )
    if latent:
        for name, inputs, outputs in (("fc1_latent_proj", hidden, latent), ("fc2_latent_proj", latent, hidden)):
            modules.append(
                blocks.replicated(
                    quantization, path, name, inputs, outputs, bias=bias, tensor_class=TensorClass.EXPERTS
                )
            )
    modules.append(
        blocks.routed_experts(
            quantization,
            path,
            count=experts,
            active=text.integer("num_experts_per_tok"),
            hidden=latent or hidden,
            intermediate=text.integer("moe_intermediate_size"),
            gated=False,
        )
    )
    return tuple(modules)


def read_nemotron_h(
    source: Source, *, prefix: str = "backbone", head: str = "lm_head", tower: tuple[Module, ...] = ()
) -> ModelShape:
    """Nemotron-H; no rotary table, and every stage builds embedding, final norm and an untied head.

    Parameters
    ----------
    prefix, head : str
        Checkpoint names of the decoder and of the output head.
    tower : tuple of Module
        Weights of towers in front.
    """
    source = with_defaults(source, DEFAULTS)
    text, quantization = source.text, source.quantization
    hidden, vocabulary = text.integer("hidden_size"), text.integer("vocab_size")
    state_heads, state_size = text.integer("mamba_num_heads"), text.integer("mamba_head_dim")
    mixer = Mamba2(
        inner=state_heads * state_size,
        state=text.integer("ssm_state_size"),
        kernel=text.integer("mamba_d_conv", "conv_kernel"),
        heads=state_heads,
        head_size=state_size,
        groups=text.integer("mamba_n_groups", "n_groups"),
        conv_bias=text.flag("mamba_conv_bias", "use_conv_bias", default=True),
        bias=text.flag("use_bias", default=False),
        temporal_bytes=state_bytes(source, "mamba_ssm_cache_dtype", "float32"),
    )
    described = read_blocks(source)
    kinds = [BLOCKS[block.text("block_type")] for block in described] if described else read_kinds(source)
    named = [own_fields(block) for block in described] if described else [dict[str, int]()] * len(kinds)
    own = [source.overridden(values) if values else source for values in named]

    def layer(index: int) -> LayerShape:
        path, text = f"{prefix}.layers.{index}.mixer", own[index].text
        caches: tuple[Cache, ...] = ()
        modules: tuple[Module, ...]
        match kinds[index]:
            case "linear_attention":
                caches, modules = (mixer.cache(),), mixer.modules(quantization, path, hidden)
            case "full_attention":
                heads, kv_heads, size = read_heads(own[index])
                caches = (AttentionCache(heads, kv_heads, size, size, window=text.optional_integer("sliding_window")),)
                modules = (
                    blocks.query_key_value(quantization, path, hidden, heads, kv_heads, size),
                    blocks.row(quantization, path, "o_proj", Units(heads, size), hidden),
                )
            case "moe":
                modules = expert_mixer(own[index], quantization, path)
            case _:
                modules = blocks.plain_mlp(
                    quantization,
                    path,
                    hidden,
                    text.integer("intermediate_size"),
                    bias=text.flag("mlp_bias", default=False),
                    names=("up_proj", "down_proj"),
                )
        return LayerShape(caches, (*modules, blocks.norm("norm", hidden)))

    alike = [(kind, tuple(sorted(values.items()))) for kind, values in zip(kinds, named, strict=True)]
    heads, kv_heads, _ = read_heads(source)
    return assemble(
        source,
        build_layers(source, alike, layer),
        ends(
            source,
            hidden,
            vocabulary,
            tied=False,
            embedding=f"{prefix}.embeddings",
            norm=f"{prefix}.norm_f",
            head=head,
            embedding_everywhere=True,
            norm_everywhere=True,
            head_everywhere=True,
        ),
        hidden=hidden,
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=kv_heads,
        experts=max([each.text.integer("n_routed_experts", minimum=0) for each in (source, *own)]),
        tower=tower,
    )


READERS = dict.fromkeys(("NemotronHForCausalLM", "NemotronHPuzzleForCausalLM"), read_nemotron_h)
