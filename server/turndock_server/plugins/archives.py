"""The artifact stores that events may be archived in: the server's own, and those of plug-ins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from turndock.plugin.v1 import ContractKind
from turndock.ports import ArtifactStore
from turndock_server.plugins.dock import Dock

OWN: Final = "artifacts"
"""Name of the server's own artifact store: the table of the configuration that describes it."""


class Archives(Mapping[str, ArtifactStore]):
    """Artifact stores by name. A plug-in's is there as soon as the plug-in has said that it has one."""

    def __init__(self, own: ArtifactStore, docks: Mapping[str, Dock]) -> None:
        self._own = own
        self._docks = docks

    def __getitem__(self, name: str) -> ArtifactStore:
        if name == OWN:
            return self._own
        dock = self._docks[name]
        if not dock.serves(ContractKind.CONTRACT_KIND_ARTIFACT_STORE):
            raise KeyError(name)
        return dock.artifact_store()

    def __iter__(self) -> Iterator[str]:
        yield OWN
        for name, dock in self._docks.items():
            if name != OWN and dock.serves(ContractKind.CONTRACT_KIND_ARTIFACT_STORE):
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)
