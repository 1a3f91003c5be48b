"""Ids that find their package."""

import importlib.machinery
import sys
import types

import gymnasium as gym
import pytest

from voidrl.config import EnvConfig
from voidrl.envs.ids import PACKAGES, import_package, names_code, package_of, parse_id
from voidrl.envs.make import make_envs
from voidrl.errors import ConfigError, UnknownNameError


@pytest.fixture
def install(monkeypatch):
    """Put a made-up package where the import system finds it; environments it registers go afterwards."""
    before = dict(gym.registry)

    def put(name, **contents):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    yield put
    for name in gym.registry.keys() - before.keys():
        del gym.registry[name]


@pytest.fixture
def uninstall(monkeypatch):
    def remove(name):
        for module in [m for m in sys.modules if m.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, module)
        find = importlib.util.find_spec
        monkeypatch.setattr("importlib.util.find_spec", lambda n, *a: None if n == name else find(n, *a))

    return remove


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.pip)
def test_examples_belong_to_their_package_and_not_to_gymnasium(package):
    assert package_of(package.example) is package
    own = [name for name, spec in gym.registry.items() if str(spec.entry_point).startswith("gymnasium.")]
    assert own
    assert not [name for name in own if name.startswith(package.prefixes)]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.pip)
def test_a_missing_package_is_one_sentence_with_the_command(package, uninstall, monkeypatch):
    uninstall(package.module.partition(".")[0])
    monkeypatch.setattr(gym, "registry", {})
    with pytest.raises(ConfigError, match=rf"needs the package {package.pip}, .* pip install {package.pip}$"):
        import_package(parse_id(package.example)[0])


def test_an_id_imports_its_package_and_a_misspelled_one_gets_its_ids():
    pytest.importorskip("minigrid")
    import_package("MiniGrid-DoorKey-8x8-v0")
    assert "MiniGrid-DoorKey-8x8-v0" in gym.registry
    with pytest.raises(UnknownNameError, match="did you mean 'MiniGrid-DoorKey-8x8-v0'"):
        make_envs(EnvConfig("MiniGrid-DorKey-8x8-v0"))
    with pytest.raises(UnknownNameError, match="BabyAI-GoToObj-v0"):
        make_envs(EnvConfig("BabyAI-GoToObjj-v0"))


def test_a_package_may_have_a_function_that_registers(install):
    calls = []

    def register_envs():
        calls.append(1)
        gym.register("MinAtar/Breakout-v1", "helpers:Chain")

    install("minatar")
    install("minatar.gym", register_envs=register_envs)
    assert make_envs(EnvConfig("MinAtar/Breakout-v1")).spec.num_actions == 2
    assert make_envs(EnvConfig("MinAtar/Breakout-v1")).spec.num_actions == 2
    assert len(calls) == 1
    with pytest.raises(UnknownNameError, match="did you mean 'MinAtar/Breakout-v1'"):
        make_envs(EnvConfig("MinAtar/Breakot-v1"))


def test_a_package_that_cannot_be_imported_is_named(install):
    def register_envs():
        raise ImportError("libfoo is missing")

    install("minatar")
    install("minatar.gym", register_envs=register_envs)
    with pytest.raises(ConfigError, match="'MinAtar/Breakout-v1' cannot be made: libfoo is missing"):
        make_envs(EnvConfig("MinAtar/Breakout-v1"))


def test_ids_of_packages_name_no_code():
    """An agent from the Hub may be made for them: only listed packages are imported."""
    assert not any(names_code(package.example) for package in PACKAGES)
