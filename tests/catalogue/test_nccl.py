"""Output of the NCCL and RCCL tests.

The tables are published runs of nccl-tests (8 x H100: 419.49 GB/s at 256 MiB; 2 x RTX A6000 bridged: 47 GB/s), and
variants of them in the layouts of older and newer versions.
"""

import pytest

from service.catalogue.importers.nccl import TableNotUnderstood, read_link_tests
from service.catalogue.records.calibration import Collective, LinkMeasurement, LinkPoint
from service.catalogue.records.calibration_checks import bus_factor, check_link

DEVICES = "".join(
    f"#  Rank  {rank} Group  0 Pid 1623{rank:03} on    node-a device  {rank} [0x{rank}b] NVIDIA H100 80GB HBM3\n"
    for rank in range(8)
)
HEADER = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
ROWS = """\
   268435456      67108864     float     sum      -1   1119.8  239.71  419.49      0   1117.4  240.24  420.42      0
   536870912     134217728     float     sum      -1   2157.5  248.83  435.46      0   2154.8  249.16  436.02      0
  1073741824     268435456     float     sum      -1   4027.3  266.61  466.57      0   4029.1  266.50  466.37      0
  2147483648     536870912     float     sum      -1   7983.5  268.99  470.73      0   7985.2  268.93  470.63      0
"""
TAIL = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 448.212\n#\n"
H100 = (
    "$ ./build/all_reduce_perf -b 256M -e 2G -f 2 -g 8\n"
    "# nThread 1 nGpus 8 minBytes 268435456 maxBytes 2147483648 step: 2(factor) warmup iters: 5 iters: 20\n"
    f"#\n# Using devices\n{DEVICES}#\n{HEADER}{ROWS}{TAIL}"
)


def test_table_of_eight_gpus() -> None:
    """Every row, both ways, with the cards and the average; 239.71 x 2 x 7 / 8 = 419.49."""
    (test,) = read_link_tests(H100)
    assert (test.operation, test.world_size, test.nodes) == (Collective.ALL_REDUCE, 8, 1)
    assert test.gpus == ("NVIDIA H100 80GB HBM3",)
    assert test.out_of_place[0] == LinkPoint(268435456, 1119.8, 239.71, 419.49, 0)
    assert test.in_place[-1] == LinkPoint(2147483648, 7985.2, 268.93, 470.63, 0)
    assert (len(test.out_of_place), len(test.in_place), test.avg_busbw_gb_per_s) == (4, 4, 448.212)
    assert (test.missing, test.contradictions) == ((), ())


@pytest.mark.parametrize("prefix", ["[1,0]<stdout>:", "nccl-launcher-0: ", "    ", "\t"])
def test_launchers_prefixes(prefix: str) -> None:
    """mpirun, Kubernetes and quoting put something before every line."""
    text = "\r\n".join(prefix + line for line in H100.split("\n"))
    (test,) = read_link_tests(text)
    assert (test.world_size, test.operation) == (8, Collective.ALL_REDUCE)
    assert test.contradictions == ()


def test_two_nodes_under_mpi_with_library_messages() -> None:
    """Ranks of two hosts; messages of the library between the rows do not matter."""
    devices = "".join(
        f"[1,0]<stdout>:#  Rank  {rank} Pid 29{rank} on worker-{rank} device  0 [0000:02:00] Tesla V100-SXM2-32GB\n"
        for rank in range(2)
    )
    text = (
        "[1,0]<stdout>:# nccl-tests version 2.18.0 nccl-headers=22907 nccl-library=22907\n"
        "[1,0]<stdout>:# Collective test starting: all_reduce_perf_mpi\n"
        f"{devices}"
        + "".join(f"[1,0]<stdout>:{line}\n" for line in HEADER.splitlines())
        + "[1,1]<stdout>:worker-1:21:21 [0] NCCL INFO Channel 00/02 :    0   1\n"
        "[1,0]<stdout>:     2097152        524288     float     sum      -1  4370.57    0.48    0.48       0  4368.39"
        "    0.48    0.48       0\n"
        "[1,0]<stdout>:# Avg bus bandwidth    : 0.48\n"
        "[1,0]<stdout>:# Collective test concluded: all_reduce_perf_mpi\n"
    )
    (test,) = read_link_tests(text)
    assert (test.world_size, test.nodes, test.gpus) == (2, 2, ("Tesla V100-SXM2-32GB",))
    assert test.out_of_place == (LinkPoint(2097152, 4370.57, 0.48, 0.48, 0),)
    assert test.contradictions == ()


def test_one_sided_table_and_unrun_in_place() -> None:
    """Some layouts have one half; all-to-all has no result in place."""
    one_sided = (
        "#       size    count   type  redop  root   time   algbw   busbw  #wrong\n"
        "#        (B)  (elements)                    (us)  (GB/s)  (GB/s)\n"
        "  34359738368 8589934592  float   sum    -1  875713  39.24   68.66       0\n"
        "# Avg bus bandwidth    : 68.6248\n"
    )
    (test,) = read_link_tests(one_sided, operation=Collective.ALL_REDUCE, world_size=8)
    assert test.in_place == ()
    assert test.out_of_place == (LinkPoint(34359738368, 875713.0, 39.24, 68.66, 0),)
    assert test.contradictions == ()
    row = "  8388608  131072  float  none  -1  100.0  83.89  73.40  0  N/A  N/A  N/A  N/A\n"
    (test,) = read_link_tests(f"alltoall_perf\n{DEVICES}{HEADER}{row}")
    assert test.operation is Collective.ALL_TO_ALL
    assert (len(test.out_of_place), test.in_place) == (1, ())
    assert test.contradictions == ()


def test_old_layout_prints_an_error_not_a_count() -> None:
    """Before 2.11 the last column was a deviation, and the root had no column."""
    text = (
        "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n"
        "  1073741824     268435456   float     sum    22661   47.38   47.38  2e-07    22658   47.39   47.39  2e-07\n"
    )
    (test,) = read_link_tests(text, Collective.ALL_REDUCE, 2)
    assert test.out_of_place == (LinkPoint(1073741824, 22661.0, 47.38, 47.38, None),)
    assert test.missing == ("gpus",)


def test_table_alone_names_what_is_missing() -> None:
    """Without the lines before it, neither operation nor ranks are known; the caller may say them."""
    (test,) = read_link_tests(HEADER + ROWS)
    assert test.missing == ("operation", "world_size", "gpus")
    (test,) = read_link_tests(HEADER + ROWS, Collective.ALL_REDUCE, 8)
    assert (test.missing, test.contradictions) == (("gpus",), ())


def test_several_tables_in_one_text() -> None:
    """Each with its own operation and devices."""
    other = H100.replace("all_reduce_perf", "all_gather_perf").replace(ROWS, GATHER_ROW).replace(TAIL, "")
    first, second = read_link_tests(H100 + other)
    assert (first.operation, second.operation) == (Collective.ALL_REDUCE, Collective.ALL_GATHER)
    assert (first.world_size, second.world_size) == (8, 8)
    assert second.contradictions == ()


# 1,073,741,824 bytes in 3,000 us are 357.91 GB/s; x 7 / 8 = 313.17.
GATHER_ROW = "  1073741824  33554432  float  none  -1  3000.0  357.91  313.17  0  3000.0  357.91  313.17  0\n"


@pytest.mark.parametrize(
    ("before", "after", "line", "word"),
    [
        ("239.71  419.49", "239.71", 17, "12 cells"),
        ("1119.8  239.71", "1119.8 9 239.71", 17, "14 cells"),
        ("1119.8", "11I9.8", 17, "no number"),
        ("1119.8", "0.0", 17, "out of range"),
        ("   536870912     134217728", "   536870912     float", 18, "not whole numbers"),
        ("busbw #wrong     time", "busbw     time", 15, "columns"),
        ("time   algbw   busbw #wrong     time   algbw   busbw #wrong", "", 15, "no column `time`"),
        (ROWS, "", 15, "no row"),
    ],
)
def test_mangled_tables_are_refused_by_line(before: str, after: str, line: int, word: str) -> None:
    """A row or header that does not line up is named by its line."""
    assert before in H100
    with pytest.raises(TableNotUnderstood, match=word) as refused:
        read_link_tests(H100.replace(before, after))
    assert refused.value.line == line


@pytest.mark.parametrize("text", ["", "hello", "# size matters\n1 2 3\n", "\n" * 300_000])
def test_texts_without_a_table_are_refused(text: str) -> None:
    """There is nothing to read."""
    with pytest.raises(TableNotUnderstood):
        read_link_tests(text)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("239.71  419.49      0", "239.71  419.49      3", "3 wrong elements"),
        ("1119.8  239.71  419.49", "1119.8  339.71  594.49", "239.72 GB/s, not 339.71"),
        ("239.71  419.49", "239.71  449.49", "expected 419.49"),
        ("448.212", "348.212", "rows are missing or changed"),
        ("Rank  7", "Rank  9", "ranks 0, 1, 2, 3, 4, 5, 6, 9"),
    ],
)
def test_rows_that_contradict_themselves_are_found(before: str, after: str, reason: str) -> None:
    """Time, size, both bandwidths and the average have to agree."""
    assert before in H100
    (test,) = read_link_tests(H100.replace(before, after))
    assert any(reason in each for each in test.contradictions), test.contradictions


def test_elided_rows_excuse_the_average() -> None:
    """A person who writes `...` says that rows are missing."""
    (test,) = read_link_tests(H100.replace(ROWS.splitlines()[1], "..."))
    assert test.contradictions == ()


@pytest.mark.parametrize(
    ("operation", "world_size", "factor"),
    [
        (Collective.ALL_REDUCE, 2, 1.0),
        (Collective.ALL_REDUCE, 8, 1.75),
        (Collective.ALL_GATHER, 8, 0.875),
        (Collective.REDUCE_SCATTER, 4, 0.75),
        (Collective.ALL_TO_ALL, 16, 0.9375),
        (Collective.BROADCAST, 8, 1.0),
        (Collective.SEND_RECEIVE, 2, 1.0),
    ],
)
def test_bus_factors(operation: Collective, world_size: int, factor: float) -> None:
    """As nccl-tests' doc/PERFORMANCE.md derives them."""
    assert bus_factor(operation, world_size) == factor


def test_check_of_a_measurement() -> None:
    """An honest run passes; one far from three others, one with a single GPU, and one without rows do not."""
    (test,) = read_link_tests(H100)
    honest = LinkMeasurement("a", "h100-sxm", Collective.ALL_REDUCE, 8, 1, test.gpus, test.in_place, test.out_of_place)
    assert check_link(honest, [honest] * 3) == ()
    slow = tuple(
        LinkPoint(p.size_bytes, p.time_us * 4, p.algbw_gb_per_s / 4, p.busbw_gb_per_s / 4) for p in test.out_of_place
    )
    doubtful = LinkMeasurement("b", "h100-sxm", Collective.ALL_REDUCE, 8, 1, test.gpus, (), slow)
    assert check_link(doubtful) == ()
    assert any("3 others have 470.73" in reason for reason in check_link(doubtful, [honest] * 3))
    assert check_link(LinkMeasurement("c", "h100-sxm", Collective.ALL_REDUCE, 8, 1, (), (), ())) == ("it holds no row",)
