"""A tower of linear layers that fold ever larger patches of an image, and a table of sounds (Inkling).

Source: vLLM 0.33 `models/inkling/common/towers.py`.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from service.sizing.errors import InvalidConfig
from service.sizing.model.fields import Fields
from service.sizing.model.modules import Module, Tensor, Units
from service.sizing.model.towers.parts import TOWER, layer_norm, whole_linear
from service.sizing.quantities import round_up

CHANNEL_MULTIPLE = 64
"""What the channels after a folding are rounded up to a multiple of."""

LARGEST_PATCH = 1 << 16
"""Longest side of a patch taken: far above any tower, small enough to factorise at once."""

Scale = tuple[int, int]
"""How many pixels a position stands for (frames included), and its channels."""


def prime_factors(number: int) -> list[int]:
    """Prime factors, largest first."""
    factors, divisor = list[int](), 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors[::-1]


def scales(frames: int, side: int, channels: int) -> list[Scale]:
    """All scales that the foldings may stop at: each prime factor of the side, then each of the frames."""
    steps = [*(factor**2 for factor in prime_factors(side)), *prime_factors(frames)]
    folded, planned = 1, [(1, channels)]
    for step in steps:
        folded *= step
        planned.append((folded, round_up(folded * channels, CHANNEL_MULTIPLE)))
    return planned


def chosen_scales(planned: Sequence[Scale], layers: int, channels: int) -> list[Scale]:
    """The scales between `layers` foldings: as near as can be to foldings of equal ratio, in ascending order.

    With at least as many layers as scales each takes the nearest, whether another did or not.
    """
    largest = math.log(planned[-1][0] * channels)
    wanted = [largest * index / layers for index in range(layers + 1)]
    costs = [[abs(want - math.log(folded)) for folded, _ in planned] for want in wanted]
    chosen = [row.index(min(row)) for row in costs] if layers >= len(planned) else cheapest_ascent(costs)
    chosen[0], chosen[-1] = 0, len(planned) - 1
    return [planned[index] for index in chosen]


def cheapest_ascent(costs: Sequence[Sequence[float]]) -> list[int]:
    """One column of each row, ascending, whose costs add up to the least."""
    paths: list[tuple[float, list[int]]] = [(cost, [column]) for column, cost in enumerate(costs[0])]
    for row in costs[1:]:
        longer = list[tuple[float, list[int]]]()
        best: tuple[float, list[int]] = (math.inf, [])
        for column, cost in enumerate(row):
            longer.append((best[0] + cost, [*best[1], column]))
            best = min(best, paths[column], key=lambda path: path[0])
        paths = longer
    return min(paths, key=lambda path: path[0])[1]


def folding_tower(vision: Fields) -> tuple[Module, ...]:
    """Linear layers with a norm after each but the last, and a closing norm where there is one.

    Raises
    ------
    InvalidConfig
        A patch that cannot be folded.
    """
    output, layers = vision.integer("decoder_dmodel"), vision.layers("n_layers")
    side, frames = vision.integer("patch_size", minimum=2), vision.integer("temporal_patch_size")
    channels = vision.integer("n_channels")
    for field, size in (("patch_size", side), ("temporal_patch_size", frames)):
        if size > LARGEST_PATCH:
            named = vision.named(field)
            raise InvalidConfig(named, f"{named} must be at most {LARGEST_PATCH}, not {size}")
    chosen = chosen_scales(scales(frames, side, channels), layers, channels)
    modules: list[Module] = []
    for index, ((before, inputs), (after, outputs)) in enumerate(pairwise(chosen)):
        last = index == layers - 1
        width = output if last else outputs
        modules.append(whole_linear(f"linear_{index}", inputs * (after // before), width, bias=False))
        if not last:
            modules.append(layer_norm(f"norm_{index}", width, bias=False))
    if vision.flag("use_vision_norm", default=False):
        modules.append(layer_norm("final_norm", output, bias=False))
    return tuple(modules)


def sound_table(audio: Fields) -> tuple[Module, ...]:
    """A vector for each level of each band of a sound, and a norm where there is one."""
    output = audio.integer("decoder_dmodel")
    rows = audio.integer("n_mel_bins") * audio.integer("mel_vocab_size")
    norm = (layer_norm("final_norm", output, bias=False),) if audio.flag("use_audio_norm", default=False) else ()
    return (Tensor("encoder", TOWER, (Units(rows),), columns=output), *norm)
