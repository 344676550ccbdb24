"""Loading the tokenizer of a checkpoint directory, with the quirks that are found in the wild, and lending it out.

The pipeline in `tokenizer.json` is taken as it stands and `tokenizer_config.json` only names the special tokens,
so that a tokenizer class which the installed transformers does not know, or none, is no obstacle.
"""

import copy
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from laya.encoding import SpecialIds
from laya.files import find_file, read_json
from laya.questions import shown

_CONFIG = "tokenizer/tokenizer_config.json"
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_KEPT = ("model_max_length", "padding_side", "truncation_side", "model_input_names", "split_special_tokens")


def load_tokenizer(root: Path, vocabulary: int) -> Any:
    """The tokenizer of a checkpoint whose encoder has embeddings for ``vocabulary`` ids.

    Extra tokens that the configuration adds beyond these stay ordinary text: their ids would be read from outside
    the embedding table.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file cannot be read, or the tokenizer has ids that the encoder has no embedding for.
    """
    config = read_json(root, _CONFIG)
    extra = _extra_tokens(root, config)
    tokenizer = _build(root, config, extra)
    beyond = _beyond(tokenizer, vocabulary)
    if beyond & set(map(str, extra)):
        tokenizer = _build(root, config, [token for token in extra if str(token) not in beyond])
        beyond = _beyond(tokenizer, vocabulary)
    if beyond:
        raise ValueError(
            f"checkpoint {root}: tokenizer/tokenizer.json has {len(beyond)} ids outside the encoder's "
            f"{vocabulary} embeddings, such as that of {min(beyond)!r}"
        )
    return tokenizer


class LentTokenizer:
    """A copy of a kind's tokenizer for the caller's own use, made at need: its settings are not thread-safe."""

    def __init__(self, original: Any) -> None:
        """Take the tokenizer that nobody else changes."""
        self._original = original
        self._copy: Any = None
        self._lock = threading.Lock()

    def get(self) -> Any:
        """The copy, the same at every call."""
        with self._lock:
            if self._copy is None:
                self._copy = copy.deepcopy(self._original)
            return self._copy


def read_special_ids(root: Path, tokenizer: Any) -> SpecialIds:
    """The special tokens that rows are built from.

    Raises:
        ValueError: the tokenizer names none of those that would do.
    """
    return SpecialIds(
        cls=_special_id(root, tokenizer, "cls", "bos"),
        sep=_special_id(root, tokenizer, "sep", "eos"),
        mask=_special_id(root, tokenizer, "mask"),
    )


def _special_id(root: Path, tokenizer: Any, *names: str) -> int:
    """The id of the first of these special tokens that the tokenizer has; ValueError if it has none."""
    for name in names:
        token_id = getattr(tokenizer, f"{name}_token_id")
        if token_id is not None:
            return int(token_id)
    raise ValueError(f"checkpoint {root}: {_CONFIG} names no {names[0]}_token")


def _build(root: Path, config: Mapping[str, Any], extra: list[Any]) -> Any:
    file = find_file(root, "tokenizer/tokenizer.json")
    options = {name: config[name] for name in _KEPT if config.get(name) is not None}
    options |= {name: _token(root, config[name]) for name in _NAMED if config.get(name) is not None}
    if extra:
        options["additional_special_tokens"] = extra
    try:
        return PreTrainedTokenizerFast(tokenizer_file=str(file), **options)  # type: ignore[no-untyped-call]  # transformers has no types here
    except Exception as error:  # the Rust parser raises plain Exception
        raise ValueError(f"checkpoint {root}: tokenizer/tokenizer.json cannot be read: {error}") from error


def _extra_tokens(root: Path, config: Mapping[str, Any]) -> list[Any]:
    """Special tokens beyond the named ones, whether kept as a list or by name."""
    found: list[Any] = []
    for name in ("extra_special_tokens", "additional_special_tokens"):
        given = config.get(name) or []
        if not isinstance(given, (list, Mapping)):
            raise ValueError(f"checkpoint {root}: {name} in {_CONFIG} must be a list or a mapping")
        tokens = list(given.values()) if isinstance(given, Mapping) else given
        found += [_token(root, token) for token in tokens]
    return list({str(token): token for token in found}.values())


def _token(root: Path, token: Any) -> Any:
    """A special token as transformers takes it: a text, or an added token where it was saved as a mapping."""
    if isinstance(token, str):
        return token
    if not isinstance(token, Mapping) or not isinstance(token.get("content"), str):
        raise ValueError(f"checkpoint {root}: {_CONFIG} has a token that is no text: {shown(token)}")
    flags = {name: token[name] for name in ("single_word", "lstrip", "rstrip", "normalized") if name in token}
    return AddedToken(token["content"], special=True, **flags)


def _beyond(tokenizer: Any, vocabulary: int) -> set[str]:
    return {token for token, token_id in tokenizer.get_vocab().items() if token_id >= vocabulary}
