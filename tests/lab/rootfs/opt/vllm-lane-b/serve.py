"""Answers as an old lane did, as far as a deploy looks: /health and /v1/models."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Lane(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        models = {"object": "list", "data": [{"id": "qwen-35b-nvfp4", "object": "model"}]}
        body = json.dumps(models if self.path == "/v1/models" else {}).encode()
        self.send_response(200 if self.path in ("/health", "/v1/models") else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), Lane).serve_forever()
