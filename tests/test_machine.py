"""The memory and cores that are left for a process in a container."""

from voidrl.system import machine

GB = 10**9


def write(root, files):
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal:       64000000 kB\nMemFree: 1 kB\nMemAvailable:   50000000 kB\n"}


def test_a_container_has_what_its_groups_allow(tmp_path):
    free = machine.memory(write(tmp_path / "bare", MEMINFO))
    assert (free.total, free.available, free.limit) == (64_000_000 * 1024, 50_000_000 * 1024, None)
    two = write(tmp_path / "two", {
        **MEMINFO,
        "proc/self/cgroup": "0::/job/step\n",
        "sys/fs/cgroup/job/memory.max": f"{8 * GB}\n",
        "sys/fs/cgroup/job/memory.current": f"{3 * GB}\n",
        "sys/fs/cgroup/job/memory.stat": f"anon {2 * GB}\ninactive_file {1 * GB}\n",
        "sys/fs/cgroup/job/step/memory.max": "max\n",
        "sys/fs/cgroup/job/step/cpu.max": "50000 100000\n",
        "sys/fs/cgroup/cpu.max": "max 100000\n",
    })  # fmt: skip
    assert machine.memory(two) == machine.Memory(64_000_000 * 1024, 6 * GB, 8 * GB)
    assert machine.cores(two).usable == 0.5


def test_the_nearest_folder_that_is_there(tmp_path):
    assert machine.existing(tmp_path / "runs" / "new") == tmp_path
    assert machine.existing(tmp_path) == tmp_path


def test_ulimit_v_limits_the_memory_that_is_available(monkeypatch):
    assert machine.memory().available > 10**6
    monkeypatch.setattr(
        machine.resource, "getrlimit", lambda what: (10**6, 10**6)
    )  # less than it has already
    assert machine.memory().available == 0
