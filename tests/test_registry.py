"""Names, classes and `module:Class` → the pieces of an agent."""

import pytest

from voidrl.config import registry
from voidrl.errors import ConfigError, UnknownNameError
from voidrl.learners.base import Learner
from voidrl.learners.dqn import DQN
from voidrl.methods.apt import APT
from voidrl.methods.base import Method
from voidrl.representations.base import Representation

BASES = {"method": Method, "representation": Representation, "learner": Learner}


class Mine(Method):
    class Inner(Method):
        pass


NOT_A_CLASS = 3


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k in BASES for n in registry.names(k)])
def test_every_name_leads_to_its_class_and_back(kind, name):
    cls = registry.find(kind, name)
    assert issubclass(cls, BASES[kind])
    assert cls is not BASES[kind]
    assert cls.__module__.rpartition(".")[2] == name
    assert registry.name_of(kind, cls) == name


def test_a_class_is_found_again_by_its_name():
    assert registry.find("method", APT) is APT
    assert registry.name_of("method", APT) == "apt"
    assert registry.find("method", Mine) is Mine
    assert registry.name_of("method", Mine) == f"{__name__}:Mine"
    assert registry.find("method", f"{__name__}:Mine") is Mine


def test_a_class_that_cannot_be_imported_is_found_in_its_own_process():
    class Local(Method):
        pass

    name = registry.name_of("method", Local)
    with pytest.raises(ConfigError, match="cannot be imported"):
        registry.find("method", name)
    registry.find("method", Local)
    assert registry.find("method", name) is Local


@pytest.mark.parametrize(
    "path", ["no_such_module:Mine", f"{__name__}:Nothing", ":Mine", f"{__name__}:", ".a:B", "a/b.py:B"]
)
def test_what_cannot_be_imported(path):
    with pytest.raises(ConfigError) as caught:
        registry.find("method", path)
    assert str(caught.value).startswith(f"method {path!r} cannot be imported")
    assert "expected 'module:name'" in str(caught.value)


def test_an_unknown_name_is_answered_with_a_near_one():
    with pytest.raises(UnknownNameError) as caught:
        registry.find("representation", "simcrl")
    text = "unknown representation 'simcrl'; did you mean 'simclr'? Your own: 'module:Class', or "
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("wrong", [int, DQN, f"{__name__}:NOT_A_CLASS", "builtins:dict"])
def test_what_is_no_method(wrong):
    with pytest.raises(ConfigError, match=r"expected a subclass of voidrl\.methods.base.Method"):
        registry.find("method", wrong)
