#include "torch/session/region.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <new>
#include <vector>

namespace remint {
namespace {

struct Entry {
  std::shared_ptr<Region> region;
  std::shared_ptr<Session> session;  // null once the budget ended
  std::unordered_map<Bytes, Bytes> survivors;
};

// Never destroyed: tensors can die after all static objects.
std::vector<Entry>& entries() {
  static auto* all = new std::vector<Entry>();
  return *all;
}

std::mutex& entries_mutex() {
  static auto* mutex = new std::mutex();
  return *mutex;
}

// So that freeing ordinary memory costs no lock when there is no region.
std::atomic<std::size_t> num_entries{0};

Entry* find(const void* address) {
  for (Entry& entry : entries()) {
    if (entry.region->contains(address)) return &entry;
  }
  return nullptr;
}

void erase(Entry* entry) {
  *entry = std::move(entries().back());
  entries().pop_back();
  num_entries = entries().size();
}

}  // namespace

Region::Region(Bytes nbytes) : nbytes_(nbytes) {
  if (nbytes == 0) return;
  // Pages are not touched before they are used, so a large budget costs nothing.
  void* base = mmap(nullptr, static_cast<std::size_t>(nbytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<char*>(base);
}

Region::~Region() {
  if (base_ != nullptr) munmap(base_, static_cast<std::size_t>(nbytes_));
}

void Region::give_back(Bytes offset, Bytes nbytes) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin =
      (reinterpret_cast<std::uintptr_t>(base_) + static_cast<std::uintptr_t>(offset) + page - 1) / page *
      page;
  const auto end =
      (reinterpret_cast<std::uintptr_t>(base_) + static_cast<std::uintptr_t>(offset + nbytes)) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void Regions::add(std::shared_ptr<Region> region, std::shared_ptr<Session> session) {
  std::lock_guard<std::mutex> lock(entries_mutex());
  entries().push_back({std::move(region), std::move(session), {}});
  num_entries = entries().size();
}

void Regions::close(const std::shared_ptr<Region>& region, std::unordered_map<Bytes, Bytes> survivors) {
  std::shared_ptr<Session> session;  // let go of after the lock
  std::lock_guard<std::mutex> lock(entries_mutex());
  for (Entry& entry : entries()) {
    if (entry.region != region) continue;
    session = std::move(entry.session);
    entry.survivors = std::move(survivors);
    if (entry.survivors.empty()) erase(&entry);
    return;
  }
}

std::shared_ptr<Session> Regions::session_of(const void* address) {
  if (num_entries == 0) return nullptr;
  std::lock_guard<std::mutex> lock(entries_mutex());
  Entry* entry = find(address);
  return entry == nullptr ? nullptr : entry->session;
}

bool Regions::free_survivor(void* address) {
  if (num_entries == 0) return false;
  std::lock_guard<std::mutex> lock(entries_mutex());
  Entry* entry = find(address);
  if (entry == nullptr) return false;
  const Bytes offset = entry->region->offset(address);
  auto survivor = entry->survivors.find(offset);
  if (survivor != entry->survivors.end()) {
    entry->region->give_back(offset, survivor->second);
    entry->survivors.erase(survivor);
  }
  if (entry->survivors.empty() && entry->session == nullptr) erase(entry);
  return true;
}

}  // namespace remint
