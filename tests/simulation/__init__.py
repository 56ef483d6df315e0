"""The seeded simulation: the engine on a store that crashes and fails, against a plain model of what it must do."""
