"""The programs that start ranks on many machines, by the name that --launcher takes."""

from deepspeed.launcher.runners.base import ClusterJob, Runner
from deepspeed.launcher.runners.hydra import IntelMpi, Mpich, Mvapich
from deepspeed.launcher.runners.openmpi import OpenMpi
from deepspeed.launcher.runners.pdsh import Pdsh
from deepspeed.launcher.runners.slurm import Slurm
from deepspeed.launcher.runners.ssh import Ssh

__all__ = [
    "ClusterJob",
    "IntelMpi",
    "Mpich",
    "Mvapich",
    "OpenMpi",
    "Pdsh",
    "Runner",
    "Slurm",
    "Ssh",
]
