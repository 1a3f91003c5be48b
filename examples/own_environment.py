"""A custom environment: pre-train without its reward, fine-tune on it, compare with training from scratch."""

import sys
import tempfile

import gymnasium as gym
import numpy as np

import voidrl


class Corridor(gym.Env):
    """A point starts at the left end of a long corridor; each step in its last tenth has reward 1."""

    observation_space = gym.spaces.Box(np.float32([0, 0]), np.float32([3, 1]))
    action_space = gym.spaces.Box(-1.0, 1.0, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.steps_left = np.array([0.2, 0.5], np.float32), 50
        return self.position, {}

    def step(self, action):
        self.position = np.clip(self.position + 0.2 * action, 0, [3, 1]).astype(np.float32)
        self.steps_left -= 1
        return self.position, float(self.position[0] > 2.7), False, self.steps_left == 0, {}


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1300  # when APT's policy explores the far end
    learner = {"hidden_dim": 64, "batch_size": 128, "discount": 0.95, "target_tau": 0.05,
               "actor_every_updates": 1, "target_every_updates": 1}  # fmt: skip
    config = {"env.num_envs": 8, "updates_per_step": 0.25, "warmup_steps": 500, "finetune.warmup_steps": 250,
              "method.normalize": "distance_mean", "learner": learner}  # fmt: skip
    with tempfile.TemporaryDirectory() as runs:
        agent = voidrl.pretrain(Corridor, "apt", steps=steps, config=config, out=f"{runs}/apt")
        tuned = voidrl.finetune(agent, steps=steps // 2, out=f"{runs}/finetune")
        config["warmup_steps"] = 250  # as in fine-tuning
        scratch = voidrl.train(Corridor, steps=steps // 2, config=config, out=f"{runs}/scratch")
    after, without = voidrl.evaluate(tuned).mean_return, voidrl.evaluate(scratch).mean_return
    print(f"return (at most 38): {after} fine-tuned, {without} trained from scratch")
