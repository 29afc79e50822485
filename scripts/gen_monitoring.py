"""Write configs/monitoring/: alert rules for Prometheus and a Grafana dashboard, without any profile's promises.

python scripts/gen_monitoring.py
"""

from __future__ import annotations

from pathlib import Path

from specserve.deploy.monitoring import alert_rules, dashboard

FOLDER = Path(__file__).resolve().parents[1] / "configs" / "monitoring"


def files() -> dict[str, str]:
    """What is written, by name."""
    return {"alerts.yaml": alert_rules(), "dashboard.json": dashboard()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(FOLDER / name)
