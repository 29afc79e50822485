"""From a profile to the files of a deployment: compose, Kubernetes, systemd, Ray, SGLang."""
