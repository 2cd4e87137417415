"""What a benchmark ran on and which code it measured: for its printed line and its JSON file."""

import os
import platform
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def processor():
    """The name of this machine's CPU."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def commit():
    """The commit of the package; "-dirty" where its files were changed, "" outside a repository."""
    said = subprocess.run(["git", "describe", "--always"], cwd=ROOT, capture_output=True, text=True)
    changed = ["git", "diff", "--quiet", "HEAD", "--", "smallvit"]
    if said.returncode:
        return os.environ.get("SMALLVIT_COMMIT", "")
    return said.stdout.strip() + "-dirty" * subprocess.run(changed, cwd=ROOT).returncode


def machine():
    """Device, cores, versions and commit."""
    import torch

    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit(),
    }
