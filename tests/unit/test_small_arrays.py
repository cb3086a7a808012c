"""Small tensors and arrays have a quick way, which loses nothing: what it can't keep goes the general one."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy
import pytest
import torch

from monarch_nb._wire import small_arrays
from monarch_nb._wire.codec import decode, encode

TENSORS = [
    torch.arange(24).reshape(2, 3, 4).to(getattr(torch, name)) for name in small_arrays._TENSOR_TYPES
] + [torch.tensor(2.5)]
ARRAYS = [numpy.arange(24).reshape(2, 3, 4).astype(d) for d in ("f4", "f8", "f2", "i8", "u2", "?")] + [
    numpy.array(2.5)
]


def goes_the_quick_way(value: Any) -> bool:
    return small_arrays.__name__.encode() in encode(value).payload


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda x: f"{x.dtype}-{x.dim()}")
def test_tensors(tensor: Any) -> None:
    assert goes_the_quick_way({"x": [tensor]})
    found = decode(*encode({"x": [tensor]}))["x"][0]
    assert (found.dtype, found.shape, found.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert torch.equal(found, tensor)
    found.fill_(1)  # it's the receiver's own
    assert not torch.equal(found, tensor)


@pytest.mark.parametrize("array", ARRAYS, ids=lambda x: f"{x.dtype}-{x.ndim}")
def test_arrays(array: Any) -> None:
    assert goes_the_quick_way(((array,), {}))
    found = decode(*encode(((array,), {})))[0][0]
    assert (found.dtype, found.shape, found.flags.writeable) == (array.dtype, array.shape, True)
    assert numpy.array_equal(found, array)
    found[...] = 1
    assert not numpy.array_equal(found, array)


base = torch.arange(10.0)
frozen = numpy.arange(3)
frozen.flags.writeable = False
named = torch.ones(2)
named.tag = "kept"  # type: ignore[attr-defined]


class Mine(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "value",
    [
        base[2:4], base.reshape(2, 5).T, base[::2], torch.ones(2, requires_grad=True),
        torch.nn.Parameter(torch.ones(2)), named,
        torch.ones(2).as_subclass(Mine), torch.empty(0, 3), torch.zeros(1 << 15),
        torch.ones(2, device="meta"), torch.ones(2, 2).to_sparse(),
        torch.view_as_complex(torch.ones(2, 2)).conj().imag, [base, base.view(2, 5)],
        numpy.arange(6).reshape(2, 3).T, numpy.zeros(0), numpy.zeros(1 << 15), frozen,
        numpy.arange(3, dtype=">i4"),
        numpy.array(["a", "b"]), numpy.array([1, None]), numpy.zeros(2, dtype=[("a", "i4")]),
        numpy.ma.masked_array([1, 2]),
    ],
    ids=repr,
)  # fmt: skip
def test_what_it_would_not_keep_goes_the_general_way(value: Any) -> None:
    assert not goes_the_quick_way(value)
    decode(*encode(value))


def test_two_that_share_their_memory_do_so_on_the_other_side() -> None:
    found = decode(*encode([base, base.view(2, 5), torch.ones(1)]))
    found[0][0] = 77
    assert found[1][0, 0] == 77
    assert goes_the_quick_way([base, base])
    one, other = decode(*encode([base, base]))
    assert one is other
    assert goes_the_quick_way([base, torch.ones(3), numpy.ones(3)])


def test_who_has_not_imported_torch_can_read_one() -> None:
    code = (
        "import sys\nfrom monarch_nb._wire.codec import decode\nx = decode(sys.stdin.buffer.read())\n"
        "print(x.tolist(), x.dtype)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], input=encode(torch.ones(2)).payload, capture_output=True, check=True
    )
    assert run.stdout.decode() == "[1.0, 1.0] torch.float32\n"
