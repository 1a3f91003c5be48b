"""`voidrl doctor` finds what is missing, broken or hanging, and one thing never hides another."""

import importlib.metadata
import io
import json
import os
import shutil
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from pseudo_terminals import PseudoTerminal, widest

from voidrl import machine
from voidrl.cli import main as cli
from voidrl.doctor import checkup as doctor
from voidrl.doctor import probes as doctor_probes
from voidrl.doctor.checkup import examine, is_ready, summary
from voidrl.doctor.probes import MARK, Finding
from voidrl.envs import gl

GB = 10**9


def findings_of(capsys):
    """What a probe has said in this process."""
    told = [json.loads(line.removeprefix(MARK)) for line in capsys.readouterr().out.splitlines()]
    return [Finding(**one) for one in told if "begun" not in one]


def ok(*names):
    return [Finding(name, "ok", "there") for name in names]


ALL = ok(*doctor.NAMES)


# The whole


def test_the_doctor_of_this_machine(capsys, tmp_path):
    code = cli.main(["doctor", "--json", "--out", str(tmp_path / "runs")])
    said = json.loads(capsys.readouterr().out)
    assert code == 0
    assert said["ready"] is True
    assert said["summary"].startswith("Ready: Gymnasium")
    found = {one["name"]: one for one in said["findings"]}
    assert len(found) == len(said["findings"])
    assert set(found) <= set(doctor.NAMES)
    assert {"Python", "PyTorch", "Gymnasium", "CUDA", "Atari", "DMControl", "OpenGL", "video"} <= set(found)
    for one in found.values():
        assert one["found"]
        assert one["state"] == "ok" or one["fix"], one
    assert not (tmp_path / "runs").exists()  # it leaves nothing behind


@pytest.mark.parametrize(
    ("changed", "code", "sentence"),
    [
        ({}, 0, "Ready: Gymnasium, Atari, DMControl from states and pixels, on the GPU."),
        (
            {"Atari": "warn", "OpenGL": "warn", "CUDA": "warn", "video": "warn"},
            0,
            "Ready: Gymnasium, DMControl from states, on the CPU; "
            "not here: Atari, DMControl from pixels, videos.",
        ),
        (
            {"DMControl": "warn", "OpenGL": "warn"},
            0,
            "Ready: Gymnasium, Atari, on the GPU; not here: DMControl.",
        ),
        ({"PyTorch": "fail", "Atari": "warn"}, 1, "Not ready, because of PyTorch. Begin with: mend it"),
    ],
)
def test_the_last_sentence_and_the_exit_code(capsys, monkeypatch, changed, code, sentence):
    findings = [
        Finding(one.name, changed.get(one.name, "ok"), "there", "mend it" if one.name in changed else "")
        for one in ALL
    ]
    monkeypatch.setattr(doctor, "examine", lambda folder: iter(findings))
    assert cli.main(["doctor"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == sentence == summary(findings)
    for one in findings:
        line = next(line for line in lines if f" {one.name} " in line)
        assert line.split()[0] == one.state
        assert line.endswith("fix: mend it") == bool(one.fix)


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_on_a_terminal_signs_stand_first_and_lines_fit(monkeypatch, columns):
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "COLUMNS", "CI"):
        monkeypatch.delenv(name, raising=False)
    long = "found by trying, with a sentence about it that no narrow terminal has the room for"
    findings = [
        Finding("Python", "ok", long),
        Finding("Atari", "warn", "missing", "pip install 'voidrl[atari]'"),
        Finding("disk", "fail", "full", "rm"),
    ]
    monkeypatch.setattr(doctor, "examine", lambda folder: iter(findings))
    with PseudoTerminal(columns) as terminal:
        monkeypatch.setattr(sys, "stdout", terminal.stream)
        assert cli.main(["doctor"]) == 1
        monkeypatch.setattr(sys, "stdout", sys.__stdout__)
        text, lines = terminal.text(), terminal.lines()
    assert "\x1b[32m✓" in text
    assert widest(lines) <= columns
    assert [line[0] for line in lines if line[0] in "✓!✗"] == ["✓", "!", "✗"]
    assert "pip install 'voidrl[atari]'" in text  # in one piece


def test_a_stream_without_unicode_gets_words(monkeypatch):
    file = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(file, encoding="ascii"))
    finding = Finding("disk", "warn", "in /données", "mend …")
    monkeypatch.setattr(doctor, "examine", lambda folder: iter([finding]))
    assert cli.main(["doctor"]) == 0
    sys.stdout.flush()
    line = file.getvalue().decode().splitlines()[0]
    assert line.split() == ["warn", "disk", "in", "/donn?es;", "fix:", "mend", "..."]


# What crashes or hangs


@pytest.fixture
def only_atari(monkeypatch, tmp_path):
    """Only ALE is looked at, and its package has this source."""
    monkeypatch.setattr(doctor, "PROBES", {"atari": doctor_probes.PROBES["atari"]})
    monkeypatch.syspath_prepend(tmp_path)

    def run(source, timeout_s=30.0):
        (tmp_path / "ale_py").mkdir()
        (tmp_path / "ale_py" / "__init__.py").write_text(source)
        return {one.name: one for one in examine(tmp_path, timeout_s)}

    return run


def test_an_import_that_fails_is_one_finding_among_the_others(only_atari):
    found = only_atari("raise ImportError('libale.so: cannot open shared object file')")
    assert found["Atari"] == Finding(
        "Atari",
        "warn",
        "does not work: libale.so: cannot open shared object file",
        "pip install 'voidrl[atari]'",
    )
    assert found["folder"].state == "ok"
    assert is_ready(found.values())


def test_a_crash_takes_only_its_own_process(only_atari):
    found = only_atari("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert found["Atari"].found == "its process was ended by SIGSEGV"
    assert found["Atari"].state == "warn"


def test_what_hangs_is_ended_with_all_that_it_started(only_atari, tmp_path):
    mark = tmp_path / "child"
    source = "import pathlib, subprocess, time; child = subprocess.Popen(['sleep', '100']); "
    source += f"pathlib.Path({str(mark)!r}).write_text(str(child.pid)); time.sleep(100)"
    began = time.monotonic()
    found = only_atari(source, timeout_s=1.5)
    assert time.monotonic() - began < 20
    assert found["Atari"].found == "no answer for 1.5 s"
    assert "-m voidrl.doctor.probes atari" in found["Atari"].fix
    child = int(mark.read_text())
    for _ in range(100):  # it is reaped by whoever has adopted it
        try:
            if Path(f"/proc/{child}/stat").read_text().split()[2] == "Z":
                break
            os.kill(child, 0)
        except OSError:
            break
        time.sleep(0.05)
    else:
        pytest.fail("it goes on")


def test_nobody_waits_for_the_rest(only_atari, tmp_path):
    (tmp_path / "ale_py").mkdir()
    (tmp_path / "ale_py" / "__init__.py").write_text("import time; time.sleep(100)")
    began = time.monotonic()
    looking = examine(tmp_path)
    assert next(looking).name == "Python"
    looking.close()  # as Ctrl-C does
    assert time.monotonic() - began < 20


def test_what_was_said_before_a_crash_is_kept():
    lines = [
        {"begun": "PyTorch"},
        {"name": "PyTorch", "state": "ok", "found": "2", "fix": ""},
        {"begun": "CUDA"},
    ]
    said = "noise\n" + "".join(f"{MARK}{json.dumps(line)}\n" for line in lines) + f"{MARK}{{torn"
    process = SimpleNamespace(communicate=lambda timeout: (said, "why\nkilled\n"), returncode=-signal.SIGKILL)
    assert doctor._await("torch", process, 1.0) == [
        Finding("PyTorch", "ok", "2", ""),
        Finding("CUDA", "warn", "its process was ended by SIGKILL", doctor_probes.install("CUDA")),
    ]
    process = SimpleNamespace(communicate=lambda timeout: ("", "No module named voidrl\n"), returncode=1)
    broken = doctor._await("torch", process, 1.0)
    assert [(one.name, one.state) for one in broken] == [("PyTorch", "fail")]
    assert broken[0].found.endswith("with exit status 1: No module named voidrl")


def test_a_check_that_raises_is_a_finding(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "PROBES", {})
    monkeypatch.setattr(machine, "memory", lambda: 1 / 0)
    monkeypatch.setattr(doctor, "ThreadPoolExecutor", lambda size: nullcontext())
    found = {one.name: one for one in examine(tmp_path)}
    assert found["memory"].found == "could not be looked at: division by zero"
    assert found["disk"].state == "ok"


# What is missing


def test_packages_that_are_not_there(monkeypatch, capsys):
    monkeypatch.setattr(doctor_probes.importlib.util, "find_spec", lambda name: None)
    for probe in doctor_probes.TRIED.values():
        probe()
    found = {one.name: one for one in findings_of(capsys)}
    assert found["Atari"] == Finding(
        "Atari", "warn", "ale-py is not installed", "pip install 'voidrl[atari]'"
    )
    assert found["DMControl"].fix == "pip install 'voidrl[dmc]'"
    assert found["video"].fix == "pip install 'voidrl[video]'"
    assert found["OpenGL"].state == "warn"
    assert found["PyTorch"].state == found["Gymnasium"].state == "fail"
    assert not is_ready(found.values())


def test_a_version_that_voidrl_was_not_made_for(monkeypatch, capsys):
    required = ["torch<3,>=2.11", "ale-py<1,>=0.11; extra == 'atari'", "rich (>=13.7,<16)"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: required)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.9.1")
    assert doctor_probes.version_of("Atari", "ale-py", "os") is None
    assert findings_of(capsys) == [
        Finding("Atari", "warn", "ale-py 0.9.1 was not tried with voidrl", "pip install 'ale-py>=0.11,<1'")
    ]
    assert doctor._package().state == "fail"
    assert doctor._package().fix == "pip install 'rich>=13.7,<16'"
    assert doctor_probes.fits("2.13.0+cpu", ">=2.11,<3")
    assert not doctor_probes.fits("3.0.0", ">=2.11,<3")
    assert not doctor_probes.fits("2.9", ">=2.11,<3")


def test_no_opengl(monkeypatch, capsys):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(gl, "TIMEOUT_S", gl.TIMEOUT_S)
    monkeypatch.setattr(gl, "_failure", lambda name: f"no lib{name}")
    monkeypatch.setattr(doctor_probes.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(shutil, "which", lambda program: program if program == "apt-get" else None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    doctor_probes.probe_gl()
    (found,) = findings_of(capsys)
    assert found.found == "renders nothing (egl: no libegl; osmesa: no libosmesa)"
    assert found.fix == "sudo apt-get install -y libegl1 libgl1 libosmesa6"
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    doctor_probes.probe_gl()
    assert findings_of(capsys)[0].fix == "unset MUJOCO_GL"


def test_no_ffmpeg(monkeypatch, capsys):
    pytest.importorskip("imageio_ffmpeg")
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", "/bin/false")
    doctor_probes.probe_tools()
    (found,) = [one for one in findings_of(capsys) if one.name == "video"]
    assert found.state == "warn"
    assert "/bin/false encodes nothing" in found.found
    assert "ffmpeg" in found.fix


def fake_torch(**cuda):
    return SimpleNamespace(
        cuda=SimpleNamespace(**cuda), version=SimpleNamespace(cuda="13.0"), device=lambda *place: place
    )


@pytest.mark.parametrize(
    ("driver", "build", "hidden", "found", "fix"),
    [
        (None, "13.0", None, "no NVIDIA GPU", "voidrl list presets"),
        ("580.1, H200", None, None, "PyTorch was built without CUDA", "pip install --force-reinstall 'torch"),
        ("580.1, H200", "13.0", "", "CUDA_VISIBLE_DEVICES=''", "unset CUDA_VISIBLE_DEVICES"),
        ("470.2, H200", "13.0", None, "does not see the GPU (470.2, H200)", "update the driver"),
    ],
)
def test_a_gpu_that_cannot_be_used(monkeypatch, capsys, driver, build, hidden, found, fix):
    monkeypatch.setattr(doctor_probes, "nvidia_driver", lambda: driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    torch = fake_torch(is_available=lambda: False)
    torch.version.cuda = build
    doctor_probes.try_cuda(torch)
    (one,) = findings_of(capsys)
    assert one.state == "warn"
    assert found in one.found
    assert fix in one.fix


def test_a_gpu_whose_kernels_and_graphs_do_not_work(monkeypatch, capsys):
    def broken(*given):
        raise RuntimeError("Failed to find C compiler.\nPlease specify one")

    monkeypatch.setattr(doctor_probes, "nvidia_driver", lambda: "580.65, NVIDIA H200")
    monkeypatch.setattr(doctor_probes, "try_kernels", broken)
    monkeypatch.setattr(doctor_probes, "try_graphs", broken)
    torch = fake_torch(
        is_available=lambda: True,
        current_device=lambda: 0,
        mem_get_info=lambda device: (143 * GB, 151 * GB),
        get_device_capability=lambda device: (9, 0),
        device_count=lambda: 2,
        get_device_name=lambda device: "NVIDIA H200",
    )
    torch.ones = lambda size, device: SimpleNamespace(sum=lambda: SimpleNamespace(item=lambda: size))
    doctor_probes.try_cuda(torch)
    cuda, kernels, graphs = findings_of(capsys)
    assert cuda.state == "ok"
    assert cuda.found == (
        "NVIDIA H200 (1 of 2; a run takes one), 143 of 151 GB free, capability 9.0, bf16, driver 580.65"
    )
    assert kernels.found == "does not work: Failed to find C compiler"
    assert "gcc" in kernels.fix
    assert graphs == Finding(
        "CUDA graphs", "warn", "does not work: Failed to find C compiler", "take --engine eager"
    )


# The machine


def test_disks(monkeypatch, tmp_path):
    def free(gigabytes):
        usage = SimpleNamespace(total=500 * GB, used=0, free=int(gigabytes * GB))
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
        return doctor._disk(tmp_path / "not" / "yet")

    assert free(400).state == "ok"
    assert f"400.0 of 500 GB free in {tmp_path}" in free(400).found
    assert free(10).state == "warn"
    assert "atari-paper (21.2 GB)" in free(10).found
    assert "maze-demo" not in free(10).found
    assert free(0.2).state == "fail"
    assert "--out" in free(0.2).fix


def test_folders(tmp_path):
    assert doctor._folder(tmp_path / "new" / "runs").state == "ok"
    assert list(tmp_path.iterdir()) == []
    closed = doctor._folder(Path("/proc/runs"))
    assert closed.state == "fail"
    assert "/proc cannot be written" in closed.found


def test_memory_and_cores_that_are_few(monkeypatch):
    monkeypatch.setattr(machine, "memory", lambda: machine.Memory(64 * GB, 5 * GB, 8 * GB))
    found = doctor._memory()
    assert found.state == "warn"
    assert found.found.startswith("5.0 of 8.0 GB free (the container's; the machine has 64.0): less than")
    assert "atari-paper (7.1 GB), urlb-pixels (10.6 GB)" in found.found
    assert "--replay.capacity-steps" in found.fix
    monkeypatch.setattr(machine, "memory", lambda: machine.Memory(64 * GB, 60 * GB, None))
    assert doctor._memory() == Finding("memory", "ok", "60.0 of 64.0 GB free")
    monkeypatch.setattr(machine, "cores", lambda: machine.Cores(64, 1.5))
    assert doctor._cpu().state == "warn"
    assert doctor._cpu().found.startswith("64 cores, of which this process may use 1.5")


def test_limits_of_the_shell(monkeypatch):
    limits = {doctor.resource.RLIMIT_NOFILE: (256, 1024), doctor.resource.RLIMIT_AS: (-1, -1)}
    monkeypatch.setattr(doctor.resource, "getrlimit", limits.get)
    assert doctor._limits().fix == "ulimit -n 1024"
    limits[doctor.resource.RLIMIT_NOFILE] = (4096, 4096)
    assert doctor._limits().state == "ok"
    limits[doctor.resource.RLIMIT_AS] = (8 * GB, -1)
    assert doctor._limits().fix == "ulimit -v unlimited"
