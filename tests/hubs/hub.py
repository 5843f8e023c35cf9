# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated hub: one server that answers as Hugging Face and as ModelScope do.

    with Hub([gpt_oss()]) as hub:
        hub.fault("cut", path="*00003*", at=1000, count=1)
        …                    # HF_ENDPOINT or MODELSCOPE_ENDPOINT = hub.endpoint
        hub.sent("openai/gpt-oss-120b", "config.json")

Large files are served by a "CDN", a second port under another host name, as the real hubs do. Everything that was
asked and every byte that was sent is counted. Given as an HTTP proxy, it answers for any host.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import re
import select
import socket
import threading
import time
from urllib.parse import parse_qs, quote, unquote, urlsplit

from .faults import ACTIONS, Fault
from .repositories import is_lfs

PIECE = 256 << 10
HTML = b"<!DOCTYPE html><html><title>Sign in to the network</title><body>Please sign in.</body></html>\n"


class Hub:
    """Repositories on an address of this machine. Stops with `stop` or the `with` block.

    address: where to listen, never a public one. port, cdn_port: 0 for any. page: entries of a page of Hugging Face's
    listing. context: an ssl.SSLContext, for https.
    """

    def __init__(self, repositories=(), address="127.0.0.1", port=0, cdn_port=0, page=1000, context=None):
        self.repositories = {repository.name: repository for repository in repositories}
        self.address = address
        self.port = port
        self.cdn_port = cdn_port
        self.cdn_host = "localhost" if address == "127.0.0.1" else address  # so that it differs
        self.page = page
        self.context = context
        self.faults = []
        self.requests = []
        self.stopping = threading.Event()  # no connection goes on
        self._lock = threading.Lock()
        self.up = False
        self._servers = {}
        self._connections = set()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_error):
        self.stop()
        for server in self._servers.values():
            server.server_close()

    def start(self):
        """Listen; after `stop` on the same ports again."""
        self.stopping.clear()
        self.up = True
        for name in ("port", "cdn_port"):
            if name in self._servers:
                self._servers[name].socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                self._servers[name].server_activate()
            else:
                self._servers[name] = self._server(name)
            threading.Thread(target=self._servers[name].serve_forever, args=(0.05,), daemon=True).start()
        return self

    def _server(self, name):
        """A server that listens on the port `name`."""
        port = getattr(self, name)
        # A port that the kernel chose is anybody's as soon as nobody listens there; one that was asked for is not.
        server = _Server((self.address, port or _any_port(self.address)), _Handler)
        server.hub = self
        if self.context is not None:
            server.socket = self.context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        setattr(self, name, server.server_address[1])
        return server

    def stop(self):
        """Refuse and close every connection. The ports stay the hub's own, so that nobody else answers."""
        self.stopping.set()
        if self.up:
            self.up = False
            for server in self._servers.values():
                server.shutdown()
                with contextlib.suppress(OSError):
                    server.socket.shutdown(socket.SHUT_RDWR)
                server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        with self._lock:
            connections, self._connections = self._connections, set()
        for connection in connections:
            _close(connection)

    @property
    def endpoint(self):
        return "%s://%s:%d" % ("https" if self.context else "http", self.address, self.port)

    def add(self, repository):
        self.repositories[repository.name] = repository
        return repository

    def fault(self, action, **description):
        """Add a fault; see faults.Fault. Returns it, so that `happened` can be read."""
        fault = Fault.make(action, **description)
        with self._lock:
            self.faults.append(fault)
        return fault

    def mend(self):
        """No faults any more; what one holds goes on."""
        with self._lock:
            faults, self.faults = self.faults, []
        for fault in faults:
            fault.release()

    def forget(self):
        """Count from nothing again."""
        with self._lock:
            self.requests = []

    def sent(self, repository=None, path=None):
        """Bytes of files that were sent, of one repository and file where given."""
        with self._lock:
            return sum(entry["sent"] for entry in self.requests if _matches(entry, repository, path))

    def asked(self, repository=None, path=None, kinds=("get",)):
        """Requests of those kinds."""
        with self._lock:
            return sum(_matches(entry, repository, path) and entry["kind"] in kinds for entry in self.requests)

    def quiet(self):
        """Whether nothing is being answered."""
        with self._lock:
            return all(entry["ended"] for entry in self.requests)

    def counts(self):
        """{repository: {path: {requests, sent}}} of what carried files."""
        found = {}
        with self._lock:
            for entry in self.requests:
                if entry["kind"] == "get":
                    files = found.setdefault(entry["repository"], {})
                    one = files.setdefault(entry["path"], {"requests": 0, "sent": 0})
                    one["requests"] += 1
                    one["sent"] += entry["sent"]
        return found

    def struck(self, actions, kind, path, start=None, size=None):
        """The faults that happen to a request."""
        with self._lock:
            return [one for one in self.faults if one.action in actions and one.strikes(kind, path, start, size)]

    def note(self, entry):
        with self._lock:
            self.requests.append(entry)

    @contextlib.contextmanager
    def connected(self, connection):
        with self._lock:
            self._connections.add(connection)
        try:
            yield
        finally:
            with self._lock:
                self._connections.discard(connection)


def _matches(entry, repository, path):
    return repository in (None, entry["repository"]) and path in (None, entry["path"])


def _any_port(address):
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


def _close(connection):
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128
    block_on_close = False

    def handle_error(self, request, client_address):
        """A client that goes away is what tests do."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "simulated-hub"
    disable_nagle_algorithm = True
    timeout = 120

    def handle(self):
        self.hub = self.server.hub
        with self.hub.connected(self.request):
            super().handle()

    def finish(self):
        with contextlib.suppress(OSError):
            super().finish()

    def handle_one_request(self):
        """Note when its answer is over, one way or another."""
        self.entry = {}
        try:
            super().handle_one_request()
        finally:
            self.entry["ended"] = True

    def log_message(self, *_arguments):
        """Nothing on the screen; hub.requests has it all."""

    def do_GET(self):
        self.begin()
        if self.path == "/_hub/counts":
            return self.answer_json(self.hub.counts())
        for pattern, answer in ROUTES:
            match = re.fullmatch(pattern, self.path)
            if match:
                self.hub_name = "modelscope" if "modelscope" in answer else "huggingface"
                return getattr(self, answer)(**{key: unquote(value or "") for key, value in match.groupdict().items()})
        return self.fail(404, "Not Found")

    do_HEAD = do_GET

    def begin(self):
        """Take the request apart, and start its entry."""
        url = urlsplit(self.path)  # a proxy is asked for whole addresses
        self.proxied = bool(url.scheme)
        self.path = url.path
        self.query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        self.hub_name = "huggingface"
        self.entry.update(
            url=self.path, kind=None, repository=None, path=None, sent=0, ended=False,
            token=_token_of(self.headers), proxied=self.proxied, on_cdn=self.path.startswith("/cdn/"),
        )  # fmt: skip
        self.hub.note(self.entry)

    # What both hubs have in common

    def of(self, kind, repository, path=""):
        """Say what the request is for. Returns False where a fault has answered it."""
        self.entry.update(kind=kind, repository=repository, path=path)
        if kind == "get":
            return True  # faults of files are looked for when the range is known
        return not self.answered_by_fault(self.hub.struck(("status", "page", "stall"), kind, path))

    def answered_by_fault(self, faults):
        for fault in faults:
            given = fault.parameters
            if fault.action == "status":
                headers = {"Retry-After": str(given["retry_after"])} if "retry_after" in given else {}
                self.fail(given["status"], "A fault on demand", given.get("code"), headers)
                return True
            if fault.action == "page":
                self.answer(200, HTML, {"Content-Type": "text/html; charset=utf-8"})
                return True
            if fault.action == "stall" and self.entry["kind"] != "get":
                self.hub.stopping.wait(3600)
                self.close_connection = True
                return True
        return False

    def answer(self, status, body=b"", headers=None):
        """Answer with a body that is no file."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def answer_json(self, value, headers=None):
        body = json.dumps(value).encode()
        self.answer(200, body, {"Content-Type": "application/json; charset=utf-8", **(headers or {})})

    def fail(self, status, message, code=None, headers=None):
        """An error as the hub of this request puts it."""
        headers = {"Content-Type": "application/json; charset=utf-8", **(headers or {})}
        if self.hub_name == "modelscope":
            body = {"Code": status, "Message": message, "RequestId": "simulated", "Success": False}
        else:
            body = {"error": message}
            headers["X-Error-Message"] = message
            if code:
                headers["X-Error-Code"] = code
        self.answer(status, json.dumps(body).encode(), headers)

    def repository_of(self, name, kind, path="", files=False):
        """The repository, or None where the request was answered."""
        if not self.of(kind, name, path):
            return None
        repository = self.hub.repositories.get(name)
        if repository is None:
            self.fail(404, "Repository not found", "RepoNotFound")
        elif self.allowed(repository, files):
            return repository
        return None

    def allowed(self, repository, files):
        """Whether the request may see the listing (files: the files); otherwise it was answered."""
        if repository.access == "public" or (repository.access == "gated" and not files):
            return True
        token = self.entry["token"]
        if token in repository.tokens:
            return True
        if repository.access == "private":
            self.fail(401 if token is None else 404, "Repository not found", "RepoNotFound")
        elif token is None:
            self.fail(401, "Access is restricted. You must have access to it.", "GatedRepo")
        else:
            self.fail(403, "Access is restricted and you are not in the authorized list.", "GatedRepo")
        return False

    def send_content(self, content, path, headers):
        """Answer with a file's bytes, or with what a fault makes of them."""
        size, head = content.size, self.command == "HEAD"
        start, end = (0, size) if head else _range_of(self.headers.get("Range"), size)
        # Without ranges the answer begins elsewhere, which the other faults have to know.
        faults = [] if head else self.hub.struck(("no_range",), "get", path, start or 0, size)
        asked = self.headers.get("Range") is not None and not faults and not head
        if faults:
            start, end = 0, size
        if not head:
            faults += self.hub.struck(set(ACTIONS) - {"no_range"}, "get", path, start or 0, size)
        if self.answered_by_fault(faults):
            return
        by = {fault.action: fault.parameters for fault in faults}
        hold = next((fault for fault in faults if fault.action == "hold"), None)
        shown = size + by.get("length", {}).get("by", 0)
        if by.get("length") and (end == size or end > shown):
            end = shown
        if start is None or (asked and start >= shown):
            self.answer(416, headers={"Content-Range": "bytes */%d" % shown})
            return
        self.send_response(206 if asked else 200)
        for name, value in {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream", **headers}.items():
            self.send_header(name, value)
        if asked:
            self.send_header("Content-Range", "bytes %d-%d/%d" % (start, end - 1, shown))
        self.send_header("Content-Length", str(end - start))
        if "cut" in by or "stall" in by:
            self.send_header("Connection", "close")
        self.end_headers()
        if not head:
            self.send_bytes(content, start, end, by, hold)

    def send_bytes(self, content, start, end, by, hold):
        """Send [start, end) of the content with the faults {action: parameters}. hold: the Fault, None for none."""
        last = end
        for action in ("cut", "stall"):
            if action in by:
                last = min(last, by[action]["at"])
        flip = by["flip"].get("at", content.size // 2) if "flip" in by else None
        rate = by.get("slow", {}).get("rate")
        piece = PIECE if rate is None else max(1, min(PIECE, rate // 20))
        begun = time.monotonic()
        at = start
        while at < last:
            if hold is not None and at == hold.parameters["at"] and not self.held(hold):
                break
            length = min(piece, last - at)
            if hold is not None and at < hold.parameters["at"]:
                length = min(length, hold.parameters["at"] - at)
            data = content.read(at, length) or b"\0" * length  # past the end of a file that is too long
            if flip is not None and at <= flip < at + len(data):
                data = bytearray(data)
                data[flip - at] ^= 0x01
            data = memoryview(data)
            while data:
                self.entry["sent"] += len(data)  # before somebody can have it and look here
                sent = 0
                try:
                    sent = self.connection.send(data)
                finally:
                    self.entry["sent"] -= len(data) - sent
                data = data[sent:]
                at += sent
            if rate is not None and self.hub.stopping.wait(max(0.0, begun + (at - start) / rate - time.monotonic())):
                break
        if at == end and "stall" not in by:
            return
        self.close_connection = True
        if "stall" in by:
            self.hub.stopping.wait(3600)
        if by.get("cut", {}).get("reset"):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.connection.close()

    def held(self, fault):
        """Wait until the fault is released; False where the hub stops before, or the client is gone."""
        gone = select.poll()
        gone.register(self.connection, select.POLLRDHUP)
        while not (self.hub.stopping.is_set() or gone.poll(0)):
            if fault.released.wait(0.05):
                return True
        return False

    # Hugging Face

    def huggingface_repository(self, name, revision, kind, path="", files=False):
        """(repository, commit), or None where the request was answered."""
        repository = self.repository_of(name, kind, path, files)
        commit = repository and repository.resolve(revision)
        if repository and commit is None:
            self.fail(404, "Invalid rev id: %s" % revision, "RevisionNotFound")
        return (repository, commit) if commit else None

    def huggingface_info(self, name, revision=""):
        found = self.huggingface_repository(name, revision or "main", "info")
        if not found:
            return
        repository, commit = found
        names = self.listed(repository, commit, "info")
        siblings = [{"rfilename": path} for path in sorted(names)]
        self.answer_json(
            {"id": name, "sha": commit, "private": False, "downloads": 0, "tags": [], "siblings": siblings}
        )

    def listed(self, repository, commit, kind):
        """{path: {size, sha256, lfs, content}} as the listing has it, lies included."""
        names = {
            path: {"size": content.size, "sha256": content.sha256, "lfs": is_lfs(path, content), "content": content}
            for path, content in repository.commits[commit].items()
        }
        for fault in self.hub.struck(("listing",), kind, ""):
            for path in fault.parameters.get("drop", ()):
                names.pop(path, None)
            for path, size in fault.parameters.get("add", {}).items():
                names[path] = {"size": size, "sha256": "0" * 64, "lfs": True, "content": None}
            for key in ("sizes", "sha256"):
                for path, value in fault.parameters.get(key, {}).items():
                    names[path]["size" if key == "sizes" else key] = value
        return names

    def huggingface_tree(self, name, revision):
        found = self.huggingface_repository(name, revision, "list")
        if not found:
            return
        files = self.listed(*found, "list")
        entries = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": one} for one in _folders(files)]
        entries += [_huggingface_entry(one, file) for one, file in sorted(files.items())]
        page = min(self.hub.page, int(self.query.get("limit") or self.hub.page))
        start = int(self.query.get("cursor") or 0)
        headers = {}
        if start + page < len(entries):
            rest = "&".join("%s=%s" % item for item in self.query.items() if item[0] != "cursor")
            address = "%s%s?%s&cursor=%d" % (self.origin(), quote(self.path), rest, start + page)
            headers["Link"] = '<%s>; rel="next"' % address
        self.answer_json(entries[start : start + page], headers)

    def origin(self):
        """Where the client thinks it is."""
        if self.proxied:
            return "http://%s" % self.headers["Host"]
        return self.hub.endpoint

    def huggingface_resolve(self, name, revision, path):
        """A redirect: of a large file to the CDN, of a small one to the hub's own cache."""
        kind = "head" if self.command == "HEAD" else "redirect"
        found = self.huggingface_repository(name, revision, kind, path, files=True)
        if not found:
            return
        repository, commit = found
        headers = {"X-Repo-Commit": commit}
        content = repository.commits[commit].get(path)
        if content is None:
            self.fail(404, "Entry not found", "EntryNotFound", headers)
            return
        large = is_lfs(path, content)
        etag = '"%s"' % (content.sha256 if large else content.git_sha1)
        headers.update({"X-Linked-Size": str(content.size), "X-Linked-ETag": etag, "ETag": etag})
        if not large:
            cache = "/api/resolve-cache/models/%s/%s/%s" % (name, commit, path)
            self.answer(307, headers={**headers, "Location": "%s?etag=%s" % (quote(cache), quote(etag))})
            return
        headers["Location"] = self.cdn("hf", name, path, content)
        self.answer(302, b"Found. Redirecting to the CDN\n", headers)

    def huggingface_small(self, name, revision, path):
        """A small file, from the hub itself."""
        kind = "head" if self.command == "HEAD" else "get"
        found = self.huggingface_repository(name, revision, kind, path, files=True)
        if not found:
            return
        content = found[0].commits[found[1]].get(path)
        if content is None:
            self.fail(404, "Entry not found", "EntryNotFound", {"X-Repo-Commit": found[1]})
            return
        self.send_content(content, path, {"X-Repo-Commit": found[1], "ETag": '"%s"' % content.git_sha1})

    def cdn(self, which, name, path, content):
        """A signed address of the CDN."""
        target = "/cdn/%s/%s/%s/%s" % (which, name, content.sha256, path)
        host = self.hub.cdn_host if not self.proxied else "cdn." + self.headers["Host"].split(":")[0]
        origin = "%s://%s:%d" % ("https" if self.hub.context else "http", host, self.hub.cdn_port)
        return "%s%s?X-Signature=%s" % (origin, quote(target), _signature(target))

    def serve_cdn(self, which, name, sha256, path):
        self.hub_name = {"hf": "huggingface", "ms": "modelscope"}[which]
        if not self.of("get" if self.command == "GET" else "head", name, path):
            return
        if self.query.get("X-Signature") != _signature(unquote(self.path)):
            self.answer(403, b"<Error><Code>AccessDenied</Code></Error>")
            return
        for files in self.hub.repositories[name].commits.values():
            if path in files and files[path].sha256 == sha256:
                self.send_content(files[path], path, {"ETag": '"%s"' % sha256})
                return
        self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    # ModelScope

    def modelscope_info(self, name):
        repository = self.repository_of(name, "info")
        if repository:
            self.answer_modelscope({"Name": name, "Revision": "master", "Visibility": 5})

    def modelscope_files(self, name):
        """All entries in one answer; an unknown revision is no error but has no files."""
        repository = self.repository_of(name, "list")
        if not repository:
            return
        commit = repository.resolve(self.query.get("Revision") or "master")
        if commit is None:
            self.answer_modelscope({"Files": None, "IsVisual": 0, "LatestCommitter": None})
            return
        entries, files = [], self.listed(repository, commit, "list")
        for path, file in sorted(files.items()):
            changed_in = repository.changed_in.get((commit, path), commit)
            entries.append(_modelscope_entry(changed_in, repository.dates[changed_in], path, file))
        entries += [_modelscope_entry(commit, repository.dates[commit], path, None) for path in _folders(files)]
        self.answer_modelscope({"Files": entries, "IsVisual": 0, "LatestCommitter": {}})

    def modelscope_repo(self, name):
        path = self.query.get("FilePath", "")
        repository = self.hub.repositories.get(name)
        commit = repository and repository.resolve(self.query.get("Revision") or "master")
        content = repository.commits[commit].get(path) if commit else None
        direct = content is None or not is_lfs(path, content)
        kind = "head" if self.command == "HEAD" else "get" if direct else "redirect"
        if not self.repository_of(name, kind, path, files=True):
            return
        if content is None:
            self.fail(404, "The file %s does not exist" % path)
        elif direct:
            self.send_content(content, path, {"X-Linked-ETag": '"%s"' % content.sha256})
        else:
            self.answer(302, headers={"Location": self.cdn("ms", name, path, content)})

    def answer_modelscope(self, data):
        self.answer_json({"Code": 200, "Data": data, "Message": "success", "RequestId": "simulated", "Success": True})


NAME = r"(?P<name>[^/]+/[^/]+)"
ROUTES = (
    (r"/cdn/(?P<which>hf|ms)/%s/(?P<sha256>[0-9a-f]{64})/(?P<path>.+)" % NAME, "serve_cdn"),
    (r"/api/v1/models/%s/repo/(files|tree)" % NAME, "modelscope_files"),
    (r"/api/v1/models/%s/repo" % NAME, "modelscope_repo"),
    (r"/api/v1/models/%s" % NAME, "modelscope_info"),
    (r"/api/models/%s/revision/(?P<revision>[^/]+)" % NAME, "huggingface_info"),
    (r"/api/models/%s/tree/(?P<revision>[^/]+)" % NAME, "huggingface_tree"),
    (r"/api/models/%s" % NAME, "huggingface_info"),
    (r"/api/resolve-cache/models/%s/(?P<revision>[^/]+)/(?P<path>.+)" % NAME, "huggingface_small"),
    (r"/%s/resolve/(?P<revision>[^/]+)/(?P<path>.+)" % NAME, "huggingface_resolve"),
)


def _folders(files):
    """The folders of a listing, which is always recursive."""
    return sorted({path[:at] for path in files for at, letter in enumerate(path) if letter == "/"})


def _huggingface_entry(path, file):
    entry = {"type": "file", "oid": "0" * 40, "size": file["size"], "path": path}  # of an LFS pointer, made up
    if file["lfs"]:
        return {**entry, "lfs": {"oid": file["sha256"], "size": file["size"], "pointerSize": 134}}
    return {**entry, "oid": file["content"].git_sha1}


def _modelscope_entry(revision, date, path, file):
    """An entry of a file, or of a folder where `file` is None."""
    return {
        "Name": path.rsplit("/", 1)[-1], "Path": path, "Type": "blob" if file else "tree", "Revision": revision,
        "Mode": "33188" if file else "16384", "Size": file["size"] if file else 0, "IsLFS": bool(file and file["lfs"]),
        "Sha256": (file["sha256"] or "") if file else "", "InCheck": False, "CommittedDate": date,
    }  # fmt: skip


def _range_of(text, size):
    """(start, end) of the first range asked for, all of it without one, (None, None) where none can be had."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", text or "")
    if not match or match.groups() == ("", ""):
        return 0, size
    first, last = match.groups()
    if not first:
        return max(0, size - int(last)), size
    start = int(first)
    return start, min(size, int(last) + 1 if last else size)


def _signature(path):
    return hashlib.sha256(b"simulated " + path.encode()).hexdigest()[:32]


def _token_of(headers):
    """The token that a request carries, as a header or as ModelScope's cookie; None for none."""
    bearer = re.fullmatch(r"Bearer (.+)", headers.get("Authorization") or "")
    cookie = re.search(r"(?:^|; *)m_session_id=([^;]+)", headers.get("Cookie") or "")
    return bearer[1] if bearer else cookie[1] if cookie else None
