"""The command `deepspeed`: starts one process a device on one or many machines."""
