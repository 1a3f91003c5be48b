"""Methods, representations, learners and environments that another package registers."""

import gymnasium as gym
import pytest

import voidrl
from voidrl.cli import main as cli
from voidrl.config import EnvConfig, registry
from voidrl.envs.make import make_envs
from voidrl.errors import ConfigError, UnknownNameError
from voidrl.methods.apt import APT

CODE = """
import gymnasium

from voidrl.learners.dqn import DQN
from voidrl.methods.base import Method
from voidrl.representations.simclr import SimCLR

class Ones(Method):
    def reward(self, batch, latents):
        return batch.reward * 0 + 1

class Other(SimCLR):
    pass

class Shallow(DQN):
    pass

def register():
    gymnasium.register("tiny/Maze-v0", "voidrl.envs.maze:_make", max_episode_steps=20)

def fail():
    raise OSError("no such disk")
"""
ENTRIES = """
[voidrl.methods]
ones = tinyplugin:Ones
apt = tinyplugin:Ones
lost = tinyplugin_of_nobody:Lost
wrong = tinyplugin:Shallow

[voidrl.representations]
other = tinyplugin:Other

[voidrl.learners]
shallow = tinyplugin:Shallow

[voidrl.environments]
tiny = tinyplugin:register
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a package of one module with these entry points."""
    before = dict(gym.registry)
    registry.import_environments.cache_clear()

    def put(entries):
        (tmp_path / "tinyplugin.py").write_text(CODE)
        about = tmp_path / "tiny_plugin-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-plugin\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(entries)
        monkeypatch.syspath_prepend(str(tmp_path))

    yield put
    registry.import_environments.cache_clear()
    for name in gym.registry.keys() - before.keys():
        del gym.registry[name]


def test_the_pieces_of_another_package_are_found_by_their_names(install):
    install(ENTRIES)
    assert registry.names("method") == [*registry.own_names("method"), "lost", "ones", "wrong"]
    for kind, name in (("method", "ones"), ("representation", "other"), ("learner", "shallow")):
        cls = registry.find(kind, name)
        assert registry.name_of(kind, cls) == f"tinyplugin:{cls.__name__}", "found again without the name"
    assert registry.find("method", "apt") is APT, "our own first"
    with pytest.raises(UnknownNameError, match="did you mean 'ones'"):
        registry.find("method", "onez")


def test_an_agent_is_trained_with_them_in_their_environment(install, tmp_path):
    install(ENTRIES)
    changes = {"learner": "shallow", "representation": "other", "warmup_steps": 20, "learner.batch_size": 8}
    changes |= {"method": "ones", "representation.batch_size": 8, "device": "cpu"}
    agent = voidrl.pretrain("tiny/Maze-v0?size=5", steps=24, config=changes, out=tmp_path / "run")
    pieces = (agent.config.method, agent.config.representation, agent.config.learner)
    assert [piece.name for piece in pieces] == [f"tinyplugin:{name}" for name in ("Ones", "Other", "Shallow")]
    assert voidrl.load(tmp_path / "run").config == agent.config


def test_a_broken_one_is_one_sentence_and_stops_nothing_else(install, capsys):
    install(ENTRIES.replace("tiny = tinyplugin:register", "tiny = tinyplugin:fail"))
    with pytest.raises(ConfigError) as caught:
        registry.find("method", "lost")
    assert str(caught.value) == (
        "method 'lost' of package tiny-plugin (tinyplugin_of_nobody:Lost) cannot be imported "
        "(ModuleNotFoundError: No module named 'tinyplugin_of_nobody')"
    )
    with pytest.raises(ConfigError, match="method 'wrong' cannot be used: expected a subclass"):
        registry.find("method", "wrong")
    with pytest.raises(ConfigError, match=r"package tiny-plugin \(tinyplugin:fail\) failed .*no such disk"):
        make_envs(EnvConfig("tiny/Maze-v0"))
    make_envs(EnvConfig("CartPole-v1")).close()
    assert cli.main(["list", "methods"]) == 0
    assert "tinyplugin_of_nobody:Lost, installed" in capsys.readouterr().out
