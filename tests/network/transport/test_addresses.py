"""Addresses that people write, and why one cannot listen on some of them."""

import errno

import pytest

from tests.network.transport.endpoints import run, transport
from troth.network.transport.addresses import listening_failed, source_of
from troth.network.transport.base import ListenError


def test_why_listening_fails() -> None:
    async def main() -> None:
        async with transport() as one, transport() as other:
            taken = await one.listen("127.0.0.1:0")
            for address, fix in (
                (taken, "the port is taken; choose another one"),
                ("192.0.2.1:0", "not an address of this machine; 0.0.0.0:0"),
                ("127.0.0.1", "write host:port"),
                ("127.0.0.1:port", "no port"),
                ("name..invalid:0", "use an IP address"),
            ):
                with pytest.raises(ListenError, match=fix):
                    await other.listen(address)

    run(main())
    assert "choose a port above 1023" in listening_failed("127.0.0.1", 80, PermissionError(errno.EACCES, "no"))


def test_sources_are_told_apart() -> None:
    assert source_of("10.0.0.1") == "10.0.0.1"
    assert source_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert source_of("2001:db8:1:2:3::4") == source_of("2001:db8:1:2::9") == "2001:db8:1:2::/64"
    assert source_of("2001:db8:1:3::4") != source_of("2001:db8:1:2::4")
    assert source_of("fe80::1%eth0") == "fe80::/64"
