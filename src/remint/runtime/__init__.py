"""`remint.budget` and what belongs to it: any eager PyTorch program inside a budget that holds."""

from remint.online.budget import budget
from remint.online.fit import fit
from remint.online.hatches import evict, is_resident, materialize, pin
from remint.online.live_run import LiveRun
from remint.online.recording import Recording, record

__all__ = ["LiveRun", "Recording", "budget", "evict", "fit", "is_resident", "materialize", "pin", "record"]
