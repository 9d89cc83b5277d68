"""What a plug-in's process says about itself."""

from __future__ import annotations

from turndock.plugin.v1 import DescribeRequest, DescribeResponse, ProbeRequest, ProbeResponse, plugin_pb2
from turndock.remote.calls import Remote, Unary


class RemotePlugin(Remote, service=plugin_pb2.DESCRIPTOR.services_by_name["Plugin"]):
    """`turndock.plugin.v1.Plugin` over a channel."""

    describe: Unary[DescribeRequest, DescribeResponse]
    probe: Unary[ProbeRequest, ProbeResponse]
