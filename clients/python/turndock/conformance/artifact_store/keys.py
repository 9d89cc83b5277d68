"""Keys are names and nothing else; partitions know nothing of each other."""

from __future__ import annotations

import uuid
from typing import Final

from turndock.conformance.artifact_store.suite import SUITE, Fixture, same_bytes
from turndock.conformance.claims import equal, holds, refused, unknown
from turndock.errors import TurndockError
from turndock.types.v1 import Scope

MAY_BE_REFUSED: Final = frozenset({"", "a\x00b"})
"""What is no key, and what not every store can keep."""

HOSTILE: Final = (
    *("../../x", "/etc/x", "a/../b", "b", "a%2f..", "a/..", ".", "..", "", "/", "//", "a//b", "a/b", "a/b/"),
    *("CON", "nul.txt", "a\\b", "C:\\x", "~", "-rf", "*", "a\x00b", "a\nb", "k" * 300, "e\u0301", "\u00e9"),
    *("Key", "key", "KEY", "key ", " key", "key.", "p", "p/versions/1", "p.part", "p.tmp", "p.json", "index"),
    *("index.sqlite3", "objects", "objects/index", ".part", ".lock", "😀", "\u202egnp.exe", "%00", "$HOME"),
)
"""Keys that mean something to file systems, shells, databases or stores, and pairs that some of these confuse."""


async def _put(fixture: Fixture, key: str, data: bytes) -> bool:
    """Put; whether the store takes such a key."""
    try:
        await fixture.put(data, key)
    except TurndockError as error:
        equal(error.reason, "VALIDATION_ERROR", f"Key {key!r} is refused for another reason ({error}).")
        holds(key in MAY_BE_REFUSED, f"Key {key!r} is 1 to 1,024 bytes of UTF-8; it must be taken.")
        return False
    holds(key, "The empty key must be refused.")
    return True


@SUITE.case("PF-B35")
async def every_key_is_an_object_of_its_own(fixture: Fixture) -> None:
    """Whatever a key looks like, what was put under it is what is read, for two tenants who use the same keys."""
    red, blue = fixture, fixture.other()
    taken = [key for key in HOSTILE if await _put(red, key, f"red {key}".encode())]
    for key in taken:
        await refused(blue.get(key), "NOT_FOUND", f"Blue has not put {key!r} yet.")
    for key in taken:
        holds(await _put(blue, key, f"blue {key}".encode()), f"{key!r} is a key for every tenant.")
    for name, tenant in (("red", red), ("blue", blue)):
        for key in taken:
            same_bytes(await tenant.get(key), f"{name} {key}".encode(), f"{key!r} of {name} is its own.")
        equal(sorted(await tenant.keys(limit=7)), sorted(taken), f"List of {name} has each key once.")


@SUITE.case("PF-B35")
async def deleting_one_key_leaves_all_others(fixture: Fixture) -> None:
    """Delete removes what was put under exactly this key, for exactly this tenant."""
    red, blue = fixture, fixture.other()
    left = [key for key in HOSTILE if await _put(red, key, key.encode())]
    for key in left:
        await blue.put(b"blue", key)
    while left:
        gone = left.pop(len(left) // 2)
        await red.delete(gone)
        await refused(red.get(gone), "NOT_FOUND", f"{gone!r} is deleted.")
        equal(sorted(await red.keys(limit=50)), sorted(left), f"Deleting {gone!r} leaves all other rows.")
        for neighbour in left[-2:]:
            same_bytes(
                await red.get(neighbour), neighbour.encode(), f"Deleting {gone!r} leaves {neighbour!r}."
            )
        same_bytes(await blue.get(gone), b"blue", f"Blue's {gone!r} stays.")


@SUITE.case("P-13")
async def another_partition_is_as_good_as_none(fixture: Fixture) -> None:
    """An artifact of another partition answers exactly like a missing one, and cannot be deleted or listed."""
    other = fixture.other()
    missing = await unknown(other.get(), "NOT_FOUND", "A missing key is unknown.")
    await fixture.put(b"mine", session_id="ses_1")
    foreign = await unknown(other.get(), "NOT_FOUND", "A foreign key is unknown.")
    equal(foreign.message, missing.message, "The text does not tell a foreign key from a missing one.")
    equal(await other.head(), None, "A foreign row is not read.")
    await other.delete()
    same_bytes(await fixture.get(), b"mine", "A foreign Delete deletes nothing.")
    listed = await other.list("ses_1")
    equal((len(listed.artifacts), listed.total_count, listed.total_bytes), (0, 0, 0), "Nothing is listed.")
    await other.put(b"theirs", if_absent=True)
    same_bytes(await fixture.get(), b"mine", "A foreign Put replaces nothing.")
    same_bytes(await other.get(), b"theirs", "Each has its own.")


@SUITE.case("P-13")
async def the_unscoped_partition_is_one_of_its_own(fixture: Fixture) -> None:
    """A call without a scope sees what was put without a scope, not everybody's."""
    unscoped, key = fixture.within(None), f"conformance-{uuid.uuid4().hex}"
    await fixture.put(b"scoped", key)
    await unknown(unscoped.get(key), "NOT_FOUND", "Without a scope a tenant's artifact is unknown.")
    await unscoped.put(b"unscoped", key)
    try:
        same_bytes(await fixture.get(key), b"scoped", "A tenant keeps its own.")
        same_bytes(await unscoped.get(key), b"unscoped", "The unscoped partition has its own.")
    finally:
        await unscoped.delete(key)
    same_bytes(await fixture.get(key), b"scoped", "An unscoped Delete deletes nothing of a tenant.")


@SUITE.case("P-13")
async def only_the_tenant_selects_the_partition(fixture: Fixture) -> None:
    """What else a scope carries is passed on and selects nothing."""
    holds(fixture.scope is not None, "The fixture has a scope.")
    tenant = fixture.scope.tenant if fixture.scope else ""
    await fixture.put(b"bytes")
    same = fixture.within(Scope(tenant=tenant, opaque=b"user-7"))
    same_bytes(await same.get(), b"bytes", "The same tenant reads its artifact.")
    near = fixture.within(Scope(tenant=f"{tenant}/"))
    await unknown(near.get(), "NOT_FOUND", "A tenant of nearly the same name is another.")
