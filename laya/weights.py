"""Reading `model.safetensors` into a network that was built without weights.

Strict: every parameter of the network must be in the file in its shape, and nothing else. Tensors are mapped, not
copied, where device and dtype allow, so that processes on one machine share them; a file in use is therefore to
be replaced by another, never overwritten.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from laya.files import find_file

WEIGHTS = "model.safetensors"

_LISTED = 3  # names that an error message lists


def load_weights(model: nn.Module, root: Path, device: torch.device) -> None:
    """Fill ``model`` from the checkpoint's file, in fp32, and move it to ``device``.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file cannot be read, lacks parameters, has others, or has one in another shape.
    """
    path = find_file(root, WEIGHTS)
    wanted = model.state_dict()
    try:
        with safe_open(path, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  # it has keys and cannot be iterated
            _check_names(root, wanted, shapes)
            _check_shapes(root, wanted, shapes)
            state = {name: file.get_tensor(name).to(device=device, dtype=torch.float32) for name in sorted(wanted)}
    except SafetensorError as error:
        raise ValueError(f"checkpoint {root}: {WEIGHTS} cannot be read: {error}") from error
    model.load_state_dict(state, strict=True, assign=True)
    model.requires_grad_(False).to(device)


def _check_names(root: Path, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    there = {_prefix(name) for name in found}
    absent = sorted({_prefix(name) for name in wanted} - there)
    if absent:
        raise ValueError(f"checkpoint {root}: {WEIGHTS} has no parameters under {', '.join(absent)}")
    missing = sorted(wanted.keys() - found.keys())
    if missing:
        raise ValueError(f"checkpoint {root}: {WEIGHTS} lacks {_listed(missing)}")
    unknown = sorted(found.keys() - wanted.keys())
    if unknown:
        raise ValueError(
            f"checkpoint {root}: {WEIGHTS} has {_listed(unknown)}, which the configuration does not provide for"
        )


def _check_shapes(root: Path, wanted: Mapping[str, torch.Tensor], found: Mapping[str, tuple[int, ...]]) -> None:
    for name, tensor in wanted.items():
        if tuple(tensor.shape) != found[name]:
            raise ValueError(
                f"checkpoint {root}: {name} in {WEIGHTS} has the shape {list(found[name])}, "
                f"the configuration asks for {list(tensor.shape)}"
            )


def _prefix(name: str) -> str:
    head, dot, _ = name.partition(".")
    return head + dot


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
