"""A TCP proxy in front of the server that can go silent: it takes what it is sent, and nothing comes out any more."""

from __future__ import annotations

import asyncio
import threading

from tests.chaos.server import Server


class Proxy:
    """A connection that was there while it was silent stays silent for ever: no byte, no end, no reset."""

    def __init__(self, server: Server) -> None:
        self._upstream = f"{server.host}/.s.PGSQL.{server.port}"
        self._is_silent = False
        self._links: dict[asyncio.Task[None], Link] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        listening = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop)
        self._listener = listening.result()
        self.port = str(self._listener.sockets[0].getsockname()[1])

    def go_silent(self) -> None:
        def mute() -> None:
            self._is_silent = True
            for link in self._links.values():
                link.is_mute = True

        self._loop.call_soon_threadsafe(mute)

    def heal(self) -> None:
        """New connections work. The server finds out about the mute ones, as it would by its keepalives."""

        def heal() -> None:
            self._is_silent = False
            for link in self._links.values():
                if link.is_mute:
                    link.server.close()

        self._loop.call_soon_threadsafe(heal)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        me = asyncio.current_task()
        assert me is not None
        server_reader, server_writer = await asyncio.open_unix_connection(self._upstream)
        self._links[me] = link = Link(writer, server_writer, self._is_silent)
        try:
            await asyncio.gather(link.pump(reader, server_writer), link.pump(server_reader, writer))
            if link.is_mute:
                await asyncio.Event().wait()  # until the end of the proxy: not even the end of a stream is passed on
        except asyncio.CancelledError:
            pass  # a task of a stream that ends otherwise is reported
        finally:
            del self._links[me]
            for end in (writer, server_writer):
                end.close()

    async def _end(self) -> None:
        self._listener.close()
        serving = list(self._links)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


class Link:
    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter, is_mute: bool) -> None:
        self.client = client
        self.server = server
        self.is_mute = is_mute

    async def pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                if not self.is_mute:
                    target.write(data)
        except OSError:
            pass
        if not self.is_mute:
            target.close()
