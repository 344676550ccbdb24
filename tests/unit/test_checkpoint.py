"""Loading a checkpoint directory: what is refused and by what words, digests, and what is left alone."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

from laya.checkpoint import load_checkpoint
from tests.unit.edited_checkpoint import FILES, GOLDEN, Edit, copy_to, edit_json, edit_weights, load, logits


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return copy_to(tmp_path)


def test_a_directory_loads_with_its_configuration_and_defaults(copied: Path) -> None:
    edit_json(copied / "rl_agent_config.json", lambda config: config.pop("max_len"))
    loaded = load(copied)
    assert (loaded.config["max_len"], loaded.config["head_max_len"]) == (512, 256)
    assert (loaded.path, loaded.revision, loaded.source) == (copied, None, str(copied))
    assert (loaded.kind.device, loaded.kind.dtype) == (torch.device("cpu"), torch.float32)
    assert loaded.kind.model.encoder.config.hidden_size == 64


def test_a_subfolder_of_a_directory_loads(copied: Path) -> None:
    assert logits(load(copied.parent, subfolder="mine")) == logits(load(copied))


@pytest.mark.parametrize("subfolder", ["../mine", "/etc", "a/../../b", ""])
def test_a_subfolder_does_not_lead_out_of_the_directory(copied: Path, subfolder: str) -> None:
    with pytest.raises(ValueError, match="subfolder must be a path inside"):
        load(copied, subfolder=subfolder)


def test_an_unknown_name_is_a_value_error_that_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"unknown checkpoint 'germn'.*english, multilingual, typed-decisions"):
        load_checkpoint("germn", device="cpu")


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere.*no such directory"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_refused_by_name(copied: Path, file: str) -> None:
    (copied / file).unlink()
    with pytest.raises(FileNotFoundError, match=f"checkpoint {copied}: {file} is missing"):
        load(copied)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"null"])
@pytest.mark.parametrize("file", ["rl_agent_config.json", "encoder/config.json", "tokenizer/tokenizer_config.json"])
def test_a_file_that_is_no_json_object_is_refused_by_name(copied: Path, file: str, content: bytes) -> None:
    (copied / file).write_bytes(content)
    with pytest.raises(ValueError, match=f"checkpoint {copied}: {file} "):
        load(copied)


@pytest.mark.parametrize("content", [b"", b"{}", b"\x00" * 64])
@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer/tokenizer.json"])
def test_a_broken_file_is_refused_by_name(copied: Path, file: str, content: bytes) -> None:
    (copied / file).write_bytes(content)
    with pytest.raises(ValueError, match=f"checkpoint {copied}: {file} "):
        load(copied)


def test_a_weight_file_cut_short_is_refused(copied: Path) -> None:
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match=f"checkpoint {copied}: model.safetensors cannot be read"):
        load(copied)


CONFIGS: dict[str, tuple[Edit, str]] = {
    "no encoder": (lambda c: c.pop("encoder"), "lacks encoder"),
    "encoder null": (lambda c: c.update(encoder=None), "lacks encoder"),
    "no head layers": (lambda c: c.pop("head_layers"), "lacks head_layers"),
    "head layers a text": (lambda c: c.update(head_layers="2"), "head_layers must be"),
    "head layers a bool": (lambda c: c.update(head_layers=True), "head_layers must be"),
    "head layers negative": (lambda c: c.update(head_layers=-1), "head_layers must be"),
    "one temperature": (lambda c: c.update(temperature=1.0), "temperature must be a list of three"),
    "two temperatures": (lambda c: c.update(temperature=[1.0, 1.0]), "temperature must be a list of three"),
    "temperature null": (lambda c: c.update(temperature=None), "temperature must be a list of three"),
    "buckets a list": (lambda c: c.update(temperature_by_options=[1.0]), "temperature_by_options must be"),
    "another option layout": (lambda c: c.update(option_layout="parallel"), "option_layout 'parallel'"),
    "another architecture": (lambda c: c.update(architecture="rwkv"), "architecture 'rwkv'"),
    "another amp dtype": (lambda c: c.update(amp_dtype="int8"), "amp_dtype must be one of bf16, fp16"),
    "costs a list": (lambda c: c.update(act_costs=["escalate"]), "act_costs must be a mapping"),
    "budget a text": (lambda c: c.update(max_len="512"), "max_len must be a number"),
    "budget zero": (lambda c: c.update(head_max_len=0), "head_max_len must be a number"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_configuration_that_cannot_be_run_is_refused(copied: Path, case: str) -> None:
    edit, message = CONFIGS[case]
    edit_json(copied / "rl_agent_config.json", edit)
    with pytest.raises(ValueError, match=rf"checkpoint {copied}: .*{message}"):
        load(copied)


def test_a_sequential_option_layout_is_the_usual_one(copied: Path) -> None:
    before = logits(load(copied))
    edit_json(copied / "rl_agent_config.json", lambda config: config.update(option_layout="sequential"))
    assert logits(load(copied)) == before


@pytest.mark.parametrize("prefix", ["encoder.", "head.", "type_emb.", "scorer.", "act_head.", "temperature"])
def test_a_missing_prefix_is_refused_by_name(copied: Path, prefix: str) -> None:
    edit_weights(copied, lambda t: [t.pop(name) for name in list(t) if name.startswith(prefix)])
    with pytest.raises(ValueError, match=f"checkpoint {copied}: model.safetensors has no parameters under {prefix}"):
        load(copied)


def test_a_missing_parameter_is_refused_by_name(copied: Path) -> None:
    edit_weights(copied, lambda tensors: tensors.pop("scorer.1.bias"))
    with pytest.raises(ValueError, match=r"model\.safetensors lacks scorer\.1\.bias"):
        load(copied)


def test_a_parameter_too_many_is_refused_by_name(copied: Path) -> None:
    edit_weights(copied, lambda tensors: tensors.update({"head.layers.0.extra": torch.ones(1)}))
    with pytest.raises(ValueError, match=r"has head\.layers\.0\.extra, which the configuration does not"):
        load(copied)


def test_a_wrong_shape_is_refused_with_both_shapes(copied: Path) -> None:
    edit_weights(copied, lambda tensors: tensors.update({"scorer.3.weight": torch.ones(2, 64)}))
    with pytest.raises(ValueError, match=r"scorer\.3\.weight .* \[2, 64\], the configuration asks for \[1, 64\]"):
        load(copied)


def test_an_action_too_many_in_the_configuration_is_a_wrong_shape(copied: Path) -> None:
    edit_json(copied / "rl_agent_config.json", lambda config: config["act_costs"].update(ask=1.0))
    with pytest.raises(ValueError, match=r"act_head\.2\..* has the shape"):
        load(copied)


ENCODERS: dict[str, dict[str, Any]] = {
    "no model type": {"model_type": None},
    "unknown model type": {"model_type": "no-such-model"},
    "hidden size a text": {"hidden_size": "64"},
    "no vocabulary": {"vocab_size": None},
    "heads that do not divide the hidden size": {"num_attention_heads": 5},
    "unknown activation": {"hidden_activation": "no-such-activation"},
    "rotary parameters a list": {"rope_parameters": []},
}


@pytest.mark.parametrize("case", ENCODERS)
def test_an_encoder_that_transformers_cannot_build_is_refused(copied: Path, case: str) -> None:
    edit_json(copied / "encoder/config.json", lambda config: config.update(ENCODERS[case]))
    with pytest.raises(ValueError, match=f"checkpoint {copied}: encoder/config.json "):
        load(copied)


def test_another_encoder_than_the_weights_are_of_is_refused(copied: Path) -> None:
    edit_json(copied / "encoder/config.json", lambda config: config.update(num_hidden_layers=4, layer_types=None))
    with pytest.raises(ValueError, match=rf"checkpoint {copied}: .*encoder\.layers\.4\..*does not provide for"):
        load(copied)


@pytest.mark.parametrize(
    "entry",
    [
        {"mask_token": 7},
        {"sep_token": {"text": "[SEP]"}},
        {"extra_special_tokens": "<x>"},
        {"extra_special_tokens": [7]},
    ],
)
def test_special_tokens_that_are_no_text_are_refused(copied: Path, entry: dict[str, Any]) -> None:
    edit_json(copied / "tokenizer/tokenizer_config.json", lambda config: config.update(entry))
    with pytest.raises(ValueError, match=rf"checkpoint {copied}: .*tokenizer_config\.json"):
        load(copied)


@pytest.mark.parametrize("token", ["mask_token", "cls_token", "sep_token"])
def test_a_tokenizer_without_a_token_that_rows_need_is_refused(copied: Path, token: str) -> None:
    edit_json(copied / "tokenizer/tokenizer_config.json", lambda config: config.pop(token))
    with pytest.raises(ValueError, match=rf"checkpoint {copied}: .*names no {token}"):
        load(copied)


def test_a_tokenizer_with_ids_beyond_the_embeddings_is_refused(copied: Path) -> None:
    edit_json(
        copied / "tokenizer/tokenizer.json",
        lambda file: file["added_tokens"].append({**file["added_tokens"][0], "id": 800, "content": "<beyond>"}),
    )
    with pytest.raises(ValueError, match=rf"checkpoint {copied}: .*outside the encoder's 800 embeddings.*<beyond>"):
        load(copied)


# --- digests -----------------------------------------------------------------------------------------------------


def digests(path: Path) -> dict[str, str]:
    return {file: hashlib.sha256((path / file).read_bytes()).hexdigest() for file in FILES}


def test_files_with_the_expected_digests_load(copied: Path) -> None:
    expected = digests(copied)
    assert load(copied, expected_sha256=expected).path == copied
    assert load(copied, expected_sha256={"model.safetensors": expected["model.safetensors"].upper()})
    assert load(copied, expected_sha256={})


@pytest.mark.parametrize("file", FILES)
def test_a_file_with_another_digest_is_refused_before_any_is_parsed(copied: Path, file: str) -> None:
    expected = {file: digests(copied)[file]}
    for broken in FILES:
        (copied / broken).write_bytes(b"not what it was")
    with pytest.raises(ValueError, match=f"checkpoint {copied}: {file} has the SHA-256"):
        load(copied, expected_sha256=expected)


def test_a_file_that_should_have_a_digest_and_is_missing_is_refused(copied: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"tokenizer/vocab\.txt is missing"):
        load(copied, expected_sha256={"tokenizer/vocab.txt": "0" * 64})


@pytest.mark.parametrize(
    "expected",
    [["0" * 64], {"../x": "0" * 64}, {"/x": "0" * 64}, {"": "0" * 64}, {"x": "0" * 63}, {"x": "g" * 64}, {"x": None}],
)
def test_a_malformed_table_of_digests_is_a_value_error(copied: Path, expected: Any) -> None:
    with pytest.raises(ValueError, match="expected_sha256"):
        load(copied, expected_sha256=expected)


# --- what loading does not do --------------------------------------------------------------------------------------


def test_loading_initialises_no_weights() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    load(GOLDEN / "multilingual")
    assert torch.equal(torch.get_rng_state(), before)


def test_the_encoder_attends_with_sdpa() -> None:
    assert load(GOLDEN / "multilingual").kind.model.encoder.config._attn_implementation == "sdpa"


def test_a_loaded_model_is_ready_for_inference() -> None:
    model = load(GOLDEN / "multilingual").kind.model
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not any(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])


def test_a_checkpoint_of_links_into_a_cache_loads_and_leaves_the_cache_alone(copied: Path) -> None:
    cache = copied.parent / "blobs"
    cache.mkdir()
    for index, file in enumerate(FILES):
        blob = (copied / file).rename(cache / str(index))
        blob.chmod(stat.S_IRUSR)
        (copied / file).symlink_to(blob)
    before = {blob.name: (blob.read_bytes(), blob.stat().st_mtime_ns) for blob in cache.iterdir()}
    load(copied)
    assert {blob.name: (blob.read_bytes(), blob.stat().st_mtime_ns) for blob in cache.iterdir()} == before
    assert all((copied / file).is_symlink() for file in FILES)
    assert sum(path.is_file() for path in copied.rglob("*")) == len(FILES)


def test_unusable_temperatures_warn_once_and_name_the_checkpoint() -> None:
    with pytest.warns(RuntimeWarning, match=r"english.*choice:11\+.*score:3-5") as caught:
        load(GOLDEN / "english")
    assert len(caught) == 1


def test_a_device_that_is_missing_is_refused_before_any_file_is_read(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="was asked for"):
        load_checkpoint(tmp_path / "nowhere", device="cuda:4096")


def test_a_checkpoint_on_a_device_is_loaded_on_the_cpu_once_when_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("laya.checkpoint.pick_device", lambda device: torch.device("meta"))
    checkpoint = load_checkpoint(GOLDEN / "multilingual")
    assert checkpoint.kind.device.type == "meta"
    assert checkpoint.on_cpu is not None
    on_cpu = checkpoint.on_cpu()
    assert on_cpu.device.type == "cpu"
    assert checkpoint.on_cpu() is on_cpu


def test_a_checkpoint_on_the_cpu_needs_no_copy_there() -> None:
    assert load(GOLDEN / "multilingual").on_cpu is None
