"""The two lines of text that a site and a server exchange: a public key, and an invitation."""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import asdict, dataclass
from typing import Any

from fedskew.errors import ConfigError
from fedskew.sites.keys import from_short, public_pem, short

SITE, INVITATION = "fedskew-site", "fedskew-invitation"
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
LONGEST = 20_000


@dataclass(frozen=True)
class Application:
    """What a site sends to a server once: its name and public key."""

    name: str
    key: bytes

    def __str__(self) -> str:
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        return f"{SITE}:{self.name}:{short(load_pem_public_key(self.key))}"  # type: ignore[arg-type]

    @classmethod
    def read(cls, line: str) -> Application:
        kind, _, rest = "".join(line.split()).partition(":")
        name, _, word = rest.partition(":")
        if kind != SITE or not word:
            raise ConfigError(
                f"this is no line of a site, which begins with {SITE}: and is printed by "
                "'fedskew site init'."
            )
        if not NAME.fullmatch(name):
            raise ConfigError(f"a site cannot be called {name!r:.60}: use a-z, 0-9 and -.")
        return cls(name, public_pem(from_short(word)))


@dataclass(frozen=True)
class Invitation:
    """What a server sends to a site once: where it is, how to know it, and what runs there."""

    site: str
    server: str
    address: str
    authority: str
    versions: dict[str, str]

    def __str__(self) -> str:
        packed = zlib.compress(json.dumps(asdict(self)).encode(), 9)
        return f"{INVITATION}:{base64.urlsafe_b64encode(packed).decode().rstrip('=')}"

    @classmethod
    def read(cls, line: str) -> Invitation:
        kind, _, word = "".join(line.split()).partition(":")
        if kind != INVITATION:
            raise ConfigError(
                f"this is no invitation, which begins with {INVITATION}: and is printed by "
                "'fedskew server add'."
            )
        try:
            packed = base64.urlsafe_b64decode(word + "=" * (-len(word) % 4))
            values: Any = json.loads(zlib.decompressobj().decompress(packed, LONGEST))
            made = cls(**values)
        except (ValueError, TypeError, zlib.error) as error:
            raise ConfigError("the invitation is damaged: copy the whole line again.") from error
        if not all(isinstance(v, str) for v in (made.site, made.server, made.address)):
            raise ConfigError("the invitation is damaged: copy the whole line again.")
        return made
