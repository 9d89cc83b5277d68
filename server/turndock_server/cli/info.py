"""`turndock info`."""

from turndock_server.cli.connection import Connection, connected
from turndock_server.cli.options import JsonOption
from turndock_server.cli.output import say, say_facts, say_json, say_table, to_json


@connected
async def info(host: Connection, *, as_json: JsonOption = False) -> None:
    """Say what the server is, what it offers and what is docked."""
    from turndock_server.cli.rendering import PLUGIN_COLUMNS, plugin_rows, server_facts

    answer = await host.client.info()
    if as_json:
        say_json(to_json(answer))
        return
    say_facts(server_facts(answer))
    if answer.plugins:
        say()
        say_table(PLUGIN_COLUMNS, plugin_rows(answer))
