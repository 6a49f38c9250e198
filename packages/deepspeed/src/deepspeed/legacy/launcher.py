"""Where the names around the launcher are found under their old import paths."""

from __future__ import annotations

_OWN_RUNNERS = (
    "!runners render commands here: deepspeed.launcher.runners.{}().commands(job); "
    "this one's constructor takes other arguments"
)
_RUNNERS = {
    "PDSHRunner": "Pdsh",
    "OpenMPIRunner": "OpenMpi",
    "MPICHRunner": "Mpich",
    "IMPIRunner": "IntelMpi",
    "MVAPICHRunner": "Mvapich",
    "SlurmRunner": "Slurm",
    "MultiNodeRunner": "Runner",
}

NAMES: dict[str, dict[str, str]] = {
    "deepspeed.launcher.launch": {
        "main": "deepspeed.launcher.local:main",
        "parse_args": "!use deepspeed.launcher.local.main",
        "terminate_process_tree": "deepspeed.launcher.tree:kill_descendants",
    },
    "deepspeed.launcher.multinode_runner": {
        old: _OWN_RUNNERS.format(new) for old, new in _RUNNERS.items()
    },
    "deepspeed.launcher.constants": {
        "PDSH_LAUNCHER": "deepspeed.launcher.runners:Pdsh.name",
        "OPENMPI_LAUNCHER": "deepspeed.launcher.runners:OpenMpi.name",
        "MPICH_LAUNCHER": "deepspeed.launcher.runners:Mpich.name",
        "IMPI_LAUNCHER": "deepspeed.launcher.runners:IntelMpi.name",
        "MVAPICH_LAUNCHER": "deepspeed.launcher.runners:Mvapich.name",
        "SLURM_LAUNCHER": "deepspeed.launcher.runners:Slurm.name",
    },
    "deepspeed.constants": {
        "TORCH_DISTRIBUTED_DEFAULT_PORT": "deepspeed.launcher.options:DEFAULT_PORT",
        "CROSS_RANK": "deepspeed.environment:CROSS_RANK",
        "CROSS_SIZE": "deepspeed.environment:CROSS_SIZE",
        "LOCAL_RANK": "deepspeed.environment:LOCAL_RANK",
    },
}
