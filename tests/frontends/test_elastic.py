"""Workers killed in mid-step and others added: only the residuals of the dead are lost."""

import socket

import pytest
from harness import LIMIT_S, launch_elastic

HOSTS = ("localhost", "127.0.0.1", socket.gethostname())
SILENCE_S = {"torch": 30, "tensorflow": 40, "keras3": 40}


def check_elastic(framework, kills, folder, *more):
    limit_s, silence_s = LIMIT_S * (1 + kills // 5), SILENCE_S[framework]
    arguments = (framework, str(kills), str(folder), *more)
    worker = "frontends/elastic.py"
    outcome = launch_elastic(worker, HOSTS, 2, *arguments, limit_s=limit_s, silence_s=silence_s)
    results = outcome.check()
    assert len(list(folder.glob("kill.*"))) == kills
    assert len({result["weights"] for result in results}) == 1
    for result in results:
        assert result["sizes"].count(2) >= kills and result["sizes"][-1] == 3  # each came back
        # With the workers that died: the books would not notice an empty residual.
        assert result["lost"] > 0
        assert max(result["off"]) < 1e-6 * result["given"], result
        assert result["missing"] < 1e-5 * result["given"]
    return results


@pytest.mark.parametrize(
    ("framework", "kills"),
    [
        ("torch", 2),
        pytest.param("tensorflow", 1, marks=pytest.mark.full),
        pytest.param("keras3", 1, marks=pytest.mark.full),
    ],
)
def test_killed_workers_take_nothing_but_their_own_residual_along(framework, kills, tmp_path):
    check_elastic(framework, kills, tmp_path)


@pytest.mark.full
def test_so_it_is_with_gradients_on_a_device(tmp_path):
    for result in check_elastic("torch", 1, tmp_path, "device"):
        assert result["ways"] == ["device"] and result["wire"] == "device"


@pytest.mark.soak
@pytest.mark.timeout(6 * LIMIT_S)  # beyond the limit of the launch
@pytest.mark.parametrize("framework", SILENCE_S)
def test_so_it_is_over_twenty_kills_in_one_run(framework, tmp_path):
    check_elastic(framework, 20, tmp_path)
