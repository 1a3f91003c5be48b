"""evaluate · probe."""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from typing import TYPE_CHECKING

from voidrl.cli.options import DEVICE_HELP, RUN_HELP, Parser, add_source_options, load_agent
from voidrl.errors import ConfigError, printable
from voidrl.system.terminal.output import say
from voidrl.system.terminal.tables import print_table, wrap_text
from voidrl.system.units import plural

if TYPE_CHECKING:
    from voidrl.report.videos.video import Recording
    from voidrl.training.evaluation import Evaluation

FIRST_MINUTE_S = 60.0  # of one episode, shown by default
STATES = {
    "ram": "whole RAM vectors (they hold timers and saturate)",
    "variables": "values of the annotated variables",
    "positions": "positions of the player",
    "bins": "bins of height, angle and velocity",
}


def evaluate(argv: list[str]) -> None:
    """Play whole episodes with a trained agent: `voidrl evaluate RUN --episodes 20`."""
    parser = Parser("evaluate", evaluate.__doc__)
    add = parser.add_argument
    add("run", metavar="RUN", help=RUN_HELP)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--episodes", help="number of episodes (default: 10)")
    length.add_argument("--steps", help="number of steps instead (the paper on Atari: 125k)")
    add("--num-envs", type=int, metavar="N", help="environments in parallel (default: as fits)")
    add("--count-states", action="store_true", help="count the distinct states visited (Atari, DMControl)")
    add("--json", action="store_true", help="print every episode as JSON")
    video_help = "record the play in this file instead (default: one episode, or its first minute)"
    add("--video", metavar="FILE.mp4", help=video_help)
    add("--untrained", action="store_true", help="also show the agent before training in the video")
    parser.rare("--fps", type=float, help="steps of the video per second (default: the environment's own)")
    parser.rare("--height", type=int, default=420, help="height of the video in pixels (default: 420)")
    add("--env", help="by default the one it was trained in")
    add("--seed", type=int, default=0, help="seed of environments and actions (default: 0)")
    add("--stochastic", action="store_true", help="act with exploration noise")
    epsilon_help = "probability of a random action (default: the run's log.eval_epsilon)"
    parser.rare("--epsilon", type=float, help=epsilon_help)
    add("--device", default="auto", help=DEVICE_HELP)
    add_source_options(parser)
    options = parser.parse_args(argv)
    from voidrl import api
    from voidrl.system.units import parse_count
    from voidrl.training.evaluation import evaluation_record, keep_evaluation

    if options.video is not None:
        _record(options)
        return
    steps = None if options.steps is None else parse_count(options.steps)
    episodes = parse_count(options.episodes or 10, "episodes")
    agent = load_agent(options, options.run, options.device)
    epsilon = agent.config.log.eval_epsilon if options.epsilon is None else options.epsilon
    how = {name: getattr(options, name) for name in ("seed", "num_envs", "count_states")}
    how |= {"steps": steps, "deterministic": not options.stochastic, "epsilon": epsilon}
    result = api.evaluate(agent, options.env or None, episodes=episodes, **how)
    settings = {"env": options.env or agent.config.env.id, **how}
    settings["episodes"] = episodes if steps is None else None
    written = None if options.best else keep_evaluation(agent, options.run, result, settings)
    if options.json:
        saved = evaluation_record(agent, options.run, result, settings)
        if options.best:
            saved["agent"] |= {"is_best": True, "steps": agent.steps}
        print(json.dumps(saved))
    else:
        _show(result)
    if written is None:
        say(
            "evaluation.json was not written: it is for the last agent of a complete run in its own "
            "environment, and an experiment's own evaluation stays"
        )
    elif not options.json:
        print(f"written to {printable(written)}")


def _show(result: Evaluation) -> None:
    def show(text: str) -> None:
        print(wrap_text(text, indent=9))  # the name of the line takes nine columns

    row = result.metrics()
    different = len(set(zip(result.returns, result.lengths, strict=True)))
    over = f"over {plural(len(result.returns), 'episode')}"
    if different < len(result.returns):
        alike = "all alike in" if different == 1 else f"{different} different pairs of"
        over += f", {alike} return and length"
    show(f"return   {result.mean_return:.3f} ± {row['eval/return_std']:.3f} {over}")
    show(f"length   {row['eval/length']:.1f}")
    share = result.human_normalized
    if share is not None and result.game is not None:
        from voidrl.envs.suites.atari import baseline

        random, human = baseline(result.game)
        scale = f"0% is random play ({random:g}) and 100% a human ({human:g})"
        show(f"human    {round(share, 3) + 0.0:.1%}, where {scale}")
    if result.success_rate is not None:
        show(f"success  {result.success_rate:.0%}")
    for name, count in result.counts.items():
        show(f"states   {count} distinct {STATES.get(name, name)} in {result.counted_steps} steps")


def _record(options: argparse.Namespace) -> None:
    """Write a video of the agent's play."""
    for name in ("steps", "count_states", "json", "num_envs"):
        if getattr(options, name):
            raise ConfigError(f"--{name.replace('_', '-')} cannot be used with --video: leave one out")
    from voidrl.report.videos import mp4
    from voidrl.report.videos.video import label_of, record, untrained, write_video
    from voidrl.system.files import user_path
    from voidrl.system.units import parse_count

    episodes = parse_count(options.episodes or 1, "episodes")
    mp4.find_ffmpeg()  # a missing ffmpeg is reported before anything is played
    agent = load_agent(options, options.run, options.device)
    target = user_path(options.video)
    mp4.prepare_target(target)
    shown = [(label_of(agent), agent)]
    if options.untrained:
        shown.insert(0, ("untrained", untrained(agent)))
    how = {name: getattr(options, name) for name in ("env", "seed", "epsilon", "fps", "height")}
    how |= {"episodes": episodes, "deterministic": not options.stochastic}
    how["seconds"] = None if options.episodes else FIRST_MINUTE_S
    with ExitStack() as stack:
        recordings: list[Recording] = []
        for label, player in shown:
            say(f"{label}: playing {options.env or agent.config.env.id}")
            recordings.append(stack.enter_context(record(player, label=label, **how)))
        write_video(recordings, target, height=options.height)
        for recording in recordings:
            print(_summary(recording))
        print(printable(target))


def _summary(recording: Recording) -> str:
    """The result in one line."""
    episodes = zip(recording.returns, recording.lengths, strict=True)
    whole = [f"return {score:g} in {steps} steps" for score, steps in episodes]
    last = recording.moments[-1]
    if len(whole) < last.episode:
        whole.append(
            f"return {last.score:g} in the first {last.step} steps of an episode; --episodes 1 shows it all"
        )
    if not recording.rewarded:
        whole = [f"{last.step} steps, which nothing rewards"]
    return f"{recording.label}: {'; '.join(whole)}"


def probe(argv: list[str]) -> None:
    """Measure what the representation sees of the true state and of the task's reward: `voidrl probe RUN`."""
    parser = Parser("probe", probe.__doc__)
    add = parser.add_argument
    add("run", metavar="RUN", help=RUN_HELP)
    add("--steps", default="10k", help="steps of play to measure on (default: 10k)")
    policies = ["agent", "random", "sticky", "mixed"]
    policy_help = "agent, random, sticky, or mixed: a third of each (default)"
    add("--policy", choices=policies, default="mixed", metavar="NAME", help=policy_help)
    add("--env", help="by default the one it was trained in")
    add("--num-envs", type=int, metavar="N", help="environments in parallel (default: 24)")
    add("--seed", type=int, default=0, help="seed of the play and of held-out episodes (default: 0)")
    add("--json", action="store_true", help="print the result as JSON")
    add("--device", default="auto", help=DEVICE_HELP)
    add_source_options(parser)
    options = parser.parse_args(argv)
    from voidrl import api
    from voidrl.probing.result import FILE_NAME, columns, heading, notes, rows
    from voidrl.runs.checkpoint import list_steps, write_json_atomic
    from voidrl.system.files import user_path

    agent = load_agent(options, options.run, options.device)
    how = {name: getattr(options, name) for name in ("steps", "policy", "seed", "num_envs")}
    saved = api.probe(agent, options.env or None, **how).to_json()
    run = user_path(options.run)
    # The data that lets a later reader of the run judge whether the probe is still valid.
    steps = list_steps(run / "checkpoints") or [saved["agent"]["steps"]]
    saved["agent"]["steps"] = steps[-1]
    if options.json:
        print(json.dumps(saved))
        return
    print(f"{wrap_text(heading(saved))}\n")
    if saved["variables"] or saved["task_reward"]:
        print_table(columns(saved), rows(saved))
    for note in notes(saved):
        print(wrap_text(note, indent=0))
    if (run / "checkpoints").is_dir() and not options.best:  # probe.json is of the last agent
        write_json_atomic(run / FILE_NAME, saved)
        print(f"\nwritten to {printable(run / FILE_NAME)}")
