# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ASGI middleware by which vLLM refuses new requests and finishes those that it has."""

from __future__ import annotations

import asyncio
import os

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines import vllm_drains
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines.registry import engine_of
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import processes

CHAT = "/v1/chat/completions"


class Server:
    """The middleware around an application that answers a chat when it is let go."""

    def __init__(self):
        self.go = asyncio.Event()
        self.drains = vllm_drains.Drains(self.application)

    async def application(self, scope, receive, send):
        if scope["type"] == "http" and scope["path"] == CHAT:
            await self.go.wait()
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"own"})

    async def ask(self, path, kind="http"):
        """(status, body)."""
        sent = []

        async def send(message):
            sent.append(message)

        await self.drains({"type": kind, "path": path, "headers": []}, None, send)
        return sent[0]["status"], sent[1]["body"]

    def left(self, answer):
        return engine_of({"engine": "vllm"}).requests(answer[1].decode())


def test_after_the_signal_new_requests_are_refused_and_those_that_it_has_are_counted_and_answered(monkeypatch):
    assert not any(processes.catches(pid, vllm_drains.SIGNAL) for pid in (os.getpid(), 2**22 + 1))
    clock, own = [1000.0], (200, b"own")
    monkeypatch.setattr(vllm_drains.time, "monotonic", lambda: clock[0])

    async def talk():
        server, seen = Server(), {}
        await server.ask("", "lifespan")
        seen["caught"] = processes.catches(os.getpid(), vllm_drains.SIGNAL)
        running = [asyncio.ensure_future(server.ask(CHAT)) for _number in range(2)]
        await asyncio.sleep(0)
        seen["before"] = await server.ask("/metrics")
        os.kill(os.getpid(), vllm_drains.SIGNAL)
        while not server.drains.until:
            await asyncio.sleep(0)
        seen["refused"] = await server.ask(CHAT)
        seen["health"] = await server.ask("/health")
        seen["left"] = server.left(await server.ask("/metrics"))
        server.go.set()
        seen["answers"] = await asyncio.gather(*running)
        seen["idle"] = server.left(await server.ask("/metrics/"))
        clock[0] += vllm_drains.REFUSES_S
        seen["again"] = await server.ask(CHAT)
        asyncio.get_running_loop().remove_signal_handler(vllm_drains.SIGNAL)
        asyncio.get_running_loop().remove_signal_handler(vllm_drains.CLOSE)
        return seen

    assert asyncio.run(talk()) == {
        "caught": True, "before": own, "refused": (503, vllm_drains.REFUSED), "health": own, "left": 2,
        "answers": [own, own], "idle": 0, "again": own,
    }  # fmt: skip


def test_a_port_is_closed_by_the_second_signal_and_its_connections_are_not():
    async def talk():
        server, seen = Server(), []
        await server.ask("", "lifespan")

        async def serve(reader, writer):
            writer.write(await reader.readline())
            await writer.drain()

        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        def listens():
            seen.append(any(port == one[1] for one in processes.listening_sockets()))

        listens()
        for sign in (vllm_drains.SIGNAL, vllm_drains.CLOSE):
            os.kill(os.getpid(), sign)
            await asyncio.sleep(0.1)
            listens()
        writer.write(b"still\n")
        answer = await reader.readline()
        for sign in (vllm_drains.SIGNAL, vllm_drains.CLOSE):
            asyncio.get_running_loop().remove_signal_handler(sign)
        return seen, answer

    # before, while requests are refused, after it was closed; the old connection's answer
    assert asyncio.run(talk()) == ([True, True, False], b"still\n")
