// isinstance(tensor, torch.FloatTensor) and the like look at a tensor's dispatch keys, and do not know ours.
#pragma once

namespace remint {

// Makes such checks see tensors of budgets as what they are. Needs the GIL. Once per process.
void patch_legacy_types();

}  // namespace remint
