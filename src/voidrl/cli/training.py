"""pretrain · train · finetune · resume."""

from __future__ import annotations

from voidrl.cli.options import (
    TRUST_HELP,
    default_config,
    make_parser,
    pop_own,
    print_help,
    split_words,
    with_options,
)

OUTPUT = {
    "--out DIR": "the run folder; by default a new one under runs/",
    "--overwrite": "replace the run that is there",
}


def pretrain(argv: list[str]) -> None:
    """Train without rewards: `voidrl pretrain voidrl/PixelMaze-v0 --steps 100k`."""
    _start("pretrain", argv)


def train(argv: list[str]) -> None:
    """Train from scratch on the task's reward, for comparison: `voidrl train ENV`."""
    _start("train", argv)


def _start(command: str, argv: list[str]) -> None:
    meaning = "atari/<game>, dmc/<domain>, a Gymnasium id such as voidrl/PixelMaze-v0, or module:factory"
    env, given, wants_help = split_words(argv, command, "ENV", meaning)
    own = {
        "--preset NAME": "values for a purpose, from `voidrl list presets`",
        "--method NAME": "what is rewarded, from `voidrl list methods`, or module:Class",
        "--representation NAME": "from `voidrl list representations`, or module:Class",
        "--learner NAME": "from `voidrl list learners`, or module:Class",
        **OUTPUT,
    }
    options = pop_own(given, own)
    config = with_options(default_config(env, options, command), given, command, own)
    if wants_help:
        print_help(
            config, f"voidrl {command} ENV", {"pretrain": pretrain, "train": train}[command].__doc__, own
        )
        return
    from voidrl import api

    start = api.pretrain if command == "pretrain" else api.train
    start(env, config=config, out=options.get("--out"), overwrite="--overwrite" in options)


def finetune(argv: list[str]) -> None:
    """Adapt a pre-trained agent to a reward: `voidrl finetune RUN --env 'voidrl/PixelMaze-v0?goal=far'`."""
    run, given, wants_help = split_words(
        argv, "finetune", "RUN", "the folder of a run or a saved agent, or user/name on the Hugging Face Hub"
    )
    own = {
        "--env ENV": "the task; by default the environment of pre-training",
        **OUTPUT,
        "--trust-code": TRUST_HELP,
    }
    options = pop_own(given, own)
    if not run:
        print_help(default_config("", {}, "finetune"), "voidrl finetune RUN", finetune.__doc__, own)
        return
    from voidrl import api

    agent = api.load(run, device="cpu", trust_code=options.get("--trust-code") == "True")
    config = with_options(api.task_config(agent.config), given, "finetune", own)
    if wants_help:
        print_help(config, "voidrl finetune RUN", finetune.__doc__, own)
        return
    out, overwrite = options.get("--out"), "--overwrite" in options
    api.finetune(agent, options.get("--env"), config=config, out=out, overwrite=overwrite)


def resume(argv: list[str]) -> None:
    """Go on with a run that stopped: `voidrl resume RUN`."""
    parser = make_parser("resume", resume.__doc__)
    parser.add_argument("run", help="the run folder")
    parser.add_argument("--steps", help="a new total of environment steps")
    parser.add_argument("--env", help="module:function, for a run that a script began with its own function")
    parser.add_argument("--device", help="auto, cpu, cuda or cuda:N (default: as it was started)")
    parser.add_argument("--engine", help="auto, eager, graph or compile (default: as it was started)")
    options = parser.parse_args(argv)
    from voidrl import api

    env, device, engine = options.env, options.device, options.engine
    api.resume(options.run, steps=options.steps, env=env, device=device, engine=engine)
