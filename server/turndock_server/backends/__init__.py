"""What produces turns and comes with Turndock. `registry.create` finds a backend by its name."""
