"""Vision and audio towers that several families share."""

from service.sizing.model.towers.moon_vit import MOON_VIT, moon_vit_tower
from service.sizing.model.towers.parts import layer_norm, tower_linear, tower_query_key_value
from service.sizing.model.towers.qwen import qwen3_vl_tower
from service.sizing.model.towers.siglip import SIGLIP2, siglip2_tower, siglip_tower

__all__ = [
    "MOON_VIT",
    "SIGLIP2",
    "layer_norm",
    "moon_vit_tower",
    "qwen3_vl_tower",
    "siglip2_tower",
    "siglip_tower",
    "tower_linear",
    "tower_query_key_value",
]
