"""Stand-in for vLLM's own platforms of NVIDIA, AMD, Intel, Moore Threads and MetaX cards, for simulated hosts."""

import glob
import json
import os

HARDWARE = "/etc/lmcache-fleet-lab/vendor.json"
#: In a vendor's image, which is for its cards alone: nodes for all cards, and how the name of a card's own begins.
NODES = None
#: What each card has where nothing tells it, as in a container.
MEMORY_MB = 65536


def hardware():
    """The cards that there are; None without any of these vendors."""
    try:
        with open(HARDWARE, encoding="utf-8") as handle:
            return json.load(handle)
    except FileNotFoundError:
        return inside()


def inside():
    """The cards that a container was given; None without any, or in a build that is for no vendor's image."""
    if NODES is None:
        return None
    control, card = NODES
    cards = sorted(glob.glob(glob.escape(card) + "[0-9]*"))
    return {"nodes": {"control": control, "cards": cards}, "cards": {"memory_mb": MEMORY_MB}} if cards else None


def register():
    """Platform plugin: names the platform class where there are cards."""
    return "lab_cards.CardsPlatform" if hardware() else None


class CardsPlatform:
    """What vLLM asks of a platform."""

    device_type = device_name = "cuda"

    def make_worker(self, config):
        """The worker for one engine."""
        return Worker(config)


class Worker:
    """Holds the device nodes of all ranks of one engine."""

    def __init__(self, config):
        self.ranks = config.parallel_config.world_size
        self.utilization = config.cache_config.gpu_memory_utilization
        self.room = 0
        self.nodes = []

    def init_device(self):
        """Opens what a driver's library opens; this very process must be allowed to."""
        host = hardware()
        if self.ranks > len(host["nodes"]["cards"]):
            raise AssertionError(f"world size ({self.ranks}) is larger than the number of available devices")
        for path in (*host["nodes"]["control"], *host["nodes"]["cards"][: self.ranks]):
            self.nodes.append(os.open(path, os.O_RDWR))
        self.room = int(host["cards"]["memory_mb"] * self.utilization) * 2**20 * self.ranks

    def before_inference(self):
        """Compiled kernels are cached below the home directory."""
        with open(os.path.join(os.environ["HOME"], "kernels"), "a", encoding="utf-8"):
            pass

    def cache_bytes(self):
        """Room for KV on the devices."""
        return self.room // 2

    def release(self):
        """Gives the devices back."""
        for node in self.nodes:
            os.close(node)
        self.nodes = []
