"""frames.py -- a connection of HTTP/2, frame by frame, that may say anything."""
import json
import socket
import ssl

import hpack
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, HeadersFrame, PingFrame, RstStreamFrame, SettingsFrame

from harness import PATIENCE

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Wire:
    def __init__(self, server, key, settings=None, preface=PREFACE, alpn=("h2",), ack=True):
        context, self.port, self.key = server.tls(), server.port, key
        context.set_alpn_protocols(list(alpn))
        s = socket.create_connection(("127.0.0.1", server.port), 20 * PATIENCE)
        self.s = context.wrap_socket(s, server_hostname="localhost")
        self.protocol = self.s.selected_alpn_protocol()
        self.encoder, self.decoder = hpack.Encoder(), hpack.Decoder()
        self.encoder.header_table_size = 0  # what the server asks for
        self.ack, self.buffer, self.heads, self.bodies, self.ends, self.away = ack, b"", {}, {}, {}, None
        self.interim, self.control, self.resets, self.last = {}, [], {}, -1
        self.send(preface, SettingsFrame(0, settings=settings or {}))

    def send(self, *what):
        self.s.sendall(b"".join(x if isinstance(x, bytes) else x.serialize() for x in what))

    def head(self, fields, id=None, end=True, whole=True, encoder=None):
        """A HEADERS frame; `fields` may say anything."""
        self.last = id or self.last + 2
        f = HeadersFrame(self.last, (encoder or self.encoder).encode(fields))
        f.flags |= {n for n, on in (("END_STREAM", end), ("END_HEADERS", whole)) if on}
        return f

    def fields(self, method="GET", path="/v1/models", *more):
        return [(":method", method), (":scheme", "https"), (":path", path), (":authority", f"localhost:{self.port}"),
                ("authorization", "Bearer " + self.key), *more]

    def ask(self, method="GET", path="/v1/models", body=None, end=True, more=()):
        """The stream's id."""
        if isinstance(body, dict):
            body, more = json.dumps(body).encode(), (("content-type", "application/json"), *more)
        self.send(self.head(self.fields(method, path, *more), end=body is None and end))
        if body is not None:
            self.data(self.last, body, end)
        return self.last

    def data(self, id, body, end=True):
        f = DataFrame(id, body)
        f.flags |= {"END_STREAM"} if end else set()
        self.send(f)

    def frame(self):
        """The next frame; None: the connection has ended."""
        def more(n):
            while len(self.buffer) < n:
                got = self.s.recv(65536)
                if not got:
                    raise ConnectionError
                self.buffer += got
        try:
            more(9)
            f, n = Frame.parse_frame_header(memoryview(self.buffer[:9]))
            more(9 + n)
        except (ConnectionError, ssl.SSLError):
            return None
        f.parse_body(memoryview(self.buffer[9:9 + n]))
        self.buffer = self.buffer[9 + n:]
        return f

    def step(self):
        """Takes a frame in; False: the connection has ended."""
        f = self.frame()
        if isinstance(f, HeadersFrame):
            head = dict(self.decoder.decode(f.data))
            (self.interim if head[":status"][0] == "1" else self.heads)[f.stream_id] = head
        elif isinstance(f, DataFrame):
            self.bodies[f.stream_id] = self.bodies.get(f.stream_id, b"") + f.data
        elif isinstance(f, RstStreamFrame):
            self.ends.setdefault(f.stream_id, f.error_code)
            self.resets[f.stream_id] = f.error_code
        elif isinstance(f, GoAwayFrame):
            self.away = f.error_code
        elif isinstance(f, (SettingsFrame, PingFrame)):
            self.control.append(f)
            if isinstance(f, SettingsFrame) and "ACK" not in f.flags and self.ack:
                self.send(SettingsFrame(0, flags=["ACK"]))
        if f is not None and "END_STREAM" in f.flags:
            self.ends[f.stream_id] = "whole"
        return f is not None

    def answer(self, id):
        """(status, fields, body) of a stream that ended well."""
        while id not in self.ends:
            assert self.step(), ("the connection ended", self.away)
        assert self.ends[id] == "whole", self.ends[id]
        return int(self.heads[id][":status"]), self.heads[id], self.bodies.get(id, b"")

    def reset(self, id):
        """With what code the server ended the stream."""
        while id not in self.ends:
            assert self.step(), ("the connection ended", self.away)
        return self.ends[id]

    def ended(self):
        """Reads to the end of the connection: the code of its GOAWAY."""
        while self.step():
            pass
        return self.away

    def close(self):
        self.s.close()
