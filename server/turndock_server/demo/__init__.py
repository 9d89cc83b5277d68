"""`turndock demo`: a server, a small model and three prompts, with a kill -9 in the middle."""

from turndock_server.demo.story import run as run
