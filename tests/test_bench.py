"""Benchmarks: parts and rates, and every command writes its figures. Speed itself is not tested."""

import ast
import json
from pathlib import Path

import pytest
import torch

from voidrl import kernels
from voidrl.cli import main as cli
from voidrl.cli.benchmarks import knn, sample, train
from voidrl.cli.benchmarks import profile as parts
from voidrl.cli.benchmarks import update as updates
from voidrl.cli.benchmarks.timing import REPEATS, measure, measure_calls
from voidrl.cli.benchmarks.workloads import WORKLOADS
from voidrl.config import EnvConfig, update
from voidrl.entropy import knn_distances
from voidrl.envs.make import probe_env
from voidrl.errors import ConfigError
from voidrl.presets.presets import DEMO_ENV
from voidrl.training.build import build_config

CPU = torch.device("cpu")


def bench(*words):
    return cli.main(["bench", *" ".join(map(str, words)).split()])


def figures(path):
    document = json.loads(path.read_text())
    assert document["command"].startswith("voidrl bench ")
    assert document["date"].startswith("20")
    assert {"voidrl", "torch"} <= document["versions"].keys()
    assert document["cpu"]["model"]
    assert document["threads"] == torch.get_num_threads()
    return document["rows"]


@pytest.fixture
def small_batches(monkeypatch):
    def build(spec, layers):
        config = build_config(spec, layers)
        pieces = [kind for kind in ("learner", "representation") if getattr(config, kind).batch_size]
        return update(config, {kind: {"batch_size": 32} for kind in pieces})

    for module in (train, updates):
        monkeypatch.setattr(module, "build_config", build)


# Parts


NAMES = {  # shortened where the rest says nothing
    "convolutions": [
        "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x64",
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816wgrad_optimized_bf16>",
        "void cudnn::ops::nchwToNhwcKernel<float>", "aten::convolution_backward", "aten::mkldnn_convolution",
    ],
    "products": [
        "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", "void gemv2T_kernel_val<int, int, float, false>",
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x1>",
        "void cublasLt::splitKreduce_kernel<32>", "triton_tem_fused_addmm_relu_3", "aten::addmm", "aten::mv",
    ],
    "fused": [
        "triton_poi_fused_convolution_backward_elu_5", "triton_red_fused_native_layer_norm_sum_2",
        "graph_0_cpp_fused_add_mul_0",
    ],
    "neighbors": ["voidrl::knn_distances", "aten::_cdist_forward", "void at::native::sbtopk::gatherTopK<>"],
    "images": ["voidrl::images"],
    "optimizer": ["multi_tensor_apply_kernel<FusedAdamMathFunctor>", "aten::_foreach_lerp_"],
    "random numbers": ["distribution_elementwise_grid_stride_kernel<float, 4>", "aten::randint"],
    "copies": [
        "Memcpy DtoD (Device -> Device)", "Memset (Device)", "elementwise_kernel<direct_copy_kernel_cuda>",
        "aten::copy_",
    ],
    "other": [
        "GammaBetaBackwardCUDAKernelTemplate<float>", "reduce_kernel<512, 1, at::native::ReduceOp<float>>",
        "aten::add", "aten::index_select",
    ],
}  # fmt: skip


def test_names_tell_the_part():
    for part, names in NAMES.items():
        assert {name: parts.part_of(name) for name in names} == dict.fromkeys(names, part)
        assert part in parts.PARTS


def launched_kernels(path):
    """Names of the Triton functions that a file launches as `kernel[grid](…)`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            yield ast.unparse(node.func.value).rpartition(".")[2]


def test_every_kernel_of_ours_has_a_part():
    expected = {"knn.py": "neighbors", "images.py": "images", "conv.py": "convolutions"}
    expected |= {"accumulate.py": "other", "priorities.py": "priorities"}
    folder = Path(kernels.__path__[0])
    found = {(path.name, name) for path in folder.glob("*.py") for name in launched_kernels(path)}
    assert {path for path, _ in found} == expected.keys()
    for path, name in found:
        # Triton may append how the arguments are specialized.
        assert parts.part_of(name) == parts.part_of(f"{name}_0d1d2d3d") == expected[path], name


def test_busy_fraction():
    spans = [(0, 10), (5, 10), (30, 10), (32, 2)]  # 0–15 and 30–40, of 40
    events = [{"ts": ts, "dur": dur} for ts, dur in spans]
    assert parts.busy_fraction(events) == pytest.approx(25 / 40)
    assert parts.busy_fraction([]) is None
    trace = {
        "traceEvents": [{"ph": "X", "cat": c, "ts": 0, "dur": 1} for c in ("kernel", "gpu_memset", "cpu_op")]
    }
    assert len(parts.device_events(trace)) == 2


def test_parts_of_a_call_on_the_cpu():
    a = torch.randn(200, 200)
    found = parts.profile_updates(lambda count: [a @ a for _ in range(count)], 3, CPU)
    assert next(iter(found.milliseconds)) == "products"
    assert found.busy is None
    assert found.kernels >= 1


def test_measuring_takes_turns():
    seen = []
    runs = [lambda count: seen.append(("a", count)), lambda count: seen.append(("b", count))]
    timings = measure(runs, CPU, 1e-5, multiple=3)
    assert [name for name, _ in seen[-2 * REPEATS :]] == ["a", "b"] * REPEATS
    assert all(count % 3 == 0 for _, count in seen)
    rates = timings[0].rates("x", items_per_call=2)
    assert rates["x_min"] <= rates["x"] <= rates["x_max"]
    assert len(rates["x_repeats"]) == REPEATS
    calls = []
    assert len(measure_calls([lambda: calls.append(1)], CPU, 1e-5)) == 1
    assert len(calls) > REPEATS


# Commands


def test_update(tmp_path, capsys, small_batches):
    path, trace = tmp_path / "update.json", tmp_path / "trace.json"
    words = "update maze --device cpu --seconds 0.02 --against eager --json"
    assert bench(words, path, "--profile", trace) == 0
    said = capsys.readouterr().out
    assert all(len(text) <= 100 for text in said.splitlines())
    assert "peak measured" in said
    rows = figures(path)
    for row in rows:
        found = tuple(row[key] for key in ("engine", "workload", "precision", "busy", "peak_mib"))
        assert found == ("eager", "maze", "fp32", None, None)
        assert row["updates_per_second_min"] <= row["updates_per_second"] <= row["updates_per_second_max"]
        assert row["milliseconds"] == pytest.approx(1000 / row["updates_per_second"])
        assert {"convolutions", "products", "optimizer"} <= row["parts_ms"].keys()
        assert {"convolutions", "products", "optimizer", "neighbors"} <= row["floor"]["parts_ms"].keys()
        assert row["floor_share"] == pytest.approx(row["floor"]["milliseconds"] / row["milliseconds"])
        assert min(row["floor"]["gflop"], row["floor"]["gb"], row["start_seconds"]) > 0
    ratio = rows[0]["updates_per_second"] / rows[1]["updates_per_second"]
    assert [row["ratio"] for row in rows] == [pytest.approx(ratio), None]
    assert rows[0]["against"] == "eager"
    assert f"{rows[0]['ratio']:.2f}×" in said
    events = json.loads(trace.read_text())["traceEvents"]
    assert any(event.get("name") == "aten::convolution" for event in events)


def test_methods_are_compared_with_the_first(tmp_path, capsys, small_batches):
    path = tmp_path / "methods.json"
    words = ["--methods", "positive", "diayn", "positive", "--device", "cpu", "--seconds", 0.01]
    assert bench("update", "maze", *words, "--json", path) == 0
    said = capsys.readouterr().out
    assert all(len(text) <= 100 for text in said.splitlines())
    first, second = figures(path)  # each once
    assert (first["method"], first["relative_rate"], first["relative_flop"]) == ("positive", 1, 1)
    assert (second["method"], second["compared_with"]) == ("diayn", "positive")
    rate = second["updates_per_second"] / first["updates_per_second"]
    assert second["relative_rate"] == pytest.approx(rate)
    assert f"{second['floor']['gflop'] / first['floor']['gflop']:.0%}" in said


def test_on_policy_methods_are_left_out_with_a_sentence(capsys):
    assert bench("update", "maze", "--methods", "mepol", "--device", "cpu", "--seconds", 0.05) == 0
    assert "maze with method mepol is left out: its learner takes whole rollouts" in capsys.readouterr().err


def test_knn(tmp_path, capsys):
    path = tmp_path / "knn.json"
    words = "knn 20,20,3,4 8,0.1k,5,2 --device cpu --seconds 0.02 --against torch --json"
    assert bench(words, path) == 0
    square, wide = figures(path)
    assert (wide["n"], wide["m"], wide["d"], wide["k"]) == (8, 100, 5, 2)
    assert wide["floor"]["gflop"] == pytest.approx(3 * 8 * 100 * 5 / 1e9)
    assert square["floor"]["gflop"] == pytest.approx(3 * 190 * 3 / 1e9)  # every pair once
    assert square["ratio"] > 0
    assert "8 × 100 × 5, 2" in capsys.readouterr().out


@pytest.mark.parametrize("chunk", [7, 1000])
def test_the_reference_finds_the_same_neighbors(monkeypatch, chunk):
    monkeypatch.setattr(knn, "REFERENCE_CHUNK", chunk)
    torch.manual_seed(0)
    z, others = torch.randn(40, 6), torch.randn(10, 6)
    torch.testing.assert_close(
        knn.reference(z, z, 3), knn_distances(z, z, 3, exclude_self=True), atol=2e-3, rtol=0
    )
    torch.testing.assert_close(knn.reference(others, z, 3), knn_distances(others, z, 3), atol=2e-3, rtol=0)


def test_sample(tmp_path, monkeypatch):
    monkeypatch.setattr(sample, "STEPS", 8)
    path = tmp_path / "sample.json"
    words = ["--device", "cpu", "--batch-size", 4, "--seconds", 0.02, "--against", "torch", "--json", path]
    assert bench("sample", *words) == 0
    color, gray = figures(path)
    assert (color["frame"], color["stack"], color["batch_size"]) == ([3, 84, 84], 3, 4)
    assert (gray["frame"], gray["stack"], gray["dtype"]) == ([1, 84, 84], 4, "float32")
    assert gray["floor"]["gb"] == pytest.approx(4 * 4 * 84 * 84 * (1 + 4) / 1e9)
    assert color["stacks_per_second"] == pytest.approx(4e6 / color["microseconds"])
    assert color["ratio"] > 0


def test_prioritized_samples_against_uniform_ones(tmp_path, capsys):
    path = tmp_path / "draws.json"
    words = ["--device", "cpu", "--batch-size", 4, "--seconds", 0.02, "--entries", "3k", "--json", path]
    assert bench("sample", "--prioritized", *words) == 0
    uniform, drawn, updated = figures(path)
    assert {row["entries"] for row in (uniform, drawn, updated)} == {3000}
    assert (uniform["times_uniform"], uniform["added_microseconds"]) == (1, 0)
    assert drawn["added_microseconds"] == pytest.approx(drawn["microseconds"] - uniform["microseconds"])
    assert "prioritized" in capsys.readouterr().out


def test_train(tmp_path, capsys, small_batches):
    path = tmp_path / "train.json"
    words = ["--device", "cpu", "--num-envs", 2, "--steps", 120, "--updates-per-step", 0.5, "--json", path]
    assert bench("train", *words) == 0
    (row,) = figures(path)
    assert (row["num_envs"], row["updates_per_step"], row["engine"]) == (2, 0.5, "eager")
    assert row["env"] == "voidrl/PixelMaze-v0"
    assert 0 <= row["learner_waits"] <= 1
    assert min(row["steps_per_second"], row["updates_per_second"]) > 0
    assert 0 < row["steps"] < 120
    assert row["updates_per_second"] == pytest.approx(row["steps_per_second"] / 2, rel=0.2)
    assert "learner waits" in capsys.readouterr().out


def test_rates_of_a_run_begin_where_they_are_steady():
    first = [(100, 0, 1000, 1), (200, 50, 1, 0), (300, 100, 5, 0)]
    rows = [
        {"step": step, "updates": updates, "time/steps_per_second": rate,
         "time/updates_per_second": rate / 2, "time/learner_waits": waits}
        for step, updates, rate, waits in [*first, (400, 150, 100, 0.25), (600, 250, 50, 0.5)]
    ]  # fmt: skip
    found = train.steady_rates(rows)
    assert found["steps"] == 300
    assert found["seconds"] == pytest.approx(1 + 4)
    assert found["steps_per_second"] == pytest.approx(300 / 5)
    assert found["updates_per_second"] == pytest.approx(150 / 5)
    assert found["learner_waits"] == pytest.approx((0.25 + 4 * 0.5) / 5)
    with pytest.raises(ConfigError, match="more --steps"):
        train.steady_rates(rows[:3])


def test_env(tmp_path):
    path = tmp_path / "env.json"
    assert bench("env", "tiny_runs:Walk", "--num-envs", 1, 3, "--seconds", 0.02, "--json", path) == 0
    assert [row["num_envs"] for row in figures(path)] == [1, 3]
    assert all(row["steps_per_second"] > 0 for row in figures(path))
    assert (
        bench("env", DEMO_ENV, "--num-envs", 2, "--backend", "tensor", "--seconds", 0.02, "--json", path) == 0
    )
    assert figures(path)[0]["backend"] == "tensor"


SIZES = {  # batch sizes of the learner and the representation, and the shape of an observation
    "urlb-states": (1024, 0, (24,)), "urlb-pixels": (256, 256, (9, 84, 84)),
    "vectors": (1024, 1024, (24,)), "vectors-summed": (1024, 1024, (24,)),
    "pixels-drq": (256, 256, (9, 84, 84)), "pixels-paper": (512, 512, (9, 84, 84)),
    "discrete": (32, 512, (4, 84, 84)), "atari-fast": (256, 256, (4, 84, 84)), "maze": (64, 64, (3, 39, 39)),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_match_their_descriptions(name):
    workload = WORKLOADS[name]
    spec = workload.spec or probe_env(EnvConfig(id=DEMO_ENV))[0]
    config = build_config(spec, workload.layers)
    learner, representation, shape = SIZES[name]
    assert (config.method.name, config.phase, config.learner.batch_size) == ("apt", "pretrain", learner)
    assert spec.obs_shape == shape
    if name.startswith("vectors"):
        pieces = config.representation.name, config.learner.name, config.learner.n_step
        assert pieces == ("learner", "ddpg", 3)
        assert config.learner.intrinsic_n_step == ("summed" if name == "vectors-summed" else "single")
        assert (config.learner.encoder.feature_dim, config.method.k) == (512, 12)
    else:
        assert config.representation.batch_size == representation


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["updte"], "did you mean 'update'"),
        ([], "required"),
        (["update", "mase"], "unknown workload 'mase'; did you mean 'maze'"),
        (["update", "maze", "--seconds", "0"], "--seconds 0.0 cannot be used"),
        (["update", "maze", "--seconds", "4000"], "expected more than 0 and at most 3600"),
        (["update", "maze", "--methods", "rmd"], "unknown method 'rmd'; did you mean 'rnd'"),
        (["update", "vectors", "--methods", "all"], "cannot be used with workload vectors"),
        (["update", "--methods", "rnd"], "cannot be used with no workload"),
        (["update", "maze", "--engine", "warp"], "invalid choice: 'warp'"),
        (["update", "maze", "--device", "cpu", "--engine", "graph"], "engine = 'graph' cannot be used"),
        (["update", "maze", "discrete", "--profile", "t.json"], "holds the trace of one workload"),
        (["update", "maze", "--methods", "apt", "rnd", "--profile", "t.json"], "one method, got 2"),
        (["update", "maze", "--json", "no/such/folder.json"], "cannot be written"),
        (["update", "maze", "--device", "tpu"], "device = 'tpu'"),
        (["knn", "1,2,3"], "expected N,M,D,K"),
        (["knn", "9,9,2,9"], "9 particles have no 9 neighbors"),
        (["knn", "a,9,2,9"], "n must be a positive whole number"),
        (["sample", "--batch-size", "0"], "batch_size = 0"),
        (["sample", "--prioritized", "--against", "torch"], "leave one of them out"),
        (["train", "--steps", "10"], "--steps 10 cannot be used with 16 environments"),
        (["train", "--preset", "maze"], "did you mean 'maze-demo'"),
        (["train", "voidrl/PixelMaze-v9", "--device", "cpu"], "PixelMaze"),
        (["env", "--num-envs", "0"], "num_envs = 0"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(capsys, tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    assert bench(*words) == 2
    said = capsys.readouterr().err
    assert says in said
    assert len(said.strip().splitlines()) == 1
    assert "Traceback" not in said
