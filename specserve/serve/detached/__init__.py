"""Servers that outlive the command that started them, each watched by a process of specserve."""
