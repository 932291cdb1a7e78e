"""The only open door of a server: nginx, which lets sites reach what is theirs and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

CONFIG = """# Made by 'fedskew server start'; changes here are lost.
# The SuperLink listens on this machine only. Whoever reached it could start runs of their own on
# stock Flower nodes; sites need no more than the paths below /v1/fleet/.
worker_processes 1;
pid "{folder}/nginx.pid";
error_log "{folder}/nginx.log" warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    server_tokens off;
    client_body_temp_path "{folder}/nginx-body";
    proxy_temp_path "{folder}/nginx-proxy";
    fastcgi_temp_path "{folder}/nginx-other";
    uwsgi_temp_path "{folder}/nginx-other";
    scgi_temp_path "{folder}/nginx-other";
    keepalive_timeout 300s;
    keepalive_requests 100000;
    upstream superlink {{
        server 127.0.0.1:{port};
        keepalive 32;
    }}
    server {{
        listen {listen} ssl;
        ssl_certificate "{keys}/server.crt";
        ssl_certificate_key "{keys}/server.key";
        ssl_protocols TLSv1.2 TLSv1.3;
        ssl_session_cache shared:sites:1m;
        client_max_body_size 64m;
        location = /fedskew {{
            default_type application/json;
            return 200 '{versions}';
        }}
        location ~ ^/v1/fleet/[a-z-]+$ {{
            proxy_pass https://superlink;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_ssl_trusted_certificate "{keys}/ca.crt";
            proxy_ssl_verify on;
            proxy_ssl_name localhost;
            proxy_ssl_server_name on;
            proxy_ssl_session_reuse on;
            proxy_buffering off;
            proxy_request_buffering off;
            proxy_read_timeout 120s;
        }}
        location / {{
            return 403;
        }}
    }}
}}
"""


def find_nginx() -> str | None:
    """Where nginx is; Debian puts it where not every user looks."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


def write_config(
    folder: Path, keys: Path, listen: int, port: int, versions: Mapping[str, str]
) -> Path:
    """Write ``nginx.conf`` into a folder: it passes what comes to ``listen`` on to ``port``."""
    path = folder / "nginx.conf"
    path.write_text(
        CONFIG.format(
            folder=folder.resolve(), keys=keys.resolve(), listen=listen, port=port,
            versions=json.dumps(dict(versions)),
        )
    )  # fmt: skip
    return path


def nginx_command(nginx: str, config: Path) -> list[str]:
    """nginx in the foreground with this configuration, and no file of the system's."""
    folder = config.parent.resolve()
    return [
        nginx, "-p", str(folder), "-c", str(config.resolve()), "-e", str(folder / "nginx.log"),
        "-g", "daemon off;",
    ]  # fmt: skip
