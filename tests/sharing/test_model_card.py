"""The model card is valid for the Hub, true to the run, and claims nothing that is not known."""

import dataclasses
import json
import re

import pytest
import yaml
from helpers import PIXELS, make_agent
from huggingface_hub import ModelCard
from tiny_runs import MAZE, Skilled, Walk, sealed, tiny

import voidrl
from voidrl.cli import main as cli
from voidrl.errors import VoidrlWarning
from voidrl.sharing import card as model_card
from voidrl.training.evaluation import Evaluation


def card_of(folder):
    """The front matter, read as the Hub reads it, and the text."""
    text = (folder / "README.md").read_text()
    _, front, body = text.split("---\n", 2)
    assert ModelCard(text).data.to_dict()["library_name"] == "voidrl"
    return yaml.safe_load(front), body


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A pre-training of 20 steps, evaluated as it ended, and 15 of fine-tuning, evaluated at 0, 10 and 15."""
    root = tmp_path_factory.mktemp("runs")
    changes = tiny(log__eval_every_steps=10, log__eval_episodes=3, log__snapshot_steps=[10])
    voidrl.pretrain(MAZE, steps=20, seed=4, out=root / "apt", config=changes)
    voidrl.finetune(root / "apt", steps=15, out=root / "task")
    return root


def test_an_agent_without_a_run(tmp_path):
    agent = make_agent(PIXELS)
    agent.steps = 1234
    front, text = card_of(voidrl.save_pretrained(agent, tmp_path / "agent"))
    assert front["pipeline_tag"] == "reinforcement-learning"
    assert "license" not in front
    assert "model-index" not in front
    assert "1,234 steps" in text
    assert "No evaluation of these weights is recorded." in text
    assert "has not stated a license" in text
    assert "uint8 of shape (2, 36, 36, 3)" in text


def test_a_pretrained_agent(tmp_path, runs):
    about = {"license": "mit", "repo_id": "somebody/apt-maze"}
    folder = voidrl.save_pretrained(voidrl.load(runs / "apt", device="cpu"), tmp_path / "agent", **about)
    front, text = card_of(folder)
    assert front["license"] == "mit"
    assert {"voidrl", "reinforcement-learning", "apt", "voidrl/PixelMaze-v0"} == {*front["tags"]}
    rows = [json.loads(line) for line in (runs / "apt" / "metrics.jsonl").read_text().splitlines()]
    row = next(row for row in rows if row["step"] == 20 and "eval/return" in row)
    card = ModelCard((folder / "README.md").read_text())
    result = card.data.eval_results[0]
    assert (result.dataset_type, result.dataset_name) == ("voidrl/PixelMaze-v0", MAZE)
    assert (result.metric_type, result.metric_value) == ("mean_reward", row["eval/return"])
    assert result.metric_name == "mean return over 3 episodes"
    assert "pre-trained without rewards for 20 steps in" in text
    assert "with the method `apt`" in text
    assert "never seen a reward" in text
    assert "| seed | 4 |" in text
    assert 'voidrl.from_pretrained("somebody/apt-maze")' in text
    assert f'voidrl.finetune(agent, "{MAZE}"' in text
    assert "during training, after step 20" in text


def test_a_fine_tuned_agent_shows_both_phases_and_only_its_own_results(tmp_path, runs):
    tuned = voidrl.load(runs / "task", device="cpu")
    front, text = card_of(voidrl.save_pretrained(tuned, tmp_path / "agent"))
    assert "35 steps in total" in text
    assert "model-index" in front
    assert "during training, after step 15" in text
    assert "after step 10" not in text  # that evaluation is of other weights
    source = runs / "apt" / "snapshots"
    front, text = card_of(voidrl.save_pretrained(voidrl.load(source, device="cpu"), tmp_path / "snapshot"))
    assert "10 steps" in text
    assert "model-index" not in front  # nor is that at step 20 of the agent of step 10


def test_an_agent_trained_from_scratch(tmp_path):
    agent = make_agent(phase="train")
    front, text = card_of(voidrl.save_pretrained(agent, tmp_path / "agent"))
    assert "trained from scratch" in text
    assert "dqn" in front["tags"]
    assert "apt" not in text
    assert "| representation |" not in text
    for name, share in (("spr", "nothing"), ("fixed", "all")):  # an auxiliary loss, or given features
        agent = make_agent(phase="train", representation=name, share_encoder=share)
        _, text = card_of(voidrl.save_pretrained(agent, tmp_path / name))
        assert f"| representation | `{name}` |" in text


def test_results_of_changed_weights_are_not_claimed(tmp_path, runs):
    agent = voidrl.load(runs / "apt", device="cpu")
    next(agent.learner.critic.parameters()).data += 1
    front, _ = card_of(voidrl.save_pretrained(agent, tmp_path / "agent"))
    assert "model-index" not in front


def test_the_evaluation_file_of_the_run_comes_first(tmp_path, runs, capsys):
    file = runs / "apt" / "evaluation.json"
    assert cli.main(["evaluate", str(runs / "apt"), "--episodes", "2", "--seed", "7", "--json"]) == 0
    output = capsys.readouterr().out
    file.write_text(output)
    try:
        agent = voidrl.load(runs / "apt", device="cpu")
        front, text = card_of(voidrl.save_pretrained(agent, tmp_path / "agent"))
        (metric,) = front["model-index"][0]["results"][0]["metrics"]
        assert metric["value"] == json.loads(output)["mean_return"]
        assert metric["name"] == "mean return over 2 episodes"
        assert "by voidrl evaluate: seed 7, without exploration noise" in text
        assert "during training" in text  # both are listed
        other = json.loads(output)
        other["agent"]["steps"] -= 1
        file.write_text(json.dumps(other))
        _, text = card_of(voidrl.save_pretrained(agent, tmp_path / "agent"))
        assert "by voidrl evaluate" not in text
    finally:
        file.unlink()


def test_an_evaluation_can_be_passed_and_stays_with_the_agent(tmp_path):
    agent = make_agent()
    result = Evaluation([1.0, 2.0, 6.0], [3, 3, 3], [True, False, False])
    folder = voidrl.save_pretrained(agent, tmp_path / "agent", evaluation=result)
    again = voidrl.save_pretrained(voidrl.from_pretrained(folder, device="cpu"), tmp_path / "again")
    for saved in (folder, again):
        _, text = card_of(saved)
        row = next(line for line in text.splitlines() if "by voidrl.evaluate" in line)
        assert [cell.strip() for cell in row.split("|")][2:6] == ["3", "2.16025", "3", "33.3%"]


def test_code_that_is_not_in_the_repository_is_named(tmp_path):
    agent = voidrl.pretrain(Walk, steps=9, out=tmp_path / "run", config=tiny())
    _, text = card_of(voidrl.save_pretrained(agent, tmp_path / "agent"))
    assert "must be importable where you load or train the agent" in text
    assert "`tiny_runs:Walk`" in text
    assert 'from_pretrained("path/to/this/folder")' in text
    skilled = voidrl.pretrain(MAZE, Skilled, steps=9, out=tmp_path / "skilled", config=tiny())
    _, text = card_of(voidrl.save_pretrained(skilled, tmp_path / "skilled-agent", repo_id="a/b"))
    assert 'from_pretrained("a/b", trust_code=True)' in text


def test_saving_an_agent_of_a_known_environment_says_nothing(tmp_path, capsys):
    voidrl.save_pretrained(make_agent(), tmp_path / "agent")
    assert capsys.readouterr().err == ""


def test_an_edited_card_is_kept_with_a_warning(tmp_path):
    agent = make_agent()
    folder = voidrl.save_pretrained(agent, tmp_path / "agent")
    assert not model_card.is_edited((folder / "README.md").read_text())
    agent.steps = 7
    voidrl.save_pretrained(agent, folder)  # an unedited card is replaced silently
    assert "for 7 steps" in (folder / "README.md").read_text()
    text = (folder / "README.md").read_text().replace("## Limitations", "## Thoughts")
    (folder / "README.md").write_text(text)
    agent.steps = 8
    with pytest.warns(VoidrlWarning, match=r"README\.md was edited by hand and is kept; delete it"):
        voidrl.save_pretrained(agent, folder)
    assert "## Thoughts" in (folder / "README.md").read_text()
    (folder / "README.md").unlink()
    voidrl.save_pretrained(agent, folder)
    assert "for 8 steps" in (folder / "README.md").read_text()


HOSTILE = (
    "x-v0\n---\nlicense: mit\n---\n# Heading\n"
    "<script>alert(1)</script> `code` ``` [a](http://b) | **c** \\| @me"
)


def test_text_of_others_is_shown_and_never_markup(tmp_path):
    """Newlines, HTML, backticks, separators and links in ids and records."""
    agent = make_agent()
    env = dataclasses.replace(agent.config.env, id=" ".join(HOSTILE.replace(":", "").split()))  # no function
    agent.config = dataclasses.replace(agent.config, env=env)
    saved = voidrl.save_pretrained(agent, tmp_path / "agent", evaluation=Evaluation([1.0], [3], None))
    data = json.loads((saved / "config.json").read_text())
    data["voidrl"] = HOSTILE
    data["about"]["results"][0] |= {"how": HOSTILE, "env": HOSTILE.replace(":", "")}
    (saved / "config.json").write_text(sealed(data))
    front, text = card_of(voidrl.save_pretrained(voidrl.from_pretrained(saved), tmp_path / "again"))
    assert "license" not in front
    assert all("\n" not in tag for tag in front["tags"])
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings[1:] == ["## Usage", "## Results", "## Training", "## Limitations"]
    assert "alert" in front["model-index"][0]["results"][0]["dataset"]["name"]
    assert text.count("\n```") == 2  # the one block of code
    without_code = re.sub(r"`[^`]+`", "", re.sub(r"(?s)\n```.*?\n```", "", text))
    without_code = without_code.rpartition("<!-- Written by voidrl")[0]
    assert not re.search(r"[<\[]|\*\*|@me|http://", without_code)
    for line in text.splitlines():
        if line.startswith("|"):
            assert line.count("|") in (3, 8), line


@pytest.mark.parametrize("env", ["__main__:make_env", "mazes:<lambda>", "functools:partial()"])
def test_an_environment_that_cannot_be_imported_elsewhere_is_not_named(tmp_path, capsys, env):
    for phase, call in (("pretrain", "finetune"), ("train", "evaluate")):
        agent = make_agent(phase=phase)
        own = dataclasses.replace(agent.config.env, id=env)
        agent.config = dataclasses.replace(agent.config, env=own)
        result = Evaluation([1.0], [3], None)
        front, text = card_of(voidrl.save_pretrained(agent, tmp_path / phase, evaluation=result))
        assert env not in json.dumps(front)
        assert env not in text
        assert "a custom environment" in text
        code = text.split("```")[1].removeprefix("python\n")
        compile(code, "card", "exec")
        assert f"voidrl.{call}(agent, make_env, " in code
        assert f"the environment '{env}' of the agent cannot be imported elsewhere" in capsys.readouterr().err


def test_a_wrapper_is_code(tmp_path):
    agent = make_agent(env__wrappers=["gymnasium.wrappers:TimeLimit?max_episode_steps=9"])
    _, text = card_of(voidrl.save_pretrained(agent, tmp_path / "agent", repo_id="somebody/agent"))
    assert "trust_code=True" in text
    assert "`gymnasium.wrappers:TimeLimit?max_episode_steps=9`" in text
