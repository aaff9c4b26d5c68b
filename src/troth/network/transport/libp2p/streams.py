"""The handover of a stream from asyncio's reader and writer, which hivemind gives us, to a connection of ours."""

import asyncio

from troth.network.transport.connection import StreamConnection


async def attach(connection: StreamConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Let the connection take over a stream, without losing bytes that have arrived already.

    The caller has to hold the writer: a stream closes when nobody does.
    """
    transport, over = writer.transport, reader.at_eof()
    assert isinstance(transport, asyncio.Transport)
    transport.pause_reading()
    reader.feed_eof()
    early = await reader.read()  # does not wait, so nothing can come in between
    transport.set_protocol(connection)
    connection.connection_made(transport)
    transport.resume_reading()
    connection.feed(early)
    if transport.is_closing():
        connection.connection_lost(None)  # the daemon hung up before we looked, and will not tell us again
    elif over:
        connection.eof_received()
