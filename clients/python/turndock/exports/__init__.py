"""A session's export as text: JSON Lines that lose nothing, and its conversation as two model APIs take one.

parts = client.query().export_session(ExportSessionRequest(session_id=session_id))
async for line in json_lines(parts):
print(line)
"""

from turndock.exports.chats import anthropic_messages as anthropic_messages
from turndock.exports.chats import openai_messages as openai_messages
from turndock.exports.lines import HEADER as HEADER
from turndock.exports.lines import Record as Record
from turndock.exports.lines import json_lines as json_lines
from turndock.exports.lines import parse_line as parse_line
from turndock.exports.lines import records_of as records_of
from turndock.exports.lines import to_line as to_line
