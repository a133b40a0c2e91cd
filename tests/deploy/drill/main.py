"""`scripts/chart-drill`: plays the rendered chart as processes.

All pods start and answer. Then the cluster has to survive what clusters go through: each part is killed under
load, and pods are replaced.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.deploy.drill.cluster import Cluster
from tests.deploy.drill.node import Node
from tests.deploy.drill.scenes import SCENES, play
from tests.deploy.drill.shipped import Size, by_chart
from tests.deploy.drill.table import Table

from autellix_lab.demo.model import build_demo_model


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the drill; print its table, and return 1 if anything did not hold."""
    options = _options(arguments)
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)7.0f ms %(message)s", stream=sys.stderr)
    folder: Path = options.folder.resolve()
    # Containers run as other users.
    folder.chmod(0o755)
    model = build_demo_model(options.model or folder / "model")
    size = Size(engines=options.engines, gateways=options.gateways, policy=options.policy, model=model)
    images, pods = by_chart(size, folder)
    table = Table()
    with Node(folder, images) as node:
        play(Cluster(node, pods, table), _from_input() if options.scenes == ["-"] else options.scenes)
    print(table)  # noqa: T201 - its result
    if options.json:
        options.json.write_text(json.dumps(table.rows, indent=1))
    return 0 if table.holds else 1


def _from_input() -> Iterator[str]:
    """Yield scenes as they are named, one on a line, so that a cluster may be kept between them."""
    for line in sys.stdin:
        yield line.strip()


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/chart-drill", description=__doc__)
    parser.add_argument("--engines", type=int, default=3)
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--policy", default="boost")
    parser.add_argument(
        "--scenes",
        nargs="+",
        default=list(SCENES),
        metavar="SCENE",
        help=f"of {', '.join(SCENES)}; `-` reads them from standard input",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        required=True,
        help="an empty one for disks and logs, which is kept (default: one that is removed)",
    )
    parser.add_argument("--model", type=Path, help="where the generated model is, or is made")
    parser.add_argument("--json", type=Path, help="write the table's rows there")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
