"""The page of `voidrl report --watch`: for browsers on this machine, and only what is in the table."""

import http.client
import json
import shutil
import socket
import threading
import urllib.error
import urllib.request

import pytest
from synthetic_runs import write_experiment, write_run

from voidrl.cli import main as cli
from voidrl.errors import RunFolderError
from voidrl.report import serve
from voidrl.report.live import Watch


@pytest.fixture
def watched(tmp_path):
    root = tmp_path / "root"
    write_experiment(root, [{"folder": "a/seed1"}, {"folder": "a/seed2", "seed": 2}], title="A & <b>")
    run = write_run(root / "a/seed1", rows=[{"step": 50, "train/reward_mean": 1.0}])
    (run / "log.txt").write_text("first line\nlast line\n")
    (tmp_path / "secret.txt").write_text("secret")
    return root


@pytest.fixture
def server(watched):
    with serve.make_server(Watch([watched]), 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def fetch(server, path, **headers):
    request = urllib.request.Request(serve.address_of(server).rstrip("/") + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers


def test_the_table_and_its_data(server, watched):
    assert server.server_address[0] == "127.0.0.1"
    code, page, headers = fetch(server, "/")
    assert code == 200
    assert "<title>A &amp; &lt;b&gt; · voidrl watch</title>" in page
    assert "http://" not in page  # nothing comes from elsewhere
    assert "https://" not in page
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    code, text, headers = fetch(server, "/status.json")
    assert (code, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
    assert json.loads(text)["summary"] == Watch([watched]).look().to_json()["summary"]
    assert [run["name"] for run in json.loads(text)["runs"]] == ["a/seed1", "a/seed2"]


def test_reports_are_made_again_when_runs_have_changed(server, watched, monkeypatch):
    made = []
    write = serve.write_report
    monkeypatch.setattr(serve, "write_report", lambda *a, **k: made.append(a[0]) or write(*a, **k))
    for _ in range(2):
        code, page, _ = fetch(server, "/report?run=a%2Fseed1")
        assert code == 200
        assert "voidrl report" in page
    assert made == [[watched / "a/seed1"]]
    fetch(server, "/report")
    assert made[1:] == [[watched]]
    with (watched / "a/seed1/metrics.jsonl").open("a") as file:
        file.write('{"step": 60, "train/reward_mean": 2.0}\n')
    monkeypatch.setattr(serve.time, "monotonic", lambda: 1e9)  # long after the last one
    fetch(server, "/report")
    assert len(made) == 3
    code, text, _ = fetch(server, "/report?run=a/seed2")
    assert (code, "no run" in text or "nothing" in text) == (404, True)  # it has not started


def test_logs_of_runs_in_the_table_and_no_other_file(server, watched, tmp_path, monkeypatch):
    code, text, headers = fetch(server, "/log?run=a/seed1")
    assert (code, text) == (200, "first line\nlast line\n")
    assert headers["Content-Type"].startswith("text/plain")
    assert headers["X-Content-Type-Options"] == "nosniff"
    monkeypatch.setattr(serve, "LOG_BYTES", 12)
    assert fetch(server, "/log?run=a/seed1")[1].endswith("log.txt\nlast line\n")
    asked = ["../secret.txt", "..%2Fsecret.txt", "a/seed1/../../../secret.txt", "/etc/passwd", "a", ""]
    for name in asked:
        code, text, _ = fetch(server, f"/log?run={name}")
        assert code == 404
        assert "there is no run" in text
    assert fetch(server, "/log?run=a/seed2")[:2] == (404, "a/seed2 has no log yet\n")
    for path in ("/../secret.txt", "/%2e%2e/secret.txt", "/a/seed1/log.txt", "//etc/passwd", "//["):
        connection = http.client.HTTPConnection(*server.server_address[:2])
        connection.request("GET", path)
        assert connection.getresponse().status == 404
        connection.close()
    log = watched / "a/seed1/log.txt"
    log.unlink()
    log.symlink_to(tmp_path / "secret.txt")
    code, text, _ = fetch(server, "/log?run=a/seed1")
    assert code == 404
    assert "outside of what is watched, so it is not shown" in text
    logs = watched / "logs/a/seed1.log"  # of the cell's process, in the experiment's folder
    logs.parent.mkdir(parents=True)
    logs.write_text("of the cell\n")
    with serve.make_server(Watch([watched / "a"]), 0) as of_a_part:  # the folder of its task alone
        assert of_a_part.log("seed1") == b"of the cell\n"
        logs.unlink()
        logs.symlink_to(tmp_path / "secret.txt")
        of_a_part._seen = None
        with pytest.raises(RunFolderError, match="outside of what is watched"):
            of_a_part.log("seed1")


def test_a_folder_that_vanishes_is_a_sentence_on_the_page_until_it_is_back(server, watched, monkeypatch):
    monkeypatch.setattr(serve, "LOOK_SECONDS", 0.0)
    assert fetch(server, "/status.json")[0] == 200
    watched.rename(watched.with_name("elsewhere"))
    code, text, _ = fetch(server, "/status.json")
    assert (code, text) == (404, f"{watched} is no longer there: it was removed or renamed\n")
    watched.with_name("elsewhere").rename(watched)
    assert fetch(server, "/status.json")[0] == 200


def test_only_this_machine_may_ask(server):
    port = server.server_address[1]
    own = (f"localhost:{port}", f"127.0.0.1:{port}", "localhost:9000", "localhost")  # 9000: an SSH tunnel
    for host in own:
        assert fetch(server, "/status.json", Host=host)[0] == 200
    foreign = ["evil.example", f"evil.example:{port}", "localhost.evil.example:80", "127.0.0.1.evil:80", ""]
    for host in foreign:
        for path in ("/", "/status.json", "/log?run=a/seed1"):
            code, text, _ = fetch(server, path, Host=host)
            assert code == 403
            assert "seed1" not in text
    assert fetch(server, "/report", **{"Sec-Fetch-Site": "cross-site"})[0] == 403
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/status.json")
    assert connection.getresponse().status == 501
    connection.close()


def test_bad_input_is_one_sentence(watched, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cases = {
            ("--watch", "--port", str(port)): f"port {port} of 127.0.0.1 is in use: choose another one with",
            ("--watch", "--port", "70000"): "--port = 70000 cannot be used: expected a number below 65536",
            ("--port", "80"): "--port 80 cannot be used: it is for --watch",
            ("--watch", "-o", "x.html"): "--out cannot be used with --watch, which writes no file",
            ("--watch", "--no-media"): "--no-media cannot be used with --watch",
        }
        for words, sentence in cases.items():
            assert cli.main(["report", str(watched), *words]) == 2
            said = capsys.readouterr().err
            assert sentence in said
            assert said.count("\n") == 1
    assert cli.main(["report", str(tmp_path / "empty"), "--watch"]) == 2
    assert "holds no runs" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_in_a_browser(server, watched, width):
    browsers = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("the browser tests need an installed Chromium")
    bad = "<img src=x onerror=alert(1)> " + "long_" * 40
    write_run(watched / "b" / "seed1", error=bad, rows=[{"step": 9}])
    errors = []
    with browsers.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": width, "height": 800})
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("dialog", lambda dialog: errors.append(dialog.message))
        page.goto(serve.address_of(server))
        page.locator("#rows tr").nth(2).wait_for()
        assert page.locator("tr.failed .why").inner_text() == bad.strip()
        assert page.locator("#rows img").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") == width
        page.locator("[data-group=waiting]").click()
        assert page.locator("#rows tr").count() == 1
        assert errors == []
        watched.rename(watched.with_name("elsewhere"))
        page.locator("#gone").wait_for(timeout=60_000)
        assert page.locator("#gone").inner_text().endswith("removed or renamed. What is shown is old.")
        browser.close()
