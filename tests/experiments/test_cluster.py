"""A set of runs on workers that may be lost: the caller's folder ends as if it had trained all."""

import os
import shutil
import signal
import sys
import warnings

import pytest

from smallvit.experiments import begin, compare_set, conduct, read_outcomes
from smallvit.experiments.cluster import address_of, conduct_on_ray, read_files, write_files
from smallvit.runs import Run
from smallvit.training import resume, train
from smallvit.training.step import Stepper
from tests.experiments.conftest import TINY_WORDS
from tests.experiments.test_compare import smallvit
from tests.training.makers import arrays, assert_same_run, tiny


def test_addresses():
    assert address_of("ray") is None
    assert address_of("ray://10.0.0.5:6379") == "10.0.0.5:6379"
    for wrong in ("slurm", "ray:", "ray://", "rays", "ray:/x", ""):
        with pytest.raises(ValueError, match="ray://HOST:PORT"):
            address_of(wrong)


def test_a_run_arrives_file_by_file(tmp_path, monkeypatch):
    """At every moment of its training the copy can go on, and ends as the run itself."""
    config = tiny(
        arrays(tmp_path / "noise.npz"), "loop.every=3", "loop.checkpoint_seconds=0", steps=12
    )
    run, copy, known = tmp_path / "run", tmp_path / "copy", {}
    real, moments = Stepper.__call__, []

    def call(stepper, batch, step, **named):
        real(stepper, batch, step, **named)
        files, present = read_files(run, known)
        write_files(copy, files, present)
        if step in (2, 7):
            moments.append(shutil.copytree(copy, tmp_path / f"copy-{step}"))

    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "__call__", call)
        whole = train(config, out=run, shown=False)
    write_files(copy, *read_files(run, known))
    assert_same_run(Run.open(copy), whole)
    assert not (copy / "checkpoints").exists()
    assert read_files(run, known)[0] == {}
    for moment in moments:
        steps = [path.stem for path in (moment / "checkpoints").glob("*.json")]
        assert len(steps) == (2 if moment.name == "copy-7" else 0)
        assert_same_run(resume(moment, shown=False), whole)


def test_paths_that_lead_elsewhere(tmp_path):
    for name in ("../x", "/x", "a/b", "checkpoints/../../x", "..", "checkpoints/x.json", "a\\b"):
        with pytest.raises(ValueError, match="not a file of a run"):
            write_files(tmp_path / "run", {name: b""}, ())
    assert not (tmp_path / "run").exists()


def test_what_is_not_sent(tmp_path):
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    kept = ("run.json", "log.jsonl", "config.yaml", "checkpoints/000000007.json")
    for name in (*kept, "lock", "weights.safetensors.part", "checkpoints/000000007.json.part"):
        (folder / name).write_text(name)
    files, present = read_files(folder, {})
    assert sorted(files) == sorted(present) == sorted(kept)
    assert (next(iter(files)), list(files)[-1]) == ("run.json", "log.jsonl")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "[::1]:x", "127.0.0.1:99999999"])
def test_no_cluster_there(tmp_path, monkeypatch, address):
    with pytest.raises(ConnectionError, match="no Ray cluster at"):
        conduct_on_ray(tmp_path, address)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConnectionError, match="no Ray cluster at"):
        conduct_on_ray(tmp_path)


def test_without_ray(source, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    line = f"compare {source} --models vit_lite_2_p4 --seeds 1 --out {tmp_path}/set"
    done = smallvit(line, "--on", "ray", *TINY_WORDS)
    assert "--on ray needs ray: pip install" in str(done.exception)


def test_what_is_refused(source, tmp_path):
    line = f"compare {source} --models vit_lite_2_p4 --seeds 1 --out {tmp_path}/set"
    done = smallvit(line, "--cores", "2", *TINY_WORDS)
    assert done.exit_code == 2
    assert "--cores is for --on ray" in done.output
    done = smallvit(line, "--on", "slurm", *TINY_WORDS)
    assert "expected ray, or ray://HOST:PORT" in str(done.exception)
    assert not (tmp_path / "set").exists()


@pytest.fixture(scope="module")
def cluster():
    """Two machines of one core each, and a head without any; all of it here."""
    pytest.importorskip("ray", reason="no Ray: pip install '.[ray]'")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        warnings.simplefilter("ignore")  # Ray's own
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        yield cluster, {node.node_id: node for node in nodes}
        cluster.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_command(cluster, source, tmp_path, caplog):
    head, _ = cluster
    line = f"compare {source} --models vit_lite_2_p4,swin_tiny_p4 --seeds 2 --out {tmp_path}/set"
    done = smallvit(line, "--on", f"ray://{head.address}", *TINY_WORDS)
    assert done.exit_code == 1, done.output  # swin's windows do not fit
    assert "failed: swin_tiny_p4, seed 0" in done.output
    assert "each run has 1 cores and 0 GPUs" in caplog.text
    states = [each.state for each in read_outcomes(tmp_path / "set")]
    assert states == ["finished", "finished", "failed", "failed"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_requested_stop_keeps_what_came_back(cluster, settings, tmp_path):
    head, _ = cluster
    lasting = ("loop.checkpoint_seconds=0", "schedule.steps=400")
    whole, folder = tmp_path / "whole", tmp_path / "set"
    for each in (whole, folder):
        begin(each, compare_set(settings(*lasting), ["vit_lite_2_p4"], seeds=1))

    def arrived(member):
        if list((folder / member.folder / "checkpoints").glob("*.json")):
            os.kill(os.getpid(), signal.SIGTERM)

    assert not conduct_on_ray(folder, head.address, arrived=arrived)
    (outcome,) = read_outcomes(folder)
    assert outcome.state == "unfinished"
    assert conduct(folder)  # here, without Ray
    assert conduct(whole)
    assert_same_run(folder / outcome.member.folder, whole / outcome.member.folder)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_lost_worker_changes_nothing(cluster, settings, tmp_path):
    models, lasting = "vit_lite_2_p4,cct_2_3x1", ("loop.checkpoint_seconds=0", "schedule.steps=200")
    sets = [tmp_path / name for name in ("whole", "lost")]
    for folder in sets:
        begin(folder, compare_set(settings(*lasting), [models], seeds=2))
    whole, folder = sets
    assert conduct(whole)
    head, nodes = cluster
    places, killed, begun, ended = {}, [], [], []

    def started(member, place):
        assert os.path.isdir(place.folder)
        places[member.name] = place
        begun.append((member.name, place.folder))

    def arrived(member):
        place = places[member.name]
        if not killed and list((folder / member.folder / "checkpoints").glob("*.json")):
            killed.append(member.name)
            os.kill(place.pid, signal.SIGKILL)
            head.remove_node(nodes[place.node], allow_graceful=False)
            shutil.rmtree(place.folder)

    assert conduct_on_ray(
        folder, head.address, started=started, arrived=arrived, ended=ended.append
    )
    assert len(killed) == 1
    assert [name for name, _ in begun].count(killed[0]) == 2
    assert len({own for _, own in begun}) == len(begun) == 5  # a folder for each
    assert len({place.node for place in places.values()}) == 1  # the other machine is gone
    assert [outcome.state for outcome in ended] == ["finished"] * 4
    for ours, theirs in zip(read_outcomes(folder), read_outcomes(whole), strict=True):
        assert_same_run(ours.run, theirs.run)
        assert ours.run.evaluation() == theirs.run.evaluation()
    assert not list(folder.glob("*/checkpoints"))
