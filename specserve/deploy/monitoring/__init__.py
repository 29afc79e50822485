"""Alert rules and a dashboard for Prometheus and Grafana, on vLLM's own counters: no exporter is needed."""
