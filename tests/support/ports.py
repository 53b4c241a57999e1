"""Ports for processes that meet at one of this machine, and have to know it before they start."""
import os
import socket

FIRST, COUNT, BLOCK = 10240, 22000, 16


def free_ports(count):
    """Ports of loopback that nobody listens on. They lie below those that the system gives to whoever asks for any one,
    and each process looks from another one on: nobody else takes them before they are used."""
    found, port = [], FIRST + os.getpid() * BLOCK % COUNT
    while len(found) < count:
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
                found.append(port)
            except OSError:
                pass
        port += 1
    return found
