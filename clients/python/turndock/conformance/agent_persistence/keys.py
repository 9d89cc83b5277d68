"""Whose a snapshot is."""

from __future__ import annotations

from turndock.conformance.agent_persistence.suite import SUITE, Fixture
from turndock.conformance.claims import equal, unknown
from turndock.jsontext import canonical
from turndock.types.v1 import Scope

STRANGE = (
    "../../x",
    "/etc/x",
    "a/../b",
    "a%2f..",
    ".",
    "CON",
    "e\u0301",
    "\u00e9",
    "Key",
    "key",
    "p",
    "p/versions/1",
    "%",
    "_",
    "c*",
)


@SUITE.case("LoadState")
async def a_snapshot_belongs_to_its_conversation(fixture: Fixture) -> None:
    """A conversation's snapshot may be loaded, and replaced, under another agent's name."""
    await fixture.save('{"n":1}', "a")
    equal(await fixture.state("renamed"), '{"n":1}', "The conversation counts, not the name.")
    await fixture.save('{"n":2}', "renamed")
    equal(await fixture.state("a"), '{"n":2}', "There is one snapshot for the conversation.")


@SUITE.case("LoadState")
async def without_a_conversation_it_belongs_to_the_agent(fixture: Fixture) -> None:
    """With an empty conversation_id the snapshot is the agent's, and no conversation's of that name."""
    await fixture.save('{"of":"agent"}', "a", conversation_id="")
    await fixture.save('{"of":"conversation"}', "b", conversation_id="a")
    equal(await fixture.state("a", ""), '{"of":"agent"}', "The agent has its own.")
    equal(await fixture.state("b", "a"), '{"of":"conversation"}', "The conversation has its own.")
    await unknown(fixture.load("b", ""), "NOT_FOUND", "Another agent has none.")


@SUITE.case("P-13")
async def partitions_do_not_see_each_other(fixture: Fixture) -> None:
    """In another partition a conversation is unknown, and what is saved under its name there changes nothing here."""
    blue = fixture.other()
    await fixture.save('{"of":"red"}')
    sentence = "Another partition's snapshot does not exist."
    await unknown(blue.load(), "NOT_FOUND", sentence)
    await unknown(fixture.within(None).load(), "NOT_FOUND", sentence)
    await blue.save('{"of":"blue"}')
    equal(await fixture.state(), '{"of":"red"}', "A write there changes nothing here.")
    equal(await blue.state(), '{"of":"blue"}', "Each partition has its own.")


@SUITE.case("P-13")
async def the_unscoped_partition_is_one_of_its_own(fixture: Fixture) -> None:
    """Without a scope there is a partition like any other: it is not all of them."""
    nobody, own = fixture.within(None), fixture.scope.tenant if fixture.scope else "c"
    await nobody.save('{"of":"nobody"}', conversation_id=own)
    equal(await nobody.state(conversation=own), '{"of":"nobody"}', "It keeps what is saved in it.")
    await unknown(fixture.load(conversation=own), "NOT_FOUND", "A tenant does not see it.")


@SUITE.case("P-13", "Scope")
async def what_is_opaque_is_no_key(fixture: Fixture) -> None:
    """The opaque part of a scope is passed on and never compared: the tenant alone says whose a snapshot is."""
    tenant = fixture.scope.tenant if fixture.scope else "t"
    await fixture.within(Scope(tenant=tenant, opaque=b"user-7")).save('{"n":1}')
    other = fixture.within(Scope(tenant=tenant, opaque=b"user-8"))
    equal(await other.state(), '{"n":1}', "Another user of the tenant finds it.")


@SUITE.case("PF-B35")
async def strange_names_are_names(fixture: Fixture) -> None:
    """Names that look like paths, patterns or each other are each a name of its own, as conversation and as agent."""
    for index, name in enumerate(STRANGE):
        await fixture.save(canonical({"conversation": index}), conversation_id=name)
        await fixture.save(canonical({"agent": index}), name, conversation_id="")
    for index, name in enumerate(STRANGE):
        conversation, agent = await fixture.state(conversation=name), await fixture.state(name, "")
        equal(conversation, canonical({"conversation": index}), f"{name!r} is itself.")
        equal(agent, canonical({"agent": index}), f"{name!r} is itself.")
