"""`remint.budget` and what belongs to it: any eager PyTorch program inside a budget that holds."""

from remint.runtime.budget import budget
from remint.runtime.fit import fit
from remint.runtime.live_run import LiveRun
from remint.runtime.recording import Recording, record
from remint.runtime.tensor_functions import evict, is_resident, materialize, pin

__all__ = ["LiveRun", "Recording", "budget", "evict", "fit", "is_resident", "materialize", "pin", "record"]
