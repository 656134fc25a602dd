"""The planner: how busy a model's accelerators stay on given links (docs/planner.md). Pure, and without torch."""
