"""Declared memories: resources of Compozy, profiles of Alquimia and Palimpsest's own keys, from files or mappings.

A `Resource` is what a file declares, resolved and checked. `Resources` opens memories and sessions by it.
"""

from typing import TYPE_CHECKING

from palimpsest import _names

if TYPE_CHECKING:
    from palimpsest.errors.mistakes import Mistake as Mistake
    from palimpsest.resources.collection import AsyncAgentMemory as AsyncAgentMemory
    from palimpsest.resources.collection import AsyncResources as AsyncResources
    from palimpsest.resources.collection_sync import AgentMemory as AgentMemory
    from palimpsest.resources.collection_sync import Resources as Resources
    from palimpsest.resources.definition import Resource as Resource
    from palimpsest.resources.definition import Setting as Setting
    from palimpsest.resources.definition import StorePlace as StorePlace
    from palimpsest.resources.figures import Health as Health
    from palimpsest.resources.figures import KeyCleared as KeyCleared
    from palimpsest.resources.figures import KeyList as KeyList
    from palimpsest.resources.figures import KeyPage as KeyPage
    from palimpsest.resources.figures import KeyStats as KeyStats
    from palimpsest.resources.keys import Template as Template
    from palimpsest.resources.operations import AsyncDeclaredMemory as AsyncDeclaredMemory
    from palimpsest.resources.operations_sync import DeclaredMemory as DeclaredMemory
    from palimpsest.resources.payloads import Limits as Limits
    from palimpsest.resources.sharing import AgentContext as AgentContext
    from palimpsest.resources.worked import Worked as Worked
    from palimpsest.resources.worked import WorkReport as WorkReport
    from palimpsest.resources.working import Worker as Worker

_HOMES = {
    "AgentContext": "resources.sharing",
    "AgentMemory": "resources.collection_sync",
    "AsyncAgentMemory": "resources.collection",
    "AsyncDeclaredMemory": "resources.operations",
    "DeclaredMemory": "resources.operations_sync",
    "Health": "resources.figures",
    "KeyCleared": "resources.figures",
    "KeyList": "resources.figures",
    "KeyPage": "resources.figures",
    "KeyStats": "resources.figures",
    "Limits": "resources.payloads",
    "AsyncResources": "resources.collection",
    "Mistake": "errors.mistakes",
    "Resource": "resources.definition",
    "Resources": "resources.collection_sync",
    "Setting": "resources.definition",
    "StorePlace": "resources.definition",
    "Template": "resources.keys",
    "WorkReport": "resources.worked",
    "Worked": "resources.worked",
    "Worker": "resources.working",
}

__all__ = [  # noqa: PLE0604 (the names of a literal table)
    *sorted(_HOMES),
]

if not TYPE_CHECKING:  # a type checker that saw it would believe in every name
    __getattr__, __dir__ = _names(globals(), _HOMES)
