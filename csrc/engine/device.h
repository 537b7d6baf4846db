// Device: what runs a recorded op again and holds the bytes. The simulator's only counts; the torch runtime's
// is real.
//
// The engine calls it; it may call `Engine::allocate` and `Engine::free` inside `run`, and nothing of the
// engine in the other functions.
#pragma once

#include <vector>

#include "engine/records.h"

namespace remint {

class Device {
 public:
  virtual ~Device() = default;
  // Runs `op` again. Its inputs are resident and locked; it asks Engine::allocate for every byte. Puts the
  // block of each output into `blocks`. An output that takes over an input's bytes has none, unless `blocks`
  // already holds the one to work in: then the device copies the input there first.
  virtual void run(const Op& op, std::vector<BlockId>& blocks) = 0;
  // The bytes of the storage are about to be freed; its block is still allocated, so they can be copied out.
  virtual void evicted(StorageId) {}
  // The storage has bytes (again), at a new address.
  virtual void materialized(StorageId) {}
  // The bytes of the storage, which are in its block, are copied to the tier. False: that failed, and they
  // stay.
  virtual bool offload(StorageId) { return true; }
  // The storage's copy is read back into `block`. May throw: then it is still there, and nothing changed.
  virtual void fetch(StorageId, BlockId /*block*/) {}
  // The storage's copy in the tier is not needed any more.
  virtual void dropped_copy(StorageId) {}
  // A recipe needs a storage that was due back (Engine::before_free), and whose bytes were dropped. Returns
  // the value in which the program should have them again; kNone if it has none yet.
  virtual ValueId came_back(StorageId) { return kNone; }
  // Whether that value, which is resident, has the same bytes.
  virtual bool has_bytes_of(ValueId, StorageId) { return false; }
  // The storage's block moved within the arena. No kernel uses it.
  virtual void moved(StorageId, Bytes /*from*/, Bytes /*to*/) {}
};

}  // namespace remint
