// A region: the addresses behind one arena. It stays reserved until the last block in it is gone, which can
// be long after its budget ended.
//
// While its budget is open the session knows what is in it. After that the region itself counts what
// survives.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <unordered_map>
#include <vector>

#include "torch/backends/backend.h"
#include "torch/session/native_blocks.h"

namespace remint {

class Session;

class Region {
 public:
  // Soft: without memory of its own; each block is memory of the device's allocator.
  Region(Backend& backend, Bytes nbytes, bool soft)
      : memory_(backend.reserve(soft ? 0 : nbytes)),
        native_(soft ? std::make_unique<NativeBlocks>() : nullptr) {}

  // Null unless it is soft.
  NativeBlocks* native() const { return native_.get(); }

  void* at(Bytes offset) const {
    if (native_ != nullptr) [[unlikely]]
      return native_->at(offset);
    return memory_->base() + offset;
  }
  bool contains(const void* address) const {
    if (native_ != nullptr) [[unlikely]]
      return native_->contains(address);
    return address >= memory_->base() && address < memory_->base() + memory_->nbytes();
  }
  Bytes offset(const void* address) const {
    if (native_ != nullptr) [[unlikely]]
      return native_->offset(address);
    return static_cast<const char*>(address) - memory_->base();
  }
  void discard(Bytes offset, Bytes nbytes) {
    if (native_ != nullptr) [[unlikely]]
      native_->take(offset);
    memory_->discard(offset, nbytes);
  }
  void release() { memory_->release(); }
  void used_by(const c10::Stream& stream) { memory_->used_by(stream); }

 private:
  const std::unique_ptr<ArenaMemory> memory_;
  const std::unique_ptr<NativeBlocks> native_;
};

// All regions of the process, and the sessions that are open.
class Regions {
 public:
  static void add(std::shared_ptr<Region> region, std::shared_ptr<Session> session);
  // The budget of `region` ended; `survivors` (offset to bytes) are what is still in it.
  static void close(const std::shared_ptr<Region>& region, std::unordered_map<Bytes, Bytes> survivors);
  // The open session whose memory `address` is in; null if there is none.
  static std::shared_ptr<Session> session_of(const void* address);
  // Whether `address` is in a region of any budget, open or ended.
  static bool contains(const void* address);
  static std::vector<std::shared_ptr<Session>> open_sessions();
  static std::size_t num_open_sessions();
  // How often a session read memory of another one. As long as nobody did, writes to one's own memory concern
  // nobody else.
  static std::atomic<std::size_t>& num_shared_reads();
  // Around a fork, so that the child finds everything consistent.
  static void before_fork();
  // True if a session is in the middle of something that will never end in this process.
  static bool after_fork(bool in_child);
  // Frees a survivor. False if `address` is in no region.
  static bool free_survivor(void* address);
  // `stream` uses a survivor. False if `address` is in no region.
  static bool record_stream(void* address, const c10::Stream& stream);
};

}  // namespace remint
