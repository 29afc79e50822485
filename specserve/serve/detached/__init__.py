"""Servers that outlive the command that started them: state on disk, nothing of ours on the request path."""
