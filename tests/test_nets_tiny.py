"""Images from 5×5 pixels on: which convolutions read them, how far they are shifted, symbols told apart."""

import pytest
import torch
from helpers import BOX, make_agent, seen_as

from voidrl.config import AugmentConfig, EncoderConfig, registry
from voidrl.errors import ConfigError
from voidrl.nets import Encoder
from voidrl.nets.augment import Augment, default_shift, images
from voidrl.nets.encoder import ByteScales, stack_for
from voidrl.training.build import build_config
from voidrl.types import EnvSpec, Frames

GRID = EnvSpec((3, 7, 7), True, 1, num_actions=7, raw_shape=(7, 7, 3))  # MiniGrid's view


def spec_of(height, width=None, **actions):
    return EnvSpec((3, height, width or height), True, 1, **(actions or {"num_actions": 2}))


@pytest.mark.parametrize(
    ("size", "discrete", "continuous"),
    [
        ((5, 5), "tiny", "tiny"),
        ((7, 7), "tiny", "tiny"),
        ((19, 84), "tiny", "tiny"),
        ((20, 20), "drq", "drq"),
        ((35, 84), "drq", "drq"),
        ((36, 36), "nature", "drq"),
        ((84, 84), "nature", "drq"),
    ],
)
def test_auto_chooses_convolutions_by_the_shorter_side(size, discrete, continuous):
    for actions, wanted in (({"num_actions": 2}, discrete), ({"num_actions": 0, **BOX}, continuous)):
        config = build_config(spec_of(*size, **actions), [])
        assert config.learner.encoder.stack == config.representation.encoder.stack == wanted
    assert stack_for((3, *size)) == discrete


@pytest.mark.parametrize(
    ("side", "pixels"), [(5, 0), (7, 0), (15, 0), (16, 1), (18, 2), (27, 3), (36, 4), (42, 4), (84, 4)]
)
def test_the_default_shift_goes_by_the_size_of_the_images(side, pixels):
    assert default_shift((side + 9, side)) == pixels
    spec = spec_of(side)
    assert build_config(spec, []).augment.shift_pixels == pixels
    assert build_config(spec, [{"augment": {"shift_pixels": 3}}]).augment.shift_pixels == 3
    source = torch.randint(256, (50, 3, side, side), dtype=torch.uint8)
    views = Augment(AugmentConfig())(Frames(source, torch.arange(50)[:, None]))
    assert torch.equal(views, images(source)) == (pixels == 0)


def test_without_augmentation_inverse_dynamics_take_the_place_of_contrast():
    for side, wanted in ((7, "icm"), (15, "icm"), (16, "simclr"), (84, "simclr")):
        assert build_config(spec_of(side), []).representation.name == wanted
        assert build_config(spec_of(side), [{"method": "re3"}]).representation.name == "fixed"
        assert build_config(spec_of(side), [{"method": "cic"}]).representation.name == "learner"
    asked = build_config(GRID, [{"representation": "simclr"}])
    assert asked.representation.name == "simclr"


@pytest.mark.parametrize(
    ("stack", "size", "remedy"),
    [
        ("nature", (3, 30, 30), "'drq' for representation.encoder.stack"),
        ("nature", (3, 7, 7), "'tiny' for representation.encoder.stack"),
        ("drq", (3, 7, 9), "'tiny' for representation.encoder.stack"),
        ("tiny", (3, 4, 9), "FlattenObservation"),
    ],
)
def test_images_too_small_for_a_stack_name_one_that_reads_them(stack, size, remedy):
    with pytest.raises(ConfigError, match=f"{stack!r} cannot read images of {size[1]}×{size[2]}: .*{remedy}"):
        Encoder(seen_as(size), EncoderConfig(stack))
    if "tiny" in remedy:
        Encoder(seen_as(size), EncoderConfig("tiny"))


def test_bytes_are_read_on_two_scales_and_survive_bf16():
    every = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    linear, logarithmic = ByteScales()(images(every))[0]
    assert torch.equal(linear, every[0, 0] / 255 - 0.5)
    wanted = 2 * torch.log(every[0, 0] + 1.0) / torch.log(torch.tensor(256.0)) - 1
    assert torch.allclose(logarithmic, wanted, atol=1e-6)
    rounded = ByteScales()(images(every).bfloat16())[0, 1].flatten()
    assert (rounded[:12].diff() > 0.02).all()  # each symbol has its own value


def test_rnd_reads_standardized_values_and_not_the_logarithm_of_bytes():
    agent = make_agent(GRID, method="rnd")
    assert not any(isinstance(layer, ByteScales) for layer in agent.method.modules())
    assert any(isinstance(layer, ByteScales) for layer in agent.learner.modules())
    assert registry.find("method", "rnd").default_representation(GRID) == "learner"
