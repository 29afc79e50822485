"""Kubernetes: the objects of one deployment, laid out for kustomize. Applies none of them."""
