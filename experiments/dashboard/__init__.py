"""Dashboards in wandb: what they consist of (layout), as wandb's own objects (objects), and sending them (publish)."""
