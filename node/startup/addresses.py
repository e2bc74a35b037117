"""Which address peers reach a node at, and whether they can.

Peers dial the advertised address for control and, on decode nodes, for data, so it must be specific, this machine's
own, and one that the node listens on.
"""

import fcntl
import ipaddress
import socket
import struct
from dataclasses import dataclass

from baton.contracts.configuration.schema import NodeConfig
from baton.node.errors import StartRefusedError

_SIOCGIFADDR = 0x8915  # linux/sockios.h: address of a network interface
_EVERYWHERE = "0.0.0.0"  # noqa: S104  # what an empty `host` asks for
_ELSEWHERE = ("192.0.2.1", 9)  # TEST-NET-1, RFC 5737; nothing is sent to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where a node listens and what it tells its peers."""

    listen_host: str
    advertise_host: str  # as peers are told: a name or an address
    data_host: str  # the same as an address, which the transfer engine binds


def resolve(node: NodeConfig) -> Addresses:
    """Find the node's addresses; refuse such as peers could not reach, and names that cannot be resolved."""
    listen = _address_of(node.host or _EVERYWHERE, "host")
    wanted = node.advertise_host or (node.host if not _unspecified(listen) else first_external() or "")
    if not wanted:
        raise StartRefusedError(
            f"the node listens on {listen}, but this machine has no address other than loopback: set advertise_host"
        )
    advertised = _address_of(wanted, "advertise_host")
    refuse_unreachable(listen, advertised)
    if not is_local(advertised):
        raise StartRefusedError(
            f"advertise_host {wanted} is not an address of this machine, so peers would dial another"
        )
    return Addresses(listen_host=listen, advertise_host=wanted, data_host=advertised)


def refuse_unreachable(listen: str, advertised: str) -> None:
    """Refuse if a peer that dials `advertised` does not reach a socket bound to `listen`; both are addresses."""
    if _unspecified(advertised):
        raise StartRefusedError(f"advertise_host {advertised} is no address that a peer can dial: name a specific one")
    if _loopback(advertised) and not _loopback(listen):
        raise StartRefusedError(
            f"the node listens on {listen} but advertises {advertised}, which other machines cannot reach: "
            "set advertise_host to this machine's address"
        )
    if not _unspecified(listen) and advertised != listen:
        raise StartRefusedError(
            f"the node advertises {advertised} but listens on {listen} alone, so peers could not reach it: "
            f"set host to {advertised} or {_EVERYWHERE}"
        )


def first_external() -> str | None:
    """Return this machine's first IPv4 address that is not loopback, that of the default route if there is one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)  # a datagram socket: this only asks the routing table
            return str(probe.getsockname()[0])
        except OSError:
            pass  # no default route, as in an isolated network
        candidates = (_interface_address(probe, name) for _, name in socket.if_nameindex())
        return next((address for address in candidates if address and not _loopback(address)), None)


def interface_of(address: str) -> str | None:
    """Return the name of the network interface that has an IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        names = (name for _, name in socket.if_nameindex())
        return next((name for name in names if _interface_address(probe, name) == address), None)


def is_local(address: str) -> bool:
    """Tell whether a socket can be bound to the address."""
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _address_of(host: str, setting: str) -> str:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as exc:
        raise StartRefusedError(f"{setting} {host!r} cannot be resolved to an address: {exc.strerror}") from exc
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)  # "localhost" is ::1 first on some machines
    return str(found[0][4][0])


def _interface_address(probe: socket.socket, name: str) -> str | None:
    try:
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
    except OSError:
        return None  # an interface without an IPv4 address
    return socket.inet_ntoa(answer[20:24])


def _unspecified(address: str) -> bool:
    return ipaddress.ip_address(address).is_unspecified


def _loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
