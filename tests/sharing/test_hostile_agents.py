"""Agents of others are data: whatever their files say, loading runs no code and fails in a sentence."""

import hashlib
import json
import os
import random
import resource
import shutil
import struct
from contextlib import suppress

import hub_fakes
import pytest
import torch
from helpers import CONTINUOUS, DISCRETE, PIXELS, make_agent, mutate
from safetensors.torch import load, save
from tiny_runs import sealed

import voidrl
from voidrl.cli import main as cli
from voidrl.config import LOCAL_FIELDS, Config, flat, merge, to_json
from voidrl.config.updating import USER_FIELDS
from voidrl.errors import ConfigError, VoidrlError
from voidrl.runs import checkpoint
from voidrl.sharing.pretrained import own_env

NAME = "somebody/agent"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    agent = make_agent(seed=3)
    agent.steps = 12
    return voidrl.save_pretrained(agent, tmp_path_factory.mktemp("saved") / "agent")


@pytest.fixture
def saved(original, tmp_path):
    """A folder of its own, whose files may be changed."""
    return shutil.copytree(original, tmp_path / "agent")


def contents(folder):
    return json.loads((folder / "config.json").read_text())


def write(folder, data):
    (folder / "config.json").write_text(sealed(data))


def configure(folder, **changes):
    """Change fields of the agent's config; `__` stands for a dot."""
    data = contents(folder)
    config = merge(data["config"], {key.replace("__", "."): value for key, value in changes.items()})
    write(folder, {**data, "config": config})


def put_weights(folder, data):
    """Replace the weights by these bytes, with matching hashes."""
    (folder / "model.safetensors").write_bytes(data)
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    write(folder, {**contents(folder), "weights": entry})


def put_tensors(folder, tensors):
    put_weights(folder, save({name: tensor for name, tensor in tensors.items() if tensor is not None}))


def refusal(folder):
    """The one sentence with which an agent is refused."""
    with pytest.raises(VoidrlError) as caught:
        voidrl.from_pretrained(folder, device="cpu")
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 1000
    return text


# Sizes


LARGE = [
    {"learner__hidden_dim": 10**7},
    {"learner__hidden_dim": 17},
    {"learner__hidden_layers": 10**9},
    {"learner__encoder__stack": "nature"},
    {"representation": {"name": "simclr", "encoder": {"stack": "mlp", "feature_dim": 10**8}}},
    {"method": {"name": "diayn", "num_skills": 60_000}},
    {"env__frame_stack": 10**9},
    {"updates_per_step": 1e9},
    {"replay__capacity_steps": 10**30},
    {"steps": 10**400},
]


@pytest.mark.parametrize("changes", LARGE, ids=str)
def test_a_config_that_implies_other_weights_is_refused_without_memory(saved, changes):
    configure(saved, **changes)
    torch.eye(1, device="meta")  # the first of these imports 140 MB of symbolic algebra
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    text = refusal(saved)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes
    assert "model.safetensors does not fit its config" in text or "config.json" in text


def test_images_and_continuous_actions_are_compared_too(tmp_path):
    for spec, changes in (
        (PIXELS, {"frame_shape": [3, 36, 360], "raw_shape": [36, 360, 3]}),
        (PIXELS, {"frame_shape": [3, 10**4, 8000], "raw_shape": [10**4, 8000, 3], "frame_stack": 1}),
        (PIXELS, {"frame_stack": 1000}),
        (PIXELS, {"num_actions": 10**6}),
        (CONTINUOUS, {"action_low": [-1] * 9, "action_high": [1] * 9, "action_shape": [3, 3]}),
        (CONTINUOUS, {"frame_shape": [10**8], "raw_shape": [10**8]}),
    ):
        folder = voidrl.save_pretrained(make_agent(spec), tmp_path / "agent")
        write(folder, {**contents(folder), "spec": {**spec.to_json(), **changes}})
        assert "does not fit its config" in refusal(folder)
    folder = voidrl.save_pretrained(make_agent(PIXELS), tmp_path / "agent")
    configure(folder, learner__encoder__width=999)
    assert "does not fit its config" in refusal(folder)
    configure(folder, learner__encoder__width=1e9)
    assert "width = 1000000000.0 cannot be used" in refusal(folder)
    configure(folder, learner__encoder__width=1, leraner__width=1)
    assert "unknown config field 'leraner'; did you mean 'learner'" in refusal(folder)


@pytest.mark.slow
def test_every_learner_method_and_representation_fits_its_own_weights(tmp_path):
    from voidrl.config import registry

    def round_trip(spec, **pieces):
        with suppress(ConfigError):  # a combination that cannot work
            agent = make_agent(spec, **pieces)
            voidrl.from_pretrained(voidrl.save_pretrained(agent, tmp_path / "agent"), device="cpu")
            return True

    for kind in ("method", "representation", "learner"):
        for name in registry.names(kind):
            pieces = {"method": name} if name == "mepol" else {}  # whose learner no other method uses
            done = [round_trip(spec, **{**pieces, kind: name}) for spec in (DISCRETE, CONTINUOUS, PIXELS)]
            assert any(done), (kind, name)


@pytest.mark.parametrize("env", ["CartPole-v1\x1b[2J", "CartPole-v1\n\ndone", "\u202egnp.v1"], ids=ascii)
def test_text_that_would_reach_the_terminal_is_printable(saved, env):
    configure(saved, env__id=env)
    text = refusal(saved)
    assert text.isprintable()
    assert f"env.id = {env!a} cannot be used: expected text on one line" in text


# Weights


def test_weights_that_are_not_finite_are_refused_by_name(saved):
    tensors, agent = load((saved / "model.safetensors").read_bytes()), make_agent(seed=3)
    weights, buffers = dict(agent.named_parameters()), dict(agent.named_buffers())
    weight = next(name for name in weights if name.startswith("learner."))
    floats = [name for name, each in tensors.items() if each.is_floating_point() and each.numel()]
    buffer = next(name for name in floats if name in buffers)
    for name, value in ((weight, "nan"), (weight, "inf"), (weight, "-inf"), (buffer, "nan"), (buffer, "inf")):
        broken = tensors[name].clone()
        broken.view(-1)[0] = float(value)
        put_tensors(saved, {**tensors, name: broken})
        if (name, value) == (buffer, "inf"):  # as a running maximum may be
            voidrl.from_pretrained(saved, device="cpu")
        else:
            assert f"'{name}' has 1 values that are NaN or infinite" in refusal(saved)


def test_a_tensor_too_many_too_few_or_of_another_type_is_named(saved):
    tensors = load((saved / "model.safetensors").read_bytes())
    first = next(name for name, tensor in tensors.items() if tensor.dtype == torch.float32)
    for change, said in (
        ({"more": torch.zeros(3)}, "'more' is F32 of shape (3,) there, and nothing by the config"),
        ({first: tensors[first].double()}, f"'{first}' is F64 of shape"),
        ({first: None}, f"'{first}' is missing there, and "),
    ):
        put_tensors(saved, {**tensors, **change})
        assert said in refusal(saved)


def header_bytes(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


PAIR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
LIES = [
    b"\0" * 7,
    struct.pack("<Q", 2**63) + b"{}",
    header_bytes(b"[" * 100_000),
    header_bytes({"a": PAIR}, b"\0" * 9),
    header_bytes({"a": {**PAIR, "shape": [10**18, 10**18]}}, b"\0" * 8),
    header_bytes({"a": {**PAIR, "dtype": "F99"}}, b"\0" * 8),
    header_bytes({"a": PAIR, "b": PAIR}, b"\0" * 8),
]


@pytest.mark.parametrize("data", LIES, ids=lambda data: str(data)[:60])
def test_headers_that_lie_are_refused(saved, data):
    put_weights(saved, data)
    assert "model.safetensors" in refusal(saved)


# What belongs to the machine


LOCAL = {
    "device": "cuda:7",
    "cpu_threads": 64,
    "engine": "compile",
    "env.backend": "async",
    "env.timeout_s": 1e9,
    "replay.device": "cuda",
    "replay.data": "somebody/data-v0",
    "log.keep_last": 10**6,
    "log.keep_replay": False,
    "log.tensorboard": False,
    "log.wandb_project": "somebody/else",
}


def test_settings_of_a_machine_are_neither_published_nor_loaded(tmp_path, saved):
    agent = make_agent()
    agent.config = voidrl.config.update(agent.config, LOCAL)
    published = contents(voidrl.save_pretrained(agent, tmp_path / "mine"))
    defaults = flat(to_json(Config()))
    assert {name: flat(published["config"])[name] for name in LOCAL} == {n: defaults[n] for n in LOCAL}
    configure(saved, **LOCAL)  # as a stranger may have written it
    loaded = flat(to_json(voidrl.from_pretrained(saved, device="cpu").config))
    assert {name: loaded[name] for name in LOCAL} == {name: defaults[name] for name in LOCAL}


CHOSEN = {
    "env.count_states": True,
    "log.log_every_steps": 1,
    "log.eval_every_steps": 1,
    "log.eval_episodes": 10_000,
    "log.probe_every_steps": 1,
    "log.checkpoint_every_steps": 1,
    "log.snapshot_steps": [1, 2, 3],
}


def put(monkeypatch, tmp_path, folder):
    """Publish a folder as somebody's agent on the Hub."""
    hub = hub_fakes.install(monkeypatch, tmp_path / "hub")
    for path in folder.iterdir():
        hub.put(NAME, path.name, path.read_bytes())
    return hub


def test_the_author_of_a_download_does_not_decide_what_is_logged(saved, tmp_path, monkeypatch):
    log = {name for name in flat(to_json(Config())) if name.startswith("log.")}
    assert log - {*LOCAL_FIELDS, *USER_FIELDS} == {"log.eval_epsilon"}
    assert set(USER_FIELDS) == set(CHOSEN)
    configure(saved, **LOCAL, **CHOSEN, log__eval_epsilon=0.25)
    put(monkeypatch, tmp_path, saved)
    defaults = flat(to_json(Config()))
    for trust_code in (False, True):
        config = flat(to_json(voidrl.from_pretrained(NAME, device="cpu", trust_code=trust_code).config))
        assert {n: config[n] for n in (*LOCAL, *CHOSEN)} == {n: defaults[n] for n in (*LOCAL, *CHOSEN)}
        assert config["log.eval_epsilon"] == 0.25  # of the protocol
    own = flat(to_json(voidrl.from_pretrained(saved, device="cpu").config))
    assert {name: own[name] for name in CHOSEN} == CHOSEN


# Code


def test_no_text_of_a_downloaded_config_is_imported(original, tmp_path, monkeypatch):
    """Every field in turn names a module that must not be imported."""
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    hub, data = put(monkeypatch, tmp_path, original), contents(original)
    fields = flat(to_json(make_agent().config))
    assert {"learner.encoder.stack", "method.name", "env.dmc.image_size", "seed"} <= set(fields)
    for field in fields:
        nested = [["evil:Piece"], {"name": "evil:Piece"}, [[{"a": "evil:Piece"}]]]
        for value in ("evil:Piece", *(nested if field.endswith(("name", "stack", "steps")) else ())):
            config = merge(data["config"], {field: value})
            hub.put(NAME, "config.json", sealed({**data, "config": config}))
            try:
                loaded = voidrl.from_pretrained(NAME, device="cpu")
            except VoidrlError:
                continue
            assert field == "env.id" or field in LOCAL_FIELDS, (field, value)
            with pytest.raises(ConfigError, match=r"would run code named by|no environment"):
                voidrl.evaluate(loaded, episodes=1)


def test_no_wrapper_of_a_downloaded_config_is_imported(saved, tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    configure(saved, env__id="CartPole-v1", env__wrappers=["evil:Wrapper"])
    put(monkeypatch, tmp_path, saved)
    with pytest.raises(ConfigError, match=r"env.wrappers = .*would run code named by a downloaded file"):
        voidrl.from_pretrained(NAME, device="cpu")
    trusted = voidrl.from_pretrained(NAME, device="cpu", trust_code=True)  # imported where it is used
    assert trusted.config.env.wrappers == ("evil:Wrapper",)


CODE = [
    "evil:make?x=1",
    "GymV26Environment-v0?env_id=evil%3AName-v0",
    'GymV26Environment-v0?env_id="evil\\u003aName-v0"',
    'CartPole-v1?a={"evil:make":1}',
]
PATHS = [
    "CartPole-v1?xml_file=/etc/passwd",
    "CartPole-v1?xml_file=..%5Csecret.xml",
    'CartPole-v1?xml_file="\\u002fetc"',
    'CartPole-v1?a={"x/y":1}',
]


@pytest.mark.parametrize(
    ("env", "risk"), [*((env, "run code") for env in CODE), *((env, "open a path") for env in PATHS)]
)
def test_no_environment_of_a_downloaded_config_names_code_or_a_path(saved, tmp_path, monkeypatch, env, risk):
    why = f"would {risk} named by a downloaded file"
    configure(saved, env__id=env)
    put(monkeypatch, tmp_path, saved)
    agent = voidrl.from_pretrained(NAME, device="cpu")
    for play in (voidrl.evaluate, voidrl.finetune):
        with pytest.raises(ConfigError, match=why):
            play(agent)
    with pytest.raises(ConfigError, match=f"cannot be saved: .* {why}"):
        voidrl.save_pretrained(agent, tmp_path / "copy")
    assert own_env(voidrl.from_pretrained(NAME, device="cpu", trust_code=True)) == env


def test_options_that_are_no_paths_are_those_of_the_environment(saved, tmp_path, monkeypatch):
    env = "voidrl/PixelMaze-v0?goal=far&start=[1,1]&loops=0.5"
    configure(saved, env__id=env)
    put(monkeypatch, tmp_path, saved)
    assert own_env(voidrl.from_pretrained(NAME, device="cpu")) == env


# JSON


NOT_JSON = [
    (b"[" * 100_000, "nested more than"),
    (b'{"library_name": "voidrl", "a": ' + b"9" * 10**6 + b"}", "digits"),
    (b'{"a": 1e999}', "too large"),
    (b'{"a": 1, "a": 2}', "'a' appears twice"),
    (b'{"a": NaN}', "NaN is not valid JSON"),
    (b'["library_name"]', "not an object"),
    (b'{"a": "\xed\xa0\x80"}', "utf-8"),
    (b"", "Expecting value"),
]


@pytest.mark.parametrize(("text", "reason"), NOT_JSON)
def test_files_that_are_not_strict_json_are_named(saved, text, reason, capsys):
    (saved / "config.json").write_bytes(text)
    said = refusal(saved)
    assert "config.json" in said
    assert reason in said
    assert cli.main(["evaluate", str(saved)]) == 2  # and not "there is no run"
    assert reason in capsys.readouterr().err


def test_a_file_without_an_end_is_not_read(saved, monkeypatch):
    (saved / "config.json").unlink()
    os.mkfifo(saved / "config.json")
    assert "holds no agent" in refusal(saved)
    (saved / "config.json").unlink()
    (saved / "config.json").mkdir()
    assert "holds no agent" in refusal(saved)
    (saved / "config.json").rmdir()
    monkeypatch.setattr(checkpoint, "MAX_JSON_BYTES", 1000)
    (saved / "config.json").write_text('{"a": "' + "x" * 2000 + '"}')
    assert "it has more than 1 kB" in refusal(saved)


KEYS = ["format", "agent_steps", "spec", "config", "weights", "about", "library_name"]


@pytest.mark.parametrize("key", KEYS)
def test_every_key_must_be_there_and_have_its_type(saved, key):
    data = contents(saved)
    write(saved, {name: value for name, value in data.items() if name != key})
    missing = refusal(saved)
    assert "config.json" in missing
    assert key in missing or key == "library_name"
    for value in (None, True, -1, 1.5, "1", [], [1], {}, {"a": 1}, {"frame_shape": "x"}, "x" * 10_000):
        if (key, value) != ("config", {}) and not (key == "about" and isinstance(value, dict)):
            write(saved, {**data, key: value})
            assert "config.json" in refusal(saved), value


def test_recorded_results_are_checked_before_a_card_shows_them(saved):
    for results in ({}, [3], [{"env": "x"}]):
        write(saved, {**contents(saved), "about": {"results": results}})
        assert "config.json is damaged, or not voidrl's: it" in refusal(saved)


# Mutations


TEXTS = ["", "x", "a:b", "../x", "atari/pong", "1e9", "\n---\n", "\0", "é" * 300]
VALUES = [None, True, 0, 1, -1, 3, 10**9, -(10**18), 2**63, 10**40, 0.5, -0.0, 1e-300, 1e300]


def load_mutated(folder, rng):
    """Load an agent of which JSON, header or bytes were changed; only our own errors may come out."""
    data, weights = contents(folder), (folder / "model.safetensors").read_bytes()
    kind = rng.choice(["json", "json", "header", "bytes", "text"])
    for _ in range(rng.choice([1, 1, 2, 5])):
        if kind == "json":
            data = mutate(data, rng, [*VALUES, *TEXTS], TEXTS)
        elif kind == "header":
            size = struct.unpack("<Q", weights[:8])[0]
            with suppress(ValueError):
                changed = mutate(json.loads(weights[8 : 8 + size]), rng, [*VALUES, *TEXTS], TEXTS)
                weights = header_bytes(changed, weights[8 + size :])
        elif kind == "bytes":
            at, added = rng.randrange(min(len(weights), 2000)), rng.randbytes(rng.choice([0, 1, 4]))
            weights = weights[:at] + added + weights[at + rng.choice([0, 1, 4]) :]
    if kind in ("header", "bytes"):
        put_weights(folder, weights)
    elif kind == "json" and isinstance(data, dict):
        write(folder, data)
    else:
        text = bytearray((folder / "config.json").read_bytes())
        text[rng.randrange(len(text))] = rng.randrange(256)
        (folder / "config.json").write_bytes(text)
    with suppress(VoidrlError):
        agent = voidrl.from_pretrained(folder, device="cpu")
        voidrl.save_pretrained(agent, folder.parent / "copy")


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 1500), marks=pytest.mark.slow)], ids=len)
def test_mutated_agents_raise_only_our_errors(original, tmp_path, seeds):
    for seed in seeds:
        folder = shutil.copytree(original, tmp_path / "agent", dirs_exist_ok=True)
        try:
            load_mutated(folder, random.Random(seed))
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
