"""Training: the LightningModule, the callbacks that make a run exact, and how processes work together."""
