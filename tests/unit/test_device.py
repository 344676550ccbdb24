"""Which device and precision are chosen, and what is refused."""

import pytest
import torch

from laya.device import autocast, full_precision, pick_device, pick_precision, read_precision

CPU = torch.device("cpu")
MISSING = [
    kind
    for kind, there in (
        ("cuda", torch.cuda.is_available()),
        ("mps", torch.backends.mps.is_available()),
        ("xpu", torch.xpu.is_available()),
    )
    if not there
]


@pytest.mark.parametrize("device", [None, "auto"])
def test_without_a_wish_the_first_device_there_is_used(device: str | None) -> None:
    first = next((kind for kind in ("cuda", "mps", "xpu") if kind not in MISSING), "cpu")
    assert pick_device(device) == torch.device(first)


@pytest.mark.parametrize("device", ["cpu", CPU])
def test_the_cpu_is_always_there(device: str | torch.device) -> None:
    assert pick_device(device) == CPU


@pytest.mark.parametrize("device", ["cuda", "mps", "xpu", "cuda:1"])
def test_a_device_that_is_missing_is_an_error(device: str) -> None:
    if device.partition(":")[0] not in MISSING:
        pytest.skip(f"runs on a machine without {device}")
    with pytest.raises(RuntimeError, match=rf"'{device}' was asked for.*device='auto'"):
        pick_device(device)


@pytest.mark.parametrize("device", ["cuda:4096", "cpu:1"])
def test_a_device_beyond_the_last_is_an_error(device: str) -> None:
    with pytest.raises(RuntimeError, match="was asked for"):
        pick_device(device)


@pytest.mark.parametrize("device", ["gpu", "", "cpu:x", 1.5])
def test_what_names_no_device_is_a_value_error(device: object) -> None:
    with pytest.raises(ValueError, match="names no device"):
        pick_device(device)  # type: ignore[arg-type]


def test_the_cpu_computes_in_fp32_unless_asked() -> None:
    assert pick_precision(CPU, "bf16") == torch.float32
    assert pick_precision(CPU, "bf16", torch.bfloat16) == torch.bfloat16


def test_the_cpu_does_not_compute_in_fp16() -> None:
    with pytest.raises(ValueError, match=r"fp16.*CPU"):
        pick_precision(CPU, "fp16", torch.float16)


@pytest.mark.parametrize(
    ("capability", "amp_dtype", "dtype"),
    [
        ((9, 0), "bf16", torch.bfloat16),
        ((8, 0), "fp16", torch.float16),
        ((7, 5), "bf16", torch.float16),
        ((7, 0), "fp16", torch.float16),
    ],
)
def test_cuda_computes_in_the_checkpoints_dtype_where_it_can(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], amp_dtype: str, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    assert pick_precision(torch.device("cuda"), amp_dtype) == dtype


def test_older_cuda_refuses_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (7, 5))
    with pytest.raises(ValueError, match=r"bf16.*capability"):
        pick_precision(torch.device("cuda"), "bf16", torch.bfloat16)


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_other_devices_compute_in_fp32(kind: str) -> None:
    assert pick_precision(torch.device(kind), "bf16") == torch.float32


@pytest.mark.parametrize(
    ("given", "dtype"),
    [(None, None), ("fp32", torch.float32), ("bf16", torch.bfloat16), (torch.float16, torch.float16)],
)
def test_a_precision_is_read_by_its_name(given: str | torch.dtype | None, dtype: torch.dtype | None) -> None:
    assert read_precision(given) == dtype


@pytest.mark.parametrize("given", ["float32", "int8", torch.int8, 16])
def test_another_precision_is_a_value_error(given: object) -> None:
    with pytest.raises(ValueError, match="use one of bf16, fp16, fp32"):
        read_precision(given)  # type: ignore[arg-type]


def test_autocast_computes_in_the_dtype_and_can_be_left_again() -> None:
    layer = torch.nn.Linear(4, 4)
    with autocast(CPU, torch.bfloat16):
        assert layer(torch.ones(1, 4)).dtype == torch.bfloat16
        with full_precision(CPU):
            assert layer(torch.ones(1, 4)).dtype == torch.float32
    with autocast(CPU, torch.float32):
        assert layer(torch.ones(1, 4)).dtype == torch.float32
