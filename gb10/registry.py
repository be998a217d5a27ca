"""Image digests from a registry: what NAME:TAG stands for now.

The protocol is the registry HTTP API v2 (OCI distribution): GET the manifest, at 401 get a token from the
realm that WWW-Authenticate names. The digest is the sha256 of the manifest's bytes: computed, not believed.
"""

from __future__ import annotations

import hashlib
import json
import re
import urllib.parse
from dataclasses import dataclass

from gb10.web import Answer, Web, WebError, WebStatusError

DOCKER_HUB = "registry-1.docker.io"
"""Where an image without a registry in its name comes from, as Docker does it."""

ACCEPT = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)


class RegistryError(Exception):
    """The registry cannot say it: one line."""


@dataclass(frozen=True)
class Image:
    """``registry/path:tag``, and the digest that a reference may carry."""

    registry: str
    path: str
    tag: str
    digest: str | None

    @property
    def name(self) -> str:
        """NAME:TAG as a person writes it."""
        short = self.path.removeprefix("library/")
        return (
            f"{short}:{self.tag}"
            if self.registry == DOCKER_HUB
            else f"{self.registry}/{self.path}:{self.tag}"
        )


def parse_image(reference: str) -> Image:
    """Takes apart ``[HOST/]PATH[:TAG][@sha256:…]`` by Docker's rules."""
    named, _, digest = reference.partition("@")
    head, slash, rest = named.partition("/")
    if not slash or not ("." in head or ":" in head or head == "localhost"):
        head, rest = DOCKER_HUB, named
    path, colon, tag = rest.rpartition(":")
    if not colon:
        path, tag = rest, "latest"
    if head == DOCKER_HUB and "/" not in path:
        path = f"library/{path}"
    return Image(head, path, tag, digest or None)


class RegistryClient:
    """``scheme``: http for a registry on this machine."""

    def __init__(self, scheme: str = "https", timeout_s: float = 30.0) -> None:
        self.scheme, self.timeout_s = scheme, timeout_s

    def digest(self, image: Image) -> str:
        """``sha256:…`` of the manifest (of the index, for an image of several architectures).

        Raises `RegistryError`.
        """
        base = f"{self.scheme}://{image.registry}"
        url = f"{base}/v2/{image.path}/manifests/{image.tag}"
        try:
            try:
                answer = self._get(Web(self.timeout_s), url)
            except WebStatusError as error:
                if error.status != 401:
                    raise
                token = self._token(error.headers.get("WWW-Authenticate") or "", image)
                answer = self._get(Web(self.timeout_s, base, f"Bearer {token}"), url)
        except WebStatusError as error:
            hint = "no such image or tag" if error.status in (401, 403, 404) else "try again later"
            raise RegistryError(f"{image.name}: {error}: {hint}") from None
        except WebError as error:
            raise RegistryError(f"{image.name}: {error}") from None
        computed = "sha256:" + hashlib.sha256(answer.body).hexdigest()
        said = answer.headers.get("Docker-Content-Digest")
        if said and said != computed:
            raise RegistryError(
                f"{image.name}: the manifest is {computed}, but the registry calls it {said[:80]}"
            )
        return computed

    @staticmethod
    def _get(web: Web, url: str) -> Answer:
        return web.get(url, {"Accept": ACCEPT})

    def _token(self, challenge: str, image: Image) -> str:
        """A token for reading one image, from where the registry says."""
        fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        realm = fields.get("realm", "")
        if not challenge.lower().startswith("bearer ") or not realm.startswith(f"{self.scheme}://"):
            raise RegistryError(f"{image.name}: the registry wants a login of a kind that is not known here")
        query = {"service": fields.get("service", ""), "scope": f"repository:{image.path}:pull"}
        try:
            data = json.loads(Web(self.timeout_s).get(f"{realm}?{urllib.parse.urlencode(query)}").body)
            return str(data.get("token") or data["access_token"])
        except WebStatusError as error:
            raise RegistryError(f"{image.name}: no token for it: {error}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise RegistryError(
                f"{image.name}: the registry's token service does not answer as one"
            ) from None
