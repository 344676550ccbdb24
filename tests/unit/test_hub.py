"""Checkpoints from the Hub, with huggingface_hub's own client against a local stand-in for the server.

Each load runs in a process of its own, since the client reads its endpoint and cache from the environment once.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.hub_stand_in import HubStandIn, Repository

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/data/golden/checkpoints"
FIRST, SECOND = "1" * 40, "2" * 40

LOCATE = """
import json, sys
from laya.location import locate
try:
    found = locate(**json.loads(sys.argv[1]))
    print(json.dumps({"path": str(found.path), "revision": found.revision}))
except Exception as error:
    print(json.dumps({"error": type(error).__name__, "message": str(error)}))
"""

LOAD = """
import json, sys
from laya.checkpoint import load_checkpoint
from laya.questions import parse_questions
loaded = load_checkpoint(**json.loads(sys.argv[1]), device="cpu")
questions = parse_questions({"q": {"type": "noul", "instructions": "angry?"}})
scores = loaded.kind.forward(loaded.kind.encode("refund please", questions, 512, 192).rows)
print(json.dumps({"path": str(loaded.path), "revision": loaded.revision, "logits": scores[0].logits}))
"""


def files_of(*checkpoints: tuple[str, str]) -> dict[str, bytes]:
    """The files of golden checkpoints under prefixes, beside others that nobody wants."""
    found = {"README.md": b"# many", "onnx/model.onnx": b"no", "tokenizer.json": b"{}", "other/tokenizer/x": b"no"}
    for name, prefix in checkpoints:
        for file in sorted((GOLDEN / name).rglob("*")):
            if file.is_file():
                found[prefix + file.relative_to(GOLDEN / name).as_posix()] = file.read_bytes()
    return found


@pytest.fixture
def hub() -> Iterator[HubStandIn]:
    several = Repository(
        commits={FIRST: files_of(("english", ""), ("multilingual", "multilingual/"))}, refs={"main": FIRST}
    )
    versioned = Repository(
        commits={FIRST: files_of(("english", "")), SECOND: files_of(("typed-decisions", ""))},
        refs={"main": SECOND, "v1": FIRST},
    )
    private = Repository(commits={FIRST: files_of(("english", ""))}, refs={"main": FIRST}, token="open-sesame")
    repositories = {"convaiinnovations/laya": several, "some/versions": versioned, "some/secret": private}
    with HubStandIn(repositories) as stand_in:
        yield stand_in


def run(program: str, endpoint: str, cache: Path, **options: Any) -> dict[str, Any]:
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(cache),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "PYTHONPATH": str(ROOT),
    }
    environment.pop("HF_TOKEN", None)
    child = subprocess.run(
        [sys.executable, "-c", program, json.dumps(options)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    result: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return result


def test_a_name_finds_the_root_of_its_repository_and_nothing_else(hub: HubStandIn, tmp_path: Path) -> None:
    found = run(LOCATE, hub.endpoint, tmp_path, source=" English ")
    assert found["revision"] == FIRST
    assert hub.asked_for() == {
        "rl_agent_config.json",
        "model.safetensors",
        "encoder/config.json",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
    }


def test_an_alias_finds_only_its_subfolder(hub: HubStandIn, tmp_path: Path) -> None:
    found = run(LOCATE, hub.endpoint, tmp_path, source="ml")
    assert {path.split("/")[0] for path in hub.asked_for()} == {"multilingual"}
    assert Path(found["path"]).name == "multilingual"


def test_a_downloaded_checkpoint_answers_as_from_a_directory_and_leaves_the_cache_alone(
    hub: HubStandIn, tmp_path: Path
) -> None:
    downloaded = run(LOAD, hub.endpoint, tmp_path, source="convaiinnovations/laya", subfolder="multilingual")
    local = run(LOAD, hub.endpoint, tmp_path, source=str(GOLDEN / "multilingual"))
    assert downloaded["logits"] == local["logits"]
    blobs = list((tmp_path / "hub").rglob("blobs/*"))
    published = {digest(content) for content in files_of(("multilingual", "")).values()}
    assert len(blobs) == 5
    assert {digest(blob.read_bytes()) for blob in blobs} <= published


def test_a_revision_chooses_the_commit(hub: HubStandIn, tmp_path: Path) -> None:
    newest = run(LOCATE, hub.endpoint, tmp_path, source="some/versions")
    tagged = run(LOCATE, hub.endpoint, tmp_path, source="some/versions", revision="v1")
    pinned = run(LOCATE, hub.endpoint, tmp_path, source="some/versions", revision=FIRST)
    assert (newest["revision"], tagged["revision"], pinned["revision"]) == (SECOND, FIRST, FIRST)
    assert newest["path"] != tagged["path"] == pinned["path"]


def test_a_downloaded_checkpoint_is_found_again_when_the_hub_is_down(hub: HubStandIn, tmp_path: Path) -> None:
    online = run(LOCATE, hub.endpoint, tmp_path, source="english")
    offline = run(LOCATE, "http://127.0.0.1:9", tmp_path, source="english")
    assert offline == online


def test_a_private_repository_opens_with_its_token(hub: HubStandIn, tmp_path: Path) -> None:
    found = run(LOCATE, hub.endpoint, tmp_path, source="some/secret", token="open-sesame")
    assert found["revision"] == FIRST


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"source": "some/secret"}, "RepositoryNotFoundError", "some/secret"),
        ({"source": "some/nothing"}, "RepositoryNotFoundError", "some/nothing"),
        ({"source": "english", "revision": "v9"}, "RevisionNotFoundError", "convaiinnovations/laya"),
        ({"source": "some/versions", "subfolder": "german"}, "FileNotFoundError", "rl_agent_config.json"),
    ],
    ids=["no token", "no repository", "no revision", "no subfolder"],
)
def test_a_refusal_names_the_repository_or_the_file(
    hub: HubStandIn, tmp_path: Path, options: dict[str, Any], error: str, named: str
) -> None:
    refused = run(LOCATE, hub.endpoint, tmp_path, **options)
    assert refused["error"] == error
    assert named in refused["message"]


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


IDENTITIES = """
import json, sys
from laya import Router
router = Router(device="cpu", models={"main": "some/versions", "tagged": "some/versions"}, revisions={"tagged": "v1"})
names = ("english", "multilingual", "main", "tagged")
before = {name: router.identity(name) for name in names}
loaded = {name: router.load(name).identity for name in names}
router.unload()
after = {name: router.identity(name) for name in names}
print(json.dumps({"before": before, "agree": loaded == after, "content": {k: v.content for k, v in after.items()}}))
"""


def test_a_downloaded_checkpoint_is_known_by_its_commit_and_one_that_is_not_here_is_unknown(
    hub: HubStandIn, tmp_path: Path
) -> None:
    found = run(IDENTITIES, hub.endpoint, tmp_path)
    assert set(found["before"].values()) == {None}
    assert found["agree"]
    assert found["content"] == {
        "english": f"convaiinnovations/laya@{FIRST}",
        "multilingual": f"convaiinnovations/laya/multilingual@{FIRST}",
        "main": f"some/versions@{SECOND}",
        "tagged": f"some/versions@{FIRST}",
    }
