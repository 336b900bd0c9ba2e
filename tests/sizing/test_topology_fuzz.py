"""Damaged pastes: no crash, no link that the undamaged paste does not have."""

import contextlib
import re
from collections.abc import Callable
from itertools import combinations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.sizing.topology import (
    Topology,
    TopologyNotUnderstood,
    custom_all_reduce,
    nccl_p2p_disable,
    read_topology,
    splits,
)

from .topology_pastes import NUMBERS, fabric_pairs, paste, upper_triangle

PASTES = {number: paste(number) for number in NUMBERS}
CLAIMS = {number: fabric_pairs(read_topology(text)) for number, text in PASTES.items()}

Damage = Callable[[str, int, int], str]


def on_lines(change: Callable[[list[str], int, int], object]) -> Damage:
    def damage(text: str, a: int, b: int) -> str:
        lines = text.split("\n")
        change(lines, a % len(lines), b % len(lines))
        return "\n".join(lines)

    return damage


def on_words(change: Callable[[list[str], int], object]) -> Damage:
    """`change` gets words and blanks by turns, and the place of a word."""

    def damage(text: str, a: int, b: int) -> str:
        words = re.split(r"(\s+)", text)
        change(words, a % len(words) // 2 * 2)
        return "".join(words)

    return damage


def swap(things: list[str], a: int, b: int) -> None:
    things[a], things[b] = things[b], things[a]


def relabel(text: str, a: int, b: int) -> str:
    labels = list(re.finditer(r"GPU\d", text))
    if not labels:
        return text
    chosen = labels[a % len(labels)]
    return f"{text[: chosen.end() - 1]}{b % 10}{text[chosen.end() :]}"


CHARACTERS = "NVXSYPIHBOGUM0123456789\t \n|,-:[]#"
DAMAGES: dict[str, Damage] = {
    "delete a character": lambda text, a, b: text[: a % len(text)] + text[a % len(text) + 1 :],
    "insert a character": lambda text, a, b: (
        text[: a % len(text)] + CHARACTERS[b % len(CHARACTERS)] + text[a % len(text) :]
    ),
    "replace a character": lambda text, a, b: (
        text[: a % len(text)] + CHARACTERS[b % len(CHARACTERS)] + text[a % len(text) + 1 :]
    ),
    "delete a line": on_lines(lambda lines, a, b: lines.pop(a)),
    "repeat a line elsewhere": on_lines(lambda lines, a, b: lines.insert(b, lines[a])),
    "exchange two lines": on_lines(swap),
    "join two lines": on_lines(lambda lines, a, b: lines.__setitem__(slice(a, a + 2), [" ".join(lines[a : a + 2])])),
    "delete a word": on_words(lambda words, a: words.__setitem__(a, "")),
    "delete a word and its blank": on_words(lambda words, a: words.__delitem__(slice(a, a + 2))),
    "repeat a word": on_words(lambda words, a: words.__setitem__(a, f"{words[a]}\t{words[a]}")),
    "exchange two words": on_words(lambda words, a: swap(words, a, max(a - 2, 0))),
    "another GPU number": relabel,
    "cut the end": lambda text, a, b: text[: a % len(text)],
    "cut the beginning": lambda text, a, b: text[a % len(text) :],
    "cut every line": lambda text, a, b: "\n".join(line[: 8 + a % 100] for line in text.split("\n")),
    "cut the left of every line": lambda text, a, b: "\n".join(line[a % 12 :] for line in text.split("\n")),
    "delete a column": lambda text, a, b: re.sub(
        rf"(?m)^((?:[^\t\n]*\t){{{a % 12}}})[^\t\n]*\t", lambda match: match[1], text
    ),
    "wrap every line": lambda text, a, b: re.sub(rf"(.{{{30 + a % 80}}})", r"\1\n", text),
    "lose the tabs": lambda text, a, b: text.replace("\t", ""),
    "lose the newlines": lambda text, a, b: text.replace("\n", " "),
    "collapse blanks": lambda text, a, b: re.sub(r"[ \t]+", " ", text),
    "append another paste": lambda text, a, b: text + "\n" + PASTES[NUMBERS[a % len(NUMBERS)]],
}
PLACES = st.integers(0, 1 << 16)
STEPS = st.lists(st.tuples(st.sampled_from(sorted(DAMAGES)), PLACES, PLACES), min_size=1, max_size=5)


def damaged(text: str, steps: list[tuple[str, int, int]]) -> str:
    for name, a, b in steps:
        text = DAMAGES[name](text, a, b) if text else text
    return text


def allowed(number: int, steps: list[tuple[str, int, int]]) -> set[tuple[int, int]]:
    """Pairs with a link in the paste, or in one appended to it."""
    claims = set(CLAIMS[number])
    for name, a, _ in steps:
        if name == "append another paste":
            claims |= CLAIMS[NUMBERS[a % len(NUMBERS)]]
    return claims


def use(topology: Topology) -> None:
    """Ask everything a caller may ask."""
    assert len(topology.links) == len(topology.numa_nodes) == len(topology.names) == topology.gpu_count
    for a, b in combinations(topology.gpus, 2):
        assert topology.link(a, b) == topology.link(b, a)
        assert topology.peer_access(a, b) == topology.peer_access(b, a)
    grouped = [gpu for group in topology.fabric_groups for gpu in group.gpus]
    assert len(grouped) == len(set(grouped))
    for group in topology.fabric_groups:
        assert all(topology.link(a, b).is_fabric for a, b in combinations(group.gpus, 2))
    devices = topology.devices_for(topology.gpu_count)
    assert sorted(devices) == sorted(topology.gpus)
    custom_all_reduce(topology, devices)
    nccl_p2p_disable(topology, devices)
    for split in splits(topology, topology.gpu_count):
        assert sorted(split.devices) == list(topology.gpus)


@settings(max_examples=1200, derandomize=True, deadline=None, database=None)
@given(number=st.sampled_from(NUMBERS), steps=STEPS)
@example(number=28, steps=[("lose the tabs", 0, 0), ("another GPU number", 6, 9)])
@example(number=33, steps=[("another GPU number", 7, 9)])
@example(number=10, steps=[("delete a line", 1, 0), ("another GPU number", 2, 0)])
def test_damage_never_adds_a_link(number: int, steps: list[tuple[str, int, int]]) -> None:
    """A damaged paste is refused with the documented error, or read without a link it did not have."""
    try:
        topology = read_topology(damaged(PASTES[number], steps))
    except TopologyNotUnderstood:
        return
    assert fabric_pairs(topology) <= allowed(number, steps)
    use(topology)


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(text=st.text(alphabet=st.sampled_from("GPU01 \tXNV48PIXSYS\n-:.|[]OK\x1b\u00a0{}\"'"), max_size=300))
def test_noise_is_refused_or_read(text: str) -> None:
    """Random text in the alphabet of a paste raises nothing but the documented error."""
    with contextlib.suppress(TopologyNotUnderstood):
        use(read_topology(text))


@settings(max_examples=100, derandomize=True, deadline=None, database=None)
@given(number=st.sampled_from([1, 2, 3, 4, 7, 8, 10, 11, 13, 15, 16, 21, 27, 28, 30, 31, 53, 54]), data=st.data())
def test_order_of_rows_does_not_matter(number: int, data: st.DataObject) -> None:
    """Rows carry their label, so a whole paste reads the same in any order of its GPU rows."""
    lines = PASTES[number].split("\n")
    rows = [
        place for place, line in enumerate(lines) if re.match(r"[ |]*GPU\d+[ |\t]+ ?(?:X|NV|PIX|PHB|NODE|SYS)", line)
    ]
    for place, line in zip(rows, data.draw(st.permutations([lines[place] for place in rows])), strict=True):
        lines[place] = line
    topology = read_topology("\n".join(lines))
    assert upper_triangle(topology) == upper_triangle(read_topology(PASTES[number]))
    assert topology.numa_nodes == read_topology(PASTES[number]).numa_nodes
