"""`python -m turndock_server` is `turndock`."""

from turndock_server.cli import main

main()
