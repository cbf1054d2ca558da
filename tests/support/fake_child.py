"""Children of a worker that answer with anything but a reply."""

import os
import pickle
import struct
import sys
import time

from pymm.core.device import Device
from pymm.measure.channel import HEADER, MARK, Channel
from pymm.measure.worker_process import Hello


def _greet(connection):
    channel = Channel(connection)
    channel.send(Hello(Device("fake", "cpu")))
    channel.receive()
    os.set_blocking(connection.fileno(), True)
    return connection.fileno()


def _framed(body, length=None, digest=bytes(16)):
    return HEADER.pack(MARK, len(body) if length is None else length, digest) + body


def garbage(connection, site, words):
    os.write(_greet(connection), os.urandom(4000))
    time.sleep(600)


def huge_length(connection, site, words):
    os.write(_greet(connection), _framed(b"", 2**63 - 1))
    time.sleep(600)


def half_a_message(connection, site, words):
    os.write(_greet(connection), _framed(b"abc", 1000))
    time.sleep(600)


def half_a_header(connection, site, words):
    os.write(_greet(connection), MARK)
    time.sleep(600)


def one_flipped_bit(connection, site, words):
    os.write(_greet(connection), _framed(pickle.dumps("a reply")))
    time.sleep(600)


def no_pickle(connection, site, words):
    from pymm.measure.channel import _digest

    body = pickle.dumps("a reply")[:-3] + struct.pack("<3B", 255, 1, 2)
    os.write(_greet(connection), _framed(body, digest=_digest(body)))
    time.sleep(600)


def another_object(connection, site, words):
    _greeted(connection).send({"outcome": "ok"})
    time.sleep(600)


def _greeted(connection):
    _greet(connection)
    return Channel(connection)


def closes(connection, site, words):
    _greet(connection)
    connection.close()
    time.sleep(600)


def closes_in_the_middle(connection, site, words):
    os.write(_greet(connection), _framed(b"abc", 1000))
    sys.stderr.flush()
    os._exit(3)


def reads_nothing(connection, site, words):
    Channel(connection).send(Hello(Device("fake", "cpu")))
    time.sleep(600)


def no_hello(connection, site, words):
    os.write(connection.fileno(), b"\x80\x05" + b"hello, I am a line of a kernel's own printf\n")
    time.sleep(600)
