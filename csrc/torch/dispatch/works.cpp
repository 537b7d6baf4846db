#include "torch/dispatch/works.h"

#include <utility>

namespace remint {
namespace {

thread_local Works* gathered = nullptr;

}  // namespace

GatherWorks::GatherWorks(Works& works) : before_(std::exchange(gathered, &works)) {}

GatherWorks::~GatherWorks() {
  gathered = before_;
}

void note_works(const torch::jit::Stack& results, std::size_t first) {
  if (gathered == nullptr) return;
  for (std::size_t i = first; i < results.size(); ++i) {
    if (!results[i].isObject()) continue;
    const c10::IValue& slot = results[i].toObjectRef().getSlot(0);
    const c10::intrusive_ptr<torch::CustomClassHolder> holder =
        slot.isCapsule() ? slot.toCapsule() : c10::intrusive_ptr<torch::CustomClassHolder>();
    if (holder) {
      gathered->started.emplace_back(c10::static_intrusive_pointer_cast<c10d::Work>(holder));
    } else {
      gathered->unknown = true;
    }
  }
}

}  // namespace remint
