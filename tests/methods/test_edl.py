"""EDL: explores like APT, finds codes, keeps them, and then rewards what they stand for."""

import numpy as np
import torch
from hand_batches import batch_of, latents_of, minimize
from helpers import CPU, PIXELS, fill_replay, make_agent, moved, parameters_of, seen_as, snapshot
from tiny_runs import Walk, assert_same_run, callback, newest, tiny

import voidrl
from voidrl.agent.rewards import batch_latents
from voidrl.methods import edl as module
from voidrl.methods.edl import EXPLORE, FIT, SKILLS, EDLConfig
from voidrl.replay import Replay

PLANE = seen_as((2,))


def edl(spec=PLANE, **changes):
    return make_agent(
        spec, method={"name": "edl", "learning_rate": 2e-3}, learner={"batch_size": 64}, **changes
    )


def clusters(n=10):
    """A replay of n places on a circle, equally often, and the places."""
    rng, angle = np.random.default_rng(0), 2 * np.pi * np.arange(n) / n
    places = np.float32([np.cos(angle), np.sin(angle)]).T
    replay = Replay(PLANE, n, n * 62, n, CPU, CPU)
    replay.reset(places)
    no, skill = np.zeros(n, bool), torch.eye(n)
    for _ in range(60):
        frames = (places + 0.03 * rng.normal(size=places.shape)).astype(np.float32)
        replay.add(np.zeros(n, np.int64), np.zeros(n), no, no, frames, skill)
    return replay, torch.from_numpy(places)


def test_ten_clusters_use_ten_codes_and_the_reward_is_greatest_at_the_centroid():
    agent = edl()
    method, (replay, places) = agent.method, clusters()
    for _ in range(150):
        batch = replay.batch(replay.sample(64), 1, 1.0)
        metrics = minimize(agent, method.losses(batch, batch_latents(agent, batch, None)))
    assert method.metrics()["edl_codes"] > 9
    assert metrics["edl_error"] < 0.1  # of the variance
    with torch.no_grad():
        nearest = method.vae.distances(method.vae.encoder(method._standardize(places))).argmin(1)
        assert sorted(nearest.tolist()) == list(range(10))
        method.set_progress(60_000, 100_000)
        # At every place the code of the place earns most, and each code earns most at its place.
        grid = torch.stack(
            [
                method.reward(batch_of(skill.expand(10, -1)), latents_of(None, places))
                for skill in torch.eye(10)
            ]
        )  # (skill, place)
        assert torch.equal(grid.argmax(0), nearest)
        assert torch.equal(nearest[grid.argmax(1)], torch.arange(10))
        assert grid.max() <= 1
        assert grid.amax(0).min() > 0.9


def test_the_reward_of_each_stage_by_hand():
    method, replay = edl(method__num_skills=3).method, fill_replay(PLANE, skill_dim=3)
    batch = replay.batch(replay.sample(16), 1, 1.0)._replace(skill=torch.eye(3)[torch.arange(16) % 3])
    latents = latents_of(batch.next_obs, batch.next_obs)
    apt = make_agent(PLANE, method="apt").method
    with torch.no_grad():
        method.mean.copy_(torch.tensor([1.0, 0.0]))
        method.std.copy_(torch.tensor([2.0, 0.5]))
        method.spread.fill_(4.0)
        torch.testing.assert_close(method.reward(batch, latents), apt.reward(batch, latents))
        method.set_progress(100, 100)
        x = (batch.next_obs - torch.tensor([1.0, 0.0])) / torch.tensor([2.0, 0.5])
        goal = method.vae.decoder(method.vae.codes)[torch.arange(16) % 3]
        expected = 1 - (x - goal).square().sum(1) / 4
        torch.testing.assert_close(method.reward(batch, latents), expected)


def test_stages_follow_the_steps_and_are_never_left_for_an_earlier_one():
    config = EDLConfig(max_explore_steps=100)
    assert [config.explored_steps(total) for total in (40, 1000)] == [20, 100]
    method = edl(method__max_explore_steps=80, warmup_steps=10).method
    seen = []
    for steps in (0, 59, 60, 79, 80, 500):
        method.set_progress(steps, 1000)
        seen.append(method.stage.item())
    assert seen == [EXPLORE, EXPLORE, FIT, FIT, SKILLS, SKILLS]
    assert method.rate == 0
    again = edl(method__max_explore_steps=80, warmup_steps=10).method
    again.load_state_dict(method.state_dict())
    again.set_progress(10, 1000)  # as if the run had been made longer
    assert again.stage == SKILLS
    assert again.rate == 0


def test_the_copy_of_f_follows_it_until_codes_are_fitted_and_the_codes_stay_as_they_are():
    agent = make_agent(PIXELS, method={"name": "edl", "num_skills": 3})
    assert agent.config.representation.name == "simclr"
    method, replay = agent.method, fill_replay(PIXELS, skill_dim=3)
    f, batch = agent.representation, replay.batch(replay.sample(8), 1, 1.0)

    def differ():
        with torch.no_grad():
            return not torch.allclose(f.encode(batch.obs), method.space(batch.obs), atol=1e-6)

    agent.update(replay)
    assert not differ()
    method.set_progress(40_000, 100_000)
    space, codes = snapshot(parameters_of(method.space)), snapshot(parameters_of(method.vae))
    agent.update(replay)
    assert differ()  # contrast goes on training f
    assert moved(codes, parameters_of(method.vae)) == set(codes)
    method.set_progress(50_000, 100_000)
    kept = snapshot(dict(method.state_dict()))
    for _ in range(3):
        agent.update(replay)
    changed = moved(kept, dict(method.state_dict()))
    assert not moved(space, parameters_of(method.space))
    assert {name.partition(".")[0] for name in changed} == {"exploration", "moments", "vae"}
    assert {name for name in changed if name.startswith("vae")} == {"vae.usage"}  # which only counts


def test_a_run_resumed_in_every_stage_is_bit_for_bit_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "EXPLORE_FRACTION", 0.6)
    monkeypatch.setattr(module, "FIT_FRACTION", 0.5)
    method = {"name": "edl", "num_skills": 3, "k": 3}
    config = tiny(method=method, representation="icm", warmup_steps=4, log__checkpoint_every_steps=6)
    voidrl.pretrain(Walk, steps=24, out=tmp_path / "straight", config=config)
    stop, run = [callback(on_checkpoint=lambda run: "stop")], tmp_path / "parts"
    voidrl.pretrain(Walk, steps=24, out=run, config=config, callbacks=stop)
    stages = []
    for _ in range(3):
        stages.append(newest(run)[0]["agent.safetensors/method.stage"].item())
        voidrl.resume(run, callbacks=stop)
    assert stages == [EXPLORE, FIT, SKILLS]  # at steps 6, 12 and 18; skills are learned from step 14 on
    assert_same_run(tmp_path / "straight", run, steps=24)
