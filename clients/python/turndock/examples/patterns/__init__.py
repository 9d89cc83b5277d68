"""Ten ways to put agents to work, each a program: `python -m turndock.examples.patterns.<name>`.

With a server that docks it as a plug-in, the same program is the behavior; called by a person, it is the client that
takes the agents through a story and prints what came of it. docs/guides/patterns.md goes through them.
"""
