// A region: the addresses behind one arena. It is mapped once, with exactly the bytes of the budget, and
// stays mapped until the last block in it is gone, which can be long after its budget ended.
//
// While its budget is open the session knows what is in it. After that the region itself counts what
// survives.
#pragma once

#include <cstddef>
#include <memory>
#include <unordered_map>

#include "base/types.h"

namespace remint {

class Session;

class Region {
 public:
  explicit Region(Bytes nbytes);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  void* at(Bytes offset) const { return base_ + offset; }
  bool contains(const void* address) const { return address >= base_ && address < base_ + nbytes_; }
  Bytes offset(const void* address) const { return static_cast<const char*>(address) - base_; }
  Bytes nbytes() const { return nbytes_; }

  // Gives the pages that lie entirely in this range back to the system.
  void give_back(Bytes offset, Bytes nbytes);

 private:
  char* base_ = nullptr;
  Bytes nbytes_ = 0;
};

// All regions of the process, by address.
class Regions {
 public:
  static void add(std::shared_ptr<Region> region, std::shared_ptr<Session> session);
  // The budget of `region` ended; `survivors` (offset to bytes) are what is still in it.
  static void close(const std::shared_ptr<Region>& region, std::unordered_map<Bytes, Bytes> survivors);
  // The open session whose memory `address` is in; null if there is none.
  static std::shared_ptr<Session> session_of(const void* address);
  // Frees a survivor. False if `address` is in no region.
  static bool free_survivor(void* address);
};

}  // namespace remint
