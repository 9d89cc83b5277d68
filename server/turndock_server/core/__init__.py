"""The host's heart: the turn machine, the log, the live agents. Imports neither gRPC nor SQLAlchemy."""
