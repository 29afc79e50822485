"""The parts of scripts/gpu_report.py."""
