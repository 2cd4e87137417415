"""Timing on a GPU: captured graphs, and many cases that compile at once but are timed in turn."""

import multiprocessing
import os
import statistics
import time
import traceback

import torch


def capture(function, times=1):
    """A graph of some calls."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            function()
    torch.cuda.synchronize()
    return graph


def milliseconds(graph, times=1, repeats=20):
    """Median time of a call in a captured graph."""
    for _ in range(3):
        graph.replay()
    taken = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end) / times)
    return statistics.median(taken)


def work(pipe, prepare, args):
    """A process: prepares, says so, waits for its turn, measures."""
    try:
        measure = prepare(*args)
        pipe.send("ready")
        pipe.recv()
        pipe.send(measure())
    except Exception:
        pipe.send({"failed": traceback.format_exc()[-1500:]})


def run_all(prepare, jobs, patience=240.0, tell=None):
    """Results of all jobs, by name; one that fails or hangs leaves the others alone.

    Args:
        prepare: From a job's arguments to a function that measures, without arguments.
        jobs: Arguments by name.
        patience: Seconds in which all must be prepared; those that are not are left out.
        tell: Is given each name and result as it comes.
    """
    deadline = time.monotonic() + patience
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")  # for each of many processes
    context = multiprocessing.get_context("spawn")
    started = {}
    for label, args in jobs.items():
        pipe, end = context.Pipe()
        process = context.Process(target=work, args=(end, prepare, args), daemon=True)
        process.start()
        end.close()
        started[label] = (pipe, process)
    results = {}
    for label, (pipe, process) in started.items():  # all are ready before the first is measured
        try:
            left = max(deadline - time.monotonic(), 0)
            said = pipe.recv() if pipe.poll(left) else {"failed": "not ready in time"}
        except EOFError:
            said = {"failed": "the process died"}
        if said != "ready":
            results[label] = said
            process.kill()
    for label, (pipe, process) in started.items():
        if label not in results:
            try:
                pipe.send("go")
                results[label] = pipe.recv() if pipe.poll(60) else {"failed": "no answer in time"}
            except (EOFError, OSError):
                results[label] = {"failed": "the process died"}
        process.kill()
        if tell is not None:
            tell(label, results[label])
    return {label: results[label] for label in jobs}


def bandwidth():
    """Bytes a second that an elementwise kernel reads and writes."""
    x = torch.randn(2**29, device="cuda")
    y = torch.empty_like(x)
    return 2 * x.nbytes / (milliseconds(capture(lambda: torch.neg(x, out=y))) / 1e3)
