"""Aria: a decoder with experts in every layer behind a SigLIP whose patches learned queries attend to.

Source: vLLM 0.33 `model_executor/models/aria.py`, `idefics2_vision_model.py`; transformers 5.20 `models/aria`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.sizing.model.assembly import with_defaults
from service.sizing.model.families.dense import LLAMA
from service.sizing.model.families.llama import read
from service.sizing.model.families.mixture import Mixture, everywhere
from service.sizing.model.families.multimodal import tower_config
from service.sizing.model.modules import Module, Split, Tensor, Units
from service.sizing.model.quantization import NotQuantised
from service.sizing.model.shape import ModelShape
from service.sizing.model.source import Source
from service.sizing.model.towers.parts import PROJECTOR, tower_linear
from service.sizing.model.towers.siglip import siglip_tower

TEXT: Mapping[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "moe_num_experts": 8,
    "moe_topk": 2,
    "moe_num_shared_experts": 2,
}
VISION: Mapping[str, Any] = {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
}
"""The tower of a configuration that leaves its sizes out (transformers' `Idefics3VisionConfig`)."""

TOWER_TYPE = "idefics3_vision"

QUERIES: Mapping[str, int] = {"1225": 128, "4900": 256}
"""Queries by patches, where a configuration lists none."""


def experts(source: Source) -> Mixture:
    """Aria's expert layers: the MLP width is the expert's; shared experts as one."""
    text = source.text
    width = text.integer("intermediate_size")
    return Mixture(
        places=everywhere(source),
        count=text.integer("moe_num_experts"),
        active=text.integer("moe_topk"),
        width=width,
        router="router",
        shared_width=width * text.integer("moe_num_shared_experts"),
    )


def tower(source: Source) -> tuple[Module, ...]:
    """The tower without its last norm, the queries' attention and the projector, none of them quantised."""
    vision = tower_config(source).completed(VISION)
    model_type = vision.text("model_type", default=TOWER_TYPE)
    if model_type != TOWER_TYPE:
        raise source.refuse(vision.named("model_type"), because=f"a tower of type {model_type!r} is not known")
    hidden, width = vision.integer("hidden_size"), source.text.integer("hidden_size")
    listed = source.root.child("projector_patch_to_query_dict")
    queries = [listed.integer(patches) for patches in listed.values] if listed else list(QUERIES.values())
    plain = NotQuantised()
    return (
        *siglip_tower(plain, vision, path="vision_tower", final_norm=False, numbered=False, any_width=True),
        Tensor("query", PROJECTOR, (Units(max(queries)),), columns=hidden),
        Tensor("cross_attn.projections", PROJECTOR, (Units(3 * hidden),), columns=hidden),
        Tensor("cross_attn.multihead_attn", PROJECTOR, (Units(4 * hidden),), columns=hidden + 1),
        Tensor("cross_attn.linear", PROJECTOR, (Units(hidden),), columns=hidden + 1),
        Tensor("norms", PROJECTOR, (Units(3 * hidden),), columns=2),
        tower_linear(
            plain, "feed_forward", "linear_in", hidden, width, Split.COLUMN, bias=False, tensor_class=PROJECTOR
        ),
        tower_linear(plain, "feed_forward", "linear_out", width, width, Split.ROW, bias=False, tensor_class=PROJECTOR),
    )


def read_aria(source: Source) -> ModelShape:
    """Aria, which always has a head of its own; quantised ones are refused, since shared experts have no name there."""
    if source.quantization.method is not None:
        raise source.refuse("quantization_config", because="a quantised Aria is not understood")
    source = with_defaults(source, TEXT)
    recipe = replace(LLAMA, reads_tied=False, may_encode=False, experts=experts)
    model = read(source, recipe)
    return replace(model, first_stage=model.first_stage + tower(source))


READERS = {"AriaForConditionalGeneration": read_aria}
