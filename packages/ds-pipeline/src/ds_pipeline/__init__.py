"""Pipeline parallelism: models in stages, schedules as data, an engine that runs them."""

__version__ = "0.1.0"
