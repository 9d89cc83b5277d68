"""What remembers: SessionStores and ArtifactStores."""
