"""evaluate."""

from __future__ import annotations

import json

from voidrl.cli.options import add_player_options, load_agent, make_parser
from voidrl.errors import ConfigError
from voidrl.system.terminal.tables import wrap_text

STATES = {
    "ram": "whole RAM vectors (they hold timers and saturate)",
    "variables": "values of the annotated variables",
    "positions": "positions of the player",
    "bins": "bins of height, angle and velocity",
}


def evaluate(argv: list[str]) -> None:
    """Play whole episodes with a trained agent: `voidrl evaluate RUN --episodes 20`."""
    parser = make_parser("evaluate", evaluate.__doc__)
    add = parser.add_argument
    add("run", help="the folder of a run, a checkpoint or a saved agent, or user/name on the Hub")
    add("--episodes", help="number of episodes (default: 10)")
    add("--steps", help="number of steps instead (the paper on Atari: 125k)")
    add("--num-envs", type=int, help="environments in parallel (default: as fits)")
    add("--count-states", action="store_true", help="count the distinct states visited (Atari, DMControl)")
    add("--json", action="store_true", help="print every episode as JSON")
    add_player_options(parser)
    options = parser.parse_args(argv)
    from voidrl import api
    from voidrl.system.units import parse_count
    from voidrl.training.evaluation import evaluation_record

    steps = None if options.steps is None else parse_count(options.steps)
    if steps is not None and options.episodes is not None:
        raise ConfigError(
            f"--episodes {options.episodes} cannot be used with --steps {options.steps}: give one of the two"
        )
    episodes = parse_count(options.episodes or 10, "episodes")
    agent = load_agent(options, options.run, options.device)
    settings = {
        "env": options.env or agent.config.env.id,
        "episodes": episodes if steps is None else None,
        "steps": steps,
        "seed": options.seed,
        "deterministic": not options.stochastic,
        "epsilon": agent.config.log.eval_epsilon if options.epsilon is None else options.epsilon,
        "num_envs": options.num_envs,
        "count_states": options.count_states,
    }
    result = api.evaluate(agent, **{**settings, "env": options.env or None, "episodes": episodes})
    if options.json:
        saved = evaluation_record(agent, options.run, result, settings)
        if options.best:
            saved["agent"] |= {"is_best": True, "steps": agent.steps}
        print(json.dumps(saved))
        return
    row = result.metrics()
    different = len(set(zip(result.returns, result.lengths, strict=True)))
    over = f"over {len(result.returns)} episodes"
    if different < len(result.returns):
        alike = "all alike in" if different == 1 else f"{different} different pairs of"
        over += f", {alike} return and length"
    _print_line(f"return   {result.mean_return:.3f} ± {row['eval/return_std']:.3f} {over}")
    _print_line(f"length   {row['eval/length']:.1f}")
    share = result.human_normalized
    if share is not None and result.game is not None:
        from voidrl.envs.suites.atari import baseline

        random, human = baseline(result.game)
        scale = f"0% is random play ({random:g}) and 100% a human ({human:g})"
        _print_line(f"human    {round(share, 3) + 0.0:.1%}, where {scale}")
    if result.success_rate is not None:
        _print_line(f"success  {result.success_rate:.0%}")
    for name, count in result.counts.items():
        if name == "entropy":
            _print_line(f"entropy  {count:.1f} nats of the physics states in {result.counted_steps} steps")
        else:
            _print_line(f"states   {count} distinct {STATES.get(name, name)} in {result.counted_steps} steps")


def _print_line(text: str) -> None:
    print(wrap_text(text, indent=9))  # the name of the line takes nine columns
