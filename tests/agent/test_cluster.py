"""Other hosts through Dask: two workers, each a process with a GPU of its own, which is the emulated one here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from card_runs import SMALL, emulated
from device_double import DOUBLE
from distributed import LocalCluster
from typer.testing import CliRunner

from agent import cli
from agent.loop.assay import Assemblers
from agent.loop.cluster import Cluster
from agent.loop.searching import SearchResult, search
from agent.proposers.synthesizer import synthesize
from evaluator.plans import Plans
from evaluator.replay import Runner
from evaluator.timing import Measured
from evaluator.trace import Traced
from knowledge_base.chips import CHIPS
from knowledge_base.errors import EnvironmentLacks, UserError
from knowledge_base.snf import decompose, parse

H200 = CHIPS["h200"]
TESTS = Path(__file__).parent.parent
(TASK,) = decompose(parse(SMALL, "target"), "v2").tasks
(CANDIDATE,) = synthesize(TASK, H200)


@contextmanager
def workers(count: int, gpu: str = "emulated") -> Iterator[LocalCluster]:
    with pytest.MonkeyPatch.context() as patch:
        emulated(patch)  # the workers' environment is this process's
        patch.setenv("GPU_OF_TESTS", gpu)
        with LocalCluster(
            n_workers=count, threads_per_worker=4, processes=True, dashboard_address=":0", silence_logs=50,
            preload=[str(TESTS / "worker_preload.py")],
        ) as cluster:  # fmt: skip
            yield cluster


@pytest.fixture(scope="module")
def two() -> Iterator[LocalCluster]:
    with workers(2) as hosts:
        yield hosts


def found(elsewhere: Cluster | None) -> tuple[SearchResult, Plans]:
    plans = Plans()
    with Runner(DOUBLE, {}, {}) as runner:
        timer, few = Measured(runner, 1), Assemblers(1)
        return search(
            CANDIDATE, TASK, H200, assemblers=few, elsewhere=elsewhere, timer=timer, plans=plans, seed=1
        ), plans


def test_two_workers_measure_too_and_their_trials_are_as_ours(
    two: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulated(monkeypatch)
    said: list[str] = []
    there: list[int] = []
    with Cluster(two.scheduler_address, H200, 1, said.append) as cluster:
        asked = cluster._asked
        monkeypatch.setattr(cluster, "_asked", lambda *question: [there.append(len(question[2])), asked(*question)][1])
        searched, plans = found(cluster)
    assert said == [f"cluster {two.scheduler_address}: 2 more with {H200.product}"]
    assert searched.verdict is None
    assert len(searched.trials) == searched.total == 16
    assert sum(there) >= 8, "the workers did a part of it"
    for trial in searched.trials:
        assert trial.timed("measured") is not None, trial.verdict
        (plan,) = plans.of(trial)
        assert isinstance(plan, Traced)
    alone, _ = found(None)
    assert {trial.plans for trial in alone.trials} == {trial.plans for trial in searched.trials}
    assert {trial.key for trial in alone.trials} == {trial.key for trial in searched.trials}


def test_where_the_workers_are_lost_the_search_goes_on_here(monkeypatch: pytest.MonkeyPatch) -> None:
    emulated(monkeypatch)
    monkeypatch.setattr("agent.loop.cluster.LOOK_S", 0.2)
    said: list[str] = []
    with workers(1) as hosts, Cluster(hosts.scheduler_address, H200, 1, said.append) as cluster:
        asked = cluster._asked

        def lost(*question: object) -> Any:
            hosts.scale(0)
            while cluster._client.nthreads():  # they leave some time after
                time.sleep(0.02)
            return asked(*question)

        monkeypatch.setattr(cluster, "_asked", lost)
        searched, _ = found(cluster)
    assert len([trial for trial in searched.trials if trial.timed("measured") is not None]) == searched.total
    assert [line.split(":")[0] for line in said[1:]] == ["the cluster is used no more"]


def test_workers_that_cannot_be_used_are_named() -> None:
    no_gpu = f"no worker can be used; tcp.*this machine has no {H200.product}"
    with workers(1, gpu="none") as hosts, pytest.raises(EnvironmentLacks, match=no_gpu):
        Cluster(hosts.scheduler_address, H200, 1, print)
    with workers(0) as hosts, pytest.raises(EnvironmentLacks, match="it has no workers"):
        Cluster(hosts.scheduler_address, H200, 1, print)


def test_a_worker_of_another_version_is_left_out(two: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.loop.cluster.evaluator_version", lambda: "another")
    with pytest.raises(EnvironmentLacks, match="another version of tilewright"):
        Cluster(two.scheduler_address, H200, 1, print)


def test_agent_search_asks_a_cluster(two: LocalCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    emulated(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("agent.commands.search_command.device_for", lambda *_: "cuda")
    monkeypatch.setattr("agent.commands.search_command.runner_for", lambda _: Runner(DOUBLE, {}, {}))
    (tmp_path / "add.py").write_text(CANDIDATE.source)
    (tmp_path / "add.snf").write_text(SMALL)
    command = ["search", "add.py", "--task", "add.snf", "--gpu", "h200", "--db", "kb.db", "--cluster"]
    done = CliRunner().invoke(cli.app, [*command, two.scheduler_address])
    assert done.exit_code == 0, done.output
    assert f"cluster {two.scheduler_address}: 2 more with {H200.product}" in done.output
    assert "times are measured for h200" in done.output


def test_a_cluster_needs_a_scheduler_and_a_gpu_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("agent.loop.cluster.CONNECT_S", 0.5)
    with pytest.raises(EnvironmentLacks, match="no scheduler answers") as raised:
        Cluster("tcp://127.0.0.1:9", H200, 1, print)
    assert "dask scheduler" in raised.value.mend
    monkeypatch.chdir(tmp_path)
    (tmp_path / "add.py").write_text(CANDIDATE.source)
    for command in (["run", "--target", "gpt2-block"], ["search", "add.py", "--task", "add"]):
        done = CliRunner().invoke(cli.app, [*command, "--device", "cpu", "--cluster", "tcp://127.0.0.1:9"])
        assert isinstance(done.exception, UserError), done
        assert "--cluster: kernels do not run on a GPU of this machine" in done.exception.what
    assert not any((tmp_path / "runs").glob("2*")), "a run was begun"
