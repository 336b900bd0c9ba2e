"""The expert layers of each architecture, read from its configuration.

Source: vLLM 0.33 `model_executor/models/`, the files that `experts.py` names.
"""

from dataclasses import replace

from service.sizing.model import blocks
from service.sizing.model.families.llama import FLOAT32_BYTES
from service.sizing.model.families.mixture import Mixture, after_dense, everywhere, layer_count
from service.sizing.model.modules import Whole
from service.sizing.model.source import Source


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
        raise source.invalid(
            "mlp_layer_types", f"mlp_layer_types must name num_hidden_layers ({layers}) layers, not {len(kinds)}"
        )
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


def hunyuan3(source: Source) -> Mixture:
    """Hy3: float32 routers with a correction; shared experts as one."""
    text = source.text
    count, width = text.integer("num_experts"), text.integer("expert_hidden_dim", "moe_intermediate_size")
    return Mixture(
        places=after_dense(source, count),
        count=count,
        active=text.integer("num_experts_per_tok"),
        width=width,
        router="router.gate",
        router_bytes=FLOAT32_BYTES,
        correction=blocks.routing_bias(count),
        shared_width=width * text.integer("num_shared_experts", default=1, minimum=0),
        shared="mlp.shared_mlp",
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
