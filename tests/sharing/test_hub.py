"""The Hugging Face Hub: uploads, downloads, and a sentence for everything that can go wrong."""

import json
import sys
from functools import partial

import hub_fakes
import huggingface_hub
import numpy as np
import pytest
from helpers import DISCRETE, make_agent, moved
from huggingface_hub import errors
from tiny_runs import Walk, sealed, tiny

import voidrl
from voidrl.cli import main as cli
from voidrl.config import to_json
from voidrl.errors import ConfigError, HubError, MissingExtraError, RunFolderError, VoidrlWarning
from voidrl.report.videos.video import record, untrained

NAME = "somebody/apt-walk"
FILES = {"config.json", "model.safetensors", "README.md"}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    return hub_fakes.install(monkeypatch, tmp_path / "hub")


@pytest.fixture
def agent():
    made = make_agent(seed=3)
    made.steps = 12
    return made


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "walk"
    voidrl.pretrain(Walk, steps=20, out=folder, config=tiny())
    return folder


def test_a_published_agent_can_be_loaded(hub, agent):
    assert voidrl.push_to_hub(agent, NAME, message="the first") == f"https://huggingface.co/{NAME}"
    assert hub.files(NAME).keys() == FILES
    assert [name for name, _ in hub.calls] == ["create_repo", "hf_hub_download", "upload_folder"]
    assert hub.calls[0][1] == {"private": None, "exist_ok": True}
    assert hub.calls[-1][1]["commit_message"] == "the first"
    hub.calls.clear()
    loaded = voidrl.from_pretrained(NAME, device="cpu")
    assert loaded.steps == 12
    assert not moved(agent.tensors(), loaded.tensors())
    assert [(name, options["revision"]) for name, options in hub.calls] == [("snapshot_download", None)] * 2
    again = voidrl.load(NAME, device="cpu")
    assert not moved(agent.tensors(), again.tensors())


def test_branches_and_private_models(hub, agent):
    voidrl.push_to_hub(agent, NAME, private=True, revision="v1", token="hf_mine")
    assert hub.calls[0][1]["private"] is True
    assert hub.files(NAME) == {}
    assert hub.files(NAME, "v1").keys() == FILES
    agent.steps = 13
    voidrl.push_to_hub(agent, NAME)
    assert voidrl.from_pretrained(NAME, revision="v1", device="cpu", token="hf_mine").steps == 12
    assert hub.calls[-1][1]["token"] == "hf_mine"
    assert voidrl.from_pretrained(NAME, device="cpu").steps == 13
    with pytest.raises(HubError, match=r"has no such revision: expected a branch, tag or commit"):
        voidrl.from_pretrained(NAME, revision="v2")


def test_a_private_agent_is_not_published_in_a_public_repository(hub, agent):
    hub.public.add(NAME)
    with pytest.raises(HubError, match="already exists and is public, so nothing was uploaded"):
        voidrl.push_to_hub(agent, NAME, private=True)
    assert hub.files(NAME) == {}


def test_a_card_edited_on_the_hub_is_kept(hub, agent):
    voidrl.push_to_hub(agent, NAME)
    agent.steps = 20
    voidrl.push_to_hub(agent, NAME)  # our own card is replaced
    assert b"20 steps" in hub.files(NAME)["README.md"]
    hub.put(NAME, "README.md", "# My own words\n")
    with pytest.warns(VoidrlWarning, match="was edited on the Hub and is kept"):
        voidrl.push_to_hub(agent, NAME)
    assert hub.files(NAME)["README.md"] == b"# My own words\n"


def test_the_command_pushes_a_run(hub, run, capsys):
    options = ["--private", "--message", "hi", "--license", "mit"]
    assert cli.main(["export", str(run), "--to", f"hub:{NAME}", *options]) == 0
    assert capsys.readouterr().out == f"https://huggingface.co/{NAME}\n"
    assert hub.calls[0][1]["private"] is True
    assert hub.calls[-1][1]["commit_message"] == "hi"
    card = hub.files(NAME)["README.md"].decode()
    assert 'license: "mit"' in card
    assert f'voidrl.from_pretrained("{NAME}")' in card
    obs = np.zeros((5, 3), np.float32)
    assert np.array_equal(voidrl.load(NAME, device="cpu").act(obs), voidrl.load(run, device="cpu").act(obs))


def test_a_dry_run_shows_all_and_uploads_nothing(hub, run, capsys, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    assert cli.main(["export", str(run), "--to", f"hub:{NAME}", "--dry-run"]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in FILES)
    assert 'library_name: "voidrl"' in output
    assert "Nothing was uploaded" in output
    assert not hub.calls


def test_commands_take_names_on_the_hub(hub, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    voidrl.push_to_hub(voidrl.load(run, device="cpu"), NAME)
    env = ["--env", "tiny_runs:Walk"]
    assert cli.main(["evaluate", NAME, *env, "--episodes", "1", "--device", "cpu"]) == 0
    assert cli.main(["finetune", NAME, *env, "--steps", "10", "--out", "task"]) == 0
    assert voidrl.load("task", device="cpu").steps == 30
    assert cli.main(["evaluate", NAME, "--trust-code", "--episodes", "1", "--device", "cpu"]) == 0
    assert cli.main(["finetune", NAME, "--trust-code", "--steps", "10", "--out", "trusted"]) == 0


# Code named by a downloaded file


def put_config(hub, agent, **changes):
    """Publish the agent with an edited config and a matching hash."""
    voidrl.push_to_hub(agent, NAME)
    data = json.loads(hub.files(NAME)["config.json"])
    data["config"].update(changes)
    hub.put(NAME, "config.json", sealed(data))


def test_an_environment_named_by_a_download_is_never_called(hub, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    own = voidrl.load(run, device="cpu")
    call = f"subprocess:getoutput?cmd=touch {tmp_path / 'pwned'}"
    put_config(hub, own, env={**to_json(own.config.env), "id": call})
    loaded = voidrl.from_pretrained(NAME, device="cpu")  # as far as weights go
    assert not moved(own.tensors(), loaded.tensors())
    refusal = r"environment 'subprocess:getoutput.*named by a downloaded file.*env=….*trust_code=True"
    for play in (voidrl.evaluate, voidrl.finetune, record, lambda agent: record(untrained(agent))):
        with pytest.raises(ConfigError, match=refusal):
            play(loaded)
    with pytest.raises(ConfigError, match="cannot be saved: its environment 'subprocess:getoutput"):
        voidrl.save_pretrained(loaded, "agent")  # where it would be trusted
    for command, *options in (["evaluate"], ["finetune"], ["evaluate", "--untrained", "--video", "x.mp4"]):
        assert cli.main([command, NAME, *options]) == 2
        assert "--trust-code" in capsys.readouterr().err
    assert voidrl.evaluate(loaded, Walk, episodes=1).returns
    assert not (tmp_path / "pwned").exists()
    assert voidrl.evaluate(voidrl.save_pretrained(own, "mine"), episodes=1).returns  # a folder is trusted


@pytest.mark.parametrize(
    "named", [{"method": {"name": "evil:Piece"}}, {"learner.encoder.stack": "evil:Piece"}]
)
def test_a_piece_named_by_a_download_is_not_imported(hub, agent, tmp_path, monkeypatch, named):
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    put_config(hub, agent, **named)
    refusal = r"'evil:Piece' of the model 'somebody/apt-walk'.*trust_code=True"
    for load in (voidrl.from_pretrained, voidrl.load, voidrl.evaluate, voidrl.finetune):
        with pytest.raises(ConfigError, match=refusal):
            load(NAME)
    with pytest.raises(SystemExit, match="imported"):
        voidrl.load(NAME, trust_code=True)


def test_a_local_path_wins_and_a_misspelled_one_does_not_reach_the_hub(hub, agent, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    voidrl.push_to_hub(agent, NAME)
    hub.calls.clear()
    local = make_agent(DISCRETE, seed=8)
    voidrl.save_pretrained(local, NAME)
    for load in (voidrl.load, voidrl.from_pretrained):
        assert not moved(local.tensors(), load(NAME, device="cpu").tensors())
    nothing = r"there is nothing at .*or user/name on the Hugging Face Hub"
    for missing in ("somebody/other", "nowhere", "./a/b", "a/b/c", tmp_path / "x"):
        with pytest.raises(RunFolderError, match=nothing):
            voidrl.load(missing)
    assert not hub.calls
    absent = r"there is no folder 'another/other' here, and the model 'another/other' on .* does not exist"
    with pytest.raises(HubError, match=absent):
        voidrl.load("another/other")
    assert [name for name, _ in hub.calls] == ["snapshot_download"]


def test_a_foreign_model_is_refused_before_its_weights_are_fetched(hub):
    hub.put("google/bert", "config.json", '{"model_type": "bert"}')
    hub.put("google/bert", "model.safetensors", b"gigabytes")
    hub.put("google/empty", "README.md", "")
    for name in ("google/bert", "google/empty"):
        with pytest.raises(HubError, match=f"model '{name}' on the Hugging Face Hub is not a voidrl agent"):
            voidrl.from_pretrained(name)
    assert [options["allow_patterns"] for _, options in hub.calls] == [["config.json"]] * 2


@pytest.mark.parametrize("name", ["name", "a/b/c", "a/b--c", "a/b.git", "ä/b", f"a/{'b' * 95}"])
def test_bad_names_are_refused_before_any_request(hub, agent, name):
    with pytest.raises(ConfigError, match=r"repo_id = '.*' cannot be used: expected user/name"):
        voidrl.push_to_hub(agent, name)
    assert not hub.calls


def test_a_missing_package_is_named(agent, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    needed = r"the Hugging Face Hub needs huggingface_hub.*pip install 'huggingface-hub"
    with pytest.raises(MissingExtraError, match=needed):
        voidrl.push_to_hub(agent, NAME)
    with pytest.raises(MissingExtraError, match=r"no folder 'a/b' here, and .* needs huggingface_hub"):
        voidrl.load("a/b")
    voidrl.save_pretrained(agent, "agent")  # needs no Hub
    assert {path.name for path in (tmp_path / "agent").iterdir()} == FILES
    assert voidrl.from_pretrained("agent", device="cpu").steps == 12


def test_a_missing_token_is_reported_before_any_request(hub, agent, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(
        HubError, match=r"no token .* was found: log in with `hf auth login`, or set HF_TOKEN"
    ):
        voidrl.push_to_hub(agent, NAME)
    assert not hub.calls


def _answered(kind, status):
    return kind(f"{status} Client Error.\nDetails", response=hub_fakes.response(status))


FAILURES = [
    (_answered(errors.HfHubHTTPError, 403), r"answered 403 for 'somebody/apt-walk' .*: log in"),
    (_answered(errors.HfHubHTTPError, 500), r"answered 500 for 'somebody/apt-walk' \(500 Client Error\."),
    (_answered(errors.GatedRepoError, 403), "is gated: ask for access"),
    (
        _answered(errors.RepositoryNotFoundError, 404),
        "'somebody/apt-walk' on the Hugging Face Hub does not exist",
    ),
    (errors.LocalEntryNotFoundError("offline\nmore"), r"cannot be reached for '.*' \(offline\): check"),
    (ConnectionResetError("gone"), "cannot be reached"),
]


@pytest.mark.parametrize(("error", "expected"), FAILURES, ids=lambda value: type(value).__name__)
def test_what_goes_wrong_is_one_sentence(hub, run, agent, capsys, error, expected):
    hub.fails = error
    for call in (lambda: voidrl.push_to_hub(agent, NAME), lambda: voidrl.from_pretrained(NAME)):
        with pytest.raises((HubError, ConfigError), match=expected) as raised:
            call()
        assert "\n" not in str(raised.value)
    assert cli.main(["export", str(run), "--to", f"hub:{NAME}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_without_a_network_the_real_client_is_answered_in_one_sentence(agent, monkeypatch):
    """Without the fake: the exceptions of the installed client are handled too."""
    api = huggingface_hub.HfApi(endpoint="http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda **options: api)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_test")
    with pytest.raises(HubError, match=r"^the Hugging Face Hub cannot be reached for 'somebody/apt-walk'"):
        voidrl.push_to_hub(agent, NAME)
    real = huggingface_hub.snapshot_download
    there = partial(real, endpoint="http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", there)
    with pytest.raises(HubError, match=r"^there is no folder 'somebody/nothing' here, and .* reached for"):
        voidrl.from_pretrained("somebody/nothing")
