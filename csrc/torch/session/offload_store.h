// Where the offloaded bytes of a session are: a file for the CPU, memory of the host for an accelerator.
//
// The engine counts the tier and says what goes there (engine/tier.h); this holds it. A storage has one copy
// at most, known by the storage's id.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/types.h"
#include "torch/backends/backend.h"

namespace remint {

class OffloadStore {
 public:
  virtual ~OffloadStore() = default;
  // Copies bytes of a storage here. False: there is no space for them, and `problem` says why.
  virtual bool write(StorageId id, const void* from, std::size_t nbytes) = 0;
  // Copies them back. Throws if they cannot be read; they stay here in any case.
  virtual void read(StorageId id, void* to, std::size_t nbytes) = 0;
  virtual void drop(StorageId id) = 0;
  // Bytes per second that a copy there and back runs at.
  virtual double measure_bandwidth() = 0;
  // A process that was forked shares the copies with its parent, which goes on to change them.
  virtual bool survives_fork() const { return true; }
  // Why it took no more; empty: it did.
  const std::string& problem() const { return problem_; }

 protected:
  std::string problem_;
};

// A file without a name in `folder`, which the system removes with the process, however that ends. `most`:
// bytes that are in it at once. Throws if it cannot be made.
std::unique_ptr<OffloadStore> new_offload_file(const std::string& folder, Bytes most);
// Memory of the host, for the device of `backend`. The host waits for each copy, which is made in the order
// of the current stream.
std::unique_ptr<OffloadStore> new_offload_memory(Backend& backend);

}  // namespace remint
