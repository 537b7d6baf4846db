#include "torch/session/owned_storage.h"

#include "torch/session/region.h"
#include "torch/session/session.h"

namespace remint {

void owned_deleter(void* context) {
  auto* owned = static_cast<OwnedStorage*>(context);
  // The session must outlive the call, of which its last reference may be a part.
  const std::shared_ptr<Session> session = owned->session;
  session->died(owned);
}

bool free_in_arena(void* address) {
  if (std::shared_ptr<Session> session = Regions::session_of(address)) {
    session->free(address);
    return true;
  }
  return Regions::free_survivor(address);
}

void raw_deleter(void* address) {
  if (address != nullptr) free_in_arena(address);
}

}  // namespace remint
