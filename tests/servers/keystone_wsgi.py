"""Serves Keystone's WSGI application: `keystone_wsgi.py PORT [CERTIFICATE]`. It runs in Keystone's environment, not in ours.

With a PEM file of a certificate and its key it serves TLS. Its configuration is the file that OS_KEYSTONE_CONFIG_FILES names.
"""

import socket
import ssl
import sys
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128

    def server_bind(self) -> None:
        # The parent asks the name service for the name of the address, which takes seconds where there is none.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "127.0.0.1", int(self.server_address[1])
        self.setup_environ()


class Handler(WSGIRequestHandler):
    timeout = 30

    def address_string(self) -> str:
        return self.client_address[0]


def main(port: str, certificate: str = "") -> None:
    arguments, sys.argv[1:] = sys.argv[1:], []
    # It reads the arguments of the process.
    from keystone.wsgi.api import application  # type: ignore[import-not-found]  # noqa: PLC0415

    sys.argv[1:] = arguments
    server = make_server("127.0.0.1", int(port), application, Server, Handler)
    if certificate:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
        # In the threads of the requests: a client that says nothing must not stop the others.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
