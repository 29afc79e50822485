"""The accelerators and the host that a launch runs on."""
